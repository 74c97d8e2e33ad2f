"""Blocks as frames for one trainer: cut to a good size, encoded in the layout it asked for."""

import json
from dataclasses import replace

from primus import wire
from primusd.datafeed.delivery.columns import (
    Buffer,
    ColumnError,
    ColumnPlan,
    describe,
    encode_rows,
    numpy_plan,
)
from primusd.datafeed.delivery.dense import Stacker, Stacks
from primusd.datafeed.formats.base import ReadError, RowBlock
from primusd.datafeed.formats.encoding import framed_rows
from primusd.datafeed.reader.holding import Holding

BYTE_LAYOUTS = ("lines", "raw")
"""Rows as bytes, framed as for a pipe."""
FRAME_BYTES = 2 << 20
FRAME_BYTES_MAX = 4 << 20


class FrameWriter:
    """Encodes the blocks of one stream; the schema goes once, before the first rows."""

    def __init__(self, stream: int, layout: str, stacks: Stacks | None = None) -> None:
        self._stream = stream
        self._layout = layout
        self._is_arrow = layout == "arrow"
        self._is_dense = layout == "dense"
        self._stacks = stacks or {}
        self._stacker: Stacker | None = None
        self._plan: tuple[ColumnPlan, ...] | None = None

    def frames(self, part: RowBlock, holding: Holding, receipt: int) -> list[Buffer]:
        """Return the bytes of the frames that carry some rows, as buffers in their order.

        Raises:
            ColumnError: The layout has no form for a column.
        """
        if self._layout in BYTE_LAYOUTS:
            return self._byte_rows(part, holding, receipt)
        out: list[Buffer] = []
        if self._is_dense:
            if self._stacker is None:
                self._stacker = Stacker(part.batch.schema, self._stacks)
            part = replace(part, batch=self._stacker.stack(part.batch))
        if self._plan is None:
            schema = part.batch.schema
            self._plan = () if self._is_arrow else numpy_plan(schema)
            payload: Buffer = (
                schema.serialize() if self._is_arrow else json.dumps(describe(self._plan)).encode()
            )
            kind = wire.ARROW_SCHEMA if self._is_arrow else wire.NUMPY_SCHEMA
            empty = part.part(0, 0)
            out += [self._header(kind, empty, holding, receipt, len(payload)), payload]
        buffers: list[Buffer]
        if self._is_arrow:
            message = part.batch.serialize()
            kind, buffers, byte_count = wire.ARROW_ROWS, [message], message.size
        else:
            kind = wire.NUMPY_ROWS
            buffers, byte_count = encode_rows(part.batch, self._plan)
        out.append(self._header(kind, part, holding, receipt, byte_count))
        out += buffers
        return out

    def _byte_rows(self, part: RowBlock, holding: Holding, receipt: int) -> list[Buffer]:
        try:
            data, ends = framed_rows(part.batch, self._layout)
        except ReadError as error:
            raise ColumnError(f"layout {self._layout!r}: {error.message}") from error
        places = ends.astype("<i8").tobytes()
        gap = bytes(wire.padding(len(places)))
        byte_count = len(places) + len(gap) + len(data)
        head = self._header(wire.BYTE_ROWS, part, holding, receipt, byte_count)
        return [head, places, gap, data]

    def _header(
        self, kind: int, part: RowBlock, holding: Holding, receipt: int, byte_count: int
    ) -> bytes:
        lease = holding.lease
        return wire.pack_header(
            wire.Header(
                kind,
                self._stream,
                part.row_count,
                lease.unit,
                lease.token,
                part.lo,
                part.hi,
                receipt,
                lease.epoch,
                byte_count,
            )
        )


def frame_rows(row_bytes: int, batch_rows: int, carry_rows: int) -> int:
    """Return how many rows the next frame should have.

    Args:
        row_bytes: Of one row.
        batch_rows: Frames hold whole batches where that is reasonable, so that the trainer
            cuts them without copying.
        carry_rows: Rows at the trainer that do not fill a batch yet.
    """
    row_bytes = max(1, row_bytes)
    rows = max(FRAME_BYTES // row_bytes // batch_rows, 1) * batch_rows - carry_rows
    return max(1, min(rows, FRAME_BYTES_MAX // row_bytes))
