"""Arrow columns as numpy's: which type becomes which, and the buffers that go over the wire.

No value is changed on the way but these, which docs/feed-in-numpy.md names: a null in a float
column is NaN, in a date or a time NaT. Every other null goes along as a mask, and the SDK does with
it what the trainer chose. A type that numpy has nothing for is refused with its column's name.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from primus.wire import ENTRY, HAS_MASK, padding
from primusd.errors import PrimusdError

# Any: the stubs know no common parent of all arrays with what its kinds have.
AnyArray = Any
Buffer = pa.Buffer | memoryview | bytes
PADS = tuple(bytes(count) for count in range(64))


class ColumnError(PrimusdError):
    """A column that cannot be handed over in the layout that was asked for."""

    code = "UnsupportedColumn"


class Encoded(NamedTuple):
    """A column's rows as buffers."""

    flags: int
    byte_count: int
    """Of the last buffer."""
    buffers: tuple[Buffer, ...]


class ColumnPlan(NamedTuple):
    """How one column goes over the wire."""

    name: str
    kind: str
    """`fixed`, `text`, `bytes` or `list`."""
    dtype: str
    """Of its values, as numpy writes it."""
    width: int
    """Values a row; 0 one value that is no list."""
    encode: Callable[[AnyArray], Encoded]


def numpy_plan(schema: pa.Schema) -> tuple[ColumnPlan, ...]:
    """Return how each column of a schema goes over the wire.

    Raises:
        ColumnError: numpy has no type for one of them.
    """
    return tuple(_plan(field.name, field.type) for field in schema)


def encode_rows(batch: pa.RecordBatch, plan: tuple[ColumnPlan, ...]) -> tuple[list[Buffer], int]:
    """Return the buffers of a payload of kind NUMPY_ROWS, and the bytes they have in all."""
    entries = bytearray()
    buffers: list[Buffer] = [b""]
    total = ENTRY.size * len(plan)
    if pad := padding(total):
        buffers.append(PADS[pad])
    total += pad
    for column, array in zip(plan, batch.columns, strict=True):
        encoded = column.encode(array)
        entries += ENTRY.pack(encoded.flags, encoded.byte_count)
        for buffer in encoded.buffers:
            byte_count = len(buffer)
            buffers.append(buffer)
            if pad := padding(byte_count):
                buffers.append(PADS[pad])
            total += byte_count + pad
    buffers[0] = bytes(entries)
    return buffers, total


def describe(plan: tuple[ColumnPlan, ...]) -> list[dict[str, object]]:
    """Return the payload of kind NUMPY_SCHEMA, before it is JSON."""
    return [
        {"name": one.name, "kind": one.kind, "dtype": one.dtype, "width": one.width} for one in plan
    ]


def _plan(name: str, kind: pa.DataType) -> ColumnPlan:
    if pa.types.is_dictionary(kind):
        inner = _plan(name, kind.value_type)
        return inner._replace(encode=lambda array: inner.encode(array.dictionary_decode()))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return ColumnPlan(name, "text", "O", 0, _variable(pa.large_string()))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return ColumnPlan(name, "bytes", "O", 0, _variable(pa.large_binary()))
    if pa.types.is_fixed_size_binary(kind):
        return ColumnPlan(name, "bytes", "O", 0, _variable(pa.large_binary()))
    if pa.types.is_fixed_size_list(kind):
        dtype = _dtype(name, kind.value_type)
        encode = _fixed_list(name, dtype, kind.list_size)
        return ColumnPlan(name, "fixed", dtype, kind.list_size, encode)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        dtype = _dtype(name, kind.value_type)
        return ColumnPlan(name, "list", dtype, 0, _list(name, dtype))
    dtype = _dtype(name, kind)
    return ColumnPlan(name, "fixed", dtype, 0, _fixed(dtype))


def _dtype(name: str, kind: pa.DataType) -> str:
    if pa.types.is_boolean(kind):
        return "|b1"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return str(np.dtype(kind.to_pandas_dtype()).str)
    if pa.types.is_date32(kind):
        return "<M8[D]"
    if pa.types.is_date64(kind):
        return "<M8[ms]"
    if pa.types.is_timestamp(kind):
        return f"<M8[{kind.unit}]"
    if pa.types.is_duration(kind) or pa.types.is_time(kind):
        return f"<m8[{kind.unit}]"
    raise ColumnError(
        f"column {name} is {kind}, for which numpy has no type; take it with layout='arrow', or "
        "leave it out with columns=[…]"
    )


def _fixed(dtype: str) -> Callable[[AnyArray], Encoded]:
    size = np.dtype(dtype).itemsize
    if dtype == "|b1":
        return lambda array: _plain(array.cast(pa.uint8()), 1)
    if dtype[1] in "Mm":
        return lambda array: _plain(_with_nat(array, size), size)
    if dtype[1] == "f":
        return lambda array: _plain(_with_nan(array), size)
    return lambda array: _plain(array, size)


def _with_nan(array: AnyArray) -> AnyArray:
    return array.fill_null(float("nan")) if array.null_count else array


def _with_nat(array: AnyArray, size: int) -> AnyArray:
    """Return whole 64-bit numbers, the least one for a null: that is NaT."""
    if array.type.bit_width < size * 8:
        array = array.cast(pa.int32()).cast(pa.int64())
    whole = array.view(pa.int64())
    return whole.fill_null(np.iinfo(np.int64).min) if whole.null_count else whole


def _plain(array: AnyArray, size: int) -> Encoded:
    data = array.buffers()[1]
    byte_count = len(array) * size
    values = b"" if data is None else data.slice(array.offset * size, byte_count)
    if not array.null_count:
        return Encoded(0, byte_count, (values,))
    return Encoded(HAS_MASK, byte_count, (_mask(array), values))


def _mask(array: AnyArray) -> memoryview:
    """Return one byte a row, 1 for a null."""
    return np.asarray(array.is_null()).view(np.uint8).data


def _variable(wide: pa.DataType) -> Callable[[AnyArray], Encoded]:
    def encode(array: AnyArray) -> Encoded:
        wide_array = array if array.type == wide else array.cast(wide)
        _, offsets, data = wide_array.buffers()
        return _offset_buffers(array, wide_array.offset, offsets, data, 1)

    return encode


def _offset_buffers(
    array: AnyArray, offset: int, offsets: pa.Buffer | None, data: pa.Buffer | None, size: int
) -> Encoded:
    if offsets is None or not len(array):
        return Encoded(0, 0, (np.zeros(len(array) + 1, np.int64).view(np.uint8).data, b""))
    found = np.frombuffer(memoryview(offsets), np.int64, len(array) + 1, offset * 8)
    first, last = int(found[0]), int(found[-1])
    byte_count = (last - first) * size
    values = b"" if data is None else data.slice(first * size, byte_count)
    buffers: tuple[Buffer, ...] = ((found - first).view(np.uint8).data, values)
    if not array.null_count:
        return Encoded(0, byte_count, buffers)
    return Encoded(HAS_MASK, byte_count, (_mask(array), *buffers))


def _fixed_list(name: str, dtype: str, width: int) -> Callable[[AnyArray], Encoded]:
    inner = _fixed(dtype)

    def encode(array: AnyArray) -> Encoded:
        if array.null_count:
            raise ColumnError(
                f"column {name} has a row without its list; take it with layout='arrow'"
            )
        encoded = inner(array.values.slice(array.offset * width, len(array) * width))
        if encoded.flags:
            raise ColumnError(_null_inside(name))
        return encoded

    return encode


def _list(name: str, dtype: str) -> Callable[[AnyArray], Encoded]:
    inner = _fixed(dtype)
    size = np.dtype(dtype).itemsize

    def encode(array: AnyArray) -> Encoded:
        lengths: AnyArray = pc.list_value_length(array)
        counts = np.asarray(lengths.fill_null(0), dtype=np.int64)
        offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
        encoded = inner(array.flatten())
        if encoded.flags:
            raise ColumnError(_null_inside(name))
        assert encoded.byte_count == int(offsets[-1]) * size
        buffers: tuple[Buffer, ...] = (offsets.view(np.uint8).data, *encoded.buffers)
        if not array.null_count:
            return Encoded(0, encoded.byte_count, buffers)
        return Encoded(HAS_MASK, encoded.byte_count, (_mask(array), *buffers))

    return encode


def _null_inside(name: str) -> str:
    return f"column {name} has a list with a null in it; take it with layout='arrow'"
