"""One stream, one schema: what becomes of files whose columns are missing, new or of other types.

The columns are those that the job file lists, else those of the first file that was read; a type
is the one that the job file gives, else that of the first file that has the column. The same type
in another layout (a dictionary, 64-bit offsets) is no other type.
"""

from dataclasses import replace
from typing import Any

import pyarrow as pa

from primusd.datafeed.formats.base import ReadError, RowBlock
from primusd.datafeed.formats.decoders import type_of
from primusd.datafeed.formats.nested import AnyArray, AnyField, column_at, type_at
from primusd.datafeed.formats.settings import Settings


class SchemaKeeper:
    """Gives all blocks of a stream the same columns."""

    def __init__(self, settings: Settings) -> None:
        self._columns = settings.columns
        self._types = {name: type_of(text) for name, text in settings.types.items()}
        self._policy = settings.on_schema
        self._schema: pa.Schema | None = None

    def shaped(self, block: RowBlock, location: str) -> RowBlock:
        """Return a block with the stream's columns.

        Raises:
            ReadError: Its file has other ones: of kind `schema` where it is to be left out.
        """
        batch = block.batch
        if self._schema is None:
            self._schema = self._first(batch.schema, location)
        schema = self._schema
        if batch.schema.equals(schema):
            return block
        fault = self._fault(batch.schema, schema)
        if fault and self._policy != "null":
            raise self._error(f"{location}: {fault}")
        arrays = [self._column(batch, field, location) for field in schema]
        return replace(block, batch=pa.RecordBatch.from_arrays(arrays, schema=schema))

    def typed(self, location: str, name: str, column: AnyArray) -> AnyArray:
        """Return a column with the type that it has in the stream, where that is known.

        Raises:
            ReadError: It cannot have it.
        """
        kind = self._types.get(name)
        if kind is None and self._policy == "null" and self._schema is not None:
            kind = type_at(self._schema, name)
        if kind is None or _is_same(column.type, kind):
            return column
        return self._cast(column, pa.field(name, kind), location)

    def _first(self, found: pa.Schema, location: str) -> pa.Schema:
        """Return the stream's schema, now that its first file is known."""
        names = self._columns or tuple(found.names)
        fields = []
        for name in names:
            kind = self._types.get(name) or type_at(found, name)
            if kind is None:
                hint = (
                    f"; say its type, types: {{{name}: …}}, and it is null there"
                    if self._policy == "null"
                    else ""
                )
                raise self._error(f"{location} has no column {name}{hint}")
            fields.append(pa.field(name, kind))
        return pa.schema(fields)

    def _fault(self, found: pa.Schema, schema: pa.Schema) -> str:
        """Return how a file's columns differ from the stream's, "" when they do not."""
        for field in schema:
            kind = type_at(found, field.name)
            if kind is None:
                return f"column {field.name} of the files before is missing"
            if field.name not in self._types and not _is_same(kind, field.type):
                return (
                    f"column {field.name} is {kind} here and was {field.type} in the files before; "
                    f"types: {{{field.name}: …}} settles it"
                )
        if not self._columns:
            new = [name for name in found.names if name not in schema.names]
            if new:
                return f"column {', '.join(new[:5])} is not in the files before"
        return ""

    def _column(self, batch: pa.RecordBatch, field: AnyField, location: str) -> AnyArray:
        column = column_at(batch, field.name)
        if column is None:
            return pa.nulls(batch.num_rows, field.type)
        if column.type == field.type:
            return column
        return self._cast(column, field, location)

    def _cast(self, column: AnyArray, field: AnyField, location: str) -> AnyArray:
        try:
            return column.cast(field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            if self._policy != "null":
                first = str(error).split("\n", 1)[0][:200]
                raise self._error(
                    f"{location}: column {field.name} is {column.type} and cannot be "
                    f"{field.type}: {first}"
                ) from error
            return _cast_or_null(column, field.type)

    def _error(self, text: str) -> ReadError:
        kind = "schema" if self._policy == "skip" else "data"
        return ReadError(f"{text}; onSchema is {self._policy}", kind=kind)


def _is_same(found: pa.DataType, known: pa.DataType) -> bool:
    """Return whether two types hold the same values; a column without any has the type null."""
    return pa.types.is_null(found) or _plain(found) == _plain(known)


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _plain(field.type)) for field in kind])
    return kind


def _cast_or_null(column: AnyArray, kind: Any) -> AnyArray:
    """Return each value that can be cast, and null for those that cannot."""
    try:
        return column.cast(kind)
    except pa.ArrowNotImplementedError:
        return pa.nulls(len(column), kind)
    except pa.ArrowInvalid:
        if len(column) == 1:
            return pa.nulls(1, kind)
        half = len(column) // 2
        parts = [
            _cast_or_null(column.slice(0, half), kind),
            _cast_or_null(column.slice(half), kind),
        ]
        return pa.concat_arrays(parts)
