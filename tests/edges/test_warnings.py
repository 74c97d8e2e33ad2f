"""Limits that are near, as an executor tells them: a file that is there while one is."""

import json
from pathlib import Path

from primusd.executor.protocol import Near
from primusd.executor.warnings import Warnings


def test_the_file_has_the_nearest_limit_and_goes_when_none_is_near(tmp_path: Path) -> None:
    path = tmp_path / "warn.json"
    warnings = Warnings(path)

    warnings.hear(
        (Near("deadline", 60_000), Near("replicaHours", 30_000)), now_ms=0, feed=None, trainer=None
    )

    assert json.loads(path.read_text()) == {"reason": "replicaHours", "leftMs": 30_000}
    warnings.hear((), now_ms=5_000, feed=None, trainer=None)
    assert not path.exists()


def test_orders_that_say_the_same_again_change_nothing_and_a_limit_that_moved_does(
    tmp_path: Path,
) -> None:
    path = tmp_path / "warn.json"
    warnings = Warnings(path)
    warnings.hear((Near("deadline", 60_000),), now_ms=0, feed=None, trainer=None)
    path.unlink()

    warnings.hear((Near("deadline", 50_100),), now_ms=10_000, feed=None, trainer=None)
    assert not path.exists()
    warnings.hear((Near("deadline", 90_000),), now_ms=11_000, feed=None, trainer=None)

    assert json.loads(path.read_text())["leftMs"] == 90_000


def test_a_disk_that_takes_no_file_is_no_fault_of_the_trainer(tmp_path: Path) -> None:
    warnings = Warnings(tmp_path / "missing" / "warn.json")

    warnings.hear((Near("deadline", 60_000),), now_ms=0, feed=None, trainer=None)

    assert not (tmp_path / "missing").exists()
