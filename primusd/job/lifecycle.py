"""What happens to a job as a whole: by admission, by streams, and what settle decides of it.

Table 6 of docs/state-machines.md; `job/job.py` has checked the cell before a function here runs.
"""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from primusd.executor.protocol import Checkpoint
from primusd.job import chunks, draining, group_losses, limits
from primusd.job import events as ev
from primusd.job.counts import Count
from primusd.job.demand import without_given_ports
from primusd.job.goals import in_phase, recounted, stopping
from primusd.job.ids import AttemptId, Span
from primusd.job.machine import At
from primusd.job.model import (
    Attempt,
    Charge,
    Job,
    Replica,
    RoleState,
    StreamSummary,
    Verdict,
    find_attempt,
)
from primusd.job.phases import FINAL_PHASES, Budget, JobPhase, ReplicaPhase, StopReason
from primusd.job.replica import change_replicas, open_roles, restart_role, with_newest
from primusd.job.requests import REQUESTS
from primusd.job.resizing import gate_closed
from primusd.job.scheduling import gated_roles
from primusd.job.spec import streams_of

SPARED_KEPT = 16
"""So many of the jobs that one was stopped for are remembered."""
FINAL = frozenset(str(phase) for phase in FINAL_PHASES)
LIMIT_REASONS = {
    "DeadlineExceeded": StopReason.DEADLINE,
    "ReplicaHoursUsed": StopReason.REPLICA_HOURS,
}


def submitted(event: ev.JobSubmitted, at: At) -> Job:
    """Return a new job in Queued."""
    job = Job(
        uid=event.uid,
        spec=event.spec,
        origins=event.origins,
        submitted_by=event.submitted_by,
        created_ms=at.at_ms,
        phase=JobPhase.QUEUED,
        phase_since_ms=at.at_ms,
        roles={
            name: chunks.make_role(name, role.replicas) for name, role in event.spec.roles.items()
        },
        streams={name: StreamSummary() for name in streams_of(event.spec)},
        queued_ms=at.at_ms,
        after=event.after,
    )
    return recounted(job)


# From admission and from streams.


def _job_admitted(job: Job, event: ev.JobAdmitted, at: At) -> Job:
    for place in event.places:
        if place.role in job.roles:
            job = _placed(job, place, event.generation, at.at_ms)
    job = draining.admitted(without_given_ports(_without_slots(job, event.withdrawn), event), event)
    if job.phase is not JobPhase.QUEUED or not event.places:
        return job
    roles = {name: gate_closed(role) for name, role in job.roles.items()}
    return replace(
        in_phase(job, JobPhase.STARTING, at.at_ms),
        roles=roles,
        admitted_ms=at.at_ms,
        first_admitted_ms=job.first_admitted_ms or at.at_ms,
        start_clock_ms=max(at.at_ms, *(role.not_before_ms for role in roles.values())),
    )


def _placed(job: Job, place: ev.Place, generation: int, at_ms: int) -> Job:
    """Return the job whose replicas of one run have their slots."""
    port_count = len(job.spec.roles[place.role].ports)

    def placed(_role: RoleState, replica: Replica) -> Replica:
        offset = (replica.index - place.first) * port_count
        return replace(
            replica,
            node=place.node,
            first_port=place.first_port + offset if place.first_port else 0,
            slot_generation=generation,
            memory_bytes=place.memory_bytes,
        )

    last = place.first + place.count - 1
    job = change_replicas(job, (Span(place.role, place.first, last),), placed)
    role = replace(job.roles[place.role], placed_ms=at_ms)
    return replace(job, roles={**job.roles, place.role: role})


def _job_refused(job: Job, event: ev.JobRefused, at: At) -> Job:
    return replace(job, refused=(event.reason, event.message))


def _job_evicted(job: Job, event: ev.JobEvicted, at: At) -> Job:
    """(1): the verdict of Draining stays."""
    then = "Queued"
    if job.phase is JobPhase.DRAINING:
        assert job.verdict is not None, "a job that drains has its verdict"
        then = job.verdict.as_phase
    spared = (*job.spared, event.by_job)[-SPARED_KEPT:] if event.by_job else job.spared
    job = replace(job, aged_ms=event.since_ms, spared=spared)
    return stopping(job, then, StopReason.PREEMPTED, event.message, at.at_ms)


def _with_stream(job: Job, name: str, **changes: Any) -> Job:  # fields of StreamSummary, any type
    stream = replace(job.streams[name], **changes)
    return replace(job, streams={**job.streams, name: stream})


def _stream_finished(job: Job, event: ev.StreamFinished, at: At) -> Job:
    return _with_stream(
        job,
        event.stream,
        is_finished=True,
        consumed=event.consumed,
        skipped=event.skipped,
        unsized=event.unsized,
        missing=event.missing,
        left_out=event.left_out,
    )


def _stream_failed(job: Job, event: ev.StreamFailed, at: At) -> Job:
    return _with_stream(job, event.stream, failure=event.message or "no reason was given")


def _stream_reopened(job: Job, event: ev.StreamReopened, at: At) -> Job:
    return _with_stream(job, event.stream, is_finished=False, failure="")


def _reader_settled(job: Job, event: ev.ReaderSettled, at: At) -> Job:
    job = _with_stream(job, event.stream, left=event.left)
    attempt = find_attempt(job, event.attempt)
    if attempt is None or any(name == event.stream for name, _ in attempt.settled_streams):
        return job
    settled = replace(
        attempt, settled_streams=(*attempt.settled_streams, (event.stream, event.left))
    )
    return _with_attempt(job, event.attempt, attempt, settled)


def _with_attempt(job: Job, name: AttemptId, before: Attempt, after: Attempt) -> Job:
    """Return the job with one value of an attempt in place of another."""

    def changed(_role: RoleState, replica: Replica) -> Replica:
        if replica.attempts[-1] is before:
            return with_newest(replica, after)
        kept = tuple(after if one is before else one for one in replica.attempts)
        return replace(replica, attempts=kept)

    return change_replicas(job, (Span(name.role, name.index, name.index),), changed)


def _told_only(job: Job, event: object, at: At) -> Job:
    """A fact for the timeline."""
    return job


def _checkpoint_noted(job: Job, event: ev.CheckpointNoted, at: At) -> Job:
    noted = Checkpoint(event.path, event.step, event.savepoint)
    job = replace(job, checkpoint=noted)
    attempt = find_attempt(job, event.attempt)
    if attempt is None:
        return job
    return _with_attempt(job, event.attempt, attempt, replace(attempt, checkpoint=noted))


def _group_lease_lost(job: Job, event: ev.GroupLeaseLost, at: At) -> Job:
    """Note a lost group, unless its role began anew since, as after most failures."""
    attempt, role = find_attempt(job, event.attempt), job.roles[event.attempt.role]
    if attempt is not None and attempt.generation < role.generation:
        return job
    if job.phase in (JobPhase.STARTING, JobPhase.RUNNING):
        job = group_losses.charged(job, event.attempt, at.at_ms)
    return replace(job, groups_lost=(*job.groups_lost, event.attempt))


def _time_passed(job: Job, event: ev.TimePassed, at: At) -> Job:
    if job.phase is JobPhase.QUEUED and 0 < job.not_before_ms <= at.at_ms:
        return replace(job, not_before_ms=0)
    return job


# What settle decides of the job.


def _gate_reached(job: Job, event: ev.GateReached, at: At) -> Job:
    job = open_roles(job, gated_roles(job))
    return replace(
        in_phase(job, JobPhase.RUNNING, at.at_ms),
        started_ms=job.started_ms or at.at_ms,
        start_clock_ms=0,
    )


def _start_timed_out(job: Job, event: ev.StartTimedOut, at: At) -> Job:
    charged = Charge(at.at_ms, Budget.INFRASTRUCTURE, "")
    job = replace(
        job,
        charges=(*job.charges, charged),
        start_timeouts=job.start_timeouts + 1,
        not_before_ms=event.not_before_ms,
    )
    then = "Queued"
    if event.is_exhausted:
        then = "Failed"
        limit = job.spec.budgets.infrastructure
        message = f"{event.message}; the infrastructure budget of {limit} is used up"
        numbers = {"startTimeouts": job.start_timeouts, "budgetLimit": limit}
        verdict = Verdict("Failed", "PlacementTimeout", message, "budgets", numbers=numbers)
        job = replace(job, verdict=verdict)
    return stopping(job, then, StopReason.PLACEMENT, event.message, at.at_ms)


def _fell_below_minimum(job: Job, event: ev.FellBelowMinimum, at: At) -> Job:
    not_before_ms = max(role.not_before_ms for role in job.roles.values())
    return replace(
        in_phase(job, JobPhase.STARTING, at.at_ms), start_clock_ms=max(at.at_ms, not_before_ms)
    )


def _limit_neared(job: Job, event: ev.LimitNeared, at: At) -> Job:
    return limits.neared(job, event)


def _job_restarted(job: Job, event: ev.JobRestarted, at: At) -> Job:
    job = replace(job, generation=job.generation + 1, groups_lost=(), is_restart_whole=False)
    if event.is_rerun:
        job = _with_new_budgets(job)
    for name, role in tuple(job.roles.items()):
        is_cause = event.cause is not None and event.cause.role == name
        job = restart_role(
            job,
            name,
            event.not_before_ms,
            event.failures if is_cause else role.failures,
            memory_bytes=event.memory_bytes if is_cause else 0,
        )
    return replace(
        in_phase(job, JobPhase.STARTING, at.at_ms),
        start_clock_ms=max(at.at_ms, event.not_before_ms),
    )


def _with_new_budgets(job: Job) -> Job:
    """Return the job whose charges are forgotten, and whose failed replicas are called back."""

    def called_back(_role: RoleState, replica: Replica) -> Replica:
        return (
            replace(replica, is_recalled=True) if replica.phase is ReplicaPhase.FAILED else replica
        )

    job = change_replicas(job, everybody(job), called_back)
    roles = {name: replace(role, charges=(), failures=0) for name, role in job.roles.items()}
    return replace(job, roles=roles, charges=(), reruns=job.reruns + 1)


def _verdict_reached(job: Job, event: ev.VerdictReached, at: At) -> Job:
    verdict = Verdict(
        event.as_phase,
        event.reason,
        event.message,
        event.rule,
        numbers=event.numbers,
        cause=event.cause,
    )
    job = replace(job, verdict=verdict)
    if event.drains and job.phase in (JobPhase.STARTING, JobPhase.RUNNING):
        return replace(
            in_phase(job, JobPhase.DRAINING, at.at_ms), draining_ms=at.at_ms, start_clock_ms=0
        )
    reason = LIMIT_REASONS.get(event.reason, StopReason.VERDICT)
    return stopping(job, event.as_phase, reason, event.message, at.at_ms)


def _drain_ended(job: Job, event: ev.DrainEnded, at: At) -> Job:
    assert job.verdict is not None, "a job that drains has its verdict"
    text = "the drain is over"
    return stopping(job, job.verdict.as_phase, StopReason.VERDICT, text, at.at_ms)


def _all_gone(job: Job, event: ev.AllGone, at: At) -> Job:
    """Stopping came true: to `then`; at a final phase who has no result is Retired."""
    phase = JobPhase(job.then)
    job = replace(in_phase(job, phase, at.at_ms), then="", stop_reason=None, stop_text="")
    if phase in FINAL_PHASES:
        return replace(_all_retired(job), ended_ms=at.at_ms)
    roles = {name: gate_closed(role) for name, role in job.roles.items()}
    job = replace(
        job, roles=roles, admitted_ms=0, draining_nodes={}, moving=(), stranded=(), given_up=()
    )
    job = _not_recalled(_without_slots(job, everybody(job)))
    return replace(job, queued_ms=at.at_ms) if phase is JobPhase.QUEUED else job


def _all_retired(job: Job) -> Job:
    def retired(_role: RoleState, replica: Replica) -> Replica:
        if replica.phase in (ReplicaPhase.COMPLETED, ReplicaPhase.FAILED, ReplicaPhase.RETIRED):
            return replica
        return replace(replica, phase=ReplicaPhase.RETIRED, is_recalled=False)

    return change_replicas(job, everybody(job), retired)


def _without_slots(job: Job, spans: tuple[Span, ...]) -> Job:
    def without(_role: RoleState, replica: Replica) -> Replica:
        return replace(replica, node="", first_port=0, slot_generation=0)

    return change_replicas(job, spans, without)


def _not_recalled(job: Job) -> Job:
    def not_recalled(_role: RoleState, replica: Replica) -> Replica:
        return replace(replica, is_recalled=False) if replica.is_recalled else replica

    return replace(change_replicas(job, everybody(job), not_recalled), is_restart_whole=False)


def everybody(job: Job) -> tuple[Span, ...]:
    """Return spans of all replicas there are, those beyond a role's size too."""
    found = []
    for role in job.roles.values():
        count = sum(len(chunk.replicas) for chunk in role.chunks)
        if count:
            found.append(Span(role.name, 0, count - 1))
    return tuple(found)


def all_gone(job: Job) -> ev.AllGone | None:
    """Return AllGone when the job stops and no attempt is left."""
    if job.phase is not JobPhase.STOPPING:
        return None
    if any(role.counts[Count.NOT_GONE] for role in job.roles.values()):
        return None
    return ev.AllGone()


APPLIERS: Mapping[type, Callable[[Job, Any, At], Job]] = {  # each takes the event of its key
    **REQUESTS,
    ev.JobAdmitted: _job_admitted,
    ev.JobRefused: _job_refused,
    ev.JobEvicted: _job_evicted,
    ev.RoomMade: _told_only,
    ev.NodeDraining: draining.node_draining,
    ev.SlotsStranded: draining.slots_stranded,
    ev.MovesDecided: draining.moves_decided,
    ev.StreamFinished: _stream_finished,
    ev.StreamFailed: _stream_failed,
    ev.StreamReopened: _stream_reopened,
    ev.ReaderSettled: _reader_settled,
    ev.SavepointSealed: _told_only,
    ev.GroupLeaseLost: _group_lease_lost,
    ev.CheckpointNoted: _checkpoint_noted,
    ev.TimePassed: _time_passed,
    ev.GateReached: _gate_reached,
    ev.StartTimedOut: _start_timed_out,
    ev.FellBelowMinimum: _fell_below_minimum,
    ev.LimitNeared: _limit_neared,
    ev.JobRestarted: _job_restarted,
    ev.VerdictReached: _verdict_reached,
    ev.DrainEnded: _drain_ended,
    ev.AllGone: _all_gone,
}
