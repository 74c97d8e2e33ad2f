"""Which room each replica of a gang gets: whole, or not at all.

The most constrained roles choose first, each time the least busy room that fits. Where that order
leads nowhere, roles that keep apart from others fill one room after the other; and in small cases
all choices are tried, up to a bound.
"""

import heapq
from collections.abc import Iterator, Sequence

from msgspec import Struct

from primusd.admission.events import RoleDemand
from primusd.admission.placement import Rule
from primusd.admission.rooms import Room

REPLICAS_SEARCHED_MAX = 64
ROOMS_SEARCHED_MAX = 32
STEPS_MAX = 2_000
"""Of one search, some 5 ms."""

Seats = dict[tuple[str, int], tuple[str, int]]
"""(role, index) to node and first port."""


class Party(Struct, frozen=True):
    """Replicas of one role that want a place."""

    want: RoleDemand
    rule: Rule
    indices: tuple[int, ...]


class _Seat(Struct, frozen=True):
    room: Room
    port: int
    undo: int
    """What makes the room's ports free again."""


def seat(parties: Sequence[Party], rooms: Sequence[Room], *, squeezes_cpu: bool) -> Seats | None:
    """Return node and first port of every replica, None when they do not all find one.

    Args:
        parties: One per role.
        rooms: That take new replicas; they are changed.
        squeezes_cpu: More processor may be taken than there is.
    """
    if not parties:
        return {}
    seating = _Seating(parties, rooms, squeezes_cpu=squeezes_cpu)
    keeps_apart = any(one.rule.apart for one in parties)
    is_done = (
        seating.greedily(packs=False)
        or (keeps_apart and seating.greedily(packs=True))
        or seating.by_search()
    )
    return seating.seats() if is_done else None


class _Seating:
    """Rooms, parties, and who sits where so far."""

    def __init__(
        self, parties: Sequence[Party], rooms: Sequence[Room], *, squeezes_cpu: bool
    ) -> None:
        self._rooms = rooms
        self._squeezes_cpu = squeezes_cpu
        self._asked = {one.want.role for one in parties}
        present = {role for room in rooms for role, count in room.own.items() if count}
        self._present = present | self._asked
        """Roles of which a replica is in a room, or will be."""
        self._chosen: dict[tuple[str, int], _Seat] = {}
        self._parties: list[tuple[Party, frozenset[str]]] = []
        """In the order of choosing, with the roles that must be in a room already."""
        seated: set[str] = set()
        for party in self._in_order(parties):
            waiting = self._asked - seated
            near = (self._present - waiting) & party.rule.near.keys()
            self._parties.append((party, frozenset(near)))
            seated.add(party.want.role)
        self._steps = 0

    def seats(self) -> Seats:
        """Return where everybody sits."""
        return {key: (one.room.name, one.port) for key, one in self._chosen.items()}

    def _in_order(self, parties: Sequence[Party]) -> Iterator[Party]:
        """Yield first who is near to nobody that is left; of those the one with least choice."""
        left = list(parties) if len(parties) == 1 else sorted(parties, key=self._choice)
        while left:
            names = {one.want.role for one in left}
            free = (one for one in left if not names & one.rule.near.keys())
            first = next(free, left[0])
            left.remove(first)
            yield first

    def _choice(self, party: Party) -> tuple[bool, int, float]:
        """Return how much choice a role has; the smaller, the earlier it chooses."""
        rule = party.rule
        is_bound = bool(rule.per_node or rule.apart or rule.is_on_one_node)
        rooms = sum(self._has_place(room, party, frozenset()) for room in self._rooms)
        return not is_bound, rooms, -max((one.share(party.want) for one in self._rooms), default=0)

    def _has_place(self, room: Room, party: Party, near: frozenset[str]) -> bool:
        return room.takes(party.want.role, party.rule, near) and room.fits(
            party.want, squeezes_cpu=self._squeezes_cpu
        )

    def _sit(self, party: Party, index: int, room: Room) -> None:
        port, undo = room.take(party.want)
        self._chosen[party.want.role, index] = _Seat(room, port, undo)

    def _stand(self, party: Party, index: int) -> None:
        """Undo a seat; the last taken goes first."""
        one = self._chosen.pop((party.want.role, index))
        one.room.give_back(party.want, one.undo)

    def _undo(self) -> None:
        wants = {party.want.role: party for party, _ in self._parties}
        for role, index in reversed(tuple(self._chosen)):
            self._stand(wants[role], index)

    def _holds(self) -> bool:
        """Return whether everybody sits near to whom it should."""
        rules = {party.want.role: party.rule for party, _ in self._parties}
        return all(
            one.room.own.get(other)
            for (role, _), one in self._chosen.items()
            for other in rules[role].near
            if other in self._present
        )

    def greedily(self, *, packs: bool) -> bool:
        """Seat all, each in the room that is best for it; False when somebody finds none.

        Args:
            packs: Who keeps apart from others fills rooms rather than spreads over them.
        """
        for party, near in self._parties:
            is_seated = None
            if party.rule.is_on_one_node:
                is_seated = self._together(party, near)
            if is_seated is None:
                is_seated = self._spread(party, near, packs=packs and bool(party.rule.apart))
            if not is_seated:
                self._undo()
                return False
        if self._holds():
            return True
        self._undo()
        return False

    def _spread(self, party: Party, near: frozenset[str], *, packs: bool) -> bool:
        role = party.want.role

        def order(room: Room) -> tuple[bool, tuple[float, int, str]]:
            return packs and not room.own.get(role), room.rank()

        heap = [(order(room), room) for room in self._rooms if self._has_place(room, party, near)]
        heapq.heapify(heap)
        for index in party.indices:
            # A room only ever gets fuller, so one that has no place has none for the next either.
            while heap and not self._has_place(heap[0][1], party, near):
                heapq.heappop(heap)
            if not heap:
                return False
            room = heap[0][1]
            self._sit(party, index, room)
            heapq.heapreplace(heap, (order(room), room))
        return True

    def _together(self, party: Party, near: frozenset[str]) -> bool | None:
        """Seat all of a role in one room; None: it stands on several already."""
        role = party.want.role
        there = [room for room in self._rooms if room.own.get(role)]
        if len(there) > 1:
            return None
        for room in there or sorted(self._rooms, key=Room.rank):
            done: list[int] = []
            for index in party.indices:
                if not self._has_place(room, party, near):
                    break
                self._sit(party, index, room)
                done.append(index)
            if len(done) == len(party.indices):
                return True
            for index in reversed(done):
                self._stand(party, index)
        return False

    def by_search(self) -> bool:
        """Seat all by trying every choice; False when there is no way, or too many to try."""
        wishes = [(party, near, index) for party, near in self._parties for index in party.indices]
        is_small = len(wishes) <= REPLICAS_SEARCHED_MAX and len(self._rooms) <= ROOMS_SEARCHED_MAX
        could_be = len(self._rooms) > 1 and all(
            any(self._has_place(room, party, frozenset()) for room in self._rooms)
            for party, _ in self._parties
        )
        if not (is_small and could_be):
            return False
        return self._try(wishes, 0, sorted(self._rooms, key=Room.rank), 0)

    def _try(
        self,
        wishes: Sequence[tuple[Party, frozenset[str], int]],
        position: int,
        rooms: Sequence[Room],
        floor: int,
    ) -> bool:
        """Seat the wishes from a position on; replicas of one role only go on through the rooms."""
        if position == len(wishes):
            return self._holds()
        party, near, index = wishes[position]
        is_next = position > 0 and wishes[position - 1][0] is party
        for place in range(floor if is_next else 0, len(rooms)):
            self._steps += 1
            if self._steps > STEPS_MAX:
                return False
            if self._has_place(rooms[place], party, near):
                self._sit(party, index, rooms[place])
                if self._try(wishes, position + 1, rooms, place):
                    return True
                self._stand(party, index)
        return False
