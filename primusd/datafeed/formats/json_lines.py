"""Rows as lines of JSON, made a column at a time.

A row is built as a Struct of the batch's columns, since that costs `msgspec` a third of what a
dict does; what is written is the same.
"""

import functools
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa

from primusd.datafeed.formats.nested import AnyArray

ValuesOf = Callable[[str, AnyArray], list[Any]]
_encode_lines = msgspec.json.Encoder().encode_lines


@functools.lru_cache(maxsize=64)
def takes_names(names: tuple[str, ...]) -> bool:
    """Return whether rows of columns with these names can be Structs: each once, and plain."""
    are_plain = all(msgspec.json.encode(name) == f'"{name}"'.encode() for name in names)
    return are_plain and 0 < len(names) == len(set(names))


def json_lines(batch: pa.RecordBatch, values_of: ValuesOf) -> bytes:
    """Return an object a row, each behind it a newline; inside of one there is none.

    Args:
        batch: With names that it takes.
        values_of: Returns a column, told its name too, as values that JSON can be made of.
    """
    names = batch.schema.names
    row_of = _row_type(tuple(names))
    columns = (_plain(*one, values_of) for one in zip(names, batch.columns, strict=True))
    return _encode_lines([*map(row_of, *columns)])


def _plain(name: str, column: AnyArray, values_of: ValuesOf) -> list[Any]:
    kind = column.type
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    if column.null_count or not (is_number or pa.types.is_boolean(kind)):
        return values_of(name, column)
    found: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
    return found


@functools.lru_cache(maxsize=64)
def _row_type(names: tuple[str, ...]) -> Callable[..., msgspec.Struct]:
    fields = [f"c{number}" for number in range(len(names))]
    return msgspec.defstruct(
        "Row",
        [(field, object) for field in fields],
        rename=dict(zip(fields, names, strict=True)),
        gc=False,
    )
