"""Reads the row groups of a Parquet file in batches, within the memory of their reader."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace

from primusd.datafeed.formats.base import OpenFile, ReadError, head_of
from primusd.datafeed.formats.budget import Budget
from primusd.datafeed.formats.parquet_memory import (
    Chunk,
    GroupPlan,
    buffered_plan,
    rows_within,
    uneven_bytes,
    whole_plan,
    windows_plan,
)
from primusd.datafeed.formats.parquet_pages import HEAD_BYTES, Page, pages_of
from primusd.datafeed.formats.parquet_window import Windows
from primusd.datafeed.protocol import Unit

BLOCK_ROWS_MAX = 1 << 16
PROBE_ROWS = 256
"""Read first of a file: how much a row takes once it is decoded is known only then."""
PROBE_BUFFER_BYTES = 64 << 10
PAGES_MAX = 1 << 16
"""Looked at for a group: their heads lie between them, each some microseconds away."""
PAGES_ALIKE = 3
"""Looked at where all values have one length: a dictionary, and what comes first."""
SMALL_BYTES = 1 << 20
"""Such a group is read before other threads have woken up for its columns."""
SMALL_TIMES = 6
"""What reading it takes at most: as it is, its pages, and what its dictionaries are made into."""
MAGIC_BYTES = 4
WHOLE_SHARE = 4
"""Columns that have this part of memory at most are read whole."""
LISTS_EVEN = 4
"""Rows of lists are read fewer at a time: nobody knows where the long lists are."""
UNEVEN = 2
"""A batch may have so many times what was asked for."""


class GroupReader:
    """Reads the row groups of one opened file."""

    def __init__(
        self,
        unit: Unit,
        file: OpenFile,
        parquet: pq.ParquetFile,
        budget: Budget,
        *,
        columns: list[str] | None,
        coming: Callable[[int], Iterator[int]],
    ) -> None:
        """Read nothing yet.

        Args:
            unit: As it was listed.
            file: The same, opened.
            parquet: The same, with its footer.
            budget: Of its reader.
            columns: Those to read; None: all.
            coming: Gives the groups that are read after one.
        """
        self._unit = unit
        self._file = file
        self._parquet = parquet
        self._budget = budget
        self._columns = columns
        self._coming = coming
        self._is_far = file.fd < 0
        self._row_bytes = 0
        self._places = self._column_places()

    def batches(self, group: int, block_bytes: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a group in batches of about so many bytes.

        Raises:
            ReadError: Reading it takes more than memory allows.
        """
        chunks, plan = self.planned(group, block_bytes)
        more_bytes = uneven_bytes(chunks, block_bytes)
        if more_bytes:
            plan = replace(
                plan,
                held_bytes=plan.held_bytes + more_bytes,
                needed_bytes=(plan.needed_bytes or plan.held_bytes) + more_bytes,
            )
        if plan.held_bytes > self._budget.decoding_max:
            raise self._too_large(group, chunks, plan)
        with self._budget.holding(plan.held_bytes):
            if not self._row_bytes:
                self._row_bytes = self._measured(group, chunks)
            rows = self._rows_of(group, chunks, block_bytes)
            for batch in self._read(group, chunks, plan, rows):
                if batch.num_rows:
                    self._row_bytes = max(self._row_bytes, _row_bytes(batch))
                yield batch

    def _read(
        self, group: int, chunks: Sequence[Chunk], plan: GroupPlan, rows: int
    ) -> Iterator[pa.RecordBatch]:
        if plan.way == "windows":
            yield from self.windowed(group, chunks, rows)
            return
        parquet = self._parquet
        if plan.way == "buffered":
            if self._is_far:
                # Something is told that nobody reads, so that nothing is guessed: what follows a
                # read of one column is read long after those of the others.
                self._file.prefetch([(0, MAGIC_BYTES)])
            parquet = self._opened(self._file.arrow(), plan.buffer_bytes)
        elif self._is_far:
            self._file.prefetch(self._ranges_from(group))
        metadata = self._parquet.metadata.row_group(group)
        is_large = metadata.total_byte_size > SMALL_BYTES
        if rows >= metadata.num_rows and parquet is self._parquet:
            # In one batch a tenth is saved by what has no batches.
            whole = parquet.read_row_group(group, columns=self._columns, use_threads=is_large)
            yield from whole.to_batches()
            return
        yield from parquet.iter_batches(
            rows, row_groups=[group], columns=self._columns, use_threads=is_large
        )

    def windowed(self, group: int, chunks: Sequence[Chunk], rows: int) -> Iterator[pa.RecordBatch]:
        """Yield a group in batches of so many rows, of each column the pages for one in memory."""
        windows = Windows(self._file, chunks)
        parquet = self._opened(windows.arrow(), 0)
        windows.move(0, rows)
        at = 0
        for batch in parquet.iter_batches(rows, row_groups=[group], columns=self._columns):
            yield batch
            at += batch.num_rows
            windows.move(at, at + rows)

    def _rows_of(self, group: int, chunks: Sequence[Chunk], block_bytes: int) -> int:
        """Return how many rows a batch has."""
        count = self._parquet.metadata.row_group(group).num_rows
        if chunks and not all(self._is_flat):
            block_bytes //= LISTS_EVEN
        # Half as much again is better than two batches where one would nearly do.
        row_bytes = self._row_bytes or self._stored_bytes(group, chunks)
        parts = (count * row_bytes + block_bytes // 2) // max(1, block_bytes)
        rows = max(1, min(BLOCK_ROWS_MAX, -(-count // max(1, parts))))
        return rows_within(chunks, rows, block_bytes=UNEVEN * block_bytes)

    def _stored_bytes(self, group: int, chunks: Sequence[Chunk]) -> int:
        metadata = self._parquet.metadata.row_group(group)
        found = sum(chunk.byte_count for chunk in chunks) or metadata.total_byte_size
        return found // max(1, metadata.num_rows)

    def _measured(self, group: int, chunks: Sequence[Chunk]) -> int:
        """Return about what a row takes once it is decoded."""
        metadata = self._parquet.metadata.row_group(group)
        found = self._stored_bytes(group, chunks)
        # Texts that are stored once and named by number grow when they are decoded.
        columns = [metadata.column(place) for place in self._places]
        grown = [
            column.path_in_schema
            for column in columns
            if column.physical_type == "BYTE_ARRAY" and column.has_dictionary_page
        ]
        if grown:
            parquet = self._opened(self._file.arrow(), PROBE_BUFFER_BYTES)
            probe = next(parquet.iter_batches(PROBE_ROWS, row_groups=[group], columns=grown), None)
            if probe is not None and probe.num_rows:
                found += _row_bytes(probe)
        return max(1, found)

    # Whole or by pages.

    def planned(self, group: int, block_bytes: int) -> tuple[list[Chunk], GroupPlan]:
        """Return the columns of a group, and how they are read; of a small one no columns."""
        size = self._parquet.metadata.row_group(group).total_byte_size
        if size <= SMALL_BYTES and SMALL_TIMES * size <= self._budget.memory_bytes // WHOLE_SHARE:
            return [], GroupPlan("whole", SMALL_TIMES * size)
        chunks = self.chunks(group)
        most = self._budget.memory_bytes // WHOLE_SHARE
        whole = whole_plan(chunks)
        # A far file is fetched by ranges of whole columns as long as they fit.
        size = sum(one.packed_bytes if self._is_far else one.byte_count for one in chunks)
        if size <= most and whole.held_bytes <= self._budget.decoding_max:
            return chunks, whole
        chunks = self.looked_at(group, chunks, is_whole=False)
        plan = self._buffered(chunks)
        if plan.held_bytes > most and not self._is_far and not all(one.has_rows for one in chunks):
            # Buffers grow, or pages are large: it pays to know all of them.
            chunks = self.looked_at(group, chunks, is_whole=True)
            plan = self._buffered(chunks)
        if plan.held_bytes > most and all(one.has_rows for one in chunks):
            windows = windows_plan(chunks, self._rows_of(group, chunks, block_bytes))
            plan = windows if windows.held_bytes < plan.held_bytes else plan
        return chunks, plan

    def _buffered(self, chunks: Sequence[Chunk]) -> GroupPlan:
        memory_bytes = self._budget.memory_bytes
        return buffered_plan(chunks, memory_bytes=memory_bytes, is_far=self._is_far)

    def chunks(self, group: int) -> list[Chunk]:
        """Return the columns of a group as the footer has them."""
        metadata = self._parquet.metadata.row_group(group)
        found = []
        for place in self._places:
            column = metadata.column(place)
            is_text = column.physical_type == "BYTE_ARRAY"
            first = column.dictionary_page_offset or column.data_page_offset
            found.append(
                Chunk(
                    min(first, column.data_page_offset),
                    column.data_page_offset,
                    column.total_compressed_size,
                    column.total_uncompressed_size,
                    is_packed=column.compression != "UNCOMPRESSED",
                    is_text=is_text,
                    is_dictionary=is_text and column.path_in_schema in self._dictionaries,
                )
            )
        return found

    def looked_at(self, group: int, chunks: Sequence[Chunk], *, is_whole: bool) -> list[Chunk]:
        """Return columns with their pages: all, or some where they are alike or far."""
        if self._is_far:
            heads = [at for one in chunks for at in {one.offset, one.data_offset}]
            self._file.prefetch([(at, HEAD_BYTES) for at in heads])
            return [replace(one, pages=self._first_pages(one)) for one in chunks]
        count = self._parquet.metadata.row_group(group).num_rows
        found = []
        for is_flat, chunk in zip(self._is_flat, chunks, strict=True):
            is_even = is_flat and not chunk.is_packed and not chunk.is_text
            most = PAGES_ALIKE if is_even and not is_whole else PAGES_MAX // len(chunks)
            pages = pages_of(self._file, chunk.offset, chunk.packed_bytes, most=most)
            looked = replace(chunk, pages=pages)
            rows = sum(page.value_count for page in looked.data_pages)
            found.append(replace(looked, has_rows=is_flat and rows == count))
        return found

    def _first_pages(self, chunk: Chunk) -> tuple[Page, ...]:
        starts = sorted({chunk.offset, chunk.data_offset})
        found = [pages_of(self._file, at, chunk.packed_bytes, most=1) for at in starts]
        return tuple(page for pages in found for page in pages)

    def _too_large(self, group: int, chunks: Sequence[Chunk], plan: GroupPlan) -> ReadError:
        whole = self._parquet.metadata.row_group(group)
        needed = self._budget.memory_for(plan.needed_bytes or plan.held_bytes)
        return ReadError(
            f"{self._unit.location}: row group {group} has {len(chunks)} columns, "
            f"{whole.total_byte_size >> 20} MiB; to read it page by page takes "
            f"{plan.held_bytes >> 20} MiB, and of memory ({self._budget.memory_bytes >> 20}Mi) "
            f"{self._budget.decoding_max >> 20} MiB may be used for that; set memory to "
            f"{-(-needed >> 20)}Mi, or read fewer columns (columns: …)",
            kind="data",
            head=head_of(self._file),
        )

    def _opened(self, file: pa.NativeFile, buffer_bytes: int) -> pq.ParquetFile:
        """Return what reads another way; the footer is given along, which is read once a file."""
        return pq.ParquetFile(
            file, metadata=self._parquet.metadata, buffer_size=buffer_bytes, pre_buffer=False
        )

    # What is known of columns, once it is needed: of many small files it never is.

    @cached_property
    def _dictionaries(self) -> set[str]:
        """Those whose rows come as places in a dictionary."""
        schema = self._parquet.schema_arrow
        return {one.name for one in schema if pa.types.is_dictionary(one.type)}

    @cached_property
    def _is_flat(self) -> list[bool]:
        """Whether each has one value a row."""
        # Any: the stubs lack what tells whether a column repeats.
        schema: Any = self._parquet.schema
        return [schema.column(one).max_repetition_level == 0 for one in self._places]

    # Where columns lie.

    def _ranges_from(self, group: int) -> list[tuple[int, int]]:
        """Return where a group lies, and those after it so far as they may be fetched ahead."""
        found = self._ranges_of(group)
        byte_count = sum(count for _, count in found)
        for number in self._coming(group):
            ranges = self._ranges_of(number)
            byte_count += sum(count for _, count in ranges)
            if byte_count > self._budget.memory_bytes // 2:
                break
            found += ranges
        return found

    def _ranges_of(self, group: int) -> list[tuple[int, int]]:
        return [(chunk.offset, chunk.packed_bytes) for chunk in self.chunks(group)]

    def _column_places(self) -> list[int]:
        """Return the leaf columns that are read."""
        metadata = self._parquet.metadata
        if not metadata.num_row_groups:
            return []
        group = metadata.row_group(0)
        paths = [group.column(place).path_in_schema for place in range(group.num_columns)]
        if self._columns is None:
            return list(range(len(paths)))
        wanted = tuple(self._columns)
        return [
            place
            for place, path in enumerate(paths)
            if any(path == name or path.startswith(f"{name}.") for name in wanted)
        ]


def _row_bytes(batch: pa.RecordBatch) -> int:
    """Return what a row takes, without the dictionaries that all rows of a batch share."""
    found = 0
    for column in batch.columns:
        # Any: the stubs know no common parent of all arrays.
        values: Any = column
        found += values.indices.nbytes if pa.types.is_dictionary(values.type) else values.nbytes
    return found // batch.num_rows
