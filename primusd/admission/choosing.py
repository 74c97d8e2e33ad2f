"""What admission decides by itself: the next demand that starts, or who is stopped for one."""

from primusd.admission import events as ev
from primusd.admission.dependencies import name_of
from primusd.admission.fitting import missing
from primusd.admission.growing import grown
from primusd.admission.model import Admission, Demand
from primusd.admission.preemption import victims_for
from primusd.admission.queues import may_preempt
from primusd.admission.turns import Round, Turn, in_turn, lines_of
from primusd.admission.usage import book_of


def settle(state: Admission, at_ms: int) -> ev.DemandFitted | ev.DemandEvicted | None:
    """Return the first demand whose turn it is, or the next that is stopped for the first of all.

    When nobody who waits can start, elastic roles grow with what is left.

    Only who is ahead of everybody that lacks something has others stopped: what it frees would
    else go to those before it.
    """
    book = book_of(state.demands)
    if not book.waiting and not book.growing:
        return None
    round_ = Round(state, at_ms=at_ms)
    is_first = True
    for demand in in_turn(lines_of(state), round_, state.demands):
        if demand.job in state.wedged:
            continue
        outcome = round_.judge(demand)
        if outcome.turn is Turn.STARTS:
            return ev.DemandFitted(demand.job, outcome.places, demand.generation)
        if outcome.turn in (Turn.ROOM, Turn.QUOTA) and any(missing(demand)):
            # Who only has to move off a node runs as it is: nobody is stopped for it.
            evicted = _evicted(state, demand, at_ms=at_ms) if is_first else None
            if evicted is not None:
                return evicted
            is_first = False
    return grown(state, round_, at_ms=at_ms) if book.growing else None


def _evicted(state: Admission, demand: Demand, *, at_ms: int) -> ev.DemandEvicted | None:
    """Return who is stopped next so that a demand can start."""
    if not may_preempt(state, demand):
        return None
    victims = victims_for(state, demand, at_ms=at_ms)
    if not victims:
        return None
    victim = state.demands[victims[0]]
    return ev.DemandEvicted(
        victim.job,
        f"stopped for {name_of(state, demand.job)}, "
        f"whose priority in queue {demand.queue} is {demand.priority} and its own "
        f"{victim.priority}; it goes on with its place in the queue",
        by_job=demand.job,
    )
