"""`make bench`: a miss fails nothing, what cannot run does, and the others run all the same."""

from pathlib import Path

import pytest

from bench import __main__ as bench
from bench.figures import Figure, cells

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
