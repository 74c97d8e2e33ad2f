"""The Peers document: who runs beside whom, and where (docs/api-documents.md §3)."""

from collections.abc import Mapping

from msgspec import UNSET, Struct, UnsetType

from primusd.job.frameworks.cluster import make_cluster
from primusd.job.frameworks.members import NONE
from primusd.job.model import Job
from primusd.job.peers import members_of
from primusd.job.run_order import peers_of


class _Document(Struct, frozen=True, kw_only=True, rename="camel"):
    """A JSON object with keys in camel case."""


class Peer(_Document, frozen=True, kw_only=True):
    """A replica that was told to start, or has its address and will be."""

    index: int
    host: str
    ports: Mapping[str, int]
    rank: int | UnsetType = UNSET
    """In its framework's cluster; absent: it takes no part, or there is no framework."""


class Peers(_Document, frozen=True, kw_only=True, tag_field="kind", tag="Peers"):
    """Who is in a job now: what its trainers find in `PRIMUS_PEERS_FILE`, with ranks."""

    job: str
    job_uid: str
    namespace: str
    framework: str
    generation: int
    """0: nobody was told to start yet."""
    revision: int
    """Within the generation: another one whenever somebody comes, goes or moves."""
    roles: Mapping[str, tuple[Peer, ...]]


def peers_view(job: Job) -> Peers:
    """Return the document of the newest peers."""
    spec, peers = job.spec, job.peers
    found = members_of(peers.inline or peers_of(job)) if peers.generation else ()
    cluster = make_cluster(spec, job.uid, generation=peers.generation, present=found)
    roles: dict[str, list[Peer]] = {}
    for one in found:
        seat = cluster.by_replica.get((one.role, one.index))
        rank = UNSET if seat is None or spec.framework == NONE else seat.rank
        peer = Peer(index=one.index, host=one.host, ports=dict(one.ports), rank=rank)
        roles.setdefault(one.role, []).append(peer)
    return Peers(
        job=spec.name,
        job_uid=job.uid,
        namespace=spec.namespace,
        framework=spec.framework,
        generation=peers.generation,
        revision=peers.revision,
        roles={name: tuple(ones) for name, ones in roles.items()},
    )
