"""TensorFlow's `TF_CONFIG`, for both strategies."""

import json

from primusd.executor.protocol import StartVariables
from primusd.job.frameworks.cluster import NOTHING, Cluster, Maker
from primusd.job.frameworks.members import EVALUATOR, TASK_TYPES


def tensorflow(cluster: Cluster) -> Maker:
    """Return the maker of `TF_CONFIG`.

    An evaluator is a task and stands in nobody's `cluster`: training would wait for it. A task's
    index is its place in that list, which has no holes.

    Source: https://www.tensorflow.org/guide/distributed_training, "Setting up the TF_CONFIG".
    """
    addresses: dict[str, list[str]] = {}
    for seat in cluster.seats:
        addresses.setdefault(TASK_TYPES[seat.role], []).append(seat.address)
    whole = json.dumps(addresses, separators=(",", ":"))

    def variables(role: str, index: int) -> StartVariables:
        seat = cluster.by_replica.get((role, index))
        if seat is None and role != EVALUATOR:
            return NOTHING
        place = index if seat is None else seat.place
        task = json.dumps({"type": TASK_TYPES[role], "index": place}, separators=(",", ":"))
        return StartVariables({"TF_CONFIG": f'{{"cluster":{whole},"task":{task}}}'})

    return variables
