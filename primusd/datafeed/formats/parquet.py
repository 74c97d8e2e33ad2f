"""Parquet: a position is a row, and the cheap cuts are the ends of the row groups."""

from bisect import bisect_right
from collections.abc import Iterator
from difflib import get_close_matches
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from primusd.datafeed.formats.base import OpenFile, ReadError, RowBlock, head_of, read_error
from primusd.datafeed.formats.decoders import type_of
from primusd.datafeed.formats.filtering import columns_of, matches_range
from primusd.datafeed.formats.nested import type_at
from primusd.datafeed.formats.settings import Settings
from primusd.datafeed.protocol import Unit
from primusd.job.conditions import Condition

BLOCK_ROWS_MAX = 1 << 16
PROBE_ROWS = 256
"""Read first of a file: how much a row takes once it is decoded is known only then."""
PAGE_BYTES = 1 << 20


class ParquetUnit:
    """A Parquet file whose footer was read once."""

    def __init__(self, unit: Unit, file: OpenFile, settings: Settings) -> None:
        """Read the footer.

        Raises:
            ReadError: It is none, or a column is missing.
        """
        self._unit = unit
        self._file = file
        self._settings = settings
        try:
            self._parquet = pq.ParquetFile(file.arrow(), pre_buffer=False)
        except (pa.ArrowException, OSError) as error:
            raise self._bad(error, what="no Parquet file") from error
        metadata = self._parquet.metadata
        self._schema = self._parquet.schema_arrow
        self._columns = self._known(settings)
        self._groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
        self._starts = [0, *accumulate(group.num_rows for group in self._groups)]
        self._row_bytes = 0
        self._stop = metadata.num_rows
        self.end = metadata.num_rows
        self.row_count = metadata.num_rows
        self.cuts = tuple(self._starts[1:]) or (0,)
        self._places = self._column_places()

    def rows(self, lo: int, hi: int, *, block_bytes: int) -> Iterator[RowBlock]:
        """Yield blocks of at most 65,536 rows; groups outside of the range are not read.

        A group in which no row can meet the conditions is passed over: its rows count as left out.
        """
        hi = min(hi, self.end)
        if lo >= hi:
            yield RowBlock(self._empty(), lo, max(lo, hi))
            return
        group = bisect_right(self._starts, lo) - 1
        self._stop = hi
        while lo < hi:
            start, end = self._starts[group], self._starts[group + 1]
            if not self._may_match(group):
                yield self._passed_over(lo, min(end, hi))
            else:
                for batch, batch_lo in self._batches(group, start, lo, block_bytes):
                    block = RowBlock(batch, batch_lo, batch_lo + batch.num_rows).up_to(hi)
                    yield block
                    if block.hi >= hi:
                        return
            lo, group = end, group + 1

    def _batches(
        self, group: int, start: int, lo: int, block_bytes: int
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield the group's batches from row `lo` of the file on, each with its first row."""
        metadata = self._groups[group]
        at = start
        try:
            for batch in self._decoded(group, block_bytes):
                self._file.check()
                end = at + batch.num_rows
                if end > lo:
                    skipped = max(0, lo - at)
                    yield batch.slice(skipped), at + skipped
                at = end
        except (pa.ArrowException, OSError) as error:
            bad_lo = max(at, lo)
            raise self._bad(
                error, what=f"bad in row group {group}", lo=bad_lo, hi=self._starts[group + 1]
            ) from error
        if at != self._starts[group + 1]:
            raise ReadError(
                f"{self._unit.location}: row group {group} has {at - start} rows and its footer "
                f"says {metadata.num_rows}",
                kind="data",
                lo=max(at, lo),
                hi=self._starts[group + 1],
                head=head_of(self._file),
            )

    def _decoded(self, group: int, block_bytes: int) -> Iterator[pa.RecordBatch]:
        """Yield a row group in batches of about so many bytes."""
        parquet = self._reader_of(group)
        count = self._groups[group].num_rows
        if not self._row_bytes:
            self._row_bytes = self._measured(group)
        # Half as much again is better than two batches where one would nearly do.
        parts = (count * self._row_bytes + block_bytes // 2) // max(1, block_bytes)
        rows = max(1, min(BLOCK_ROWS_MAX, -(-count // max(1, parts))))
        for batch in self._iter(parquet, rows, group):
            if batch.num_rows:
                self._row_bytes = max(self._row_bytes, batch.nbytes // batch.num_rows)
            yield batch

    def _measured(self, group: int) -> int:
        """Return about what a row takes once it is decoded."""
        metadata = self._groups[group]
        chunks = [metadata.column(place) for place in self._places]
        found = sum(chunk.total_uncompressed_size for chunk in chunks) // max(1, metadata.num_rows)
        # Texts that are stored once and named by number grow when they are decoded.
        grown = [
            chunk.path_in_schema
            for chunk in chunks
            if chunk.physical_type == "BYTE_ARRAY" and chunk.has_dictionary_page
        ]
        if grown:
            paged = self._paged()
            probe = next(paged.iter_batches(PROBE_ROWS, row_groups=[group], columns=grown), None)
            if probe is not None and probe.num_rows:
                found += probe.nbytes // probe.num_rows
        return max(1, found)

    def _iter(self, parquet: pq.ParquetFile, rows: int, group: int) -> Iterator[pa.RecordBatch]:
        return parquet.iter_batches(rows, row_groups=[group], columns=self._columns)

    def _reader_of(self, group: int) -> pq.ParquetFile:
        """Return what reads a group: column by column whole, or page by page where it is large."""
        metadata = self._groups[group]
        most = self._settings.memory_bytes // 4
        if self._file.fd >= 0 and metadata.total_byte_size <= most:
            return self._parquet
        ranges = self._ranges_of(group)
        byte_count = sum(count for _, count in ranges)
        if byte_count <= most:
            self._file.prefetch(ranges + self._ranges_behind(group, byte_count))
            return self._parquet
        return self._paged()

    def _ranges_of(self, group: int) -> list[tuple[int, int]]:
        """Return where the columns of a group lie, as (offset, count)."""
        ranges = []
        for place in self._places:
            chunk = self._groups[group].column(place)
            first = chunk.dictionary_page_offset or chunk.data_page_offset
            first = min(first, chunk.data_page_offset)
            ranges.append((first, chunk.total_compressed_size))
        return ranges

    def _ranges_behind(self, group: int, byte_count: int) -> list[tuple[int, int]]:
        """Return those of the next groups that are read, so many as may be fetched ahead."""
        found: list[tuple[int, int]] = []
        if self._file.fd >= 0:
            return found
        for number in range(group + 1, len(self._groups)):
            ranges = self._ranges_of(number)
            byte_count += sum(count for _, count in ranges)
            if self._starts[number] >= self._stop or byte_count > self._settings.memory_bytes // 2:
                break
            if self._may_match(number):
                found += ranges
        return found

    def _paged(self) -> pq.ParquetFile:
        """Return what reads page by page; the footer is given along, which is read once a file."""
        return pq.ParquetFile(
            self._file.arrow(),
            metadata=self._parquet.metadata,
            buffer_size=PAGE_BYTES,
            pre_buffer=False,
        )

    # Conditions.

    def _may_match(self, group: int) -> bool:
        """Return whether a row of a group can meet all conditions, by its statistics."""
        return all(self._may_meet(group, condition) for condition in self._settings.filter)

    def _may_meet(self, group: int, condition: Condition) -> bool:
        if not self._is_compared_as_written(condition.column):
            return True
        metadata = self._groups[group]
        place = next(
            (
                place
                for place in range(metadata.num_columns)
                if metadata.column(place).path_in_schema == condition.column
            ),
            -1,
        )
        if place < 0 or not metadata.column(place).is_stats_set:
            return True
        # Any: the stubs lack what tells whether a count is known.
        found: Any = metadata.column(place).statistics
        if found is None:
            return True
        if condition.op == "is null":
            return not (found.has_null_count and found.null_count == 0)
        if found.has_null_count and found.null_count == metadata.num_rows:
            return False
        if condition.op == "is not null" or not found.has_min_max:
            return True
        kind = type_at(self._schema, condition.column)
        if kind is None:
            return True
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        try:
            return matches_range(condition, found.min, found.max, kind)
        except (pa.ArrowException, TypeError, ValueError):
            # Statistics of a type that cannot be compared rule nothing out.
            return True

    def _is_compared_as_written(self, column: str) -> bool:
        """Return whether the stream has a column in this file's type: else order may differ."""
        said = self._settings.types.get(column)
        if said is None:
            return self._settings.on_schema != "null"
        return type_at(self._schema, column) == type_of(said)

    def _passed_over(self, lo: int, hi: int) -> RowBlock:
        import numpy as np  # noqa: PLC0415 with pyarrow, after the fork

        rows = self._empty()
        # Counted as a filter would that looked at each row.
        return RowBlock(rows, lo, hi, ends=np.empty(0, np.int64), left_out=lambda at: at - lo)

    # Columns.

    def _known(self, settings: Settings) -> list[str] | None:
        if not settings.columns:
            return None
        looked_at = columns_of(settings.filter)
        names = tuple(dict.fromkeys((*settings.columns, *looked_at)))
        found = []
        for column in names:
            if type_at(self._schema, column) is not None:
                found.append(column)
            elif settings.on_schema == "fail" or column in looked_at:
                raise self._missing(column)
        return found

    def _missing(self, column: str) -> ReadError:
        have = self._schema.names
        near = get_close_matches(column, have, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return ReadError(
            f"{self._unit.location} has no column {column}; it has {', '.join(have[:20])}{hint}",
            kind="data",
            head=head_of(self._file),
        )

    def _column_places(self) -> list[int]:
        """Return the leaf columns that are read."""
        if not self._groups:
            return []
        group = self._groups[0]
        paths = [group.column(place).path_in_schema for place in range(group.num_columns)]
        if self._columns is None:
            return list(range(len(paths)))
        wanted = tuple(self._columns)
        return [
            place
            for place, path in enumerate(paths)
            if any(path == name or path.startswith(f"{name}.") for name in wanted)
        ]

    def _empty(self) -> pa.RecordBatch:
        wanted = self._columns
        if wanted is None:
            return pa.RecordBatch.from_pylist([], schema=self._schema)
        outer = {name if name in self._schema.names else name.split(".")[0] for name in wanted}
        fields = [field for field in self._schema if field.name in outer]
        return pa.RecordBatch.from_pylist([], schema=pa.schema(fields))

    def _bad(self, error: Exception, *, what: str, lo: int = -1, hi: int = -1) -> ReadError:
        try:
            self._file.check()
        except ReadError as changed:
            return changed
        head = head_of(self._file)
        if isinstance(error, OSError) and error.errno is not None:
            found = read_error(self._unit, error, head=head)
            if found.kind == "transient":
                return found
        first_line = str(error).split("\n", 1)[0][:300]
        return ReadError(
            f"{self._unit.location} is {what}: {first_line}", kind="data", lo=lo, hi=hi, head=head
        )
