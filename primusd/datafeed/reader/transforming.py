"""A unit whose rows a function of the user's transforms, in processes of its own.

Several blocks are with processes at once and are given in their order. What a process was given
stays here until its answer is there, so a process that ends loses nothing: another one is asked.
A block with a row that cannot be transformed is given in parts, up to that row, which is then bad
like any other. Positions are those of the unit; rows that were left out are passed over.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from primusd.datafeed.formats import transform_worker
from primusd.datafeed.formats.base import PipeBlock, ReadError, RowBlock, UnitFile
from primusd.datafeed.formats.encoding import json_rows, piped
from primusd.datafeed.formats.keeping import kept_rows
from primusd.datafeed.formats.settings import Place
from primusd.datafeed.formats.transform_wire import Applied, Apply, Failed, decode_answer, encode
from primusd.datafeed.formats.user_process import (
    SILENT_S,
    TooLargeError,
    UserProcess,
    UserProcesses,
)
from primusd.datafeed.protocol import Unit
from primusd.job.spec import Transform

LOSSES_MAX = 3
"""So many processes may end over the same rows before these are suspected."""
BLOCK_BYTES_MIN = 64 << 10
HEAD_BYTES = 64
SHARE = 4
"""A result may take one part in so many of the reader's memory."""


@dataclass(frozen=True, slots=True)
class _Lost:
    """The process ended, or was of no use any more."""

    text: str
    is_final: bool = False
    """No other process is asked."""


class _Flight:
    """Rows that were given to a process."""

    def __init__(self, process: UserProcess) -> None:
        self.process = process
        self.answer: Applied | Failed | _Lost | None = None
        self.rows: pa.RecordBatch | None = None


class _Pool:
    """Some processes, each with at most one flight; all is called by one thread, but for close."""

    def __init__(self, count: int, start: Callable[[], UserProcess], bytes_max: int) -> None:
        self.count = count
        self.processes = UserProcesses(start)
        self.bytes_max = bytes_max
        self._lock = threading.Lock()
        self._flights: deque[_Flight] = deque()
        self._talks_to: _Flight | None = None

    @property
    def has_room(self) -> bool:
        """Whether a process is idle, or may be started."""
        return len(self._flights) < self.count

    def begin(self, request: Apply, rows: pa.RecordBatch) -> _Flight:
        """Give rows to a process; where all are at work the oldest flight is waited for."""
        if not self.has_room:
            self._land(self._flights[0])
        flight = _Flight(self.processes.take())
        with self._lock:
            self._flights.append(flight)
            self._talks_to = flight
        try:
            flight.process.send(encode(request), memoryview(_packed(rows)))
        except (EOFError, TimeoutError) as error:
            flight.answer = self._lost(flight, error)
            self._end(flight, is_good=False)
        with self._lock:
            self._talks_to = None
        return flight

    def answer(self, flight: _Flight) -> Applied | Failed | _Lost:
        """Return what became of a flight."""
        if flight.answer is None:
            self._land(flight)
        assert flight.answer is not None
        return flight.answer

    def close(self) -> None:
        """End all processes; whoever waits for one is told the end."""
        with self._lock:
            self.processes.close()
            # The other thread ends the one that it talks to.
            left = [one for one in self._flights if one is not self._talks_to]
        for flight in left:
            flight.answer = _Lost("was closed")
            self._end(flight, is_good=False)

    def _land(self, flight: _Flight) -> None:
        with self._lock:
            if flight not in self._flights:
                return  # It was closed meanwhile.
            self._talks_to = flight
        is_good = False
        try:
            head, body = flight.process.receive(bytes_max=self.bytes_max)
            flight.answer = decode_answer(head)
            if isinstance(flight.answer, Applied):
                flight.rows = pa.ipc.open_stream(pa.py_buffer(body)).read_next_batch()
            is_good = True
        except TooLargeError as error:
            is_good = True
            flight.answer = Failed(
                f"gave {error.byte_count >> 10} KiB at once, and {self.bytes_max >> 10} KiB is "
                "the most; memory: of the stream raises it"
            )
        except (EOFError, TimeoutError) as error:
            flight.answer = self._lost(flight, error)
        finally:
            self._end(flight, is_good=is_good)
            with self._lock:
                self._talks_to = None

    def _end(self, flight: _Flight, *, is_good: bool) -> None:
        with self._lock:
            self._flights.remove(flight)
        self.processes.give_back(flight.process, is_good=is_good)

    def _lost(self, flight: _Flight, error: Exception) -> _Lost:
        if isinstance(error, TimeoutError):
            return _Lost(f"gave nothing for {SILENT_S:.0f} s", is_final=True)
        code = flight.process.code()
        why = f"signal {-code}" if code < 0 else f"code {code}"
        return _Lost(f"ended its process ({why})")


class Transformer:
    """The transform of one stream at one reader."""

    def __init__(
        self,
        transform: Transform,
        stream: str,
        place: Place,
        *,
        memory_bytes: int,
        columns: tuple[str, ...] = (),
    ) -> None:
        """Start nothing yet.

        Args:
            transform: As the job file has it.
            stream: Its name.
            place: Where the function is looked for, and as whom it runs.
            memory_bytes: Of the reader.
            columns: Those of the result that are wanted; empty: all.
        """
        self._transform = transform
        self._stream = stream
        self._folder = place.folder
        self._columns = columns
        self._schema: pa.Schema | None = None
        name, memory = transform_worker.__name__, transform.memory_bytes
        self.pool = _Pool(
            transform.workers,
            lambda: UserProcess(name, place, memory_bytes=memory),
            memory_bytes // SHARE,
        )

    def unit(self, inner: UnitFile, unit: Unit, epoch: int) -> "Transformed":
        """Return a unit whose rows are transformed."""
        request = Apply(
            self._transform.function,
            self._folder,
            self._transform.parameters,
            self._stream,
            unit.location,
            epoch,
            self._transform.may_drop,
        )
        # A partition may have nothing more for a while, and what it gave must not wait for that.
        ahead = 1 if unit.kind == "kafka" else self.pool.count
        return Transformed(inner, request, self, ahead)

    def close(self) -> None:
        """End its processes."""
        self.pool.close()

    def shaped(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows with the columns that the first ones had.

        Raises:
            ValueError: They have others.
        """
        if self._columns:
            missing = [name for name in self._columns if name not in rows.schema.names]
            if missing:
                have = ", ".join(rows.schema.names[:20])
                raise ValueError(f"gave no column {missing[0]}; it gave {have}")
            rows = rows.select(list(self._columns))
        if self._schema is None:
            self._schema = rows.schema.remove_metadata()
        if rows.schema.equals(self._schema):
            return rows
        if rows.schema.names != self._schema.names:
            now, before = ", ".join(rows.schema.names[:20]), ", ".join(self._schema.names[:20])
            raise ValueError(f"gave the columns {now}, and {before} before")
        arrays = [_cast(one, field) for one, field in zip(rows.columns, self._schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def empty(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return no rows, with the columns of the result as far as they are known."""
        return rows if self._schema is None else pa.RecordBatch.from_pylist([], self._schema)


class Transformed:
    """An opened unit whose rows are transformed."""

    def __init__(
        self, inner: UnitFile, request: Apply, transformer: Transformer, ahead: int
    ) -> None:
        self._inner = inner
        self._request = request
        self._transformer = transformer
        self._pool = transformer.pool
        self._ahead = ahead

    @property
    def end(self) -> int:
        """The position after its last record."""
        return self._inner.end

    @property
    def row_count(self) -> int:
        """Its rows, before the transform; -1 unknown."""
        return self._inner.row_count

    @property
    def cuts(self) -> tuple[int, ...]:
        """Positions where a range is best cut."""
        return self._inner.cuts

    def rows(self, lo: int, hi: int, *, block_bytes: int) -> Iterator[RowBlock]:
        """Yield transformed rows, as `UnitFile.rows`."""
        share = max(BLOCK_BYTES_MIN, block_bytes // self._pool.count)
        blocks = self._inner.rows(lo, hi, block_bytes=share)
        ahead: deque[tuple[RowBlock, _Flight | None]] = deque()
        fault: ReadError | None = None
        is_over = False
        while True:
            while not is_over and (not ahead or (len(ahead) < self._ahead and self._pool.has_room)):
                try:
                    block = next(blocks, None)
                except ReadError as error:
                    block, fault = None, error
                if block is None:
                    is_over = True
                else:
                    ahead.append((block, self._begun(block)))
            if not ahead:
                break
            yield from self._landed(*ahead.popleft())
        if fault is not None:
            raise fault

    def pieces(self, lo: int, hi: int, *, framing: str) -> Iterator[PipeBlock]:
        """Yield transformed rows, encoded for a pipe."""
        what = f"rows of {self._request.function}"
        yield from piped(lambda most: self.rows(lo, hi, block_bytes=most), framing, what)

    def _begun(self, block: RowBlock) -> _Flight | None:
        return self._pool.begin(self._request, block.batch) if block.row_count else None

    def _landed(self, block: RowBlock, flight: _Flight | None) -> Iterator[RowBlock]:
        """Yield a block's rows once they are there: in parts where it has a bad row."""
        if flight is None:
            yield replace(block, batch=self._transformer.empty(block.batch))
            return
        parts: list[tuple[RowBlock, _Flight | None, int]] = [(block, flight, 0)]
        while parts:
            part, begun, losses = parts.pop()
            begun = begun or self._begun(part)
            assert begun is not None
            match self._pool.answer(begun):
                case Applied(kept=kept):
                    assert begun.rows is not None
                    yield self._given(part, begun.rows, kept)
                case _Lost(is_final=False) if losses + 1 < LOSSES_MAX:
                    parts.append((part, None, losses + 1))
                case _Lost(text=text, is_final=is_final):
                    if is_final or part.row_count == 1:
                        raise self._bad(part, f"{self._request.function} {text}")
                    # Its parts are suspected already: of these one more loss is enough.
                    parts += [
                        (half, None, 0 if half.row_count == 1 else LOSSES_MAX - 1)
                        for half in _halves(part)
                    ]
                case Failed(text=text):
                    if part.row_count == 1:
                        raise self._bad(part, text)
                    parts += [(half, None, 0) for half in _halves(part)]

    def _given(self, block: RowBlock, rows: pa.RecordBatch, kept: bytes | None) -> RowBlock:
        try:
            rows = self._transformer.shaped(rows)
        except ValueError as error:
            raise self._bad(block, f"{self._request.function} {error}") from error
        if kept is None:
            return replace(block, batch=rows)
        bits = np.unpackbits(np.frombuffer(kept, np.uint8), count=block.row_count)
        return kept_rows(block, bits.astype(np.bool_), rows)

    def _bad(self, block: RowBlock, text: str) -> ReadError:
        head = _head(block.batch)
        return ReadError(
            f"{self._request.location}: {text}", kind="data", lo=block.lo, hi=block.hi, head=head
        )


def _head(rows: pa.RecordBatch) -> bytes:
    """Return the beginning of the first row as JSON, for people."""
    return msgspec.json.encode(json_rows(rows.slice(0, 1))[0])[:HEAD_BYTES]


def _halves(block: RowBlock) -> tuple[RowBlock, RowBlock]:
    """Return both halves, the second one first: the last of a list is taken next."""
    half = block.row_count // 2
    return block.part(half, block.row_count - half), block.part(0, half)


def _packed(rows: pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return sink.getvalue()


def _cast(column: Any, field: Any) -> Any:  # pyarrow's stubs have no common type for these
    """Return a column with the type that it had first.

    Raises:
        ValueError: It cannot be.
    """
    try:
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ValueError(
            f"gave column {field.name} as {column.type}, and as {field.type} before"
        ) from error
