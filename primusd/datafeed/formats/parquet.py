"""Parquet: a position is a row, and the cheap cuts are the ends of the row groups."""

import base64
import json
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from difflib import get_close_matches
from itertools import accumulate

import pyarrow as pa
import pyarrow.parquet as pq

from primusd.datafeed.formats.base import (
    PipeBlock,
    ReadError,
    RowBlock,
    check_pin,
    head_of,
    open_pinned,
    read_error,
)
from primusd.datafeed.protocol import Unit

BLOCK_ROWS_MAX = 1 << 16
JSON_ROWS = 1024


class ParquetUnit:
    """A Parquet file whose footer was read once."""

    def __init__(self, unit: Unit, columns: tuple[str, ...]) -> None:
        self._unit = unit
        self._file = open_pinned(unit)
        try:
            # By descriptor: the file that was checked is the one that is read.
            self._parquet = pq.ParquetFile(f"/proc/self/fd/{self._file.fd}", pre_buffer=False)
        except (pa.ArrowException, OSError) as error:
            raise self._bad(error, what="no Parquet file") from error
        metadata = self._parquet.metadata
        self._columns = self._known(columns)
        self._groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
        self._starts = [0, *accumulate(group.num_rows for group in self._groups)]
        self.end = metadata.num_rows
        self.row_count = metadata.num_rows
        self.cuts = tuple(self._starts[1:]) or (0,)

    def rows(self, lo: int, hi: int, *, block_bytes: int) -> Iterator[RowBlock]:
        """Yield blocks of at most 65,536 rows; groups outside of the range are not read."""
        hi = min(hi, self.end)
        if lo >= hi:
            yield RowBlock(self._empty(), lo, max(lo, hi))
            return
        group = bisect_right(self._starts, lo) - 1
        while lo < hi:
            start, end = self._starts[group], self._starts[group + 1]
            for batch, batch_lo in self._batches(group, start, lo, block_bytes):
                block = RowBlock(batch, batch_lo, batch_lo + batch.num_rows).up_to(hi)
                yield block
                if block.hi >= hi:
                    return
            lo, group = end, group + 1

    def pieces(self, lo: int, hi: int, *, framing: str) -> Iterator[PipeBlock]:
        """Yield one JSON object a row; `raw` has no meaning here and is refused."""
        if framing != "lines":
            raise ReadError(
                f"{self._unit.location} is Parquet, which cannot be fed to stdin as {framing}; "
                "use framing: lines, which gives one JSON object a row",
                kind="data",
            )
        for block in self.rows(lo, hi, block_bytes=PIPE_ROWS_BYTES):
            for first in range(0, max(1, block.row_count), JSON_ROWS):
                count = min(JSON_ROWS, block.row_count - first)
                yield _json_piece(block.part(first, count))

    def _batches(
        self, group: int, start: int, lo: int, block_bytes: int
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield the group's batches from row `lo` of the file on, each with its first row."""
        metadata = self._groups[group]
        row_bytes = max(1, metadata.total_byte_size // max(1, metadata.num_rows))
        batch_rows = max(1, min(BLOCK_ROWS_MAX, block_bytes // row_bytes))
        at = start
        try:
            for batch in self._parquet.iter_batches(
                batch_rows, row_groups=[group], columns=self._columns
            ):
                check_pin(self._file, self._unit)
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

    def _known(self, columns: tuple[str, ...]) -> list[str] | None:
        if not columns:
            return None
        have = self._parquet.schema_arrow.names
        for column in columns:
            if column not in have:
                near = get_close_matches(column, have, 1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise ReadError(
                    f"{self._unit.location} has no column {column}; it has "
                    f"{', '.join(have[:20])}{hint}",
                    kind="data",
                    head=head_of(self._file),
                )
        return list(columns)

    def _empty(self) -> pa.RecordBatch:
        schema = self._parquet.schema_arrow
        wanted = self._columns or schema.names
        fields = [schema.field(name) for name in schema.names if name in wanted]
        return pa.RecordBatch.from_pylist([], schema=pa.schema(fields))

    def _bad(self, error: Exception, *, what: str, lo: int = -1, hi: int = -1) -> ReadError:
        try:
            check_pin(self._file, self._unit)
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


PIPE_ROWS_BYTES = 4 << 20


def _json_piece(block: RowBlock) -> PipeBlock:
    lines = [_json_line(row) for row in block.batch.to_pylist()]
    ends = list(accumulate(len(line) for line in lines))
    return PipeBlock(
        block.lo, block.hi, block.row_count, _locator(block, ends), data=b"".join(lines)
    )


def _locator(block: RowBlock, ends: list[int]) -> Callable[[int], int]:
    return lambda byte_count: block.position_after(bisect_right(ends, byte_count))


def _json_line(row: dict[str, object]) -> bytes:
    try:
        text = json.dumps(row, default=_plain, ensure_ascii=False, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(row), default=_plain, ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass") + b"\n"


def _finite(value: object) -> object:
    """Return the value with null in place of what JSON has no number for."""
    match value:
        case float() if not math.isfinite(value):
            return None
        case dict():
            return {key: _finite(part) for key, part in value.items()}
        case list():
            return [_finite(part) for part in value]
        case _:
            return value


def _plain(value: object) -> object:
    """Return what stands in JSON for a value that it has no form for."""
    match value:
        case bytes():
            return base64.b64encode(value).decode("ascii")
        case Decimal():
            return str(value)
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case _:
            raise TypeError(f"no JSON form for {type(value).__name__}")
