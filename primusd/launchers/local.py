"""The local launcher: attempts on hosts that run `primusd node` and dial this daemon.

It holds wishes (run, kill, release) per node and sends all of them as orders; what nodes report is
the evidence. Nothing of it is durable: after a restart the plans say the wishes again, and the
nodes say again what they have.
"""

from collections.abc import Callable
from typing import Protocol

import anyio
import msgspec

from primusd.executor.protocol import Bootstrap, Exit
from primusd.job.events import AttemptLaunched, AttemptVanished
from primusd.job.ids import AttemptId
from primusd.job.spec import Resources
from primusd.launchers.base import LauncherEvent, Listed
from primusd.node.protocol import NodeAttempt, NodeHello, NodeOrders, NodeReport, NodeStart

TAKEN_S = 10.0
"""How long `stop` and `release` wait for the node to say that it has carried them out."""
BEAT_MS = 1_000


class NodeLink(Protocol):
    """An open connection to a node."""

    def wake(self) -> None:
        """Send the node its orders anew."""
        ...

    def close(self) -> None:
        """End the connection: another one of the same node has come."""
        ...


class _Node:
    """What is wished of one node, and what it says."""

    def __init__(self) -> None:
        self.link: NodeLink | None = None
        self.boot_id = ""
        self.done = (0, 0)
        """Term and revision of the newest orders it has carried out."""
        self.listed: dict[AttemptId, NodeAttempt] = {}
        self.seen: set[AttemptId] = set()
        """Listed once, and not released yet."""
        self.run: dict[AttemptId, NodeStart] = {}
        self.kill: dict[AttemptId, int] = {}
        """To the revision of the first orders that say so."""
        self.release: dict[AttemptId, int] = {}
        self.told: dict[AttemptId, NodeAttempt] = {}
        self.reported: anyio.Event | None = None
        """Set with the next report; made by whoever waits for that."""


class LocalLauncher:
    """Launches through nodes.

    Attributes:
        name: `local`.
    """

    name = "local"

    def __init__(self, term: Callable[[], int]) -> None:
        self._term = term
        self._revision = 0
        self._nodes: dict[str, _Node] = {}
        self._cancelled: set[AttemptId] = set()
        """Ended before they ever had a directory: nothing on the node would refuse a launch."""
        self._sink: Callable[[LauncherEvent], None] = lambda _event: None

    # The port.

    def watch(self, sink: Callable[[LauncherEvent], None]) -> None:
        """Tell the sink from now on what nodes report."""
        self._sink = sink

    async def launch(
        self, attempt: AttemptId, node: str, resources: Resources, bootstrap: Bootstrap
    ) -> None:
        """Wish that an attempt's executor runs on a node; it is forked at most once."""
        one = self._node(node)
        if attempt in self._cancelled or attempt in one.kill or attempt in one.release:
            return
        one.run[attempt] = NodeStart(
            bootstrap=msgspec.json.encode(bootstrap),
            attempt=attempt,
            cpu_milli=resources.cpu_milli,
            memory_bytes=resources.memory_bytes,
            gpus=("",) * resources.gpu,
        )
        if attempt not in one.listed:
            self._changed(one)

    async def stop(self, attempt: AttemptId, node: str) -> bool:
        """End all of an attempt now; True once its node has carried that out."""
        one = self._node(node)
        return await self._end(one, one.kill, attempt)

    async def release(self, attempt: AttemptId, node: str) -> bool:
        """Let go of an ended attempt; True once its node has carried that out."""
        one = self._node(node)
        return await self._end(one, one.release, attempt)

    async def list(self) -> tuple[Listed, ...]:
        """Return what the connected nodes have."""
        return tuple(
            Listed(attempt.attempt, name, attempt.alive)
            for name, node in self._nodes.items()
            if node.link is not None
            for attempt in node.listed.values()
        )

    # What the connections say.

    def connected(self, hello: NodeHello, link: NodeLink) -> None:
        """Take a node's connection; an older one of the same node is closed."""
        node = self._node(hello.node)
        if node.link is not None:
            node.link.close()
        node.link = link
        node.boot_id = hello.boot_id
        node.done = (0, 0)

    def disconnected(self, name: str, link: NodeLink) -> bool:
        """Note that a connection is gone; return whether the node is without one now."""
        node = self._node(name)
        if node.link is not link:
            return False
        node.link = None
        return True

    def is_connected(self, name: str) -> bool:
        """Return whether a node is connected now."""
        node = self._nodes.get(name)
        return node is not None and node.link is not None

    def reported(self, name: str, report: NodeReport) -> None:
        """Take a report in, and tell the sink what it proves."""
        node = self._node(name)
        node.done = (report.orders_term, report.orders_revision)
        node.listed = {one.attempt: one for one in report.attempts}
        node.seen.update(node.listed)
        for attempt, one in node.listed.items():
            # Most of a report is as it was in the one before.
            if node.told.get(attempt) != one:
                self._tell_listed(node, name, one)
        for attempt in node.told.keys() - node.listed.keys():
            del node.told[attempt]
        for wishes in (node.kill, node.release):
            for attempt, revision in list(wishes.items()):
                if attempt not in node.listed and self._is_done(node, revision):
                    del wishes[attempt]
                    if attempt not in node.seen:
                        self._cancelled.add(attempt)
                    node.seen.discard(attempt)
                    self._sink(AttemptVanished(attempt))
        if node.reported is not None:
            node.reported.set()
            node.reported = None

    def orders(self, name: str, seq: int) -> NodeOrders:
        """Return all that should be so on a node."""
        node = self._node(name)
        return NodeOrders(
            report=seq,
            revision=self._revision,
            term=self._term(),
            # What it lists has a directory, and is never forked again.
            run=tuple(one for key, one in node.run.items() if key not in node.listed),
            kill=tuple(node.kill),
            release=tuple(node.release),
            beat_ms=BEAT_MS,
        )

    def tell_again(self) -> None:
        """Say everything again with the next reports: what was told may not have been recorded."""
        for node in self._nodes.values():
            node.told.clear()

    # Its own.

    def _node(self, name: str) -> _Node:
        if name not in self._nodes:
            self._nodes[name] = _Node()
        return self._nodes[name]

    def _changed(self, node: _Node) -> None:
        self._revision += 1
        if node.link is not None:
            node.link.wake()

    def _is_done(self, node: _Node, revision: int) -> bool:
        return node.done >= (self._term(), revision)

    async def _end(self, node: _Node, wishes: dict[AttemptId, int], attempt: AttemptId) -> bool:
        node.run.pop(attempt, None)
        if attempt not in wishes:
            wishes[attempt] = self._revision + 1
            self._changed(node)
        revision = wishes[attempt]
        with anyio.move_on_after(TAKEN_S):
            while not self._is_done(node, revision):
                if node.link is None:
                    return False
                node.reported = node.reported or anyio.Event()
                await node.reported.wait()
            return True
        return False

    def _tell_listed(self, node: _Node, name: str, one: NodeAttempt) -> None:
        told = node.told.get(one.attempt)
        node.told[one.attempt] = one
        if told is not None and _fact(told) == _fact(one):
            return
        if told is None and not one.error:
            self._sink(AttemptLaunched(one.attempt, {"node": name, "version": "1"}))
        if not one.alive:
            node.run.pop(one.attempt, None)
            self._sink(AttemptVanished(one.attempt, one.exit, _evidence(node, one)))


def _fact(one: NodeAttempt) -> tuple[bool, Exit | None, str]:
    """Return what is told of an attempt."""
    return one.alive, one.exit, one.error


def _evidence(node: _Node, one: NodeAttempt) -> str:
    """Return what the node's word proves beyond the exit record."""
    if one.error:
        return f"forkFailed:{one.error}"
    if one.exit is None and one.boot_id and one.boot_id != node.boot_id:
        return "bootChanged"
    return ""
