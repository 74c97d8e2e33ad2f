"""What the original puts into a trainer's environment, for job files that were converted."""

from collections.abc import Iterable, Mapping

from primusd.job.spec import JobSpec


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
