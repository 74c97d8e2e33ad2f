"""Why an attempt ended: evidence before numbers (C12, C10, C19, C22), and only once."""

import pytest

from primusd.executor.protocol import Exit
from primusd.job.model import StopState
from primusd.job.outcome import Evidence, decide, how_it_ended, last_line
from primusd.job.phases import Budget, Cause, StopReason
from tests.state.job_driver import ended

APP, INFRA, NONE = Budget.APPLICATION, Budget.INFRASTRUCTURE, Budget.NONE


def stop(reason: StopReason = StopReason.CANCELLED) -> StopState:
    return StopState(reason, "", 30_000, 0)


# (was a stop asked, stop seen by the executor, oom_kills, signal, code, launcher's word) → cause.
C12 = [
    (False, "", 0, None, 0, "", Cause.COMPLETED, NONE),
    (False, "", 0, None, 1, "", Cause.CRASHED, APP),
    (False, "", 0, None, 3, "", Cause.CRASHED, APP),
    (False, "", 0, None, 137, "", Cause.CRASHED, APP),
    (False, "", 0, None, 143, "", Cause.CRASHED, APP),
    (False, "", 0, None, 255, "", Cause.CRASHED, APP),
    (False, "", 0, None, 126, "", Cause.START_FAILED, NONE),
    (False, "", 0, None, 127, "", Cause.START_FAILED, NONE),
    (False, "", 0, 9, None, "", Cause.CRASHED, APP),
    (False, "", 0, 11, None, "", Cause.CRASHED, APP),
    (False, "", 0, 15, None, "", Cause.CRASHED, APP),
    (False, "", 1, None, 0, "", Cause.OUT_OF_MEMORY, APP),
    (False, "", 1, None, 137, "", Cause.OUT_OF_MEMORY, APP),
    (False, "", 1, 9, None, "", Cause.OUT_OF_MEMORY, APP),
    (False, "", 3, 11, None, "", Cause.OUT_OF_MEMORY, APP),
    (False, "", 0, 9, None, "oom", Cause.OUT_OF_MEMORY, APP),
    (False, "", 0, 9, None, "nodeLost", Cause.NODE_LOST, INFRA),
    (False, "", 0, 9, None, "bootChanged", Cause.NODE_LOST, INFRA),
    (False, "", 0, 9, None, "preempted", Cause.PREEMPTED, INFRA),
    (False, "", 0, None, 143, "preempted", Cause.PREEMPTED, INFRA),
    (False, "", 1, 9, None, "preempted", Cause.OUT_OF_MEMORY, APP),
    (False, "superseded", 0, 15, None, "", Cause.EXECUTOR_FAILED, INFRA),
    (True, "cancelled", 0, None, 0, "", Cause.STOPPED, NONE),
    (True, "cancelled", 0, None, 1, "", Cause.STOPPED, NONE),
    (True, "cancelled", 0, None, 137, "", Cause.STOPPED, NONE),
    (True, "cancelled", 0, 9, None, "", Cause.STOPPED, NONE),
    (True, "cancelled", 0, 15, None, "", Cause.STOPPED, NONE),
    (True, "cancelled", 1, 9, None, "", Cause.STOPPED, NONE),
    (True, "", 0, None, 0, "", Cause.COMPLETED, NONE),
    (True, "", 0, None, 1, "", Cause.STOPPED, NONE),
    (True, "", 1, 9, None, "", Cause.STOPPED, NONE),
    (True, "", 0, 11, None, "", Cause.STOPPED, NONE),
]


@pytest.mark.parametrize("row", C12)
def test_C12_M037_the_cause_comes_from_evidence_in_its_order(
    row: tuple[bool, str, int, int | None, int | None, str, Cause, Budget],
) -> None:
    is_stopping, seen, kills, signal, code, word, cause, budget = row
    record = ended(code, signal, oom_kills=kills, stop_seen=seen)

    found = decide(Evidence(exit=record, stop=stop() if is_stopping else None, word=word), at_ms=5)

    assert (found.cause, found.budget) == (cause, budget)
    assert found.evidence, "the evidence is stored with the attempt"


@pytest.mark.parametrize(
    ("reason", "lone", "in_a_stop_of_the_job"),
    [
        (StopReason.HUNG, APP, APP),
        (StopReason.NO_REGISTRATION, INFRA, INFRA),
        (StopReason.START_TIMEOUT, INFRA, INFRA),
        (StopReason.PLACEMENT, INFRA, NONE),
        (StopReason.PREEMPTED, INFRA, NONE),
        (StopReason.CANCELLED, NONE, NONE),
        (StopReason.VERDICT, NONE, NONE),
        (StopReason.RESTARTING, NONE, NONE),
        (StopReason.SCALED_DOWN, NONE, NONE),
        (StopReason.DEADLINE, NONE, NONE),
        (StopReason.SUSPENDED, NONE, NONE),
    ],
)
def test_a_stop_is_charged_by_its_reason(
    reason: StopReason, lone: Budget, in_a_stop_of_the_job: Budget
) -> None:
    record = ended(None, 9, stop_seen=str(reason))

    alone = decide(Evidence(exit=record, stop=stop(reason)), at_ms=0)
    whole = decide(Evidence(exit=record, stop=stop(reason), is_job_stopping=True), at_ms=0)

    assert (alone.cause, alone.budget, alone.stop_reason) == (Cause.STOPPED, lone, reason)
    assert whole.budget is in_a_stop_of_the_job
    assert alone.signal == 9


def test_C19_an_end_that_nobody_saw_is_lost_and_never_a_success() -> None:
    assert decide(Evidence(), at_ms=0).cause is Cause.LOST
    assert decide(Evidence(has_expired=True), at_ms=0).cause is Cause.LOST
    assert decide(Evidence(), at_ms=0).budget is INFRA


@pytest.mark.parametrize(
    ("evidence", "cause", "will_never_run", "budget"),
    [
        (
            Evidence(launch_error="no such image", is_launch_error_permanent=True),
            Cause.LAUNCH_FAILED,
            True,
            INFRA,
        ),
        (Evidence(launch_error="too busy"), Cause.EXECUTOR_FAILED, False, INFRA),
        (Evidence(word="forkFailed:EAGAIN"), Cause.EXECUTOR_FAILED, False, INFRA),
        (Evidence(exit=ended(None, errno=2)), Cause.START_FAILED, True, NONE),
        (Evidence(exit=ended(None, error="files:no space")), Cause.EXECUTOR_FAILED, False, INFRA),
        (Evidence(exit=ended(None, error="disk")), Cause.EXECUTOR_FAILED, False, INFRA),
        (Evidence(exit=ended(None)), Cause.EXECUTOR_FAILED, False, INFRA),
    ],
)
def test_what_never_ran_is_told_apart(
    evidence: Evidence, cause: Cause, *, will_never_run: bool, budget: Budget
) -> None:
    found = decide(evidence, at_ms=0)

    assert (found.cause, found.is_permanent, found.budget) == (cause, will_never_run, budget)


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (
            ended(None, errno=2, lines="trian: command not found\n"),
            "trian: command not found (errno 2)",
        ),
        (ended(127, lines="sh: 1: trian: not found\n"), "sh: 1: trian: not found (exit code 127)"),
        (ended(None, errno=13), "errno 13"),
    ],
)
def test_a_command_that_cannot_start_is_told_in_its_own_words(end: Exit, said: str) -> None:
    assert how_it_ended(decide(Evidence(exit=end), at_ms=0)) == f"could not be started: {said}"


def test_C65_a_taken_port_names_the_port_and_is_not_the_nodes_fault() -> None:
    found = decide(Evidence(exit=ended(None, error="portTaken:main")), at_ms=0)

    assert (found.cause, found.budget) == (Cause.EXECUTOR_FAILED, INFRA)
    assert found.port_taken == "main"
    assert not found.is_node_fault
    assert how_it_ended(found) == "found its port main taken by a stranger"


def test_the_evidence_reads_as_people_say_it() -> None:
    record = ended(1, lines="step 40\nValueError: label out of range\n\n")

    found = decide(Evidence(exit=record), at_ms=9)

    assert found.evidence == ("exit code 1", "oom_kills 0", "no stop was asked")
    assert found.last_line == "ValueError: label out of range"
    assert found.at_ms == 9
    assert how_it_ended(found) == "crashed with code 1"


def test_a_signal_is_named() -> None:
    found = decide(Evidence(exit=ended(None, 11)), at_ms=0)

    assert found.evidence[0] == "signal 11 (SIGSEGV)"
    assert decide(Evidence(exit=ended(None, 250)), at_ms=0).evidence[0] == "signal 250"


def test_gloos_abort_after_its_work_is_told_with_the_page_that_helps() -> None:
    lines = "rank 0 ends: loss 0.0001\nterminate called without an active exception\n"
    hint = ", as gloo does now and then when its work is done: see docs/frameworks.md, torch"

    of_gloo = decide(Evidence(exit=ended(None, 6, lines=lines)), at_ms=0)
    other = decide(Evidence(exit=ended(None, 6, lines="corrupted size vs. prev_size")), at_ms=0)

    assert of_gloo.cause is Cause.CRASHED, "the hint excuses nothing"
    assert how_it_ended(of_gloo) == f"crashed by signal 6 (SIGABRT){hint}"
    assert how_it_ended(other) == "crashed by signal 6 (SIGABRT)"


def test_C44_what_a_trainer_prints_does_not_grow_the_state() -> None:
    assert len(last_line("x" * 100_000)) <= 240
    record = ended(None, error="files:" + "y" * 100_000)
    assert sum(len(one) for one in decide(Evidence(exit=record), at_ms=0).evidence) < 1_000


def test_every_cause_has_words() -> None:
    for cause in Cause:
        record: Exit | None = ended(1)
        found = decide(Evidence(exit=record), at_ms=0)
        assert how_it_ended(type(found)(cause, APP, evidence=("why",)))
