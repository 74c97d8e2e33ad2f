"""What follows an end: who restarts, when, and how each replica moves.

Charges are made with the outcome (`job/budgets.py`). A role that restarts whole does so at once,
so that its peers are not left in a collective; a replica moves when its attempt is known to be
gone, or after `replaceAfter` where that cannot be known.
"""

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from primusd.job import chunks, group_losses
from primusd.job import events as ev
from primusd.job.budgets import attempt_identity, failures_after, retry_delay_ms, used_of
from primusd.job.counts import (
    Count,
    RoleRules,
    has_retry,
    is_completion,
    is_failure,
    is_gone_for_sure,
    rules_of,
)
from primusd.job.frameworks.members import SYNCHRONOUS
from primusd.job.groups import group_unit, larger_unit
from primusd.job.ids import AttemptId
from primusd.job.model import Attempt, Job, Outcome, Replica, RoleState
from primusd.job.phases import AttemptPhase, Budget, Cause, JobPhase, ReplicaPhase, StopReason
from primusd.job.rules import grown_bytes, rule_of

RETIRING = frozenset({StopReason.SCALED_DOWN, StopReason.VERDICT})
ACTIVE_PHASES = (JobPhase.STARTING, JobPhase.RUNNING)
MOVING = (Count.MOVABLE, Count.BACK, Count.WAITING, Count.DELAYED, Count.REVIVABLE)
"""Where no replica of a role is counted, none of it moves but by time."""


def settle(job: Job, at_ms: int) -> ev.JobEvent | None:
    """Return what follows an end and has not been decided yet."""
    if job.phase in ACTIVE_PHASES:
        found = _restart(job, at_ms)
        if found is not None:
            return found
    for role in job.roles.values():
        if not any(map(role.counts.__getitem__, MOVING)) and not 0 < role.deadline_ms <= at_ms:
            continue
        event = _move(job, role, at_ms) or _back(job, role) or _resize(job, role)
        if event is not None:
            return event
    return None


def unit_of(job: Job, role: RoleState, outcome: Outcome | None = None) -> str:
    """Return what restarts together after a failure in the role.

    After a first completion in a synchronous role nobody is left to join: it restarts whole. A
    group does so whatever a rule says: what one of it took is in all models.

    Args:
        job: Of the role.
        role: In which the failure was.
        outcome: The failure; a rule that decided it may name another unit than the role.
    """
    rule = rule_of(job.spec, outcome)
    unit = (rule.unit if rule is not None else "") or job.spec.roles[role.name].restart.unit
    if unit == "replica" and job.spec.framework in SYNCHRONOUS and role.counts[Count.COMPLETED]:
        unit = "role"
    return larger_unit(unit, group_unit(job.spec, job.spec.roles[role.name]))


def _restart(job: Job, at_ms: int) -> ev.RoleRestarted | ev.JobRestarted | None:
    """Return the restart of a role or of the job that a failure asks for."""
    if job.is_restart_whole:
        return ev.JobRestarted(None, at_ms, Budget.NONE)
    if job.groups_lost:
        return _group_restarted(job, job.groups_lost[0], at_ms)
    for role in job.roles.values():
        if not role.counts[Count.RESTARTER]:
            continue
        found = _restarted_with(job, role)
        if found is not None:
            return found
    return None


def _group_restarted(
    job: Job, lost: AttemptId, at_ms: int
) -> ev.RoleRestarted | ev.JobRestarted | None:
    """Return the restart of a group; None: the job fails."""
    if group_losses.is_spent(job, lost, at_ms):
        return None
    not_before_ms, failures, budget = group_losses.next_start(job, lost, at_ms)
    if group_unit(job.spec, job.spec.roles[lost.role]) == "job":
        return ev.JobRestarted(lost, not_before_ms, budget, failures)
    return ev.RoleRestarted(lost.role, lost, not_before_ms, budget, failures)


def _restarted_with(job: Job, role: RoleState) -> ev.RoleRestarted | ev.JobRestarted | None:
    """Return what restarts together with the first replica of a role that does not alone."""
    for replica in chunks.find(role, Count.RESTARTER):
        attempt = replica.attempts[-1]
        unit = unit_of(job, role, attempt.outcome)
        if unit != "replica":
            break
        if not job.spec.failure:
            return None
    else:
        return None
    not_before_ms, failures = role_retry(job, role, replica, attempt)
    budget = attempt.outcome.budget if attempt.outcome else Budget.NONE
    cause = AttemptId(job.uid, role.name, replica.index, attempt.number)
    grown = grown_bytes(job.spec, role.name, attempt)
    if unit == "role":
        return ev.RoleRestarted(role.name, cause, not_before_ms, budget, failures, grown)
    return ev.JobRestarted(cause, not_before_ms, budget, failures, grown)


def role_retry(job: Job, role: RoleState, replica: Replica, attempt: Attempt) -> tuple[int, int]:
    """Return when a role that restarts whole begins again, and its consecutive failures."""
    return _retry(job, role.name, replica.index, attempt, role.failures)


def replica_retry(job: Job, role: RoleState, replica: Replica, attempt: Attempt) -> tuple[int, int]:
    """Return when a replica that restarts alone begins again, and its consecutive failures."""
    return _retry(job, role.name, replica.index, attempt, replica.failures)


def _retry(
    job: Job, role: str, index: int, attempt: Attempt, failures_before: int
) -> tuple[int, int]:
    failures = failures_after(failures_before, attempt)
    budget = attempt.outcome.budget if attempt.outcome else Budget.NONE
    restart = job.spec.roles[role].restart
    rule = rule_of(job.spec, attempt.outcome)
    if rule is not None and rule.delay_ms >= 0:
        longest_ms = max(restart.delay_max_ms, rule.delay_ms) if rule.delay_ms else 0
        restart = replace(restart, delay_ms=rule.delay_ms, delay_max_ms=longest_ms)
        # The first one waits too: it was said how long.
        budget = Budget.NONE
    identity = attempt_identity(job, role, index, attempt.number)
    return attempt.ended_ms + retry_delay_ms(restart, budget, failures, identity), failures


def _move(job: Job, role: RoleState, at_ms: int) -> ev.DecidedEvent | None:
    """Return how the first replica with an attempt that is over moves, and those like it."""
    if not role.counts[Count.MOVABLE] and not 0 < role.deadline_ms <= at_ms:
        return None
    rules = rules_of(job, role)
    moving = _movable(role, at_ms)
    first = next(moving, None)
    if first is None:
        return None
    kind = _kind_of_move(job, role, first, rules)
    if kind is ev.RetryDecided:
        return _retry_decided(job, role, first, rules)
    if kind is ev.RetriesExhausted:
        outcome = first.attempts[-1].outcome
        assert outcome is not None, "an attempt that is over has an outcome"
        return ev.RetriesExhausted(role.name, first.index, outcome.cause, outcome.budget)
    alike = [first, *(one for one in moving if _kind_of_move(job, role, one, rules) is kind)]
    return _SPANNED[kind](chunks.names(role, alike))


_SPANNED: dict[type, Callable[..., ev.DecidedEvent]] = {
    ev.AttemptCompleted: ev.AttemptCompleted,
    ev.ReplicaRecalled: ev.ReplicaRecalled,
    ev.ReplicaRetired: ev.ReplicaRetired,
}


def _movable(role: RoleState, at_ms: int) -> Iterator[Replica]:
    """Yield the replicas that move now, in the order of their indices."""
    if role.counts[Count.MOVABLE]:
        yield from chunks.find(role, Count.MOVABLE)
    else:
        yield from (one for one in chunks.due(role, at_ms) if _is_replaced(one))


def _is_replaced(replica: Replica) -> bool:
    """Return whether a replica whose time has come is one that waited for `replaceAfter`."""
    attempt = replica.newest
    return (
        replica.phase is ReplicaPhase.ACTIVE
        and attempt is not None
        and attempt.phase in (AttemptPhase.ENDED, AttemptPhase.GONE)
        and not is_gone_for_sure(attempt)
    )


def _kind_of_move(
    job: Job, role: RoleState, replica: Replica, rules: RoleRules
) -> type[ev.DecidedEvent]:
    """Return which event moves a replica whose newest attempt is over."""
    attempt = replica.attempts[-1]
    outcome = attempt.outcome
    assert outcome is not None, "an attempt that is over has an outcome"
    is_old = attempt.generation < rules.generation
    if replica.is_recalled or (is_old and not is_failure(outcome)):
        return ev.ReplicaRecalled
    if is_old:
        # The cause of its role's restart; or it had no other try when others made it restart.
        return ev.RetriesExhausted if _is_out(job, role, outcome, rules) else ev.RetryDecided
    return _kind_in_force(outcome, rules)


def _is_out(job: Job, role: RoleState, outcome: Outcome, rules: RoleRules) -> bool:
    """Return whether an end left no other try; one whose charge was forgotten since is retried."""
    if has_retry(outcome, rules):
        return False
    return used_of(job, role, outcome.budget, outcome.at_ms) >= outcome.charged


def _kind_in_force(outcome: Outcome, rules: RoleRules) -> type[ev.DecidedEvent]:
    if is_completion(outcome):
        return ev.AttemptCompleted
    if is_failure(outcome):
        return ev.RetryDecided if has_retry(outcome, rules) else ev.RetriesExhausted
    if outcome.cause is Cause.STOPPED and outcome.stop_reason in RETIRING:
        return ev.ReplicaRetired
    return ev.ReplicaRecalled


def _retry_decided(
    job: Job, role: RoleState, replica: Replica, rules: RoleRules
) -> ev.RetryDecided:
    attempt = replica.attempts[-1]
    outcome = attempt.outcome
    assert outcome is not None, "an attempt that is over has an outcome"
    if attempt.generation < rules.generation:
        return ev.RetryDecided(
            role.name, replica.index, role.not_before_ms, Budget.NONE, replica.failures
        )
    not_before_ms, failures = replica_retry(job, role, replica, attempt)
    grown = grown_bytes(job.spec, role.name, attempt)
    return ev.RetryDecided(role.name, replica.index, not_before_ms, outcome.budget, failures, grown)


def _back(job: Job, role: RoleState) -> ev.ReplicaRecalled | None:
    """Return the recall of replicas that had completed before their role restarted whole."""
    if not role.counts[Count.BACK] or job.phase not in ACTIVE_PHASES:
        return None
    found = chunks.find(role, Count.BACK)
    return ev.ReplicaRecalled(chunks.names(role, found))


def _resize(job: Job, role: RoleState) -> ev.ReplicaRetired | ev.ReplicaRevived | None:
    """Return what makes a role's replicas fit its size; in Draining nothing begins anew."""
    if job.phase is JobPhase.DRAINING:
        if role.counts[Count.WAITING] or role.counts[Count.DELAYED]:
            idle = (
                one
                for chunk in role.chunks
                for one in chunk.replicas
                if one.phase in (ReplicaPhase.WAITING, ReplicaPhase.DELAYED)
            )
            return ev.ReplicaRetired(chunks.names(role, idle))
        return None
    if job.phase is JobPhase.STOPPING:
        return None
    if role.counts[Count.RETIRABLE]:
        return ev.ReplicaRetired(chunks.names(role, chunks.find(role, Count.RETIRABLE)))
    if role.counts[Count.REVIVABLE]:
        return ev.ReplicaRevived(chunks.names(role, chunks.find(role, Count.REVIVABLE)))
    return None
