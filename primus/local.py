"""Frames from files that this process reads itself: no daemon, the same rows and types."""

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np

from primus.batches import Frame, NumpyDecoder, Span
from primus.byte_rows import ByteRows
from primus.errors import FeedError
from primus.feed import Wanted

try:
    from primusd.datafeed.delivery.columns import (
        ColumnError,
        ColumnPlan,
        describe,
        encode_rows,
        numpy_plan,
    )
    from primusd.datafeed.delivery.dense import Stacker
    from primusd.datafeed.formats.base import ReadError, RowBlock
    from primusd.datafeed.formats.encoding import framed_rows
    from primusd.datafeed.formats.opening import Opener
    from primusd.datafeed.formats.settings import Settings
    from primusd.datafeed.protocol import Unit
    from primusd.datafeed.sources.files import ListingError, list_sources
    from primusd.job.spec import Source
except ImportError as missing:
    raise FeedError(
        f"reading files in this process needs primusd and pyarrow here: {missing}"
    ) from missing

BLOCK_BYTES = 8 << 20
ROWS = "rows-"
"""What positions in files are called by: how many rows lie before."""


class LocalSource:
    """Files, read in their order, as often as asked."""

    def __init__(
        self,
        paths: tuple[str, ...],
        wanted: Wanted,
        *,
        format_name: str,
        epochs: int,
    ) -> None:
        sources = [Source(path if "://" in path else str(Path(path).absolute())) for path in paths]
        try:
            units = list_sources(sources, format_name)
        except ListingError as error:
            raise FeedError(error.message) from error
        self._columns = wanted.columns
        self._nulls = wanted.nulls
        self._layout = wanted.layout
        self._stacks = wanted.stacks if wanted.layout == "dense" else None
        self._stacker: Stacker | None = None
        self._plan: tuple[ColumnPlan, ...] = ()
        self._decoder: NumpyDecoder | None = None
        self._schema: Any = None  # pyarrow's; the first block's
        self._receipt = 0
        self.stream = ""
        self.is_exactly_once = False
        self._handed = 0
        self._skip_to = 0
        self._frames = self._read(units, epochs)

    def next_frame(self) -> Frame | None:
        """Return the next frame.

        Raises:
            EOFError: All was read.
            FeedError: A file cannot be read.
        """
        try:
            frame = next(self._frames)
            while frame.receipt <= self._skip_to:
                frame = next(self._frames)
            return _behind(frame, self._skip_to)
        except StopIteration:
            raise EOFError from None
        except (ReadError, ColumnError) as error:
            raise FeedError(error.message) from error

    def tail(self) -> int:
        """Return 0: there are no other trainers."""
        return 0

    def commit(self, receipt: int) -> None:
        """Take note of nothing: nobody else reads these rows."""

    def hand(self, receipt: int) -> None:
        """Take note of where rows are handed out to."""
        self._handed = receipt

    def mark(self, step: int) -> None:
        """Take note of nothing: these positions are this process's own."""

    def kept(self, step: int) -> str:
        """Return a name that says how many rows were handed out."""
        del step
        return f"{ROWS}{self._handed}"

    def go_to(self, name: str) -> None:
        """Begin behind so many rows.

        Raises:
            FeedError: The name is none that `kept` returned.
        """
        count = name.removeprefix(ROWS)
        if not (name.startswith(ROWS) and count.isdecimal()):
            raise FeedError(f"{name!r} is no place in files; a stream of a job was meant")
        self._skip_to = self._handed = int(count)

    def close(self) -> None:
        """Close the files."""
        self._frames.close()

    def _read(self, units: list[Unit], epochs: int) -> Generator[Frame]:
        opener = Opener(Settings(columns=self._columns))
        for epoch in range(epochs):
            for number, unit in enumerate(units):
                opened = opener.open(unit)
                for block in opened.rows(0, opened.end, block_bytes=BLOCK_BYTES):
                    if block.row_count:
                        yield self._frame(block, epoch, number)

    def _frame(self, block: RowBlock, epoch: int, number: int) -> Frame:
        if self._schema is None:
            self._schema = block.batch.schema.remove_metadata()
            if self._stacks is not None:
                self._stacker = Stacker(self._schema, self._stacks)
            if self._layout in ("numpy", "dense"):
                self._plan = numpy_plan(self._stacked(block.batch).schema)
                described = json.loads(json.dumps(describe(self._plan)))
                self._decoder = NumpyDecoder(described, self._nulls)
        self._receipt += block.row_count
        content: Any = block.batch
        if self._decoder is not None:
            buffers, byte_count = encode_rows(self._stacked(block.batch), self._plan)
            payload = np.empty(byte_count, np.uint8).data
            at = 0
            for buffer in buffers:
                payload[at : at + len(buffer)] = memoryview(buffer).cast("B")
                at += len(buffer)
            content = self._decoder.decode(payload, block.row_count)
        elif self._layout != "arrow":
            content = ByteRows(*framed_rows(block.batch, self._layout))
        span = Span(number, block.lo, block.hi)
        return Frame(block.row_count, epoch, self._receipt, span, content)

    def _stacked(self, batch: Any) -> Any:
        return batch if self._stacker is None else self._stacker.stack(batch)


def _behind(frame: Frame, receipt: int) -> Frame:
    """Return the part of a frame that lies behind a receipt."""
    cut = receipt - (frame.receipt - frame.rows)
    if cut <= 0:
        return frame
    content: Any = frame.content
    if isinstance(content, dict):
        content = {name: column[cut:] for name, column in content.items()}
    else:
        content = content.slice(cut)
    return frame._replace(rows=frame.rows - cut, content=content)
