"""The Node document (docs/api-documents.md §6)."""

from msgspec import UNSET, UnsetType

from primusd.admission.model import Node
from primusd.admission.scoring import Load
from primusd.admission.usage import NOTHING, used_now
from primusd.core import World
from primusd.views import cluster_documents as documents
from primusd.views.drains import drain_of, job_name
from primusd.views.live import NOTHING_LIVE, Live
from primusd.views.replicas import known_count
from primusd.views.times import known_time, rfc3339


def node_document(node: Node, world: World, live: Live = NOTHING_LIVE) -> documents.Node:
    """Return the document of a node of admission."""
    used = used_now(world.admission).get(node.name, NOTHING)
    return documents.Node(
        name=node.name,
        launcher=node.launcher,
        resource_version=str(node.changed_revision),
        phase=node.phase.value,
        since=rfc3339(node.since_ms),
        boot_id=node.boot_id,
        version=node.version,
        capacity=documents.Amounts(
            cpu_milli=node.cpu_milli,
            memory_bytes=node.memory_bytes,
            gpus=node.gpu,
            ports=max(0, node.last_port - node.first_port + 1),
        ),
        used=documents.Amounts(
            cpu_milli=used.cpu_milli,
            memory_bytes=used.memory_bytes,
            gpus=used.gpu,
            ports=used.port_count,
        ),
        labels=node.labels,
        faults=tuple(
            documents.NodeFault(at=rfc3339(one.at_ms), cause=one.cause, attempt=one.attempt)
            for one in node.faults
        ),
        excluded_until=known_time(node.excluded_until_ms),
        excluded_reason=node.excluded_text or UNSET,
        kept_off=tuple(
            documents.KeptOff(job=job_name(world, job), until=rfc3339(until_ms))
            for job, until_ms in sorted(node.shunned.items())
        )
        or UNSET,
        load=_load(node.load),
        drain=drain_of(node, world),
        usage=_usage(node.name, live),
        attempts=sum(
            held.node == node.name
            for demand in world.admission.demands.values()
            for held in demand.held.values()
        ),
    )


def _load(load: Load) -> documents.NodeLoad | UnsetType:
    if load == Load():
        return UNSET
    return documents.NodeLoad(cpu_milli=load.cpu_milli, memory_bytes=load.memory_bytes)


def _usage(name: str, live: Live) -> documents.NodeUsage | UnsetType:
    usage = live.nodes.get(name)
    if usage is None:
        return UNSET
    return documents.NodeUsage(
        at=rfc3339(usage.at_ms),
        cpu_percent=known_count(usage.cpu_percent),
        memory_free_bytes=known_count(usage.memory_free_bytes),
        disk_free_bytes=known_count(usage.disk_free_bytes),
        net_in_bytes_per_s=known_count(usage.net_in_bytes_per_s),
        net_out_bytes_per_s=known_count(usage.net_out_bytes_per_s),
    )
