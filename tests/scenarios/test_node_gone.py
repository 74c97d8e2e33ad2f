"""A node that goes for good: away after 30 s, its replica elsewhere when that is safe."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import anyio

from primusd.api.live_values import LiveValues
from primusd.api.nodes import AWAY_MS, NodeRegistry, seen
from primusd.effects import Effects
from primusd.engine import Anew, Engine, EngineSettings
from primusd.executor.protocol import Bootstrap
from primusd.job.events import (
    ExecutorHolding,
    ExecutorRegistered,
    JobEvent,
    JobSubmitted,
    TrainerStarted,
)
from primusd.job.ids import AttemptId
from primusd.job.model import Attempt, replicas_of
from primusd.job.phases import AttemptPhase, Cause, NodePhase
from primusd.job.spec import JobSpec, RoleSpec
from primusd.launchers.local import LocalLauncher
from primusd.liveness import Liveness
from primusd.node.protocol import NodeAttempt, NodeHello, NodeReport
from primusd.records import ADMISSION
from primusd.state.journal import MemoryJournal
from primusd.sweep import Strays
from primusd.testing import SoleElection, VirtualTime, pieces_of

UID = "06f3k2m9q1x7abcd"
REPLACE_AFTER_MS = 100_000
TICK_MS = 500
GIB = 1 << 30


class Host:
    """A node with the executors on it; cut off, it does nothing more that anybody hears."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.is_connected = False
        self.attempts: dict[AttemptId, NodeAttempt] = {}
        self.killed: list[AttemptId] = []
        self.seq = 0

    def hello(self) -> NodeHello:
        return NodeHello(
            (1, 1), "c", self.name, "boot", "0", 4_000, 8 * GIB, (), (20_000, 20_999), {}
        )

    async def connect(self) -> None:
        self.is_connected = True
        self.world.launcher.connected(self.hello(), self)
        await self.world.engine.propose(ADMISSION, seen(self.hello(), "local"), by="launcher:local")
        self.wake()

    def cut_off(self) -> None:
        self.is_connected = False
        self.world.launcher.disconnected(self.name, self)
        self.world.nodes.begin_anew(Anew.TERM)

    def close(self) -> None:
        self.is_connected = False

    def wake(self) -> None:
        self.world.time.call_later(10, self._carry_out)

    def _carry_out(self) -> None:
        if not self.is_connected:
            return
        launcher = self.world.launcher
        orders = launcher.orders(self.name, self.seq)
        for start in orders.run:
            self.attempts[start.attempt] = NodeAttempt(start.attempt, alive=True, exit=None)
            self.world.time.call_later(10, partial(self._register, start.attempt))
        for attempt in (*orders.kill, *orders.release):
            if self.attempts.pop(attempt, None) is not None:
                self.killed.append(attempt)
        self.seq += 1
        report = NodeReport(self.seq, orders.term, orders.revision, tuple(self.attempts.values()))
        launcher.reported(self.name, report)

    def _register(self, attempt: AttemptId) -> None:
        self._tell(ExecutorRegistered(attempt, "i1", self.name, "boot", 1, "0"))
        self._tell(ExecutorHolding(attempt, ()))

    def beat(self) -> None:
        """Let every executor be heard, and start the trainers that are told to."""
        for attempt in self.attempts if self.is_connected else ():
            self.world.liveness.heard(attempt)
            if self.world.newest().phase is AttemptPhase.STARTING:
                self._tell(TrainerStarted(attempt, 4_711, 1))

    def _tell(self, event: JobEvent) -> None:
        self.world.engine.tell(UID, event, by="executor")


class World:
    """A daemon's parts around two hosts."""

    def __init__(self) -> None:
        self.time = VirtualTime()
        settings = EngineSettings(cluster_id="c", version="0")
        clock = self.time.clock
        self.engine = Engine(MemoryJournal(), SoleElection(), clock, settings=settings)
        self.launcher = LocalLauncher(lambda: self.engine.term)
        self.liveness = Liveness(self.engine, clock)
        self.nodes = NodeRegistry(
            self.engine,
            self.launcher,
            LiveValues(clock),
            clock,
            cluster_id="c",
            secret=b"s" * 32,
        )
        self.effects = Effects(
            self.engine,
            {"local": self.launcher},
            bootstrap=lambda attempt: Bootstrap("c", attempt, (), ""),
            list_piece=pieces_of(lambda _spec: []),
            drop_record=lambda _uid: None,
            strays=Strays(),
            sleep=self.time.sleep,
        )
        self.hosts = {name: Host(self, name) for name in ("n1", "n2")}

    def tick(self) -> None:
        for host in self.hosts.values():
            host.beat()
        self.liveness.look()
        self.nodes.look()
        self.time.call_later(TICK_MS, self.tick)

    def attempts(self) -> tuple[Attempt, ...]:
        (replica,) = replicas_of(self.engine.world.jobs[UID].roles["worker"])
        return replica.attempts

    def newest(self) -> Attempt:
        return self.attempts()[-1]

    def is_running(self, number: int) -> bool:
        attempts = self.attempts() if UID in self.engine.world.jobs else ()
        return bool(attempts) and (
            (attempts[-1].number, attempts[-1].phase) == (number, AttemptPhase.RUNNING)
        )

    def phase(self, name: str) -> NodePhase:
        return self.engine.world.admission.nodes[name].phase

    @contextmanager
    def measured(self) -> Iterator[list[int]]:
        """Yield a list that has how long it took in the end."""
        took: list[int] = []
        before_ms = self.time.clock.boot_ms()
        yield took
        took.append(self.time.clock.boot_ms() - before_ms)


async def play() -> None:
    world = World()
    async with anyio.create_task_group() as group:
        await group.start(world.engine.run)
        await group.start(world.effects.run)
        for host in world.hosts.values():
            await host.connect()
        world.tick()
        role = RoleSpec("worker", 1, 1, "run")
        spec = JobSpec("j", {"worker": role}, replace_after_ms=REPLACE_AFTER_MS)
        await world.engine.propose(UID, JobSubmitted(UID, spec, {}, "test"), by="test")
        await world.time.run_until(lambda: world.is_running(1))
        lost = world.hosts[world.newest().node]
        (other,) = [one for one in world.hosts.values() if one is not lost]

        lost.cut_off()
        with world.measured() as until_away:
            await world.time.run_until(lambda: world.phase(lost.name) is NodePhase.AWAY)
        assert AWAY_MS <= until_away[0] <= AWAY_MS + TICK_MS
        with world.measured() as until_replaced:
            await world.time.run_until(lambda: world.is_running(2))

        # It cannot be known that the first one is dead, so the second waits for `replaceAfter`.
        assert until_replaced[0] >= REPLACE_AFTER_MS - 2 * TICK_MS
        assert world.newest().node == other.name
        first, second = (AttemptId(UID, "worker", 0, number) for number in (1, 2))
        assert list(other.attempts) == [second]
        outcome = world.attempts()[0].outcome
        assert outcome is not None
        assert outcome.cause in {Cause.LOST, Cause.NODE_LOST}

        assert list(lost.attempts) == [first]
        await lost.connect()
        await world.time.run_until(lambda: not lost.attempts)
        assert lost.killed == [first]
        assert world.phase(lost.name) is NodePhase.READY
        assert world.is_running(2)
        group.cancel_scope.cancel()


def test_a_replica_of_a_node_that_is_gone_runs_elsewhere_and_its_old_attempt_is_ended_later() -> (
    None
):
    anyio.run(play)
