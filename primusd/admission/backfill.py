"""When a demand that waits could start at the latest, by the deadlines of those who hold slots.

Source: Lifka, "The ANL/IBM SP Scheduling System", JSSPP 1995 (EASY backfilling): the first in the
queue has a promise, and whoever surely ends before it may go ahead. A job that ends before its
deadline could have let the first in sooner; the promise is kept all the same.
"""

from msgspec import Struct
from msgspec.structs import replace

from primusd.admission.fitting import fit
from primusd.admission.lacking import free_by_node, has_enough, lacking_of, sum_of
from primusd.admission.model import Admission, Demand
from primusd.admission.queues import over_quota, queue_named, used_of
from primusd.admission.usage import book_of, taken_by, without

PROBES_MAX = 8
"""So many ends are looked at beyond the one from which there is enough in all."""


class Start(Struct, frozen=True):
    """When a demand could start, and by whose deadline."""

    at_ms: int
    by_job: str
    """Uid."""


def bound_of(demand: Demand, at_ms: int) -> int:
    """Return when a demand would hold nothing any more if it got its slots now; 0 not known."""
    if demand.ends_ms:
        return demand.ends_ms
    return at_ms + demand.runs_for_ms if demand.runs_for_ms else 0


def earliest_start(state: Admission, demand: Demand, *, at_ms: int) -> Start | None:
    """Return when a demand could start if everybody else ran to the deadline; None: not known.

    Beyond PROBES_MAX ends from which there is enough in all, on some node or other, the last one
    looked at is returned: not before then.
    """
    lacking, queue = lacking_of(demand), queue_named(state, demand.queue)
    free_by = free_by_node(state)
    free, used = sum_of(free_by.values()), used_of(state, demand.queue)
    gone: list[str] = []
    probes = 0
    for ends_ms, job in book_of(state.demands).ends:
        other = state.demands[job]
        if job == demand.job:
            continue
        gone.append(job)
        taken = taken_by(other)
        free = free.plus(sum_of(one for node, one in taken.by_node.items() if node in free_by))
        used = used.plus(taken.total, -1) if other.queue == demand.queue else used
        if over_quota(queue, used, lacking) or not has_enough(state, demand, free):
            continue
        start = Start(max(at_ms, ends_ms), job)
        probes += 1
        later = replace(state, demands=without(state.demands, gone))
        if fit(later, demand, at_ms=start.at_ms) is not None or probes == PROBES_MAX:
            return start
    return None
