"""Members of etcd in virtual time: they hang, die and come back; so do the ways to them.

A member that is stopped keeps what it was sent and carries it out once it goes on, however long ago
its client gave up. That is what a real one does, and the anomaly that the lane is against.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from primusd.state.etcd.client import EtcdClient, EtcdSettings
from primusd.state.etcd.messages import messages
from tests.simulation.etcd_state import EtcdState, Message, RefusedError
from tests.simulation.schedule import Schedule
from tests.simulation.virtual_loop import VirtualLoop

DEAD_MS = 2
"""Until a connection to nobody is refused."""


class Member:
    """One server.

    Attributes:
        is_stopped: It stands still; its connections stay open.
        is_dead: Nobody listens.
    """

    def __init__(self) -> None:
        self.is_stopped = False
        self.is_dead = False
        self.kept: deque[Callable[[], None]] = deque()
        """What it was sent while it stood still, or while there was no majority."""


class EtcdCluster:
    """Three members and the ways to them.

    Attributes:
        state: What the majority keeps.
        members: In the order of the endpoints.
        cut: Ways that carry nothing: a host and the number of a member.
        delay_ms: Between which times a message is under way.
    """

    def __init__(self, schedule: Schedule, loop: VirtualLoop, rnd: random.Random) -> None:
        self.state = EtcdState(lambda: schedule.now_ms)
        self.members = [Member() for _ in range(3)]
        self.cut: set[tuple[str, int]] = set()
        self.delay_ms = (1, 4)
        self.loop = loop
        self._schedule = schedule
        self._random = rnd
        self._watches: list[WatchCall] = []
        self._expiry_ms = -1
        self.state.on_changed = self._changed

    @property
    def has_majority(self) -> bool:
        """Whether anything can be carried out."""
        return sum(not one.is_dead and not one.is_stopped for one in self.members) >= 2

    def stop(self, number: int) -> None:
        """Let a member stand still."""
        self.members[number].is_stopped = True
        self._lost_one()

    def kill(self, number: int) -> None:
        """Let a member die, with all that it was sent."""
        member = self.members[number]
        member.is_dead = True
        member.kept.clear()
        for watch in [one for one in self._watches if one.number == number]:
            self.end(watch, grpc.StatusCode.UNAVAILABLE)
        self._lost_one()

    def go_on(self, number: int) -> None:
        """Let a member go on, or start anew."""
        member = self.members[number]
        had_majority = self.has_majority
        member.is_stopped = member.is_dead = False
        if not self.has_majority:
            return
        if not had_majority:
            self.state.extend_leases()
        for one in self.members:
            while one.kept and not one.is_stopped and not one.is_dead:
                one.kept.popleft()()
        self._changed()

    def _lost_one(self) -> None:
        if self._random.random() < 0.5:
            # It was the one that led.
            self.state.extend_leases()

    def tick(self) -> None:
        """End leases that are over, while there is a majority that can."""
        if self.has_majority:
            self.state.expire()

    # Messages.

    def send(self, host: str, number: int, call: Callable[[], None]) -> None:
        """Let something happen once a message is there, unless it gets lost."""
        if (host, number) not in self.cut:
            self._later(lambda: None if (host, number) in self.cut else call())

    def _later(self, call: Callable[[], None]) -> None:
        delay_ms = self._random.randint(*self.delay_ms)
        self._schedule.later(delay_ms, call)

    def arrive(self, number: int, call: Callable[[], None]) -> None:
        """Carry out what a member was sent, now or once it can."""
        if self.members[number].is_stopped or not self.has_majority:
            self.members[number].kept.append(call)
        else:
            call()

    def ask(
        self,
        host: str,
        number: int,
        method: str,
        request: Message,
        answered: Callable[[Message | grpc.aio.AioRpcError], None],
    ) -> None:
        """Send a request and hand on its answer, should it come."""

        def carry_out() -> None:
            try:
                found: Any = self.state.answer(method, request)
            except RefusedError as error:
                found = rpc_error(error.code, error.text)
            self.send(host, number, lambda: answered(found))

        if self.members[number].is_dead:
            refused = rpc_error(grpc.StatusCode.UNAVAILABLE, "connection refused")
            self._schedule.later(DEAD_MS, answered, refused)
            return
        self.send(host, number, lambda: self.arrive(number, carry_out))

    # Watches.

    def watch(self, watch: "WatchCall") -> None:
        """Tell a watch what happens, from the revision on that it names."""
        self._watches.append(watch)
        self._tell(watch)

    def end(self, watch: "WatchCall", code: grpc.StatusCode | None = None) -> None:
        """Tell a watch nothing more."""
        if watch in self._watches:
            self._watches.remove(watch)
        if code is not None:
            error = rpc_error(code, "the member died")
            self._schedule.later(DEAD_MS, watch.put, error)

    def _changed(self) -> None:
        for watch in list(self._watches):
            self._tell(watch)

    def _tell(self, watch: "WatchCall") -> None:
        member = self.members[watch.number]
        if member.is_stopped or member.is_dead:
            return
        answer = messages()["WatchResponse"]()
        if watch.next_revision < self.state.compacted:
            answer.compact_revision, answer.canceled = self.state.compacted, True
            self.end(watch)
        else:
            events = self.state.events(watch.create, watch.next_revision)
            if not events:
                return
            watch.next_revision = self.state.revision + 1
            answer.events.extend(events)
        self.send(watch.host, watch.number, lambda: watch.put(answer))


def rpc_error(code: grpc.StatusCode, text: str) -> grpc.aio.AioRpcError:
    """Return an error as gRPC raises it."""
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), text)


def _deadline(loop: VirtualLoop, future: "asyncio.Future[Any]", within_s: float | None) -> None:
    if within_s is None:
        return

    def expire() -> None:
        if not future.done():
            future.set_exception(rpc_error(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"))

    loop.call_later(within_s, expire)


class _Answers:
    """What comes over a stream, as `grpc.aio` hands it out."""

    def __init__(self, cluster: EtcdCluster, host: str, number: int, within_s: float | None):
        self.host = host
        self.number = number
        self._cluster = cluster
        self._came: deque[Any] = deque()
        self._waits: asyncio.Future[Any] | None = None
        self._within_s = within_s

    def put(self, answer: Any) -> None:
        """Hand out an answer, or an error."""
        self._came.append(answer)
        if self._waits is not None and not self._waits.done():
            self._waits.set_result(None)

    async def read(self) -> Any:
        """Return the next answer."""
        if not self._came:
            self._waits = self._cluster.loop.create_future()
            _deadline(self._cluster.loop, self._waits, self._within_s)
            await self._waits
        answer = self._came.popleft()
        if isinstance(answer, grpc.aio.AioRpcError):
            raise answer
        return answer


class WatchCall(_Answers):
    """A stream of events."""

    async def write(self, request: Message) -> None:
        """Begin to watch."""
        self.create = request.create_request
        self.next_revision = self.create.start_revision
        if self._cluster.members[self.number].is_dead:
            raise rpc_error(grpc.StatusCode.UNAVAILABLE, "connection refused")
        self._cluster.watch(self)

    def cancel(self) -> None:
        """Watch no more."""
        self._cluster.end(self)


class KeepAliveCall(_Answers):
    """A stream that renews a lease."""

    async def write(self, request: Message) -> None:
        """Ask for the renewal."""
        self._cluster.ask(self.host, self.number, "LeaseKeepAlive", request, self.put)

    def cancel(self) -> None:
        """Wait no more."""


class _Channel:
    """The way of one host to one member."""

    def __init__(self, cluster: EtcdCluster, host: str, number: int) -> None:
        self._cluster = cluster
        self._host = host
        self._number = number

    def unary_unary(self, path: str, **_: object) -> Callable[..., Any]:
        method = path.rpartition("/")[2]

        def call(request: Message, *, timeout: float, metadata: object) -> Any:
            del metadata
            future = self._cluster.loop.create_future()

            def answered(found: Any) -> None:
                if future.done():
                    return
                if isinstance(found, grpc.aio.AioRpcError):
                    future.set_exception(found)
                else:
                    future.set_result(found)

            _deadline(self._cluster.loop, future, timeout)
            self._cluster.ask(self._host, self._number, method, request, answered)
            return future

        return call

    def stream_stream(self, path: str, **_: object) -> Callable[..., Any]:
        make = WatchCall if path.endswith("/Watch") else KeepAliveCall

        def call(*, timeout: float | None, metadata: object) -> _Answers:
            del metadata
            return make(self._cluster, self._host, self._number, timeout)

        return call

    async def close(self) -> None:
        """Nothing is open."""


class SimulatedClient(EtcdClient):
    """The client as it is, over ways in virtual time."""

    def __init__(self, cluster: EtcdCluster, host: str, *, try_ms: int) -> None:
        self._cluster = cluster
        self._host = host
        endpoints = tuple(str(number) for number in range(len(cluster.members)))
        super().__init__(EtcdSettings(endpoints, try_ms=try_ms))

    def _channel(self, endpoint: str) -> Any:
        return _Channel(self._cluster, self._host, int(endpoint))
