"""What demands take of nodes, ports and queues: always computed from the slots that they hold.

Nothing here is stored. A demand is added up once for as long as it is the same object, and the sum
of all is made from the sum before and the demands that are not the same any more (C32).
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import is_
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from primusd.admission.events import RoleDemand
from primusd.admission.memo import Memo
from primusd.admission.model import Admission, Demand
from primusd.admission.rooms import Amount
from primusd.job.phases import DemandPhase

SLOTS_REMEMBERED = 400_000
BOOKS_REMEMBERED = 4
ASKED_REMEMBERED = 8
STEPS_FOLLOWED_MAX = 16
"""So many changes of one demand each are followed back; after more, all demands are compared."""

Demands = Mapping[str, Demand]
OrderKey = tuple[int, int, str]
"""Priority (negated), age, uid: what sorts the demands that wait."""
LossKey = tuple[str, int, int, str]
"""Queue, priority, when it got its slots (negated), uid: who loses least comes first."""


NOTHING = Amount()
AmountT = TypeVar("AmountT", Amount, int)


class Taken(Struct, frozen=True):
    """What one demand takes."""

    by_node: Mapping[str, Amount] = {}
    ports: Mapping[str, int] = {}
    """Node to the set of its ports as bits."""
    total: Amount = NOTHING


class Book(Struct, frozen=True):
    """What all demands take together, and who waits, in order."""

    by_node: Mapping[str, Amount] = {}
    ports: Mapping[str, int] = {}
    """Node to the set of its ports as bits; those of quarantined attempts are not in it."""
    by_queue: Mapping[str, Amount] = {}
    waiting: tuple[OrderKey, ...] = ()
    ends: tuple[tuple[int, str], ...] = ()
    """(journal time, uid) of each demand that surely holds nothing any more from then on."""
    losses: tuple[LossKey, ...] = ()
    """Of each demand that holds slots and keeps them."""
    releasing: tuple[str, ...] = ()
    """Jobs that give back all that they hold."""
    growing: tuple[OrderKey, ...] = ()
    """Who has what it cannot do without, and would take more, in order."""


_taken: Memo[Demand, Taken] = Memo(SLOTS_REMEMBERED, weigh=lambda one: 1 + len(one.held))
_books: Memo[Demands, Book] = Memo(BOOKS_REMEMBERED)
_asked: Memo[Demands, Book] = Memo(ASKED_REMEMBERED)
"""Of demands as they might be: these must not push out what is."""
_steps: Memo[Demands, tuple[Demands, str]] = Memo(STEPS_FOLLOWED_MAX)
"""Demands to those before, and the one job whose demand changed."""


def amount_of(want: RoleDemand) -> Amount:
    """Return what one replica takes."""
    return Amount(
        want.cpu_milli,
        want.memory_bytes,
        want.gpu,
        want.port_count,
        replicas=1,
        unstated=int(want.cpu_milli == 0),
    )


def port_bits(first: int, count: int) -> int:
    """Return a row of ports as bits."""
    return ((1 << count) - 1) << first if first else 0


def with_demand(demands: Demands, job: str, demand: Demand | None) -> Demands:
    """Return the demands with one changed, or without it; what changed is remembered."""
    after = dict(demands)
    if demand is None:
        after.pop(job, None)
    else:
        after[job] = demand
    _steps.put(after, (demands, job))
    return after


def without(demands: Demands, jobs: Iterable[str]) -> Demands:
    """Return the demands as if some jobs had none: a state that is asked about, not one that is."""
    draft, after = _Draft(book_of(demands)), dict(demands)
    for job in jobs:
        draft.leave_out(after.pop(job))
    _asked.put(after, draft.book())
    return after


def changed_jobs(before: Demands, after: Demands) -> tuple[str, ...]:
    """Return the jobs whose demand is not the same object in both."""
    if before is after:
        return ()
    found: dict[str, None] = {}
    demands = after
    for _ in range(STEPS_FOLLOWED_MAX):
        step = _steps.get(demands)
        if step is None:
            break
        demands, job = step
        found[job] = None
        if demands is before:
            return tuple(job for job in reversed(found) if before.get(job) is not after.get(job))
    changed = [job for job, one in after.items() if before.get(job) is not one]
    return (*changed, *(job for job in before if job not in after))


def book_of(demands: Demands) -> Book:
    """Return what the demands add up to."""
    known = _books.get(demands) or _asked.get(demands)
    if known is None:
        known = _books.put(demands, _followed(demands) or book_anew(demands))
    return known


def _followed(demands: Demands) -> Book | None:
    """Return the book made from an earlier one; None: none is near."""
    now = demands
    for _ in range(STEPS_FOLLOWED_MAX):
        step = _steps.get(now)
        if step is None:
            return None
        now = step[0]
        book = _books.get(now)
        if book is not None:
            return _changed(book, now, demands)
    return None


def _changed(book: Book, before: Demands, after: Demands) -> Book:
    draft = _Draft(book)
    for job in changed_jobs(before, after):
        old, new = before.get(job), after.get(job)
        if old is not None and new is not None:
            draft.change(old, new)
        elif new is not None:
            draft.add(new)
        elif old is not None:
            draft.leave_out(old)
        if old is not None:
            _taken.forget(old)
    return draft.book()


def book_anew(demands: Demands) -> Book:
    """Return what the demands add up to, from nothing."""
    draft = _Draft(Book())
    for demand in demands.values():
        draft.add(demand)
    return draft.book()


class _Draft:
    """A book in the making."""

    def __init__(self, book: Book) -> None:
        self._before = book
        self._by_node, self._ports = dict(book.by_node), dict(book.ports)
        self._by_queue = dict(book.by_queue)
        self._waiting, self._ends = list(book.waiting), list(book.ends)
        self._losses, self._releasing = list(book.losses), list(book.releasing)
        self._growing = list(book.growing)
        self._is_waiting_changed = False

    def change(self, old: Demand, new: Demand) -> None:
        """Count a demand as it is now in place of what it was."""
        was = taken_by(old)
        now = _taken.get(new) or _taken.put(new, _shrunk(old, new, was) or _add_up(new))
        self._move(was, now)
        self._add_to_queue(old.queue, was.total, -1)
        self._add_to_queue(new.queue, now.total, 1)
        self._change_lists(old, _remove)
        self._change_lists(new, insort)

    def add(self, demand: Demand) -> None:
        """Count a demand in."""
        taken = taken_by(demand)
        self._move(Taken(), taken)
        self._add_to_queue(demand.queue, taken.total, 1)
        self._change_lists(demand, insort)

    def leave_out(self, demand: Demand) -> None:
        """Count a demand out that was counted in."""
        taken = taken_by(demand)
        self._move(taken, Taken())
        self._add_to_queue(demand.queue, taken.total, -1)
        self._change_lists(demand, _remove)

    def _move(self, was: Taken, now: Taken) -> None:
        for node, less, more in _differing(was.by_node, now.by_node, NOTHING):
            amount = self._by_node.get(node, NOTHING).plus(less, -1).plus(more)
            _put(self._by_node, node, amount, is_kept=amount != NOTHING)
        for node, gone, come in _differing(was.ports, now.ports, 0):
            bits = self._ports.get(node, 0) & ~gone | come
            _put(self._ports, node, bits, is_kept=bits != 0)

    def _change_lists(self, demand: Demand, change: Callable[[list[Any], Any], None]) -> None:
        """Put a demand into the sorted lists that it belongs in, or take it out of them.

        Args:
            demand: As it stands in the lists, or will.
            change: `insort` or `_remove`; each list has keys of a kind of its own.
        """
        if demand.phase is DemandPhase.RELEASING:
            change(self._releasing, demand.job)
        elif demand.held:
            change(self._losses, _loss_key(demand))
        if demand.phase is DemandPhase.WAITING:
            self._is_waiting_changed = True
            change(self._waiting, _waiting_key(demand))
        if could_grow(demand):
            change(self._growing, _waiting_key(demand))
        if demand.held and demand.ends_ms:
            change(self._ends, (demand.ends_ms, demand.job))

    def _add_to_queue(self, queue: str, amount: Amount, times: int) -> None:
        total = self._by_queue.get(queue, NOTHING).plus(amount, times)
        _put(self._by_queue, queue, total, is_kept=total != NOTHING)

    def book(self) -> Book:
        """Return the book; while nobody's waiting changed it has the same `waiting`."""
        return Book(
            self._by_node,
            self._ports,
            self._by_queue,
            tuple(self._waiting) if self._is_waiting_changed else self._before.waiting,
            tuple(self._ends),
            tuple(self._losses),
            tuple(self._releasing),
            tuple(self._growing),
        )


def _differing(
    was: Mapping[str, AmountT], now: Mapping[str, AmountT], nothing: AmountT
) -> Iterator[tuple[str, AmountT, AmountT]]:
    """Yield the keys whose values are not the same object, with both values."""
    for key, more in now.items():
        less = was.get(key, nothing)
        if less is not more:
            yield key, less, more
    yield from ((key, less, nothing) for key, less in was.items() if key not in now)


def _put(sums: dict[str, AmountT], key: str, amount: AmountT, *, is_kept: bool) -> None:
    """Store a sum; one of nothing has no place in a book."""
    if is_kept:
        sums[key] = amount
    else:
        sums.pop(key, None)


def could_grow(demand: Demand) -> bool:
    """Return whether a demand has what it cannot do without, and would take more."""
    if demand.phase is not DemandPhase.GRANTED:
        return False
    return any(
        want.spare_count
        and sum(one.high - one.low + 1 for one in want.wanted)
        > sum(1 for role, _ in demand.held if role == want.role)
        for want in demand.roles.values()
    )


def _waiting_key(demand: Demand) -> OrderKey:
    return (-demand.priority, demand.since_ms, demand.job)


def _loss_key(demand: Demand) -> LossKey:
    return (demand.queue, demand.priority, -demand.granted_ms, demand.job)


KeyT = TypeVar("KeyT", OrderKey, LossKey, tuple[int, str], str)


def _remove(keys: list[KeyT], key: KeyT) -> None:
    place = bisect_left(keys, key)
    assert keys[place] == key, f"{key} was never counted in"
    del keys[place]


def taken_by(demand: Demand) -> Taken:
    """Return what a demand takes: its slots, and what its attempts still use beside them."""
    return _taken.of(demand, _add_up)


def _shrunk(old: Demand, new: Demand, taken: Taken) -> Taken | None:
    """Return what is left of what a demand took when all it did was give slots back; None else."""
    is_same = old.old_slots == new.old_slots and not (old.old_ports or new.old_ports)
    if not is_same or not all(map(is_, map(old.held.get, new.held), new.held.values())):
        return None
    by_node, ports, total = dict(taken.by_node), dict(taken.ports), taken.total
    gone = [key for key in old.held if key not in new.held]
    for role in {role for role, _ in old.held}:
        was, now = _want(old, role), _want(new, role)
        if was is None or now is None or amount_of(was) != amount_of(now):
            return None
    for role, index in gone:
        held, want = old.held[role, index], _want(old, role)
        assert want is not None, "it was compared just now"
        share = _share(want, held.memory_bytes)
        by_node[held.node] = by_node[held.node].plus(share, -1)
        total = total.plus(share, -1)
        if held.first_port:
            ports[held.node] &= ~port_bits(held.first_port, held.port_count)
    return Taken(by_node, ports, total)


def _want(demand: Demand, role: str) -> RoleDemand | None:
    return demand.roles.get(role) or demand.leaving.get(role)


def _share(want: RoleDemand, memory_bytes: int) -> Amount:
    """Return what one replica takes; its slot may have a memory of its own."""
    share = amount_of(want)
    return replace(share, memory_bytes=memory_bytes) if memory_bytes else share


def _add_up(demand: Demand) -> Taken:
    counts: dict[tuple[str, str, int], int] = {}
    ports: dict[str, int] = {}
    for (role, _), held in demand.held.items():
        key = (role, held.node, held.memory_bytes)
        counts[key] = counts.get(key, 0) + 1
        if held.first_port:
            bits = port_bits(held.first_port, held.port_count)
            ports[held.node] = ports.get(held.node, 0) | bits
    for (role, _), held in demand.old_slots.items():
        key = (role, held.node, held.memory_bytes)
        counts[key] = counts.get(key, 0) + 1
    for used in demand.old_ports.values():
        for node, port in used:
            ports[node] = ports.get(node, 0) | (1 << port)
    by_node: dict[str, Amount] = {}
    total = NOTHING
    for (role, node, memory_bytes), count in counts.items():
        want = _want(demand, role)
        if want is not None:
            share = _share(want, memory_bytes)
            by_node[node] = by_node.get(node, NOTHING).plus(share, count)
            total = total.plus(share, count)
    return Taken(by_node, ports, total)


def used_by_node(demands: Iterable[Demand], admission: Admission) -> dict[str, Amount]:
    """Return what the demands' slots and the quarantined ones of admission take, by node."""
    used: dict[str, Amount] = {}
    for demand in demands:
        for node, amount in taken_by(demand).by_node.items():
            used[node] = used.get(node, NOTHING).plus(amount)
    return _with_quarantined(used, admission)


def used_now(admission: Admission) -> dict[str, Amount]:
    """Return what all slots and quarantined attempts take, by node."""
    return _with_quarantined(dict(book_of(admission.demands).by_node), admission)


def _with_quarantined(used: dict[str, Amount], admission: Admission) -> dict[str, Amount]:
    for one in admission.quarantined:
        share = Amount(one.cpu_milli, one.memory_bytes, one.gpu, len(one.ports))
        used[one.node] = used.get(one.node, NOTHING).plus(share)
    return used


def ports_now(admission: Admission) -> dict[str, int]:
    """Return the ports that slots and quarantined attempts hold, by node, as bits."""
    ports = dict(book_of(admission.demands).ports)
    for one in admission.quarantined:
        for port in one.ports:
            ports[one.node] = ports.get(one.node, 0) | (1 << port)
    return ports


def waiting_in(admission: Admission) -> Iterator[Demand]:
    """Yield the demands that wait: by priority, then by age, then by uid."""
    for _, _, job in book_of(admission.demands).waiting:
        yield admission.demands[job]
