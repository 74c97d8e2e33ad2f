"""What a stream says of its promises: delivery, bad rows, savepoints, and where it starts."""

import posixpath
import re

from msgspec.structs import replace

from primusd.job.groups import UNITS, group_streams, group_unit, larger_unit
from primusd.job.spec import JobSpec, Restore, StreamSpec
from primusd.jobfile.file_sources import checked_url, is_url
from primusd.jobfile.section import Findings, Section, is_mapping
from primusd.units import format_duration

PROMISE_FIELDS = (
    "delivery",
    "leftover",
    "onBad",
    "badRows",
    "badFraction",
    "savepoints",
    "restore",
    "staging",
)
DELIVERIES = ("atLeastOnce", "exactlyOnce", "atMostOnce")
ON_CHANGED = ("fail", "anew")
KEEP = 5
KEEP_MAX = 100
EVERY_MS_MIN = 10_000
MILLION = 1_000_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)


def is_savepoint_name(text: str) -> bool:
    """Return whether a savepoint may be called so."""
    return _NAME.fullmatch(text) is not None


def read_promises(section: Section, stream: StreamSpec, *, base_dir: str) -> StreamSpec:
    """Return a stream with what it promises.

    Args:
        section: The stream's.
        stream: As read so far.
        base_dir: Relative paths are made absolute below it; "" refuses them.
    """
    on_bad = section.choice("onBad", ("fail", "skipRecord", "deadLetter"), "fail")
    delivery = section.choice("delivery", DELIVERIES, "atLeastOnce")
    every_ms, keep = _savepoints(section, delivery)
    restore, on_changed = _restore(section, base_dir)
    staging, staging_changed = _staging(section, base_dir)
    return replace(
        stream,
        delivery=delivery,
        leftover=section.choice("leftover", ("fail", "allow"), "fail"),
        on_bad=on_bad,
        bad_rows=_bad_rows(section, on_bad),
        bad_ppm=_bad_ppm(section, on_bad),
        savepoint_every_ms=every_ms,
        savepoints_keep=keep,
        restore=restore,
        on_changed=on_changed or staging_changed or "fail",
        staging=staging,
    )


def _bad_rows(section: Section, on_bad: str) -> int:
    """Return how many bad rows are forgiven; -1 any number."""
    if section.raw("badRows") == "any":
        return -1
    if not section.has("badRows"):
        if on_bad == "skipRecord" and not section.has("badFraction"):
            section.findings.warn(
                section.at("onBad"),
                "without badRows the first bad record still fails the stream; say badRows: 100, "
                "or badRows: any",
            )
        is_free = on_bad == "deadLetter" or section.has("badFraction")
        return -1 if is_free and on_bad != "fail" else 0
    count = section.count("badRows", 0)
    if on_bad == "fail" and count:
        section.findings.warn(section.at("badRows"), "has no effect while onBad is fail")
    return count


def _bad_ppm(section: Section, on_bad: str) -> int:
    """Return the fraction of rows that is forgiven, in millionths; -1 it is not given."""
    value = section.raw("badFraction")
    if not section.has("badFraction"):
        return -1
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    found = round(value * MILLION) if is_number and isinstance(value, int | float) else -1
    if not 0 <= found <= MILLION:
        section.wrong("badFraction", "a fraction from 0 to 1, as 0.001")
        return -1
    if on_bad == "fail" and found:
        section.findings.warn(section.at("badFraction"), "has no effect while onBad is fail")
    return found


def _savepoints(section: Section, delivery: str) -> tuple[int, int]:
    """Return how often savepoints come by the clock, and how many unnamed ones stay."""
    if not section.has("savepoints"):
        return 0, KEEP
    found = Section(
        section.findings, section.at("savepoints"), section.raw("savepoints"), ("every", "keep")
    )
    every_ms = 0
    if found.has("every"):
        every_ms = found.duration_ms("every", EVERY_MS_MIN)
        if every_ms < EVERY_MS_MIN:
            found.wrong("every", "a duration of 10s or more, as 10m")
        if delivery == "exactlyOnce":
            section.findings.warn(
                found.at("every"),
                "has no effect with delivery: exactlyOnce, where trainers make savepoints",
            )
            every_ms = 0
    return every_ms, found.count("keep", KEEP, low=1, high=KEEP_MAX)


def _restore(section: Section, base_dir: str) -> tuple[Restore | None, str]:
    """Return where the stream starts, and what becomes of files that were changed since."""
    value = section.raw("restore")
    if not section.has("restore"):
        return None, ""
    if isinstance(value, str):
        return _short_restore(section, value), ""
    fields = ("job", "stream", "savepoint", "file", "changed")
    found = Section(section.findings, section.at("restore"), value, fields)
    changed = found.choice("changed", ON_CHANGED, "fail")
    if found.has("job") == found.has("file"):
        if is_mapping(value):
            section.wrong("restore", "job or file, one of them, as {job: ctr-daily, savepoint: s}")
        return None, changed
    if found.has("file"):
        return Restore(path=_folder(found, "file", base_dir)), changed
    name = found.text("savepoint")
    if name and not is_savepoint_name(name):
        found.wrong("savepoint", "the name of a savepoint")
    return Restore(found.text("job"), found.text("stream"), name), changed


def restore_of(text: str) -> Restore | None:
    """Return what `JOB/SAVEPOINT` or `JOB` means, None where it means nothing."""
    job, _, name = text.partition("/")
    return Restore(job, "", name) if job and (not name or is_savepoint_name(name)) else None


def _short_restore(section: Section, value: str) -> Restore | None:
    found = restore_of(value)
    if found is None:
        section.wrong(
            "restore",
            "JOB/SAVEPOINT, or JOB for its newest savepoint",
            "a job of another namespace is {job: namespace/name, savepoint: s}",
        )
    return found


def _staging(section: Section, base_dir: str) -> tuple[str, str]:
    """Return the folder in which positions stay, and what becomes of changed files."""
    value = section.raw("staging")
    if not section.has("staging"):
        return "", ""
    if section.has("restore"):
        section.wrong("staging", "restore or staging, not both", "both say where a stream starts")
    if is_mapping(value):
        found = Section(section.findings, section.at("staging"), value, ("path", "changed"))
        return _folder(found, "path", base_dir), found.choice("changed", ON_CHANGED, "fail")
    return _folder(section, "staging", base_dir), ""


def _folder(section: Section, key: str, base_dir: str) -> str:
    """Return an absolute path, or a URL as it is."""
    written = section.text(key)
    if not written:
        if not section.has(key):
            section.findings.add(section.path, hint=f"{key} is missing")
        return ""
    if is_url(written):
        return checked_url(section, key, written)
    path = re.sub(r"^file:/+", "/", written)
    if path.startswith("~"):
        section.wrong(key, "a path without ~, written in full")
        return ""
    if not path.startswith("/"):
        if not base_dir:
            section.wrong(key, "an absolute path", "primusctl makes it absolute")
            return ""
        path = posixpath.join(base_dir, path)
    return "/" + posixpath.normpath(path).lstrip("/")


def render_promises(stream: StreamSpec) -> dict[str, object]:
    """Return the same as a job file says it, but for `delivery`."""
    found: dict[str, object] = {
        "leftover": stream.leftover,
        "onBad": stream.on_bad,
        "badRows": "any" if stream.bad_rows < 0 else stream.bad_rows,
    }
    if stream.bad_ppm >= 0:
        found["badFraction"] = stream.bad_ppm / MILLION
    if stream.savepoint_every_ms or stream.savepoints_keep != KEEP:
        every = stream.savepoint_every_ms
        found["savepoints"] = {
            **({"every": format_duration(every)} if every else {}),
            "keep": stream.savepoints_keep,
        }
    changed = {"changed": stream.on_changed} if stream.on_changed != "fail" else {}
    if (restore := stream.restore) is not None:
        named = {"job": restore.job, "stream": restore.stream, "savepoint": restore.savepoint}
        where = {"file": restore.path} if restore.path else {k: v for k, v in named.items() if v}
        found["restore"] = {**where, **changed}
    if stream.staging:
        found["staging"] = {"path": stream.staging, **changed} if changed else stream.staging
    return found


# What an exactlyOnce stream asks of a job.


def with_groups(spec: JobSpec) -> JobSpec:
    """Return the spec in which groups can keep their promise.

    The savepoints of all checkpoints that are kept stay, too. The members of a group start
    together, also those of several roles: no step may be whole before one of them is there.
    """
    least = spec.checkpoint.keep + 2
    data = {
        name: replace(one, savepoints_keep=max(one.savepoints_keep, least))
        if one.delivery == "exactlyOnce"
        else one
        for name, one in spec.data.items()
    }
    roles = {
        name: replace(role, has_minimum=True) if group_streams(spec, role) else role
        for name, role in spec.roles.items()
    }
    spec = replace(spec, data=data, roles=roles)
    shared = tuple(name for name, role in roles.items() if group_unit(spec, role) == "job")
    if spec.policy != "dynamic" or not shared:
        return spec
    return replace(spec, policy="gang", gang_roles=shared if len(shared) < len(roles) else ())


def check_groups(findings: Findings, spec: JobSpec) -> None:
    """Note by whom a stream whose readers are a group cannot be read."""
    for role in spec.roles.values():
        streams = group_streams(spec, role)
        if not streams:
            continue
        stream = spec.data[streams[0]]
        is_exact = stream.delivery == "exactlyOnce"
        if is_exact and role.feed != "sdk":
            findings.add(
                ("roles", role.name, "feed"),
                found=role.feed,
                allowed="sdk",
                hint=f"stream {streams[0]} is exactlyOnce: its trainers mark their steps, which a "
                "pipe cannot",
            )
        wanted = group_unit(spec, role)
        if larger_unit(role.restart.unit, wanted) != role.restart.unit:
            why = (
                f"stream {streams[0]} is exactlyOnce: what one trainer took is in all models"
                if is_exact
                else f"stream {streams[0]} has tail: {stream.tail}: its trainers step together"
            )
            findings.add(
                ("roles", role.name, "restart", "unit"),
                found=role.restart.unit,
                allowed=UNITS[UNITS.index(wanted) :],
                hint=why,
            )
