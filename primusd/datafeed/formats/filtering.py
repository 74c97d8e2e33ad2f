"""Conditions on rows, evaluated column-wise; and what statistics of many rows rule out."""

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from primusd.datafeed.formats.base import ReadError, RowBlock
from primusd.datafeed.formats.keeping import kept_rows
from primusd.datafeed.formats.nested import AnyArray, AnyScalar, column_at
from primusd.job.conditions import Condition, Value

_COMPARE = {
    "==": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


_OF_TEXTS: Mapping[str, Callable[..., AnyArray]] = {
    "contains": pc.match_substring,
    "not contains": lambda column, text: pc.invert(pc.match_substring(column, text)),
    "starts with": pc.starts_with,
    "ends with": pc.ends_with,
}


Typed = Callable[[str, AnyArray], AnyArray]


class Filter:
    """Conditions that all have to hold.

    Values are compared as the stream has them: a column whose type the job file gives, or that
    another file had with another type before, is cast first.
    """

    def __init__(self, conditions: tuple[Condition, ...], typed: Typed) -> None:
        self._conditions = conditions
        self._typed = typed

    def apply(self, block: RowBlock) -> RowBlock:
        """Return the rows that meet all conditions; the block counts the others.

        Raises:
            ReadError: A condition does not fit its column.
        """
        batch = block.batch
        if not batch.num_rows:
            return block
        mask = np.ones(batch.num_rows, bool)
        for condition in self._conditions:
            column = self._typed(condition.column, _column(batch, condition.column))
            mask &= np.asarray(_holds(column, condition))
        if mask.all():
            return block
        return kept_rows(block, mask, batch.filter(pa.array(mask)))


def matches_range(condition: Condition, low: object, high: object, kind: pa.DataType) -> bool:
    """Return whether a value from low to high may meet a condition; True when in doubt."""
    values = [_scalar(value, kind, condition) for value in condition.values]
    lowest, highest = pa.scalar(low, kind), pa.scalar(high, kind)
    match condition.op:
        case "==" | "in":
            return any(_le(lowest, value) and _le(value, highest) for value in values)
        case "<":
            return not _le(values[0], lowest)
        case "<=":
            return _le(lowest, values[0])
        case ">":
            return not _le(highest, values[0])
        case ">=":
            return _le(values[0], highest)
        case _:
            return True


def _le(one: AnyScalar, other: AnyScalar) -> bool:
    return bool(pc.less_equal(one, other).as_py())


def _column(batch: pa.RecordBatch, name: str) -> AnyArray:
    found = column_at(batch, name)
    if found is None:
        raise ReadError(
            f"filter: there is no column {name}; there are {', '.join(batch.schema.names[:20])}",
            kind="data",
        )
    return found


def _holds(column: AnyArray, condition: Condition) -> AnyArray:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    match condition.op:
        case "is null":
            return column.is_null()
        case "is not null":
            return column.is_valid()
        case _:
            pass
    try:
        if condition.op in _OF_TEXTS:
            found = _OF_TEXTS[condition.op](column, condition.values[0])
            return found.fill_null(False)  # noqa: FBT003 pyarrow's signature
        scalars = [_scalar(value, column.type, condition) for value in condition.values]
        if condition.op in _COMPARE:
            found = _COMPARE[condition.op](column, scalars[0])
        else:
            among = pc.is_in(column, value_set=pa.array(scalars, column.type))
            found = among if condition.op == "in" else pc.invert(among)
            found = pc.if_else(column.is_valid(), found, False)  # noqa: FBT003 pyarrow's
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _misfit(condition, column.type, error) from error
    return found.fill_null(False)  # noqa: FBT003 pyarrow's signature


def _scalar(value: Value, kind: pa.DataType, condition: Condition) -> AnyScalar:
    try:
        if isinstance(value, str):
            text = pa.scalar(value)
            return text if pa.types.is_string(kind) else text.cast(kind)
        return pa.scalar(value).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError) as error:
        raise _misfit(condition, kind, error) from error


def _misfit(condition: Condition, kind: pa.DataType, error: Exception) -> ReadError:
    shown = ", ".join(map(repr, condition.values))
    first = str(error).split("\n", 1)[0][:200]
    return ReadError(
        f"filter: column {condition.column} is {kind}, which cannot be {condition.op} {shown}: "
        f"{first}",
        kind="data",
    )


def columns_of(conditions: Iterable[Condition]) -> tuple[str, ...]:
    """Return the columns that conditions look at, each once."""
    return tuple(dict.fromkeys(condition.column for condition in conditions))
