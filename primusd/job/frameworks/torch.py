"""PyTorch's `env://` rendezvous, with what `torchrun` would set besides."""

from primusd.executor.protocol import StartVariables
from primusd.job.frameworks.cluster import Cluster, Maker, Seat, by_seat


def torch(cluster: Cluster) -> Maker:
    """Return the maker of `MASTER_ADDR`, `RANK` and the like.

    Source: https://docs.pytorch.org/docs/stable/elastic/run.html, "Environment Variables".
    """
    size = str(len(cluster.seats))

    def variables(seat: Seat) -> StartVariables:
        first = cluster.seats[0]
        return StartVariables(
            {
                "MASTER_ADDR": first.host,
                "MASTER_PORT": str(first.port),
                "RANK": str(seat.rank),
                "WORLD_SIZE": size,
                "LOCAL_RANK": str(seat.local_rank),
                "LOCAL_WORLD_SIZE": str(cluster.group_sizes[seat.group]),
                "GROUP_RANK": str(seat.group),
                "GROUP_WORLD_SIZE": str(len(cluster.group_sizes)),
                "ROLE_NAME": seat.role,
                "ROLE_RANK": str(seat.place),
                "ROLE_WORLD_SIZE": str(cluster.role_sizes[seat.role]),
                "TORCHELASTIC_RESTART_COUNT": str(cluster.generation - 1),
                "TORCHELASTIC_RUN_ID": cluster.run_id,
            }
        )

    return by_seat(cluster, variables)
