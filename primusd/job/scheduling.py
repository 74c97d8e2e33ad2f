"""Which attempts may begin, when a gate opens, and what stops because its time is over."""

from collections.abc import Iterable, Iterator

from primusd.job import chunks
from primusd.job import events as ev
from primusd.job.budgets import job_used, placement_delay_ms
from primusd.job.counts import LIVING, Count
from primusd.job.gates import (
    ELASTIC_WAIT_MS,
    assembled_ms,
    gang_roles,
    held_up,
    is_elastic,
    is_reached,
    minimum_of,
    missing_words,
    openable,
    opening_words,
    regroups,
    stands_still,
    starting_roles,
)
from primusd.job.ids import AttemptId, Span
from primusd.job.model import Attempt, Job, Replica, RoleState
from primusd.job.phases import AttemptPhase, Budget, JobPhase, StopReason

REGROUP_MS = 60_000
"""Members run for so long before others join them that nobody asked for."""
OWN_GRACE = -1
"""Of StopDecided: the role's own grace."""

SCHEDULED_PHASES = frozenset({JobPhase.STARTING, JobPhase.RUNNING})
GATED_PHASES = SCHEDULED_PHASES | {JobPhase.DRAINING}


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
        (Count.STALE, StopReason.RESTARTING, "{role.name} restarts whole"),
        (Count.RECALLED, StopReason.RESTARTING, "a person asked for a restart"),
        (Count.SURPLUS, StopReason.SCALED_DOWN, "{role.name} has {role.size} replicas now"),
    ):
        if role.counts[count]:
            spans = chunks.names(role, chunks.find(role, count))
            return ev.StopDecided(spans, reason, text.format(role=role), OWN_GRACE)
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
        if not 0 < role.deadline_ms <= at_ms:
            continue
        for replica in chunks.due(role, at_ms):
            attempt = replica.attempts[-1]
            if attempt.phase in LIVING:
                return _too_late(job, role, replica, attempt, at_ms)
    if job.phase is JobPhase.STARTING and start_end_ms(job) <= at_ms and not stands_still(job):
        missing = missing_words(job) or "not all replicas were ready"
        return start_timed_out(job, at_ms, f"its time is over: {missing}")
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
                lacking = missing_words(job) or "the others"
                return start_timed_out(job, at_ms, f"{name} waited too long: {lacking}")
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
    return gang_roles(job.spec)


def gate(job: Job, at_ms: int) -> ev.GateReached | ev.FellBelowMinimum | ev.GateOpened | None:
    """Return what the gates say: the job starts, falls back, or replicas may go."""
    if job.phase not in GATED_PHASES:
        return None
    if job.phase is JobPhase.STARTING and is_reached(job, at_ms):
        return ev.GateReached(_there_words(job))
    if job.phase is JobPhase.RUNNING:
        found = _fell_below(job)
        if found is not None:
            return found
    return _opened(job, at_ms)


def _there_words(job: Job) -> str:
    """Return who is there: all, or how many of the roles that start with fewer."""
    fewer = []
    for name in starting_roles(job.spec):
        role = job.roles[name]
        there = role.counts[Count.HOLDING] + role.counts[Count.FOR_GOOD]
        if there < role.size:
            fewer.append(f"{there} of {role.size} {name}")
    return f"{', '.join(fewer)} are there" if fewer else "all are there"


def _fell_below(job: Job) -> ev.FellBelowMinimum | None:
    for name in starting_roles(job.spec):
        role = job.roles[name]
        if role.counts[Count.PRESENT] < minimum_of(job, role):
            return ev.FellBelowMinimum(name, role.counts[Count.PRESENT])
    return None


def _opened(job: Job, at_ms: int) -> ev.GateOpened | None:
    """Return the replicas whose trainers start now, of all roles in one event, and why."""
    spans: list[Span] = []
    why: list[str] = []
    for role in job.roles.values():
        if not role.counts[Count.OPENABLE]:
            continue
        found = chunks.names(role, openable(job, role, at_ms))
        if found:
            spans += found
            why.append(opening_words(job, role))
    if not spans:
        return None
    return ev.GateOpened(tuple(spans), "; ".join(one for one in dict.fromkeys(why) if one))


def regroup(job: Job, at_ms: int) -> ev.RoleRestarted | ev.JobRestarted | None:
    """Return the restart of a role whose members come and go only together.

    Who left ends the generation at once. Who came waits until all who are on the way hold, or
    nobody was placed for a while; what admission gives unasked does not disturb a young generation.
    """
    if job.phase not in SCHEDULED_PHASES:
        return None
    for role in job.roles.values():
        due_ms = _regroups_at_ms(job, role)
        if due_ms is None or due_ms > at_ms:
            continue
        why = f"{role.name} is made smaller, to {role.size}"
        first = next(_newcomers(role), None)
        if not role.has_shrunk:
            there = role.counts[Count.RUNNING] + role.counts[Count.STARTING]
            why = f"{role.name} grows from {there} to {there + sum(1 for _ in _newcomers(role))}"
        cause = None
        if first is not None:
            cause = AttemptId(job.uid, role.name, first.index, first.last_number)
        if job.spec.roles[role.name].restart.unit == "job":
            return ev.JobRestarted(cause, at_ms, Budget.NONE, role.failures, why=why)
        return ev.RoleRestarted(role.name, cause, at_ms, Budget.NONE, role.failures, why=why)
    return None


def _newcomers(role: RoleState) -> Iterator[Replica]:
    """Yield the replicas that hold, and join the members of their role in the next generation."""
    for replica in chunks.find(role, Count.REGISTERED):
        attempt = replica.attempts[-1]
        is_in_force = attempt.generation >= role.generation and replica.index < role.size
        if attempt.is_newcomer and attempt.is_holding and is_in_force:
            yield replica


def _is_more_coming(role: RoleState) -> bool:
    """Return whether some replica is on its way and does not hold yet."""
    if role.begin_ms or role.counts[Count.REQUESTED] or role.counts[Count.LAUNCHED]:
        return True
    registered = chunks.find(role, Count.REGISTERED)
    return any(not one.attempts[-1].is_holding for one in registered)


def _regroups_at_ms(job: Job, role: RoleState) -> int | None:
    """Return from when on a role restarts because its members changed; None it does not."""
    may_be_due = role.has_shrunk or role.counts[Count.REGISTERED]
    if not may_be_due or not role.gate_opened or not regroups(job.spec, role.name):
        return None
    is_half_done = role.counts[Count.FOR_GOOD] > 0
    if role.has_shrunk:
        return None if is_half_done else 0
    # Who is needed is not left behind by members that are done: all of them run again.
    is_needed = not is_half_done or not is_elastic(job.spec.roles[role.name], role.size)
    if not role.counts[Count.REGISTERED] or not is_needed:
        return None
    if next(_newcomers(role), None) is None:
        return None
    due_ms = 0
    if _is_more_coming(role):
        due_ms = max(role.placed_ms, role.begun_ms) + ELASTIC_WAIT_MS
    if job.phase is JobPhase.RUNNING and not role.is_growing:
        due_ms = max(due_ms, job.phase_since_ms + REGROUP_MS)
    return due_ms


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
    if job.phase in SCHEDULED_PHASES:
        yield from _regroup_deadlines(job)
    if job.phase is JobPhase.STARTING:
        if not stands_still(job):
            yield start_end_ms(job)
        yield from _elastic_deadlines(job)
    if job.phase is JobPhase.QUEUED and job.not_before_ms:
        yield job.not_before_ms


def _elastic_deadlines(job: Job) -> Iterator[int]:
    """Yield when a gate opens by time alone, if no role lacks anybody it cannot do without."""
    closed = [name for name in gated_roles(job) if not job.roles[name].gate_opened]
    if closed and all(held_up(job, name) for name in closed):
        return
    times = [assembled_ms(job, job.roles[name]) for name in gated_roles(job)]
    known = [one for one in times if one is not None]
    if known and len(known) == len(times) and max(known):
        yield max(known)


def _regroup_deadlines(job: Job) -> Iterator[int]:
    for role in job.roles.values():
        due_ms = _regroups_at_ms(job, role)
        if due_ms:
            yield due_ms
