"""Rows as records for a pipe: whatever the format, in the framing that the trainer reads.

A record of a format with one column of bytes (`line`, `record`, `chunk`) is those bytes; of any
other it is a JSON object.
"""

import base64
import json
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import accumulate

import numpy as np
import pyarrow as pa

from primusd.datafeed.formats.base import PipeBlock, RowBlock

FRAMINGS = ("lines", "lines0", "len32")
"""Those that records are encoded in here."""
VALUE_COLUMNS = frozenset({"line", "record", "chunk"})
JSON_ROWS = 1024
LENGTH_BYTES = 4


def pieces_of(blocks: Iterable[RowBlock], framing: str) -> Iterator[PipeBlock]:
    """Yield the rows of blocks as pieces of a pipe.

    Args:
        blocks: Of one range, without gaps.
        framing: `lines`, `lines0`, `len32`, or `raw`: values one after the other.
    """
    for block in blocks:
        if is_of_values(block.batch.schema):
            yield _value_piece(block, framing)
            continue
        for first in range(0, max(1, block.row_count), JSON_ROWS):
            count = min(JSON_ROWS, block.row_count - first)
            yield _json_piece(block.part(first, count), framing)


def is_of_values(schema: pa.Schema) -> bool:
    """Return whether rows are plain bytes."""
    if len(schema) != 1 or schema.names[0] not in VALUE_COLUMNS:
        return False
    return pa.types.is_binary(schema.field(0).type)


def _value_piece(block: RowBlock, framing: str) -> PipeBlock:
    column = block.batch.column(0)
    if column.null_count:
        column = column.fill_null(b"")
    _, offsets, values = column.buffers()
    count = block.row_count
    if not count or offsets is None:
        return PipeBlock(block.lo, block.hi, 0, lambda _: block.hi)
    places = np.frombuffer(memoryview(offsets), np.int32, count + 1, column.offset * 4)
    codes = np.frombuffer(memoryview(values or b""), np.uint8)[places[0] : places[-1]]
    ends = (places[1:] - places[0]).astype(np.int64)
    data, added = _framed(codes, ends, framing)
    after = ends + added * np.arange(1, count + 1)
    return PipeBlock(block.lo, block.hi, count, _locator(block, after), data=data)


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
    texts = [_json_text(row) for row in block.batch.to_pylist()]
    match framing:
        case "lines0":
            records = [text + b"\0" for text in texts]
        case "len32":
            records = [len(text).to_bytes(LENGTH_BYTES, "little") + text for text in texts]
        case _:
            records = [text + b"\n" for text in texts]
    ends = np.array(list(accumulate(len(one) for one in records)), np.int64)
    return PipeBlock(
        block.lo, block.hi, block.row_count, _locator(block, ends), data=b"".join(records)
    )


def _locator(block: RowBlock, ends: np.ndarray) -> Callable[[int], int]:
    return lambda byte_count: block.position_after(bisect_right(ends, byte_count))


def _json_text(row: dict[str, object]) -> bytes:
    try:
        text = json.dumps(row, default=_plain, ensure_ascii=False, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(row), default=_plain, ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


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
