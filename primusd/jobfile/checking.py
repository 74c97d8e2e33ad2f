"""A document into a job's spec: every default filled, everything wrong with it told at once."""

from collections.abc import Mapping

from msgspec import Struct

from primusd.job.labels import is_label
from primusd.job.spec import (
    REPLICAS_MAX,
    JobSpec,
    RoleSpec,
    ShippedSpec,
    StreamSpec,
)
from primusd.jobfile.decoding import check_framing
from primusd.jobfile.document import Path, show_value
from primusd.jobfile.failures import check_end, read_failure, read_hang
from primusd.jobfile.file_sources import is_url
from primusd.jobfile.frameworks import check_framework, with_restart_units
from primusd.jobfile.limits import read_checkpoint, read_deadline, read_replica_hours
from primusd.jobfile.names import check_derived, check_job_name, check_label
from primusd.jobfile.ordering import check_reading
from primusd.jobfile.placements import check_placements
from primusd.jobfile.promises import check_groups, with_groups
from primusd.jobfile.queueing import read_queueing
from primusd.jobfile.roles import ROLE_DEEPER, ROLE_FIELDS, read_budgets, read_role
from primusd.jobfile.schedules import DEEPER as SCHEDULE_DEEPER
from primusd.jobfile.schedules import check_schedule, read_schedule
from primusd.jobfile.section import Findings, Section, is_list, is_mapping, nearest
from primusd.jobfile.streams import read_stream

API_VERSION = "primus/v1"
JOB_FIELDS = (
    "apiVersion",
    "name",
    "namespace",
    "labels",
    "queue",
    "priority",
    "preemptible",
    "launcher",
    "framework",
    "schedule",
    "after",
    "files",
    "defaults",
    "roles",
    "data",
    "failure",
    "budgets",
    "hang",
    "reruns",
    "deadline",
    "maxReplicaHours",
    "checkpoint",
    "tune",
    "runAs",
    "original",
)
_DEEPER = SCHEDULE_DEEPER
LAUNCHERS = ("local", "kubernetes", "yarn")
FRAMEWORKS = (
    "none",
    "torch",
    "tensorflow-ps",
    "tensorflow-multiworker",
    "jax",
    "mpi",
    "xgboost",
    "horovod",
)
# Fields of a role that are mappings and of which a role may give a part.
_MERGED = ("resources", "env", "secrets", "restart", "budgets", "stop", "placement")
FILES_MAX = 10_000
RERUNS_MAX = 1_000
LABELS_MAX = 64
_LABEL_BYTES_MAX = 256


class ParseContext(Struct, frozen=True):
    """What a job file is read against; all of it comes from the caller, nothing is looked up."""

    base_dir: str = ""
    """Absolute folder of the job file; relative data paths are made absolute below it, "" refuses
    them."""
    name: str = ""
    """Name of the job in place of the file's; "" the file's."""
    namespace: str = "default"
    """Where the file names none."""
    launcher: str = "local"
    """Where the file names none."""


def read_job(findings: Findings, root: object, context: ParseContext) -> JobSpec:
    """Return the spec of a document; where the findings have problems it is of no use.

    Args:
        findings: Where problems and warnings go.
        root: The document's values, with `defaults` merged into its roles.
        context: Names and folders that the document does not say.
    """
    section = Section(findings, (), root, JOB_FIELDS, deeper=_DEEPER)
    section.choice("apiVersion", (API_VERSION,), API_VERSION)
    roles = _roles(section)
    data = _data(section, context)
    framework = section.choice("framework", FRAMEWORKS, "none")
    schedule = read_schedule(section, roles, framework)
    deadline = read_deadline(section)
    spec = JobSpec(
        name=_name(section, context),
        roles=roles,
        namespace=_label(section, "namespace", context.namespace),
        labels=_labels(section),
        **read_queueing(section),
        launcher=section.choice("launcher", LAUNCHERS, context.launcher),
        framework=framework,
        policy=schedule.policy,
        gang_roles=schedule.roles,
        gate=schedule.gate,
        step=schedule.step,
        place_timeout_ms=schedule.place_timeout_ms,
        ready_timeout_ms=schedule.ready_timeout_ms,
        replace_after_ms=schedule.replace_after_ms,
        files=_files(section),
        data=data,
        budgets=read_budgets(section),
        deadline_ms=deadline.after_ms,
        original=section.flag("original", default=False),
        deadline_warn_ms=deadline.warn_ms,
        warn_signal=deadline.signal,
        max_replica_ms=read_replica_hours(section),
        checkpoint=read_checkpoint(section),
        failure=read_failure(section, roles),
        hang=read_hang(section),
        reruns=section.count("reruns", 0, high=RERUNS_MAX),
    )
    spec = with_groups(with_restart_units(spec, root))
    _check_job(findings, spec)
    return spec


def merge_defaults(findings: Findings, root: object) -> object:
    """Return the document with `defaults` merged into every role, and note where each came from."""
    if not is_mapping(root) or "defaults" not in root:
        return root
    Section(findings, ("defaults",), root["defaults"], ROLE_FIELDS, deeper=ROLE_DEEPER)
    roles, defaults = root.get("roles"), root["defaults"]
    if not is_mapping(roles) or not is_mapping(defaults):
        return {key: value for key, value in root.items() if key != "defaults"}
    merged: dict[str, object] = {}
    for name, role in roles.items():
        merged[name] = (
            _merged(findings, ("roles", name), role, defaults) if is_mapping(role) else role
        )
    return {key: value for key, value in root.items() if key != "defaults"} | {"roles": merged}


def _merged(
    findings: Findings, path: Path, role: Mapping[str, object], defaults: Mapping[str, object]
) -> dict[str, object]:
    """Return a role with what it lacks; mappings of independent fields are merged by field."""
    result = dict(role)
    for key, value in defaults.items():
        own = role.get(key)
        if key not in role:
            result[key] = value
            findings.redirects[*path, key] = ("defaults", key)
        elif key in _MERGED and is_mapping(own) and is_mapping(value):
            result[key] = {**value, **own}
            for inner in value:
                if inner not in own:
                    findings.redirects[*path, key, inner] = ("defaults", key, inner)
    return result


def _name(section: Section, context: ParseContext) -> str:
    if context.name:
        name = context.name
    elif section.has("name"):
        name = section.text("name")
    else:
        section.findings.add((), hint="name is missing: give the job one, as name: hello")
        return ""
    if name:
        check_job_name(section.findings, name)
    return name


def _label(section: Section, key: str, default: str) -> str:
    text = section.text(key, default)
    if text:
        check_label(section.findings, section.at(key), text)
    return text


def _labels(section: Section) -> Mapping[str, str]:
    value = section.raw("labels")
    if not section.has("labels"):
        return {}
    if not is_mapping(value) or len(value) > LABELS_MAX:
        section.wrong("labels", f"a mapping of at most {LABELS_MAX} names to texts")
        return {}
    labels = Section(section.findings, section.at("labels"), value, tuple(value))
    found = {key: labels.text(key, may_be_empty=True) for key in value}
    for key, text in found.items():
        if not key or len(key.encode()) > _LABEL_BYTES_MAX or len(text.encode()) > _LABEL_BYTES_MAX:
            section.findings.add(
                labels.at(key),
                found=show_value(text),
                allowed=f"a name that is not empty and a text, of at most {_LABEL_BYTES_MAX} bytes",
            )
    return found


def _roles(section: Section) -> dict[str, RoleSpec]:
    value = section.raw("roles")
    if not is_mapping(value) or not value:
        form = "a mapping of names to roles, as {worker: {replicas: 4, command: …}}"
        if section.has("roles"):
            section.wrong("roles", form)
        else:
            section.findings.add((), hint=f"roles is missing: {form}")
        return {}
    return {name: read_role(section.findings, name, role) for name, role in value.items()}


def _data(section: Section, context: ParseContext) -> dict[str, StreamSpec]:
    if not section.has("data"):
        return {}
    value = section.raw("data")
    if not is_mapping(value):
        section.wrong("data", "a mapping of names to streams, as {clicks: {sources: […]}}")
        return {}
    return {
        name: read_stream(section.findings, name, stream, base_dir=context.base_dir)
        for name, stream in value.items()
    }


def _files(section: Section) -> tuple[ShippedSpec, ...]:
    """Return what is shipped, by path below the job file's folder or as it was sent."""
    if not section.has("files"):
        return ()
    value = section.raw("files")
    if not is_list(value) or len(value) > FILES_MAX:
        section.wrong("files", f"a list of at most {FILES_MAX} paths")
        return ()
    found: dict[str, ShippedSpec] = {}
    for index, one in enumerate(value):
        path = (*section.at("files"), index)
        shipped = _shipped(section.findings, path, one)
        if shipped is None:
            continue
        if shipped.path in found:
            section.findings.add(path, found=show_value(shipped.path), hint="given twice")
        found[shipped.path] = shipped
    return tuple(found.values())


def _shipped(findings: Findings, path: Path, value: object) -> ShippedSpec | None:
    fields = ("path", "digest", "bytes", "mode", "unpack")
    section = Section(findings, path, {"path": value} if isinstance(value, str) else value, fields)
    if isinstance(value, str):
        # The path of the problem is that of the text, not of a field in it.
        findings.redirects[*path, "path"] = path
    written = section.text("path")
    if not written:
        return None
    # Of a URL the last part is the name, without what a web server is asked beside it.
    url = written if is_url(written) else ""
    name = written.partition("?")[0].rpartition("/")[2] if url else written.rstrip("/")
    name = name.removeprefix("./")
    if not name or name.startswith(("/", "~")) or ".." in name.split("/"):
        findings.add(
            section.at("path"),
            found=show_value(written),
            allowed="a path below the job file's folder, without .., or the URL of a file",
            hint="for a folder of this host use workdir",
        )
        return None
    digest = section.text("digest")
    if digest and not _is_digest(digest):
        section.wrong("digest", "sha256: and 64 hex digits")
    return ShippedSpec(
        name,
        digest,
        section.count("bytes", 0),
        _mode(section),
        section.flag("unpack", default=written.endswith("/")),
        url,
    )


def _is_digest(text: str) -> bool:
    digits = text.removeprefix("sha256:")
    return digits != text and len(digits) == 64 and set(digits) <= set("0123456789abcdef")


def _mode(section: Section) -> int:
    text = section.text("mode", "0644")
    is_octal = 3 <= len(text) <= 4 and set(text) <= set("01234567")
    if not is_octal:
        section.wrong("mode", 'octal digits in quotes, as "0644"')
    return int(text, 8) & 0o777 if is_octal else 0o644


def _check_job(findings: Findings, spec: JobSpec) -> None:
    """Note what is wrong between parts of a job that are right by themselves."""
    total = sum(role.replicas for role in spec.roles.values())
    if total > REPLICAS_MAX:
        findings.add(
            ("roles",), found=f"{total} replicas", allowed=f"at most {REPLICAS_MAX} in all"
        )
    if is_label(spec.name):
        named = [role for role in spec.roles.values() if is_label(role.name)]
        check_derived(findings, spec.name, [(role.name, role.replicas) for role in named])
    if spec.roles and all(role.success.kind == "never" for role in spec.roles.values()):
        findings.add(
            ("roles",),
            found="success: never in every role",
            hint="no role could ever make the job succeed; one needs all, any or percent",
        )
    check_schedule(findings, spec)
    for role in spec.roles.values():
        _check_role(findings, spec, role)
    check_framework(findings, spec)
    check_groups(findings, spec)
    check_end(findings, spec)
    check_placements(findings, spec.roles)
    read = {reading.stream for role in spec.roles.values() for reading in role.data}
    for name in spec.data:
        if name not in read:
            findings.warn(("data", name), "no role reads it, so it is not opened and has no vote")


def _check_role(findings: Findings, spec: JobSpec, role: RoleSpec) -> None:
    path: Path = ("roles", role.name)
    for reading in role.data:
        if reading.stream not in spec.data:
            findings.add(
                (*path, "data"),
                found=show_value(reading.stream),
                allowed=tuple(spec.data) or "a stream that data describes",
                hint=nearest(reading.stream, spec.data),
            )
        if (stream := spec.data.get(reading.stream)) is not None:
            check_reading(findings, (*path, "data"), stream, role)
    if role.workdir and spec.files:
        findings.add(
            (*path, "workdir"),
            found=show_value(role.workdir),
            hint="files are laid out in primusd's own folder; use either workdir or files",
        )
    if role.drain_ms and role.success.kind != "never":
        findings.warn((*path, "drain"), "has no effect: only a role with success: never drains")
    if role.feed in ("stdin", "fifo"):
        _check_pipe(findings, spec, role, path)


def _check_pipe(findings: Findings, spec: JobSpec, role: RoleSpec, path: Path) -> None:
    if not role.data:
        findings.warn((*path, "feed"), "has no effect: the role reads no data")
    if len(role.data) > 1 and role.feed == "stdin":
        findings.add(
            (*path, "data"),
            found=f"{len(role.data)} streams",
            allowed="one stream, since there is one standard input",
            hint="feed: fifo has a FIFO for each stream",
        )
    for reading in role.data:
        stream = spec.data.get(reading.stream)
        if stream is not None:
            check_framing(findings, (*path, "framing"), stream, role.framing)
