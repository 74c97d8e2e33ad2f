"""The daemon's side of executors and nodes over a real socket, and voices that dial it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import anyio
from aiohttp import web
from msgspec.structs import replace

from primusd.admission.events import NodeSeen
from primusd.api.executor_routes import add_executor_routes
from primusd.api.executors import ExecutorRegistry
from primusd.api.launch_orders import OrderSettings
from primusd.api.leading import Standing, leader_only
from primusd.api.live_values import LiveValues
from primusd.api.log_copies import COPY_WITHIN_S, LogCopies
from primusd.api.nodes import NodeRegistry, add_node_routes
from primusd.api.problems import answer_problems
from primusd.clock import ManualClock
from primusd.engine import Engine, EngineSettings
from primusd.executor.directory import attempt_path
from primusd.executor.protocol import (
    LOST,
    Answer,
    Bootstrap,
    DaemonMessage,
    ExecutorMessage,
    Exit,
    Hello,
    Orders,
    Report,
    Trainer,
    decode_daemon_message,
    encode,
)
from primusd.job.events import AttemptLaunched, JobSubmitted
from primusd.job.ids import AttemptId, make_uid
from primusd.job.model import Attempt, Job, find_attempt
from primusd.job.spec import JobSpec, RoleSpec, ShippedSpec
from primusd.keys import job_key
from primusd.launchers.local import LocalLauncher
from primusd.liveness import Liveness
from primusd.node.protocol import (
    DaemonToNodeMessage,
    NodeHello,
    NodeMessage,
)
from primusd.node.protocol import (
    decode_daemon_message as decode_to_node,
)
from primusd.node.protocol import (
    encode as encode_node,
)
from primusd.records import ADMISSION
from primusd.state.election import Heads, News
from primusd.state.journal import MemoryJournal
from primusd.subscription import Published
from primusd.sweep import Strays
from primusd.testing import SoleElection

CLUSTER = "cluster-1"
SECRET = b"s" * 32
WAIT_S = 20.0
INCARNATION = "0123456789abcdef"
SETTINGS = OrderSettings("default", "0.1.0", 1 << 20, 3)


def make_exit(code: int | None = 0, *, stop_seen: str = "") -> Exit:
    return Exit(code, None, None, "", 0, 4096, 1, 2, stop_seen, (), "bye\n", ())


def make_hello(
    attempt: AttemptId,
    *,
    seen: tuple[int, int] = (0, 0),
    cluster: str = CLUSTER,
    incarnation: str = INCARNATION,
    speaks: tuple[int, int] = (1, 1),
) -> Hello:
    return Hello(
        speaks, cluster, attempt, incarnation, *seen, "host-1", {}, "boot-1", 4711, "0.1.0"
    )


def make_report(
    seq: int,
    phase: str,
    *,
    is_started: bool = False,
    ready: bool = True,
    exit_: Exit | None = None,
) -> Report:
    trainer = Trainer(99, 1, ready=ready) if is_started else None
    return Report(seq, phase, 0, trainer, exit_)


class Daemon:
    """An engine with the parts that executors and nodes talk to; time is moved by hand."""

    def __init__(self, folder: Path, *, copy_within_s: float = COPY_WITHIN_S) -> None:
        self.path = folder / "daemon.sock"
        self.state = folder / "state"
        self.clock = ManualClock()
        self.engine = Engine(
            MemoryJournal(),
            SoleElection(),
            self.clock,
            settings=EngineSettings(cluster_id=CLUSTER, version="0.1.0"),
        )
        self.live = LiveValues(self.clock)
        self.liveness = Liveness(self.engine, self.clock)
        self.launcher = LocalLauncher(lambda: self.engine.term)
        self.nodes = NodeRegistry(
            self.engine,
            self.launcher,
            self.live,
            self.clock,
            cluster_id=CLUSTER,
            secret=SECRET,
        )
        self.strays = Strays()
        self.executors = ExecutorRegistry(
            self.engine,
            self.liveness,
            self.live,
            cluster_id=CLUSTER,
            secret=SECRET,
            heads=lambda: (f"unix:{self.path}",),
            settings=lambda: SETTINGS,
            copies=LogCopies(self.state, within_s=copy_within_s),
            strays=self.strays,
        )
        self.stands_by: Heads | None = None
        """Who leads, where another one does."""
        self.published: list[Published] = []
        self.engine.on_published.append(self.published.append)
        self.engine.on_published.append(lambda _published: self._changed())
        self._event = anyio.Event()
        self._count = 0

    def _changed(self) -> None:
        self._event.set()
        self._event = anyio.Event()

    async def until(self, is_so: Callable[[], object]) -> None:
        with anyio.fail_after(WAIT_S):
            while not is_so():
                await self._event.wait()

    def records(self, after: int) -> list[list[str]]:
        """Return the names of what was recorded after a revision, by entry."""
        return [
            [type(record.event).__name__ for record in one.entry.records]
            for one in self.published
            if one.entry.revision > after
        ]

    def job(self, uid: str) -> Job:
        return self.engine.world.jobs[uid]

    def attempt(self, attempt: AttemptId) -> Attempt:
        found = find_attempt(self.job(attempt.job), attempt)
        assert found is not None
        return found

    async def until_gone(self, node: str) -> None:
        """Wait until a node's connection is known to be gone."""
        with anyio.fail_after(WAIT_S):
            while self.nodes.is_connected(node):  # noqa: ASYNC110 the other side of a socket
                await anyio.sleep(0.005)

    def bootstrap(self, attempt: AttemptId) -> Bootstrap:
        return Bootstrap(CLUSTER, attempt, (f"unix:{self.path}",), job_key(SECRET, attempt.job))

    @asynccontextmanager
    async def in_background(self, call: Callable[[], Awaitable[bool]]) -> AsyncIterator[list[bool]]:
        """Make a call beside what follows; its answer is in the list at the end."""
        answers: list[bool] = []

        async def run() -> None:
            answers.append(await call())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            yield answers

    async def add_node(self) -> None:
        node = NodeSeen("n1", "local", "boot-1", "0.1.0", 64_000, 1 << 40, 0, 20_000, 29_999)
        await self.engine.propose(ADMISSION, node, by="launcher:local")

    async def submit(
        self,
        replicas: int = 1,
        *,
        files: tuple[ShippedSpec, ...] = (),
        framework: str = "none",
        is_here: bool = True,
    ) -> str:
        """Submit a job whose attempts are launched, and return its uid.

        Args:
            replicas: Of its only role.
            files: That it ships.
            framework: Whose variables its trainers get.
            is_here: The attempts' directories are on the daemon's host.
        """
        self._count += 1
        uid = make_uid(self.clock.wall_ms(), self._count)
        role = RoleSpec("worker", replicas, replicas, "echo hi", env={"COLOUR": "blue"})
        spec = JobSpec(f"job-{self._count}", {"worker": role}, files=files, framework=framework)
        await self.engine.propose(uid, JobSubmitted(uid, spec, {}, "test"), by="test")
        for index in range(replicas):
            attempt = AttemptId(uid, "worker", index, 1)
            if is_here:
                attempt_path(self.state, attempt).mkdir(parents=True)
            launched = AttemptLaunched(attempt, {})
            await self.engine.propose(uid, launched, by="launcher:local")
        return uid


class Voice:
    """A connection to the daemon that says what a test wants."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.seq = 0

    async def say(self, message: ExecutorMessage) -> None:
        await self.socket.send_bytes(encode(message))

    async def say_with(self, report: Report, answers: tuple[Answer, ...]) -> None:
        """Report with answers to what was asked."""
        await self.say(replace(report, answers=answers))

    async def hear(self) -> DaemonMessage:
        with anyio.fail_after(WAIT_S):
            return decode_daemon_message(await self.socket.receive_bytes())

    async def hear_orders(self) -> Orders:
        message = await self.hear()
        assert isinstance(message, Orders)
        return message

    async def ask(self, message: ExecutorMessage) -> DaemonMessage:
        await self.say(message)
        return await self.hear()

    async def report(
        self,
        phase: str,
        *,
        is_started: bool = False,
        ready: bool = True,
        exit_: Exit | None = None,
    ) -> Orders:
        """Report, and return the orders that count it in."""
        self.seq += 1
        await self.say(
            make_report(self.seq, phase, is_started=is_started, ready=ready, exit_=exit_)
        )
        while (orders := await self.hear_orders()).report < self.seq:
            pass
        return orders

    async def say_as_node(self, message: NodeMessage) -> None:
        await self.socket.send_bytes(encode_node(message))

    async def hear_as_node(self) -> DaemonToNodeMessage:
        with anyio.fail_after(WAIT_S):
            return decode_to_node(await self.socket.receive_bytes())

    async def is_ended(self) -> bool:
        with anyio.fail_after(WAIT_S):
            message = await self.socket.receive()
        return message.type in (
            aiohttp.WSMsgType.CLOSE,
            aiohttp.WSMsgType.CLOSED,
            aiohttp.WSMsgType.CLOSING,
        )


@asynccontextmanager
async def session(daemon: Daemon) -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.UnixConnector(str(daemon.path))
    async with aiohttp.ClientSession("http://localhost", connector=connector) as opened:
        yield opened


@asynccontextmanager
async def voice(
    daemon: Daemon, *, key: str, path: str = "/executor/v1/connect", lost: str = ""
) -> AsyncIterator[Voice]:
    headers = {"Authorization": f"Bearer {key}"} | ({LOST: lost} if lost else {})
    async with session(daemon) as opened, opened.ws_connect(path, headers=headers) as socket:
        yield Voice(socket)


@asynccontextmanager
async def executor_voice(daemon: Daemon, attempt: AttemptId) -> AsyncIterator[Voice]:
    """Yield the voice of an executor whose hello was taken."""
    async with voice(daemon, key=job_key(SECRET, attempt.job)) as opened:
        await opened.ask(make_hello(attempt))
        yield opened


def node_hello(
    name: str = "n1", *, boot: str = "boot-1", cluster: str = CLUSTER, home: str = ""
) -> NodeHello:
    ports = (20_000, 20_999)
    return NodeHello((1, 1), cluster, name, boot, "0.1.0", 4_000, 8 << 30, (), ports, {}, home)


@asynccontextmanager
async def serving_daemon(
    folder: Path, *, copy_within_s: float = COPY_WITHIN_S, news: News | None = None
) -> AsyncIterator[Daemon]:
    """Yield a daemon that leads and is dialled at its socket.

    Args:
        folder: Of its socket and its state.
        copy_within_s: How long the copies of logs are waited for.
        news: Told when another one leads; None: nobody is kept waiting for that.
    """
    daemon = Daemon(folder, copy_within_s=copy_within_s)
    standing = Standing(
        lambda: daemon.stands_by is None, lambda: daemon.stands_by or Heads(), "self", news
    )
    standby = leader_only(standing)
    app = web.Application(middlewares=(answer_problems, standby))
    add_executor_routes(app, daemon.executors)
    add_node_routes(app, daemon.nodes)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    async with anyio.create_task_group() as tasks:
        await tasks.start(daemon.engine.run)
        tasks.start_soon(daemon.executors.run)
        await web.UnixSite(runner, str(daemon.path)).start()
        try:
            yield daemon
        finally:
            await runner.cleanup()
            tasks.cancel_scope.cancel()
