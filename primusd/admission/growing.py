"""Who gets more than it cannot do without: elastic roles, of what nobody waits for."""

from collections.abc import Sequence

from primusd.admission.events import DemandFitted, RoleDemand
from primusd.admission.fitting import fit_spares, spares
from primusd.admission.model import Admission, Demand
from primusd.admission.turns import Round
from primusd.admission.usage import NOTHING, amount_of, book_of
from primusd.job.events import Place

Wishes = Sequence[tuple[RoleDemand, int]]


def grown(state: Admission, round_: Round, *, at_ms: int) -> DemandFitted | None:
    """Return the first demand that grows now: by priority, then age.

    Args:
        state: In which nobody who waits can start now.
        round_: That has judged those who wait: what they lack stays free.
        at_ms: Journal time.
    """
    for _, _, job in book_of(state.demands).growing:
        if job in state.wedged:
            continue
        demand = state.demands[job]
        places = _most(state, round_, demand, at_ms=at_ms)
        if places:
            return DemandFitted(job, places, demand.generation)
    return None


def _most(state: Admission, round_: Round, demand: Demand, *, at_ms: int) -> tuple[Place, ...]:
    """Return where as many of one role's spares go as there is room for; of the first that has."""
    by_role: dict[str, list[tuple[RoleDemand, int]]] = {}
    for want, index in spares(demand):
        by_role.setdefault(want.role, []).append((want, index))
    for wishes in by_role.values():
        found: tuple[Place, ...] = ()
        low, high = 0, len(wishes)
        while low < high:
            middle = (low + high + 1) // 2
            places = _placed(state, round_, demand, wishes[:middle], at_ms=at_ms)
            if places is None:
                high = middle - 1
            else:
                low, found = middle, places
        if found:
            return found
    return ()


def _placed(
    state: Admission, round_: Round, demand: Demand, wishes: Wishes, *, at_ms: int
) -> tuple[Place, ...] | None:
    more = NOTHING
    for want, _ in wishes:
        more = more.plus(amount_of(want))
    if not round_.may_take(demand, more):
        return None
    places = fit_spares(state, demand, wishes, at_ms=at_ms)
    return None if places is None or round_.delays(demand, places) else places
