"""The ledger with a million leases open: what one costs, and what a savepoint takes.

By process time, in the same run: a lease is a report that ends one lease and asks for another, from
a reader that holds 50, once among 20 readers and once among 20,000. Garbage is collected as in the
daemon.
"""

import asyncio
import gc
import statistics
import time
from collections.abc import Callable

import msgspec

from bench.figures import Figure
from bench.rivals import RivalAbsentError, rival_says
from primusd.datafeed.ledger import machine as ledger
from primusd.datafeed.ledger.events import (
    BeatReceived,
    ReaderOpened,
    RestoreRequested,
    SavepointRequested,
    StreamDeclared,
    StreamEvent,
    UnitsListed,
)
from primusd.datafeed.ledger.model import LeaseState, Stream, reader_of
from primusd.datafeed.protocol import FeedReport, Held, Unit
from primusd.imports import GARBAGE_THRESHOLDS
from primusd.job.ids import AttemptId
from primusd.job.machine import At, Ignore
from primusd.job.spec import Source, Split, StreamSpec
from primusd.records import SCHEMA
from primusd.state.pieces import encode_stream

JOB = "0000000000000001"
HELD = 50
FEW, MANY = 20, 20_000
BEATS = 2_000
ROUNDS = 3
SPLIT_BYTES = 16 << 20
UNIT_BYTES = 1 << 30
UNITS = 20_000
GOAL_RATIO = 1.5
GOAL_WORK_MS = 300
GOAL_STALL_MS = 20
GOAL_RESTORE_MS = 1_000
TICK_S = 0.001


class Ledger:
    """A stream, driven as the engine drives it, without its journal."""

    def __init__(self, readers: int) -> None:
        spec = StreamSpec("clicks", (Source("/data"),), split=Split(byte_count=SPLIT_BYTES))
        made = ledger.apply(None, StreamDeclared(JOB, "clicks", spec, ("worker",)), _at(0))
        assert isinstance(made, Stream)
        self.stream = made
        self.now = 1
        self.attempts = [AttemptId(JOB, "worker", index, 1) for index in range(readers)]
        units = (
            Unit("file", f"/data/{n:06d}", UNIT_BYTES, "1", {"format": "text"})
            for n in range(UNITS)
        )
        self.step(UnitsListed(tuple(units), 0, is_complete=True))
        for attempt in self.attempts:
            self.step(ReaderOpened(attempt, "a"))
            self.step(BeatReceived(attempt, "a", FeedReport("clicks", (), HELD)))

    def step(self, event: StreamEvent) -> None:
        """Apply an event, and what follows from it."""
        self.now += 1
        after = ledger.apply(self.stream, event, _at(self.now))
        assert not isinstance(after, Ignore)
        self.stream = after
        while (decided := ledger.settle(self.stream, self.now)) is not None:
            after = ledger.apply(self.stream, decided, _at(self.now))
            assert not isinstance(after, Ignore)
            self.stream = after

    def beats(self, count: int) -> float:
        """Let readers end a lease each and get another; return microseconds a lease."""
        before = self.stream.last_token
        begin = time.process_time()
        for number in range(count):
            attempt = self.attempts[number * 7_919 % len(self.attempts)]
            reader = reader_of(self.stream, attempt)
            assert reader is not None
            done = reader.leases[HELD // 2]
            held = tuple(_held(one, is_done=one is done) for one in reader.leases)
            self.step(BeatReceived(attempt, "a", FeedReport("clicks", held, 1)))
        spent_s = time.process_time() - begin
        return spent_s * 1e6 / (self.stream.last_token - before)


def run() -> list[Figure]:
    """Measure both sizes in turn, then a savepoint of the large one."""
    before = gc.get_threshold()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    try:
        return _run()
    finally:
        gc.set_threshold(*before)


def _run() -> list[Figure]:
    few, many = Ledger(FEW), Ledger(MANY)
    pairs = [(few.beats(BEATS), many.beats(BEATS)) for _ in range(ROUNDS)]
    low, high = (statistics.median(one) for one in zip(*pairs, strict=True))
    ratio = high / low
    open_count = many.stream.lease_count
    seal_ms = _spent_ms(lambda: many.step(SavepointRequested("bench")))
    kept = many.stream.savepoints[-1]
    work_ms = seal_ms + _spent_ms(lambda: msgspec.msgpack.encode(kept))
    with_all = msgspec.structs.replace(many.stream, units=())
    stall_ms = min(asyncio.run(_stall_ms(with_all)) for _ in range(ROUNDS))
    one_go_ms = _spent_ms(lambda: msgspec.msgpack.encode((SCHEMA, with_all)))
    restore_ms = _spent_ms(lambda: many.step(RestoreRequested("bench")))
    size = f"{open_count:,} open leases"
    in_one_go = f"encoded in one go: {one_go_ms:,.0f} ms"
    return [
        Figure(
            f"a lease among {open_count:,} that are open",
            high,
            "µs",
            f"≤ {GOAL_RATIO} x among {FEW * HELD:,}",
            ratio <= GOAL_RATIO,
            f"among {FEW * HELD:,}: {low:,.0f} µs, so {ratio:.2f} x; {_dlrover()}",
        ),
        _within(f"a savepoint of {size}: the loop stands still", seal_ms, GOAL_STALL_MS),
        _within(f"a savepoint of {size}: work, with its bytes", work_ms, GOAL_WORK_MS),
        _within("a snapshot with it: the loop stands still", stall_ms, GOAL_STALL_MS, in_one_go),
        _within(f"going back to a savepoint of {size}", restore_ms, GOAL_RESTORE_MS),
    ]


def _within(name: str, spent_ms: float, most_ms: int, rival: str = "") -> Figure:
    return Figure(name, spent_ms, "ms", f"≤ {most_ms:,} ms", spent_ms <= most_ms, rival)


async def _stall_ms(stream: Stream) -> float:
    """Return for how long a loop stands still, at most, while a thread makes a stream bytes."""
    making = asyncio.create_task(asyncio.to_thread(encode_stream, SCHEMA, stream))
    longest_s, last = 0.0, time.perf_counter()
    while not making.done():
        await asyncio.sleep(TICK_S)
        now = time.perf_counter()
        longest_s, last = max(longest_s, now - last - TICK_S), now
    return longest_s * 1e3


def _dlrover() -> str:
    """Return what a task and its report cost its master in memory, few and many of them open."""
    try:
        few, many = (
            rival_says("dlrover", "leases_rivals", "open", count)[0]
            for count in (FEW * HELD, MANY * HELD)
        )
    except RivalAbsentError as error:
        return str(error)
    return f"DLRover: {many:,.0f} µs and {few:.1f} µs, so {many / few:,.0f} x"


def _spent_ms(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return (time.process_time() - begin) * 1e3


def _held(lease: LeaseState, *, is_done: bool) -> Held:
    position = lease.hi if is_done else lease.position
    return Held("clicks", lease.epoch, lease.unit, lease.lo, lease.token, position, lease.hi)


def _at(at_ms: int) -> At:
    return At(at_ms, at_ms, 0, "bench")
