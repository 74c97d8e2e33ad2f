"""What the original puts into a trainer's environment, for job files that were converted."""

import json
from collections.abc import Iterable, Mapping

from primusd.executor.protocol import StartVariables
from primusd.job.frameworks.cluster import NOTHING, Cluster, Maker
from primusd.job.spec import JobSpec

TF_CONFIG = "TF_CONFIG"


def original_environment(
    spec: JobSpec, role: str, index: int, *, ports: Iterable[int] = ()
) -> Mapping[str, str]:
    """Return the original's variables of one trainer.

    Args:
        spec: Of the job.
        role: One of its roles.
        index: Of the replica.
        ports: Allotted to the replica, in the order of the role's ports.

    Source: EnvPlugin and RoleInfo of bytedance/primus; a role with `ps` in its name is one.
    """
    variables = {
        "EXECUTOR_ID": str(index),
        "TOTAL_ORACLES": str(spec.roles[role].replicas),
        "ROLES_LIST": ",".join(spec.roles),
        f"NUM_OF_PRIMUS_{role}": str(spec.roles[role].replicas),
        "PRIMUS_ROLE_CATEGORY": "ps" if "ps" in role else "worker",
    }
    listed = ",".join(str(port) for port in ports)
    return variables | ({"PORT_LIST": listed} if listed else {})


def original_maker(cluster: Cluster) -> Maker:
    """Return what makes `TF_CONFIG` as the original has it: with the names of all roles.

    A job of one replica has none, and a role that sets its own keeps it. An evaluator stands in
    nobody's `cluster`, where training would wait for it, and nobody stands there as "".

    Source: TfConfigPlugin of bytedance/primus.
    """
    spec = cluster.spec
    addresses: dict[str, list[str]] = {}
    for seat in cluster.seats:
        addresses.setdefault(seat.role, []).append(seat.address)
    is_alone = sum(role.replicas for role in spec.roles.values()) == 1

    def variables(role: str, index: int) -> StartVariables:
        if is_alone or TF_CONFIG in spec.roles[role].env:
            return NOTHING
        config = {"cluster": addresses, "task": {"type": role, "index": index}}
        return StartVariables({TF_CONFIG: json.dumps(config, separators=(",", ":"))})

    return variables
