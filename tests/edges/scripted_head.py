"""A head that says what a test tells it to, over a real socket, to real executors and nodes."""

import hashlib
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec
from aiohttp import WSMsgType, web

from primusd.executor.protocol import (
    Answer,
    Ask,
    Bootstrap,
    Exit,
    Hello,
    Hold,
    LaunchOrder,
    Leave,
    Orders,
    Probe,
    Refused,
    Report,
    ShippedFile,
    Start,
    StartVariables,
    Stop,
    Welcome,
    decode_executor_message,
    encode,
)
from primusd.job.ids import AttemptId, make_uid
from primusd.node.protocol import (
    NodeAttempt,
    NodeHello,
    NodeOrders,
    NodeReport,
    NodeStart,
    NodeWelcome,
    decode_node_message,
)
from primusd.node.protocol import encode as encode_node

CLUSTER = "cluster-1"
WAIT_S = 30.0
# Never that of another test process: control groups are named by it.
JOB = make_uid(time.time_ns() // 1_000_000, int.from_bytes(os.urandom(4)))
Run = Hold | Start | Stop | Leave


def attempt_id(number: int = 1, *, index: int = 0) -> AttemptId:
    return AttemptId(JOB, "worker", index, number)


def launch_order(
    *command: str,
    env: dict[str, str] | None = None,
    files: tuple[ShippedFile, ...] = (),
    ports: tuple[tuple[str, int], ...] = (),
    grace_ms: int = 2_000,
    log_bytes_max: int = 1 << 20,
    log_files_max: int = 3,
    log_patterns: tuple[str, ...] = (),
    ready: Probe | None = None,
    workdir: str = "",
) -> LaunchOrder:
    return LaunchOrder(
        job_name="job",
        namespace="default",
        command=command,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", **(env or {})},
        files=files,
        workdir=workdir,
        ports=ports,
        stop_signal=15,
        grace_ms=grace_ms,
        log_bytes_max=log_bytes_max,
        log_files_max=log_files_max,
        log_patterns=log_patterns,
        ready=ready,
        feeds=(),
        orphan_ms=600_000,
    )


def shell(line: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", line)


class Executor:
    """What the head knows of one attempt, and what it tells it."""

    def __init__(self, order: LaunchOrder) -> None:
        self.order = order
        self.run: Run = Start(1, "sha256:0", b'{"generation": 1, "roles": {}}')
        self.refused: Refused | None = None
        self.asks: tuple[Ask, ...] = ()
        self.hellos: list[Hello] = []
        self.reports: list[Report] = []
        self.answers: dict[int, Answer] = {}
        self.exit: Exit | None = None
        self.leaves_at_once = True
        self.is_answered = True
        self.socket: web.WebSocketResponse | None = None
        self.revision = 0

    @property
    def newest(self) -> Report | None:
        return self.reports[-1] if self.reports else None


class Head:
    """Answers hellos and reports; what it answers is set from the test."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.term = 1
        self.revision = 10
        self.beat_ms = 100
        self.executors: dict[AttemptId, Executor] = {}
        self.blobs: dict[str, bytes] = {}
        self.blob_reads = 0
        self.variables: dict[str, StartVariables] = {}
        """By digest of the peers."""
        self.asked_for: list[str] = []
        self.nodes: dict[str, NodeHello] = {}
        self.node_hellos = 0
        self.node_refused: Refused | None = None
        self.node_reports: dict[str, list[NodeReport]] = {}
        self.starts: dict[AttemptId, NodeStart] = {}
        self.kills: set[AttemptId] = set()
        self.releases: set[AttemptId] = set()
        self.dropped_jobs: tuple[str, ...] = ()
        self._node_sockets: dict[str, web.WebSocketResponse] = {}
        self._changed = anyio.Event()
        self._server: web.AppRunner | None = None

    @property
    def address(self) -> str:
        return f"unix:{self.path}"

    def bootstrap(self, attempt: AttemptId) -> Bootstrap:
        return Bootstrap(CLUSTER, attempt, (self.address,), "key")

    def expect(self, attempt: AttemptId, order: LaunchOrder) -> Executor:
        self.executors[attempt] = Executor(order)
        return self.executors[attempt]

    def ship(self, data: bytes, path: str, *, mode: int = 0o644) -> ShippedFile:
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        self.blobs[digest] = data
        return ShippedFile(path, digest, len(data), mode)

    # Waiting.

    def changed(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def until(self, is_so: Callable[[], object]) -> None:
        with anyio.fail_after(WAIT_S):
            while not is_so():
                await self._changed.wait()

    async def until_ended(self, executor: Executor) -> Exit:
        await self.until(lambda: executor.exit)
        assert executor.exit is not None
        return executor.exit

    async def until_reported(self, executor: Executor) -> None:
        await self.until(lambda: executor.newest)

    async def until_released(self, attempt: AttemptId) -> None:
        await self.until(lambda: self.node_attempt(attempt) is None)

    def node_attempt(self, attempt: AttemptId, node: str = "n1") -> NodeAttempt | None:
        reports = self.node_reports.get(node, [])
        if not reports:
            return None
        return next((one for one in reports[-1].attempts if one.attempt == attempt), None)

    async def until_node_did(self, revision: int, node: str = "n1") -> None:
        """Wait until the node has carried out orders of this revision or newer."""
        await self.until(lambda: self.node_reports[node][-1].orders_revision >= revision)

    async def until_reports(self, count: int, node: str = "n1") -> None:
        """Wait for so many further reports of a node."""
        before = len(self.node_reports[node])
        await self.until(lambda: len(self.node_reports[node]) >= before + count)

    # Executors.

    async def order(self, executor: Executor, run: Run) -> None:
        """Change what should be so, and push it."""
        executor.run = run
        self.revision += 1
        await self.push(executor)

    async def push(self, executor: Executor) -> None:
        if executor.socket is not None and not executor.socket.closed:
            seq = executor.newest.seq if executor.newest else 0
            await executor.socket.send_bytes(encode(self.orders(executor, seq)))

    def orders(self, executor: Executor, seq: int) -> Orders:
        run = executor.run
        if executor.exit is not None and executor.leaves_at_once:
            run = Leave()
        return Orders(
            report=seq,
            revision=self.revision,
            term=self.term,
            run=run,
            exit_recorded=executor.exit is not None,
            beat_ms=self.beat_ms,
            ttl_ms=30_000,
            heads=(),
            asks=executor.asks,
        )

    async def _connect(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(max_msg_size=1 << 20, compress=False)
        await socket.prepare(request)
        executor: Executor | None = None
        async for message in socket:
            if message.type is not WSMsgType.BINARY:
                continue
            match decode_executor_message(message.data):
                case Hello() as hello:
                    executor = self.executors[hello.attempt]
                    executor.hellos.append(hello)
                    if executor.refused is not None:
                        await socket.send_bytes(encode(executor.refused))
                        self.changed()
                        break
                    executor.socket = socket
                    order = None if hello.seen_term else executor.order
                    await socket.send_bytes(encode(Welcome(1, order)))
                case Report() as report:
                    assert executor is not None
                    self._take(executor, report)
                    if executor.is_answered:
                        await socket.send_bytes(encode(self.orders(executor, report.seq)))
            self.changed()
        return socket

    def _take(self, executor: Executor, report: Report) -> None:
        executor.reports.append(report)
        for one in report.answers:
            executor.answers[one.id] = one
        answered = {one.id for one in report.answers}
        executor.asks = tuple(ask for ask in executor.asks if ask.id not in answered)
        if report.exit is not None:
            executor.exit = report.exit

    async def _blob(self, request: web.Request) -> web.Response:
        self.blob_reads += 1
        if request.match_info["digest"] not in self.blobs:
            raise web.HTTPNotFound
        return web.Response(body=self.blobs[request.match_info["digest"]])

    # Nodes.

    async def _variables(self, request: web.Request) -> web.Response:
        self.asked_for.append(request.path_qs)
        self.changed()
        found = self.variables.get(request.query["digest"])
        if found is None:
            raise web.HTTPNotFound
        return web.Response(body=msgspec.json.encode(found))

    async def _connect_node(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(max_msg_size=1 << 20, compress=False)
        await socket.prepare(request)
        name = ""
        async for message in socket:
            match decode_node_message(message.data):
                case NodeHello() as hello:
                    name = hello.node
                    self.nodes[name] = hello
                    self.node_hellos += 1
                    if self.node_refused is not None:
                        await socket.send_bytes(encode_node(self.node_refused))
                        self.changed()
                        break
                    self._node_sockets[name] = socket
                    await socket.send_bytes(encode_node(NodeWelcome(1)))
                    await socket.send_bytes(encode_node(self._node_orders(0)))
                case NodeReport() as report:
                    self.node_reports.setdefault(name, []).append(report)
                    await socket.send_bytes(encode_node(self._node_orders(report.seq)))
            self.changed()
        return socket

    def _node_orders(self, seq: int) -> NodeOrders:
        return NodeOrders(
            report=seq,
            revision=self.revision,
            term=self.term,
            run=tuple(self.starts.values()),
            kill=tuple(self.kills),
            release=tuple(self.releases),
            beat_ms=self.beat_ms,
            drop=self.dropped_jobs,
        )

    async def push_nodes(self) -> None:
        self.revision += 1
        for socket in self._node_sockets.values():
            if not socket.closed:
                await socket.send_bytes(encode_node(self._node_orders(0)))

    async def launch(
        self, attempt: AttemptId, order: LaunchOrder, *, memory_bytes: int = 0
    ) -> Executor:
        executor = self.expect(attempt, order)
        await self.launch_expected(attempt, memory_bytes=memory_bytes)
        return executor

    async def launch_expected(
        self, attempt: AttemptId, *, memory_bytes: int = 0, heads: tuple[str, ...] = ()
    ) -> None:
        bootstrap = self.bootstrap(attempt)
        bootstrap = msgspec.structs.replace(bootstrap, heads=heads or bootstrap.heads)
        body = msgspec.json.encode(bootstrap)
        self.starts[attempt] = NodeStart(body, attempt, 0, memory_bytes, ())
        await self.push_nodes()

    async def kill(self, attempt: AttemptId) -> None:
        self.starts.pop(attempt, None)
        self.kills.add(attempt)
        await self.push_nodes()

    async def release(self, attempt: AttemptId) -> None:
        self.starts.pop(attempt, None)
        self.releases.add(attempt)
        await self.push_nodes()

    # Its own life.

    async def start(self) -> None:
        application = web.Application()
        application.router.add_get("/executor/v1/connect", self._connect)
        application.router.add_get("/executor/v1/blobs/{digest}", self._blob)
        application.router.add_get("/executor/v1/variables/{job}/{generation}", self._variables)
        application.router.add_get("/node/v1/connect", self._connect_node)
        self._server = web.AppRunner(application, shutdown_timeout=0.1)
        await self._server.setup()
        self.path.unlink(missing_ok=True)
        await web.UnixSite(self._server, str(self.path)).start()

    async def cut(self) -> None:
        """Drop every connection and stop listening."""
        if self._server is not None:
            for executor in self.executors.values():
                if executor.socket is not None:
                    await executor.socket.close()
            for socket in self._node_sockets.values():
                await socket.close()
            await self._server.cleanup()
            self._server = None
            self.path.unlink(missing_ok=True)


@asynccontextmanager
async def serving(path: Path) -> AsyncIterator[Head]:
    head = Head(path)
    await head.start()
    try:
        yield head
    finally:
        await head.cut()
