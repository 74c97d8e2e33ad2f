"""Arrow IPC, file or stream: a position is a row, and the cheap cuts are the ends of its batches.

Both hold the same messages one after the other, each with its length in front, so one walk over
their heads tells where every batch is and how many rows it has; no row is decoded for that. To read
some batches, the schema, the dictionaries that come before them and the batches themselves are put
together as a stream of their own.

Source: "Serialization and Interprocess Communication", Arrow columnar format; the heads are
flatbuffers of Message.fbs.
"""

import io
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from itertools import accumulate

import pyarrow as pa
from msgspec import Struct

from primusd.datafeed.formats.base import OpenFile, ReadError, RowBlock, head_of
from primusd.datafeed.formats.budget import Budget
from primusd.datafeed.formats.filtering import columns_of
from primusd.datafeed.formats.nested import outer_names, type_at
from primusd.datafeed.formats.settings import Settings
from primusd.datafeed.protocol import Unit

MAGIC = b"ARROW1"
FILE_START = 8
CONTINUATION = b"\xff\xff\xff\xff"
PREFIX = 8
HEAD_MAX = 64 << 20
"""Of a message: its metadata, which names every buffer."""
SCHEMA, DICTIONARIES, ROWS = 1, 2, 3
END = CONTINUATION + bytes(4)


class Message(Struct, frozen=True):
    """Where a message lies."""

    kind: int
    at: int
    byte_count: int
    row_count: int


class IpcUnit:
    """An IPC file or stream whose messages were found once."""

    def __init__(
        self, unit: Unit, file: OpenFile, settings: Settings, budget: Budget | None = None
    ) -> None:
        """Find the messages.

        Raises:
            ReadError: It is neither, is cut short, or a column is missing.
        """
        self._unit = unit
        self._file = file
        self._memory_bytes = settings.memory_bytes
        self._budget = budget or Budget(settings.memory_bytes)
        found = list(self._messages())
        if not found or found[0].kind != SCHEMA:
            raise self._error("is no Arrow IPC file or stream: no schema comes first")
        self._head = found[0]
        self._dictionaries = [one for one in found if one.kind == DICTIONARIES]
        self._batches = [one for one in found if one.kind == ROWS]
        self._schema = self._read_schema()
        self._columns = self._known(settings)
        self._starts = [0, *accumulate(one.row_count for one in self._batches)]
        self.end = self.row_count = self._starts[-1]
        self.cuts = tuple(dict.fromkeys(self._starts[1:])) or (0,)

    def rows(self, lo: int, hi: int, *, block_bytes: int) -> Iterator[RowBlock]:
        """Yield the rows of a range, a stored batch in one block or several."""
        hi = min(hi, self.end)
        if lo >= hi:
            empty = pa.RecordBatch.from_pylist([], schema=self._schema)
            yield RowBlock(self._chosen(empty), lo, max(lo, hi))
            return
        number = bisect_right(self._starts, lo) - 1
        while lo < hi:
            start, end = self._starts[number], self._starts[number + 1]
            batch = self._chosen(self._batch(number))
            self._file.check()
            rows = max(1, block_bytes * batch.num_rows // max(1, batch.nbytes))
            while lo < min(end, hi):
                count = min(rows, min(end, hi) - lo)
                yield RowBlock(batch.slice(lo - start, count), lo, lo + count)
                lo += count
            number += 1

    def _messages(self) -> Iterator[Message]:
        at = FILE_START if self._file.pread(0, len(MAGIC)) == MAGIC else 0
        while at < self._unit.byte_count:
            prefix = self._file.pread(at, PREFIX)
            if not prefix.startswith(CONTINUATION) or len(prefix) < PREFIX:
                raise self._error(f"is no Arrow IPC file or stream: byte {at} begins no message")
            size = int.from_bytes(prefix[4:], "little")
            if not size:
                return
            if size > HEAD_MAX:
                raise self._error(f"has a message at byte {at} with a head of {size} bytes")
            head = self._file.pread(at + PREFIX, size)
            try:
                kind, row_count, body_bytes = message_head(head)
            except (IndexError, ValueError) as error:
                raise self._error(f"has a message at byte {at} that cannot be read") from error
            byte_count = PREFIX + size + body_bytes
            if len(head) < size or at + byte_count > self._unit.byte_count:
                raise self._error(f"ends in the middle of the message at byte {at}")
            yield Message(kind, at, byte_count, row_count)
            at += byte_count

    def _read_schema(self) -> pa.Schema:
        try:
            return pa.ipc.open_stream(pa.py_buffer(self._bytes(self._head) + END)).schema
        except (pa.ArrowException, OSError) as error:
            raise self._error(f"has a schema that cannot be read: {error}") from error

    def _batch(self, number: int) -> pa.RecordBatch:
        """Return a stored batch, decoded."""
        message = self._batches[number]
        lo, hi = self._starts[number], self._starts[number + 1]
        if message.byte_count > self._memory_bytes // 2:
            raise self._error(
                f"has a batch of {message.byte_count} bytes (rows {lo} to {hi}), which is read "
                f"whole and is over half of memory; set memory to "
                f"{-(-2 * message.byte_count >> 20)}Mi",
                lo=lo,
                hi=hi,
            )
        # In a stream only what comes before counts, in a file all of them do.
        before = [one for one in self._dictionaries if one.at < message.at]
        wanted = before or self._dictionaries
        # As it is stored, and decompressed.
        self._budget.make_room(2 * message.byte_count)
        try:
            reader = pa.ipc.open_stream(_Messages(self._file, (self._head, *wanted, message)))
            batch = reader.read_next_batch()
            # Nothing else looks at offsets: wrong ones would lead out of the buffers.
            batch.validate(full=True)
        except (pa.ArrowException, OSError) as error:
            first = str(error).split("\n", 1)[0][:300]
            raise self._error(f"has a bad batch: {first}", lo=lo, hi=hi) from error
        return batch

    def _bytes(self, message: Message) -> bytes:
        return self._file.pread(message.at, message.byte_count)

    def _chosen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch if self._columns is None else batch.select(self._columns)

    def _known(self, settings: Settings) -> list[str] | None:
        if not settings.columns:
            return None
        looked_at = columns_of(settings.filter)
        for name in (*settings.columns, *looked_at):
            is_missing = type_at(self._schema, name) is None
            if is_missing and (settings.on_schema == "fail" or name in looked_at):
                near = get_close_matches(name, self._schema.names, 1)
                hint = f"; did you mean {near[0]}?" if near else ""
                have = ", ".join(self._schema.names[:20])
                raise self._error(f"has no column {name}; it has {have}{hint}")
        outer = outer_names(self._schema, (*settings.columns, *looked_at))
        return [name for name in outer if name in self._schema.names]

    def _error(self, text: str, *, lo: int = -1, hi: int = -1) -> ReadError:
        head = head_of(self._file)
        return ReadError(f"{self._unit.location} {text}", kind="data", lo=lo, hi=hi, head=head)


class _Messages(io.RawIOBase):
    """Some messages of a file one after the other, read as they are asked for."""

    def __init__(self, file: OpenFile, messages: Iterable[Message]) -> None:
        self._file = file
        self._spans = [(one.at, one.byte_count) for one in messages]
        self._end = END

    def readable(self) -> bool:
        """Return True."""
        return True

    def read(self, size: int | None = -1) -> bytes:
        """Return the next bytes; fewer only at the end of the last message."""
        parts = []
        left = size if size is not None and size >= 0 else 1 << 62
        while left and self._spans:
            at, count = self._spans[0]
            data = self._file.pread(at, min(count, left))
            left -= len(data)
            rest = (at + len(data), count - len(data))
            self._spans[:1] = [rest] if rest[1] else []
            parts.append(data)
        parts.append(self._end[:left])
        self._end = self._end[left:]
        return b"".join(parts) if len(parts) > 2 or parts[-1] else parts[0]


def message_head(data: bytes) -> tuple[int, int, int]:
    """Return the kind of a message, its rows (0 where it has none) and the bytes of its body.

    Raises:
        ValueError: It is no message.
        IndexError: Likewise.
    """
    table = _Table(data, _number(data, 0, 4))
    kind, body = table.number(1, 1), table.number(3, 8)
    header = table.inner(2)
    rows = header.number(0, 8) if kind == ROWS else 0
    if body < 0 or rows < 0 or kind not in (SCHEMA, DICTIONARIES, ROWS):
        raise ValueError(f"a message of kind {kind} with {rows} rows and {body} bytes")
    return kind, rows, body


class _Table:
    """A table of a flatbuffer: its fields are found through the list that it points back to."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at
        self._fields = at - _number(data, at, 4)
        self._fields_bytes = _number(data, self._fields, 2)

    def number(self, field: int, byte_count: int) -> int:
        """Return a number, 0 where the field is left out."""
        place = self._place(field)
        return _number(self._data, place, byte_count) if place else 0

    def inner(self, field: int) -> "_Table":
        """Return the table that a field points to."""
        place = self._place(field)
        if not place:
            raise ValueError("a message without its header")
        return _Table(self._data, place + _number(self._data, place, 4))

    def _place(self, field: int) -> int:
        slot = 4 + 2 * field
        offset = _number(self._data, self._fields + slot, 2) if slot < self._fields_bytes else 0
        return self._at + offset if offset else 0


def _number(data: bytes, at: int, byte_count: int) -> int:
    if at < 0 or at + byte_count > len(data):
        raise IndexError("outside of the message")
    signed = byte_count != 2
    return int.from_bytes(data[at : at + byte_count], "little", signed=signed)
