"""What admission would decide if: when a demand would be granted, and how much of it now.

The answers come from `admission.settle` and `fitting.fit` themselves, asked about states that are
not so (yet).
"""

from collections.abc import Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from primusd.admission import machine as admission
from primusd.admission.events import DemandFitted, RoleDemand
from primusd.admission.fitting import fit, indices
from primusd.admission.model import Admission, Demand
from primusd.admission.usage import waiting_in
from primusd.job.events import Place, TimePassed
from primusd.job.ids import spans
from primusd.job.machine import At, Ignore

ENDS_MAX = 50
"""So many ends are looked ahead: further away nobody can tell."""
AHEAD_MAX = 100
"""With more jobs before it nobody can tell when one starts."""
DECISIONS_MAX = 200


class End(Struct, frozen=True, order=True):
    """When a job is expected to be over."""

    at_ms: int
    job: str


class Granted(Struct, frozen=True):
    """What a demand waits for until it is granted."""

    at_ms: int
    after: str
    """The job whose end makes the room."""
    nodes: tuple[str, ...]
    """Where its missing replicas go."""


def granted_when(state: Admission, job: str, ends: Iterable[End], *, now_ms: int) -> Granted | None:
    """Return when a demand that waits is granted if jobs end as expected; None: nobody can tell.

    Those behind it are left out of account: they may not delay it.
    """
    found = _as_far_as(state, job)
    if found is None:
        return None
    state = found
    for end in sorted(ends)[:ENDS_MAX]:
        if end.job == job or end.job not in state.demands:
            continue
        demands = {uid: one for uid, one in state.demands.items() if uid != end.job}
        at_ms = max(now_ms, end.at_ms)
        state = _later(replace(state, demands=demands), at_ms)
        for event, after in _decisions(state, at_ms):
            state = after
            if event.job == job:
                return Granted(at_ms, end.job, _nodes(event.places))
    return None


def _as_far_as(state: Admission, job: str) -> Admission | None:
    """Return admission without what waits behind a demand; None: too much waits before it."""
    waiting = [demand.job for demand in waiting_in(state)]
    if job not in waiting or waiting.index(job) > AHEAD_MAX:
        return None
    behind = frozenset(waiting[waiting.index(job) + 1 :])
    demands = {uid: one for uid, one in state.demands.items() if uid not in behind}
    return replace(state, demands=demands)


def _later(state: Admission, at_ms: int) -> Admission:
    after = admission.apply(state, TimePassed(), At(at_ms, 0, 0, "foresight"))
    return state if isinstance(after, Ignore) else after


def _decisions(state: Admission, at_ms: int) -> Iterator[tuple[DemandFitted, Admission]]:
    """Yield each grant that admission would make, with the state after it."""
    for _ in range(DECISIONS_MAX):
        event = admission.settle(state, at_ms)
        if event is None:
            return
        after = admission.apply(state, event, At(at_ms, 0, 0, "foresight"))
        if isinstance(after, Ignore):
            return
        state = after
        if isinstance(event, DemandFitted):
            yield event, state


def _nodes(places: Iterable[Place]) -> tuple[str, ...]:
    return tuple(sorted({place.node for place in places}))


def smaller_that_fits(
    state: Admission, demand: Demand, *, at_ms: int
) -> tuple[str, int, int] | None:
    """Return a role, the most of its replicas with which the demand would fit, and its least now.

    Only one role is made smaller; None: that would not do, or it fits and waits for its turn.
    """
    if fit(state, demand, at_ms=at_ms) is not None:
        return None
    for role in demand.roles.values():
        wanted = tuple(indices(role))
        least = len(wanted) - role.spare_count
        low, high = 0, least - 1
        while low < high:
            middle = (low + high + 1) // 2
            if fit(state, _with(demand, role, wanted[:middle]), at_ms=at_ms) is None:
                high = middle - 1
            else:
                low = middle
        if low:
            return role.role, low, least
    return None


def _with(demand: Demand, role: RoleDemand, wanted: tuple[int, ...]) -> Demand:
    named = spans((role.role, index) for index in wanted)
    fewer = replace(role, wanted=named, spare_count=0)
    return replace(demand, roles={**demand.roles, role.role: fewer})
