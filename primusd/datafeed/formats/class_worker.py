"""The process in which a class of the user's reads files; no reader dies of what it does."""

import ctypes
import importlib
import io
import os
import signal
import sys
import traceback
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, Protocol

import pyarrow as pa

from primusd.datafeed.formats.base import OpenFile, ReadError, open_pinned
from primusd.datafeed.formats.class_wire import (
    BATCH_BYTES,
    BATCH_RECORDS,
    LENGTH_BYTES,
    Answer,
    Batch,
    Done,
    Failed,
    Request,
    decode_request,
    encode,
)
from primusd.datafeed.formats.packed import inflating

PR_SET_PDEATHSIG = 1
BUFFER_BYTES = 1 << 20


class Source(Protocol):
    """What a class of the user's must do."""

    def records(self, file: BinaryIO, location: str) -> Iterable[bytes | pa.RecordBatch]:
        """Yield the records of a file, the same ones each time."""
        ...


class _RawFile(io.RawIOBase):
    """A pinned file as Python's files are."""

    def __init__(self, file: OpenFile) -> None:
        super().__init__()
        self._file = file
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at}.get(whence, self._file.size)
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:  # any writable buffer, as its base has it
        data = self._file.pread(self._at, len(buffer))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def main() -> None:
    """Answer requests until there are no more."""
    # With its reader this process has nothing to live for.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # What the class prints must not end up among the records.
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    requests = os.fdopen(os.dup(0), "rb")
    while prefix := requests.read(LENGTH_BYTES):
        request = decode_request(requests.read(int.from_bytes(prefix, "little")))
        _answer(request, answers)


def _answer(request: Request, out: BinaryIO) -> None:
    count = 0
    try:
        for batch in _batches(_records(request)):
            first = max(0, request.first - count)
            count += batch.num_rows
            if first < batch.num_rows:
                _send(out, Batch(batch.num_rows - first), batch.slice(first))
    except ReadError as error:
        _send(out, Failed(error.message, count, error.kind, error.head))
    except Exception:  # noqa: BLE001 whatever a class of the user's raises is told as its fault
        last = traceback.format_exc(limit=-3).strip().replace("\n", "; ")[-600:]
        _send(out, Failed(f"{request.name} failed: {last}", count))
    else:
        _send(out, Done(count))


def _records(request: Request) -> Iterable[bytes | pa.RecordBatch]:
    if request.folder and request.folder not in sys.path:
        sys.path.insert(0, request.folder)
    module, _, name = request.name.partition(":")
    made: Source = getattr(importlib.import_module(module), name)(dict(request.parameters))
    return made.records(_opened(request), request.unit.location)


def _opened(request: Request) -> BinaryIO:
    file = open_pinned(request.unit)
    if request.compression == "none":
        return io.BufferedReader(_RawFile(file), BUFFER_BYTES)
    return io.BufferedReader(inflating(file, request.compression), BUFFER_BYTES)


def _batches(records: Iterable[bytes | pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches as they are, and single records gathered; a fault comes after what is good."""
    gathered: list[bytes] = []
    byte_count = 0
    fault: BaseException | None = None
    found = iter(records)
    while True:
        try:
            one = next(found, None)
        except Exception as error:  # noqa: BLE001 raised again, once the records before it went
            one, fault = None, error
        is_bytes = isinstance(one, bytes)
        if isinstance(one, bytes):
            gathered.append(one)
            byte_count += len(one)
        is_full = len(gathered) >= BATCH_RECORDS or byte_count >= BATCH_BYTES
        if gathered and (is_full or not is_bytes):
            yield pa.RecordBatch.from_arrays([pa.array(gathered, pa.binary())], names=["record"])
            gathered, byte_count = [], 0
        if fault is not None:
            raise fault
        if one is None:
            return
        if isinstance(one, pa.RecordBatch):
            yield one
        elif not is_bytes:
            raise TypeError(
                f"records() gave a {type(one).__name__}; a record is bytes, some rows a "
                "pyarrow.RecordBatch"
            )


def _send(out: BinaryIO, answer: Answer, batch: pa.RecordBatch | None = None) -> None:
    head = encode(answer)
    body = b""
    if batch is not None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        body = sink.getvalue().to_pybytes()
    lengths = len(head).to_bytes(LENGTH_BYTES, "little") + len(body).to_bytes(
        LENGTH_BYTES, "little"
    )
    view = memoryview(lengths + head + body)
    while view:
        view = view[out.write(view) :]


if __name__ == "__main__":
    main()
