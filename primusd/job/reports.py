"""What launchers, executors and the liveness edge say of attempts, counted in with their job.

An end is charged here, in the step that decides its outcome.
"""

from msgspec.structs import replace

from primusd.errors import PhaseConflictError
from primusd.job import attempt as attempts
from primusd.job import chunks, limits, rules
from primusd.job import events as ev
from primusd.job.budgets import charge, refund
from primusd.job.counts import rules_of
from primusd.job.failover import ACTIVE_PHASES, unit_of
from primusd.job.ids import AttemptId
from primusd.job.machine import Ignore
from primusd.job.model import Attempt, Job, Replica, RoleState, find_replica
from primusd.job.phases import JobPhase, ReplicaPhase
from primusd.job.replica import surroundings, with_newest
from primusd.job.trouble import first_cause


def apply(job: Job, event: ev.AttemptEvent, at_ms: int) -> Job | Ignore:
    """Return the job after an event of one of its attempts.

    Raises:
        PhaseConflictError: The cell of table 4 is refused, or no such attempt ever began.
    """
    found = _find(job, event.attempt, type(event).__name__)
    if found is None:
        return Ignore("late, all is over")
    replica, before = found
    role = job.roles[event.attempt.role]
    is_newest = replica.last_number == before.number
    around = surroundings(
        job,
        role.name,
        replica.index,
        before.number,
        at_ms,
        has_moved=not is_newest or replica.phase is not ReplicaPhase.ACTIVE,
    )
    after = attempts.apply(before, event, around)
    if isinstance(after, Ignore) or after is before:
        return after if isinstance(after, Ignore) else job
    if after.outcome is not None and after.outcome is not before.outcome:
        job, role, after = _charged(job, before, after, event.attempt, at_ms)
        replica = _without_ports(job, role, replica, after)
    is_slot_lost = after.is_quarantined and not before.is_quarantined and is_newest
    if is_slot_lost:
        job, role, replica = _quarantined(job, role, replica)
    if is_newest:
        one = with_newest(replica, after)
    else:
        attempts_now = tuple(after if old is before else old for old in replica.attempts)
        one = replace(replica, attempts=attempts_now)
    role = chunks.put(role, rules_of(job, role), {replica.index: one})
    if is_slot_lost:
        role = replace(role, wanted=chunks.wanted_spans(role.name, role.chunks))
    hours = limits.counted(job.hours, before, after)
    return replace(job, roles={**job.roles, role.name: role}, hours=hours)


def _find(job: Job, attempt: AttemptId, name: str) -> tuple[Replica, Attempt] | None:
    """Return the attempt with its replica, None when it is too old to be kept."""
    replica = find_replica(job, attempt.role, attempt.index)
    if replica is None or not 1 <= attempt.attempt <= replica.last_number:
        raise PhaseConflictError(
            f"job {job.spec.name} never had an attempt {attempt.label}: {name} has no place there",
            phase=job.phase,
            event=name,
        )
    for one in reversed(replica.attempts):
        if one.number == attempt.attempt:
            return replica, one
    return None


def _charged(
    job: Job, before: Attempt, after: Attempt, attempt: AttemptId, at_ms: int
) -> tuple[Job, RoleState, Attempt]:
    """Return all three with the end charged, when it is one that counts."""
    outcome, role = after.outcome, job.roles[attempt.role]
    assert outcome is not None, "only an end is charged"
    if before.outcome is not None:
        role = refund(role, attempt.label)
    is_counted = (
        job.phase in (JobPhase.QUEUED, *ACTIVE_PHASES) and before.generation >= role.generation
    )
    if is_counted:
        outcome = rules.judge(job.spec, role.name, outcome)
        role, outcome = charge(job, role, outcome, attempt, boot_id=after.boot_id, at_ms=at_ms)
    job = replace(
        job,
        roles={**job.roles, role.name: role},
        first_cause=first_cause(job, attempt, after, outcome, is_counted=is_counted),
    )
    if outcome.port_taken and is_counted:
        job = _with_taken_port(job, role, after, attempt, outcome.port_taken)
    return job, role, replace(after, outcome=outcome)


def _with_taken_port(
    job: Job, role: RoleState, after: Attempt, attempt: AttemptId, name: str
) -> Job:
    """Return the job that asks for other ports; alone restarted, that is a new generation too."""
    port = dict(after.ports).get(name, 0)
    if port:
        taken = (*job.ports_taken, (role.name, attempt.index, port))
        job = replace(job, ports_taken=taken)
    if unit_of(job, role) == "replica":
        job = replace(job, generation=job.generation + 1)
    return job


def _without_ports(job: Job, role: RoleState, replica: Replica, after: Attempt) -> Replica:
    """Return the replica without its slot while other ports are being asked for."""
    is_asked = any(
        (name, index) == (role.name, replica.index) for name, index, _ in job.ports_taken
    )
    has_lost = after.outcome is not None and bool(after.outcome.port_taken)
    return replace(replica, slot_generation=0) if is_asked and has_lost else replica


def _quarantined(job: Job, role: RoleState, replica: Replica) -> tuple[Job, RoleState, Replica]:
    """Return all three: the slot stays taken on the node, the replica needs another."""
    job = replace(job, has_quarantined=True, slots_lost=job.slots_lost + 1)
    return job, role, replace(replica, slot_generation=0, node="")
