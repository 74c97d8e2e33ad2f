"""What a demand still lacks, and what the ready nodes have left for it."""

from collections.abc import Iterable, Mapping

from primusd.admission.events import RoleDemand
from primusd.admission.fitting import missing, total_of, unfit_sentence
from primusd.admission.memo import Memo
from primusd.admission.model import Admission, Demand, Node
from primusd.admission.rooms import Amount
from primusd.admission.usage import NOTHING, amount_of, used_now
from primusd.job.phases import NodePhase

FIELDS = ("cpu_milli", "memory_bytes", "gpu", "port_count")
SLOTS_REMEMBERED = 200_000
DEMANDS_REMEMBERED = 10_000

Nodes = Mapping[str, Node]
Shape = tuple[object, ...]
"""Of a node what decides whether it could hold something when empty."""

_lacking: Memo[Demand, Amount] = Memo(
    SLOTS_REMEMBERED, weigh=lambda one: 1 + len(one.held) + len(one.busy)
)

_unplaced: Memo[Demand, Amount] = Memo(
    SLOTS_REMEMBERED, weigh=lambda one: 1 + len(one.held) + len(one.busy)
)
_never: Memo[Mapping[str, RoleDemand], tuple[Nodes, str]] = Memo(DEMANDS_REMEMBERED)
_largest: Memo[Demand, Amount] = Memo(
    SLOTS_REMEMBERED, weigh=lambda one: 1 + len(one.held) + len(one.busy)
)


def lacking_of(demand: Demand) -> Amount:
    """Return what the replicas of a demand that have no slot yet take together."""
    return _lacking.of(demand, _add_lacking)


def _add_lacking(demand: Demand) -> Amount:
    counts: dict[tuple[str, bool], int] = {}
    for want, index in missing(demand):
        key = (want.role, (want.role, index) in demand.held)
        counts[key] = counts.get(key, 0) + 1
    total = NOTHING
    for (role, has_slot), count in counts.items():
        share = amount_of(demand.roles[role])
        # One that has its slot lacks ports of its generation only.
        total = total.plus(Amount(port_count=share.port_count) if has_slot else share, count)
    return total


def _add_unplaced(demand: Demand) -> Amount:
    counts: dict[str, int] = {}
    for want, index in missing(demand):
        if (want.role, index) not in demand.held:
            counts[want.role] = counts.get(want.role, 0) + 1
    total = NOTHING
    for role, count in counts.items():
        total = total.plus(amount_of(demand.roles[role]), count)
    return total


def free_by_node(state: Admission) -> dict[str, Amount]:
    """Return what the ready nodes have left; ports that rest are not taken off."""
    used = used_now(state)
    return {
        node.name: Amount(
            node.cpu_milli - taken.cpu_milli,
            node.memory_bytes - taken.memory_bytes,
            node.gpu - taken.gpu,
            node.last_port - node.first_port + 1 - taken.port_count,
        )
        for node in state.nodes.values()
        if node.phase is NodePhase.READY
        for taken in (used.get(node.name, NOTHING),)
    }


def sum_of(amounts: Iterable[Amount]) -> Amount:
    """Return the sum."""
    cpu_milli = memory_bytes = gpu = port_count = 0
    for one in amounts:
        cpu_milli += one.cpu_milli
        memory_bytes += one.memory_bytes
        gpu += one.gpu
        port_count += one.port_count
    return Amount(cpu_milli, memory_bytes, gpu, port_count)


def has_enough(state: Admission, demand: Demand, free: Amount) -> bool:
    """Return False when it is plain that a demand does not fit: there is too little in all.

    A demand for more CPU than there is is squeezed in when nobody else has any: of that only
    fitting can tell; and of ports for slots that it has, since these may be on other nodes.
    """
    lacking = _unplaced.of(demand, _add_unplaced)
    short = [field for field in FIELDS if getattr(lacking, field) > max(0, getattr(free, field))]
    return not short or (short == ["cpu_milli"] and _may_be_squeezed(state, demand))


def has_a_node(state: Admission, demand: Demand, free: Iterable[Amount]) -> bool:
    """Return False when it is plain that a demand does not fit: no node holds its largest."""
    largest, nodes = _largest.of(demand, _find_largest), tuple(free)
    short = [
        field
        for field in FIELDS
        if (asked := getattr(largest, field))
        and all(getattr(node, field) < asked for node in nodes)
    ]
    return not short or (short == ["cpu_milli"] and _may_be_squeezed(state, demand))


def _may_be_squeezed(state: Admission, demand: Demand) -> bool:
    there = sum(node.cpu_milli for node in state.nodes.values() if node.phase is NodePhase.READY)
    return total_of(demand.roles.values()).cpu_milli > there


def _find_largest(demand: Demand) -> Amount:
    """Return the most of each that a single replica without a slot takes."""
    roles = {want.role for want, index in missing(demand) if (want.role, index) not in demand.held}
    shares = [amount_of(demand.roles[role]) for role in roles]
    return Amount(*(max((getattr(one, field) for one in shares), default=0) for field in FIELDS))


def why_never(state: Admission, demand: Demand) -> str:
    """Return why the nodes known now could never hold a demand; "" they could."""
    known = _never.get(demand.roles)
    if known is not None and known[0] is state.nodes:
        return known[1]
    if known is not None and _are_alike(known[0], state.nodes):
        sentence = known[1]
    else:
        sentence = unfit_sentence(state, demand.roles.values())
    return _never.put(demand.roles, (state.nodes, sentence))[1]


def _are_alike(before: Nodes, after: Nodes) -> bool:
    """Return whether nodes could hold the same when empty: most are the same objects."""
    return len(before) == len(after) and all(
        (old := before.get(name)) is node or (old is not None and _shape(old) == _shape(node))
        for name, node in after.items()
    )


def _shape(node: Node) -> Shape:
    ports = (node.first_port, node.last_port)
    return (node.phase, node.cpu_milli, node.memory_bytes, node.gpu, ports, node.labels)
