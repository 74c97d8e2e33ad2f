"""Heads of the simulator whose store is etcd: the real election, lane and journal lead and write.

A head campaigns as soon as it starts, and leads once the lease of whoever led is over. What it does
between a write and its answer is as in `head.py`.
"""

import random
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio

from primusd import core
from primusd.core import World
from primusd.errors import DeposedError, StoreUnavailableError
from primusd.state.election import Identity
from primusd.state.etcd.election import EtcdElection
from primusd.state.etcd.journal import EtcdJournal
from primusd.state.etcd.layout import Layout
from primusd.state.etcd.leadership import Leadership
from primusd.state.etcd.values import first_part
from primusd.state.journal import Loaded
from primusd.state.snapshots import Due
from tests.simulation.etcd_members import EtcdCluster, SimulatedClient
from tests.simulation.etcd_state import Message
from tests.simulation.head import Groups, Head, Watcher
from tests.simulation.schedule import Schedule
from tests.simulation.store import Store
from tests.simulation.virtual_loop import HOST, VirtualLoop

TTL_MS = 10_000
TRY_MS = 1_000
AGAIN_S = 1.0
EXPIRE_EVERY_MS = 500


class EtcdStore(Store):
    """What a majority of etcd keeps of one cluster.

    Attributes:
        cluster: Its members, and the ways to them.
        loop: In which heads run.
        layout: Of the keys.
    """

    def __init__(self, schedule: Schedule, seed: int) -> None:
        self.loop = VirtualLoop(schedule)  # type: ignore[abstract]
        self.cluster = EtcdCluster(schedule, self.loop, random.Random(f"{seed}/etcd"))
        self.layout = Layout("c1")
        self._schedule = schedule
        self._worlds: dict[tuple[int, int], World] = {}
        """By term and revision: what an entry leads to, from when it is sent on."""
        super().__init__()
        self.cluster.state.on_taken = self._taken
        self._expire()

    @property
    def is_full(self) -> bool:
        """Whether the quota is used up."""
        return self.cluster.state.is_full

    @is_full.setter
    def is_full(self, is_full: bool) -> None:
        self.cluster.state.is_full = is_full

    @property
    def latency_ms(self) -> int:
        """How long a message is under way at most."""
        return self.cluster.delay_ms[1]

    @latency_ms.setter
    def latency_ms(self, latency_ms: int) -> None:
        self.cluster.delay_ms = (1, max(4, latency_ms))

    def calm(self) -> None:
        """Mend all of it."""
        for number in range(len(self.cluster.members)):
            self.cluster.go_on(number)
        self.cluster.cut.clear()

    def announce(self, term: int, revision: int, world: World) -> None:
        """Note what an entry leads to that is about to be sent."""
        self._worlds[term, revision] = world

    def _taken(self, request: Message) -> None:
        """Note what became durable: one transaction, for no entry here is a large one."""
        journal = self.layout.journal
        for one in request.success:
            if one.WhichOneof("request") == "request_put" and one.request_put.key.startswith(
                journal
            ):
                put = one.request_put
                lane = self.cluster.state.row(self.layout.lane)
                assert lane is not None
                assert first_part(put.key, put.value).parts == 1
                term = int(lane.value.partition(b".")[0])
                self.world = self._worlds[term, int(put.key[len(journal) :])]

    def _expire(self) -> None:
        self.cluster.tick()
        self._schedule.later(EXPIRE_EVERY_MS, self._expire)


class EtcdHead(Head):
    """One life of a daemon among several.

    Attributes:
        host: On which it lives: its state directory, and its ways to etcd.
        on_deposed: Called when it leads no more, or will never.
    """

    def __init__(
        self, schedule: Schedule, store: EtcdStore, watcher: Watcher, *, skew_ms: int, host: str
    ) -> None:
        super().__init__(schedule, store, watcher, skew_ms=skew_ms)
        self.host = host
        self.on_deposed: Callable[[], None] = lambda: None
        self._etcd = store
        self._life = f"{host}/{id(self)}"
        self._waiting: deque[tuple[Groups, core.Step] | Due] = deque()
        self._leadership = Leadership(store.loop.time)
        self._journal: EtcdJournal
        self._election: EtcdElection
        self._turns: anyio.Event

    def start(self) -> None:
        """Campaign, and lead in the end."""

        self._spawn(self._live)

    def kill(self, *, lands: bool) -> None:
        """Die now; what was sent lands or does not, as etcd has it."""
        del lands
        self._writing = None
        self.is_dead = True
        self._etcd.loop.bury(self._life)

    def freeze(self, duration_ms: int) -> None:
        """Stand still with all that it waits for."""
        super().freeze(duration_ms)
        self._etcd.loop.freeze(self._life, self.schedule.now_ms + duration_ms)

    def resign(self) -> None:
        """Let another lead."""
        if self.term:
            self._spawn(self._election.resign)

    async def _live(self) -> None:
        client = SimulatedClient(self._etcd.cluster, self.host, try_ms=TRY_MS)
        layout, identity = self._etcd.layout, Identity(self.host, home=self.host)
        self._turns = anyio.Event()
        self._election = EtcdElection(
            client, layout, self._leadership, identity=lambda: identity, ttl_ms=TTL_MS
        )
        self._journal = EtcdJournal(client, layout, self._leadership)
        try:
            self.term = await self._election.campaign(last_term=0, wall_ms=0)
            async with self._election.held():
                self._load(await self._loaded())
                self._begin()
                await self._work()
        except* DeposedError as errors:
            self._fail(DeposedError(str(errors.exceptions[0])), [])
            self.is_dead = True
            self.on_deposed()

    async def _loaded(self) -> Loaded:
        """Return what there is, as soon as it can be had."""
        while True:
            self._leadership.check()
            with suppress(StoreUnavailableError):
                return await self._journal.load()
            await anyio.sleep(AGAIN_S)

    async def _work(self) -> None:
        """Write what waits, one after the other."""
        while True:
            while not self._waiting:
                await self._turns.wait()
            wanted = self._waiting.popleft()
            try:
                if isinstance(wanted, Due):
                    await self._journal.append(None, wanted.snapshots, wanted.keep_from)
                    self._kept(wanted)
                else:
                    await self._journal.append(wanted[1].entry)
                    self._writing = None
                    self._recorded(*wanted)
            except DeposedError:
                raise
            except StoreUnavailableError as error:
                self._writing = None
                self._fail(error, [] if isinstance(wanted, Due) else wanted[0])

    def _write(self, groups: Groups, step: core.Step) -> None:
        assert step.entry is not None
        self._writing = lambda: None
        self._etcd.announce(self.term, step.entry.revision, step.world)
        self._wish((groups, step))

    def _keep(self, due: Due) -> None:
        self._wish(due)

    def _wish(self, wanted: Any) -> None:
        self._waiting.append(wanted)
        self._turns.set()
        self._turns = anyio.Event()

    def _reload(self) -> None:
        self._spawn(self._read_again)

    async def _read_again(self) -> None:
        with suppress(DeposedError):
            self._go_on(await self._loaded())

    def _spawn(self, work: Callable[[], Awaitable[None]]) -> None:
        """Start a task of this life; what it raises ends the run."""

        async def guarded() -> None:
            HOST.set(self._life)
            try:
                await work()
            except Exception as error:  # noqa: BLE001 - told to who plays the run
                self.schedule.later(0, _raise, error)

        self._etcd.loop.call_soon(lambda: self._etcd.loop.create_task(guarded()))


def _raise(error: Exception) -> None:
    raise error
