"""One stream open at one connection: credits, frames, receipts, and when to say that no more comes.

Touch it with the feed's lock held, `encode` excepted.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from primusd.datafeed.delivery.desk import Desk
from primusd.datafeed.formats.base import RowBlock
from primusd.datafeed.reader.holding import Holding
from primusd.datafeed.reader.reader import Block, StreamReader
from primusd.datafeed.reader.steps import StepCount

if TYPE_CHECKING:  # Loaded after the fork only: it starts threads.
    from primusd.datafeed.delivery.columns import Buffer
    from primusd.datafeed.delivery.frames import FrameWriter

# No orders for so long: what the trainer has must do for a batch.
DRY_S = 1.0
# How often to look whether a source that has nothing has something by now.
PATIENT_S = 0.25


class SocketStream:
    """The delivery of one stream to one process.

    Attributes:
        name: As the trainer says it.
        credits: Frames that it has room for.
    """

    def __init__(
        self,
        desk: Desk,
        reader: StreamReader,
        name: str,
        *,
        layout: str,
        batch_rows: int,
        columns: tuple[str, ...],
        stacks: Mapping[str, Sequence[str]],
    ) -> None:
        self.name = name
        self.credits = 0
        self._desk = desk
        self._reader = reader
        self._layout = layout
        self._stacks = stacks
        self._batch_rows = batch_rows
        self._writer: FrameWriter | None = None
        self._carry_rows = 0
        self._epoch = -1
        self._lanes = 0
        self._dry_since: float | None = None
        self._has_ended = False
        self._handed = -1
        self._has_dropped = False
        if reader.state.steps is not None:
            reader.state.steps.open(batch_rows, reader.state.flights.delivered)
        reader.choose(columns)
        reader.turns.batch_rows = batch_rows
        reader.state.window_rows_min = 2 * batch_rows
        reader.state.is_open = True
        reader.state.is_urgent = True

    def commit(self, receipt: int) -> None:
        """Note that the trainer used all rows up to a receipt."""
        self._reader.state.take(receipt, now=self._desk.clock())

    def hand(self, receipt: int) -> None:
        """Note up to where the trainer may have handed rows out by now; it says so before."""
        self._handed = max(self._handed, receipt)

    def recall(self) -> None:
        """Note that the trainer is gone, and used no more than it said that it might."""
        if self._handed >= 0:
            self._reader.state.recall(self._handed)

    def close(self) -> None:
        """Give back what the trainer did not use: it takes no more."""
        self.recall()
        self._reader.state.give_back_all()
        self._reader.drop_buffer()

    @property
    def look_again_s(self) -> float | None:
        """How long the writing thread may wait without being notified; None for ever."""
        if self._reader.turns.is_patient:
            return PATIENT_S
        return DRY_S if self._dry_since is not None else None

    def next_part(self) -> tuple[Holding, RowBlock, int] | None:
        """Return the rows of the next frame, counted as delivered, and its receipt."""
        state, now = self._reader.state, self._desk.clock()
        if self._is_uneven():
            return None
        if state.steps is not None and state.steps.room <= 0:
            self._reader.look_at_steps()
            state.note_waiting(is_waiting=self.credits > 0 and not state.flights, now=now)
            return None
        while self.credits > 0 and (found := self._reader.next_block()) is not None:
            token, block = found
            holding = state.holding(token)
            assert holding is not None
            part = self._part(holding, block)
            self._deliver(holding, part, now)
            if isinstance(part, RowBlock) and part.row_count:
                self.credits -= 1
                self._dry_since = None
                state.note_waiting(is_waiting=False, now=now)
                state.note_want(self._reader.buffered_bytes)
                return holding, part, state.flights.delivered
        state.note_waiting(is_waiting=self.credits > 0 and not state.flights, now=now)
        return None

    def _part(self, holding: Holding, block: Block) -> Block:
        """Return as much of a block as fits a frame; the rest goes back."""
        if not isinstance(block, RowBlock) or not block.row_count:
            return block
        from primusd.datafeed.delivery.frames import frame_rows  # noqa: PLC0415 starts threads

        if holding.lease.epoch != self._epoch:
            self._epoch = holding.lease.epoch
            self._carry_rows = 0
        row_bytes = block.byte_count // block.row_count
        rows = frame_rows(row_bytes, self._batch_rows, self._carry_rows)
        if (steps := self._reader.state.steps) is not None:
            rows = min(rows, steps.room)
        if rows < block.row_count:
            token = holding.lease.token
            self._reader.put_back(token, block.part(rows, block.row_count - rows))
            block = block.part(0, rows)
        self._carry_rows = (self._carry_rows + block.row_count) % self._batch_rows
        return block

    def _deliver(self, holding: Holding, part: Block, now: float) -> None:
        if self._reader.state.steps is not None:
            self._reader.state.steps.deliver(part.row_count)
        locate = part.positions.after if isinstance(part, RowBlock) else part.locate
        self._reader.state.deliver(
            holding.lease.token,
            lo=part.lo,
            hi=part.hi,
            size=part.row_count,
            row_count=part.row_count,
            locate=locate,
            now=now,
            left_out=part.left_out if isinstance(part, RowBlock) else None,
        )

    def next_word(self) -> dict[str, object] | None:
        """Return what the trainer must hear when no rows are there: nothing for now, or the end.

        Rows that fill no batch wait at the trainer for more; somebody has to say that none come,
        or they are never used, never acknowledged, and the stream never ends.
        """
        state = self._reader.state
        if self._is_uneven() and not self._has_ended:
            self._has_ended = True
            return self._uneven(state.lanes)
        if self._reader.turns.ends_batch:
            # A lane is at its end: its rows are missing in this batch, and in no other.
            self._reader.turns.ends_batch = False
            self._desk.changed.notify_all()
            if self._carry_rows:
                self._carry_rows = 0
                return {"op": "idle", "stream": self.name}
        if state.steps is not None and (word := self._tail_word(state.steps)) is not None:
            return word
        if self._has_ended or not self._reader.has_nothing:
            self._dry_since = None
            return None
        if state.state == "end":
            self._has_ended = True
            return {"op": "end", "stream": self.name}
        if not self._carry_rows or state.steps is not None or (state.lanes and state.tracks):
            return None
        now = self._desk.clock()
        if self._dry_since is None:
            self._dry_since = now
        if not state.has_no_more and now - self._dry_since < DRY_S:
            return None
        self._carry_rows = 0
        self._dry_since = None
        return {"op": "idle", "stream": self.name}

    def _tail_word(self, steps: StepCount) -> dict[str, object] | None:
        """Return how an epoch ends for trainers that step together."""
        if steps.drops_now():
            if not self._has_dropped:
                self._has_dropped = True
                self._carry_rows = 0
                return {"op": "drop", "stream": self.name}
            if steps.used_all(self._reader.state.flights.taken):
                self._has_dropped = False
                self._reader.leave_out_tail()
                self._end_steps(steps)
        elif steps.tail == "pad" and self._reader.has_nothing:
            if count := steps.pads_now():
                steps.pad(count)
                self._carry_rows = 0
                return {"op": "pad", "stream": self.name, "count": count}
            if steps.is_last and not steps.has_ended:
                self._end_steps(steps)
        return None

    def _end_steps(self, steps: StepCount) -> None:
        steps.has_ended = True
        self._reader.state.is_urgent = True
        self._desk.changed.notify_all()

    def _is_uneven(self) -> bool:
        """Return whether the lanes that the reader began with do not divide a batch."""
        self._lanes = self._lanes or self._reader.state.lanes
        return self._lanes > 0 and self._batch_rows % self._lanes > 0

    def _uneven(self, lanes: int) -> dict[str, object]:
        return {
            "op": "error",
            "code": "BatchNotEven",
            "text": f"stream {self.name} is in strict order and this reader has {lanes} of its "
            f"lanes, so batch_rows must be a multiple of {lanes}; it is {self._batch_rows}",
        }

    def encode(self, part: RowBlock, holding: Holding, receipt: int) -> "list[Buffer]":
        """Return the frames of some rows.

        Raises:
            ColumnError: The layout has no form for a column.
        """
        if self._writer is None:
            from primusd.datafeed.delivery.frames import FrameWriter  # noqa: PLC0415 starts threads

            number = list(self._desk.readers.values()).index(self._reader)
            self._writer = FrameWriter(number, self._layout, self._stacks)
        return self._writer.frames(part, holding, receipt)
