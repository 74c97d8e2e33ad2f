"""Parquet: a position is a row, and the cheap cuts are the ends of the row groups."""

from bisect import bisect_right
from collections.abc import Iterator
from difflib import get_close_matches
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from primusd.datafeed.formats.base import OpenFile, ReadError, RowBlock, head_of, read_error
from primusd.datafeed.formats.budget import Budget
from primusd.datafeed.formats.decoders import type_of
from primusd.datafeed.formats.filtering import columns_of, matches_range
from primusd.datafeed.formats.nested import type_at
from primusd.datafeed.formats.parquet_groups import GroupReader
from primusd.datafeed.formats.settings import Settings
from primusd.datafeed.protocol import Unit
from primusd.job.conditions import Condition


class ParquetUnit:
    """A Parquet file whose footer was read once."""

    def __init__(
        self, unit: Unit, file: OpenFile, settings: Settings, budget: Budget | None = None
    ) -> None:
        """Read the footer.

        Raises:
            ReadError: It is none, or a column is missing.
        """
        self._unit = unit
        self._file = file
        self._settings = settings
        budget = budget or Budget(settings.memory_bytes)
        try:
            self._parquet = pq.ParquetFile(file.arrow(), pre_buffer=False)
        except (pa.ArrowException, OSError) as error:
            raise self._bad(error, what="no Parquet file") from error
        metadata = self._parquet.metadata
        self._schema = self._parquet.schema_arrow
        self._columns = self._known(settings)
        self._groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
        self._starts = [0, *accumulate(group.num_rows for group in self._groups)]
        self._stop = metadata.num_rows
        self.end = metadata.num_rows
        self.row_count = metadata.num_rows
        self.cuts = tuple(self._starts[1:]) or (0,)
        self._reader = GroupReader(
            unit, file, self._parquet, budget, columns=self._columns, coming=self._coming
        )

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
            for batch in self._reader.batches(group, block_bytes):
                self._file.check()
                end = at + batch.num_rows
                if end > lo:
                    skipped = max(0, lo - at)
                    yield batch.slice(skipped), at + skipped
                at = end
        except ReadError as error:
            if error.kind == "data":
                error.lo, error.hi = max(at, lo), self._starts[group + 1]
            raise
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

    def _coming(self, group: int) -> Iterator[int]:
        """Yield the groups of the range that are read after one."""
        for number in range(group + 1, len(self._groups)):
            if self._starts[number] >= self._stop:
                return
            if self._may_match(number):
                yield number

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
