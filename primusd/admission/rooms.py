"""What is left on each node while a demand is being fitted."""

from collections.abc import Mapping

from msgspec import Struct

from primusd.admission.events import RoleDemand
from primusd.admission.model import Node
from primusd.admission.placement import Rule, has_labels
from primusd.admission.scoring import Host, busy


class Amount(Struct, frozen=True, array_like=True):
    """CPU, memory, GPUs and ports together, and how many replicas take them."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    gpu: int = 0
    port_count: int = 0
    replicas: int = 0
    unstated: int = 0
    """Those that do not say how much processor they need."""

    def plus(self, other: "Amount", times: int = 1) -> "Amount":
        """Return the sum with `times` times the other."""
        return Amount(
            self.cpu_milli + times * other.cpu_milli,
            self.memory_bytes + times * other.memory_bytes,
            self.gpu + times * other.gpu,
            self.port_count + times * other.port_count,
            self.replicas + times * other.replicas,
            self.unstated + times * other.unstated,
        )


class Room:
    """One node, and what it has left.

    Attributes:
        name: Of the node.
        own: How many replicas of the job are on it, by role; those just placed are counted in.
    """

    def __init__(
        self, node: Node, used: Amount, ports: int, own: Mapping[str, int], *, at_ms: int
    ) -> None:
        """Look at a node.

        Args:
            node: That takes replicas, or keeps those that it has.
            used: What replicas of all jobs take there.
            ports: Those in use, as bits.
            own: Replicas of the job that are there, by role.
            at_ms: Journal time; ports that rest longer are not given out.
        """
        self.name = node.name
        self.own: dict[str, int] = dict(own)
        self._node = node
        self._cpu_milli = node.cpu_milli - used.cpu_milli
        self._memory_bytes = node.memory_bytes - used.memory_bytes
        self._gpu = node.gpu - used.gpu
        for port, until_ms in node.resting_ports.items():
            if until_ms > at_ms:
                ports |= 1 << port
        allotted = (1 << node.last_port + 1) - (1 << node.first_port)
        self._free_ports = allotted & ~ports
        self._rows: dict[int, int] = {}
        """Number of ports to the first ports of all free rows of so many, as bits."""
        self._next_port = node.first_port
        self._count = used.replicas
        self._unstated = used.unstated

    def rank(self) -> tuple[float, int, str]:
        """Return what rooms are sorted by: the least busy first, then that with fewest replicas."""
        node = self._node
        host = Host(
            node.cpu_milli,
            node.memory_bytes,
            node.cpu_milli - self._cpu_milli,
            node.memory_bytes - self._memory_bytes,
            node.load,
            self._unstated,
        )
        return busy(host), self._count, self.name

    def takes(self, role: str, rule: Rule, asked_near: frozenset[str]) -> bool:
        """Return whether the rules let one more replica of a role in.

        Args:
            role: Its name.
            rule: Of the role.
            asked_near: Roles of which one has to be here already.
        """
        return (
            (not rule.per_node or self.own.get(role, 0) < rule.per_node)
            and all(not self.own.get(other) for other in rule.apart)
            and all(self.own.get(other) for other in asked_near)
            and has_labels(rule, self._node.labels)
        )

    def fits(self, want: RoleDemand, *, squeezes_cpu: bool) -> bool:
        """Return whether one more replica fits."""
        return (
            (squeezes_cpu or want.cpu_milli == 0 or want.cpu_milli <= self._cpu_milli)
            and (want.memory_bytes == 0 or want.memory_bytes <= self._memory_bytes)
            and (want.gpu == 0 or want.gpu <= self._gpu)
            and self.next_ports(want.port_count) is not None
        )

    def share(self, want: RoleDemand) -> float:
        """Return how much of the empty node one replica takes."""
        node = self._node
        return max(
            want.cpu_milli / max(1, node.cpu_milli),
            want.memory_bytes / max(1, node.memory_bytes),
            want.gpu / max(1, node.gpu),
        )

    def take(self, want: RoleDemand) -> tuple[int, int]:
        """Take one replica's share and ports.

        Returns:
            Its first port, 0 when it asks for none, and what `give_back` wants to have.
        """
        self._count_in(want, 1)
        undo = self._next_port
        return self.take_ports(want.port_count), undo

    def give_back(self, want: RoleDemand, undo: int) -> None:
        """Undo the last `take`."""
        self._count_in(want, -1)
        self._next_port = undo

    def _count_in(self, want: RoleDemand, times: int) -> None:
        self._cpu_milli -= want.cpu_milli * times
        self._memory_bytes -= want.memory_bytes * times
        self._gpu -= want.gpu * times
        self._count += times
        self._unstated += times * (want.cpu_milli == 0)
        self.own[want.role] = self.own.get(want.role, 0) + times

    @property
    def free_bytes(self) -> int:
        """How much memory is left."""
        return max(0, self._memory_bytes)

    def take_bytes(self, byte_count: int) -> None:
        """Take memory for a replica that has its slot already."""
        self._memory_bytes -= byte_count

    def next_ports(self, count: int) -> int | None:
        """Return the first of `count` consecutive free ports; 0: none is asked for, None: none."""
        if count == 0:
            return 0
        if count not in self._rows:
            self._rows[count] = _rows(self._free_ports, count)
        left = self._rows[count] >> self._next_port
        return self._next_port + (left & -left).bit_length() - 1 if left else None

    def take_ports(self, count: int) -> int:
        """Take the ports that `next_ports` tells."""
        first = self.next_ports(count)
        assert first is not None, f"{self.name} has no {count} ports in a row"
        if count:
            self._next_port = first + count
        return first


def _rows(free: int, count: int) -> int:
    """Return where `count` bits in a row are set: the lowest of each such row, as bits."""
    rows, length = free, 1
    while length < count:
        step = min(length, count - length)
        rows &= rows >> step
        length += step
    return rows
