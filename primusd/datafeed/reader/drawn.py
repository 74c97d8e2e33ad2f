"""A unit as its stream asks for it: a slice of a file, its rows permuted, some of them left out.

It is a `UnitFile` like any other, with positions of its own (blocks.py); the ledger does not know.
Rows that are left out have positions too, which are passed over with the row before them.

Of a group the rows that can be read come first, in their permuted order; what cannot be read has
the last positions. Both follow from the file alone, so whoever reads it again finds them there.

Source: the raw numbers of Philox, Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3",
SC 2011, which numpy promises to keep; its `permutation` it does not.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from primusd.datafeed.drawing import Drawing
from primusd.datafeed.formats.base import PipeBlock, ReadError, RowBlock, UnitFile
from primusd.datafeed.formats.keeping import begins_of, kept_rows
from primusd.datafeed.keyed import key_of
from primusd.datafeed.ledger.model import OPEN_END
from primusd.datafeed.protocol import Unit
from primusd.datafeed.reader.blocks import Group, Groups, block_ends, group_blocks
from primusd.job.spec import Sample, Shuffle

GROUP_READ_BYTES = 4 << 20
PIPE_BLOCK_BYTES = 1 << 20
MILLION = 1_000_000
LOST_KINDS = ("data",)
"""Of a range that cannot be read; anything else concerns the whole file."""


def drawn(file: UnitFile, unit: Unit, epoch: int, drawing: Drawing) -> tuple[UnitFile, int]:
    """Return an opened unit as its stream asks for it in an epoch, and how many blocks it mixes."""
    blocks = 1
    part = unit.options.get("slice", "")
    if part:
        number, count = map(int, part.split("/"))
        file = _Slice(file, file.end * number // count, file.end * (number + 1) // count)
    name = f"{unit.location} {part}"
    if drawing.sample is not None:
        # By places in the file, so that every epoch takes the same rows.
        file = _Sampled(file, drawing.sample, key_of(drawing.sample.seed, name))
    if drawing.shuffle is not None:
        key = key_of(drawing.shuffle.seed, epoch, name)
        byte_count = unit.byte_count // (int(part.partition("/")[2]) if part else 1)
        file = shuffled = _Shuffled(file, drawing.shuffle, key, byte_count)
        blocks = shuffled.block_count
    return file, blocks


class _Slice:
    """The records that begin in a range of a file."""

    def __init__(self, file: UnitFile, lo: int, hi: int) -> None:
        self._file = file
        self._lo = lo
        self.end = hi - lo
        self.row_count = self.end if file.row_count >= 0 and file.cuts else -1
        inner = tuple(one - lo for one in file.cuts if lo < one < hi)
        self.cuts = (*inner, self.end) if file.cuts else ()

    def rows(self, lo: int, hi: int, *, block_bytes: int) -> Iterator[RowBlock]:
        first, last = lo + self._lo, min(hi, self.end) + self._lo
        try:
            for block in self._file.rows(first, last, block_bytes=block_bytes):
                yield _moved(block, -self._lo)
        except ReadError as error:
            raise _moved_error(error, -self._lo) from error

    def pieces(self, lo: int, hi: int, *, framing: str) -> Iterator[PipeBlock]:
        raise ReadError("a stream in strict order goes to no pipe", kind="data")


class _Shuffled:
    """A file whose rows come in an order made from a key."""

    def __init__(self, file: UnitFile, shuffle: Shuffle, key: int, byte_count: int) -> None:
        self._file = file
        self._key = key
        self.end = file.end
        self.row_count = file.row_count
        has_bytes = not file.cuts
        ends = block_ends(
            file.end,
            file.cuts,
            block_rows=shuffle.block_rows,
            byte_count=byte_count,
            has_bytes=has_bytes,
        )
        blocks = group_blocks(file.end, ends, blocks=shuffle.blocks, byte_count=byte_count)
        self.block_count = min(blocks, len(ends))
        self._groups = Groups(ends, blocks=blocks, key=key)
        self.cuts = () if has_bytes else self._groups.ends

    def rows(self, lo: int, hi: int, *, block_bytes: int) -> Iterator[RowBlock]:
        hi = min(hi, self.end)
        at = lo
        for group in self._groups.within(lo, hi):
            found = _GroupRows(self._file, group, self._key)
            for block in found.rows(at, min(hi, group.hi), block_bytes):
                yield block
                at = block.hi
            if at < min(hi, group.hi):
                assert found.fault is not None
                raise found.fault
        if at == lo and at >= hi:
            for block in self._file.rows(0, 0, block_bytes=block_bytes):
                yield replace(block, lo=lo, hi=max(lo, hi), first=lo)

    def pieces(self, lo: int, hi: int, *, framing: str) -> Iterator[PipeBlock]:
        yield from _pieces(self, lo, hi, framing)


class _GroupRows:
    """The rows of a group, in memory, and where each of them begins.

    Attributes:
        fault: What is raised where the readable rows end; None when all can be read.
    """

    def __init__(self, file: UnitFile, group: Group, key: int) -> None:
        batches: list[pa.RecordBatch] = []
        self._lo = group.lo
        self.fault: ReadError | None = None
        self._left_out = 0
        lost = sum(self._read(file, lo, hi, batches) for lo, hi in group.parts)
        self._good_hi = group.hi - lost
        self._bound_fault(group.hi)
        self._batch = _joined(batches)
        count = 0 if self._batch is None else self._batch.num_rows
        raw = np.random.Philox(key=key ^ group.number, counter=group.number).random_raw(count)
        self._order = np.argsort(raw, kind="stable")
        # Evenly over the positions there are: a text has more of them than lines.
        places = np.arange(count + 1, dtype=np.int64)
        self._starts = self._lo + places * (self._good_hi - self._lo) // max(1, count)

    def _bound_fault(self, hi: int) -> None:
        if self.fault is not None:
            self.fault.lo, self.fault.hi = self._good_hi, hi

    def _read(self, file: UnitFile, lo: int, hi: int, batches: list[pa.RecordBatch]) -> int:
        """Read a range; return how many of its positions cannot be read."""
        lost = 0
        at = lo
        while at < hi:
            try:
                for block in file.rows(at, hi, block_bytes=GROUP_READ_BYTES):
                    batches.append(block.batch)
                    if block.left_out is not None:
                        self._left_out += block.left_out(block.hi) - block.left_out(block.lo)
                    at = block.hi
                at = hi
            except ReadError as error:
                if error.kind not in LOST_KINDS:
                    error.lo = error.hi = -1
                    raise
                begin = max(at, error.lo)
                end = min(hi, error.hi) if error.hi > begin else hi
                lost += end - begin
                at = end
                self.fault = error
        return lost

    def rows(self, lo: int, hi: int, block_bytes: int) -> Iterator[RowBlock]:
        """Yield the rows that begin in a range, as far as they can be read."""
        stop = min(hi, self._good_hi)
        first, last = (int(one) for one in self._starts[:-1].searchsorted((lo, stop)))
        if self._batch is None or first >= last:
            if self._batch is not None and lo < stop:
                yield RowBlock(self._batch.slice(0, 0), lo, stop, left_out=self._left_out_to())
            return
        row_bytes = max(1, self._batch.nbytes // self._batch.num_rows)
        step = max(1, block_bytes // row_bytes)
        at = lo
        for begin in range(first, last, step):
            end = min(begin + step, last)
            block_hi = stop if end == last else int(self._starts[end])
            yield self._block(begin, end, at, block_hi)
            at = block_hi

    def _block(self, begin: int, end: int, lo: int, hi: int) -> RowBlock:
        assert self._batch is not None
        batch = self._batch.take(self._order[begin:end])
        if self._good_hi - self._lo == len(self._order):
            return RowBlock(batch, lo, hi)
        return RowBlock(
            batch,
            lo,
            hi,
            ends=self._starts[begin + 1 : end + 1],
            first=int(self._starts[begin]),
            left_out=self._left_out_to(),
        )

    def _left_out_to(self) -> Callable[[int], int] | None:
        """Return how many rows left out lie before a position: as evenly as the others."""
        count, lo, span = self._left_out, self._lo, max(1, self._good_hi - self._lo)
        return (lambda position: (position - lo) * count // span) if count else None


class _Sampled:
    """A file of whose rows some are left out: those whose hash is not below the rate."""

    def __init__(self, file: UnitFile, sample: Sample, key: int) -> None:
        self._file = file
        self._key = np.uint64(key)
        self._below = np.uint64(min((1 << 64) - 1, (sample.per_million << 64) // MILLION))
        self.end = file.end
        self.row_count = file.row_count
        self.cuts = file.cuts

    def rows(self, lo: int, hi: int, *, block_bytes: int) -> Iterator[RowBlock]:
        for block in self._file.rows(lo, hi, block_bytes=block_bytes):
            yield self._sampled(block)

    def _sampled(self, block: RowBlock) -> RowBlock:
        if not block.row_count:
            return block
        mask = _hashed(begins_of(block), self._key) < self._below
        return kept_rows(block, mask, block.batch.take(np.flatnonzero(mask)))

    def pieces(self, lo: int, hi: int, *, framing: str) -> Iterator[PipeBlock]:
        yield from _pieces(self, lo, hi, framing)


def _hashed(values: "np.ndarray", key: np.uint64) -> "np.ndarray":
    """Return well mixed bits of numbers.

    Source: the finalizer of MurmurHash3 (Appleby).
    """
    bits = values.astype(np.uint64) + key
    shift = np.uint64(33)
    bits = (bits ^ (bits >> shift)) * np.uint64(0xFF51AFD7ED558CCD)
    bits = (bits ^ (bits >> shift)) * np.uint64(0xC4CEB9FE1A85EC53)
    return bits ^ (bits >> shift)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch | None:
    if len(batches) <= 1 or not any(one.num_rows for one in batches):
        return batches[0] if batches else None
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


@dataclass(frozen=True, slots=True)
class _Located:
    """From bytes that left a pipe to the position of the next record."""

    byte_ends: "np.ndarray"
    block: RowBlock

    def __call__(self, byte_count: int) -> int:
        whole = int(self.byte_ends.searchsorted(byte_count, side="right"))
        return self.block.position_after(whole)


def _pieces(file: UnitFile, lo: int, hi: int, framing: str) -> Iterator[PipeBlock]:
    """Yield rows as lines for a pipe."""
    for block in file.rows(lo, hi, block_bytes=PIPE_BLOCK_BYTES):
        if not block.row_count:
            yield PipeBlock(block.lo, block.hi, 0, block.position_after, left_out=block.left_out)
            continue
        if block.batch.schema.names != ["line"] or framing != "lines":
            raise ReadError(
                "rows that are shuffled or sampled go to standard input as lines of text only "
                f"(format: text, framing: lines), not as {framing}",
                kind="data",
            )
        column: Any = block.batch.column(0)  # pyarrow's own stubs know no bytes here
        lines: Any = pa.ListArray.from_arrays(pa.array([0, len(column)], pa.int32()), column)
        joined: Any = pc.binary_join(lines, b"\n")  # likewise
        data = joined[0].as_py() + b"\n"
        lengths = np.asarray(pc.binary_length(column), dtype=np.int64) + 1
        yield PipeBlock(
            block.lo,
            block.hi,
            block.row_count,
            _Located(np.cumsum(lengths), block),
            data=data,
            left_out=block.left_out,
        )


def _moved(block: RowBlock, by: int) -> RowBlock:
    counted = block.left_out
    return replace(
        block,
        lo=block.lo + by,
        hi=block.hi + by,
        ends=None if block.ends is None else block.ends + by,
        first=block.first + by if block.ends is not None else block.first,
        left_out=None if counted is None else lambda position: counted(position - by),
    )


def _moved_error(error: ReadError, by: int) -> ReadError:
    if error.lo >= 0:
        error.lo += by
    if error.hi >= 0 and error.hi != OPEN_END:
        error.hi += by
    return error
