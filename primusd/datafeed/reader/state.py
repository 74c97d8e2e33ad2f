"""What one reader knows of one stream: leases, positions, what it may deliver. Pure.

Of each lease `lo <= acked <= taken <= delivered <= hi`: *delivered* was handed to the trainer,
*taken* is what it is known to have taken, *acked* what the daemon wrote down. Reports say taken
and never more. A lease leaves the table when orders no longer list it, and only then: done ones
(`taken == hi`) and returned ones are repeated until the daemon has heard of them.

Time is seconds of the caller's clock, which only grows.
"""

import math
from collections.abc import Callable

from msgspec import Struct

from primusd.datafeed.protocol import (
    BadRange,
    Credential,
    FeedAsk,
    FeedOrders,
    FeedReport,
    Held,
    Lease,
    Steps,
    Unit,
    UnitMap,
)
from primusd.datafeed.reader.holding import NEVER, Holding, Rate
from primusd.datafeed.reader.in_flight import InFlight
from primusd.datafeed.reader.pledges import Pledges
from primusd.datafeed.reader.steps import StepCount

# Of the lease time: clocks that drift, and the way of a report (docs/protocol.md §6).
MARGIN = 0.1
IDLE_S = 60.0
# One that is handed over and one behind it, so that the next begins without a round trip.
LEASES_MIN = 2
LEASES_MAX = 128
# Small files end faster than a report is answered: ask for what is used in two beats.
LEASES_AHEAD_S = 2.0
OWN_WINDOW_S = 10
TROUBLE_CHARS_MAX = 300


class _Said(Struct):
    """Something a report says until an answer covers it."""

    value: BadRange | UnitMap
    first_said: float | None = None


class ReaderState:
    """One stream at one reader.

    Attributes:
        flights: What was delivered and is not taken.
        pledges: What the trainer marked and asked for.
        state: The daemon's last word: `serve`, `wait`, `paused` or `end`.
        keeps_read: What was read is not cut any more, as if it were delivered.
        is_open: The trainer asked for the stream and did not end.
        is_stopping: Nothing new is handed out.
        is_urgent: Something happened that is worth a report at once.
        trouble: Why reading does not go on for now, though it is tried again; "" it does.
        window_rows_min: A window that is smaller would stop a trainer within a batch.
        leases_min: Leases to have at hand, whatever the rate.
        tracks: Sources, or lanes, from which the daemon has more.
        lanes: That this reader serves; 0 the order is not strict.
        rows_taken: By the trainer, in all.
        bytes_read: That rows took of memory, in all.
        steps: Batches, where trainers step together; else None.
        seen: Highest token that was ever held.
        tell_steps: What reports say of batches.
        least_cut: Where a lease may end that is to be cut; batches that others rely on stay.
    """

    def __init__(self, stream: str, *, memory_bytes: int, keeps_read: bool = False) -> None:
        self.stream = stream
        self.keeps_read = keeps_read
        self.memory_bytes = memory_bytes
        self.state = "wait"
        self.window_rows = 0
        self.is_open = False
        self.is_stopping = False
        self.is_urgent = False
        self.trouble = ""
        self.window_rows_min = 1
        self.leases_min = LEASES_MIN
        self.tracks: tuple[int, ...] = ()
        self.lanes = 0
        self.rows_taken = 0
        self.bytes_read = 0
        self.steps: StepCount | None = None
        self.seen = 0
        self.tell_steps: Callable[[], Steps | None] = lambda: None
        self.least_cut: Callable[[Holding, int], int] = lambda _, wanted: wanted
        self.flights = InFlight()
        self.pledges = Pledges()
        self._holdings: dict[int, Holding] = {}
        self._returned: dict[int, Held] = {}
        self._units: dict[int, Unit] = {}
        self._maps: dict[int, UnitMap] = {}
        self._said: list[_Said] = []
        self._wanted = 0
        self._asked_at: float | None = None
        self._is_refused = False
        self._is_idle = False
        self._moved_at = NEVER
        self._waiting_since: float | None = None
        self._waited_s = 0.0
        self._blocked_s = 0.0
        self._rate = Rate()

    # Orders.

    def obey(self, orders: FeedOrders, *, sent_at: float, ttl_s: float) -> None:
        """Take new orders over; what they do not list is revoked.

        Args:
            orders: Complete, and newer than the last.
            sent_at: When the report that they answer was sent.
            ttl_s: Of the leases.
        """
        if self.steps is not None:
            self.steps.obey(orders.steps, self.flights.delivered)
        listed = {lease.token for lease in orders.leases}
        self._returned = {t: held for t, held in self._returned.items() if t in listed}
        self._holdings = {t: one for t, one in self._holdings.items() if t in listed}
        self._said = [
            said for said in self._said if said.first_said is None or said.first_said >= sent_at
        ]
        for lease in orders.leases:
            if lease.body is not None:
                self._units[lease.unit] = lease.body
            if lease.token not in self._returned:
                self._renew(lease, deadline=sent_at + ttl_s * (1 - MARGIN))
        self.pledges.obey(orders)
        self.state = orders.state
        self.window_rows = orders.window_rows
        self.tracks = orders.tracks
        self.lanes = orders.lanes
        if orders.lanes:
            # One that is read, and the next one of each.
            self.leases_min = 2 * orders.lanes
        self._is_refused = self._asked_at is not None and sent_at >= self._asked_at
        if self.next_to_read() is not None:
            self._is_refused = False
            self._asked_at = None

    def _renew(self, lease: Lease, *, deadline: float) -> None:
        holding = self._holdings.get(lease.token)
        if holding is None:
            unit = self._units.get(lease.unit)
            if unit is None:
                # Not reported as held, so the next orders bring its body.
                return
            holding = self._holdings[lease.token] = Holding(lease, unit)
            self.seen = max(self.seen, lease.token)
            self._end_with_unit(holding)
            if self.is_stopping or not self.is_open:
                # It crossed the word that nobody takes any more.
                self._give_back(holding)
                return
        holding.deadline = max(holding.deadline, deadline)
        holding.acked = max(holding.acked, min(lease.position, holding.hi))
        if holding.is_stuck and not self._says_bad(lease.token):
            # It was heard and the lease stays: what did not answer is written off.
            holding.is_stuck = False
            holding.left_out_to = holding.hi
        end = lease.hi if lease.trim < 0 else min(lease.hi, lease.trim)
        wanted = max(end, holding.read if self.keeps_read else holding.delivered)
        if self.steps is not None and lease.trim >= 0 and lease.trim < holding.hi:
            wanted = self.least_cut(holding, wanted)
            self.steps.kept = lease.token if wanted >= holding.hi else 0
            self.is_urgent = True
        self._cut(holding, wanted)

    def _says_bad(self, token: int) -> bool:
        return any(
            isinstance(said.value, BadRange) and said.value.held.token == token
            for said in self._said
        )

    def _cut(self, holding: Holding, hi: int) -> None:
        """End a lease earlier, at or above what was delivered: that is consent."""
        if hi < holding.hi:
            holding.hi = hi
            self.is_urgent = True

    # Reading.

    def next_to_read(self) -> Holding | None:
        """Return the lease to read on: in order of epoch, unit and place."""
        return min(self.unread(), key=lambda one: one.turn, default=None)

    def unread(self) -> list[Holding]:
        """Return the leases that are to be read on."""
        return [one for one in self._holdings.values() if not one.is_read]

    def held(self) -> list[Holding]:
        """Return the leases that are not done."""
        return [one for one in self._holdings.values() if not one.is_done]

    def holding(self, token: int) -> Holding | None:
        """Return a lease that is still held."""
        return self._holdings.get(token)

    def opened(self, unit: int, *, cuts: tuple[int, ...], row_count: int) -> None:
        """Note what opening a unit told; without cuts its size was known from its listing."""
        if not cuts or unit in self._maps:
            return
        self._maps[unit] = UnitMap(unit, cuts, row_count)
        for holding in self._holdings.values():
            if holding.lease.unit == unit:
                self._end_with_unit(holding)

    def _end_with_unit(self, holding: Holding) -> None:
        """End a lease that was granted before anybody knew where its unit ends."""
        found = self._maps.get(holding.lease.unit)
        if found is not None and holding.hi > found.cuts[-1]:
            if not any(said.value is found for said in self._said):
                self._said.append(_Said(found))
            self._cut(holding, max(found.cuts[-1], holding.lo))

    def was_read(self, token: int, to: int) -> None:
        """Note how far a lease was read into memory."""
        holding = self._holdings.get(token)
        if holding is not None:
            holding.read = max(holding.read, to)
            self.note_trouble("")

    def note_trouble(self, text: str) -> None:
        """Note why reading does not go on for now; "" it does."""
        if bool(text) != bool(self.trouble):
            self.is_urgent = True
        self.trouble = text

    def was_bad(self, bad: BadRange) -> None:
        """Note a range that cannot be read; after a transient fault its lease rests there."""
        holding = self._holdings.get(bad.held.token)
        if holding is not None:
            holding.is_stuck = bad.kind in ("transient", "expired")
            self._said.append(_Said(bad))
            self.is_urgent = True

    def leave_out(self, kind: str, text: str) -> None:
        """Leave out all of what is held that the trainer did not take."""
        for holding in self.held():
            held = holding.held(self.stream)
            end = holding.hi
            self.was_bad(BadRange(held, holding.taken, end, kind, text))
            holding.read = holding.delivered = holding.taken = end
        self.flights.pass_over()

    # Delivering.

    def may_deliver(self, token: int, now: float) -> bool | None:
        """Return whether a lease's rows may be handed over now; None: never again."""
        holding = self._holdings.get(token)
        if holding is None:
            return None
        return (
            self.is_open
            and not self.is_stopping
            and not self._is_idle
            and self.state != "paused"
            and now < holding.deadline
            and self._has_room()
        )

    def _has_room(self) -> bool:
        # Before the daemon heard of a rate the reader goes by its own.
        window = self.window_rows or self._rate.rows_per_second * OWN_WINDOW_S
        return not window or self.unacknowledged_rows < max(window, self.window_rows_min)

    @property
    def unacknowledged_rows(self) -> int:
        """Rows taken that no answer has covered yet."""
        return sum(one.unacknowledged_rows for one in self._holdings.values())

    def deliver(
        self,
        token: int,
        *,
        lo: int,
        hi: int,
        size: int,
        row_count: int,
        locate: Callable[[int], int],
        now: float,
        left_out: Callable[[int], int] | None = None,
    ) -> None:
        """Note that rows are handed over from here on; call it before the first byte goes."""
        holding = self._holdings[token]
        was_delivered = holding.is_delivered
        holding.delivered = max(holding.delivered, hi)
        self._rate.leases += holding.is_delivered and not was_delivered
        holding.rows_delivered += row_count
        if not len(self.flights):
            self._moved_at = now
        self.flights.deliver(
            token=token,
            lo=lo,
            hi=hi,
            size=size,
            row_count=row_count,
            locate=locate,
            left_out=left_out,
        )
        self.take(self.flights.taken, now=now)

    def take(self, count: int, *, now: float) -> None:
        """Note that the trainer took so many rows or bytes in all."""
        before = self.flights.taken
        for moved in self.flights.take(count):
            self._rate.rows += moved.row_count
            self.rows_taken += moved.row_count
            holding = self._holdings.get(moved.token)
            if holding is None:
                continue
            holding.taken = max(holding.taken, min(moved.position, holding.hi))
            holding.left_out += moved.left_out
            if holding.is_done:
                self.is_urgent = True
        if self.flights.taken > before:
            self.note_taking(now)
            if self.window_rows and self.unacknowledged_rows * 2 >= self.window_rows:
                self.is_urgent = True

    def note_taking(self, now: float) -> None:
        """Note that the trainer takes, though how much of it is not known yet."""
        self._moved_at = now
        self._is_idle = False

    # Giving back.

    def give_back_undelivered(self) -> None:
        """Return leases of which nothing was delivered, and end the others where they stand."""
        for holding in list(self._holdings.values()):
            if holding.is_done:
                continue
            if holding.taken >= holding.delivered:
                self._give_back(holding)
            else:
                self._cut(holding, holding.delivered)

    def give_back_all(self) -> tuple[Held, ...]:
        """Return every lease at its position: the trainer takes nothing more."""
        final = [*self._returned.values()]
        for holding in list(self._holdings.values()):
            final.append(holding.held(self.stream))
            if not holding.is_done:
                self._give_back(holding)
        self.flights.clear()
        self.is_open = self._is_idle = False
        return tuple(final)

    def mark(self, step: int) -> None:
        """Note that the trainer is at a step, with all that it has taken."""
        held = [one.held(self.stream) for one in self._holdings.values()]
        self.pledges.mark(step, (*held, *self._returned.values()))
        self.is_urgent = True

    def ask(self, ask: FeedAsk) -> bool:
        """Note what the trainer asks for; return whether there is room for it."""
        self.is_urgent = True
        return self.pledges.ask(ask)

    def recall(self, count: int) -> None:
        """Note that of what was handed over only so much reached the trainer, which is gone."""
        for token, position in self.flights.reached(count).items():
            holding = self._holdings.get(token)
            if holding is not None:
                holding.delivered = max(holding.taken, min(position, holding.delivered))

    def _give_back(self, holding: Holding) -> None:
        self._returned[holding.lease.token] = holding.held(self.stream)
        self._holdings.pop(holding.lease.token, None)
        self.is_urgent = True

    def note_idle(self, now: float) -> None:
        """Give back what a trainer does not take: it may be frozen, and others could."""
        if len(self.flights) and not self._is_idle and now - self._moved_at > IDLE_S:
            self._is_idle = True
            self.give_back_undelivered()

    # Reporting.

    def note_waiting(self, *, is_waiting: bool, now: float) -> None:
        """Note whether the trainer waits for data now."""
        if self._waiting_since is not None:
            self._waited_s += now - self._waiting_since
        self._waiting_since = now if is_waiting else None

    def note_blocked(self, seconds: float) -> None:
        """Note that reading waited for the trainer."""
        self._blocked_s += seconds

    @property
    def is_waited_for(self) -> bool:
        """Whether the trainer waits for data now."""
        return self._waiting_since is not None

    @property
    def is_drained(self) -> bool:
        """Whether nothing is left to read or to take."""
        return not len(self.flights) and all(one.is_done for one in self._holdings.values())

    @property
    def is_delivered(self) -> bool:
        """Whether all that is held was handed over, as far as it can be read."""
        return all(one.is_delivered for one in self._holdings.values())

    @property
    def has_no_more(self) -> bool:
        """Whether the daemon has nothing further for this reader now.

        It says so, or answered a wish with nothing that is unread.
        """
        return self.state != "serve" or self._is_refused

    def want(self, buffered_bytes: int) -> int:
        """Return how many further leases could be started now."""
        is_full = buffered_bytes * 2 > self.memory_bytes
        if not self.is_open or self.is_stopping or self._is_idle or is_full:
            return 0
        if self.state == "end":
            return 0
        # Read and not handed over counts as held: others could use it meanwhile.
        waiting = sum(1 for one in self._holdings.values() if not one.is_delivered)
        ahead = math.ceil(self._rate.leases_per_second * LEASES_AHEAD_S)
        # Where trainers step together the others wait for one that has nothing left to read.
        least = 1 if self.steps is not None and not self.unread() else 0
        return max(least, min(self.leases_min + ahead, LEASES_MAX) - waiting)

    def note_want(self, buffered_bytes: int) -> None:
        """Make a report urgent when further leases could be started and it was not said."""
        if self.want(buffered_bytes) > self._wanted:
            self.is_urgent = True

    def report(
        self, *, buffered_bytes: int, now: float, credentials: tuple[Credential, ...] = ()
    ) -> FeedReport:
        """Return all that is so now; what was said is remembered, and deltas begin anew."""
        self.note_waiting(is_waiting=self._waiting_since is not None, now=now)
        self._rate.advance(now, waited_s=self._waited_s)
        for said in self._said:
            if said.first_said is None:
                said.first_said = now
        self._wanted = self.want(buffered_bytes)
        if self._wanted and self._asked_at is None and self.next_to_read() is None:
            self._asked_at = now
        self.is_urgent = False
        found = FeedReport(
            self.stream,
            held=tuple(one.held(self.stream) for one in self._holdings.values()),
            want=self._wanted,
            returned=tuple(self._returned.values()),
            bad=tuple(s.value for s in self._said if isinstance(s.value, BadRange)),
            mapped=tuple(s.value for s in self._said if isinstance(s.value, UnitMap)),
            marks=self.pledges.marks,
            asks=self.pledges.asks,
            rows_per_s=self._rate.rows_per_second,
            buffered_bytes=buffered_bytes,
            waited_ms=int(self._waited_s * 1000),
            blocked_ms=int(self._blocked_s * 1000),
            trouble=self.trouble[:TROUBLE_CHARS_MAX],
            rows=self.rows_taken,
            bytes_read=self.bytes_read,
            steps=self.tell_steps(),
            credentials=credentials,
        )
        self._waited_s = self._blocked_s = 0.0
        return found
