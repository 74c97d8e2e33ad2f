"""Where XGBoost's tracker is, and who asks it."""

from primusd.executor.protocol import StartVariables
from primusd.job.frameworks.cluster import Cluster, Maker, Seat, by_seat


def xgboost(cluster: Cluster) -> Maker:
    """Return the maker of the tracker's variables; rank 0 runs the tracker on its own `main`.

    Source: https://xgboost.readthedocs.io/en/stable/python/python_api.html, "collective".
    """
    size = str(len(cluster.seats))

    def variables(seat: Seat) -> StartVariables:
        first = cluster.seats[0]
        return StartVariables(
            {
                "DMLC_TRACKER_URI": first.host,
                "DMLC_TRACKER_PORT": str(first.port),
                "DMLC_NUM_WORKER": size,
                "DMLC_NUM_SERVER": "0",
                "DMLC_ROLE": "worker",
                "DMLC_TASK_ID": str(seat.rank),
            }
        )

    return by_seat(cluster, variables)
