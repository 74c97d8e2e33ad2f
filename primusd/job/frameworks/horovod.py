"""Horovod with its gloo controller, as `horovodrun` would start it."""

from primusd.executor.protocol import StartVariables
from primusd.job.frameworks.cluster import Cluster, Maker, Seat, by_seat


def horovod(cluster: Cluster) -> Maker:
    """Return the maker of Horovod's variables; rank 0 runs the rendezvous server on its `main`.

    The cross rank is a host's number among those that have a process of the same local rank.

    Source: `horovod/runner/gloo_run.py` and `horovod/runner/common/util/hosts.py` of Horovod.
    """
    size = str(len(cluster.seats))
    sizes = cluster.group_sizes
    crosses = _crosses(sizes)
    cross_sizes = [sum(1 for one in sizes if one > local) for local in range(max(sizes, default=0))]

    def variables(seat: Seat) -> StartVariables:
        first = cluster.seats[0]
        return StartVariables(
            {
                "HOROVOD_HOSTNAME": seat.host,
                "HOROVOD_RANK": str(seat.rank),
                "HOROVOD_SIZE": size,
                "HOROVOD_LOCAL_RANK": str(seat.local_rank),
                "HOROVOD_LOCAL_SIZE": str(sizes[seat.group]),
                "HOROVOD_CROSS_RANK": str(crosses[seat.group][seat.local_rank]),
                "HOROVOD_CROSS_SIZE": str(cross_sizes[seat.local_rank]),
                "HOROVOD_CONTROLLER": "gloo",
                "HOROVOD_CPU_OPERATIONS": "gloo",
                "HOROVOD_GLOO_RENDEZVOUS_ADDR": first.host,
                "HOROVOD_GLOO_RENDEZVOUS_PORT": str(first.port),
            }
        )

    return by_seat(cluster, variables)


def _crosses(sizes: tuple[int, ...]) -> list[list[int]]:
    """Return the cross rank by group and local rank."""
    before: list[int] = []
    """By local rank: groups so far that have it."""
    found = []
    for size in sizes:
        before += [0] * (size - len(before))
        found.append(before[:size])
        for local in range(size):
            before[local] += 1
    return found
