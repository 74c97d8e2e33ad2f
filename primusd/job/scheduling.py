"""Which attempts may begin, when a gate opens, and what stops because its time is over."""

from collections.abc import Iterable, Iterator

from primusd.job import chunks
from primusd.job import events as ev
from primusd.job.budgets import job_used, placement_delay_ms
from primusd.job.counts import LIVING, Count
from primusd.job.ids import Span
from primusd.job.model import Attempt, Job, Replica, RoleState
from primusd.job.phases import AttemptPhase, JobPhase, StopReason
from primusd.job.spec import gang_of

ELASTIC_WAIT_MS = 30_000
"""An elastic role that has its minimum starts once nothing was placed for so long."""
OWN_GRACE = -1
"""Of StopDecided: the role's own grace."""

SCHEDULED_PHASES = (JobPhase.STARTING, JobPhase.RUNNING)


def stop(job: Job, at_ms: int) -> ev.StopDecided | ev.StartTimedOut | None:
    """Return what has to stop now: by the job's phase, by a decision, or by a deadline."""
    if job.phase is JobPhase.STOPPING:
        return _stop_all(job, job.roles.values(), _reason(job), job.stop_text)
    if job.phase is JobPhase.DRAINING:
        found = _stop_drained(job, at_ms)
        if found is not None:
            return found
    for role in job.roles.values():
        event = _stop_decided(job, role)
        if event is not None:
            return event
    return _overdue(job, at_ms)


def _reason(job: Job) -> StopReason:
    assert job.stop_reason is not None, "a job that stops knows why"
    return job.stop_reason


def _stop_all(
    job: Job, roles: Iterable[RoleState], reason: StopReason, text: str
) -> ev.StopDecided | None:
    spans: list[Span] = []
    for role in roles:
        if role.counts[Count.LIVING]:
            spans += chunks.names(role, chunks.find(role, Count.LIVING))
    return ev.StopDecided(tuple(spans), reason, text, OWN_GRACE) if spans else None


def drains(job: Job, role: RoleState) -> bool:
    """Return whether a role goes on for a while after the verdict."""
    spec = job.spec.roles[role.name]
    return spec.success.kind == "never" and spec.drain_ms > 0


def _stop_drained(job: Job, at_ms: int) -> ev.StopDecided | None:
    others = [role for role in job.roles.values() if not drains(job, role)]
    found = _stop_all(job, others, StopReason.VERDICT, "the job has its verdict")
    if found is not None:
        return found
    over = [
        role
        for role in job.roles.values()
        if drains(job, role) and drain_end_ms(job, role) <= at_ms
    ]
    return _stop_all(job, over, StopReason.VERDICT, "its time to drain is over")


def drain_end_ms(job: Job, role: RoleState) -> int:
    """Return the journal time at which a role that drains is cut off."""
    return job.draining_ms + job.spec.roles[role.name].drain_ms


def _stop_decided(job: Job, role: RoleState) -> ev.StopDecided | None:
    """Return the stop of attempts that are not wanted as they are."""
    for count, reason, text in (
        (Count.STALE, StopReason.RESTARTING, f"{role.name} restarts whole"),
        (Count.RECALLED, StopReason.RESTARTING, "a person asked for a restart"),
        (Count.SURPLUS, StopReason.SCALED_DOWN, f"{role.name} has {role.size} replicas now"),
    ):
        if role.counts[count]:
            found = chunks.find(role, count)
            return ev.StopDecided(chunks.names(role, found), reason, text, OWN_GRACE)
    if role.counts[Count.NOTICED]:
        replica = next(chunks.find(role, Count.NOTICED))
        left_ms = replica.attempts[-1].preemption_ms
        return ev.StopDecided(
            chunks.names(role, (replica,)),
            StopReason.PREEMPTED,
            f"its place is taken away in {left_ms} ms",
            left_ms,
        )
    return None


def _overdue(job: Job, at_ms: int) -> ev.StopDecided | ev.StartTimedOut | None:
    """Return what follows a deadline of an attempt or of the start."""
    for role in job.roles.values():
        for replica in chunks.due(role, at_ms):
            attempt = replica.attempts[-1]
            if attempt.phase in LIVING:
                return _too_late(job, role, replica, attempt, at_ms)
    if job.phase is JobPhase.STARTING and start_end_ms(job) <= at_ms:
        return start_timed_out(job, at_ms, "not all replicas were ready in time")
    return None


def start_end_ms(job: Job) -> int:
    """Return when a start that does not come about is given up."""
    return job.start_clock_ms + job.spec.place_timeout_ms + job.spec.ready_timeout_ms


def _too_late(
    job: Job, role: RoleState, replica: Replica, attempt: Attempt, at_ms: int
) -> ev.StopDecided | ev.StartTimedOut:
    is_gang = job.phase is JobPhase.STARTING and role.name in gated_roles(job)
    name = f"{role.name}-{replica.index}"
    match attempt.phase:
        case AttemptPhase.REQUESTED | AttemptPhase.LAUNCHED:
            if attempt.phase is AttemptPhase.LAUNCHED and not attempt.waiting_for:
                reason, text = StopReason.NO_REGISTRATION, "its executor did not say hello in time"
            elif is_gang:
                return start_timed_out(job, at_ms, f"{name} was not placed in time")
            else:
                reason, text = StopReason.PLACEMENT, "it was not placed in time"
        case AttemptPhase.REGISTERED:
            if is_gang and not role.gate_opened:
                return start_timed_out(job, at_ms, f"{name} waited too long for the others")
            reason, text = StopReason.START_TIMEOUT, "its files or ports were not there in time"
        case AttemptPhase.RUNNING:
            reason, text = StopReason.HUNG, attempt.hang
        case _:
            reason, text = StopReason.START_TIMEOUT, "its trainer did not start in time"
    # All of the role that are as late for the same reason: one event for a chunk or many.
    alike = [
        one
        for one in chunks.due(role, at_ms)
        if one.attempts[-1].phase is attempt.phase
        and bool(one.attempts[-1].waiting_for) == bool(attempt.waiting_for)
    ]
    return ev.StopDecided(chunks.names(role, alike), reason, text, OWN_GRACE)


def start_timed_out(job: Job, at_ms: int, why: str) -> ev.StartTimedOut:
    """Return the end of a start that did not come about; it is charged once, to the job."""
    is_exhausted = job_used(job, at_ms) + 1 > job.spec.budgets.infrastructure
    count = job.start_timeouts + 1
    delay_ms = placement_delay_ms(count, f"{job.uid}/{count}")
    return ev.StartTimedOut(why, 0 if is_exhausted else at_ms + delay_ms, is_exhausted)


def gated_roles(job: Job) -> tuple[str, ...]:
    """Return the roles whose gate opens for all of them together."""
    return () if job.spec.policy == "dynamic" else gang_of(job.spec)


def minimum_of(job: Job, role: RoleState) -> int:
    """Return how many replicas of a role must be present."""
    return min(job.spec.roles[role.name].minimum, role.size)


def gate(job: Job, at_ms: int) -> ev.GateReached | ev.FellBelowMinimum | ev.GateOpened | None:
    """Return what the gates say: the job starts, falls back, or replicas may go."""
    if job.phase is JobPhase.STARTING and _is_reached(job, at_ms):
        return ev.GateReached()
    if job.phase is JobPhase.RUNNING:
        for name in gated_roles(job) or tuple(job.roles):
            role = job.roles[name]
            if role.counts[Count.PRESENT] < minimum_of(job, role):
                return ev.FellBelowMinimum(name, role.counts[Count.PRESENT])
    if job.phase not in (*SCHEDULED_PHASES, JobPhase.DRAINING):
        return None
    spans: list[Span] = []
    for role in job.roles.values():
        if role.counts[Count.OPENABLE] and _may_go(job, role):
            spans += chunks.names(role, chunks.find(role, Count.OPENABLE))
    return ev.GateOpened(tuple(spans)) if spans else None


def _may_go(job: Job, role: RoleState) -> bool:
    if role.gate_opened:
        return True
    if role.name in gated_roles(job) or job.phase is JobPhase.DRAINING:
        return False
    return role.counts[Count.HOLDING] + role.counts[Count.FOR_GOOD] >= minimum_of(job, role)


def _is_reached(job: Job, at_ms: int) -> bool:
    if not gated_roles(job):
        return all(
            role.counts[Count.RUNNING] + role.counts[Count.FOR_GOOD] >= minimum_of(job, role)
            for role in job.roles.values()
        )
    return all(_is_assembled(job, job.roles[name], at_ms) for name in gated_roles(job))


def _is_assembled(job: Job, role: RoleState, at_ms: int) -> bool:
    ready_ms = _assembled_ms(job, role)
    return ready_ms is not None and ready_ms <= at_ms


def _assembled_ms(job: Job, role: RoleState) -> int | None:
    """Return from when on a role is enough of a gang as it is; None when it is not."""
    there = role.counts[Count.HOLDING] + role.counts[Count.FOR_GOOD]
    if there >= role.size:
        return 0
    if there >= minimum_of(job, role):
        return role.placed_ms + ELASTIC_WAIT_MS
    return None


def begin(job: Job, at_ms: int) -> ev.AttemptBegun | None:
    """Return the attempts that begin now, of all roles in one event."""
    if job.phase not in SCHEDULED_PHASES:
        return None
    spans: list[Span] = []
    for role in job.roles.values():
        if role.begin_ms and role.begin_ms <= at_ms and role.not_before_ms <= at_ms:
            spans += chunks.names(role, _ready_to_begin(role, at_ms))
    return ev.AttemptBegun(tuple(spans)) if spans else None


def _ready_to_begin(role: RoleState, at_ms: int) -> Iterator[Replica]:
    for chunk in role.chunks:
        if chunk.begin_ms and chunk.begin_ms <= at_ms:
            yield from (one for one in chunk.replicas if one.begin_ms and one.begin_ms <= at_ms)


def deadlines(job: Job) -> Iterator[int]:
    """Yield the journal times at which scheduling has something to do."""
    for role in job.roles.values():
        if role.deadline_ms:
            yield role.deadline_ms
        if role.begin_ms and job.phase in SCHEDULED_PHASES:
            yield max(role.begin_ms, role.not_before_ms)
    if job.phase is JobPhase.STARTING:
        yield start_end_ms(job)
        yield from _elastic_deadlines(job)
    if job.phase is JobPhase.QUEUED and job.not_before_ms:
        yield job.not_before_ms


def _elastic_deadlines(job: Job) -> Iterator[int]:
    """Yield when the gate opens by time alone, if no role lacks anybody it cannot do without."""
    times = [_assembled_ms(job, job.roles[name]) for name in gated_roles(job)]
    known = [one for one in times if one is not None]
    if known and len(known) == len(times) and max(known):
        yield max(known)
