"""Reads the leases of one stream ahead of its delivery: in a thread, by blocks, within a budget.

One lock guards everything of a feed; nothing reads, writes or decodes while holding it. Whoever
changes what another waits for notifies it.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from primusd.datafeed.formats.base import PipeBlock, ReadError, RowBlock, UnitFile, open_unit
from primusd.datafeed.holding import Holding
from primusd.datafeed.protocol import BadRange, Unit
from primusd.datafeed.reader_state import ReaderState
from primusd.executor.protocol import FeedPlan

if TYPE_CHECKING:  # Loaded after the fork only: it starts threads.
    import pyarrow as pa

FILES_OPEN_MAX = 4
BLOCK_BYTES_MAX = 16 << 20
BLOCK_BYTES_MIN = 64 << 10
MEMORY_BYTES = 256 << 20
"""Where the plan names none."""
PIECES_AHEAD_MAX = 4
TRANSIENT_FOR_S = 600.0
RETRY_MIN_S = 0.1
RETRY_MAX_S = 5.0


@dataclass(frozen=True, slots=True)
class Gap:
    """Positions that are passed over: they could not be read."""

    lo: int
    hi: int
    row_count: int = 0
    byte_count: int = 0

    def locate(self, _: int) -> int:
        """Return where it ends: nothing in it can be taken."""
        return self.hi


Block = RowBlock | PipeBlock | Gap


class StreamReader:
    """The reading side of one stream.

    Attributes:
        plan: What was ordered.
        is_piped: It goes to a pipe: pieces of bytes, handed over whole.
        state: Positions and leases; touch it with the lock held only.
    """

    def __init__(
        self, plan: FeedPlan, changed: threading.Condition, clock: Callable[[], float]
    ) -> None:
        self.plan = plan
        self.is_piped = plan.delivery == "stdin"
        self.state = ReaderState(
            plan.stream,
            memory_bytes=plan.memory_bytes or MEMORY_BYTES,
            keeps_read=self.is_piped,
        )
        self._changed = changed
        self._clock = clock
        self._columns: tuple[str, ...] = ()
        self._files: OrderedDict[int, UnitFile] = OrderedDict()
        self._schema: pa.Schema | None = None
        self._buffer: deque[tuple[int, Block, int]] = deque()
        self._buffered_bytes = 0
        self._is_reading = False
        self._is_closed = False
        self.choose(())

    # For the delivery, with the lock held.

    def choose(self, columns: tuple[str, ...]) -> None:
        """Read these columns only; empty: those of the plan."""
        planned = self.plan.format.get("columns", "").split(",")
        self._columns = columns or tuple(filter(None, planned))
        self._files.clear()
        self._schema = None

    @property
    def buffered_bytes(self) -> int:
        """Bytes that were read and not handed over."""
        return self._buffered_bytes

    @property
    def has_nothing(self) -> bool:
        """Whether all that is held was handed over."""
        return not self._buffer and not self._is_reading and self.state.is_delivered

    def next_block(self) -> tuple[int, Block] | None:
        """Return the next block that may be handed over now, with the token of its lease."""
        while self._buffer:
            token, block, byte_count = self._buffer[0]
            may = self.state.may_deliver(token, self._clock())
            if may is False:
                return None
            self._buffer.popleft()
            self._buffered_bytes -= byte_count
            self._changed.notify_all()
            holding = self.state.holding(token)
            if holding is None or block.lo >= holding.hi:
                continue
            return token, _clipped(block, holding.hi)
        return None

    def put_back(self, token: int, block: RowBlock) -> None:
        """Put what is left of a block in front of the others."""
        byte_count = block.byte_count
        self._buffer.appendleft((token, block, byte_count))
        self._buffered_bytes += byte_count

    def drop_buffer(self) -> None:
        """Forget what was read: nobody takes it."""
        self._buffer.clear()
        self._buffered_bytes = 0
        self._changed.notify_all()

    def close(self) -> None:
        """End the reading thread."""
        self._is_closed = True
        self._changed.notify_all()

    # The thread.

    def read(self) -> None:
        """Read leases as they come until closed."""
        if not self.is_piped:
            # While the trainer starts; and a reader never loads code later than it must.
            from primusd.datafeed import columns, frames  # noqa: F401, PLC0415 starts threads
            from primusd.datafeed.formats import lines, parquet  # noqa: F401, PLC0415
        while (holding := self._next_holding()) is not None:
            try:
                self._read_lease(holding)
            finally:
                with self._changed:
                    self._is_reading = False
                    self.state.note_want(self._buffered_bytes)
                    self._changed.notify_all()

    def _next_holding(self) -> Holding | None:
        with self._changed:
            while not self._is_closed:
                holding = self.state.next_to_read() if self.state.is_open else None
                if holding is not None and self._has_room(0):
                    self._is_reading = True
                    return holding
                self._changed.wait()
            return None

    def _read_lease(self, holding: Holding) -> None:
        failing_since: float | None = None
        delay_s = RETRY_MIN_S
        while self._is_wanted(holding):
            if holding.left_out_to > holding.read:
                self._push(holding, Gap(holding.read, holding.left_out_to))
                continue
            before = holding.read
            try:
                self._read_on(holding)
            except ReadError as error:
                now = self._clock()
                if holding.read > before or failing_since is None:
                    failing_since, delay_s = now, RETRY_MIN_S
                if error.kind == "transient" and now - failing_since < TRANSIENT_FOR_S:
                    self._wait(delay_s)
                    delay_s = min(delay_s * 2, RETRY_MAX_S)
                else:
                    self._note_bad(holding, error)

    def _read_on(self, holding: Holding) -> None:
        number = holding.lease.unit
        opened = self._open(number, holding.unit)
        with self._changed:
            self.state.opened(number, cuts=opened.cuts, row_count=opened.row_count)
        last_bytes = 0
        try:
            for block in self._blocks(opened, holding.read, holding.hi):
                if not self._push(holding, block):
                    return
                last_bytes = block.byte_count
                if not self._wait_for_room(holding, last_bytes):
                    return
        except ReadError:
            self._files.pop(number, None)
            raise
        with self._changed:
            self.state.was_read(holding.lease.token, holding.hi)

    def _blocks(self, opened: UnitFile, lo: int, hi: int) -> Iterator[RowBlock | PipeBlock]:
        if self.is_piped:
            yield from opened.pieces(lo, hi, framing=self.plan.framing)
            return
        block_bytes = max(BLOCK_BYTES_MIN, min(self.state.memory_bytes // 8, BLOCK_BYTES_MAX))
        for block in opened.rows(lo, hi, block_bytes=block_bytes):
            yield self._conform(block)

    def _conform(self, block: RowBlock) -> RowBlock:
        """Return the block with the columns, in order and type, of the first one ever read."""
        from primusd.datafeed.columns import conform  # noqa: PLC0415 starts threads

        if self._schema is None:
            self._schema = block.batch.schema.remove_metadata()
        return conform(block, self._schema)

    def _open(self, number: int, unit: Unit) -> UnitFile:
        if number not in self._files:
            self._files[number] = open_unit(unit, self.plan.format.get("format", ""), self._columns)
            if len(self._files) > FILES_OPEN_MAX:
                self._files.popitem(last=False)
        self._files.move_to_end(number)
        return self._files[number]

    def _push(self, holding: Holding, block: Block) -> bool:
        """Put a block behind the others; return whether more of the lease is wanted."""
        byte_count = block.byte_count
        with self._changed:
            if not self._is_wanted(holding):
                return False
            if self.is_piped and block.hi > holding.hi:
                # It was cut short since; read again up to there.
                return False
            self._buffer.append((holding.lease.token, block, byte_count))
            self._buffered_bytes += byte_count
            self.state.was_read(holding.lease.token, block.hi)
            self._changed.notify_all()
            return not holding.is_read

    def _note_bad(self, holding: Holding, error: ReadError) -> None:
        with self._changed:
            if not self._is_wanted(holding):
                return
            lo = max(holding.read, error.lo)
            hi = max(min(error.hi, holding.hi) if error.hi >= 0 else holding.hi, lo)
            if error.kind == "transient":
                lo, hi = holding.read, holding.hi
            held = holding.held(self.plan.stream)
            self.state.was_bad(BadRange(held, lo, hi, error.kind, error.message, error.head))
        if error.kind != "transient":
            self._push(holding, Gap(holding.read, hi))

    def _is_wanted(self, holding: Holding) -> bool:
        held = self.state.holding(holding.lease.token)
        return held is holding and not holding.is_read and not self._is_closed

    # Waiting.

    def _has_room(self, byte_count: int) -> bool:
        if not self._buffer:
            return True
        if len(self._buffer) >= PIECES_AHEAD_MAX and self.is_piped:
            return False
        return self._buffered_bytes + byte_count <= self.state.memory_bytes

    def _wait_for_room(self, holding: Holding, byte_count: int) -> bool:
        """Wait until another block fits; return whether the lease is still wanted then."""
        with self._changed:
            began = self._clock()
            while self._is_wanted(holding) and not self._has_room(byte_count):
                self._changed.wait()
            self.state.note_blocked(self._clock() - began)
            return self._is_wanted(holding)

    def _wait(self, seconds: float) -> None:
        end = self._clock() + seconds
        with self._changed:
            while not self._is_closed and (left := end - self._clock()) > 0:
                self._changed.wait(left)


def _clipped(block: Block, hi: int) -> Block:
    match block:
        case RowBlock():
            return block.up_to(hi)
        case PipeBlock():
            return block
        case Gap():
            return Gap(block.lo, min(block.hi, hi))
