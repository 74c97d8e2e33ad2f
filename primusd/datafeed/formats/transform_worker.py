"""The process in which a transform of the user's runs; no reader dies of what it does."""

import inspect
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from primusd.datafeed.formats.transform_wire import Applied, Apply, Failed, decode_apply, encode
from primusd.datafeed.formats.user_serving import load, send, serve


@dataclass(frozen=True, slots=True)
class Context:
    """What a transform is told, if it takes a second argument."""

    parameters: Mapping[str, str]
    """As the job file has them."""
    stream: str
    location: str
    """The file, or the partition, that the rows come from."""
    epoch: int
    """The pass over the data, from 0."""


class _ResultError(Exception):
    """A transform gave what it must not."""


def _answer(head: bytes, body: bytes, out: BinaryIO) -> None:
    request = decode_apply(head)
    try:
        rows = pa.ipc.open_stream(pa.py_buffer(body)).read_next_batch()
        result, kept = _applied(request, rows)
    except _ResultError as error:
        send(out, encode(Failed(f"{request.function} {error}")))
    except Exception as error:  # noqa: BLE001 whatever a function raises is told as its fault
        send(out, encode(Failed(f"{request.function} failed: {_last_line(error)}")))
    else:
        bits = None if kept is None else np.packbits(kept).tobytes()
        send(out, encode(Applied(bits)), result)


def _applied(request: Apply, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, Any]:
    """Return what the function makes of some rows, and the mask of those it kept; None: all.

    Raises:
        _ResultError: It gave something else.
    """
    function, takes_context = _loaded(request.function, request.folder)
    if takes_context:
        context = Context(request.parameters, request.stream, request.location, request.epoch)
        found = function(rows, context)
    else:
        found = function(rows)
    kept = None
    if isinstance(found, tuple):
        if not request.may_drop:
            raise _ResultError("leaves rows out; say rows: mayDrop where it may")
        if len(found) != 2:
            raise _ResultError(f"gave {len(found)} values, not (batch, kept)")
        found, kept = found[0], _mask(found[1], rows.num_rows)
    found = _as_batch(found)
    expected = rows.num_rows if kept is None else int(kept.sum())
    if found.num_rows != expected:
        raise _ResultError(_miscounted(found.num_rows, rows.num_rows, kept, request))
    return found, kept


@cache
def _loaded(name: str, folder: str) -> tuple[Callable[..., Any], bool]:
    function = load(name, folder)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # written in C
        return function, False
    positional = [
        one
        for one in parameters
        if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) and one.default is one.empty
    ]
    return function, len(positional) > 1


def _as_batch(found: object) -> pa.RecordBatch:
    if isinstance(found, pa.Table):
        batches = found.combine_chunks().to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=found.schema)
    if not isinstance(found, pa.RecordBatch):
        raise _ResultError(f"gave a {type(found).__name__}, not a pyarrow.RecordBatch")
    return found


def _mask(kept: Any, count: int) -> Any:  # whatever a user has for a mask or indices
    """Return which rows were kept, a bool each.

    Raises:
        _ResultError: It tells neither by a mask nor by places.
    """
    if isinstance(kept, pa.Array | pa.ChunkedArray):
        kept = (
            kept.to_numpy(zero_copy_only=False) if isinstance(kept, pa.Array) else kept.to_numpy()
        )
    found = np.asarray(kept)
    if found.ndim == 1 and found.dtype == np.bool_:
        if len(found) != count:
            raise _ResultError(f"gave a mask of {len(found)} for {count} rows")
        return found
    if found.ndim != 1 or (len(found) and not np.issubdtype(found.dtype, np.integer)):
        raise _ResultError(
            "gave no kept rows: a mask of bools, or their places, in ascending order"
        )
    places = found.astype(np.int64)
    if len(places) and (places[0] < 0 or places[-1] >= count or bool((np.diff(places) <= 0).any())):
        raise _ResultError(f"gave places that do not ascend within the {count} rows")
    mask = np.zeros(count, np.bool_)
    mask[places] = True
    return mask


def _miscounted(found: int, given: int, kept: Any, request: Apply) -> str:
    if kept is not None:
        return f"gave {found} rows and said that it kept {int(kept.sum())} of {given}"
    hint = (
        "return (batch, kept) to leave some out"
        if request.may_drop
        else "as many rows must come back, in their order"
    )
    return f"gave {found} rows for {given}; {hint}"


def _last_line(error: Exception) -> str:
    """Return a traceback's last line, and where in the user's files it was."""
    last = traceback.format_exception_only(error)[-1].strip()[:300]
    places = [
        f" ({Path(one.filename).name}:{one.lineno})"
        for one in traceback.extract_tb(error.__traceback__)
        if Path(one.filename).parent != Path(__file__).parent
    ]
    return last + (places[-1] if places else "")


if __name__ == "__main__":
    serve(_answer)
