"""Columns of numbers side by side: row-major matrices that become tensors without a copy.

A batch's columns are stacked before they are encoded, so a matrix is on the wire what a column of
fixed-size lists is, and the trainer's side needs nothing new.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import pyarrow as pa

from primusd.datafeed.delivery.columns import ColumnError

Stacks = Mapping[str, Sequence[str]]
"""Column names, or patterns of them, by the name of the matrix that they become."""

# Of a stack: its name, the columns in it, and the type of its numbers.
_Group = tuple[str, tuple[str, ...], Any]


class Stacker:
    """Stacks the columns of batches of one schema.

    Args:
        schema: Of all batches to come.
        stacks: As asked for; empty: the columns of each type of number make one matrix, which is
            named like the type (`float32`, `int64`).

    Raises:
        ColumnError: A stack names a column that is not there, twice, or is not of numbers.
    """

    def __init__(self, schema: pa.Schema, stacks: Stacks) -> None:
        found = _named(schema, stacks) if stacks else _by_type(schema)
        taken = {name for _, names, _ in found for name in names}
        self._groups = found
        self._rest = tuple(name for name in schema.names if name not in taken)
        self._names = [*(name for name, _, _ in found), *self._rest]
        clash = next((name for name, _, _ in found if name in self._rest), None)
        if clash is not None:
            raise ColumnError(
                f"stack {clash!r} has the name of a column that is not in it; name it otherwise"
            )
        self._find(schema)

    def _find(self, schema: pa.Schema) -> None:
        """Note where the columns are: names looked up for each batch cost as much as its rows."""
        self._schema = schema
        self._places = [
            [schema.get_field_index(one) for one in names] for _, names, _ in self._groups
        ]
        self._rest_places = [schema.get_field_index(one) for one in self._rest]

    def stack(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with matrices, as columns of fixed-size lists, before what is left over.

        Raises:
            ColumnError: A column of whole numbers has a null, for which a matrix has no place.
        """
        if not batch.schema.equals(self._schema):
            self._find(batch.schema)
        arrays = [
            _matrix(batch.select(places), kind)
            for places, (_, _, kind) in zip(self._places, self._groups, strict=True)
        ]
        rest = [batch.column(place) for place in self._rest_places]
        return pa.RecordBatch.from_arrays([*arrays, *rest], names=self._names)


def _by_type(schema: pa.Schema) -> tuple[_Group, ...]:
    groups: dict[str, list[str]] = {}
    kinds: dict[str, pa.DataType] = {}
    for field in schema:
        if _is_number(field.type):
            name = field.type.to_pandas_dtype().__name__
            groups.setdefault(name, []).append(field.name)
            kinds[name] = field.type
    return tuple((name, tuple(columns), kinds[name]) for name, columns in groups.items())


def _named(schema: pa.Schema, stacks: Stacks) -> tuple[_Group, ...]:
    taken: dict[str, str] = {}
    groups: list[_Group] = []
    for name, patterns in stacks.items():
        columns: list[str] = []
        for pattern in patterns:
            matched = [one for one in schema.names if one == pattern] or [
                one for one in schema.names if fnmatchcase(one, pattern)
            ]
            if not matched:
                raise ColumnError(
                    f"stack {name!r} names column {pattern!r}, which is not there; there are "
                    f"{', '.join(schema.names)}"
                )
            columns += [one for one in matched if one not in columns]
        for column in columns:
            if column in taken:
                raise ColumnError(f"column {column} is in stack {taken[column]!r} and in {name!r}")
            taken[column] = name
        groups.append((name, tuple(columns), _common(name, schema, columns)))
    return tuple(groups)


def _common(name: str, schema: pa.Schema, columns: Sequence[str]) -> Any:
    kinds = {column: schema.field(column).type for column in columns}
    for column, kind in kinds.items():
        if not _is_number(kind):
            raise ColumnError(
                f"column {column} of stack {name!r} is {kind}; a matrix is of numbers only"
            )
    if len(set(kinds.values())) > 1:
        told = ", ".join(f"{column} {kind}" for column, kind in kinds.items())
        raise ColumnError(
            f"stack {name!r} has columns of several types ({told}), and none is changed silently; "
            "make a stack of each"
        )
    return schema.field(columns[0]).type


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _matrix(batch: pa.RecordBatch, kind: pa.DataType) -> Any:
    try:
        # With no null, NaN is left out: whole numbers would become floats.
        tensor: Any = batch.to_tensor(null_to_nan=False, row_major=True)
    except pa.ArrowTypeError:
        tensor = _with_nan(batch, kind)
    data = pa.py_buffer(memoryview(tensor).cast("B")) if batch.num_rows else pa.py_buffer(b"")
    width = batch.num_columns
    flat: Any = pa.Array.from_buffers(kind, batch.num_rows * width, [None, data])
    return pa.FixedSizeListArray.from_arrays(flat, width)


def _with_nan(batch: pa.RecordBatch, kind: pa.DataType) -> Any:
    if not pa.types.is_floating(kind):
        lacking = next(n for n, column in enumerate(batch.columns) if column.null_count)
        raise ColumnError(
            f"column {batch.schema.names[lacking]} has nulls, for which a matrix of {kind} has no "
            "place; take it with layout='numpy' and nulls=…, or leave it out with columns=[…]"
        )
    return batch.to_tensor(null_to_nan=True, row_major=True)
