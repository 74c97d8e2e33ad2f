"""The network: messages that take their time, come late, double or never, and hosts cut off."""

import random
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from primusd.executor import protocol as of_executors
from primusd.node import protocol as of_nodes
from tests.simulation.schedule import Schedule

DECODERS: dict[type, Callable[[bytes], object]] = {
    **dict.fromkeys(
        (of_executors.Hello, of_executors.Report), of_executors.decode_executor_message
    ),
    **dict.fromkeys(
        (of_executors.Welcome, of_executors.Refused, of_executors.Orders),
        of_executors.decode_daemon_message,
    ),
    **dict.fromkeys((of_nodes.NodeHello, of_nodes.NodeReport), of_nodes.decode_node_message),
    of_nodes.NodeOrders: of_nodes.decode_daemon_message,
}
"""How its receiver reads a message."""


def through_bytes(value: object) -> object:
    """Return a message as it arrives; what is none, as it is."""
    decode = DECODERS.get(type(value))
    return value if decode is None else decode(of_executors.encode(value))


class Weather(Struct, frozen=True):
    """How bad a run is, apart from its deeds."""

    late_ms: int = 2
    """The most that a message needs."""
    broken_share: float = 0.0
    """Of messages that break their connection."""
    doubled_share: float = 0.0
    """Of facts that are told twice, the second time late."""
    trouble_share: float = 0.0
    """Of attempts whose processes do something else than their work."""
    is_encoded: bool = False
    """Messages and entries go through their bytes."""


WEATHERS = {
    "calm": Weather(),
    "bytes": Weather(late_ms=5, is_encoded=True),
    "windy": Weather(late_ms=40, doubled_share=0.05, trouble_share=0.15),
    "rough": Weather(late_ms=200, broken_share=0.01, doubled_share=0.15, trouble_share=0.3),
    "storm": Weather(late_ms=2_000, broken_share=0.05, doubled_share=0.3, trouble_share=0.5),
}


class Wire:
    """Carries calls between hosts.

    Attributes:
        cut: Names of hosts that nothing reaches and that reach nobody.
    """

    def __init__(self, schedule: Schedule, weather: Weather, rnd: random.Random) -> None:
        self.weather = weather
        self.cut: set[str] = set()
        self._schedule = schedule
        self._random = rnd

    def delay_ms(self) -> int:
        """Return what the next message needs."""
        late_ms = self.weather.late_ms
        return 1 if late_ms <= 2 else 1 + int(self._random.random() ** 3 * late_ms)

    def breaks(self) -> bool:
        """Return whether the next message breaks its connection."""
        share = self.weather.broken_share
        return share > 0 and self._random.random() < share

    def tell(self, call: Callable[..., None], *args: object) -> None:
        """Carry a fact that may come twice: the word of an edge beside its connection."""
        self._schedule.later(self.delay_ms(), call, *args)
        share = self.weather.doubled_share
        if share and self._random.random() < share:
            self._schedule.later(self.delay_ms() + self._random.randrange(5_000), call, *args)


class Line:
    """One connection: in order while it lasts; what is under way when it breaks may still come.

    Attributes:
        is_open: As both ends will find out, sooner or later.
        at_head: What its head keeps of it, once it took the hello.
    """

    def __init__(self, wire: Wire, schedule: Schedule, host: str) -> None:
        self.is_open = True
        self.at_head: Any = None  # a session of an executor or of a node
        self._wire = wire
        self._schedule = schedule
        self._host = host
        self._last_ms = [0, 0]
        self._on_break: list[Callable[[], None]] = []

    def on_break(self, call: Callable[[], None]) -> None:
        """Call when an end hears that the connection is gone; it may be so already."""
        self._on_break.append(call)
        if not self.is_open:
            self._schedule.later(self._wire.delay_ms(), call)

    def send(self, direction: int, call: Callable[..., None], *args: object) -> None:
        """Carry a message to one end (0 the head, 1 the host), behind those before it."""
        wire = self._wire
        if not self.is_open or self._host in wire.cut:
            return
        if wire.weather.broken_share and wire.breaks():
            self.end()
            return
        if wire.weather.is_encoded:
            args = tuple(map(through_bytes, args))
        at_ms = max(self._last_ms[direction], self._schedule.now_ms + wire.delay_ms())
        self._last_ms[direction] = at_ms
        self._schedule.put(at_ms, self._arrive, (call, args))

    def _arrive(self, call: Callable[..., None], args: tuple[object, ...]) -> None:
        if self._host not in self._wire.cut:
            call(*args)

    def end(self) -> None:
        """Break it; a host that is cut off hears nothing of that."""
        if self.is_open:
            self.is_open = False
            if self._host not in self._wire.cut:
                for call in self._on_break:
                    self._schedule.later(self._wire.delay_ms(), call)
