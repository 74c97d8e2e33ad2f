"""Reads the leases of one stream ahead of its delivery: in a thread, by blocks, within a budget.

One lock guards everything of a feed; nothing reads, writes or decodes while holding it. Whoever
changes what another waits for notifies it.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from primusd.datafeed.drawing import drawing_of
from primusd.datafeed.formats.base import Measured, PipeBlock, ReadError, RowBlock, UnitFile
from primusd.datafeed.formats.budget import Budget
from primusd.datafeed.formats.lean import load_lean
from primusd.datafeed.formats.opening import Opener
from primusd.datafeed.formats.settings import HERE, Place, settings_of
from primusd.datafeed.protocol import BadRange, Unit
from primusd.datafeed.reader.holding import Holding
from primusd.datafeed.reader.offers import Offers
from primusd.datafeed.reader.shown import ShownCredentials
from primusd.datafeed.reader.state import LEASES_MIN, ReaderState
from primusd.datafeed.reader.steps import StepCount
from primusd.datafeed.reader.turns import Turns, Waiting
from primusd.datafeed.storage.credentials import WAITED_FOR
from primusd.executor.protocol import FeedPlan
from primusd.job.formats import transform_of

if TYPE_CHECKING:  # Loaded after the fork only: it starts threads.
    from primusd.datafeed.reader.transforming import Transformer

FILES_OPEN_MAX = 4
MEMORY_BYTES = 256 << 20
"""Where the plan names none."""
PIECES_AHEAD_MAX = 4
TRANSIENT_FOR_S = 600.0
UNREACHED_KINDS = frozenset({"transient", *WAITED_FOR})
"""Nothing is known to be wrong with the rows."""
RETRY_MIN_S = 0.1
RETRY_MAX_S = 5.0
ANOTHER = -1
"""A lease that is not there yet."""


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
        shown: The credentials of its storages.
    """

    def __init__(
        self,
        plan: FeedPlan,
        changed: threading.Condition,
        clock: Callable[[], float],
        place: Place = HERE,
    ) -> None:
        self.plan = plan
        self.is_piped = plan.delivery in ("stdin", "fifo")
        self._memory_bytes = plan.memory_bytes or MEMORY_BYTES
        self.state = ReaderState(
            plan.stream, memory_bytes=self._memory_bytes // 2, keeps_read=self.is_piped
        )
        self._reading: Holding | None = None
        self._changed = changed
        self._clock = clock
        self._place = place
        self.shown = ShownCredentials()
        self._columns: tuple[str, ...] = ()
        self._files: OrderedDict[tuple[int, int], UnitFile] = OrderedDict()
        self._opener: Opener | None = None
        self._drawing = drawing_of(plan.format)
        if self._drawing.mixing in ("roundRobin", "weighted"):
            # Of each source one that is read, and the next one.
            self.state.leases_min = max(LEASES_MIN, 2 * len(self._drawing.weights))
        self._budget = Budget(self._memory_bytes, self._drawing.shares, self._wait_for_rows)
        self._transform = transform_of(plan.format)
        self._transformer: Transformer | None = None
        self.turns: Turns[Block] = Turns(self._drawing)
        self.offers = self._offers(plan.format.get("tail", ""))
        self._taken: Waiting[Block] | None = None
        self._going: dict[int, Iterator[RowBlock | PipeBlock]] = {}
        self._blocks_per_lease = 1
        self._is_reading = False
        self._is_closed = False
        self._chosen_columns: tuple[str, ...] = ()
        self._has_chosen = False

    def _offers(self, tail: str) -> Offers | None:
        """Return what looks at rows as batches, where trainers step together."""
        if not tail:
            return None
        steps = self.state.steps = StepCount(tail)
        offers = Offers(steps, self.state, self.turns)
        self.state.tell_steps, self.state.least_cut = offers.told, offers.least_cut
        return offers

    # For the delivery, with the lock held.

    def leave_out_tail(self) -> None:
        """Leave out what lies behind the last batch that all trainers have."""
        self.turns.clear()
        self.state.leave_out("tail", "behind the last batch that every trainer has (tail: drop)")
        self._changed.notify_all()

    def look_at_steps(self) -> None:
        """Report soon where others may wait for it, with the lock held."""
        if self.offers is not None:
            self.offers.look()

    def choose(self, columns: tuple[str, ...]) -> None:
        """Read these columns only, from the next lease on; empty: those of the plan."""
        self._chosen_columns = columns
        self._has_chosen = True

    @property
    def buffered_bytes(self) -> int:
        """Bytes that were read and not handed over."""
        return self.turns.byte_count

    @property
    def has_nothing(self) -> bool:
        """Whether all that is held was handed over."""
        return not self.turns and not self._is_reading and self.state.is_delivered

    def next_block(self) -> tuple[int, Block] | None:
        """Return the next block that may be handed over now, with the token of its lease."""
        now = self._clock()
        self.turns.lane_count = self.state.lanes
        while (waiting := self.turns.head(self._expected(), now)) is not None:
            may = self.state.may_deliver(waiting.token, now)
            if may is False:
                return None
            self._changed.notify_all()
            holding = self.state.holding(waiting.token)
            if holding is None or waiting.block.lo >= holding.hi:
                self.turns.take(waiting, 0)
                continue
            self._taken = waiting
            return waiting.token, self._its_turn(waiting, _clipped(waiting.block, holding.hi))
        return None

    def _its_turn(self, waiting: Waiting[Block], block: Block) -> Block:
        """Return as much of a block as its queue may give now, taken; the rest stays."""
        most = self.turns.rows_max(waiting.queue)
        if not most or not isinstance(block, RowBlock) or block.row_count <= most:
            self.turns.take(waiting, block.row_count)
            return block
        self.turns.take(waiting, most)
        self.turns.put_in_front(waiting, block.part(most, block.row_count - most))
        return block.part(0, most)

    def _expected(self) -> set[int]:
        """Return the sources or lanes from which more will come soon."""
        unread = self.state.unread()
        if self._drawing.mixing == "inOrder":
            if self._drawing.shuffle is None:
                return set()
            coming = {one.lease.token for one in unread if self._may_begin(one)}
            return coming if self.state.has_no_more else coming | {ANOTHER}
        epoch = min((one.lease.epoch for one in unread), default=0)
        soon = {one.lease.track for one in unread if one.lease.epoch == epoch}
        return soon | set(self.state.tracks)

    def put_back(self, token: int, block: RowBlock) -> None:
        """Put what is left of the block that was just taken in front of the others."""
        assert self._taken is not None
        assert self._taken.token == token
        self.turns.put_back(self._taken, block)

    def drop_buffer(self) -> None:
        """Forget what was read: nobody takes it."""
        self.turns.clear()
        self._changed.notify_all()

    def close(self) -> None:
        """End the reading thread."""
        self._is_closed = True
        self._close_files()
        self._changed.notify_all()

    def _close_files(self) -> None:
        """End what reads in other processes."""
        for one in (self._opener, self._transformer):
            if one is not None:
                one.close()

    # The thread.

    def read(self) -> None:
        """Read leases as they come until closed."""
        if not self.is_piped:
            # While the trainer starts; and a reader never loads code later than it must.
            load_lean(self._memory_bytes)
            from primusd.datafeed.formats import parquet, records  # noqa: F401, PLC0415 starts threads
        while (holding := self._next_holding()) is not None:
            try:
                self._read_lease(holding)
            finally:
                with self._changed:
                    self._is_reading = False
                    self.look_at_steps()
                    self.state.note_want(self.buffered_bytes)
                    self._changed.notify_all()

    def _next_holding(self) -> Holding | None:
        with self._changed:
            while not self._is_closed:
                holding = self._chosen() if self.state.is_open else None
                if holding is not None and self._may_read(holding, 0):
                    self._is_reading = True
                    self._reopen()
                    return holding
                self._changed.wait()
            return None

    def _reopen(self) -> None:
        """Forget what was opened for another choice of columns: only this thread uses it."""
        if not self._has_chosen:
            return
        self._has_chosen = False
        self._columns = self._chosen_columns
        self._files.clear()
        self._close_files()
        self._opener = self._transformer = None

    def _chosen(self) -> Holding | None:
        """Return the lease to read on: in order, or the one whose queue has least."""
        if not self._drawing.has_turns:
            return self.state.next_to_read()
        self._going = {
            token: blocks for token, blocks in self._going.items() if self.state.holding(token)
        }
        unread = self.state.unread()
        epoch = min((one.lease.epoch for one in unread), default=0)
        return min(
            (one for one in unread if one.lease.epoch == epoch and self._may_begin(one)),
            key=self._need,
            default=None,
        )

    def _may_begin(self, holding: Holding) -> bool:
        """Return whether another lease is needed to have as many blocks open as are mixed."""
        shuffle = self._drawing.shuffle
        if shuffle is None or self._drawing.mixing != "inOrder":
            return True
        if holding.lease.token in self._going:
            return True
        return len(self._going) * self._blocks_per_lease < shuffle.blocks

    def _need(self, holding: Holding) -> tuple[int, int, int]:
        """Return what puts the lease whose queue has least before the others."""
        lease = holding.lease
        rows = self.turns.waiting_rows(self.turns.queue_of(lease))
        weights = self._drawing.weights
        weight = weights[lease.track] if lease.track < len(weights) else 1
        return rows // weight, lease.token not in self._going, lease.token

    def _read_lease(self, holding: Holding) -> None:
        failing_since: float | None = None
        delay_s = RETRY_MIN_S
        self._reading = holding
        while self._is_wanted(holding):
            if holding.left_out_to > holding.read:
                self._push(holding, Gap(holding.read, holding.left_out_to))
                continue
            before = holding.read
            try:
                if self._drawing.has_turns:
                    self._read_next(holding)
                    return
                self._read_on(holding)
            except ReadError as error:
                now = self._clock()
                if holding.read > before or failing_since is None:
                    failing_since, delay_s = now, RETRY_MIN_S
                if error.kind in UNREACHED_KINDS and now - failing_since < TRANSIENT_FOR_S:
                    with self._changed:
                        self.state.note_trouble(error.message)
                    self._wait(delay_s)
                    delay_s = min(delay_s * 2, RETRY_MAX_S)
                else:
                    self._note_bad(holding, error)

    def _read_on(self, holding: Holding) -> None:
        try:
            for block in self._begun(holding):
                if not self._push(holding, block):
                    return
                if not self._wait_for_room(holding, block.byte_count):
                    return
        except ReadError:
            self._forget(holding)
            raise
        with self._changed:
            self._note_end(holding)
            self.state.was_read(holding.lease.token, holding.hi)

    def _read_next(self, holding: Holding) -> None:
        """Read one more block of a lease; it may be another's turn then."""
        token = holding.lease.token
        blocks = self._going.pop(token, None)
        try:
            if blocks is None:
                blocks = self._begun(holding)
            block = next(blocks, None)
        except ReadError:
            self._forget(holding)
            raise
        with self._changed:
            if block is None:
                self._note_end(holding)
                self.state.was_read(token, holding.hi)
            elif self._push(holding, block):
                self._going[token] = blocks

    def _begun(self, holding: Holding) -> Iterator[RowBlock | PipeBlock]:
        """Return the blocks of a lease from where it was read to."""
        number = holding.lease.unit
        opened = self._open(holding.lease.epoch, number, holding.unit)
        with self._changed:
            self.state.opened(number, cuts=opened.cuts, row_count=opened.row_count)
        return self._blocks(opened, holding.read, holding.hi)

    def _forget(self, holding: Holding) -> None:
        """Close a unit that could not be read on."""
        self._files.pop((self._epoch_of(holding.lease.epoch), holding.lease.unit), None)

    def _epoch_of(self, epoch: int) -> int:
        """Return what tells an opened unit in one epoch from the same one in another."""
        is_told = self._drawing.changes_units or self._transform is not None
        return epoch if is_told else 0

    def _blocks(self, opened: UnitFile, lo: int, hi: int) -> Iterator[RowBlock | PipeBlock]:
        if self.is_piped:
            yield from opened.pieces(lo, hi, framing=self.plan.framing)
            return
        yield from opened.rows(lo, hi, block_bytes=self._budget.block_bytes)

    def _open(self, epoch: int, number: int, unit: Unit) -> UnitFile:
        key = (self._epoch_of(epoch), number)
        if key not in self._files:
            file = self._opened(unit)
            if self._drawing.changes_units or "slice" in unit.options:
                from primusd.datafeed.reader.drawn import drawn  # noqa: PLC0415 starts threads

                if isinstance(file, Measured):
                    file.measure()
                file, blocks = drawn(file, unit, epoch, self._drawing)
                self._note_blocks(blocks)
            self._files[key] = self._transformed(file, unit, epoch)
            if len(self._files) > FILES_OPEN_MAX:
                self._files.popitem(last=False)
        self._files.move_to_end(key)
        return self._files[key]

    def _opened(self, unit: Unit) -> UnitFile:
        self.shown.used(unit)
        if self._opener is None:
            settings = settings_of(
                self.plan.format, memory_bytes=self._memory_bytes, place=self._place
            )
            if self._columns and self._transform is None:
                settings = replace(settings, columns=self._columns)
            self._opener = Opener(settings, is_lean=True, budget=self._budget)
        return self._opener.open(unit)

    def _transformed(self, file: UnitFile, unit: Unit, epoch: int) -> UnitFile:
        """Return an opened unit whose rows go through the function of the user's, if any."""
        if self._transform is None:
            return file
        if self._transformer is None:
            from primusd.datafeed.reader.transforming import Transformer  # noqa: PLC0415 starts threads

            self._transformer = Transformer(
                self._transform,
                self.plan.stream,
                self._place,
                memory_bytes=self._memory_bytes,
                columns=self._columns,
            )
        return self._transformer.unit(file, unit, epoch)

    def _note_end(self, holding: Holding) -> None:
        """Tell where a unit ends that had to be read for that; with the lock held."""
        file = self._files.get((self._epoch_of(holding.lease.epoch), holding.lease.unit))
        if file is not None:
            self.state.opened(holding.lease.unit, cuts=file.cuts, row_count=file.row_count)

    def _note_blocks(self, count: int) -> None:
        """Ask for as many leases as have the blocks that are to be mixed."""
        shuffle = self._drawing.shuffle
        if shuffle is None or self._drawing.mixing != "inOrder":
            return
        self._blocks_per_lease = count
        self.turns.leases_mixed = -(-shuffle.blocks // count)
        self.state.leases_min = 1 + self.turns.leases_mixed

    def _push(self, holding: Holding, block: Block) -> bool:
        """Put a block behind the others; return whether more of the lease is wanted."""
        with self._changed:
            if not self._is_wanted(holding):
                return False
            if self.is_piped and block.hi > holding.hi:
                # It was cut short since; read again up to there.
                return False
            self.turns.add(holding.lease, block)
            self.state.bytes_read += block.byte_count
            self.state.was_read(holding.lease.token, block.hi)
            self.look_at_steps()
            self._changed.notify_all()
            return not holding.is_read

    def _note_bad(self, holding: Holding, error: ReadError) -> None:
        with self._changed:
            if not self._is_wanted(holding):
                return
            lo = max(holding.read, error.lo)
            hi = max(min(error.hi, holding.hi) if error.hi >= 0 else holding.hi, lo)
            if error.kind in UNREACHED_KINDS:
                lo, hi = holding.read, holding.hi
            kind = "expired" if error.kind in WAITED_FOR else error.kind
            held = holding.held(self.plan.stream)
            self.state.was_bad(BadRange(held, lo, hi, kind, error.message, error.head))
        if error.kind not in UNREACHED_KINDS:
            self._push(holding, Gap(holding.read, hi))

    def _is_wanted(self, holding: Holding) -> bool:
        held = self.state.holding(holding.lease.token)
        return held is holding and not holding.is_read and not self._is_closed

    # Waiting.

    def _has_room(self, holding: Holding, byte_count: int) -> bool:
        queue = self.turns.queue_of(holding.lease)
        if not self.turns.has(queue):
            # Whoever waits for this one takes nothing of the others meanwhile.
            return True
        if len(self.turns) >= PIECES_AHEAD_MAX and self.is_piped:
            return False
        return self.buffered_bytes + byte_count <= self._budget.rows_max

    def _may_read(self, holding: Holding, byte_count: int) -> bool:
        """Return whether there is room, and note it where others may wait for these rows."""
        found = self._has_room(holding, byte_count)
        if self.offers is not None:
            self.offers.note_room(has_room=found)
        return found

    def _wait_for_room(self, holding: Holding, byte_count: int) -> bool:
        """Wait until another block fits; return whether the lease is still wanted then."""
        with self._changed:
            began = self._clock()
            while self._is_wanted(holding) and not self._may_read(holding, byte_count):
                self._changed.wait()
            self.state.note_blocked(self._clock() - began)
            return self._is_wanted(holding)

    def _wait_for_rows(self) -> None:
        """Wait until the rows that were read leave the room that reading on takes."""
        if self._reading:
            self._wait_for_room(self._reading, 0)

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
