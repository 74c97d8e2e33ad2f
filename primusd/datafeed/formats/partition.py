"""A partition of a topic as a unit: positions are offsets, and any offset may be a cut.

Offsets have holes: marks of transactions, records of transactions that were given up, records that
compaction removed. So a range is over when one of three things is so:

- a record at or above its end came,
- the position of the client reached the end: it is past what has no record,
- the partition ends at or above the end, and fetches that were answered brought nothing and did not
  move for half a minute. Not sooner: a broker that slows a client down answers empty as well.

Never is a position sought again because a fetch came back empty.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from primusd.datafeed.formats.base import HEAD_BYTES, PipeBlock, ReadError, RowBlock
from primusd.datafeed.formats.decoders import BadRecordError
from primusd.datafeed.formats.encoding import PIPE_ROWS_BYTES, pieces_of
from primusd.datafeed.protocol import Unit

COLUMNS = ("key", "value", "offset", "timestamp", "partition")
"""Those that come when none are named; `topic` and `headers` come when they are."""
HEADER_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
EMPTY_FOR_S = 30.0
EMPTY_FETCHES_MIN = 2


class Record(Protocol):
    """A record as a client has it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a fetch brought."""

    records: Sequence[Record]
    """In order of their offsets, at or above the position that was asked for."""
    position: int
    """Of the next fetch; it may lie far behind the last record."""
    is_answered: bool
    """A broker answered since the last fetch, with or without records."""


class Client(Protocol):
    """One partition as it is fetched. Blocks, never for long; raises ReadError."""

    def fetch(self, position: int) -> Fetched:
        """Return the next records from a position on, none when none came soon."""
        ...

    def reach(self) -> tuple[int, int]:
        """Return the first offset there is, and the one after the last that may be read."""
        ...


@dataclass(frozen=True, slots=True)
class Run:
    """Records that follow each other, and the offsets they stand for."""

    records: Sequence[Record]
    lo: int
    hi: int

    @property
    def first(self) -> int:
        """Where the first record is, where they begin when there is none."""
        return self.records[0].offset if self.records else self.lo

    @property
    def ends(self) -> "np.ndarray":
        """Where the next record is, for each: a hole goes with the record before it."""
        offsets = (one.offset for one in self.records[1:])
        return np.fromiter((*offsets, self.hi)[: len(self.records)], np.int64)


Decode = Callable[[Sequence[bytes | None]], pa.RecordBatch]
"""Makes rows of values, one each; BadRecordError names the first that has none."""


class PartitionUnit:
    """A partition, opened."""

    cuts: tuple[int, ...] = ()
    row_count = -1
    framings = ("lines", "lines0", "len32", "raw")

    def __init__(
        self,
        unit: Unit,
        client: Client,
        *,
        columns: tuple[str, ...] = COLUMNS,
        decode: Decode | None = None,
        clock: Callable[[], float] = time.monotonic,
        release: Callable[[], None] = lambda: None,
    ) -> None:
        """Make a unit that is read through a client.

        Args:
            unit: As it was listed.
            client: Of this partition.
            columns: Of the records, where nothing is decoded.
            decode: Makes rows of the values; None: a row is the record.
            clock: Seconds that only grow.
            release: Called when nobody has the unit any more.
        """
        self._topic, _, number = unit.location.rpartition("/")
        self._partition = int(number)
        self._unit = unit
        self._client = client
        self._columns = columns
        self._decode = decode
        self._clock = clock
        self._release = release
        self._ahead: Run | None = None

    def __del__(self) -> None:
        self._release()

    @property
    def end(self) -> int:
        """The position after its last record, now."""
        return self._client.reach()[1]

    def rows(self, lo: int, hi: int, *, block_bytes: int) -> Iterator[RowBlock]:
        """Yield the records at the offsets lo to hi, as fetches bring them."""
        for run in self._runs(lo, hi):
            try:
                yield self._block(run)
            except BadRecordError as bad:
                # The records before it are good, those behind it are not fetched again.
                at = run.records[bad.index].offset
                self._ahead = Run(run.records[bad.index + 1 :], at + 1, run.hi)
                if at > run.lo:
                    yield self._block(Run(run.records[: bad.index], run.lo, at))
                raise self._bad(run.records[bad.index], bad) from bad

    def pieces(self, lo: int, hi: int, *, framing: str) -> Iterator[PipeBlock]:
        """Yield the values, framed, a null as an empty one; as an Arrow stream whole records."""
        if framing == "arrow-stream":
            yield from pieces_of(self.rows(lo, hi, block_bytes=PIPE_ROWS_BYTES), framing)
            return
        yield from pieces_of((self._values(run) for run in self._runs(lo, hi)), framing)

    def _runs(self, lo: int, hi: int) -> Iterator[Run]:
        """Yield what there is of a range, without gaps from lo to hi."""
        position = lo
        empty_since, empty_count = -1.0, 0
        while position < hi:
            fetched = self._next(position)
            inside = [one for one in fetched.records if one.offset < hi]
            if len(inside) < len(fetched.records):
                self._ahead = Run(fetched.records[len(inside) :], hi, fetched.position)
            if len(inside) < len(fetched.records) or fetched.position >= hi:
                yield Run(inside, position, hi)
                return
            if fetched.position > position:
                yield Run(inside, position, fetched.position)
                position = fetched.position
                empty_count = 0
                continue
            if not empty_count:
                empty_since = self._clock()
            empty_count += fetched.is_answered
            end = self._client.reach()[1]
            is_long = self._clock() - empty_since >= EMPTY_FOR_S
            if end >= hi and empty_count >= EMPTY_FETCHES_MIN and is_long:
                yield Run((), position, hi)
                return

    def _next(self, position: int) -> Fetched:
        """Return what comes next: first what was fetched beyond the end of the range before."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.lo <= position < ahead.hi:
            records = [one for one in ahead.records if one.offset >= position]
            return Fetched(records, ahead.hi, is_answered=True)
        return self._client.fetch(position)

    def _block(self, run: Run) -> RowBlock:
        records = run.records
        if self._decode is not None:
            batch = self._decode([one.value for one in records])
        else:
            names = self._columns
            batch = pa.RecordBatch.from_arrays(
                [self._column(name, records) for name in names], names=list(names)
            )
        return RowBlock(batch, run.lo, run.hi, ends=run.ends, first=run.first)

    def _values(self, run: Run) -> RowBlock:
        values = pa.array([one.value for one in run.records], pa.binary())
        batch = pa.RecordBatch.from_arrays([values], names=["record"])
        return RowBlock(batch, run.lo, run.hi, ends=run.ends, first=run.first)

    def _bad(self, record: Record, bad: BadRecordError) -> ReadError:
        return ReadError(
            f"{self._unit.location} offset {record.offset}: {bad.message}",
            kind="data",
            lo=record.offset,
            hi=record.offset + 1,
            head=(record.value or b"")[:HEAD_BYTES],
        )

    def _column(self, name: str, records: Sequence[Record]) -> "pa.Array[Any]":
        count = len(records)
        match name:
            case "key":
                return pa.array([one.key for one in records], pa.binary())
            case "value":
                return pa.array([one.value for one in records], pa.binary())
            case "offset":
                return pa.array([one.offset for one in records], pa.int64())
            case "timestamp":
                times = [one.timestamp if one.timestamp >= 0 else None for one in records]
                return pa.array(times, pa.int64()).cast(pa.timestamp("ms", "UTC"))
            case "partition":
                return pa.array(np.full(count, self._partition, np.int32))
            case "topic":
                return pa.array([self._topic] * count, pa.string())
            case "headers":
                return pa.array(
                    [[{"key": key, "value": one} for key, one in row.headers] for row in records],
                    HEADER_TYPE,
                )
            case _:
                raise ReadError(
                    f"{self._unit.location} has no column {name}; a record has "
                    f"{', '.join((*COLUMNS, 'topic', 'headers'))}",
                    kind="data",
                )
