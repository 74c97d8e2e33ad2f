"""What `jax.distributed.initialize` needs; of these it reads only the address by itself."""

from primusd.executor.protocol import StartVariables
from primusd.job.frameworks.cluster import Cluster, Maker, Seat, by_seat


def jax(cluster: Cluster) -> Maker:
    """Return the maker of the coordinator's address and of each process's number.

    Source: https://docs.jax.dev/en/latest/multi_process.html.
    """
    size = str(len(cluster.seats))

    def variables(seat: Seat) -> StartVariables:
        return StartVariables(
            {
                "JAX_COORDINATOR_ADDRESS": cluster.seats[0].address,
                "JAX_NUM_PROCESSES": size,
                "JAX_PROCESS_ID": str(seat.rank),
            }
        )

    return by_seat(cluster, variables)
