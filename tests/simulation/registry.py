"""A head's side of its connections: executors and nodes, hello to goodbye.

Judging a hello, turning a report into events, composing orders, noticing silence: all of that is
the daemon's own; here are the connections, which there are sockets.
"""

from collections.abc import Callable
from typing import cast

from primusd.admission.events import NodeWentAway
from primusd.api.hello import judge, newest_of
from primusd.api.launch_orders import OrderSettings, launch_order
from primusd.api.nodes import AWAY_MS, seen
from primusd.api.reports import proposals
from primusd.api.sessions import Session, Sessions, compose, streams_read
from primusd.core import Answer
from primusd.engine import Anew, Engine
from primusd.executor.protocol import (
    VERSION,
    Hello,
    LaunchOrder,
    Orders,
    Refused,
    Report,
    Welcome,
)
from primusd.job.events import ExecutorRegistered
from primusd.liveness import Liveness, lost_ms
from primusd.node.protocol import NodeHello, NodeOrders, NodeReport
from primusd.records import ADMISSION, Proposal
from primusd.subscription import Published
from primusd.sweep import Strays
from tests.simulation.head import CLUSTER, Head, is_refused
from tests.simulation.keeping import NodesLauncher
from tests.simulation.wire import Line

BEAT_MS = 3_000
"""Longer than the daemon's shortest, so that silence between beats costs the simulation less."""
LOOK_EVERY_MS = 2_000
BUSY_RETRY_MS = 1_000
SETTINGS = OrderSettings("sim", "0", 1 << 20, 2)
ToHost = Callable[[Welcome | Refused | Orders], None]
ToNode = Callable[[NodeOrders], None]


class ExecutorSession(Session):
    """An executor's connection as its head has it: woken, it sends what should be so now."""

    def __init__(
        self,
        hello: Hello,
        streams: tuple[str, ...],
        line: Line,
        to_host: ToHost,
        registry: "Registry",
    ) -> None:
        super().__init__(hello.attempt, hello.incarnation, streams)
        self.line = line
        self.to_host = to_host
        self._registry = registry

    def wake(self) -> None:
        """Send its orders."""
        if not self.is_dirty:
            self.is_dirty = True
            self._registry.wish_flush(self)

    def take(self, report: Report) -> None:
        """Take a report that came."""
        self._registry.take(self, report)

    def close(self) -> None:
        """End the connection."""
        self.is_closed = True
        self.line.end()


class Registry:
    """All executors that a head hears."""

    def __init__(self, head: Head, strays: Strays) -> None:
        self._head = head
        self._strays = strays
        self._sessions = Sessions(head.clock.boot_ms, self._wish_news)
        self._news_ms = 0
        engine = cast("Engine", head)  # it has what Liveness reads: world, on_anew, tell
        self.liveness = Liveness(engine, head.clock)
        self._is_looking = False
        head.on_published.append(self._follow)
        head.on_anew.append(self._begin_anew)

    def _follow(self, published: Published) -> None:
        self._sessions.wake_changed(published)

    def _begin_anew(self, why: Anew) -> None:
        if why is not Anew.STALL:
            self._sessions.wake_all()
        self._wish_look()

    def _wish_news(self, at_ms: int) -> None:
        if self._news_ms and self._news_ms <= at_ms:
            return
        self._news_ms = at_ms
        self._head.later(max(0, at_ms - self._head.clock.boot_ms()), self._tell_news)

    def _tell_news(self) -> None:
        self._news_ms = 0
        self._sessions.wake_due()

    def _wish_look(self) -> None:
        if not self._is_looking:
            self._is_looking = True
            self._head.later(LOOK_EVERY_MS, self._look)

    def _look(self) -> None:
        self._is_looking = False
        if self._head.outage is None:
            self.liveness.look()
        if self.liveness._heard:
            self._wish_look()

    # A hello.

    def hello(self, hello: Hello, line: Line, to_host: ToHost) -> None:
        """Judge a hello; the first one of an attempt is recorded before it is answered."""
        if self._head.outage is not None:
            self._refuse(line, to_host, Refused("busy", "not now", retry_ms=BUSY_RETRY_MS))
            return
        refused = self._judge(hello)
        if refused is not None:
            if refused.code == "stateBehind":
                self._strays.turn_away(hello.attempt)
            self._refuse(line, to_host, refused)
            return
        known = newest_of(self._head.world, hello.attempt)
        if known is None or known[1].incarnation:
            self._admit(hello, line, to_host)
            return
        event = ExecutorRegistered(
            hello.attempt, hello.incarnation, hello.host, hello.boot_id, hello.pid, hello.version
        )

        def answered(answers: object) -> None:
            self._registered(hello, line, to_host, cast("tuple[Answer, ...]", answers))  # its type

        self._head.propose((Proposal(hello.attempt.job, event, "executor"),), answered)

    def _registered(
        self, hello: Hello, line: Line, to_host: ToHost, answers: tuple[Answer, ...]
    ) -> None:
        refused = self._judge(hello)
        if is_refused(answers):
            refused = Refused("busy", "not recorded", retry_ms=BUSY_RETRY_MS)
        if refused is not None:
            self._refuse(line, to_host, refused)
        else:
            self._admit(hello, line, to_host)

    def _judge(self, hello: Hello) -> Refused | None:
        return judge(
            self._head.world,
            hello,
            cluster=CLUSTER,
            term=self._head.term,
            revision=self._head.revision,
            is_adopted=self._strays.is_adopted(hello.attempt),
        )

    @staticmethod
    def _refuse(line: Line, to_host: ToHost, refused: Refused) -> None:
        line.send(1, to_host, refused)
        line.send(1, line.end)

    def _admit(self, hello: Hello, line: Line, to_host: ToHost) -> None:
        known = newest_of(self._head.world, hello.attempt)
        if known is None:
            self._refuse(line, to_host, Refused("unknownJob", "its job is gone"))
            return
        self._strays.take_in(hello.attempt)
        job, found = known
        order: LaunchOrder | None = None
        if not hello.seen_term:
            order = launch_order(job, hello.attempt, found, hello.host, SETTINGS)
        line.send(1, to_host, Welcome(VERSION, order))
        streams = streams_read(job, hello.attempt.role)
        session = ExecutorSession(hello, streams, line, to_host, self)
        line.on_break(lambda: self._sessions.remove(session))
        line.at_head = session
        self._sessions.add(session)
        self.liveness.heard(session.attempt)
        self._wish_look()

    # Reports and orders.

    def take(self, session: ExecutorSession, report: Report) -> None:
        """Count a report in, unless this head is gone."""
        self._head.later(0, self._report, session, report)

    def _report(self, session: ExecutorSession, report: Report) -> None:
        self.liveness.heard(session.attempt)
        self._wish_look()
        session.newest = report
        known = newest_of(self._head.world, session.attempt)
        events: tuple[Proposal, ...] = ()
        if known is not None and known[1].incarnation == session.incarnation:
            events = proposals(known[0], session.attempt, known[1], report)
        if not events:
            session.counted = report.seq
            session.wake()
            return

        def answered(answers: object) -> None:
            if is_refused(cast("tuple[Answer, ...]", answers)):  # its type
                session.close()
                return
            session.counted = report.seq
            session.wake()

        self._head.propose(events, answered)

    def wish_flush(self, session: ExecutorSession) -> None:
        """Send a session its orders with all that changes in this moment."""
        self._head.later(0, self._send_orders, session)

    def _send_orders(self, session: ExecutorSession) -> None:
        session.is_dirty = False
        if session.is_closed or self._head.outage is not None:
            return
        orders = compose(
            self._head.world,
            session,
            term=self._head.term,
            revision=self._head.revision,
            at_ms=self._head.at_ms(),
            beat_ms=BEAT_MS,
            ttl_ms=lost_ms(BEAT_MS),
            heads=("head",),
        )
        message = orders or Refused("attemptOver", "the record of its job was dropped")
        session.line.send(1, session.to_host, message)

    @property
    def connected(self) -> int:
        """How many executors are connected."""
        return len(self._sessions.by_attempt)


class NodeSession:
    """A node's connection as its head has it."""

    def __init__(
        self, hello: NodeHello, line: Line, to_host: ToNode, registry: "NodeRegistry"
    ) -> None:
        self.hello = hello
        self.counted = 0
        self.is_dirty = False
        self.line = line
        self.to_host = to_host
        self._registry = registry

    def wake(self) -> None:
        """Send the node its orders anew."""
        if not self.is_dirty:
            self.is_dirty = True
            self._registry.wish_flush(self)

    def take(self, report: NodeReport) -> None:
        """Take a report that came."""
        self._registry.take(self, report)

    def close(self) -> None:
        """End the connection."""
        self.line.end()


class NodeRegistry:
    """All nodes that a head hears, and since when it does not hear the others."""

    def __init__(self, head: Head, launcher: NodesLauncher) -> None:
        self._head = head
        self._launcher = launcher
        self._gone_since: dict[str, int] = {}
        self._is_looking = False
        head.on_anew.append(self._begin_anew)

    def _begin_anew(self, why: Anew) -> None:
        now_ms = self._head.clock.boot_ms()
        self._gone_since = {
            name: now_ms
            for name in self._head.world.admission.nodes
            if not self._launcher.is_connected(name)
        }
        self._wish_look()
        if why is not Anew.STALL:
            self._launcher.tell_again()

    def connect(self, hello: NodeHello, line: Line, to_host: ToNode) -> bool:
        """Take a node's hello; False: not now."""
        if self._head.outage is not None:
            return False
        session = NodeSession(hello, line, to_host, self)
        self._launcher.connected(hello, session)
        self._gone_since.pop(hello.node, None)
        self._head.tell(ADMISSION, seen(hello, self._launcher.name), by="launcher:local")
        line.on_break(lambda: self._lost(session))
        line.at_head = session
        session.wake()
        return True

    def wish_flush(self, session: NodeSession) -> None:
        """Send a node its orders with all that changes in this moment."""
        self._head.later(0, self._send_orders, session)

    def _send_orders(self, session: NodeSession) -> None:
        session.is_dirty = False
        orders = self._launcher.orders(session.hello.node, session.counted)
        session.line.send(1, session.to_host, orders)

    def take(self, session: NodeSession, report: NodeReport) -> None:
        """Take a node's report in, unless this head is gone."""
        self._head.later(0, self._report, session, report)

    def _report(self, session: NodeSession, report: NodeReport) -> None:
        name = session.hello.node
        node = self._head.world.admission.nodes.get(name)
        if node is None or node.phase == "Away":
            again = seen(session.hello, self._launcher.name)
            self._head.tell(ADMISSION, again, by="launcher:local")
        self._launcher.reported(name, report)
        session.counted = report.seq
        session.wake()

    def _lost(self, session: NodeSession) -> None:
        if not self._head.is_dead and self._launcher.disconnected(session.hello.node, session):
            self._gone_since[session.hello.node] = self._head.clock.boot_ms()
            self._wish_look()

    def _wish_look(self) -> None:
        if self._gone_since and not self._is_looking:
            self._is_looking = True
            self._head.later(LOOK_EVERY_MS, self._look)

    def _look(self) -> None:
        self._is_looking = False
        now_ms = self._head.clock.boot_ms()
        for name, since_ms in list(self._gone_since.items()):
            node = self._head.world.admission.nodes.get(name)
            if node is None or node.phase == "Away":
                del self._gone_since[name]
            elif now_ms - since_ms >= AWAY_MS:
                self._head.tell(ADMISSION, NodeWentAway(name), by="launcher:local")
        self._wish_look()
