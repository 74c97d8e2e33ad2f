"""A group that lost a lease while its holder lives: who pays for it, and when it begins anew.

The end of a holder is judged with its attempt. One that lives was silent for too long, or its
executor began anew: its host is to blame, and without a charge it could go on so for ever.
"""

from msgspec.structs import replace

from primusd.job.budgets import (
    HEALTHY_MS,
    attempt_identity,
    charge,
    limit_of,
    retry_delay_ms,
    used_of,
)
from primusd.job.counts import LIVING
from primusd.job.ids import AttemptId
from primusd.job.model import Job, Outcome, find_attempt
from primusd.job.phases import Budget, Cause


def charged(job: Job, attempt: AttemptId, at_ms: int) -> Job:
    """Return the job with the loss charged as infrastructure, where its holder lives."""
    holder = find_attempt(job, attempt)
    if holder is None or holder.phase not in LIVING:
        return job
    role, _ = charge(
        job,
        job.roles[attempt.role],
        Outcome(Cause.LOST, Budget.INFRASTRUCTURE),
        attempt,
        boot_id=holder.boot_id,
        at_ms=at_ms,
    )
    return replace(job, roles={**job.roles, attempt.role: role})


def is_charged(job: Job, attempt: AttemptId) -> bool:
    """Return whether a loss was charged for itself: its holder has no end."""
    holder = find_attempt(job, attempt)
    return holder is not None and holder.outcome is None and holder.stop is None


def is_spent(job: Job, attempt: AttemptId, at_ms: int) -> bool:
    """Return whether a loss was one more than the budget forgives."""
    if not is_charged(job, attempt):
        return False
    used = used_of(job, job.roles[attempt.role], Budget.INFRASTRUCTURE, at_ms)
    return used > limit_of(job, attempt.role, Budget.INFRASTRUCTURE)


def next_start(job: Job, attempt: AttemptId, at_ms: int) -> tuple[int, int, Budget]:
    """Return when the group begins again, its consecutive failures, and what the loss cost."""
    role = job.roles[attempt.role]
    holder = find_attempt(job, attempt)
    if holder is None or not is_charged(job, attempt):
        return at_ms, role.failures, Budget.NONE
    was_healthy = holder.started_ms and at_ms - holder.started_ms >= HEALTHY_MS
    failures = 1 if was_healthy else role.failures + 1
    identity = attempt_identity(job, role.name, attempt.index, attempt.attempt)
    restart = job.spec.roles[role.name].restart
    delay_ms = retry_delay_ms(restart, Budget.INFRASTRUCTURE, failures, identity)
    return at_ms + delay_ms, failures, Budget.INFRASTRUCTURE
