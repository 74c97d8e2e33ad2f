"""A leader at work on a real etcd: 1,000 jobs of 100 replicas, and 20,000 data tasks a second.

One task event is a range that a reader has read whole and reports; each of 1,000 readers reports 32
of them at once and is given 32 more. All of it goes the way it goes in a daemon, from the engine's
inbox on: group commit, fenced transactions, snapshots.
"""

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

import anyio
from msgspec.structs import replace

from bench import leases
from bench.core_scale import JOBS, NODES, REPLICAS, Fleet
from bench.failover import keep
from bench.figures import Figure, unmeasured
from primusd.clock import SystemClock
from primusd.datafeed.ledger import machine as ledger
from primusd.datafeed.ledger.events import BeatReceived, ReaderOpened
from primusd.datafeed.ledger.model import Stream
from primusd.datafeed.protocol import FeedReport, Held
from primusd.engine import Engine, EngineSettings
from primusd.inbox import PROPOSALS_PER_STEP_MAX
from primusd.job.ids import AttemptId
from primusd.records import Proposal
from primusd.state.embedded import EmbeddedJournal
from primusd.state.etcd.messages import messages
from tests.services.etcd import PLAIN, Etcd, running_etcd
from tests.services.etcd_heads import LeadingJournal, Store
from tests.services.etcd_programs import folder

EVENTS_PER_S = 20_000
BATCH = 32
"""Tasks that a reader holds, and reports at once."""
FILES = 20
"""Of each stream, 64 tasks each, read again and again."""
SECONDS = 40.0
"""Snapshots are among it: each 30 s, of all that has changed."""
TICK_S = 0.02
TRANSACTIONS_PER_S_MAX = 15.0
RECOVERY_S_MAX = 1.0
CORES_MAX = 1.0
TTL_MS = 60_000
OPENED_AT_ONCE = 200
SETTINGS = EngineSettings(cluster_id="bench", version="0", ack_linger_ms=100)


def run(*, jobs: int = JOBS, replicas: int = REPLICAS, seconds: float = SECONDS) -> list[Figure]:
    """Return how many transactions, bytes and cores that takes; beside SQLite, a lease's cost."""
    if not (folder(PLAIN) / ".ok").exists():
        reason = "no etcd: python -m tests.services.etcd_programs --all gets one"
        return [unmeasured("20,000 task events a second in etcd", reason)]
    with tempfile.TemporaryDirectory(prefix="pb-") as name, running_etcd(Path(name)) as etcd:
        figures = anyio.run(_loaded, etcd, jobs, replicas, seconds)
        return [*figures, *anyio.run(_beside_sqlite, etcd, Path(name), min(seconds, 2.0))]


async def _loaded(etcd: Etcd, jobs: int, replicas: int, seconds: float) -> list[Figure]:
    fleet = Fleet(NODES, replicas)
    for uid in [fleet.submit(number) for number in range(jobs)]:
        fleet.bring_up(uid)
    streams = {f"{uid}/{leases.STREAM}": _stream(uid) for uid in fleet.world.jobs}
    fleet.world = replace(fleet.world, streams=streams)
    cluster = uuid4().hex
    await keep(etcd.endpoints, cluster, fleet, tail=0)
    async with Store(etcd.endpoints, cluster, ttl_ms=TTL_MS) as store:
        engine = Engine(store.journal, store.election, SystemClock(), settings=SETTINGS)
        began = time.perf_counter()
        async with anyio.create_task_group() as group:
            await group.start(engine.run)
            recovery_s = time.perf_counter() - began
            load = Load(engine, store, etcd)
            await load.open_all()
            figures = await load.measure(seconds)
            group.cancel_scope.cancel()
    told = f"{jobs:,} jobs of {replicas} replicas, {len(streams):,} streams"
    met = recovery_s <= RECOVERY_S_MAX
    recovery = Figure("recovery from etcd", recovery_s, "s", "< 1 s", met, told)
    return [*figures, recovery]


def _stream(uid: str) -> Stream:
    return replace(leases.stream(FILES), job=uid)


class Load:
    """Readers that report at a rate."""

    def __init__(self, engine: Engine, store: Store, etcd: Etcd) -> None:
        self._engine = engine
        self._store = store
        self._etcd = etcd
        self._readers = [(key, AttemptId(key.partition("/")[0], "worker", 0, 1))
                         for key in engine.world.streams]  # fmt: skip
        self._next = 0
        self._waits_for: set[str] = set()

    async def open_all(self) -> None:
        """Let every reader open its stream and take its first tasks."""
        for first in range(0, len(self._readers), OPENED_AT_ONCE):
            some = self._readers[first : first + OPENED_AT_ONCE]
            await self._engine.propose_all(
                [Proposal(key, ReaderOpened(attempt, "a"), "executor") for key, attempt in some]
            )
            await self._engine.propose_all([self._beat(*one) for one in some])

    async def measure(self, seconds: float) -> list[Figure]:
        """Report at the rate for so long."""
        before, db_before = await self._revision(), await self._db_bytes()
        tasks, used_s, began = self._tasks(), time.process_time(), time.perf_counter()
        async with anyio.create_task_group() as group:
            sent = 0.0
            while (spent_s := time.perf_counter() - began) < seconds:
                due = int(spent_s * EVENTS_PER_S / BATCH - sent)
                sent += due
                # After a moment in which the loop did other work they are many.
                some = self._some(due)
                for first in range(0, len(some), PROPOSALS_PER_STEP_MAX):
                    group.start_soon(self._report, some[first : first + PROPOSALS_PER_STEP_MAX])
                await anyio.sleep(TICK_S)
        spent_s = time.perf_counter() - began
        cores = (time.process_time() - used_s) / spent_s
        tasks_per_s = (self._tasks() - tasks) / spent_s
        transactions = (await self._revision() - before) / spent_s
        grown = (await self._db_bytes() - db_before) / 1e6
        text = f"≤ {TRANSACTIONS_PER_S_MAX:g}/s"
        told = f"{tasks_per_s:,.0f} task events/s came; etcd's file grew by {grown:.0f} MB"
        met = transactions <= TRANSACTIONS_PER_S_MAX and tasks_per_s >= 0.95 * EVENTS_PER_S
        return [
            Figure(f"etcd, {EVENTS_PER_S:,} task events/s: transactions", transactions, "/s", text,
                   met, told),
            Figure("the same: of a core", 100 * cores, "%", "≤ 100 %", cores <= CORES_MAX, ""),
        ]  # fmt: skip

    def _some(self, count: int) -> list[tuple[str, AttemptId]]:
        found = []
        for _ in range(min(count, len(self._readers))):
            key, attempt = self._readers[self._next % len(self._readers)]
            self._next += 1
            if key not in self._waits_for:
                self._waits_for.add(key)
                found.append((key, attempt))
        return found

    async def _report(self, some: list[tuple[str, AttemptId]]) -> None:
        await self._engine.propose_all([self._beat(*one) for one in some])
        self._waits_for.difference_update(key for key, _ in some)

    def _beat(self, key: str, attempt: AttemptId) -> Proposal:
        orders = ledger.feed_orders(self._engine.world.streams[key], attempt, "a")
        held = tuple(
            Held(leases.STREAM, one.epoch, one.unit, one.lo, one.token, one.hi, one.hi)
            for one in orders.leases
        )
        report = FeedReport(leases.STREAM, held, BATCH, rows_per_s=50_000)
        return Proposal(key, BeatReceived(attempt, "a", report), "executor")

    def _tasks(self) -> int:
        streams: Mapping[str, Stream] = self._engine.world.streams
        return sum(stream.last_token for stream in streams.values())

    async def _revision(self) -> int:
        request = messages()["RangeRequest"](key=self._store.layout.lane)
        answer = await self._store.client.call("KV", "Range", request, within_s=10)
        return int(answer.header.revision)

    async def _db_bytes(self) -> int:
        request = messages()["StatusRequest"]()
        answer = await self._store.client.call("Maintenance", "Status", request, within_s=10)
        return int(answer.dbSize)


async def _beside_sqlite(etcd: Etcd, folder: Path, seconds: float) -> list[Figure]:
    found = {}
    for name, journal in (
        ("etcd", LeadingJournal(etcd.endpoints, uuid4().hex)),
        ("SQLite", EmbeddedJournal(folder / "journal.db")),
    ):
        await journal.load()
        found[name] = await leases.both_rates(journal, seconds)
        await journal.close()
    here, beside = found["etcd"], found["SQLite"]
    pairs = (
        ("one", here.single_per_s, beside.single_per_s),
        (f"{PROPOSALS_PER_STEP_MAX}", here.batched_per_s, beside.batched_per_s),
    )
    figures = []
    for count, rate, other in pairs:
        told = f"SQLite: {other:,.0f}, so {rate / other:.0%}"
        name = f"durable leases in etcd, {count} a commit"
        figures.append(Figure(name, rate, "leases/s", "", met=True, rival=told))
    return figures
