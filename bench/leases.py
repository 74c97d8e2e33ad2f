"""Durable leases: a range is given out, taken whole and counted, each way through the journal.

One lease is one report that ends the last range and asks for the next: `core.step`, an entry in
SQLite, and the reader's new orders. Single: an entry per report, as with one reader. Batched: 256
reports an entry, as the engine's group commit makes them of many readers.
"""

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import anyio

from bench.figures import Figure
from primusd import core
from primusd.core import World
from primusd.datafeed.ledger import machine as ledger
from primusd.datafeed.ledger.events import BeatReceived, ReaderOpened, StreamDeclared, UnitsListed
from primusd.datafeed.ledger.model import Stream
from primusd.datafeed.protocol import FeedOrders, FeedReport, Held, Unit
from primusd.inbox import PROPOSALS_PER_STEP_MAX
from primusd.job.ids import AttemptId
from primusd.job.machine import At
from primusd.job.spec import Source, Split, StreamSpec
from primusd.records import Event, Proposal, encode_entry
from primusd.state.embedded import EmbeddedJournal
from primusd.state.journal import Journal

JOB = "0000000000000001"
STREAM = "clicks"
KEY = f"{JOB}/{STREAM}"
SPLIT_BYTES = 16 << 20
UNIT_BYTES = 1 << 30
READERS = 2_000
SECONDS = 2.0
START_MS = 1_700_000_000_000
GOAL_OF_DISK = 0.25
GOAL_BATCHED_PER_S = 2_000


class Daemon:
    """A world with one stream, and its journal."""

    def __init__(self, journal: Journal) -> None:
        self.world = World(streams={KEY: stream()})
        self.revision = 0
        self.entry_bytes = 0
        self._journal = journal

    async def step(self, events: Sequence[Event]) -> None:
        """Take events in one entry and make it durable."""
        proposals = [Proposal(KEY, event, "executor") for event in events]
        at_ms = START_MS + self.revision * 100
        step = core.step(self.world, proposals, at_ms=at_ms, term=1, revision=self.revision + 1)
        assert step.entry is not None, step.answers
        await self._journal.append(step.entry)
        self.revision += 1
        self.world = step.world
        self.entry_bytes = len(encode_entry(step.entry))

    def orders(self, attempt: AttemptId) -> FeedOrders:
        """Return what a reader is told."""
        return ledger.feed_orders(self.world.streams[KEY], attempt, "a")


def run() -> list[Figure]:
    """Measure leases a second, one by one and in groups, beside bare writes to the same disk."""
    return anyio.run(_run)


async def _run() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        journal = EmbeddedJournal(Path(folder) / "journal.db")
        await journal.load()
        rates = await both_rates(journal, SECONDS)
        await journal.close()
        single, batched = rates.single_per_s, rates.batched_per_s
        single_disk = _disk_per_s(Path(folder), rates.single_bytes)
        batched_disk = _disk_per_s(Path(folder), rates.batched_bytes)
    return [
        Figure(
            "durable leases, one a commit",
            single,
            "leases/s",
            f"≥ {GOAL_OF_DISK:.0%} of bare fdatasync",
            single >= GOAL_OF_DISK * single_disk,
            f"bare write + fdatasync: {single_disk:,.0f}/s, so {single / single_disk:.0%}",
        ),
        Figure(
            f"durable leases, {PROPOSALS_PER_STEP_MAX} a commit, {READERS:,} readers",
            batched,
            "leases/s",
            f"≥ {GOAL_BATCHED_PER_S:,} leases/s",
            batched >= GOAL_BATCHED_PER_S,
            f"bare write + fdatasync: {batched_disk * PROPOSALS_PER_STEP_MAX:,.0f} leases/s",
        ),
    ]


class Rates(NamedTuple):
    """Leases a second, and bytes of an entry."""

    single_per_s: float
    batched_per_s: float
    single_bytes: int
    batched_bytes: int


async def both_rates(journal: Journal, seconds: float) -> Rates:
    """Return how many leases a second a journal takes, one an entry and many an entry."""
    daemon = Daemon(journal)
    attempts = [AttemptId(JOB, "worker", index, 1) for index in range(READERS)]
    for first in range(0, READERS, PROPOSALS_PER_STEP_MAX):
        some = attempts[first : first + PROPOSALS_PER_STEP_MAX]
        await daemon.step([ReaderOpened(attempt, "a") for attempt in some])
    single = await _leases_per_s(daemon, attempts, 1, seconds)
    single_bytes = daemon.entry_bytes
    batched = await _leases_per_s(daemon, attempts, PROPOSALS_PER_STEP_MAX, seconds)
    return Rates(single, batched, single_bytes, daemon.entry_bytes)


async def _leases_per_s(
    daemon: Daemon, attempts: Sequence[AttemptId], group: int, seconds: float
) -> float:
    """Return how many leases are given, taken and counted a second."""
    count, first = 0, 0
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        some = [attempts[(first + number) % len(attempts)] for number in range(group)]
        first += group
        before = daemon.world.streams[KEY].last_token
        await daemon.step([_beat(daemon, attempt) for attempt in some])
        count += daemon.world.streams[KEY].last_token - before
        for attempt in some:
            assert daemon.orders(attempt).leases
    return count / (time.perf_counter() - begin)


def _beat(daemon: Daemon, attempt: AttemptId) -> BeatReceived:
    """Return the report that all it holds was taken, and that it wants one more."""
    held = tuple(
        Held(STREAM, one.epoch, one.unit, one.lo, one.token, one.hi, one.hi)
        for one in daemon.orders(attempt).leases
    )
    return BeatReceived(attempt, "a", FeedReport(STREAM, held, 1, rows_per_s=50_000))


def _disk_per_s(folder: Path, byte_count: int) -> float:
    """Return how often a second so many bytes can be written and synced."""
    body = b"x" * byte_count
    path = folder / "bare"
    count = 0
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        begin = time.perf_counter()
        while (spent := time.perf_counter() - begin) < SECONDS / 2:
            os.write(descriptor, body)
            os.fdatasync(descriptor)
            count += 1
    finally:
        os.close(descriptor)
        path.unlink()
    return count / spent


def stream(files: int = 1_000) -> Stream:
    """Return a stream whose files are listed."""
    spec = StreamSpec(STREAM, (Source("/data"),), split=Split(byte_count=SPLIT_BYTES), epochs=1_000)
    units = tuple(
        Unit("file", f"/data/part-{number:05d}.txt", UNIT_BYTES, "1", {"format": "text"})
        for number in range(files)
    )
    at = At(START_MS, 0, 0, "bench")
    made = ledger.apply(None, StreamDeclared(JOB, STREAM, spec, ("worker",)), at)
    assert isinstance(made, Stream)
    listed = ledger.apply(made, UnitsListed(units, 0, is_complete=True), at)
    assert isinstance(listed, Stream)
    return listed
