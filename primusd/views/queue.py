"""The queue as admission has it at one moment: added up once, asked for each job that is shown."""

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from primusd.job import fitting
from primusd.job.admission import in_order
from primusd.job.admission_model import Admission, Demand
from primusd.job.phases import DemandPhase, NodePhase


class Queue(Struct, frozen=True):
    """What decides who waits, and for what."""

    admission: Admission
    ahead: Mapping[str, int]
    """Of each job that waits: how many come before it."""
    free: fitting.Amount
    """What the ready nodes have free together."""
    ready_count: int
    """Of nodes."""
    resting_count: int = 0
    """Of ports on ready nodes that are kept back for a while after their last use."""


def queue_of(admission: Admission) -> Queue:
    """Return the queue of admission as it is."""
    ahead = {demand.job: place for place, demand in enumerate(in_order(admission))}
    used = fitting.used_by_node(admission.demands.values(), admission)
    free, ready_count, resting_count = fitting.Amount(), 0, 0
    for node in admission.nodes.values():
        if node.phase is NodePhase.READY:
            ready_count += 1
            resting_count += len(node.resting_ports)
            ports = node.last_port - node.first_port + 1 - len(node.resting_ports)
            free = free.plus(fitting.Amount(node.cpu_milli, node.memory_bytes, node.gpu, ports))
            free = free.plus(used.get(node.name, fitting.Amount()), -1)
    return Queue(admission, ahead, free, ready_count, resting_count)


def with_demand(admission: Admission, demand: Demand) -> Queue:
    """Return the queue as it would be with one more demand that has just come."""
    queue = queue_of(admission)
    before = sum(one.priority >= demand.priority for one in in_order(admission))
    return replace(queue, ahead={**queue.ahead, demand.job: before})


def is_waiting(demand: Demand) -> bool:
    """Return whether a demand waits for something it does not hold yet."""
    return demand.phase is DemandPhase.WAITING and not fitting.is_satisfied(demand)
