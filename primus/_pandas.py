"""Batches as data frames (pandas is imported here and only here, when one is asked for)."""

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from primus.errors import FeedError


def frame_of(columns: Mapping[str, Any]) -> Any:
    """Return numpy columns as a pandas.DataFrame, copied; matrices become columns of arrays.

    Raises:
        FeedError: This Python has no pandas.
    """
    pandas = found_pandas()
    # pandas would take the rows of a matrix for columns.
    return pandas.DataFrame({name: _column(pandas, values) for name, values in columns.items()})


def found_pandas() -> Any:
    """Return the module.

    Raises:
        FeedError: This Python has none.
    """
    try:
        return importlib.import_module("pandas")
    except ImportError as error:
        raise FeedError(
            f"to_pandas() needs pandas, which this Python cannot load ({error}): install it "
            "(pip install pandas), or use the numpy columns of the batch as they are"
        ) from error


def _column(pandas: Any, values: Any) -> Any:
    if isinstance(values, np.ma.MaskedArray):
        mask = np.ma.getmaskarray(values)
        kind = "BooleanArray" if values.dtype.kind == "b" else "IntegerArray"
        return getattr(pandas.arrays, kind)(np.array(values.data), np.array(mask))
    return list(values) if values.ndim > 1 else values
