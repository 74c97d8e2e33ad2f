"""Protobuf messages as columns, by a descriptor set; a Python object a row for a moment.

A field without presence has its default where it is not set; one with presence, and a message
inside, is null. Enums are their names, maps are maps, a repeated field is a list.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from primusd.datafeed.formats.base import ReadError
from primusd.datafeed.formats.decoders import BadRecordError
from primusd.datafeed.formats.framings import Cut

DEPTH_MAX = 16
_SCALARS: Mapping[int, pa.DataType] = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.uint32(),
    FieldDescriptor.CPPTYPE_UINT64: pa.uint64(),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_ENUM: pa.string(),
}
# A value of a field, as protobuf's classes have it, into one that pyarrow takes.
Convert = Callable[[Any], object]


class Messages:
    """Decodes records as messages of one type."""

    needs_head = False

    def __init__(self, descriptors: str, name: str, wanted: tuple[str, ...]) -> None:
        """Read the descriptor set.

        Args:
            descriptors: Its file.
            name: Of the message, in full.
            wanted: Fields to decode, or paths into them; empty: all.

        Raises:
            ReadError: It cannot be read, or has no such message.
        """
        descriptor = _descriptor(descriptors, name)
        self._class = message_factory.GetMessageClass(descriptor)
        outer = {one.split(".")[0] for one in wanted}
        fields = [field for field in descriptor.fields if not outer or field.name in outer]
        self._fields = [(field, _converter(field, 0)) for field in fields]
        self._schema = pa.schema([(field.name, _type(field, 0)) for field in fields])

    def prepare(self, head: bytes, *, is_whole: bool) -> int:
        """Return 0: records begin at once."""
        del head, is_whole
        return 0

    def decode(self, data: bytes, cut: Cut) -> pa.RecordBatch:
        """Return a row for each message."""
        columns: list[list[object]] = [[] for _ in self._fields]
        message = self._class()
        pairs = zip(cut.begins.tolist(), cut.stops.tolist(), strict=True)
        for index, (begin, stop) in enumerate(pairs):
            try:
                message.ParseFromString(data[begin:stop])
            except DecodeError as error:
                name = self._class.DESCRIPTOR.full_name
                raise BadRecordError(f"is no message {name}: {error}", index) from error
            for column, (field, convert) in zip(columns, self._fields, strict=True):
                column.append(_value(message, field, convert))
        arrays = [
            pa.array(column, field.type)
            for column, field in zip(columns, self._schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _inner(field: FieldDescriptor) -> Descriptor:
    assert field.message_type is not None
    return field.message_type


def _descriptor(path: str, name: str) -> Descriptor:
    found = descriptor_pb2.FileDescriptorSet()
    try:
        found.ParseFromString(Path(path).read_bytes())
    except OSError as error:
        text = f"descriptors {path} cannot be read: {error.strerror}"
        raise ReadError(text, kind="data") from error
    except DecodeError as error:
        raise ReadError(
            f"{path} is no FileDescriptorSet; protoc --include_imports -o {path} makes one",
            kind="data",
        ) from error
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in found.file:
            pool.Add(file)
        return pool.FindMessageTypeByName(name)
    except (KeyError, TypeError) as error:
        have = [
            f"{file.package}.{one.name}".lstrip(".")
            for file in found.file
            for one in file.message_type
        ]
        raise ReadError(
            f"{path} has no message {name}; it has {', '.join(have[:20])}", kind="data"
        ) from error


def _value(message: Any, field: FieldDescriptor, convert: Convert) -> object:
    if field.has_presence and not message.HasField(field.name):
        return None
    return convert(getattr(message, field.name))


def _is_map(field: FieldDescriptor) -> bool:
    inner = field.message_type
    return inner is not None and inner.GetOptions().map_entry


def _type(field: FieldDescriptor, depth: int) -> pa.DataType:
    if _is_map(field):
        key, value = _inner(field).fields
        return pa.map_(_one_type(key, depth), _one_type(value, depth))
    one = _one_type(field, depth)
    return pa.list_(one) if field.is_repeated else one


def _one_type(field: FieldDescriptor, depth: int) -> pa.DataType:
    if depth > DEPTH_MAX:
        raise ReadError(
            f"message field {field.full_name} is nested deeper than {DEPTH_MAX} or "
            "holds itself; columns: […] leaves such fields out",
            kind="data",
        )
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        inner = _inner(field).fields
        return pa.struct([(one.name, _type(one, depth + 1)) for one in inner])
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return pa.binary() if field.type == FieldDescriptor.TYPE_BYTES else pa.string()
    return _SCALARS[field.cpp_type]


def _converter(field: FieldDescriptor, depth: int) -> Convert:
    if _is_map(field):
        key, value = _inner(field).fields
        of_key, of_value = _one_converter(key, depth), _one_converter(value, depth)
        return lambda found: [(of_key(one), of_value(found[one])) for one in found]
    convert = _one_converter(field, depth)
    return (lambda found: [convert(one) for one in found]) if field.is_repeated else convert


def _one_converter(field: FieldDescriptor, depth: int) -> Convert:
    if depth > DEPTH_MAX:
        return lambda _: None
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_MESSAGE:
            inner = [(one, _converter(one, depth + 1)) for one in _inner(field).fields]
            return lambda found: {one.name: _value(found, one, of) for one, of in inner}
        case FieldDescriptor.CPPTYPE_ENUM:
            assert field.enum_type is not None
            names = field.enum_type.values_by_number
            # A number that the descriptor does not know yet is kept as it is.
            return lambda found: names[found].name if found in names else str(found)
        case _:
            return lambda found: found
