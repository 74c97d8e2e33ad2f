"""The process in which a class of the user's reads files; no reader dies of what it does."""

import io
import os
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, Protocol

import pyarrow as pa

from primusd.datafeed.formats.base import OpenFile, ReadError, open_pinned
from primusd.datafeed.formats.class_wire import (
    BATCH_BYTES,
    BATCH_RECORDS,
    Batch,
    Done,
    Failed,
    Request,
    decode_request,
    encode,
)
from primusd.datafeed.formats.inflating import Readable, inflating
from primusd.datafeed.formats.user_serving import load, send, serve, told

BUFFER_BYTES = 1 << 20
MEMORY_BYTES = 1 << 30
"""This process is the user's: its files may look back as far as they like."""


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


def _answer(head: bytes, _: bytes, out: BinaryIO) -> None:
    request = decode_request(head)
    count = 0
    try:
        for batch in _batches(_records(request)):
            first = max(0, request.first - count)
            count += batch.num_rows
            if first < batch.num_rows:
                send(out, encode(Batch(batch.num_rows - first)), batch.slice(first))
    except ReadError as error:
        send(out, encode(Failed(error.message, count, error.kind, error.head)))
    except Exception as error:  # noqa: BLE001 whatever a class raises is told as its fault
        send(out, encode(Failed(f"{request.name} failed: {told(error)}", count)))
    else:
        send(out, encode(Done(count)))


def _records(request: Request) -> Iterable[bytes | pa.RecordBatch]:
    made: Source = load(request.name, request.folder)(dict(request.parameters))
    return made.records(_opened(request), request.unit.location)


def _opened(request: Request) -> BinaryIO:
    file = open_pinned(request.unit)
    if request.compression == "none":
        return io.BufferedReader(_RawFile(file), BUFFER_BYTES)
    stream = inflating(file, request.compression, memory_bytes=MEMORY_BYTES)
    return io.BufferedReader(Readable(stream), BUFFER_BYTES)


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


if __name__ == "__main__":
    serve(_answer)
