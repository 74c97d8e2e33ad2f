"""A stream driven as core.step drives it, with its invariants; its records can be replayed."""

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from primusd.datafeed.ledger import invariants
from primusd.datafeed.ledger import machine as ledger
from primusd.datafeed.ledger.events import (
    BeatReceived,
    ReaderEnded,
    ReaderOpened,
    StreamDeclared,
    StreamEvent,
    UnitsListed,
)
from primusd.datafeed.ledger.model import Stream
from primusd.datafeed.protocol import (
    BadRange,
    FeedAsk,
    FeedOrders,
    FeedReport,
    Held,
    Lease,
    Mark,
    Unit,
    UnitMap,
)
from primusd.job.events import JobEvent, TimePassed
from primusd.job.ids import AttemptId
from primusd.job.machine import At, Ignore
from primusd.job.spec import Source, StreamSpec

JOB = "0000000000000001"
START_MS = 1_700_000_000_000
SETTLES_MAX = 10_000

Event = StreamEvent | TimePassed


def text_unit(byte_count: int, name: str = "part.txt") -> Unit:
    return Unit("file", f"/data/{name}", byte_count, "1", {"format": "text"})


def rows_unit(byte_count: int = 1000, name: str = "part.parquet") -> Unit:
    return Unit("file", f"/data/{name}", byte_count, "1", {"format": "parquet"})


def stream_spec(**fields: object) -> StreamSpec:
    return msgspec.convert(
        {"name": "clicks", "sources": [{"files": "/data"}], **fields}, StreamSpec, strict=False
    )


def attempt_id(index: int, attempt: int = 1, role: str = "worker") -> AttemptId:
    return AttemptId(JOB, role, index, attempt)


class Driver:
    """One stream, its clock, its journal, and what the job was told."""

    def __init__(self, spec: StreamSpec | None = None, *, checks: bool = True) -> None:
        self.at_ms = START_MS
        self.stream: Stream | None = None
        self.records: list[tuple[int, int, Event]] = []
        self.sources: list[str] = []
        self.told: list[JobEvent] = []
        self.checks = checks
        self.revision = 0
        self.propose(StreamDeclared(JOB, "clicks", spec or stream_spec(), ("worker",)))

    @property
    def now(self) -> Stream:
        assert self.stream is not None
        return self.stream

    def propose(self, event: Event, *, by: str = "test") -> str:
        """Apply and settle; return why the event was ignored, "" when it was recorded."""
        before = self.stream
        self.revision += 1
        reason = self._apply(event, by)
        if reason:
            return reason
        for _ in range(SETTLES_MAX):
            decided = ledger.settle(self.now, self.at_ms)
            if decided is None:
                break
            assert not self._apply(decided, "settle"), decided
        else:
            raise AssertionError("does not settle")
        for proposed in ledger.consequences(before, self.stream, event):
            assert proposed.machine == JOB
            self.told.append(proposed.event)  # type: ignore[arg-type]  # a stream tells its job only
        if self.checks:
            assert invariants.broken(self.now, before) == (), event
        return ""

    def _apply(self, event: Event, by: str) -> str:
        at = At(self.at_ms, self.revision, len(self.records), by)
        after = ledger.apply(self.stream, event, at)
        if isinstance(after, Ignore):
            return after.reason
        self.stream = after
        self.records.append((self.at_ms, self.revision, event))
        self.sources.append(by)
        return ""

    def replay(self) -> Stream:
        """Return the stream that the journal alone leads to, through its encoded form."""
        state: Stream | None = None
        for position, (at_ms, revision, event) in enumerate(self.records):
            body = msgspec.msgpack.encode(event)
            decoded = msgspec.msgpack.decode(body, type=Event)
            after = ledger.apply(
                state, decoded, At(at_ms, revision, position, self.sources[position])
            )
            assert not isinstance(after, Ignore), event
            state = after
        assert state is not None
        return state

    def reload(self) -> None:
        """Restart the daemon: the state is what a snapshot of it holds."""
        body = msgspec.msgpack.encode(self.now)
        self.stream = msgspec.msgpack.decode(body, type=Stream)

    def wait(self, by_ms: int) -> None:
        """Let time pass, with the timer's word at each deadline on the way."""
        end_ms = self.at_ms + by_ms
        while 0 < (due_ms := ledger.deadline_ms(self.now)) <= end_ms:
            self.at_ms = max(self.at_ms, due_ms)
            assert not self.propose(TimePassed()), "the timer spoke for nothing"
        self.at_ms = end_ms

    # What edges say.

    def list_all(self, units: Iterable[Unit], *, is_complete: bool = True) -> None:
        self.propose(UnitsListed(tuple(units), len(self.now.units), is_complete))

    def open(self, index: int, attempt: int = 1, incarnation: str = "a") -> "Reader":
        reader = Reader(self, attempt_id(index, attempt), incarnation)
        self.propose(ReaderOpened(reader.attempt, incarnation, is_awaited=True))
        return reader

    def told_of(self, kind: type[JobEvent]) -> list[JobEvent]:
        return [one for one in self.told if isinstance(one, kind)]


class Reader:
    """A reader that takes what it is told to take, and reports all that is so."""

    def __init__(self, driver: Driver, attempt: AttemptId, incarnation: str) -> None:
        self.driver = driver
        self.attempt = attempt
        self.incarnation = incarnation
        self.held: dict[int, Held] = {}

    def orders(self) -> FeedOrders:
        return ledger.feed_orders(self.driver.now, self.attempt, self.incarnation)

    def leases(self) -> tuple[Lease, ...]:
        return self.orders().leases

    def obey(self) -> tuple[Held, ...]:
        """Take over the leases there are, positions of those held already kept."""
        before = self.held
        self.held = {}
        for lease in self.leases():
            old = before.get(lease.token)
            position = lease.position if old is None else max(old.position, lease.position)
            hi = lease.hi if old is None else min(old.hi, lease.hi)
            self.held[lease.token] = Held(
                "clicks", lease.epoch, lease.unit, lease.lo, lease.token, position, hi
            )
        return tuple(self.held.values())

    def take(self, count: int, token: int | None = None) -> None:
        """Take so many positions of a lease, the oldest by default."""
        token = min(self.held) if token is None else token
        held = self.held[token]
        self.held[token] = replace(held, position=min(held.hi, held.position + count))

    def trim(self, hi: int, token: int) -> None:
        self.held[token] = replace(self.held[token], hi=hi)

    def beat(
        self,
        want: int = 0,
        *,
        held: tuple[Held, ...] | None = None,
        returned: tuple[Held, ...] = (),
        bad: tuple[BadRange, ...] = (),
        mapped: tuple[UnitMap, ...] = (),
        marks: tuple[Mark, ...] = (),
        asks: tuple[FeedAsk, ...] = (),
        rows_per_s: int = 0,
    ) -> str:
        report = FeedReport(
            "clicks",
            tuple(self.held.values()) if held is None else held,
            want,
            returned,
            bad,
            mapped,
            marks,
            asks,
            rows_per_s=rows_per_s,
        )
        reason = self.driver.propose(BeatReceived(self.attempt, self.incarnation, report))
        self.obey()
        return reason

    def mark(self, step: int) -> Mark:
        """Return what the trainer says at a step: how far it is now."""
        return Mark(step, tuple(self.held.values()))

    def ask(self, kind: str, name: str, number: int = 1, want: int = 0) -> str:
        """Ask once; return the error, "" when it was done."""
        self.beat(want, asks=(FeedAsk(number, kind, name),))
        return dict(self.orders().answers)[number]

    def end(
        self,
        *,
        positions: tuple[Held, ...] | None = None,
        has_completed: bool = False,
        was_own_fault: bool = False,
        marks: tuple[Mark, ...] = (),
    ) -> None:
        last = tuple(self.held.values()) if positions is None else positions
        told = tuple((self.driver.now.name, one) for one in marks)
        self.driver.propose(ReaderEnded(self.attempt, last, has_completed, was_own_fault, told))

    def crash(self, *, was_own_fault: bool = True) -> None:
        """End without a word of how far it was."""
        self.end(positions=(), was_own_fault=was_own_fault)


__all__ = ["Driver", "Reader", "Source", "attempt_id", "rows_unit", "stream_spec", "text_unit"]
