"""Columns by name, and fields inside of columns by their path: `user.id`."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

# Any: pyarrow's stubs know no common parent of all arrays, fields or scalars with what they have.
AnyArray = Any
AnyField = Any
AnyScalar = Any


def type_at(schema: pa.Schema, name: str) -> pa.DataType | None:
    """Return the type of a column or a field inside of one; None when there is none."""
    index = schema.get_field_index(name)
    if index >= 0:
        found: pa.DataType = schema.field(index).type
        return found
    outer, rest = _outer(schema, name)
    if outer is None:
        return None
    kind: pa.DataType = outer.type
    for part in rest:
        if not pa.types.is_struct(kind) or kind.get_field_index(part) < 0:
            return None
        kind = kind.field(part).type
    return kind


def column_at(batch: pa.RecordBatch, name: str) -> AnyArray | None:
    """Return the values of a column or of a field inside of one; None when there is none."""
    index = batch.schema.get_field_index(name)
    if index >= 0:
        return batch.column(index)
    if type_at(batch.schema, name) is None:
        return None
    found, rest = _outer(batch.schema, name)
    assert found is not None
    # A field of a missing struct is missing, which struct_field looks after.
    return pc.struct_field(batch.column(found.name), rest)


def outer_names(schema: pa.Schema, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the columns that hold what is named, each once; unknown names as they are."""
    found: dict[str, None] = {}
    for name in names:
        outer = None if name in schema.names else _outer(schema, name)[0]
        found[name if outer is None else outer.name] = None
    return tuple(found)


def _outer(schema: pa.Schema, name: str) -> tuple[AnyField | None, list[str]]:
    """Return the column that a path begins in, and the rest of the path."""
    parts = name.split(".")
    for count in range(len(parts) - 1, 0, -1):
        index = schema.get_field_index(".".join(parts[:count]))
        if index >= 0:
            return schema.field(index), parts[count:]
    return None, []
