"""What a drill came to, judged from documents alone."""

from typing import Any

import pytest

from primusd.ctl.drill_report import DrillWatch
from primusd.ctl.main import run

AT = "2026-01-02T03:04:00.000Z"


def drill(fault: str = "kill", **target: Any) -> dict[str, Any]:
    one = {"replica": "worker-1", "attempt": 1, **target}
    return {
        "kind": "Drill", "job": "ctr", "fault": fault, "at": AT, "event": "7.0", "targets": [one],
        "repeated": {"clicks": 100}, "pauseMs": 5_000,
    }  # fmt: skip


def job(phase: str = "Running", repeated: int = 100) -> dict[str, Any]:
    return {
        "status": {"phase": phase, "data": {"clicks": {"unit": "rows", "repeatedMax": repeated}}}
    }


def replica(attempt: int, phase: str = "Running", step: int | None = None, **more: Any) -> Any:
    newest = {"attempt": attempt, "phase": phase, "ready": phase == "Running", **more}
    newest.setdefault("startedAt", "2026-01-02T03:04:07.000Z")
    found: dict[str, Any] = {"name": "worker-1", "attempts": [newest]}
    if step is not None:
        found["progress"] = {"step": step, "at": "2026-01-02T03:04:09.500Z"}
    return found


def report(watch: DrillWatch) -> dict[str, Any]:
    return dict(watch.report())


def test_a_resume_is_told_with_what_was_lost_and_came_again() -> None:
    watch = DrillWatch(drill(step=120, checkpointStep=100))

    watch.look(job(), [replica(1, "Ended")])
    assert (watch.verdict, watch.is_over) == ("NotRecovered", False)
    watch.look(job(), [replica(2, step=101)])
    assert (watch.verdict, watch.is_over) == ("Resumed", False)
    watch.look(job(repeated=164), [replica(2, step=121)])

    assert watch.is_over
    told = report(watch)
    assert told["verdict"] == "Resumed"
    assert (told["outMs"], told["lostMs"], told["stepsAgain"]) == (7_000, 9_500, 19)
    assert (told["checkpointStep"], told["firstStep"], told["stepBefore"]) == (100, 101, 120)
    assert told["repeated"] == {"clicks": 64}
    assert watch.units == {"clicks": "rows"}


def test_a_trainer_that_begins_before_its_checkpoint_started_over() -> None:
    watch = DrillWatch(drill(step=120, checkpointStep=100))

    watch.look(job(), [replica(2, step=1)])

    assert watch.is_over, "how long it takes to come back there is not waited for"
    assert report(watch)["verdict"] == "StartedOver"


@pytest.mark.parametrize("target", [{}, {"step": 120}, {"checkpointStep": 100}])
def test_without_steps_or_checkpoint_nobody_can_tell_more_than_that_it_runs(
    target: dict[str, Any],
) -> None:
    watch = DrillWatch(drill(**target))

    watch.look(job(), [replica(2, step=120 if "step" in target else None)])

    assert (watch.is_over, watch.verdict) == (True, "Recovered")


def test_a_pause_is_over_once_a_further_step_comes_after_it() -> None:
    watch = DrillWatch(drill("pause", step=120))

    watch.look(job(), [replica(1, step=120)])
    assert not watch.is_over
    watch.look(job(), [replica(1, step=121)])

    told = report(watch)
    assert (told["verdict"], told["restarted"], told["outMs"]) == ("Recovered", False, 9_500)


def test_a_pause_that_the_hang_rule_ended_is_a_restart() -> None:
    watch = DrillWatch(drill("pause", step=120, checkpointStep=100))

    watch.look(job(), [replica(2, step=130)])

    assert (report(watch)["verdict"], report(watch)["restarted"]) == ("Resumed", True)


@pytest.mark.parametrize(("phase", "verdict"), [("Failed", "JobEnded"), ("Succeeded", "Recovered")])
def test_an_end_of_the_job_is_an_end_of_the_drill(phase: str, verdict: str) -> None:
    watch = DrillWatch(drill())

    watch.look(job(phase), [replica(1, "Gone")])

    assert (watch.is_over, watch.verdict) == (True, verdict)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "say one of --kill, --preempt, --pause, --lose-node"),
        (("--kill", "worker:1", "--preempt"), "say one of"),
        (("--kill", "worker:x"), "'worker:x' is no replica"),
        (("--kill", "worker"), "'worker' is no replica (try: worker:1)"),
        (("--pause", "worker-"), "'worker-' is no replica (try: worker:1)"),
        (("--lose-node",), "--yes if it is meant"),
    ],
)
def test_a_drill_that_says_nothing_clear_is_refused(
    words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["drill", "ctr", *words]) == 2

    assert says in capsys.readouterr().err
