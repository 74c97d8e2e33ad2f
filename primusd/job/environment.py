"""The environment of a trainer, as far as it is known before it starts (docs/config.md §5)."""

import json
from collections.abc import Mapping

from primusd.job.ids import AttemptId
from primusd.job.spec import JobSpec, RoleSpec


def environment(
    spec: JobSpec,
    attempt: AttemptId,
    *,
    cluster: str,
    generation: int,
    host: str,
    ports: Mapping[str, int],
    version: str,
    extra: Mapping[str, str] | None = None,
    sizes: Mapping[str, int] | None = None,
) -> dict[str, str]:
    """Return the job's variables of one attempt, those of primusd last.

    The executor adds what only it knows: PRIMUS_SOCKET, PRIMUS_PEERS_FILE, PRIMUS_STOP_FILE,
    PRIMUS_WORKDIR, PRIMUS_ACK_FD, TMPDIR, and PRIMUS_FEED.

    Args:
        spec: Of the job.
        attempt: Of one of its replicas.
        cluster: Name of the cluster.
        generation: Of the gang, from 1.
        host: As peers call the replica.
        ports: By name, as allotted; one that is still 0 is left to the executor.
        version: Of primusd.
        extra: Variables of a framework or of the original; they win over the job's own.
        sizes: Replicas of each role as it was scaled; None as the job file says.
    """
    role = spec.roles[attempt.role]
    known = {name: ports[name] for name in role.ports if ports.get(name)}
    return {
        **role.env,
        **(extra or {}),
        "PRIMUS_JOB": spec.name,
        "PRIMUS_JOB_UID": attempt.job,
        "PRIMUS_NAMESPACE": spec.namespace,
        "PRIMUS_CLUSTER": cluster,
        "PRIMUS_ROLE": attempt.role,
        "PRIMUS_INDEX": str(attempt.index),
        "PRIMUS_REPLICA": attempt.replica,
        "PRIMUS_ATTEMPT": str(attempt.attempt),
        "PRIMUS_GENERATION": str(generation),
        **size_variables(attempt.role, sizes or _sizes(spec)),
        "PRIMUS_HOST": host,
        **port_variables(known),
        **_feed(role),
        **_checkpoints(spec),
        "PRIMUS_VERSION": version,
    }


def port_variables(ports: Mapping[str, int]) -> dict[str, str]:
    """Return PRIMUS_PORT, the first, and PRIMUS_PORTS, all by name; nothing without a port."""
    if not ports:
        return {}
    return {
        "PRIMUS_PORT": str(next(iter(ports.values()))),
        "PRIMUS_PORTS": ",".join(f"{name}={number}" for name, number in ports.items()),
    }


def size_variables(role: str, sizes: Mapping[str, int]) -> dict[str, str]:
    """Return how many replicas the trainer's own role has, and all roles by name."""
    return {
        "PRIMUS_REPLICAS": str(sizes[role]),
        "PRIMUS_ROLES": json.dumps(dict(sizes), separators=(",", ":")),
    }


def _sizes(spec: JobSpec) -> Mapping[str, int]:
    return {name: role.replicas for name, role in spec.roles.items()}


def _feed(role: RoleSpec) -> dict[str, str]:
    """Return the streams by name, and how their rows come; a role without data has neither."""
    if not role.data:
        return {}
    streams = ",".join(reading.stream for reading in role.data)
    feed = {"sdk": "socket", "http": "socket"}.get(role.feed, role.feed)
    return {"PRIMUS_STREAMS": streams, "PRIMUS_FEED": feed}


def _checkpoints(spec: JobSpec) -> dict[str, str]:
    """Return where checkpoints go and how many stay; without a path the SDK has its own."""
    path = {"PRIMUS_CHECKPOINT_PATH": spec.checkpoint.path} if spec.checkpoint.path else {}
    return {**path, "PRIMUS_CHECKPOINT_KEEP": str(spec.checkpoint.keep)}
