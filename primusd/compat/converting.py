"""An original job file in the form of ours, with what it means there (docs/original.md)."""

import posixpath
from collections.abc import Mapping

from msgspec import Struct

from primusd.compat.datasources import convert_input
from primusd.compat.draft import Draft
from primusd.compat.failover import convert_attempts, convert_failover
from primusd.compat.original import Fields, Note, Path, Report, Wrong
from primusd.compat.schedules import Policy, is_left_out, put_replicas, put_schedule, read_policy
from primusd.job.labels import nearest_label

API_VERSION = "primus/v1"
ENV_RESERVED = "PRIMUS_"
STREAM = "default"


class Converted(Struct, frozen=True):
    """A job file in our form, and what has to be said about it."""

    document: Mapping[str, object]
    notes: tuple[Note, ...]
    """Fields without effect, and names that were mapped."""
    refused: tuple[Note, ...]
    """What it asks for, has no place in our form, and is not carried out."""
    wrong: tuple[Wrong, ...]
    sources: Mapping[Path, Path]
    """Path in our form to the path in the original that it came from."""


def convert(root: object) -> Converted:
    """Return an original job file in our form; nothing of it is dropped in silence."""
    report = Report()
    draft = Draft()
    job = Fields(report, root, ())
    draft.put(("apiVersion",), API_VERSION, ())
    _name(job, draft)
    draft.put(("original",), value=True, source=())
    _queue(job)
    _files(job, draft)
    grace_min = job.number("gracefulShutdownTimeoutMin")
    policy = read_policy(job)
    roles = _roles(job, policy, draft)
    if grace_min:
        for role in roles:
            source = job.at("gracefulShutdownTimeoutMin")
            draft.put(("roles", role, "stop", "grace"), f"{grace_min}m", source)
    put_schedule(policy, roles, draft)
    _data(job, draft)
    job.report_rest()
    return Converted(
        draft.document,
        tuple(report.notes),
        tuple(report.refused),
        tuple(report.wrong),
        draft.sources,
    )


def _name(job: Fields, draft: Draft) -> None:
    name = job.text("name")
    draft.put(("name",), _label(job, "name", name), job.at("name"))


def _label(fields: Fields, field: str, name: str) -> str:
    """Return a DNS label for a name, and say so when it is another."""
    mapped = nearest_label(name)
    if mapped != name and mapped:
        fields.report.note(
            fields.at(field), f"{name} is called {mapped} here: names are DNS labels"
        )
    return mapped or name


def _queue(job: Fields) -> None:
    queue = job.text("queue")
    if queue not in ("", "default"):
        job.report.note(job.at("queue"), "has no effect: this build has one queue, called default")


def _files(job: Fields, draft: Draft) -> None:
    files: list[str] = []
    for index, written in enumerate(job.texts("files")):
        path, _, alias = written.partition("#")
        if alias and alias != posixpath.basename(path):
            job.report.note((*job.at("files"), index), f"lies under its own name, not as {alias}")
        files.append(path)
        draft.sources["files", index] = (*job.at("files"), index)
    if files:
        draft.put(("files",), files, job.at("files"))


def _roles(job: Fields, policy: Policy, draft: Draft) -> dict[str, Fields]:
    """Convert every role; return them by their names here."""
    roles: dict[str, Fields] = {}
    percents: dict[str, int] = {}
    begins_anew = False
    job_env = job.pairs("env")
    for role in job.messages("role"):
        name = _role_name(role, roles)
        is_unnamed = is_left_out(policy, role.text("roleName"))
        if role.number("num") == 0 or is_unnamed:
            why = "is not named by the order of roles" if is_unnamed else "has num 0"
            role.report.note(role.path, f"{name} {why} and is left out")
            for field in tuple(role.names):
                role.take(field)
            continue
        roles[name] = role
        begins_anew |= _role(role, name, job, job_env, draft)
        put_replicas(role, ("roles", name), policy, draft)
        percents[name] = role.number("successPercent")
        role.report_rest()
    convert_attempts(job, draft, is_asked=begins_anew)
    _success(roles, percents, draft)
    if sum(role.number("num") for role in roles.values()) > 1:
        job.report.note(
            job.at("role"),
            "TF_CONFIG is not set in this build; the addresses are in PRIMUS_PEERS_FILE",
        )
    if not roles:
        job.report.mistake(job.at("role"), hint="the file has no role with replicas")
    return roles


def _role_name(role: Fields, taken: Mapping[str, Fields]) -> str:
    name = _label(role, "roleName", role.text("roleName"))
    if name not in taken:
        return name
    number = 2
    while f"{name}-{number}" in taken:
        number += 1
    role.report.note(role.at("roleName"), f"is called {name}-{number} here: the name is taken")
    return f"{name}-{number}"


def _role(role: Fields, name: str, job: Fields, job_env: Mapping[str, str], draft: Draft) -> bool:
    """Convert a role; return whether the whole job begins anew when its budget is used up."""
    path: Path = ("roles", name)
    draft.sources[path] = role.path
    command = role.text("command")
    # The original gives the line to bash; a text here would go to sh.
    line: object = ["bash", "-c", command] if command.strip() else ""
    draft.put((*path, "command"), line, role.at("command"))
    for index in range(3):
        draft.sources[*path, "command", index] = role.at("command")
    _resources(role, path, draft)
    _env(role, path, job, job_env, draft)
    ports = role.number("portNum")
    if ports > 1:
        names = ["main", *(f"port-{number}" for number in range(1, ports))]
        draft.put((*path, "ports"), names, role.at("portNum"))
    _placement(role, path, draft)
    begins_anew = convert_failover(role, path, draft)
    if role.enum("inputPolicy", ("ENV", "STREAMING")) == "STREAMING":
        if job.has("inputManager"):
            draft.put((*path, "data"), STREAM, role.at("inputPolicy"))
            draft.put((*path, "feed"), "stdin", role.at("inputPolicy"))
        else:
            role.report.mistake(
                role.at("inputPolicy"), found="STREAMING", hint="there is no inputManager to read"
            )
    return begins_anew


def _resources(role: Fields, path: Path, draft: Draft) -> None:
    units = (("cpu", "vcores", ""), ("memory", "memoryMb", "Mi"), ("gpu", "gpuNum", ""))
    for ours, theirs, unit in units:
        number = role.number(theirs)
        if number:
            value: object = f"{number}{unit}" if unit else number
            draft.put((*path, "resources", ours), value, role.at(theirs))


def _placement(role: Fields, path: Path, draft: Draft) -> None:
    """Keep a limit per node, which the original read and never asked for."""
    if not role.has("scheduleStrategy"):
        return
    strategy = role.message("scheduleStrategy")
    most = strategy.number("maxReplicasPerNode")
    if most:
        source = strategy.at("maxReplicasPerNode")
        draft.put((*path, "placement", "maxPerNode"), most, source)
    strategy.report_rest()


def _env(role: Fields, path: Path, job: Fields, job_env: Mapping[str, str], draft: Draft) -> None:
    """Give a role the variables of the job and its own, which win."""
    own = role.pairs("env")
    for key, value in {**job_env, **own}.items():
        source = (*(role if key in own else job).at("env"), key)
        if key.startswith(ENV_RESERVED):
            role.report.note(source, f"has no effect: {ENV_RESERVED} is reserved for primusd")
        else:
            draft.put((*path, "env", key), value, source)


def _success(roles: Mapping[str, Fields], percents: Mapping[str, int], draft: Draft) -> None:
    """Say what each role must reach; an original percentage that is absent is 0, a helper."""
    has_rule = any(percents.values())
    for name, percent in percents.items():
        role = roles[name]
        source = role.at("successPercent")
        if not has_rule:
            role.report.note(
                source,
                "every role has 0, with which the original succeeds before anything ran; "
                "here all replicas of every role must succeed",
            )
        elif percent == 0:
            draft.put(("roles", name, "success"), "never", source)
            role.report.note(
                source, f"is 0, so {name} is a helper, stopped when the others are done"
            )
        elif percent < 100:
            draft.put(("roles", name, "success"), {"percent": percent}, source)
        elif percent > 100:
            role.report.mistake(source, found=percent, allowed="0 to 100")


def _data(job: Fields, draft: Draft) -> None:
    if job.has("inputManager"):
        convert_input(job.message("inputManager"), STREAM, draft)
