"""How long several heads have no leader, with 1,000 jobs of 100 replicas in a real etcd.

What a new leader does once it is elected is measured in one process, with a warm copy and without;
a leader that is killed, stopped, or told to resign, with whole daemons beside each other.
"""

import json
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import uuid4

import anyio

from bench.core_scale import JOBS, NODES, REPLICAS, Fleet
from bench.figures import Figure, unmeasured
from bench.head import BIN
from primusd import core
from primusd.clock import SystemClock
from primusd.core import World
from primusd.engine import Engine, EngineSettings
from primusd.job.events import ExecutorFellSilent
from primusd.records import Entry, Proposal
from primusd.state.snapshots import Snapshots
from primusd.warm_copy import WarmCopy
from tests.services.etcd import PLAIN, running_etcd
from tests.services.etcd_heads import Store
from tests.services.etcd_programs import folder
from tests.services.processes import free_ports

NAMES = "ab"
TTL_S = 5
TAIL = 200
"""Entries that no snapshot covers."""
RUNS = 3
TAKE_OVER_MS_MAX = 100.0
RESIGN_S_MAX = 1.0
WAIT_S = 60.0
SETTINGS = EngineSettings(cluster_id="bench", version="0", snapshot_every_ms=3_600_000)


def run() -> list[Figure]:
    """Return what takes how long; nothing, with the reason, where there is no etcd."""
    if not (folder(PLAIN) / ".ok").exists():
        reason = "no etcd: python -m tests.services.etcd_programs --all gets one"
        return [unmeasured("fail-over of several heads", reason)]
    with tempfile.TemporaryDirectory(prefix="pb-") as name, running_etcd(Path(name)) as etcd:
        fleet = Fleet(NODES)
        for uid in [fleet.submit(number) for number in range(JOBS)]:
            fleet.bring_up(uid)
        warm, cold = anyio.run(_taken_over, etcd.endpoints, fleet)
        killed_s, stopped_s, resigned_s = _whole_daemons(etcd.url, "daemons", Path(name))
    size = f"{JOBS:,} jobs of {REPLICAS} replicas; cold: {cold:.0f} ms"
    allowed_s = 1.5 * TTL_S + 1
    return [
        _figure("to take over with a warm copy", warm, "ms", TAKE_OVER_MS_MAX, size),
        _figure(f"leader killed, leader_ttl {TTL_S} s", killed_s, "s", allowed_s, ""),
        _figure("leader stopped by SIGTERM", stopped_s, "s", RESIGN_S_MAX, ""),
        _figure("leader resigns", resigned_s, "s", RESIGN_S_MAX, ""),
    ]


def _figure(name: str, value: float, unit: str, most: float, rival: str) -> Figure:
    return Figure(name, value, unit, f"≤ {most:.3g} {unit}", value <= most, rival)


async def _taken_over(endpoints: tuple[str, ...], fleet: Fleet) -> tuple[float, float]:
    """Return the milliseconds from the election to the first entry of the term, warm and cold."""
    cluster = uuid4().hex
    revision = await keep(endpoints, cluster, fleet, tail=TAIL)
    found = []
    for is_warm in (True, False):
        times = []
        for _ in range(RUNS):
            took_ms, revision = await _once(endpoints, cluster, revision, is_warm=is_warm)
            times.append(took_ms)
        found.append(min(times))
    return found[0], found[1]


async def keep(endpoints: tuple[str, ...], cluster: str, fleet: Fleet, *, tail: int) -> int:
    """Keep the fleet in etcd as a leader would: snapshots, and a journal that they do not cover.

    Args:
        endpoints: Of etcd.
        cluster: Under which name.
        fleet: What is kept.
        tail: How many entries the snapshots do not cover.
    """
    snapshots = Snapshots()
    snapshots._uncovered = dict.fromkeys(core.machines(fleet.world), 1)  # noqa: SLF001 - all of it
    async with Store(endpoints, cluster, ttl_ms=60_000) as store:
        await store.lead()
        # The entries of its making are not kept: the numbers begin anew.
        while True:
            due = snapshots.due(fleet.world, 0)
            await store.journal.append(None, due.snapshots)
            snapshots.written(due)
            if not snapshots.has_more:
                break
        world = fleet.world
        for revision in range(1, tail + 1):
            world, entry = _stepped(fleet, world, revision)
            await store.journal.append(entry)
        await _end(store)
    return tail


def _stepped(fleet: Fleet, world: World, revision: int) -> tuple[World, Entry]:
    """Return a world in which one job has news, and the entry that tells it."""
    uid = f"{revision:016d}"
    proposal = Proposal(uid, ExecutorFellSilent(fleet.attempts(uid)[0]), "bench")
    at_ms = fleet.at_ms + revision
    step = core.step(world, (proposal,), at_ms=at_ms, term=1, revision=revision)
    assert step.entry is not None
    return step.world, step.entry


async def _end(store: Store) -> None:
    async with store.election.held():
        pass


async def _once(
    endpoints: tuple[str, ...], cluster: str, revision: int, *, is_warm: bool
) -> tuple[float, int]:
    """Let one head lead, and then another one; return how long that took once it was its turn."""
    async with (
        Store(endpoints, cluster, ttl_ms=60_000) as before,
        Store(endpoints, cluster, ttl_ms=60_000) as after,
    ):
        await before.lead()
        copy = WarmCopy(after.journal) if is_warm else None
        engine = Engine(after.journal, after.election, SystemClock(), settings=SETTINGS, copy=copy)
        led = anyio.Event()
        campaign, begun = after.election.campaign, [0.0]

        async def spied(*, last_term: int, wall_ms: int) -> int:
            term = await campaign(last_term=last_term, wall_ms=wall_ms)
            begun[0] = time.perf_counter()
            return term

        after.election.campaign = spied  # type: ignore[method-assign] # looks at the time only

        async def lead() -> None:
            async with anyio.create_task_group() as group:
                await group.start(engine.run)
                led.set()

        with anyio.fail_after(WAIT_S):
            async with anyio.create_task_group() as group:
                group.start_soon(lead)
                while copy is not None and not copy.may_lead:  # noqa: ASYNC110 - looks on
                    await anyio.sleep(0.01)
                await anyio.sleep(0.5)
                await _end(before)
                await led.wait()
                took_s = time.perf_counter() - begun[0]
                assert len(engine.world.jobs) == JOBS
                assert engine.revision > revision
                found = took_s * 1000, engine.revision
                group.cancel_scope.cancel()
    return found


class _Daemon:
    """One of two heads."""

    def __init__(self, folder: Path, url: str, cluster: str, name: str, port: int) -> None:
        self.port = port
        folder.mkdir()
        settings = folder / "primusd.toml"
        settings.write_text(f'member = "{name}"\n[store.etcd]\nleader_ttl = "{TTL_S}s"\n')
        self._words = (
            *(BIN / "primusd", "--config", settings, "--state-dir", folder / "state"),
            *("--run-dir", folder / "run", "--listen", f"127.0.0.1:{port}"),
            *("--store", url, "--no-node", "--cluster", cluster),
        )
        self.socket = folder / "run" / "primusd.sock"
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            self._words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def end(self) -> None:
        self.process.terminate()
        self.process.wait()

    def leads(self) -> bool:
        return self._is_well("?leads")

    def serves(self) -> bool:
        return self._is_well("")

    def _is_well(self, what: str) -> bool:
        try:
            url = f"http://127.0.0.1:{self.port}/readyz{what}"
            with urllib.request.urlopen(url, timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def are_ready(self) -> bool:
        """Return whether both heads are known to this one, and could lead."""
        members = json.loads(self._leader("show"))["members"]
        return len(members) == len(NAMES) and all(one["ready"] for one in members)

    def resign(self) -> None:
        self._leader("resign")

    def _leader(self, action: str) -> bytes:
        words = (BIN / "primusctl", "--address", f"unix:{self.socket}", "leader", action)
        return subprocess.run([*words, "-o", "json"], check=True, capture_output=True).stdout


def _whole_daemons(url: str, cluster: str, folder: Path) -> tuple[float, float, float]:
    """Return how long it takes, at the most, after a kill, a SIGTERM and the word to resign."""
    with _two_heads(url, cluster, folder) as heads:
        killed: list[float] = []
        stopped: list[float] = []
        resigned: list[float] = []
        for _ in range(RUNS):
            for number, took in ((signal.SIGKILL, killed), (signal.SIGTERM, stopped)):
                leader, other = _by_rank(heads)
                began = time.monotonic()
                leader.process.send_signal(number)
                took.append(_until_leads(other, began))
                leader.process.wait()
                leader.start()
            leader, other = _by_rank(heads)
            began = time.monotonic()
            leader.resign()
            resigned.append(_until_leads(other, began))
    return max(killed), max(stopped), max(resigned)


@contextmanager
def _two_heads(url: str, cluster: str, folder: Path) -> Iterator[list[_Daemon]]:
    with ExitStack() as held:
        heads = []
        for name, port in zip(NAMES, free_ports(len(NAMES)), strict=True):
            head = _Daemon(folder / name, url, cluster, name, port)
            held.callback(head.end)
            heads.append(head)
        yield heads


def _by_rank(heads: list[_Daemon]) -> list[_Daemon]:
    """Return the leader and the other one, once both are there and could lead."""
    end_s = time.monotonic() + WAIT_S
    while time.monotonic() < end_s:
        if all(head.serves() for head in heads) and any(head.leads() for head in heads):
            # A key of a head before it was started anew is gone by then.
            time.sleep(0.5)
            found = sorted(heads, key=_Daemon.leads, reverse=True)
            if found[0].are_ready():
                return found
        time.sleep(0.05)
    raise TimeoutError("the heads do not serve")


def _until_leads(head: _Daemon, began: float) -> float:
    while not head.leads():
        if time.monotonic() > began + WAIT_S:
            raise TimeoutError("nobody leads")
        time.sleep(0.005)
    return time.monotonic() - began
