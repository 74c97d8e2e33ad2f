"""Host files for `mpirun`: a line for each host, with as many slots as it has trainers."""

from collections import Counter

from primusd.executor.protocol import StartVariables
from primusd.job.frameworks.cluster import Cluster, Maker, Seat, by_seat
from primusd.job.frameworks.members import LEADERS


def mpi(cluster: Cluster) -> Maker:
    """Return the maker of the host files, the same ones for everybody.

    A role that leads runs `mpirun` and has no slot; without one, every replica has.

    Source: the host file syntax of Open MPI (`host slots=n`) and of Hydra, which MPICH and Intel
    MPI start with (`host:n`).
    """
    working = [seat for seat in cluster.seats if seat.role not in LEADERS] or cluster.seats
    slots = Counter(seat.host for seat in working)
    open_mpi = "".join(f"{host} slots={count}\n" for host, count in slots.items())
    hydra = "".join(f"{host}:{count}\n" for host, count in slots.items())
    variables = StartVariables(
        files={
            "PRIMUS_HOST_FILE": open_mpi,
            "OMPI_MCA_orte_default_hostfile": open_mpi,
            "HYDRA_HOST_FILE": hydra,
            "I_MPI_HYDRA_HOST_FILE": hydra,
        }
    )

    def everybody(_: Seat) -> StartVariables:
        return variables

    return by_seat(cluster, everybody)
