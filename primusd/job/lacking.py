"""What a demand still lacks, and what the ready nodes have left for it."""

from collections.abc import Iterable

from primusd.job.admission_model import Admission, Demand, Node
from primusd.job.fitting import missing, total_of
from primusd.job.memo import Memo
from primusd.job.phases import NodePhase
from primusd.job.rooms import Amount
from primusd.job.usage import NOTHING, amount_of, used_now

FIELDS = ("cpu_milli", "memory_bytes", "gpu", "port_count")
SLOTS_REMEMBERED = 200_000

_lacking: Memo[Demand, Amount] = Memo(
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


def capacity_of(node: Node) -> Amount:
    """Return what a node has."""
    ports = node.last_port - node.first_port + 1
    return Amount(node.cpu_milli, node.memory_bytes, node.gpu, ports)


def free_by_node(state: Admission) -> dict[str, Amount]:
    """Return what the ready nodes have left; ports that rest are not taken off."""
    used = used_now(state)
    return {
        node.name: capacity_of(node).plus(used.get(node.name, NOTHING), -1)
        for node in state.nodes.values()
        if node.phase is NodePhase.READY
    }


def ready_capacity(state: Admission) -> Amount:
    """Return what the ready nodes have together."""
    return sum_of(
        capacity_of(node) for node in state.nodes.values() if node.phase is NodePhase.READY
    )


def sum_of(amounts: Iterable[Amount]) -> Amount:
    """Return the sum."""
    total = NOTHING
    for one in amounts:
        total = total.plus(one)
    return total


def has_enough(state: Admission, demand: Demand, lacking: Amount, free: Amount) -> bool:
    """Return False when it is plain that a demand does not fit: there is too little in all.

    A demand for more CPU than there is is squeezed in when nobody else has any: of that only
    fitting can tell.
    """
    short = [field for field in FIELDS if getattr(lacking, field) > getattr(free, field)]
    if short == ["cpu_milli"] and lacking.cpu_milli:
        return total_of(demand.roles.values()).cpu_milli > ready_capacity(state).cpu_milli
    return not any(getattr(lacking, field) for field in short)
