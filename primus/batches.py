"""Frames as batches: decoded without copying, cut to the rows that were asked for."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from primus import wire
from primus.byte_rows import BytesBatch, joined
from primus.errors import FeedError, NullsError

# What has no null of its own; everything else becomes None, NaN or NaT.
NULL_MODES = ("error", "masked", "float")
EXACT_FLOAT_MAX = 1 << 53


class Span(NamedTuple):
    """Where rows come from: those of a unit that begin at positions lo to hi, hi excluded."""

    unit: int
    lo: int
    hi: int


class Batch(dict[str, Any]):
    """Rows as numpy columns by name.

    Attributes:
        rows: How many rows it has.
        epoch: The pass over the data that they belong to, from 0.
        receipt: What `feed.commit` takes.
        spans: Where the frames that it was cut from come from.
        is_pad: It repeats the one before, while other trainers still have some (`tail: pad`).
    """

    __slots__ = ("epoch", "is_pad", "receipt", "rows", "spans")

    rows: int
    epoch: int
    receipt: int
    spans: tuple[Span, ...]
    is_pad: bool

    def to_pandas(self) -> Any:
        """Return the rows as a pandas.DataFrame, copied.

        Masked columns become nullable ones (`Int64`), matrices columns of arrays.

        Raises:
            FeedError: This Python has no pandas.
        """
        from primus._pandas import frame_of  # noqa: PLC0415 few ask for it

        return frame_of(self)


class ArrowBatch(Mapping[str, Any]):
    """Rows as Arrow columns by name.

    Attributes:
        data: The pyarrow.RecordBatch.
        rows: As of Batch, like all that follow.
        epoch: As of Batch.
        receipt: As of Batch.
        spans: As of Batch.
        is_pad: As of Batch.
    """

    __slots__ = ("data", "epoch", "is_pad", "receipt", "rows", "spans")

    rows: int
    epoch: int
    receipt: int
    spans: tuple[Span, ...]
    is_pad: bool

    def __init__(self, data: Any) -> None:
        self.data = data

    def __getitem__(self, name: str) -> Any:
        return self.data.column(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.data.schema.names)

    def __len__(self) -> int:
        return len(self.data.schema.names)

    def to_pandas(self) -> Any:
        """Return the rows as a pandas.DataFrame, as pyarrow makes it.

        Raises:
            FeedError: This Python has no pandas.
        """
        from primus._pandas import found_pandas  # noqa: PLC0415 few ask for it

        found_pandas()
        return self.data.to_pandas()


class Frame(NamedTuple):
    """Rows of one lease, decoded."""

    rows: int
    epoch: int
    receipt: int
    """Rows handed out up to its end."""
    span: Span
    content: Any
    """Columns by name, a pyarrow.RecordBatch, or ByteRows."""


AnyBatch = Batch | ArrowBatch | BytesBatch


class Batcher:
    """Joins and cuts frames to batches of a number of rows; never over the end of an epoch."""

    def __init__(self, batch_rows: int, *, layout: str) -> None:
        self._batch_rows = batch_rows
        self._layout = layout
        self._frames: deque[Frame] = deque()
        self._first_row = 0
        self._rows = 0

    @property
    def has_rows(self) -> bool:
        """Whether it has rows that were not cut yet."""
        return self._rows > 0

    def add(self, frame: Frame) -> None:
        """Take a frame behind those it has."""
        self._frames.append(frame)
        self._rows += frame.rows

    def next_full(self) -> AnyBatch | None:
        """Return a batch of the full number of rows, or what is left of an epoch; else None."""
        frames = self._frames
        if not frames:
            return None
        if frames[0].epoch != frames[-1].epoch:
            rows = sum(one.rows for one in frames if one.epoch == frames[0].epoch)
            return self._cut(min(self._batch_rows, rows - self._first_row))
        return self._cut(self._batch_rows) if self._rows >= self._batch_rows else None

    def rest(self) -> AnyBatch | None:
        """Return a batch of all that is left, None when nothing is; at most one is short."""
        return self.next_full() or (self._cut(self._rows) if self._rows else None)

    def drop(self) -> None:
        """Forget all that is left: no trainer gets more."""
        self._frames.clear()
        self._first_row = self._rows = 0

    def _cut(self, count: int) -> AnyBatch:
        pieces: list[tuple[Frame, int, int]] = []
        missing = count
        while missing:
            frame, start = self._frames[0], self._first_row
            taken = min(missing, frame.rows - start)
            pieces.append((frame, start, start + taken))
            missing -= taken
            self._first_row += taken
            if self._first_row == frame.rows:
                self._frames.popleft()
                self._first_row = 0
        self._rows -= count
        batch = self._joined(pieces)
        last, _, end = pieces[-1]
        batch.rows = count
        batch.epoch = last.epoch
        batch.receipt = last.receipt - last.rows + end
        batch.spans = tuple(frame.span for frame, _, _ in pieces)
        batch.is_pad = False
        return batch

    def _joined(self, pieces: list[tuple[Frame, int, int]]) -> AnyBatch:
        if self._layout in ("numpy", "dense"):
            return _numpy(pieces)
        parts = [frame.content.slice(start, end - start) for frame, start, end in pieces]
        if self._layout != "arrow":
            return BytesBatch(joined(parts), gap=self._layout == "lines")
        if len(parts) == 1:
            return ArrowBatch(parts[0])
        import pyarrow as pa  # noqa: PLC0415 only with layout="arrow"

        return ArrowBatch(pa.Table.from_batches(parts).combine_chunks().to_batches()[0])


def _numpy(pieces: list[tuple[Frame, int, int]]) -> Batch:
    batch = Batch()
    if len(pieces) == 1:
        frame, start, end = pieces[0]
        part = slice(start, end)
        # A dict made first and copied into the batch would take twice as long.
        for name, column in frame.content.items():
            batch[name] = column[part]
        return batch
    for name, column in pieces[0][0].content.items():
        join = np.ma.concatenate if isinstance(column, np.ma.MaskedArray) else np.concatenate
        batch[name] = join([frame.content[name][start:end] for frame, start, end in pieces])
    return batch


class NumpyDecoder:
    """Payloads of kind NUMPY_ROWS as columns, views of the payload where that is possible."""

    def __init__(self, columns: list[dict[str, Any]], nulls: str | Mapping[str, str]) -> None:
        self._readers = [(str(one["name"]), _reader(one, _mode(one, nulls))) for one in columns]
        unknown = set(nulls) - {str(one["name"]) for one in columns} if _is_map(nulls) else set()
        if unknown:
            raise FeedError(f"nulls= names columns that the stream has not: {sorted(unknown)}")
        table = wire.ENTRY.size * len(columns)
        self._begin = table + wire.padding(table)

    def decode(self, payload: memoryview, rows: int) -> dict[str, Any]:
        """Return the columns of a payload.

        Raises:
            NullsError: A column has nulls, and nothing was chosen for them.
        """
        at = self._begin
        out: dict[str, Any] = {}
        entries = wire.ENTRY.iter_unpack(payload[: wire.ENTRY.size * len(self._readers)])
        for (name, read), (flags, byte_count) in zip(self._readers, entries, strict=True):
            mask = None
            if flags & wire.HAS_MASK:
                mask = np.frombuffer(payload, np.bool_, rows, at)
                at += rows + wire.padding(rows)
            out[name], at = read(payload, at, rows, byte_count, mask)
        return out


Mask = Any
Read = Callable[[memoryview, int, int, int, Mask], tuple[Any, int]]


def _is_map(nulls: str | Mapping[str, str]) -> bool:
    return not isinstance(nulls, str)


def _mode(column: dict[str, Any], nulls: str | Mapping[str, str]) -> str:
    mode = nulls if isinstance(nulls, str) else nulls.get(str(column["name"]), "error")
    if mode not in NULL_MODES:
        raise FeedError(f"nulls={mode!r} is not one of {', '.join(NULL_MODES)}")
    return mode


def _reader(column: dict[str, Any], mode: str) -> Read:
    name, kind = str(column["name"]), column["kind"]
    if kind == "fixed":
        dtype, width = np.dtype(column["dtype"]), int(column["width"])
        fixed = _fixed(dtype, width)
        has_nulls = dtype.kind in "iub" and not width
        return _with_nulls(name, fixed, mode) if has_nulls else fixed
    if kind == "list":
        return _lists(np.dtype(column["dtype"]))
    return _values(_decode_text if kind == "text" else bytes)


def _fixed(dtype: Any, width: int) -> Read:
    def read(payload: memoryview, at: int, rows: int, byte_count: int, mask: Mask) -> Any:
        del mask
        values = np.frombuffer(payload, dtype, rows * (width or 1), at)
        after = at + byte_count + wire.padding(byte_count)
        return (values.reshape(rows, width) if width else values), after

    return read


def _with_nulls(name: str, fixed: Read, mode: str) -> Read:
    def read(payload: memoryview, at: int, rows: int, byte_count: int, mask: Mask) -> Any:
        values, after = fixed(payload, at, rows, byte_count, None)
        if mode == "masked":
            return np.ma.MaskedArray(values, False if mask is None else mask), after
        if mode == "float":
            return _as_float(name, values, mask), after
        if mask is not None:
            raise NullsError(
                f"column {name} has nulls ({int(mask.sum())} in these {rows} rows), and "
                f"{values.dtype} has no place for them; choose nulls={{{name!r}: 'masked'}} or "
                f"nulls={{{name!r}: 'float'}}"
            )
        return values, after

    return read


def _as_float(name: str, values: Any, mask: Mask) -> Any:
    out = values.astype(np.float64)
    known = values if mask is None else values[~mask]
    if len(known) and values.dtype.itemsize == 8:
        top = max(abs(int(known.max())), abs(int(known.min())))
        if top > EXACT_FLOAT_MAX:
            raise NullsError(f"column {name} has {top}, which no float holds; take it masked")
    if mask is not None:
        out[mask] = np.nan
    return out


def _values(decode: Callable[[memoryview], Any]) -> Read:
    def read(payload: memoryview, at: int, rows: int, byte_count: int, mask: Mask) -> Any:
        offsets, at = _offsets(payload, at, rows)
        data = payload[at : at + byte_count]
        out = np.empty(rows, object)
        out[:] = [decode(data[a:b]) for a, b in pairwise(offsets)]
        if mask is not None:
            out[mask] = None
        return out, at + byte_count + wire.padding(byte_count)

    return read


def _decode_text(data: memoryview) -> str:
    return str(data, "utf-8", "surrogateescape")


def _lists(dtype: Any) -> Read:
    def read(payload: memoryview, at: int, rows: int, byte_count: int, mask: Mask) -> Any:
        offsets, at = _offsets(payload, at, rows)
        values = np.frombuffer(payload, dtype, byte_count // dtype.itemsize, at)
        out = np.empty(rows, object)
        for row, (a, b) in enumerate(pairwise(offsets)):
            out[row] = values[a:b]
        if mask is not None:
            out[mask] = None
        return out, at + byte_count + wire.padding(byte_count)

    return read


def _offsets(payload: memoryview, at: int, rows: int) -> tuple[list[int], int]:
    byte_count = (rows + 1) * 8
    offsets = np.frombuffer(payload, np.int64, rows + 1, at).tolist()
    return offsets, at + byte_count + wire.padding(byte_count)
