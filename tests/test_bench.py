"""`make bench`: a miss fails nothing, what cannot run does, and the others run all the same."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from bench import __main__ as bench
from bench import (
    balance,
    etcd_load,
    etcd_watchers,
    feed_dataset,
    feed_scale,
    feed_stdin,
    feed_tensorflow,
    feed_torch,
    feeding,
    gateway,
    lease_wire,
    leases,
    memory,
    remote_files,
    rivals,
    small_files,
    year,
)
from bench.figures import Figure, cells, unmeasured

MISSED = """
from bench.figures import Figure

def run():
    return [Figure("far off", 7.0, "s", "< 1 s", False, "cat | wc: 1 s")]
"""
BROKEN = """
def run():
    raise OSError("no disk here")
"""


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where the figures of two benchmarks go, one that misses and one that cannot run."""
    (tmp_path / "made_missed.py").write_text(MISSED)
    (tmp_path / "made_broken.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(bench, "MODULES", {"broken": "made_broken", "missed": "made_missed"})
    monkeypatch.setattr(bench, "PAGE", tmp_path / "benchmarks.md")
    return tmp_path / "benchmarks.md"


def test_a_benchmark_that_cannot_run_fails_all_and_stops_none(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main([]) == 1

    out = capsys.readouterr().out
    assert "broken: cannot run" in out
    assert "no disk here" in out
    assert "| far off | 7 s | < 1 s | missed | cat \\| wc: 1 s |" in page.read_text()
    assert "| broken | could not run |" in page.read_text()


def test_a_missed_goal_fails_nothing_and_one_benchmark_alone_keeps_no_page(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(["missed"]) == 0

    assert "missed" in capsys.readouterr().out
    assert not page.exists()


def test_a_benchmark_there_is_not_is_named_with_those_there_are(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(["fast"]) == 2

    assert "no benchmark 'fast'; there are broken missed" in capsys.readouterr().err


def test_nothing_is_said_of_a_goal_where_none_is_promised() -> None:
    assert cells(Figure("seen", 1.0, "s", "", met=False, rival=""))[3] == ""


def test_what_could_not_be_measured_is_named_with_the_reason() -> None:
    found = cells(unmeasured("rows, against them", "they do not install: no wheel", "≥ 4 times"))

    assert found == (
        *("rows, against them", "not measured", "≥ 4 times", ""),
        "they do not install: no wheel",
    )


@pytest.fixture
def without_rivals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no rival install, and keep data where the test does."""

    def absent(name: str) -> Path:
        raise rivals.RivalAbsentError(f"{name} does not install: no network")

    sizes: dict[ModuleType, dict[str, object]] = {
        feed_scale: {"FEW": 2, "MANY": 20, "BEATS": 20, "ROUNDS": 1, "UNITS": 100},
        lease_wire: {"CLIENTS": 2},
        leases: {"READERS": 300, "SECONDS": 0.05},
        remote_files: {
            "ROWS": 4_000,
            "GROUP_ROWS": 1_000,
            "LINEAR_BYTES": 2 << 20,
            "THREADS": (1, 2),
            "ROUNDS": 1,
            "READ_S": 0.001,
        },
    }
    for module, values in sizes.items():
        for name, value in values.items():
            monkeypatch.setattr(module, name, value)
    for one in (feed_torch, feed_tensorflow):
        monkeypatch.setattr(one, "rival_python", absent)
    monkeypatch.setattr(rivals, "rival_python", absent)
    monkeypatch.setattr(feeding, "DATA", tmp_path)


TINY: dict[str, Callable[[], list[Figure]]] = {
    "dataset": lambda: feed_dataset.run(rounds=1, rows=4_000, import_rounds=1),
    "leases": leases.run,
    "open": feed_scale.run,
    "remote": remote_files.run,
    "etcd": lambda: etcd_load.run(jobs=3, replicas=2, seconds=0.2),
    "watchers": lambda: etcd_watchers.run(watchers=10, changes=2),
    "balance": lambda: balance.run(records=400, worlds=1),
    "gateway": lambda: gateway.run(rows=2_000, lines=500),
    "memory": lambda: memory.run(group_mib=8, bomb_mib=2),
    "files": lambda: small_files.run(rows=2_000, many=20, rounds=1),
    "stdin": lambda: feed_stdin.run(rounds=1, lines=500),
    "tensorflow": lambda: feed_tensorflow.run(rounds=1, rows=2_000),
    "torch": lambda: feed_torch.run(rounds=1, rows=2_000),
    "wire": lambda: lease_wire.run(readers=4, rounds=1, seconds=0.05),
    "year": lambda: year.run(ahead_units=1_000, read_units=4_000),
}


@pytest.mark.usefixtures("without_rivals")
@pytest.mark.parametrize("name", TINY)
def test_every_benchmark_of_the_feed_and_of_etcd_runs_in_a_tiny_size(name: str) -> None:
    """M102: whatever it measures; where its rival is absent the figure says so.

    But `resume` and `failover`, whose deaths and savepoints tests/real has.
    """
    figures = TINY[name]()

    assert figures
    assert all(figure.name and (figure.goal or figure.rival) for figure in figures)
    if name in ("tensorflow", "torch", "wire"):
        assert "does not install: no network" in figures[0].rival


def test_a_rivals_program_that_fails_is_told_with_its_last_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(rivals, "rival_python", lambda _name: Path(sys.executable))
    monkeypatch.setattr(rivals, "__file__", str(tmp_path / "rivals.py"))
    (tmp_path / "fails.py").write_text("raise ImportError('needs numpy < 2')")
    (tmp_path / "works.py").write_text("print('noise'); print(2.5, 7)")

    with pytest.raises(rivals.RivalAbsentError, match="needs numpy < 2"):
        rivals.rival_says("any", "fails")
    assert rivals.rival_says("any", "works") == [2.5, 7.0]


def test_every_lock_of_a_rival_pins_by_hashes() -> None:
    for name in rivals.NEEDS:
        lines = (rivals.FOLDER / f"{name}.txt").read_text().splitlines()
        pins = [line for line in lines if line and not line.startswith((" ", "#"))]
        hashes = sum("--hash=sha256:" in line for line in lines)
        assert pins
        assert all("==" in pin for pin in pins)
        assert hashes >= len(pins)
