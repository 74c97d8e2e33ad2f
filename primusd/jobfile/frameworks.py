"""What a framework asks of a job's roles, and the restart unit that follows from it."""

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from primusd.job.frameworks.cluster import MAIN
from primusd.job.frameworks.members import (
    EVALUATOR,
    LEADERS,
    NONE,
    TASK_TYPES,
    TENSORFLOW,
    members,
    restart_unit,
    variable_names,
)
from primusd.job.groups import group_unit, larger_unit
from primusd.job.spec import JobSpec, RoleSpec, waits_of
from primusd.jobfile.document import Path, show_value
from primusd.jobfile.section import Findings, is_mapping

_UNITS = ("replica", "role", "job")


def with_restart_units(spec: JobSpec, root: object) -> JobSpec:
    """Return the spec in which each role that names no restart unit has the one it needs.

    That is its framework's, or that of the group in which it reads an exactlyOnce stream.

    Args:
        spec: As read, with `replica` where the job file is silent.
        root: The document's values, with `defaults` merged into its roles.
    """
    roles = {
        name: role
        if _says_unit(root, name)
        else replace(role, restart=replace(role.restart, unit=_unit(spec, role)))
        for name, role in spec.roles.items()
    }
    return replace(spec, roles=roles)


def _unit(spec: JobSpec, role: RoleSpec) -> str:
    return larger_unit(restart_unit(spec, role.name), group_unit(spec, role))


def _says_unit(root: object, name: str) -> bool:
    value = root
    for key in ("roles", name, "restart"):
        value = value.get(key) if is_mapping(value) else None
    return is_mapping(value) and "unit" in value


def check_framework(findings: Findings, spec: JobSpec) -> None:
    """Note what of the roles does not fit the job's framework."""
    if spec.framework == NONE or not spec.roles:
        return
    names = members(spec)
    if spec.framework in TENSORFLOW:
        _check_tensorflow(findings, spec)
    elif not names:
        findings.add(
            ("framework",),
            found=spec.framework,
            hint="no role takes part: helpers (success: never) and evaluators are left out",
        )
    if spec.framework == "mpi":
        _check_mpi(findings, spec)
    _check_start(findings, spec, names)
    _check_waits(findings, spec, names)
    for name, role in spec.roles.items():
        if name in names or (name == EVALUATOR and spec.framework in TENSORFLOW):
            _check_variables(findings, spec, role)
        _check_unit(findings, spec, role)
    _check_ports(findings, spec, names)


def _check_tensorflow(findings: Findings, spec: JobSpec) -> None:
    tasks = _by_task(spec)
    for name, role in spec.roles.items():
        if name not in TASK_TYPES and role.success.kind != "never":
            findings.add(
                ("roles", name),
                found=show_value(name),
                allowed=tuple(TASK_TYPES),
                hint="TensorFlow has no other task; a role with success: never may have any name",
                of_key=True,
            )
    for task, word in (("chief", "chief"), (EVALUATOR, "evaluator")):
        if sum(role.replicas for role in tasks.get(task, ())) > 1:
            at = tasks[task][-1].name
            findings.add(
                ("roles", at),
                found=f"more than one {word}",
                allowed=f"one {word}, of one replica",
                hint="chief and master are both the chief" if task == "chief" else "",
                of_key=True,
            )
    if spec.framework == "tensorflow-ps":
        _need(findings, spec, tasks, ("chief", "worker", "ps"))
        _check_sizes(findings, tasks)
        for role in tasks.get("ps", ()):
            if role.success.kind != "never":
                findings.warn(
                    ("roles", role.name, "success"),
                    "a parameter server never ends by itself: without success: never "
                    "the job does not end either",
                )
        return
    if not {"chief", "worker"} & set(tasks):
        _need(findings, spec, tasks, ("worker",))
    if "ps" in tasks:
        findings.add(
            ("roles", "ps"),
            found="ps",
            hint="tensorflow-multiworker has no parameter servers; use framework: tensorflow-ps",
            of_key=True,
        )


def _check_sizes(findings: Findings, tasks: Mapping[str, list[RoleSpec]]) -> None:
    """Say that the chief of parameter servers keeps the cluster that it began with."""
    for role in (*tasks.get("worker", ()), *tasks.get("ps", ())):
        if role.minimum < role.replicas:
            findings.warn(
                ("roles", role.name, "replicas"),
                "the chief uses those that were there when it began; who joins later is used "
                "only when the chief begins anew",
            )


def _by_task(spec: JobSpec) -> Mapping[str, list[RoleSpec]]:
    tasks: dict[str, list[RoleSpec]] = {}
    for name, role in spec.roles.items():
        if name in TASK_TYPES:
            tasks.setdefault(TASK_TYPES[name], []).append(role)
    return tasks


def _need(findings: Findings, spec: JobSpec, tasks: Iterable[str], needed: tuple[str, ...]) -> None:
    missing = [task for task in needed if task not in tasks]
    if missing:
        findings.add(
            ("roles",),
            found=", ".join(spec.roles),
            allowed=f"{', '.join(needed)}, and evaluator where one is wanted",
            hint=f"{spec.framework} needs a role {' and a role '.join(missing)}",
        )


def _check_mpi(findings: Findings, spec: JobSpec) -> None:
    leaders = [name for name in members(spec) if name in LEADERS]
    count = sum(spec.roles[name].replicas for name in leaders)
    if count > 1:
        findings.add(
            ("roles", leaders[-1]),
            found=f"{count} replicas that run mpirun",
            allowed="one",
            of_key=True,
        )


def _check_start(findings: Findings, spec: JobSpec, names: tuple[str, ...]) -> None:
    """Everybody's address goes to everybody, so nobody begins before all are there."""
    if spec.policy == "dynamic":
        findings.add(
            ("schedule", "policy"),
            found="dynamic",
            allowed=("gang", "ordered"),
            hint=f"{spec.framework} needs the addresses of all before the first begins",
        )
    left_out = [name for name in names if spec.gang_roles and name not in spec.gang_roles]
    if left_out:
        findings.add(
            ("schedule", "roles"),
            found=", ".join(spec.gang_roles),
            allowed=f"{', '.join(names)}, all of which {spec.framework} connects",
            hint=f"add {' and '.join(left_out)}",
        )


def _check_waits(findings: Findings, spec: JobSpec, names: tuple[str, ...]) -> None:
    """Nobody of a cluster is done before the others have begun."""
    for name in names:
        for other, gate in waits_of(spec, name).items():
            if gate == "completed" and other in names:
                findings.add(
                    ("roles", name),
                    found=f"{name} waits until {other} is completed",
                    allowed="started or ready, between roles of one cluster",
                    hint=f"{other} needs {name} beside it, so it would wait for ever",
                    of_key=True,
                )


def _check_variables(findings: Findings, spec: JobSpec, role: RoleSpec) -> None:
    path: Path = ("roles", role.name, "env")
    for variable in variable_names(spec.framework):
        if variable in role.env:
            findings.add(
                (*path, variable),
                found=show_value(variable),
                hint=f"framework: {spec.framework} sets it; leave it out, "
                "or set all of them yourself with framework: none",
                of_key=True,
            )


def _check_unit(findings: Findings, spec: JobSpec, role: RoleSpec) -> None:
    wanted = restart_unit(spec, role.name)
    if _UNITS.index(role.restart.unit) < _UNITS.index(wanted):
        findings.warn(
            ("roles", role.name, "restart", "unit"),
            f"{role.restart.unit} leaves the others of the cluster waiting for what restarts; "
            f"{wanted} is what {spec.framework} needs",
        )


def _check_ports(findings: Findings, spec: JobSpec, names: tuple[str, ...]) -> None:
    """Note the roles that others have to reach and that have no port `main`."""
    needed = names if spec.framework in TENSORFLOW else names[:1]
    for name in () if spec.framework == "mpi" else needed:
        if MAIN not in spec.roles[name].ports:
            findings.add(
                ("roles", name, "ports"),
                found=", ".join(spec.roles[name].ports) or "no port",
                allowed=f"a port named {MAIN}",
                hint=f"{spec.framework} finds {name} at it",
            )
