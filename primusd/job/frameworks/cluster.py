"""The cluster of a job as a framework sees it: who is in it, with which rank, and on which host.

Ranks follow the members' roles in the order of `members`, then the index. Only replicas that are
there have one, so there are no holes: an elastic role that began with three of sixteen has three.
"""

from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from primusd.executor.protocol import StartVariables
from primusd.job.frameworks.members import members
from primusd.job.peers import Member
from primusd.job.spec import JobSpec

MAIN = "main"
"""Name of the port at which a framework finds a replica."""
NOTHING = StartVariables()

Maker = Callable[[str, int], StartVariables]
"""What makes the variables of one replica, by role and index."""


class Seat(Struct, frozen=True):
    """A replica in the cluster."""

    role: str
    index: int
    """In its role."""
    host: str
    port: int
    """Its `main`; 0 it has none."""
    rank: int
    place: int
    """Among the role's replicas that are there, from 0: its index, but for holes."""
    local_rank: int
    """Among the replicas of its group."""
    group: int
    """Of its host, by the lowest rank there. Replicas with GPUs are groups of their own: each
    sees its own GPUs only, so each has a device 0.
    """

    @property
    def address(self) -> str:
        """`host:port`, with an IPv6 address in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class Cluster(Struct, frozen=True):
    """All replicas that are there, the lowest rank first."""

    spec: JobSpec
    run_id: str
    """`<uid>.<generation>`: another one each time that the cluster forms anew."""
    generation: int
    seats: tuple[Seat, ...]
    by_replica: Mapping[tuple[str, int], Seat]
    group_sizes: tuple[int, ...]
    """By group."""
    role_sizes: Mapping[str, int]
    """Replicas that are there of each role in the cluster."""


def make_cluster(spec: JobSpec, uid: str, *, generation: int, present: Iterable[Member]) -> Cluster:
    """Return the cluster of a generation.

    Args:
        spec: Of the job.
        uid: Of the job.
        generation: Of the peers document.
        present: Who stands in it, in any order.
    """
    roles = {name: number for number, name in enumerate(members(spec))}
    there = [one for one in present if one.role in roles]
    there.sort(key=lambda one: (roles[one.role], one.index))
    has_gpus = any(spec.roles[name].resources.gpu for name in roles)
    groups: dict[object, int] = {}
    group_sizes: list[int] = []
    role_sizes = dict.fromkeys(roles, 0)
    seats = []
    for rank, one in enumerate(there):
        group = groups.setdefault(rank if has_gpus else one.host, len(groups))
        if group == len(group_sizes):
            group_sizes.append(0)
        seats.append(
            Seat(
                one.role,
                one.index,
                one.host,
                one.ports.get(MAIN, 0),
                rank,
                role_sizes[one.role],
                group_sizes[group],
                group,
            )
        )
        role_sizes[one.role] += 1
        group_sizes[group] += 1
    return Cluster(
        spec,
        f"{uid}.{generation}",
        generation,
        tuple(seats),
        {(one.role, one.index): one for one in seats},
        tuple(group_sizes),
        role_sizes,
    )


def by_seat(cluster: Cluster, of_seat: Callable[[Seat], StartVariables]) -> Maker:
    """Return a maker that gives variables to the replicas of the cluster, and to no other."""

    def made(role: str, index: int) -> StartVariables:
        seat = cluster.by_replica.get((role, index))
        return NOTHING if seat is None else of_seat(seat)

    return made
