"""The daemon's side of nodes: their connections, and what admission hears of them."""

from collections.abc import Callable

import anyio
import msgspec
import structlog
from aiohttp import WSMsgType, web
from msgspec.structs import replace

from primusd.admission.events import NodeLoadMeasured, NodeSeen, NodeWentAway
from primusd.admission.model import Node
from primusd.admission.scoring import Load, is_step
from primusd.api.leading import refusal
from primusd.api.live_values import LiveValues
from primusd.clock import Clock
from primusd.engine import Anew, Engine
from primusd.errors import NotLeaderError
from primusd.executor.protocol import MESSAGE_BYTES_MAX, SPEAKS, Refused, spoken
from primusd.job.phases import NodePhase
from primusd.keys import is_key, node_key
from primusd.launchers.local import LocalLauncher
from primusd.node.protocol import (
    DaemonToNodeMessage,
    NodeHello,
    NodeMessage,
    NodeReport,
    NodeWelcome,
    decode_node_message,
    encode,
)
from primusd.records import ADMISSION

log = structlog.get_logger()

AWAY_MS = 30_000
SILENT_MS = 15_000
"""A connection over which nothing came for so long, three of the longest beats, is gone: a host
without power, or behind a cut network, closes none."""
LOOK_EVERY_S = 0.5
HELLO_WITHIN_S = 10.0
SEND_WITHIN_S = 10.0
CLOSE_WITHIN_S = 1.0
BUSY_RETRY_MS = 1_000


class NodeSession:
    """One node's connection."""

    def __init__(self, hello: NodeHello, heard_ms: int) -> None:
        self.hello = hello
        self.heard_ms = heard_ms
        self.counted = 0
        self.drop: tuple[str, ...] = ()
        """Jobs whose folders are to go from there."""
        self.is_closed = False
        self._woken = anyio.Event()

    def wake(self) -> None:
        """Send the node its orders anew."""
        self._woken.set()

    def close(self) -> None:
        """End the connection."""
        self.is_closed = True
        self._woken.set()

    async def dirty(self) -> bool:
        """Return once its orders have to be sent; False when it ends instead."""
        await self._woken.wait()
        self._woken = anyio.Event()
        return not self.is_closed


class NodeRegistry:
    """Every node that is connected, and since when the others are not."""

    def __init__(
        self,
        engine: Engine,
        launcher: LocalLauncher,
        live: LiveValues,
        clock: Clock,
        *,
        cluster_id: str,
        secret: bytes,
        heads: Callable[[], tuple[str, ...]] = lambda: (),
    ) -> None:
        """Make a registry without connections.

        Args:
            engine: Hears of nodes.
            launcher: Has the wishes for them.
            live: Shows what they measure.
            clock: Of this host.
            cluster_id: Nodes of others are turned away.
            secret: Their keys are made from it.
            heads: Other heads, for when this one is gone; () there is none.
        """
        self._heads = heads
        self._engine = engine
        self._launcher = launcher
        self._live = live
        self._clock = clock
        self._cluster_id = cluster_id
        self._secret = secret
        self._gone_since: dict[str, int] = {}
        self._sessions: set[NodeSession] = set()
        engine.on_anew.append(self.begin_anew)

    def is_connected(self, name: str) -> bool:
        """Return whether a node is connected now."""
        return self._launcher.is_connected(name)

    def begin_anew(self, why: Anew) -> None:
        """Start the clock of every node that is not connected anew."""
        now_ms = self._clock.boot_ms()
        self._gone_since = {
            name: now_ms
            for name in self._engine.world.admission.nodes
            if not self._launcher.is_connected(name)
        }
        for session in self._sessions:
            session.heard_ms = now_ms
        if why is not Anew.STALL:
            self._launcher.tell_again()

    async def run(self) -> None:
        """Tell admission of nodes that stay away, until cancelled."""
        while True:
            await anyio.sleep(LOOK_EVERY_S)
            self.look()

    def look(self) -> None:
        """Propose that nodes without a connection for 30 s are away; end silent connections."""
        now_ms = self._clock.boot_ms()
        for session in self._sessions:
            if now_ms - session.heard_ms >= SILENT_MS:
                session.close()
        for name, since_ms in list(self._gone_since.items()):
            node = self._engine.world.admission.nodes.get(name)
            if node is None or node.launcher != self._launcher.name:
                del self._gone_since[name]
            elif now_ms - since_ms >= AWAY_MS:
                if node.phase is NodePhase.AWAY:
                    del self._gone_since[name]
                else:
                    self._engine.tell(ADMISSION, NodeWentAway(name), by="launcher:local")

    async def connect(self, request: web.Request) -> web.WebSocketResponse:
        """Serve one node's connection, until either side ends it."""
        socket = web.WebSocketResponse(
            max_msg_size=MESSAGE_BYTES_MAX, compress=False, timeout=CLOSE_WITHIN_S
        )
        await socket.prepare(request)
        message: NodeMessage | None = None
        with anyio.move_on_after(HELLO_WITHIN_S):
            message = await receive(socket)
        if isinstance(message, NodeHello):
            answer = self._judge(request, message)
            if await send(socket, answer):
                if isinstance(answer, NodeWelcome):
                    await self._serve(socket, NodeSession(message, self._clock.boot_ms()))
                else:
                    log.warning("node.refused", node=message.node, code=answer.code)
        await socket.close()
        return socket

    def _judge(self, request: web.Request, hello: NodeHello) -> NodeWelcome | Refused:
        if hello.cluster != self._cluster_id:
            return Refused("wrongCluster", f"this is cluster {self._cluster_id}")
        shown = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        if not is_key(shown, node_key(self._secret, hello.node)):
            return Refused("badKey", f"the key is not that of {hello.node}")
        if (standby := refusal(request)) is not None:
            return standby
        if not spoken(hello.speaks):
            return Refused("versionUnknown", f"this daemon speaks {SPEAKS[0]} to {SPEAKS[1]}")
        other = self._other(hello)
        if other is not None:
            return Refused("nameTaken", f"{other.home} is connected as {hello.node}")
        outage = self._engine.outage
        if isinstance(outage, NotLeaderError):
            return Refused("notLeader", outage.message)
        if outage is not None:
            return Refused("busy", outage.message, retry_ms=BUSY_RETRY_MS)
        return NodeWelcome(spoken(hello.speaks))

    def _other(self, hello: NodeHello) -> NodeHello | None:
        """Return the node that has this one's file, and is heard; None: there is no other.

        By turns they would each take the connection, and report the other's attempts as gone.
        """
        now_ms = self._clock.boot_ms()
        for session in self._sessions:
            known = session.hello
            is_live = not session.is_closed and now_ms - session.heard_ms < SILENT_MS
            is_same = (known.boot_id, known.home) == (hello.boot_id, hello.home)
            if known.node == hello.node and is_live and known.home and hello.home and not is_same:
                return known
        return None

    async def _serve(self, socket: web.WebSocketResponse, session: NodeSession) -> None:
        hello = session.hello
        self._launcher.connected(hello, session)
        self._sessions.add(session)
        self._gone_since.pop(hello.node, None)
        self._engine.tell(ADMISSION, seen(hello, self._launcher.name), by="launcher:local")
        log.info("node.connected", node=hello.node, version=hello.version)
        session.wake()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._write, socket, session)
            while True:
                message = await receive(socket)
                if not isinstance(message, NodeReport):
                    break
                self._take(session, message)
            session.close()
        self._sessions.discard(session)
        if self._launcher.disconnected(hello.node, session):
            # Who was not heard because we stood still has time to dial again.
            now_ms = self._clock.boot_ms()
            self._gone_since[hello.node] = max(session.heard_ms, now_ms - SILENT_MS)
            self._live.drop_node(hello.node)
            log.warning("node.disconnected", node=hello.node)

    def _take(self, session: NodeSession, report: NodeReport) -> None:
        hello = session.hello
        session.heard_ms = self._clock.boot_ms()
        node = self._engine.world.admission.nodes.get(hello.node)
        if node is None or node.phase is NodePhase.AWAY:
            # What was told may not have been recorded.
            self._engine.tell(ADMISSION, seen(hello, self._launcher.name), by="launcher:local")
        self._launcher.reported(hello.node, report)
        self._live.node_reported(hello.node, report, cpu_milli=hello.cpu_milli)
        if node is not None and node.phase is not NodePhase.AWAY:
            self._weigh(node, report)
        if report.jobs:
            session.drop = self._dropped(report.jobs)
        session.counted = report.seq
        session.wake()

    def _weigh(self, node: Node, report: NodeReport) -> None:
        """Propose a node's load when it changed by a step; a lone node is chosen whatever it is."""
        load = measured(node.load, report)
        if len(self._engine.world.admission.nodes) > 1 and is_step(
            node.load, load, cpu_milli=node.cpu_milli, memory_bytes=node.memory_bytes
        ):
            told = NodeLoadMeasured(node.name, load.cpu_milli, load.memory_bytes)
            self._engine.tell(ADMISSION, told, by="launcher:local")

    def _dropped(self, jobs: tuple[str, ...]) -> tuple[str, ...]:
        """Return those of the jobs that are known to be over, with their records gone."""
        world = self._engine.world
        tombstones = world.admission.tombstones
        return tuple(job for job in jobs if job in tombstones and job not in world.jobs)

    async def _write(self, socket: web.WebSocketResponse, session: NodeSession) -> None:
        while await session.dirty():
            orders = self._launcher.orders(session.hello.node, session.counted)
            if not await send(socket, replace(orders, drop=session.drop, heads=self._heads())):
                break
        await socket.close()


def measured(before: Load, report: NodeReport) -> Load:
    """Return the load that a report tells; what it does not know is as before."""
    cpu_milli, memory_bytes = report.load_cpu_milli, report.load_memory_bytes
    return Load(
        before.cpu_milli if cpu_milli < 0 else cpu_milli,
        before.memory_bytes if memory_bytes < 0 else memory_bytes,
    )


def seen(hello: NodeHello, launcher: str) -> NodeSeen:
    """Return what admission hears of a node's hello."""
    return NodeSeen(
        node=hello.node,
        launcher=launcher,
        boot_id=hello.boot_id,
        version=hello.version,
        cpu_milli=hello.cpu_milli,
        memory_bytes=hello.memory_bytes,
        gpu=len(hello.gpus),
        first_port=hello.port_range[0],
        last_port=hello.port_range[1],
        labels=hello.labels,
    )


async def receive(socket: web.WebSocketResponse) -> NodeMessage | None:
    """Return the next message; None when the connection ends, or nobody understands what came."""
    message = await socket.receive()
    if message.type is not WSMsgType.BINARY:
        return None
    try:
        return decode_node_message(message.data)
    except msgspec.DecodeError as error:
        log.warning("node.undecodable", text=str(error))
        return None


async def send(socket: web.WebSocketResponse, message: DaemonToNodeMessage) -> bool:
    """Send one message; False when the connection is gone, or nobody takes it."""
    try:
        with anyio.fail_after(SEND_WITHIN_S):
            await socket.send_bytes(encode(message))
    except (ConnectionError, TimeoutError):
        return False
    return True


def add_node_routes(app: web.Application, registry: NodeRegistry) -> None:
    """Serve nodes; before the application starts."""
    app.router.add_get("/node/v1/connect", registry.connect)
