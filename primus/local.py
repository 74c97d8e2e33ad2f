"""Frames from files that this process reads itself: no daemon, the same rows and types."""

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np

from primus.batches import Frame, NumpyDecoder, Span
from primus.errors import FeedError
from primus.feed import Wanted

try:
    from primusd.datafeed.columns import (
        ColumnError,
        ColumnPlan,
        conform,
        describe,
        encode_rows,
        numpy_plan,
    )
    from primusd.datafeed.dense import Stacker
    from primusd.datafeed.formats.base import ReadError, RowBlock, open_unit
    from primusd.datafeed.protocol import Unit
    from primusd.datafeed.sources.files import ListingError, list_sources
    from primusd.job.spec import Source
except ImportError as missing:
    raise FeedError(
        f"reading files in this process needs primusd and pyarrow here: {missing}"
    ) from missing

BLOCK_BYTES = 8 << 20


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
        self._is_arrow = wanted.layout == "arrow"
        self._stacks = wanted.stacks if wanted.layout == "dense" else None
        self._stacker: Stacker | None = None
        self._plan: tuple[ColumnPlan, ...] = ()
        self._decoder: NumpyDecoder | None = None
        self._schema: Any = None  # pyarrow's; the first block's
        self._receipt = 0
        self._frames = self._read(units, epochs)

    def next_frame(self) -> Frame | None:
        """Return the next frame.

        Raises:
            EOFError: All was read.
            FeedError: A file cannot be read.
        """
        try:
            return next(self._frames)
        except StopIteration:
            raise EOFError from None
        except (ReadError, ColumnError) as error:
            raise FeedError(error.message) from error

    def commit(self, receipt: int) -> None:
        """Take note of nothing: nobody else reads these rows."""

    def close(self) -> None:
        """Close the files."""
        self._frames.close()

    def _read(self, units: list[Unit], epochs: int) -> Generator[Frame]:
        for epoch in range(epochs):
            for number, unit in enumerate(units):
                opened = open_unit(unit, "", self._columns)
                for block in opened.rows(0, opened.end, block_bytes=BLOCK_BYTES):
                    if block.row_count:
                        yield self._frame(block, epoch, number)

    def _frame(self, block: RowBlock, epoch: int, number: int) -> Frame:
        if self._schema is None:
            self._schema = block.batch.schema.remove_metadata()
            if self._stacks is not None:
                self._stacker = Stacker(self._schema, self._stacks)
            if not self._is_arrow:
                self._plan = numpy_plan(self._stacked(block.batch).schema)
                described = json.loads(json.dumps(describe(self._plan)))
                self._decoder = NumpyDecoder(described, self._nulls)
        block = conform(block, self._schema)
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
        span = Span(number, block.lo, block.hi)
        return Frame(block.row_count, epoch, self._receipt, span, content)

    def _stacked(self, batch: Any) -> Any:
        return batch if self._stacker is None else self._stacker.stack(batch)
