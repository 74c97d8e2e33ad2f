"""The HTTP application on a unix socket and on TCP, over an engine with a journal in memory.

There are no executors: a test tells the engine what honest edges would tell it.
"""

import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import anyio
from aiohttp import web
from anyio.from_thread import BlockingPortal, start_blocking_portal

from primusd import __version__
from primusd.admission import events as admission
from primusd.api.app import build
from primusd.api.auth import Access, token_of
from primusd.api.context import AskExecutor, Context, ask_nobody
from primusd.api.shared_blobs import SharedBlobs
from primusd.api.watching import OPEN_WATCHES
from primusd.clock import SystemClock
from primusd.config import Config, Directories, Loaded
from primusd.core import World
from primusd.ctl.client import Client, Json
from primusd.ctl.heads import connect
from primusd.datafeed.ledger.events import BeatReceived, StreamEvent, UnitsListed
from primusd.datafeed.protocol import FeedReport, Held, Unit
from primusd.engine import Engine, EngineSettings
from primusd.executor.protocol import Exit
from primusd.job import events as ev
from primusd.job.ids import AttemptId
from primusd.job.model import Attempt, find_attempt
from primusd.job.phases import AttemptPhase
from primusd.launchers.base import Launcher
from primusd.state.archive import Archive
from primusd.state.election import Heads, Identity, News, embedded_term
from primusd.state.journal import MemoryJournal
from primusd.state.places import Place
from primusd.sweep import Strays
from primusd.views.rendering import Renderer
from primusd.watch import Watch

NAMESPACE = "/api/v1/namespaces/default/jobs"
TOKENS = {"admin": "tok-admin", "write": "tok-write", "read": "tok-read"}
GIB = 1 << 30


class SoleElection:
    """Leads at once."""

    async def campaign(self, *, last_term: int, wall_ms: int) -> int:
        return embedded_term(last_term=last_term, wall_ms=wall_ms)

    async def resign(self) -> None:
        return

    @asynccontextmanager
    async def held(self) -> Any:
        yield


class Server:
    """The application, running in a thread of its own."""

    def __init__(
        self,
        folder: Path,
        portal: BlockingPortal,
        config: Config,
        ask: AskExecutor,
        launchers: Mapping[str, Launcher],
        *,
        shared: Place | None = None,
    ) -> None:
        self.folder = folder
        self.socket = folder / "s.sock"
        self.state = folder / "state"
        self.port = 0
        self.tls: ssl.SSLContext | None = None
        self.open_watches: set[object] = set()
        self.strays = Strays()
        self.led_by: Heads | None = None
        """Who leads, where another one does; see `follow`."""
        self.beside = Heads()
        """Who is there while this one leads; see `stand_beside`."""
        self.resigned = 0
        self.news = News()
        self.ca: str | None = None
        """By which other heads are trusted."""
        self._portal = portal
        clock = SystemClock()
        settings = EngineSettings(cluster_id="c1", version=__version__)
        journal = MemoryJournal()
        self.engine = Engine(journal, SoleElection(), clock, settings=settings)
        loaded = Loaded(config, {}, Directories(folder, self.state, folder), None)
        watch = Watch(self.engine, clock, Renderer(self.engine.at_ms), keep_ms=600_000)
        self.watch = watch
        self.context = Context(
            engine=self.engine,
            watch=watch,
            config=lambda: loaded,
            access=lambda: Access(
                tuple(token_of(role, role, secret) for role, secret in TOKENS.items())
            ),
            clock=clock,
            cluster_id="c1",
            secret=b"s" * 32,
            version=__version__,
            started_ms=clock.wall_ms(),
            state=self.state,
            blobs=self.state / "blobs",
            archive=Archive(self.state / "archive"),
            launchers=launchers,
            strays=self.strays,
            heads=lambda: (f"unix:{self.socket}",),
            ask=ask,
            is_leader=lambda: self.led_by is None,
            members=lambda: self.led_by or self.beside,
            resign=self._resign,
            news=self.news,
            ca=lambda: self.ca,
            load=journal.load,
            shared_blobs=None if shared is None else SharedBlobs(shared),
        )
        self.client = Client(f"unix:{self.socket}", timeout_s=20)

    async def run(self, stop: anyio.Event, started: anyio.Event) -> None:
        async with anyio.create_task_group() as group:
            await group.start(self.engine.run)
            app = build(self.context)
            self.open_watches = app[OPEN_WATCHES]
            runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=0.1)
            await runner.setup()
            await web.UnixSite(runner, str(self.socket)).start()
            listener = socket.create_server(("127.0.0.1", 0))
            self.port = listener.getsockname()[1]
            await web.SockSite(runner, listener, ssl_context=self.tls).start()
            started.set()
            await stop.wait()
            with anyio.CancelScope(shield=True), anyio.move_on_after(5):
                await runner.cleanup()
            group.cancel_scope.cancel()

    @property
    def world(self) -> World:
        return self.engine.world

    def tcp(self, token: str = "tok-admin") -> Client:
        return Client(f"http://127.0.0.1:{self.port}", token=token, timeout_s=20)

    def tell(
        self,
        machine: str,
        event: ev.JobEvent | admission.AdmissionEvent | StreamEvent,
        *,
        by: str = "test",
    ) -> None:
        """Record what an edge would say."""

        async def propose() -> None:
            await self.engine.propose(machine, event, by=by)

        self._portal.call(propose)

    def stand_still(self, duration_s: float) -> None:
        """Let the daemon do nothing for a while, as one that is stopped by a signal."""
        self._portal.call(time.sleep, duration_s)

    def follow(self, heads: Heads | None) -> None:
        """Stand by from now on, with these heads; None: lead."""
        self.led_by = heads
        self._portal.call(self.news.tell)

    def stand_beside(self, *others: Identity) -> None:
        """Lead, with these heads standing by."""
        self.beside = Heads(self.identity(), 7, (self.identity(), *others))
        self._portal.call(self.news.tell)

    async def _resign(self) -> None:
        self.resigned += 1

    def identity(self) -> Identity:
        """Return how other heads know this one."""
        scheme = "https" if self.tls is not None else "http"
        member = self.context.config().config.member
        return Identity(member, (f"{scheme}://127.0.0.1:{self.port}",))

    def cut_off(self, watcher: Any) -> None:
        """End a watch from this side, as a state that is loaded again does."""
        self._portal.call(watcher.cut, "a test")

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds."""
        end_s = time.monotonic() + 20
        while not holds():
            assert time.monotonic() < end_s
            time.sleep(0.01)

    def node(self, name: str = "n1", *, cpu: int = 64, memory: int = 64, gpu: int = 0) -> None:
        self.tell(
            "",
            admission.NodeSeen(
                name, "local", "b1", "0.1.0", cpu * 1000, memory * GIB, gpu, 20_000, 29_999
            ),
        )

    def submit(self, **changes: Any) -> Json:
        """Submit a small job and return its document."""
        return self.client.call("POST", NAMESPACE, body=job_file(**changes))

    def connection(self, timeout_s: float = 20) -> HTTPConnection:
        """Return an open connection, for requests that no client sends."""
        address = self.client.address
        connection = HTTPConnection("localhost", timeout=timeout_s)
        connection.sock = connect(address, ca="", within_s=timeout_s, timeout_s=timeout_s)
        return connection

    def attempts(self, uid: str) -> Iterator[tuple[AttemptId, Attempt]]:
        """Yield the newest attempts of a job."""
        for role in self.world.jobs[uid].roles.values():
            for chunk in role.chunks:
                for replica in chunk.replicas:
                    if replica.newest is not None:
                        number = replica.newest.number
                        yield AttemptId(uid, role.name, replica.index, number), replica.newest

    def run_job(self, uid: str) -> None:
        """Let every attempt that was asked for come up and run."""
        for attempt, _ in list(self.attempts(uid)):
            self.tell(uid, ev.AttemptLaunched(attempt, {"pid": "1"}))
            self.tell(uid, ev.ExecutorRegistered(attempt, "i1", "h1", "b1", 1, "0.1.0"))
            self.tell(uid, ev.ExecutorHolding(attempt, ()))
        for attempt, _ in list(self.attempts(uid)):
            self.tell(uid, ev.TrainerStarted(attempt, 4_000_000, 1_700_000_000_000))

    def list_units(self, uid: str, stream: str = "clicks", *, sizes: tuple[int, ...]) -> None:
        """Let the source tell of text files of these sizes."""
        units = tuple(
            Unit("file", f"/data/{number}.txt", size, "1", {"format": "text"})
            for number, size in enumerate(sizes)
        )
        self.tell(f"{uid}/{stream}", UnitsListed(units, 0, is_complete=True))

    def read(self, uid: str, position: int, stream: str = "clicks") -> None:
        """Let worker-0 take a lease if it has none, and acknowledge up to a position."""
        machine = f"{uid}/{stream}"
        attempt = AttemptId(uid, "worker", 0, 1)
        if not self.world.streams[machine].leases:
            self.tell(machine, BeatReceived(attempt, "i1", FeedReport(stream, (), 1)))
        lease = next(iter(self.world.streams[machine].leases.values()))
        held = Held(stream, lease.epoch, lease.unit, lease.lo, lease.token, position, lease.hi)
        self.tell(machine, BeatReceived(attempt, "i1", FeedReport(stream, (held,), 0)))

    def end_attempts(self, uid: str, code: int = 0, *, only: str = "", last: str = "") -> None:
        """Let trainers exit, and be gone."""
        for attempt, _ in list(self.attempts(uid)):
            now = find_attempt(self.world.jobs[uid], attempt)
            if now is None or (only and attempt.replica != only):
                continue
            if now.phase in (AttemptPhase.RUNNING, AttemptPhase.STOPPING):
                self.tell(uid, ev.TrainerExited(attempt, exit_of(code, last)))
            self.tell(uid, ev.AttemptVanished(attempt))


def exit_of(code: int, last: str = "") -> Exit:
    return Exit(code, None, None, "", 0, 0, 1_700_000_000_000, 1_700_000_001_000, "", (), last, ())


def job_file(**changes: Any) -> Json:
    """Return a small job file; keyword arguments are fields in place of its own."""
    return {
        "apiVersion": "primus/v1",
        "name": "hello",
        "roles": {"worker": {"replicas": 2, "command": ["true"]}},
        **changes,
    }


@contextmanager
def serve(
    folder: Path,
    config: Config | None = None,
    *,
    ask: AskExecutor = ask_nobody,
    launchers: Mapping[str, Launcher] | None = None,
    tls: ssl.SSLContext | None = None,
    shared: Place | None = None,
) -> Iterator[Server]:
    """Run the application until the end of the block."""
    with start_blocking_portal("asyncio") as portal:
        chosen = config or Config(member="head1")
        server = Server(folder, portal, chosen, ask, launchers or {}, shared=shared)
        server.tls = tls
        stop, started = portal.call(_events)
        future = portal.start_task_soon(server.run, stop, started)
        portal.call(_wait_started, started)
        try:
            yield server
        finally:
            portal.call(stop.set)
            future.result(timeout=20)


async def _events() -> tuple[anyio.Event, anyio.Event]:
    return anyio.Event(), anyio.Event()


async def _wait_started(started: anyio.Event) -> None:
    with anyio.fail_after(20):
        await started.wait()


def with_rows(server: Server, roles: Mapping[str, object], data: Mapping[str, object]) -> str:
    """Return the uid of a job that has read 400 of 3,000 bytes."""
    uid = str(server.submit(roles=roles, data=data)["uid"])
    server.list_units(uid, sizes=(1_000, 1_000, 1_000))
    server.run_job(uid)
    server.read(uid, 400)
    return uid


def items(document: Json) -> list[Any]:  # documents, as they came
    """Return the items of a list."""
    found = document["items"]
    assert isinstance(found, list)
    return found
