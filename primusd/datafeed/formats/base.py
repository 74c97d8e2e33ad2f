"""What a format must do: open a pinned unit and read any range of positions, block by block.

Positions are the unit's own: bytes for text, rows for Parquet. A range [lo, hi) owns the records
that *begin* in it, so any cut gives each record to exactly one side. Every block knows which
positions it carries; a block is taken whole or up to a record boundary, never in between.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from primusd.datafeed.protocol import Unit
from primusd.datafeed.storage.base import HEAD_BYTES, TRANSIENT_ERRNOS, OpenFile, ReadError
from primusd.datafeed.storage.local import read_error
from primusd.datafeed.storage.schemes import open_file

if TYPE_CHECKING:  # Loaded after the fork only: it starts threads.
    import numpy as np
    import pyarrow as pa

# What formats need of a storage, by one name.
__all__ = ["HEAD_BYTES", "TRANSIENT_ERRNOS", "OpenFile", "ReadError", "read_error"]


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Rows in memory, and the positions they come from."""

    batch: "pa.RecordBatch"
    lo: int
    """Where the block begins; its first record may begin later."""
    hi: int
    """Where it ends; the next block of the range begins here."""
    ends: "np.ndarray | None" = None
    """Where the next record begins, for each row; None: one position a row."""
    first: int = -1
    """Where its first record begins; needed with `ends`."""
    left_out: "Callable[[int], int] | None" = None
    """How many records that were left out lie before a position, from anywhere; None: none."""
    row_bytes: int = -1
    """What a row takes, of a part of a block; 0: not all take the same; -1: nobody looked."""

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return self.batch.num_rows

    @property
    def byte_count(self) -> int:
        """What its rows and their positions take of memory."""
        found = self.row_bytes * self.row_count if self.row_bytes > 0 else self.batch.nbytes
        return found if self.ends is None else found + self.ends.nbytes

    @property
    def positions(self) -> "Positions":
        """Where it ends after each of its rows: without the rows, which may go before."""
        return Positions(self.lo, self.hi, self.row_count, self.ends)

    def position_after(self, row_count: int) -> int:
        """Return the position once that many of its rows are taken."""
        return self.positions.after(row_count)

    def rows_before(self, limit: int) -> int:
        """Return how many of its records begin below the position `limit`."""
        if limit >= self.hi or not self.row_count:
            return self.row_count
        if self.ends is None:
            return max(0, limit - self.lo)
        if limit <= self.first:
            return 0
        return 1 + int(self.ends[:-1].searchsorted(limit))

    def part(self, first_row: int, row_count: int) -> "RowBlock":
        """Return some of its rows, with their positions."""
        last = first_row + row_count
        lo = self.position_after(first_row) if first_row else self.lo
        return replace(
            self,
            batch=self.batch.slice(first_row, row_count),
            lo=lo,
            hi=self.position_after(last),
            ends=None if self.ends is None else self.ends[first_row:last],
            first=self.first if first_row == 0 else lo,
            row_bytes=_row_bytes(self.batch) if self.row_bytes < 0 else self.row_bytes,
        )

    def up_to(self, limit: int) -> "RowBlock":
        """Return the records that begin below `limit`; the block then ends there."""
        if limit >= self.hi:
            return self
        return replace(self.part(0, self.rows_before(limit)), hi=max(limit, self.lo))


@dataclass(frozen=True, slots=True)
class Positions:
    """Those of a `RowBlock`."""

    lo: int
    hi: int
    row_count: int
    ends: "np.ndarray | None"

    def after(self, row_count: int) -> int:
        """Return the position once that many rows are taken."""
        if row_count >= self.row_count:
            return self.hi
        if row_count <= 0:
            return self.lo
        if self.ends is None:
            return self.lo + row_count
        return min(int(self.ends[row_count - 1]), self.hi)


def _row_bytes(batch: "pa.RecordBatch") -> int:
    """Return what a row takes where all take the same, else 0: to add up slices is dear."""
    try:
        is_even = all(kind.bit_width > 0 for kind in batch.schema.types)
    except ValueError:
        return 0
    return batch.nbytes // batch.num_rows if is_even and batch.num_rows else 0


@dataclass(frozen=True, slots=True)
class PipeBlock:
    """Whole records for a pipe: a span of a file, or bytes in memory."""

    lo: int
    hi: int
    row_count: int
    """Counted, or estimated where nobody looked at the bytes."""
    locate: Callable[[int], int]
    """The position once so many bytes left the pipe, rounded down to a record."""
    file: "OpenFile | None" = None
    """The file to splice from; None: only `data`."""
    offset: int = 0
    span_bytes: int = 0
    data: bytes = b""
    """What follows the span."""
    preface: bytes = b""
    """What comes before the first piece that goes through the pipe, and before no other."""
    left_out: "Callable[[int], int] | None" = None
    """As of `RowBlock`."""

    def begun(self) -> "PipeBlock":
        """Return it as the first piece of a pipe."""
        added = len(self.preface)
        locate = self.locate
        return replace(
            self,
            data=self.preface + self.data,
            preface=b"",
            locate=lambda byte_count: locate(max(0, byte_count - added)),
        )

    @property
    def byte_count(self) -> int:
        """How many bytes go through the pipe."""
        return self.span_bytes + len(self.data)


class RowFile(Protocol):
    """An opened, pinned unit that is read in rows."""

    @property
    def end(self) -> int:
        """The position after its last record."""
        ...

    @property
    def row_count(self) -> int:
        """Its rows; -1 unknown."""
        ...

    @property
    def cuts(self) -> tuple[int, ...]:
        """Positions where a range is best cut, the last one its end; empty: anywhere."""
        ...

    def rows(self, lo: int, hi: int, *, block_bytes: int) -> Iterator[RowBlock]:
        """Yield the records that begin in [lo, hi), without gaps from lo to hi.

        Raises:
            ReadError: The next block cannot be read; what was yielded stands.
        """
        ...


class UnitFile(RowFile, Protocol):
    """An opened, pinned unit."""

    def pieces(self, lo: int, hi: int, *, framing: str) -> Iterator[PipeBlock]:
        """Yield the same records as bytes for a pipe.

        Raises:
            ReadError: As `rows`.
        """
        ...


@runtime_checkable
class Direct(Protocol):
    """An opened unit whose bytes may go through a pipe as they stand in its file."""

    @property
    def framings(self) -> tuple[str, ...]:
        """Those in which they may."""
        ...

    def pieces(self, lo: int, hi: int, *, framing: str) -> Iterator[PipeBlock]:
        """Yield records in one of the framings, as `UnitFile.pieces`."""
        ...


@runtime_checkable
class Measured(Protocol):
    """An opened unit whose end may not be known before all of it was read."""

    def measure(self) -> None:
        """Find its end out, where it is not known."""
        ...


def open_pinned(unit: Unit, *, ahead_bytes: int = 0) -> OpenFile:
    """Return the unit's file, opened, which is the one that was listed.

    Args:
        unit: As it was listed.
        ahead_bytes: How much of a remote file may be fetched before it is read; 0: 32 MiB.

    Raises:
        ReadError: It is gone, another one, or cannot be opened.
    """
    return open_file(unit, ahead_bytes=ahead_bytes)


def check_pin(file: OpenFile, unit: Unit) -> None:
    """Check that an opened file is still as it was listed.

    Raises:
        ReadError: Its size or its time of change is another.
    """
    del unit  # An opened file knows what it was.
    file.check()


def head_of(file: OpenFile) -> bytes:
    """Return the first bytes of a file, none when they cannot be read."""
    try:
        return file.pread(0, HEAD_BYTES)
    except ReadError:
        return b""


def open_unit(unit: Unit, format_name: str, columns: tuple[str, ...]) -> UnitFile:
    """Return the opened unit, with nothing else settled.

    Args:
        unit: As it was listed.
        format_name: "" as the unit, its name or its first bytes say.
        columns: Those to read; empty: all.

    Raises:
        ReadError: It cannot be opened, or is not of that format.
    """
    # Imported here: pyarrow starts threads, and the image that executors are forked from has none.
    from primusd.datafeed.formats.opening import Opener  # noqa: PLC0415
    from primusd.datafeed.formats.settings import Settings  # noqa: PLC0415

    return Opener(Settings(format=format_name, columns=columns)).open(unit)
