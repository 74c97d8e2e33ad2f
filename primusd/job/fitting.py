"""Which slots and ports a demand gets: all or nothing, on the emptiest node that fits.

Usage is always computed from the slots that demands hold and from what is quarantined, never
counted up and down. CPU is compressible: a demand that asks for more than there is gets it when
nobody else holds any (docs/jobspec.md, "What could never fit").
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from primusd.job.admission_events import RoleDemand
from primusd.job.admission_model import Admission, Demand, Held, Node
from primusd.job.events import Place
from primusd.job.phases import NodePhase
from primusd.units import bytes_words


class Amount(Struct, frozen=True, array_like=True):
    """CPU, memory, GPUs and ports together."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    gpu: int = 0
    port_count: int = 0

    def plus(self, other: "Amount", times: int = 1) -> "Amount":
        """Return the sum with `times` times the other."""
        return Amount(
            self.cpu_milli + times * other.cpu_milli,
            self.memory_bytes + times * other.memory_bytes,
            self.gpu + times * other.gpu,
            self.port_count + times * other.port_count,
        )


class _Room:
    """What is left on one node while a demand is being fitted."""

    def __init__(self, node: Node, used: Amount, ports: set[int], *, at_ms: int) -> None:
        self.name = node.name
        self.cpu_milli = node.cpu_milli - used.cpu_milli
        self.memory_bytes = node.memory_bytes - used.memory_bytes
        self.gpu = node.gpu - used.gpu
        self._cpu_all = max(1, node.cpu_milli)
        self._memory_all = max(1, node.memory_bytes)
        resting = {port for port, until_ms in node.resting_ports.items() if until_ms > at_ms}
        self._taken = ports | resting
        self._last_port = node.last_port
        self._next_port = node.first_port
        self.count = 0

    def fullness(self) -> tuple[float, int]:
        """Return how full the node is, for choosing the emptiest."""
        cpu = 1 - self.cpu_milli / self._cpu_all
        memory = 1 - self.memory_bytes / self._memory_all
        return max(cpu, memory), self.count

    def fits(self, want: RoleDemand, *, squeezes_cpu: bool) -> bool:
        """Return whether one more replica fits, ports aside."""
        return (
            (squeezes_cpu or want.cpu_milli == 0 or want.cpu_milli <= self.cpu_milli)
            and (want.memory_bytes == 0 or want.memory_bytes <= self.memory_bytes)
            and (want.gpu == 0 or want.gpu <= self.gpu)
        )

    def take(self, want: RoleDemand) -> None:
        """Take one replica's share."""
        self.cpu_milli -= want.cpu_milli
        self.memory_bytes -= want.memory_bytes
        self.gpu -= want.gpu
        self.count += 1

    def take_ports(self, count: int) -> int | None:
        """Return the first of `count` consecutive free ports, 0 when none is asked for."""
        if count == 0:
            return 0
        first = self._next_port
        while first + count - 1 <= self._last_port:
            clash = next((p for p in range(first, first + count) if p in self._taken), None)
            if clash is None:
                self._next_port = first + count
                return first
            first = clash + 1
        return None


def amount_of(want: RoleDemand) -> Amount:
    """Return what one replica takes."""
    return Amount(want.cpu_milli, want.memory_bytes, want.gpu, want.port_count)


def indices(want: RoleDemand) -> Iterator[int]:
    """Yield the replicas that are asked for."""
    for span in want.wanted:
        yield from range(span.low, span.high + 1)


def has_good_ports(demand: Demand, want: RoleDemand, held: Held) -> bool:
    """Return whether a slot's ports are of the generation that its role is in."""
    return not want.port_count or held.generation >= (want.generation or demand.generation)


def is_satisfied(demand: Demand) -> bool:
    """Return whether the demand holds all that it asks for, in its generation."""
    for want in demand.roles.values():
        for index in indices(want):
            held = demand.held.get((want.role, index))
            if held is None or not has_good_ports(demand, want, held):
                return False
    return True


def used_by_node(demands: Iterable[Demand], admission: Admission) -> dict[str, Amount]:
    """Return what the demands' slots and the quarantined ones take, by node."""
    used: dict[str, Amount] = {}
    for demand in demands:
        for (role, _), held in demand.held.items():
            want = demand.roles.get(role) or demand.leaving.get(role)
            share = amount_of(want) if want is not None else Amount()
            used[held.node] = used.get(held.node, Amount()).plus(share)
    for one in admission.quarantined:
        share = Amount(one.cpu_milli, one.memory_bytes, one.gpu, len(one.ports))
        used[one.node] = used.get(one.node, Amount()).plus(share)
    return used


def ports_by_node(admission: Admission) -> dict[str, set[int]]:
    """Return the ports that slots and quarantined attempts hold, by node."""
    ports: dict[str, set[int]] = {}
    for demand in admission.demands.values():
        for held in demand.held.values():
            if held.first_port:
                span = range(held.first_port, held.first_port + held.port_count)
                ports.setdefault(held.node, set()).update(span)
        for used in demand.old_ports.values():
            for node, port in used:
                ports.setdefault(node, set()).add(port)
    for one in admission.quarantined:
        ports.setdefault(one.node, set()).update(one.ports)
    return ports


def fit(admission: Admission, demand: Demand, *, at_ms: int) -> tuple[Place, ...] | None:
    """Return where the demand's missing replicas go, None when they do not all fit now.

    A replica that keeps its node and only needs ports of a newer generation stays there.
    """
    used = used_by_node(admission.demands.values(), admission)
    ports = ports_by_node(admission)
    rooms = {
        node.name: _Room(
            node, used.get(node.name, Amount()), ports.get(node.name, set()), at_ms=at_ms
        )
        for node in sorted(admission.nodes.values(), key=lambda one: one.name)
        if node.phase is NodePhase.READY
    }
    squeezes_cpu = _may_squeeze_cpu(admission, demand, used)
    chosen: list[tuple[str, int, str, int, int]] = []
    for want in demand.roles.values():
        for index in indices(want):
            held = demand.held.get((want.role, index))
            if held is not None and has_good_ports(demand, want, held):
                continue
            placed = _place(rooms, want, held, squeezes_cpu=squeezes_cpu)
            if placed is None:
                return None
            chosen.append((want.role, index, *placed, want.port_count))
    return _as_runs(chosen)


def _place(
    rooms: Mapping[str, _Room], want: RoleDemand, held: Held | None, *, squeezes_cpu: bool
) -> tuple[str, int] | None:
    """Return the node and first port of one replica, None when there is no room."""
    if held is not None and held.node in rooms:
        port = rooms[held.node].take_ports(want.port_count)
        return None if port is None else (held.node, port)
    for room in sorted(rooms.values(), key=_Room.fullness):
        if not room.fits(want, squeezes_cpu=squeezes_cpu):
            continue
        port = room.take_ports(want.port_count)
        if port is not None:
            room.take(want)
            return room.name, port
    return None


def _may_squeeze_cpu(admission: Admission, demand: Demand, used: Mapping[str, Amount]) -> bool:
    """Return whether the demand may take more CPU than there is: nobody else holds any."""
    own = used_by_node((demand,), Admission())
    others = sum(amount.cpu_milli for amount in used.values())
    others -= sum(amount.cpu_milli for amount in own.values())
    there = sum(
        node.cpu_milli for node in admission.nodes.values() if node.phase is NodePhase.READY
    )
    return others == 0 and total_of(demand.roles.values()).cpu_milli > there


def _as_runs(chosen: Sequence[tuple[str, int, str, int, int]]) -> tuple[Place, ...]:
    """Return the chosen slots as runs of neighbours on one node with consecutive ports."""
    runs: list[Place] = []
    for role, index, node, port, count in chosen:
        last = runs[-1] if runs else None
        if (
            last is not None
            and (last.role, last.node, last.first + last.count) == (role, node, index)
            and (port == 0 or last.first_port + last.count * count == port)
        ):
            runs[-1] = Place(node, role, last.first, last.count + 1, last.first_port)
        else:
            runs.append(Place(node, role, index, 1, port))
    return tuple(runs)


def total_of(roles: Iterable[RoleDemand]) -> Amount:
    """Return what all asked-for replicas take together."""
    total = Amount()
    for want in roles:
        count = sum(span.high - span.low + 1 for span in want.wanted)
        total = total.plus(amount_of(want), count)
    return total


def unfit_sentence(admission: Admission, roles: Iterable[RoleDemand]) -> str:
    """Return why the nodes known now could never hold this even when empty; "" they could.

    CPU is left out: it is compressible. Without any node nothing can be said.
    """
    nodes = tuple(admission.nodes.values())
    if not nodes:
        return ""
    wants = tuple(roles)
    total = total_of(wants)
    for unit, show, each, asked in (
        ("of memory", bytes_words, [node.memory_bytes for node in nodes], total.memory_bytes),
        ("GPUs", str, [node.gpu for node in nodes], total.gpu),
    ):
        if asked > sum(each):
            there = show(sum(each))
            return f"the job asks for {show(asked)} {unit} in all, the nodes have {there}"
        for want in wants:
            one = want.gpu if show is str else want.memory_bytes
            if one > max(each):
                return (
                    f"a replica of {want.role} asks for {show(one)} {unit}, "
                    f"the largest node has {show(max(each))}"
                )
    ports = sum(node.last_port - node.first_port + 1 for node in nodes)
    if total.port_count > ports:
        return f"the job asks for {total.port_count} ports, the nodes have {ports}"
    return ""
