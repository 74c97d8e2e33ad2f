"""Whose turn it is: which demand that waits gets its slots next, and what holds up the others.

The order is priority, then age. Who lacks room or quota and is the first to lack it *reserves*: a
later demand passes only if what stays free beside it would still hold all that the first ones lack,
on every node that it touches and in its queue, or if it surely ends before the first could start
(`admission/backfill.py`). A demand that could never start reserves nothing.
"""

import heapq
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum

from msgspec import Struct

from primusd.admission.backfill import Start, bound_of, earliest_start
from primusd.admission.fitting import fit, total_of
from primusd.admission.lacking import (
    FIELDS,
    free_by_node,
    has_a_node,
    has_enough,
    lacking_of,
    sum_of,
    why_never,
)
from primusd.admission.memo import Memo
from primusd.admission.model import Admission, Demand
from primusd.admission.queues import QUOTA_FIELDS, over_quota, queue_named, used_of
from primusd.admission.rooms import Amount
from primusd.admission.usage import NOTHING, Demands, OrderKey, amount_of, book_of
from primusd.job.events import Place

LINES_REMEMBERED = 4


class Turn(StrEnum):
    """What becomes of a demand that waits."""

    STARTS = "starts"
    AFTER = "after"
    """Other jobs must have Succeeded before."""
    NEVER = "never"
    """The nodes known now could not hold it even when empty."""
    OVER_QUOTA = "over quota"
    """It asks for more than its queue may use."""
    QUOTA = "quota"
    """The first that its queue's quota has too little left for."""
    ROOM = "room"
    """The first that the nodes have too little room for now."""
    BEHIND = "behind"
    """It would take what an earlier one waits for."""


class Outcome(Struct, frozen=True):
    """What becomes of one demand, and why."""

    turn: Turn
    lacking: Amount = NOTHING
    """What the replicas without a slot take."""
    places: tuple[Place, ...] = ()
    firsts: tuple[str, ...] = ()
    """Uids of the earlier demands that it must not delay."""
    quota: Mapping[str, tuple[int, int]] = {}
    """What the quota has too little of: key to what would be used, and what is allowed."""
    sentence: str = ""
    """Of NEVER: why."""


class Line(Struct, frozen=True):
    """Demands that wait for the same things in the same queue, in order."""

    queue: str
    fields: tuple[str, ...]
    """What each of them takes any of."""
    least: Amount
    """What no one of them takes less than."""
    is_bounded: bool
    """It is known when they end."""
    keys: tuple[OrderKey, ...]


_lines: Memo[tuple[OrderKey, ...], tuple[Mapping[str, tuple[str, ...]], tuple[Line, ...]]] = Memo(
    LINES_REMEMBERED
)


class Round:
    """One look at the demands that wait, from the first on; asked for each in its order."""

    def __init__(self, state: Admission, *, at_ms: int) -> None:
        self.state = state
        self.firsts: list[Demand] = []
        """Who lacks room on the nodes."""
        self._at_ms = at_ms
        self._free = free_by_node(state)
        self._free_in_all = sum_of(self._free.values())
        self.reserved = NOTHING
        self._in_queue: dict[str, tuple[Amount, tuple[Demand, ...]]] = {}
        """Queue to what those who reserve in it lack, and who they are."""
        self._starts: dict[str, Start | None] = {}

    def judge(self, demand: Demand) -> Outcome:
        """Return what becomes of a demand; the earlier ones were judged before."""
        lacking = lacking_of(demand)
        return self._judge_waiting(demand, lacking) or self._judge_fitting(demand, lacking)

    def _judge_waiting(self, demand: Demand, lacking: Amount) -> Outcome | None:
        """Return what becomes of a demand that waits for no room; None: for room it does."""
        if demand.job in self.state.after:
            return Outcome(Turn.AFTER, lacking)
        queue = queue_named(self.state, demand.queue)
        over = over_quota(queue, NOTHING, total_of(demand.roles.values()))
        return Outcome(Turn.OVER_QUOTA, lacking, quota=over) if over else None

    def _judge_fitting(self, demand: Demand, lacking: Amount) -> Outcome:
        queue, used = queue_named(self.state, demand.queue), used_of(self.state, demand.queue)
        short = over_quota(queue, used, lacking)
        fields = tuple(field for field in FIELDS if getattr(lacking, field))
        is_behind = self._is_crowded(demand.queue, fields, lacking)
        if is_behind and (short or not self._ends_before_firsts(demand)):
            return self._behind(demand, lacking)
        places = None if short else self._places(demand)
        if places is None and is_behind:
            return self._behind(demand, lacking)
        if places is None:
            return self._first(demand, lacking, short)
        if not is_behind and not self.delays(demand, places):
            return Outcome(Turn.STARTS, lacking, places)
        if is_behind or self._ends_before_firsts(demand):
            return Outcome(Turn.STARTS, lacking, places, firsts=self._names(demand))
        return self._behind(demand, lacking)

    def _first(
        self, demand: Demand, lacking: Amount, short: Mapping[str, tuple[int, int]]
    ) -> Outcome:
        """Return what becomes of the first that lacks quota or room: it reserves."""
        never = why_never(self.state, demand)
        if never:
            return Outcome(Turn.NEVER, lacking, sentence=never)
        self._reserve(demand, lacking, is_room=not short)
        return Outcome(Turn.QUOTA if short else Turn.ROOM, lacking, quota=short)

    def _places(self, demand: Demand) -> tuple[Place, ...] | None:
        if not has_enough(self.state, demand, self._free_in_all):
            return None
        if not has_a_node(self.state, demand, self._free.values()):
            return None
        return fit(self.state, demand, at_ms=self._at_ms)

    def _is_crowded(self, queue: str, fields: tuple[str, ...], more: Amount) -> bool:
        """Return whether it is plain that so much would be taken from earlier ones."""
        for field in fields:
            reserved = getattr(self.reserved, field)
            if reserved and getattr(self._free_in_all, field) < reserved + getattr(more, field):
                return True
        reserved_here, _ = self._in_queue.get(queue, (NOTHING, ()))
        if reserved_here == NOTHING:
            return False
        used = used_of(self.state, queue).plus(reserved_here)
        over = over_quota(queue_named(self.state, queue), used, more)
        return any(getattr(reserved_here, QUOTA_FIELDS[key]) for key in over)

    def may_take(self, demand: Demand, more: Amount) -> bool:
        """Return whether a demand may have so much beside what it holds, as far as is plain."""
        fields = tuple(field for field in FIELDS if getattr(more, field))
        free = self._free_in_all
        if any(getattr(more, field) > getattr(free, field) for field in fields):
            return False
        queue, used = queue_named(self.state, demand.queue), used_of(self.state, demand.queue)
        return not (over_quota(queue, used, more) or self._is_crowded(demand.queue, fields, more))

    def is_hopeless(self, line: Line) -> bool:
        """Return whether none of a line can start now, whoever of it is looked at."""
        if not self._is_crowded(line.queue, line.fields, line.least):
            return False
        return not line.is_bounded or any(
            getattr(line.least, field) > getattr(self._free_in_all, field)
            for field in line.fields
            if field != "cpu_milli"
        )

    def _reserve(self, demand: Demand, lacking: Amount, *, is_room: bool) -> None:
        if is_room:
            self.firsts.append(demand)
            self.reserved = self.reserved.plus(lacking)
        amount, names = self._in_queue.get(demand.queue, (NOTHING, ()))
        self._in_queue[demand.queue] = (amount.plus(lacking), (*names, demand))

    def delays(self, demand: Demand, places: tuple[Place, ...]) -> bool:
        """Return whether on some node too little would be left for those who reserve."""
        if self.reserved == NOTHING:
            return False
        taken: dict[str, Amount] = {}
        for place in places:
            share = amount_of(demand.roles[place.role])
            taken[place.node] = taken.get(place.node, NOTHING).plus(share, place.count)
        return any(
            getattr(amount, field)
            and getattr(self._free[node], field) - getattr(amount, field)
            < getattr(self.reserved, field)
            and getattr(self.reserved, field)
            for node, amount in taken.items()
            if node in self._free
            for field in FIELDS
        )

    def _firsts_for(self, demand: Demand) -> list[Demand]:
        _, in_queue = self._in_queue.get(demand.queue, (NOTHING, ()))
        return list({one.job: one for one in (*self.firsts, *in_queue)}.values())

    def _names(self, demand: Demand) -> tuple[str, ...]:
        return tuple(one.job for one in self._firsts_for(demand))

    def _ends_before_firsts(self, demand: Demand) -> bool:
        """Return whether it surely holds nothing any more when the first of these could start."""
        ends_ms = bound_of(demand, self._at_ms)
        if not ends_ms:
            return False
        starts = (self.start_of(one) for one in self._firsts_for(demand))
        return all(start is not None and ends_ms <= start.at_ms for start in starts)

    def start_of(self, first: Demand) -> Start | None:
        """Return when a demand that reserves could start, as far as deadlines tell."""
        if first.job not in self._starts:
            start = earliest_start(self.state, first, at_ms=self._at_ms)
            self._starts[first.job] = start
        return self._starts[first.job]

    def _behind(self, demand: Demand, lacking: Amount) -> Outcome:
        return Outcome(Turn.BEHIND, lacking, firsts=self._names(demand))

    def behind(self, demand: Demand, *, is_first: Callable[[str], bool]) -> Outcome:
        """Return what becomes of a demand whose line was hopeless when its turn came.

        Args:
            demand: Judged late: others that come after it may have been judged before.
            is_first: Whether a job comes before it.
        """
        outcome = self._judge_waiting(demand, lacking_of(demand))
        if outcome is not None:
            return outcome
        firsts = tuple(one for one in self._names(demand) if is_first(one))
        return Outcome(Turn.BEHIND, lacking_of(demand), firsts=firsts)


def lines_of(state: Admission) -> tuple[Line, ...]:
    """Return those who wait for room, parted by what they take; the wedged are left out."""
    waiting = book_of(state.demands).waiting
    known = _lines.get(waiting)
    if known is None or known[0] is not state.after:
        known = _lines.put(waiting, (state.after, tuple(_parted(state, waiting))))
    return known[1]


class Standing(Struct, frozen=True):
    """Where a demand stands among those that wait; one that waits for other jobs has no place."""

    key: OrderKey
    ahead: int = 0
    """So many come before it in its queue."""
    ahead_in_all: int = 0


_places: Memo[tuple[OrderKey, ...], tuple[Mapping[str, tuple[str, ...]], Mapping[str, Standing]]]
_places = Memo(LINES_REMEMBERED)


def places_of(state: Admission) -> Mapping[str, Standing]:
    """Return where each demand that waits stands, by job."""
    waiting = book_of(state.demands).waiting
    known = _places.get(waiting)
    if known is None or known[0] is not state.after:
        known = _places.put(waiting, (state.after, _standings(state, waiting)))
    return known[1]


def _standings(state: Admission, waiting: tuple[OrderKey, ...]) -> dict[str, Standing]:
    found: dict[str, Standing] = {}
    ahead: dict[str, int] = {}
    in_all = 0
    for key in waiting:
        job = key[2]
        if job in state.after:
            found[job] = Standing(key)
            continue
        queue = state.demands[job].queue
        here = ahead.get(queue, 0)
        found[job] = Standing(key, here, in_all)
        ahead[queue], in_all = here + 1, in_all + 1
    return found


def _parted(state: Admission, waiting: tuple[OrderKey, ...]) -> Iterator[Line]:
    parted: dict[tuple[str, tuple[str, ...], bool], list[tuple[OrderKey, Amount]]] = {}
    for key in waiting:
        demand = state.demands[key[2]]
        if demand.job in state.after:
            continue
        lacking = lacking_of(demand)
        fields = tuple(field for field in FIELDS if getattr(lacking, field))
        is_bounded = bool(demand.ends_ms or demand.runs_for_ms)
        parted.setdefault((demand.queue, fields, is_bounded), []).append((key, lacking))
    for (queue, fields, is_bounded), found in parted.items():
        least = Amount(*(min(getattr(one, field) for _, one in found) for field in FIELDS))
        yield Line(queue, fields, least, is_bounded, tuple(key for key, _ in found))


def in_turn(lines: tuple[Line, ...], round_: Round, demands: Demands) -> Iterator[Demand]:
    """Yield the demands in order, without those of lines that have become hopeless."""
    heap = [(line.keys[0], number, 0) for number, line in enumerate(lines)]
    heapq.heapify(heap)
    while heap:
        key, number, place = heap[0]
        line = lines[number]
        if round_.is_hopeless(line):
            heapq.heappop(heap)
            continue
        if place + 1 < len(line.keys):
            heapq.heapreplace(heap, (line.keys[place + 1], number, place + 1))
        else:
            heapq.heappop(heap)
        yield demands[key[2]]
