"""What ends are charged to, and how long the next attempt waits.

Charges are kept with the role, so a budget survives any restart of the daemon (C47).
"""

import hashlib
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from primusd.job.ids import AttemptId, replica_name
from primusd.job.model import Attempt, Charge, Job, Outcome, RoleState
from primusd.job.phases import Budget
from primusd.job.spec import Budgets, Restart, budgets_of

HEALTHY_MS = 600_000
"""A run of so long makes the next failure the first one again."""
SAME_FAULT_MS = 60_000
"""Of a host, as for its exclusion (`admission/nodes.py`)."""
JITTER_PER_MILLE = 250
PLACEMENT_DELAY_MS = 30_000
PLACEMENT_DELAY_MAX_MS = 600_000


def charge(
    job: Job, role: RoleState, outcome: Outcome, attempt: AttemptId, *, boot_id: str, at_ms: int
) -> tuple[RoleState, Outcome]:
    """Return the role with the end charged, and the outcome that knows its number.

    What ends several replicas of one host within a minute, and is no fault of theirs, is one
    failure: a host that dies or is taken away, a full disk, a stranger on a row of its ports. Else
    the size of a job would decide how many hosts it may lose. It cannot go on for ever unpaid: the
    same replica is charged each time.
    """
    if outcome.budget is Budget.NONE:
        return role, outcome
    kept = within(role.charges, budgets_of(job.spec, role.name), at_ms)
    role = replace(role, charges=kept)
    boot_id = boot_id if outcome.budget is Budget.INFRASTRUCTURE else ""
    counted = list(_counted(job, role, outcome.budget, at_ms))
    if boot_id and any(_is_same_fault(one, attempt, boot_id, at_ms) for one in counted):
        return role, replace(outcome, charged=len(counted))
    one = Charge(at_ms, outcome.budget, attempt.label, boot_id)
    role = replace(role, charges=(*kept, one))
    is_spent = _is_spent(job, role, attempt)
    return role, replace(outcome, charged=len(counted) + 1, is_spent=is_spent)


def _is_spent(job: Job, role: RoleState, attempt: AttemptId) -> bool:
    """Return whether a replica was charged more often than one replica may be."""
    limit = budgets_of(job.spec, role.name).replica
    own = (one.attempt.rpartition("/")[0] == attempt.replica for one in role.charges)
    return 0 <= limit < sum(own)


def _is_same_fault(charged: Charge, attempt: AttemptId, boot_id: str, at_ms: int) -> bool:
    """Return whether a charge is of what ended an attempt of another replica too."""
    is_near = charged.boot_id == boot_id and at_ms - charged.at_ms < SAME_FAULT_MS
    return is_near and charged.attempt.rpartition("/")[0] != attempt.replica


def refund(role: RoleState, label: str) -> RoleState:
    """Return the role without the charge of an attempt: its end turned out otherwise."""
    return replace(role, charges=tuple(one for one in role.charges if one.attempt != label))


def within(charges: Iterable[Charge], budgets: Budgets, at_ms: int) -> tuple[Charge, ...]:
    """Return the charges that still count."""
    oldest_ms = at_ms - budgets.within_ms
    return tuple(one for one in charges if one.at_ms > oldest_ms)


def used_of(job: Job, role: RoleState, budget: Budget, at_ms: int) -> int:
    """Return how many ends are charged to a role's budget within its time.

    The infrastructure budget is the job's: roles without budgets of their own share it.
    """
    return sum(1 for _ in _counted(job, role, budget, at_ms))


def _counted(job: Job, role: RoleState, budget: Budget, at_ms: int) -> Iterator[Charge]:
    budgets = budgets_of(job.spec, role.name)
    charges: Iterable[Charge] = role.charges
    if budget is Budget.INFRASTRUCTURE and job.spec.roles[role.name].budgets is None:
        shared = [role.charges, job.charges]
        shared += [
            other.charges
            for name, other in job.roles.items()
            if name != role.name and job.spec.roles[name].budgets is None
        ]
        charges = (one for charges in shared for one in charges)
    return (one for one in within(charges, budgets, at_ms) if one.budget is budget)


def limit_of(job: Job, role: str, budget: Budget) -> int:
    """Return how many ends a role's budget forgives."""
    budgets = budgets_of(job.spec, role)
    return budgets.application if budget is Budget.APPLICATION else budgets.infrastructure


def job_used(job: Job, at_ms: int) -> int:
    """Return what is charged to the job's infrastructure budget, all sharing roles counted."""
    charges = [job.charges]
    charges += [
        role.charges for name, role in job.roles.items() if job.spec.roles[name].budgets is None
    ]
    found = within((one for part in charges for one in part), job.spec.budgets, at_ms)
    return sum(one.budget is Budget.INFRASTRUCTURE for one in found)


def failures_after(failures: int, attempt: Attempt) -> int:
    """Return the number of consecutive failures with this one; health makes it the first."""
    was_healthy = attempt.started_ms and attempt.ended_ms - attempt.started_ms >= HEALTHY_MS
    return 1 if was_healthy else failures + 1


def retry_delay_ms(restart: Restart, budget: Budget, failures: int, identity: str) -> int:
    """Return how long the next attempt waits after the end of this one.

    Args:
        restart: Of the role.
        budget: What the end was charged to; the first infrastructure restart goes at once.
        failures: Consecutive ones, this one counted.
        identity: Of the attempt: what the jitter is made from.
    """
    if budget is Budget.INFRASTRUCTURE and failures <= 1:
        return 0
    doubled = restart.delay_ms << min(failures - 1, 30)
    return jittered(min(doubled, restart.delay_max_ms), identity)


def placement_delay_ms(start_timeouts: int, identity: str) -> int:
    """Return how long a job waits after its n-th start that timed out."""
    doubled = PLACEMENT_DELAY_MS << min(start_timeouts - 1, 30)
    return jittered(min(doubled, PLACEMENT_DELAY_MAX_MS), identity)


def jittered(delay_ms: int, identity: str) -> int:
    """Return the delay with a quarter more or less, by a hash of an identity."""
    digest = hashlib.blake2b(identity.encode(), digest_size=4).digest()
    spread = int.from_bytes(digest, "big") % (2 * JITTER_PER_MILLE + 1) - JITTER_PER_MILLE
    return delay_ms * (1000 + spread) // 1000


def attempt_identity(job: Job, role: str, index: int, number: int) -> str:
    """Return what names an attempt among all jobs: `uid/worker-3/2`."""
    return f"{job.uid}/{replica_name(role, index)}/{number}"
