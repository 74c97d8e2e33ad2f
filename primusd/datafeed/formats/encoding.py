"""Rows as records for a pipe: whatever the format, in the framing that the trainer reads.

A record of a format with one column of bytes (`line`, `record`, `chunk`) is those bytes; of any
other it is a JSON object.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from primusd.datafeed.formats.base import PipeBlock, ReadError, RowBlock
from primusd.datafeed.formats.json_lines import json_lines, takes_names
from primusd.datafeed.formats.nested import AnyArray

FRAMINGS = ("lines", "lines0", "len32", "arrow-stream")
"""Those that records are encoded in here."""
VALUE_COLUMNS = frozenset({"line", "record", "chunk"})
JSON_ROWS = 1024
PIPE_ROWS_BYTES = 4 << 20
"""Of the blocks that rows are read in for a pipe."""
LENGTH_BYTES = 4
NEWLINE = ord("\n")
_encode = msgspec.json.Encoder().encode


def piped(
    rows: Callable[[int], Iterable[RowBlock]], framing: str, what: str
) -> Iterator[PipeBlock]:
    """Yield rows as pieces of a pipe.

    Args:
        rows: Gives the blocks of one range, about so many bytes each.
        framing: As the job file says.
        what: They are, for people.

    Raises:
        ReadError: They have no form for this framing.
    """
    if framing not in FRAMINGS:
        raise ReadError(
            f"{what} cannot go to standard input as {framing}; use framing: lines, which gives one "
            "JSON object a row",
            kind="data",
        )
    yield from pieces_of(rows(PIPE_ROWS_BYTES), framing)


def pieces_of(blocks: Iterable[RowBlock], framing: str) -> Iterator[PipeBlock]:
    """Yield the rows of blocks as pieces of a pipe.

    Args:
        blocks: Of one range, without gaps.
        framing: `lines`, `lines0`, `len32`, `arrow-stream`, or `raw`: values one after the other.
    """
    for block in blocks:
        for piece in _block_pieces(block, framing):
            yield piece if block.left_out is None else replace(piece, left_out=block.left_out)


def _block_pieces(block: RowBlock, framing: str) -> Iterator[PipeBlock]:
    if framing == "arrow-stream":
        yield _arrow_piece(block)
        return
    if is_of_values(block.batch.schema):
        yield _value_piece(block, framing)
        return
    for first in range(0, max(1, block.row_count), JSON_ROWS):
        count = min(JSON_ROWS, block.row_count - first)
        yield _json_piece(block.part(first, count), framing)


def is_of_values(schema: pa.Schema) -> bool:
    """Return whether rows are plain bytes."""
    if len(schema) != 1 or schema.names[0] not in VALUE_COLUMNS:
        return False
    return pa.types.is_binary(schema.field(0).type)


def json_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return rows as `msgspec.json` encodes them: bytes as base64, times in ISO 8601, NaN null."""
    return plain_rows(_ready(batch))


def _ready(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with columns that Python has values for."""
    if not any(_is_made(field.type) for field in batch.schema):
        return batch
    columns = [_made(column) if _is_made(column.type) else column for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def json_text(batch: pa.RecordBatch) -> bytes:
    """Return rows as lines of JSON; as `json_rows` in all else.

    Raises:
        ReadError: As `plain_rows`.
    """
    if not takes_names(tuple(batch.schema.names)):
        return b"".join(_encode(row) + b"\n" for row in json_rows(batch))
    return json_lines(_ready(batch), _values)


def _values(name: str, column: AnyArray) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        return _decoded(name, column)
    return values


def plain_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return rows as Python's values; bytes in a text that are no UTF-8 become U+FFFD.

    Raises:
        ReadError: There are such bytes inside of a list, a struct or a map.
    """
    try:
        return batch.to_pylist()
    except UnicodeDecodeError:
        columns = [_decoded(field.name, batch.column(field.name)) for field in batch.schema]
        return [
            dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True)
        ]


def _decoded(name: str, column: AnyArray) -> list[Any]:
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        found = column.cast(pa.large_binary()).to_pylist()
        return [None if one is None else one.decode("utf-8", "replace") for one in found]
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError as error:
        raise ReadError(
            f"column {name} has bytes that are no UTF-8: {error}", kind="data"
        ) from error
    return values


def _is_made(kind: Any) -> bool:  # the stubs know no type of all that have a unit
    """Return whether Python has no value for a type that JSON would take."""
    is_time = pa.types.is_timestamp(kind) or pa.types.is_time(kind)
    return bool(pa.types.is_duration(kind) or (is_time and kind.unit == "ns"))


def _made(column: AnyArray) -> AnyArray:
    """Return durations as seconds, and times by the nanosecond as texts."""
    if pa.types.is_duration(column.type):
        per_s = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[column.type.unit]
        return pc.divide(column.cast(pa.int64()).cast(pa.float64()), float(per_s))
    return pc.replace_substring(column.cast(pa.string()), " ", "T")


def framed_rows(batch: pa.RecordBatch, framing: str) -> tuple[bytes, np.ndarray]:
    """Return rows as bytes, and where each of them ends.

    Args:
        batch: Rows of any format.
        framing: `lines`, `lines0`, `len32` or `raw`.

    Raises:
        ReadError: As `plain_rows`, or rows of columns have no form as `raw`.
    """
    if is_of_values(batch.schema):
        return _framed_values(batch, framing)
    if framing == "raw":
        names = ", ".join(batch.schema.names)
        raise ReadError(
            f"rows with columns ({names}) are no bytes to be had as raw; lines gives one JSON "
            "object a row",
            kind="data",
        )
    return _framed_objects(batch, framing)


def _value_piece(block: RowBlock, framing: str) -> PipeBlock:
    if not block.row_count:
        return PipeBlock(block.lo, block.hi, 0, lambda _: block.hi)
    data, ends = _framed_values(block.batch, framing)
    return PipeBlock(block.lo, block.hi, block.row_count, _locator(block, ends), data=data)


def _framed_values(batch: pa.RecordBatch, framing: str) -> tuple[bytes, np.ndarray]:
    column = batch.column(0)
    if column.null_count:
        column = column.fill_null(b"")
    _, offsets, values = column.buffers()
    count = len(column)
    if not count or offsets is None:
        return b"", np.empty(0, np.int64)
    places = np.frombuffer(memoryview(offsets), np.int32, count + 1, column.offset * 4)
    codes = np.frombuffer(memoryview(values or b""), np.uint8)[places[0] : places[-1]]
    ends = (places[1:] - places[0]).astype(np.int64)
    data, added = _framed(codes, ends, framing)
    return data, ends + added * np.arange(1, count + 1)


def _framed(codes: np.ndarray, ends: np.ndarray, framing: str) -> tuple[bytes, int]:
    """Return values in a framing, and how many bytes it adds to each."""
    begins = np.concatenate(([0], ends[:-1]))
    match framing:
        case "lines":
            return np.insert(codes, ends, 10).tobytes(), 1
        case "lines0":
            return np.insert(codes, ends, 0).tobytes(), 1
        case "len32":
            lengths = (ends - begins).astype("<u4").view(np.uint8)
            return np.insert(
                codes, np.repeat(begins, LENGTH_BYTES), lengths
            ).tobytes(), LENGTH_BYTES
        case _:
            return codes.tobytes(), 0


def _json_piece(block: RowBlock, framing: str) -> PipeBlock:
    data, ends = _framed_objects(block.batch, framing)
    return PipeBlock(block.lo, block.hi, block.row_count, _locator(block, ends), data=data)


def _framed_objects(batch: pa.RecordBatch, framing: str) -> tuple[bytes, np.ndarray]:
    data = json_text(batch)
    codes = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(codes == NEWLINE) + 1
    match framing:
        case "lines0":
            # Inside of an object there is no newline.
            data = data.replace(b"\n", b"\0")
        case "len32":
            plain = ends - np.arange(1, len(ends) + 1)
            data, added = _framed(codes[codes != NEWLINE], plain, framing)
            ends = plain + added * np.arange(1, len(ends) + 1)
        case _:
            pass
    return data, ends


def _arrow_piece(block: RowBlock) -> PipeBlock:
    """Return the rows as one message of an Arrow IPC stream, behind its schema."""
    if not block.row_count:
        return PipeBlock(block.lo, block.hi, 0, lambda _: block.hi)
    batch = _without_dictionaries(block.batch)
    data = batch.serialize().to_pybytes()
    return PipeBlock(
        block.lo,
        block.hi,
        block.row_count,
        lambda byte_count: block.hi if byte_count >= len(data) else block.lo,
        data=data,
        preface=batch.schema.serialize().to_pybytes(),
    )


def _without_dictionaries(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the values: a dictionary would have to be the same in every file."""
    columns: dict[str, Any] = dict(zip(batch.schema.names, batch.columns, strict=True))
    for name, column in columns.items():
        if pa.types.is_dictionary(column.type):
            columns[name] = column.dictionary_decode()
    return pa.RecordBatch.from_pydict(columns)


def _locator(block: RowBlock, ends: np.ndarray) -> Callable[[int], int]:
    positions = block.positions
    return lambda byte_count: positions.after(bisect_right(ends, byte_count))
