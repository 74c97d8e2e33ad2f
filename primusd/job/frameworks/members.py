"""Which roles of a job form its framework's cluster, and in which order their ranks run."""

from collections.abc import Mapping

from primusd.job.spec import JobSpec

NONE = "none"
SYNCHRONOUS = frozenset({"torch", "tensorflow-multiworker", "jax", "mpi", "xgboost", "horovod"})
"""Frameworks whose trainers wait for each other in every step: none of them restarts alone."""
TENSORFLOW = frozenset({"tensorflow-ps", "tensorflow-multiworker"})

LEADERS = ("chief", "master", "launcher")
"""Roles of these names have the lowest ranks, in this order."""
EVALUATOR = "evaluator"
TENSORBOARD = "tensorboard"
TASK_TYPES: Mapping[str, str] = {
    "chief": "chief",
    "master": "chief",
    "worker": "worker",
    "ps": "ps",
    EVALUATOR: EVALUATOR,
}
"""What TensorFlow calls a role; other roles have no task."""


def members(spec: JobSpec) -> tuple[str, ...]:
    """Return the roles in the cluster of the job's framework, those with the lowest ranks first.

    With ranks, helpers (`success: never`) and evaluators are left out: the others would wait for
    them. Parameter servers and the trainers that `mpirun` starts on are helpers and belong to it.
    A job of the original has every role in its cluster.
    """
    if spec.framework == NONE and not spec.original:
        return ()
    names = [name for name in spec.roles if _is_member(spec, name)]
    return tuple(sorted(names, key=_leads))


def _leads(name: str) -> int:
    return LEADERS.index(name) if name in LEADERS else len(LEADERS)


def _is_member(spec: JobSpec, name: str) -> bool:
    if name in (EVALUATOR, TENSORBOARD):
        return False
    if spec.framework in TENSORFLOW:
        return name in TASK_TYPES
    if spec.framework in ("mpi", NONE):
        return True
    return spec.roles[name].success.kind != "never"


def restart_unit(spec: JobSpec, role: str) -> str:
    """Return what restarts together after a failure in a role, where the job file does not say."""
    if spec.framework not in SYNCHRONOUS or role not in members(spec):
        return "replica"
    return "role" if len(members(spec)) == 1 else "job"


def variable_names(framework: str) -> tuple[str, ...]:
    """Return the variables that a framework's trainers are given, so that a job sets none."""
    return _NAMES.get(framework, ())


_NAMES: Mapping[str, tuple[str, ...]] = {
    "torch": (
        "MASTER_ADDR",
        "MASTER_PORT",
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "ROLE_NAME",
        "ROLE_RANK",
        "ROLE_WORLD_SIZE",
        "TORCHELASTIC_RESTART_COUNT",
        "TORCHELASTIC_RUN_ID",
    ),
    "tensorflow-ps": ("TF_CONFIG",),
    "tensorflow-multiworker": ("TF_CONFIG",),
    "jax": ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"),
    "mpi": (
        "OMPI_MCA_orte_default_hostfile",
        "HYDRA_HOST_FILE",
        "I_MPI_HYDRA_HOST_FILE",
    ),
    "xgboost": (
        "DMLC_TRACKER_URI",
        "DMLC_TRACKER_PORT",
        "DMLC_NUM_WORKER",
        "DMLC_NUM_SERVER",
        "DMLC_ROLE",
        "DMLC_TASK_ID",
    ),
    "horovod": (
        "HOROVOD_HOSTNAME",
        "HOROVOD_RANK",
        "HOROVOD_SIZE",
        "HOROVOD_LOCAL_RANK",
        "HOROVOD_LOCAL_SIZE",
        "HOROVOD_CROSS_RANK",
        "HOROVOD_CROSS_SIZE",
        "HOROVOD_CONTROLLER",
        "HOROVOD_CPU_OPERATIONS",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR",
        "HOROVOD_GLOO_RENDEZVOUS_PORT",
    ),
}
