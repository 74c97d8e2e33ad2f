"""The feed of one executor: what it reads for its trainer, and the socket the trainer talks to.

How the executor uses it (everything on its event loop's thread; nothing here blocks):

    server = FeedServer(order.feeds, directory=attempt_directory, attempt=attempt)
    await tasks.start(server.run)            # binds trainer.sock (0600), serves until cancelled
    environment |= server.environment()      # PRIMUS_SOCKET, PRIMUS_STREAMS, PRIMUS_FEED

    server.trainer_starting(generation=start.generation)
    fd = server.stdin_for_trainer()          # None: give it /dev/null; else the child's fd 0; the
                                             # caller closes its own copy after the fork
    server.trainer_started(pid)

    await server.changed()                   # returns when a report should go at once
    report = Report(feeds=server.reports(), progress=server.progress, …)
    sent_at = server.clock()                 # when this report goes
    server.orders(orders.feeds, sent_at=…, ttl_ms=orders.ttl_ms)

    server.limits_near(orders.near)                 # tells the SDK; nothing stops
    server.stopping("preempted", grace_ms=30_000)   # tells the SDK; stdin stays open
    exit = Exit(positions=server.trainer_ended(code=0, signal=None), …)

`sent_at` of `orders` is what `server.clock()` said when the report that `Orders.report` names was
sent; -1.0 when it names none of this process. Leases are valid until `sent_at` + 90 % of the ttl;
what a report said once (`bad`, `mapped`) is repeated until an answer covers it.
"""

import asyncio
import os
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
from anyio import TASK_STATUS_IGNORED
from anyio.abc import TaskGroup, TaskStatus

from primusd.datafeed.delivery.desk import Desk, Nearing, Stopping, spoken
from primusd.datafeed.delivery.pipe import PipeDelivery
from primusd.datafeed.delivery.trainer_socket import TrainerConnection
from primusd.datafeed.formats.settings import Place
from primusd.datafeed.protocol import FeedOrders, FeedReport, Held, Mark
from primusd.datafeed.reader.reader import StreamReader
from primusd.executor.protocol import Checkpoint, FeedPlan, Near, Progress
from primusd.job.ids import AttemptId

SOCKET_NAME = "trainer.sock"
FIFO_FOLDER = "feeds"
SOCKET_BYTES = 1 << 20
# Processes and data loaders of one trainer, each with a connection of its own.
CONNECTIONS_MAX = 64


def boot_clock() -> float:
    """Return seconds since boot; unlike the monotonic clock it counts a suspended host's sleep."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class FeedServer:
    """Reads the streams of one trainer and hands it their rows.

    Attributes:
        clock: Seconds since the host's boot, time asleep counted in.
        socket_path: Where the trainer finds it.
    """

    def __init__(
        self,
        plans: tuple[FeedPlan, ...],
        *,
        directory: Path,
        attempt: AttemptId,
        owner: tuple[int, int] = (-1, -1),
        clock: Callable[[], float] = boot_clock,
        folder: str = "",
    ) -> None:
        self.clock = clock
        self.socket_path = directory / SOCKET_NAME
        self._peers_file = str(directory / "peers.json")
        self._owner = owner
        self._desk = Desk(plans, attempt, clock, Place(folder, *owner))
        self._fifos = directory / FIFO_FOLDER
        self.last_marks: tuple[tuple[str, Mark], ...] = ()
        self._pipes = {reader.plan.stream: self._open_pipe(reader) for reader in self._piped()}
        self._connections: set[TrainerConnection] = set()
        self._urgent = anyio.Event()
        # Readers and the pipe, and two a connection: bounded, so that a trainer that opens
        # connections without end does not take all memory.
        self._limiter = anyio.CapacityLimiter(len(plans) + len(self._pipes) + CONNECTIONS_MAX)

    def _piped(self) -> list[StreamReader]:
        found = [reader for reader in self._desk.readers.values() if reader.is_piped]
        streams = [reader.plan.stream for reader in found if reader.plan.delivery == "stdin"]
        assert len(streams) <= 1, "a program has one standard input"
        return found

    def _open_pipe(self, reader: StreamReader) -> PipeDelivery:
        if reader.plan.delivery == "stdin":
            return PipeDelivery(self._desk, reader)
        self._fifos.mkdir(exist_ok=True)
        if self._owner[0] >= 0:
            os.chown(self._fifos, *self._owner)
        fifo = self._fifos / spoken(reader.plan.stream)
        return PipeDelivery(self._desk, reader, fifo, self._owner)

    @property
    def ready(self) -> bool:
        """Whether the trainer said that it is ready."""
        return self._desk.is_ready

    @property
    def progress(self) -> Progress | None:
        """What the trainer last said of its progress; None before."""
        return self._desk.progress

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The trainer's newest whole checkpoint; None before."""
        return self._desk.checkpoint

    @property
    def phase(self) -> str:
        """The phase that the trainer says it is in, as `evaluation`; "" none."""
        return self._desk.phase

    @property
    def taken(self) -> int:
        """How many rows or bytes the trainer took so far, of all its streams.

        Of a pipe: read from it. Whether they were used is known much later.
        """
        with self._desk.changed:
            return sum(
                reader.state.flights.taken
                if (pipe := self._pipes.get(stream)) is None
                else pipe.consumed()
                for stream, reader in self._desk.readers.items()
            )

    @property
    def is_waited_for(self) -> bool:
        """Whether the trainer waits for rows that are not there, and more are to come."""
        states = (reader.state for reader in self._desk.readers.values())
        return any(one.is_waited_for and one.state != "end" for one in states)

    @property
    def stack_signals(self) -> Mapping[int, int]:
        """Processes of the trainer to the signal on which each prints what its threads do."""
        return self._desk.stack_signals

    def environment(self) -> dict[str, str]:
        """Return the variables that the trainer finds its feed by."""
        return {
            "PRIMUS_SOCKET": str(self.socket_path),
            "PRIMUS_STREAMS": ",".join(spoken(stream) for stream in self._desk.readers),
            "PRIMUS_FEED": self._feed(),
            "PRIMUS_EXACTLY_ONCE": ",".join(
                spoken(stream)
                for stream, reader in self._desk.readers.items()
                if reader.plan.promise == "exactlyOnce"
            ),
        }

    def _feed(self) -> str:
        match next(iter(self._desk.readers.values()), None):
            case StreamReader(plan=FeedPlan(delivery="stdin")):
                return "stdin"
            case StreamReader(plan=FeedPlan(delivery="fifo")):
                return f"fifo:{self._fifos}"
            case _:
                return "socket"

    # Its life.

    async def run(self, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """Serve the trainer's socket and read until cancelled."""
        loop = asyncio.get_running_loop()
        self._desk.on_urgent = lambda: self._set_urgent(loop)
        listener = self._bind()
        try:
            async with anyio.create_task_group() as tasks:
                # Threads are not cancelled; they end when the desk is closed.
                tasks.start_soon(self._close_when_cancelled)
                for reader in self._desk.readers.values():
                    tasks.start_soon(self._in_thread, partial(_read, reader))
                for pipe in self._pipes.values():
                    tasks.start_soon(self._in_thread, pipe.write)
                tasks.start_soon(self._accept, listener, tasks)
                task_status.started()
        finally:
            listener.close()
            self.socket_path.unlink(missing_ok=True)

    def _set_urgent(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._urgent.is_set():
            loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._urgent.set()

    def _bind(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket_path.unlink(missing_ok=True)
        # By descriptor: the path of a socket may have 107 bytes, that of a state directory more.
        folder = os.open(self.socket_path.parent, os.O_PATH | os.O_DIRECTORY)
        try:
            listener.bind(f"/proc/self/fd/{folder}/{SOCKET_NAME}")
        finally:
            os.close(folder)
        self.socket_path.chmod(0o600)
        if self._owner[0] >= 0:
            os.chown(self.socket_path, *self._owner)
        listener.listen(CONNECTIONS_MAX)
        listener.setblocking(False)  # noqa: FBT003 its only argument
        return listener

    async def _accept(self, listener: socket.socket, tasks: TaskGroup) -> None:
        while True:
            await anyio.wait_readable(listener)
            try:
                link, _ = listener.accept()
            except BlockingIOError:
                continue
            if len(self._connections) >= CONNECTIONS_MAX:
                link.close()
                continue
            link.setblocking(True)  # noqa: FBT003 its only argument
            link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
            tasks.start_soon(self._serve, link)

    async def _serve(self, link: socket.socket) -> None:
        connection = TrainerConnection(self._desk, link, self._peers_file)
        self._connections.add(connection)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._in_thread, connection.write)
                await connection.listen()
        finally:
            self._connections.discard(connection)
            link.close()

    async def _in_thread(self, work: Callable[[], None]) -> None:
        await anyio.to_thread.run_sync(work, limiter=self._limiter)

    async def _close_when_cancelled(self) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with self._desk.changed:
                for reader in self._desk.readers.values():
                    reader.close()
                for pipe in self._pipes.values():
                    pipe.close()
                for connection in tuple(self._connections):
                    connection.close()

    # The trainer's life.

    def trainer_starting(self, *, generation: int) -> None:
        """Note that the trainer is about to be started, as part of this generation."""
        with self._desk.changed:
            self._desk.generation = generation

    def stdin_for_trainer(self) -> int | None:
        """Return the read end of the pipe that feeds the trainer; None when its feed is no pipe.

        It is the caller's, who closes it once the trainer has it.
        """
        stdin = next((one for one in self._pipes.values() if not one.is_fifo), None)
        return None if stdin is None else stdin.hand_over()

    def trainer_started(self, pid: int) -> None:
        """Note the trainer's process; from now on a pipe is filled."""
        with self._desk.changed:
            for pipe in self._pipes.values():
                pipe.started(pid)
            self._desk.changed.notify_all()

    def stopping(self, reason: str, grace_ms: int) -> None:
        """Tell the trainer that it is being stopped, hand out nothing new, leave stdin open."""
        with self._desk.changed:
            if self._desk.stopping is not None:
                return
            self._desk.stopping = Stopping(reason, grace_ms)
            for connection in self._connections:
                connection.say_stopping()
            for reader in self._desk.readers.values():
                reader.state.is_stopping = True
                reader.state.give_back_undelivered()
            self._desk.changed.notify_all()

    def limits_near(self, near: tuple[Near, ...]) -> None:
        """Warn the trainer of all limits that are near; it is not stopped."""
        with self._desk.changed:
            now = self.clock()
            self._desk.near = tuple(Nearing(one.limit, now + one.left_ms / 1000) for one in near)
            for connection in self._connections:
                connection.say_near()

    def peers_changed(self) -> None:
        """Tell the trainer that the peers file was written anew."""
        with self._desk.changed:
            for connection in self._connections:
                connection.say_peers()

    def trainer_ended(self, code: int | None, signal: int | None) -> tuple[Held, ...]:
        """Return the final positions of all leases, and give all of them back."""
        for connection in tuple(self._connections):
            # Its last receipt may still lie in the socket.
            connection.drain()
        with self._desk.changed:
            for pipe in self._pipes.values():
                pipe.ended(has_completed=code == 0 and signal is None)
            final: list[Held] = []
            for connection in self._connections:
                connection.recall()
            for reader in self._desk.readers.values():
                reader.state.is_stopping = True
                marks = reader.state.pledges.marks
                self.last_marks += tuple((reader.plan.stream, one) for one in marks)
                reader.state.pledges.forget()
                final += reader.state.give_back_all()
                reader.drop_buffer()
            self._desk.changed.notify_all()
            return tuple(final)

    # Orders and reports.

    def orders(self, feeds: tuple[FeedOrders, ...], *, sent_at: float, ttl_ms: int) -> None:
        """Take new orders; the caller has dropped those older than the last."""
        with self._desk.changed:
            for order in feeds:
                reader = self._desk.readers.get(order.stream)
                if reader is not None:
                    reader.state.obey(order, sent_at=sent_at, ttl_s=ttl_ms / 1000)
            for connection in self._connections:
                connection.say_pledges()
            self._desk.changed.notify_all()

    def reports(self) -> tuple[FeedReport, ...]:
        """Return all that is so with each stream now."""
        if self._urgent.is_set():
            self._urgent = anyio.Event()
        with self._desk.changed:
            self._desk.is_urgent = False
            now = self.clock()
            for pipe in self._pipes.values():
                pipe.look()
            for reader in self._desk.readers.values():
                reader.state.note_idle(now)
            return tuple(
                reader.state.report(
                    buffered_bytes=reader.buffered_bytes,
                    now=now,
                    credentials=reader.shown.told(now),
                )
                for reader in self._desk.readers.values()
            )

    async def changed(self) -> None:
        """Return once something happened that is worth a report at once, since the last reports."""
        await self._urgent.wait()


def _read(reader: StreamReader) -> None:
    """Read as a reader's thread does, with what encodes its rows at hand before the first."""
    if not reader.is_piped:
        from primusd.datafeed.delivery import columns, frames  # noqa: F401, PLC0415 starts threads
    reader.read()
