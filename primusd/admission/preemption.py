"""Who is stopped so that a demand of higher priority in the same queue can start.

Least is lost first: the lowest priority, and of that who began last. Nobody is stopped unless that
really makes room, nor while room is being made already, nor twice for the same job: a job that
could not start with the room it was given does not get it again.
"""

from bisect import bisect_left

from msgspec.structs import replace

from primusd.admission.fitting import fit
from primusd.admission.lacking import free_by_node, has_enough, lacking_of, sum_of
from primusd.admission.model import Admission, Demand
from primusd.admission.queues import over_quota, queue_named, used_of
from primusd.admission.usage import book_of, without

LEFT_OUT_TRIES_MAX = 16


def victims_for(state: Admission, demand: Demand, *, at_ms: int) -> tuple[str, ...]:
    """Return the uids to be stopped, who loses least first; empty: nobody, or it is under way."""
    book = book_of(state.demands)
    after = [job for job in book.releasing if job not in state.wedged]
    cleared = replace(state, demands=without(state.demands, after)) if after else state
    if _could_start(cleared, demand, at_ms=at_ms):
        return ()
    candidates = _candidates(state, demand)
    if not candidates or not _could_start(_left(cleared, candidates), demand, at_ms=at_ms):
        return ()
    count = _fewest(cleared, candidates, demand, at_ms=at_ms)
    return _without_needless(cleared, candidates[:count], demand, at_ms=at_ms)


def _candidates(state: Admission, demand: Demand) -> list[str]:
    """Return who may be stopped for a demand, who loses least first."""
    losses = book_of(state.demands).losses
    first = bisect_left(losses, (demand.queue, 0, -(1 << 62), ""))
    last = bisect_left(losses, (demand.queue, demand.priority, -(1 << 62), ""))
    return [
        job
        for _, _, _, job in losses[first:last]
        if job not in state.wedged
        and state.demands[job].is_preemptible
        and demand.job not in state.demands[job].spared
    ]


def _left(state: Admission, jobs: list[str]) -> Admission:
    return replace(state, demands=without(state.demands, jobs))


def _could_start(state: Admission, demand: Demand, *, at_ms: int) -> bool:
    """Return whether a demand would have its quota and its room, if it were the first."""
    lacking = lacking_of(demand)
    queue = queue_named(state, demand.queue)
    if over_quota(queue, used_of(state, demand.queue), lacking):
        return False
    if not has_enough(state, demand, sum_of(free_by_node(state).values())):
        return False
    return fit(state, demand, at_ms=at_ms) is not None


def _fewest(state: Admission, candidates: list[str], demand: Demand, *, at_ms: int) -> int:
    """Return how many of the candidates, from the first on, have to go."""
    low, high = 1, len(candidates)
    while low < high:
        middle = (low + high) // 2
        if _could_start(_left(state, candidates[:middle]), demand, at_ms=at_ms):
            high = middle
        else:
            low = middle + 1
    return low


def _without_needless(
    state: Admission, victims: list[str], demand: Demand, *, at_ms: int
) -> tuple[str, ...]:
    """Return the victims without those whose room is not needed, who loses most spared first."""
    kept = list(victims)
    for job in reversed(victims[-LEFT_OUT_TRIES_MAX:]):
        fewer = [one for one in kept if one != job]
        if fewer and _could_start(_left(state, fewer), demand, at_ms=at_ms):
            kept = fewer
    return tuple(kept)
