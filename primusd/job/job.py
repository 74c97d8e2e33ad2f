"""The job machine: apply, settle, consequences, plan, deadline_ms (see `job/machine.py`)."""

from collections.abc import Callable
from typing import get_args

from primusd.admission.events import JobEnded, JobForgotten, JobNoted, SlotFreed
from primusd.datafeed.ledger.events import (
    CheckpointKept,
    PauseRequested,
    ReaderEnded,
    ReaderOpened,
    ResumeRequested,
    StreamClosed,
    StreamDeclared,
)
from primusd.datafeed.protocol import Held, Mark
from primusd.errors import PhaseConflictError
from primusd.job import completion, demand, draining, failover, limits, replica, reports, scheduling
from primusd.job import events as ev
from primusd.job.counts import is_completion
from primusd.job.demand import ADMISSION
from primusd.job.duties import plan_of
from primusd.job.gates import stands_still
from primusd.job.groups import group_streams
from primusd.job.ids import AttemptId
from primusd.job.job_tables import check_job
from primusd.job.lifecycle import APPLIERS, all_gone, submitted
from primusd.job.machine import At, Ignore, Proposed
from primusd.job.model import Attempt, Job, find_attempt
from primusd.job.phases import AttemptPhase, Budget, JobPhase
from primusd.job.replica import delay_start
from primusd.job.spec import stages_of, stream_of, streams_of
from primusd.job.timeline import with_moments

ATTEMPT_EVENTS = frozenset(get_args(ev.AttemptEvent))
DECIDED_EVENTS = frozenset(get_args(ev.DecidedEvent))
OVER = (AttemptPhase.ENDED, AttemptPhase.GONE)


def apply(state: Job | None, event: ev.JobEvent, at: At) -> Job | Ignore | None:
    """Return the job after an event; None when its record goes.

    Raises:
        PhaseConflictError: The cell of a table is refused.
    """
    if state is None:
        return _made(event, at)
    after = _applied(state, event, at)
    if after is None or isinstance(after, Ignore):
        return after
    return with_moments(state, _clocked(state, after, at.at_ms), event, at)


def _clocked(before: Job, after: Job, at_ms: int) -> Job:
    """Return the job whose start clock begins anew when it no longer stands still."""
    if before.phase is not JobPhase.STARTING or not stands_still(before) or stands_still(after):
        return after
    return delay_start(after, at_ms)


def _made(event: ev.JobEvent, at: At) -> Job:
    if not isinstance(event, ev.JobSubmitted):
        name = type(event).__name__
        raise PhaseConflictError(f"{name} came to no job", phase="", event=name)
    job = submitted(event, at)
    return with_moments(None, job, event, at)


def _applied(state: Job, event: ev.JobEvent, at: At) -> Job | Ignore | None:
    kind = type(event)
    if kind in ATTEMPT_EVENTS:
        return reports.apply(state, event, at.at_ms)  # type: ignore[arg-type] # by its type
    if kind in DECIDED_EVENTS:
        if kind is ev.RoleRestarted:
            check_job(kind.__name__, state.phase, state.spec.name)
        return replica.apply(state, event, at.at_ms)  # type: ignore[arg-type] # by its type
    cell = check_job(kind.__name__, state.phase, state.spec.name)
    if isinstance(cell, Ignore):
        return cell
    if isinstance(event, ev.ForgetRequested):
        return None
    return APPLIERS[kind](state, event, at)


def settle(state: Job, at_ms: int) -> ev.JobEvent | None:
    """Return the next thing the job decides by itself, None when nothing is due."""
    if state.is_final:
        return None
    for policy in POLICIES:
        event = policy(state, at_ms)
        if event is not None:
            return event
    return None


def _over(state: Job, at_ms: int) -> ev.AllGone | None:
    return all_gone(state)


POLICIES: tuple[Callable[[Job, int], ev.JobEvent | None], ...] = (
    draining.settle,
    scheduling.stop,
    failover.settle,
    completion.settle,
    scheduling.regroup,
    limits.settle,
    scheduling.gate,
    scheduling.begin,
    _over,
)
"""In the order of docs/state-machines.md §3."""


def consequences(before: Job | None, after: Job | None, event: ev.JobEvent) -> tuple[Proposed, ...]:
    """Return what other machines have to hear, in the order in which it is to be applied."""
    if after is None:
        if isinstance(event, ev.ForgetRequested) and before is not None:
            return (Proposed(ADMISSION, JobForgotten(before.uid, event.keep_ms)),)
        return ()
    found: list[Proposed] = []
    if before is None and isinstance(event, ev.JobSubmitted):
        found += _declared(after, event)
    if type(event) in ATTEMPT_EVENTS and before is not None:
        found += _after_attempt(before, after, event)
    if isinstance(event, ev.CheckpointNoted):
        found += _checkpoint_kept(after, event)
    if isinstance(event, ev.JobEvicted) and before is not None:
        idle = demand.idle_slots(before)
        found += [Proposed(ADMISSION, SlotFreed(after.uid, idle))] if idle else []
    found += demand.changes(before, after)
    if before is not None and before.phase is not after.phase:
        found += _after_phase(before, after)
    return tuple(found)


def _declared(job: Job, event: ev.JobSubmitted) -> list[Proposed]:
    spec = job.spec
    noted = JobNoted(
        job.uid,
        spec.namespace,
        spec.name,
        event.key,
        event.spec_digest,
        event.after,
        stages_of(spec),
    )
    found = [Proposed(ADMISSION, noted)]
    for name, roles in streams_of(spec).items():
        of_stream = spec.data[name.partition("@")[0]]
        readers = sum(spec.roles[role].minimum for role in roles)
        declared = StreamDeclared(job.uid, name, of_stream, roles, readers)
        found.append(Proposed(stream_key(job, name), declared))
    return found


def stream_key(job: Job, stream: str) -> str:
    """Return the key of one of the job's stream machines."""
    return f"{job.uid}/{stream}"


def _after_attempt(before: Job, after: Job, event: ev.JobEvent) -> list[Proposed]:
    """Return what streams and admission have to hear of the attempt an event was about."""
    attempt: AttemptId = event.attempt  # type: ignore[union-attr] # every attempt event has it
    old, new = find_attempt(before, attempt), find_attempt(after, attempt)
    if new is None or new is old:
        return []
    found: list[Proposed] = []
    if new.registered_ms and (old is None or not old.registered_ms):
        if new.phase is not AttemptPhase.STOPPING:
            opened = ReaderOpened(attempt, new.incarnation, is_awaited=True)
            found += _to_its_streams(after, attempt, opened)
    elif new.phase in OVER and new.registered_ms and old is not None and old.phase not in OVER:
        ended = _reader_ended(attempt, new, event)
        found += _to_its_streams(after, attempt, ended)
    return [*found, *demand.after_attempt(after, old, new, attempt)]


def _checkpoint_kept(job: Job, event: ev.CheckpointNoted) -> list[Proposed]:
    """Return what the streams have to hear whose positions a checkpoint names (docs/sdk.md)."""
    role = job.spec.roles[event.attempt.role]
    streams = group_streams(job.spec, role)
    named = dict(part.rpartition("=")[::2] for part in event.savepoint.split(","))
    found = [(one, named.get(one.stream) or named.get("", "")) for one in role.data]
    return [
        Proposed(stream_key(job, stream_of(role.name, one)), CheckpointKept(name))
        for one, name in found
        if name and one.stream in streams
    ]


def _to_its_streams(
    job: Job, attempt: AttemptId, event: ReaderOpened | ReaderEnded
) -> list[Proposed]:
    return [
        Proposed(stream_key(job, stream_of(attempt.role, reading)), event)
        for reading in job.spec.roles[attempt.role].data
    ]


def _reader_ended(attempt: AttemptId, new: Attempt, event: ev.JobEvent) -> ReaderEnded:
    positions: tuple[Held, ...] = ()
    marks: tuple[tuple[str, Mark], ...] = ()
    if isinstance(event, ev.TrainerExited | ev.AttemptVanished) and event.exit is not None:
        positions, marks = event.exit.positions, event.exit.marks
    outcome = new.outcome
    assert outcome is not None, "an attempt that is over has an outcome"
    return ReaderEnded(
        attempt,
        positions,
        is_completion(outcome),
        outcome.budget is Budget.APPLICATION,
        marks,
    )


def _after_phase(before: Job, after: Job) -> list[Proposed]:
    streams = [stream_key(after, name) for name in after.streams]
    if after.is_final:
        closed = [Proposed(key, StreamClosed()) for key in streams]
        spec = after.spec
        over = JobEnded(after.uid, str(after.phase), spec.namespace, spec.name)
        return [Proposed(ADMISSION, over), *closed]
    was_suspended = before.phase is JobPhase.SUSPENDED
    if after.phase is JobPhase.SUSPENDED and not was_suspended:
        return [Proposed(key, PauseRequested(for_suspension=True)) for key in streams]
    if was_suspended:
        return [Proposed(key, ResumeRequested(for_suspension=True)) for key in streams]
    return []


plan = plan_of


def deadline_ms(state: Job) -> int:
    """Return the journal time at which the job has something to do by itself; 0 none."""
    if state.is_final:
        return 0
    times = [*scheduling.deadlines(state), *completion.deadlines(state), *limits.deadlines(state)]
    return min(times, default=0)
