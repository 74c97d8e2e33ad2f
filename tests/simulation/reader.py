"""How a trainer reads its streams: the daemon's own reader state, over files without bytes."""

from collections import deque
from collections.abc import Sequence

from msgspec.structs import replace

from primusd.datafeed.protocol import BadRange, FeedReport, Held, Mark
from primusd.datafeed.reader.holding import Holding
from primusd.datafeed.reader.state import ReaderState
from primusd.executor.protocol import FeedPlan, Orders
from tests.simulation.files import bad_range, is_poison, is_text, rows_between
from tests.simulation.schedule import Schedule

PIECE = 400
"""Positions that a trainer takes at once."""
PAUSE_MS = 400
READINGS_PER_STEP = 3
MARKS_KEPT = 4


class Feeds:
    """All streams of one trainer.

    Attributes:
        pause_ms: Between two readings.
        is_poisoned: The trainer read what kills it.
    """

    def __init__(self, plans: Sequence[FeedPlan], schedule: Schedule) -> None:
        self.pause_ms = PAUSE_MS
        self.is_poisoned = False
        self._schedule = schedule
        self._states = {one.stream: ReaderState(one.stream, memory_bytes=1 << 20) for one in plans}
        self._sent_at: dict[int, float] = {}
        self._taken = dict.fromkeys(self._states, 0)
        self._readings = self._step = self._marked_at = 0
        self._marks: dict[str, deque[Mark]] = {}
        for state in self._states.values():
            state.is_open = True

    @property
    def is_urgent(self) -> bool:
        """Whether something is worth a report at once."""
        return any(one.is_urgent for one in self._states.values())

    @property
    def is_over(self) -> bool:
        """Whether the daemon said of every stream that it is at its end."""
        return all(one.state == "end" and one.is_drained for one in self._states.values())

    def _now(self) -> float:
        return self._schedule.now_ms / 1000

    def obey(self, orders: Orders) -> None:
        """Take orders over."""
        sent_at = self._sent_at.get(orders.report, -1.0)
        for one in orders.feeds:
            if one.stream in self._states:
                self._states[one.stream].obey(one, sent_at=sent_at, ttl_s=orders.ttl_ms / 1000)

    def reports(self, seq: int) -> tuple[FeedReport, ...]:
        """Return all that is so with every stream."""
        self._sent_at[seq] = self._now()
        now = self._now()
        return tuple(
            replace(one.report(buffered_bytes=0, now=now), marks=tuple(self._marks.get(name, ())))
            for name, one in self._states.items()
        )

    def give_back_all(self) -> tuple[Held, ...]:
        """Return the last positions: the trainer takes nothing more."""
        return tuple(held for one in self._states.values() for held in one.give_back_all())

    @property
    def step(self) -> int:
        """The newest step that the trainer marked; 0 before the first."""
        return self._step

    def _mark(self) -> None:
        """Let the trainer mark a step, as those do that read exactly once: without rows is none."""
        taken = sum(self._taken.values())
        if taken == self._marked_at:
            return
        self._marked_at = taken
        self._step += 1
        for name, state in self._states.items():
            positions = tuple(one.held(name) for one in state._holdings.values())
            self._marks.setdefault(name, deque(maxlen=MARKS_KEPT)).append(
                Mark(self._step, positions)
            )

    def read(self) -> None:
        """Let the trainer take the next piece of every stream."""
        self._readings += 1
        if self._readings % READINGS_PER_STEP == 0:
            self._mark()
        for name, state in self._states.items():
            holding = state.next_to_read()
            if holding is not None:
                self._read_piece(name, state, holding)
            state.note_waiting(is_waiting=state.next_to_read() is None, now=self._now())
            state.note_want(0)

    def _read_piece(self, name: str, state: ReaderState, holding: Holding) -> None:
        lease = holding.lease
        if not is_text(holding.unit):
            size = holding.unit.byte_count
            state.opened(lease.unit, cuts=(size,), row_count=size)
        if holding.is_read or not state.may_deliver(lease.token, self._now()):
            return
        lo, hi = holding.read, min(holding.hi, holding.read + PIECE)
        if is_poison(holding.unit, lo, hi):
            self.is_poisoned = True
            return
        bad = bad_range(holding.unit, lo, hi)
        if bad is not None:
            kind, lo, hi = bad
            held = holding.held(name)
            state.was_bad(BadRange(held, lo, hi, kind, "damaged", b""))
            if kind == "transient":
                return
        state.was_read(lease.token, hi)
        rows = 0 if bad is not None else rows_between(holding.unit, lo, hi)
        state.deliver(
            lease.token,
            lo=lo,
            hi=hi,
            size=rows,
            row_count=rows,
            locate=lambda count: lo + count,
            now=self._now(),
        )
        self._taken[name] += rows
        state.take(self._taken[name], now=self._now())
