"""How many replicas of a role are where: read from the counts that its chunks keep."""

from msgspec import Struct

from primusd.job.chunks import NO_COUNTS
from primusd.job.counts import Count
from primusd.job.model import RoleState


class Counts(Struct, frozen=True, kw_only=True):
    """How many replicas of a role are where."""

    waiting: int
    delayed: int
    active: int
    registered: int
    running: int
    ready: int
    stopping: int
    completed: int
    failed: int
    retired: int
    attempts: int


def count_role(role: RoleState) -> Counts:
    """Return the counts over all replicas of a role."""
    counts = role.counts or NO_COUNTS
    return Counts(
        waiting=counts[Count.WAITING],
        delayed=counts[Count.DELAYED],
        active=counts[Count.ACTIVE],
        registered=counts[Count.REGISTERED] + counts[Count.STARTING] + counts[Count.RUNNING],
        running=counts[Count.RUNNING],
        ready=counts[Count.READY],
        stopping=counts[Count.STOPPING],
        completed=counts[Count.COMPLETED],
        failed=counts[Count.FAILED],
        retired=counts[Count.RETIRED],
        attempts=counts[Count.ATTEMPTS],
    )
