"""Tables 4, 5 and 6 cell by cell: as the page has them, and as the code behaves."""

from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
from msgspec.structs import replace

from primusd.errors import PhaseConflictError
from primusd.job import attempt as attempts
from primusd.job import chunks
from primusd.job import events as ev
from primusd.job import job as machine
from primusd.job import replica as replicas
from primusd.job.attempt import Surroundings
from primusd.job.counts import rules_of
from primusd.job.ids import AttemptId, Span
from primusd.job.job_tables import ATTEMPT_TABLE, JOB_TABLE, REPLICA_TABLE
from primusd.job.machine import At, Ignore
from primusd.job.model import Attempt, Job, Outcome, StopState, Verdict, find_replica
from primusd.job.phases import AttemptPhase, Budget, Cause, JobPhase, ReplicaPhase, StopReason
from primusd.job.spec import Reading, Source, StreamSpec
from primusd.job.tables import Table, ignored_reason, is_refused, parse_table
from tests.state.job_driver import UID, ended, role, span, spec

PAGE = Path(__file__).parents[2] / "docs" / "state-machines.md"
ME = AttemptId(UID, "worker", 0, 1)
AROUND = Surroundings(
    "worker-0/1", 2_000, is_ready_at_start=True, is_job_stopping=False, has_moved=False
)
AT = At(2_000, 2, 0, "test")
STOP = ev.StopDecided(span("worker", 0), StopReason.CANCELLED, "", -1)


def page_rows(table: Table) -> dict[str, tuple[str, ...]]:
    """Return the rows of the table of the page that has the same columns."""
    rows: dict[str, tuple[str, ...]] = {}
    is_inside = False
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip().replace("**", "") for cell in line.strip("| ").split("|")]
        if line.startswith("|") and tuple(cells[2:]) == table.columns:
            is_inside = True
        elif is_inside and not line.startswith("|"):
            return rows
        elif is_inside and not set(line) <= set("|- "):
            rows[cells[0].strip("`")] = tuple(cells[2:])
    return rows


@pytest.mark.parametrize("table", [ATTEMPT_TABLE, REPLICA_TABLE, JOB_TABLE], ids=["4", "5", "6"])
def test_every_cell_is_as_the_page_has_it(table: Table) -> None:
    assert page_rows(table) == dict(table.rows)


def test_every_event_of_a_job_has_its_row() -> None:
    named = {*ATTEMPT_TABLE.rows, *REPLICA_TABLE.rows, *JOB_TABLE.rows}

    missing = {kind.__name__ for kind in get_args(ev.JobEvent)} - named

    assert missing == set()


def test_every_phase_has_its_column() -> None:
    assert ATTEMPT_TABLE.columns == tuple(AttemptPhase)
    assert REPLICA_TABLE.columns == tuple(ReplicaPhase)
    assert JOB_TABLE.columns == (*tuple(JobPhase)[:6], "final")


def test_a_row_with_too_few_cells_is_refused() -> None:
    with pytest.raises(ValueError, match="bad table row"):
        parse_table("event | A | B\nThingHappened | A")


# Table 4.

ATTEMPT_EVENTS: dict[str, ev.AttemptEvent] = {
    "AttemptLaunched": ev.AttemptLaunched(ME, {"pid": "1"}),
    "AttemptWaiting": ev.AttemptWaiting(ME, "no room"),
    "LaunchFailed": ev.LaunchFailed(ME, "bad image"),
    "AttemptVanished": ev.AttemptVanished(ME),
    "StopFailed": ev.StopFailed(ME, was_delivered=False),
    "PreemptionNoticed": ev.PreemptionNoticed(ME, 5_000),
    "ExecutorRegistered": ev.ExecutorRegistered(ME, "i", "h", "b", 7, "0"),
    "ExecutorHolding": ev.ExecutorHolding(ME, (("main", 1),)),
    "TrainerStarted": ev.TrainerStarted(ME, 8, 1),
    "TrainerReady": ev.TrainerReady(ME),
    "TrainerHung": ev.TrainerHung(ME, "no step"),
    "TrainerExited": ev.TrainerExited(ME, ended(1)),
    "ExecutorFellSilent": ev.ExecutorFellSilent(ME),
    "ExecutorReturned": ev.ExecutorReturned(ME),
    "ExecutorExpired": ev.ExecutorExpired(ME),
}


def attempt_in(phase: AttemptPhase) -> Attempt:
    """Return an attempt that came to a phase in the usual way."""
    is_over = phase in (AttemptPhase.ENDED, AttemptPhase.GONE)
    return Attempt(
        1,
        1,
        phase,
        "n1",
        requested_ms=1_000,
        launched_ms=1_000,
        registered_ms=1_000 if phase not in ("Requested", "Launched") else 0,
        stop=StopState(StopReason.CANCELLED, "", 30_000, 1_500) if phase == "Stopping" else None,
        outcome=Outcome(Cause.CRASHED, Budget.APPLICATION, 1) if is_over else None,
    )


def drive_attempt(attempt: Attempt, name: str) -> Attempt | Ignore:
    if name == "GateOpened":
        return attempts.open_gate(attempt, AROUND)
    if name == "StopDecided":
        return attempts.stop(attempt, STOP, AROUND, 30_000)
    return attempts.apply(attempt, ATTEMPT_EVENTS[name], AROUND)


@pytest.mark.parametrize("phase", AttemptPhase)
@pytest.mark.parametrize("name", ATTEMPT_TABLE.rows)
def test_an_attempt_does_what_its_cell_says(name: str, phase: AttemptPhase) -> None:
    cell = ATTEMPT_TABLE.cell(name, phase)
    attempt = attempt_in(phase)

    if is_refused(cell):
        with pytest.raises(PhaseConflictError) as caught:
            drive_attempt(attempt, name)
        assert (caught.value.phase, caught.value.event) == (phase, name)
        return
    after = drive_attempt(attempt, name)

    reason = ignored_reason(cell)
    if reason is not None:
        assert after == Ignore(reason)
    else:
        assert isinstance(after, Attempt)
        assert after.phase == (phase if cell == "=" else cell)


RECORDED: dict[str, Callable[[Attempt], object]] = {
    "AttemptLaunched": lambda one: one.handle == {"pid": "1"},
    "AttemptWaiting": lambda one: one.waiting_for == "no room",
    "PreemptionNoticed": lambda one: one.preemption_ms == 5_000,
    "ExecutorHolding": lambda one: one.is_holding and one.ports == (("main", 1),),
    "TrainerStarted": lambda one: one.trainer_pid == 8 and one.is_ready,
    "TrainerReady": lambda one: one.is_ready,
    "ExecutorFellSilent": lambda one: one.is_silent and one.silent_since_ms == 2_000,
    "ExecutorReturned": lambda one: not one.is_silent,
}
"""What stays true after an event whose cell is `=`: the fact is recorded."""


@pytest.mark.parametrize("name", RECORDED)
def test_a_fact_that_moves_nothing_is_recorded(name: str) -> None:
    for phase in AttemptPhase:
        if ATTEMPT_TABLE.cell(name, phase) == "=":
            after = drive_attempt(attempt_in(phase), name)

            assert isinstance(after, Attempt)
            assert RECORDED[name](after), phase


def test_an_outcome_is_there_from_the_end_on_and_never_before() -> None:
    for name, event in ATTEMPT_EVENTS.items():
        for phase in AttemptPhase:
            cell = ATTEMPT_TABLE.cell(name, phase)
            if is_refused(cell) or cell.startswith("·"):
                continue
            after = attempts.apply(attempt_in(phase), event, AROUND)
            assert isinstance(after, Attempt)
            assert (after.outcome is not None) == (after.phase in ("Ended", "Gone")), (name, phase)


# Table 5.


def job_with_replica(phase: ReplicaPhase) -> Job:
    """Return a running job of one worker whose replica is in a phase."""
    state = make_job()
    attempt = attempt_in(
        AttemptPhase.GONE if phase is not ReplicaPhase.WAITING else AttemptPhase.RUNNING
    )
    known = () if phase is ReplicaPhase.WAITING else (attempt,)
    return put(state, phase=phase, attempts=known, last_number=len(known), slot_generation=1)


def put(state: Job, **fields: object) -> Job:
    old = find_replica(state, "worker", 0)
    assert old is not None
    of_role = state.roles["worker"]
    new = replace(old, **fields)
    of_role = chunks.put(of_role, rules_of(state, of_role), {0: new})
    return replace(state, roles={"worker": of_role})


def make_job() -> Job:
    made = machine.apply(None, with_clicks(), At(1_000, 1, 0, "t"))
    assert isinstance(made, Job)
    return made


REPLICA_EVENTS: dict[str, ev.DecidedEvent] = {
    "AttemptBegun": ev.AttemptBegun(span("worker", 0)),
    "AttemptCompleted": ev.AttemptCompleted(span("worker", 0)),
    "RetryDecided": ev.RetryDecided("worker", 0, 9_000, Budget.APPLICATION, 1),
    "RetriesExhausted": ev.RetriesExhausted("worker", 0, Cause.CRASHED, Budget.APPLICATION),
    "ReplicaRecalled": ev.ReplicaRecalled(span("worker", 0)),
    "ReplicaRetired": ev.ReplicaRetired(span("worker", 0)),
    "ReplicaRevived": ev.ReplicaRevived(span("worker", 0)),
}


@pytest.mark.parametrize("phase", ReplicaPhase)
@pytest.mark.parametrize("name", REPLICA_TABLE.rows)
def test_a_replica_does_what_its_cell_says(name: str, phase: ReplicaPhase) -> None:
    cell = REPLICA_TABLE.cell(name, phase)
    state = job_with_replica(phase)

    if is_refused(cell):
        with pytest.raises(PhaseConflictError) as caught:
            replicas.apply(state, REPLICA_EVENTS[name], 2_000)
        assert (caught.value.phase, caught.value.event) == (phase, name)
        return
    after = replicas.apply(state, REPLICA_EVENTS[name], 2_000)

    reason = ignored_reason(cell)
    if reason is not None:
        assert after == Ignore(reason)
    else:
        assert isinstance(after, Job)
        found = find_replica(after, "worker", 0)
        assert found is not None
        assert found.phase == (phase if cell == "=" else cell)


# Table 6.

JOB_EVENTS: dict[str, tuple[ev.JobEvent, ...]] = {
    "JobSubmitted": (ev.JobSubmitted(UID, spec(), {}, "ann"),),
    "CancelRequested": (ev.CancelRequested(),),
    "SuspendRequested": (ev.SuspendRequested(),),
    "ResumeRequested": (ev.ResumeRequested(),),
    "RestartRequested": (ev.RestartRequested(span("worker", 0)),),
    "RoleScaled": (ev.RoleScaled("worker", 2),),
    "SpecPatched": (ev.SpecPatched(spec(priority=60), {}),),
    "VerdictRequested": (ev.VerdictRequested("Succeeded", "good enough"),),
    "DrillRequested": (ev.DrillRequested("kill"), ev.DrillRequested("preempt")),
    "ForgetRequested": (ev.ForgetRequested(),),
    "JobAdmitted": (ev.JobAdmitted((ev.Place("n1", "worker", 0, 1, 20_000),), 1),),
    "JobRefused": (ev.JobRefused("DependencyFailed", "prepare failed"),),
    "JobEvicted": (ev.JobEvicted("a higher priority came"),),
    "RoomMade": (ev.RoomMade("j2", "j2 is stopped to make room"),),
    "StreamFinished": (ev.StreamFinished("clicks", 10, 0),),
    "StreamFailed": (ev.StreamFailed("clicks", "bad row"),),
    "StreamReopened": (ev.StreamReopened("clicks"),),
    "ReaderSettled": (ev.ReaderSettled(ME, "clicks", 3),),
    "SavepointSealed": (ev.SavepointSealed("clicks", "s"),),
    "CheckpointNoted": (ev.CheckpointNoted(ME, "/ckpt", 7),),
    "NodeDraining": (ev.NodeDraining("n1"),),
    "SlotsStranded": (ev.SlotsStranded("n1", is_away=True), ev.SlotsStranded("n1")),
    "GroupLeaseLost": (ev.GroupLeaseLost("clicks", ME),),
    "any attempt event": (ev.AttemptWaiting(ME, "no room"), ev.ExecutorExpired(ME)),
    "TimePassed": (ev.TimePassed(),),
    "GateReached": (ev.GateReached(),),
    "StartTimedOut": (ev.StartTimedOut("late", 9_000, is_exhausted=False),),
    "FellBelowMinimum": (ev.FellBelowMinimum("worker", 0),),
    "MovesDecided": (ev.MovesDecided(span("worker", 0)),),
    "LimitNeared": (ev.LimitNeared("deadline", 9_000, 1_000),),
    "RoleRestarted": (ev.RoleRestarted("worker", ME, 9_000, Budget.APPLICATION, 1),),
    "JobRestarted": (ev.JobRestarted(None, 2_000, Budget.NONE),),
    "VerdictReached": (
        ev.VerdictReached("Succeeded", "Completed", "", "worker: all"),
        ev.VerdictReached("Succeeded", "Completed", "", "worker: all", drains=True),
    ),
    "DrainEnded": (ev.DrainEnded(()),),
    "AllGone": (ev.AllGone(),),
}


def job_in(phase: JobPhase, then: str = "Queued") -> Job:
    """Return a job in a phase, with one attempt that is Launched, or Gone when it is final."""
    state = make_job()
    is_over = phase in ("Succeeded", "Failed", "Cancelled")
    attempt = attempt_in(AttemptPhase.GONE if is_over else AttemptPhase.LAUNCHED)
    state = put(state, phase=ReplicaPhase.ACTIVE, attempts=(attempt,), last_number=1)
    has_verdict = is_over or phase == "Draining" or then in ("Succeeded", "Failed")
    return replace(
        state,
        phase=phase,
        then=then if phase is JobPhase.STOPPING else "",
        stop_reason=StopReason.CANCELLED if phase is JobPhase.STOPPING else None,
        verdict=Verdict("Succeeded", "Completed", "", "") if has_verdict else None,
    )


def with_clicks() -> ev.JobSubmitted:
    stream = StreamSpec("clicks", (Source("/data/*"),))
    reader = role(data=(Reading("clicks"),))
    return ev.JobSubmitted(UID, spec(reader, streams=(stream,)), {}, "ann")


def allowed(cell: str, phase: JobPhase, then: str) -> set[str]:
    """Return the phases that a cell leaves open."""
    bare = cell.partition(" (")[0]
    if bare == "=":
        return {phase}
    return {then if word == "then" else word for word in bare.split(" or ")}


@pytest.mark.parametrize("phase", JobPhase)
@pytest.mark.parametrize("name", JOB_TABLE.rows)
def test_a_job_does_what_its_cell_says(name: str, phase: JobPhase) -> None:
    column = phase if phase in JOB_TABLE.columns else "final"
    cell = JOB_TABLE.cell(name, column)
    seen = set()

    for event in JOB_EVENTS[name]:
        state = job_in(phase)
        if is_refused(cell):
            with pytest.raises(PhaseConflictError) as caught:
                machine.apply(state, event, AT)
            assert (caught.value.phase, caught.value.event) == (phase, name)
            continue
        if name == "any attempt event":
            assert_table_4(state, event)
            continue
        after = machine.apply(state, event, AT)
        reason = ignored_reason(cell)
        if reason is not None:
            assert after == Ignore(reason)
        elif name == "ForgetRequested":
            assert after is None
        else:
            assert isinstance(after, Job)
            seen.add(str(after.phase))

    if seen:
        assert seen == allowed(cell, phase, "Queued")


def assert_table_4(state: Job, event: ev.JobEvent) -> None:
    """(8): through table 4, in every phase of the job."""
    found = find_replica(state, "worker", 0)
    assert found is not None
    cell = ATTEMPT_TABLE.cell(type(event).__name__, found.attempts[-1].phase)
    if is_refused(cell):
        with pytest.raises(PhaseConflictError):
            machine.apply(state, event, AT)
        return
    after = machine.apply(state, event, AT)
    if cell.startswith("·"):
        assert isinstance(after, Ignore)
    else:
        assert isinstance(after, Job)
        assert after.phase == state.phase


def test_note_1_a_cancel_turns_queued_and_suspended_and_leaves_a_verdict() -> None:
    cancel = ev.CancelRequested("enough")

    for then in ("Queued", "Suspended"):
        after = machine.apply(job_in(JobPhase.STOPPING, then), cancel, AT)
        assert isinstance(after, Job)
        assert after.then == "Cancelled"
        assert after.verdict is not None
        assert after.verdict.reason == "CancelledByUser"

    kept = machine.apply(job_in(JobPhase.STOPPING, "Succeeded"), cancel, AT)
    assert isinstance(kept, Job)
    assert (kept.then, kept.verdict and kept.verdict.as_phase) == ("Succeeded", "Succeeded")
    drained = machine.apply(job_in(JobPhase.DRAINING), cancel, AT)
    assert isinstance(drained, Job)
    assert (drained.phase, drained.then) == ("Stopping", "Succeeded")
    evicted = machine.apply(job_in(JobPhase.DRAINING), ev.JobEvicted("x"), AT)
    assert isinstance(evicted, Job)
    assert (evicted.phase, evicted.then) == ("Stopping", "Succeeded")


@pytest.mark.parametrize(
    ("event", "old", "new"),
    [
        (ev.SuspendRequested(), "Queued", "Suspended"),
        (ev.SuspendRequested(), "Suspended", "Suspended"),
        (ev.SuspendRequested(), "Succeeded", None),
        (ev.ResumeRequested(), "Suspended", "Queued"),
        (ev.ResumeRequested(), "Queued", "Queued"),
        (ev.ResumeRequested(), "Failed", None),
        (ev.RoleScaled("worker", 3), "Queued", "Queued"),
        (ev.RoleScaled("worker", 3), "Suspended", "Suspended"),
        (ev.RoleScaled("worker", 3), "Succeeded", None),
        (ev.VerdictRequested("Failed", "bad"), "Queued", "Failed"),
        (ev.VerdictRequested("Failed", "bad"), "Succeeded", "Failed"),
    ],
)
def test_notes_2_3_5_6_say_where_a_stop_leads(
    event: ev.JobEvent, old: str, new: str | None
) -> None:
    state = job_in(JobPhase.STOPPING, old)

    if new is None:
        with pytest.raises(PhaseConflictError):
            machine.apply(state, event, AT)
        return
    after = machine.apply(state, event, AT)

    assert isinstance(after, Job)
    assert (after.phase, after.then) == ("Stopping", new)


def test_note_4_named_replicas_are_stopped_and_all_of_them_restart_the_job() -> None:
    lone = machine.apply(job_in(JobPhase.RUNNING), ev.RestartRequested((Span("worker", 0, 0),)), AT)
    assert isinstance(lone, Job)
    # One of one is all.
    assert isinstance(machine.settle(lone, 2_000), ev.StopDecided | ev.JobRestarted)
    assert lone.is_restart_whole


def test_note_9_a_drilled_preemption_leads_back_into_the_queue_with_its_age() -> None:
    after = machine.apply(job_in(JobPhase.RUNNING), ev.DrillRequested("preempt"), AT)

    assert isinstance(after, Job)
    assert (after.phase, after.then, after.stop_reason) == ("Stopping", "Queued", "preempted")
    assert after.aged_ms == after.queued_ms


def test_note_6_names_who_decided() -> None:
    after = machine.apply(job_in(JobPhase.RUNNING), ev.VerdictRequested("Succeeded", "ok"), AT)

    assert isinstance(after, Job)
    assert after.verdict == Verdict("Succeeded", "DecidedByUser", "ok", "finish", "test")
