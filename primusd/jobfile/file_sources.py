"""Files as a source: paths, globs, URLs, folders by time, and what to do if some are missing."""

import posixpath
import re
from collections.abc import Mapping

from primusd.job.partitions import STEPS, step_of, step_of_label, unknown_words, words_of
from primusd.job.spec import Source, TimeRange
from primusd.jobfile.rescans import read_rescan, render_rescan
from primusd.jobfile.section import Section, is_mapping
from primusd.units import format_duration, parse_duration_ms

FILE_FIELDS = (
    *("files", "from", "to", "zone", "delay"),
    *("marker", "missing", "recursive", "storage", "rescan"),
)
TIME_FIELDS = ("from", "to", "zone", "delay")
DELAY_MS_MAX = 3_660 * 86_400_000
MISSING_FORMS = ("wait", "skip", "skip after 6h", "fail")
MARKERS_MAX = 10
STORAGE_OPTIONS: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("hdfs", "viewfs"): ("confDir",),
    ("webhdfs", "swebhdfs"): ("user",),
    ("s3", "s3a", "s3n"): ("endpoint", "region", "anonymous"),
    ("gs", "gcs"): ("endpoint", "anonymous"),
    ("abfs", "abfss", "az"): ("endpoint", "account"),
}
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/", re.ASCII)
_AUTHORITY = re.compile(r"[A-Za-z0-9]+://[^/]+", re.ASCII)
_PASSWORD = re.compile(r"[^/]*://[^/@]*:[^/@]*@", re.ASCII)
_SECRET = re.compile(r"key|secret|password|token|sas", re.IGNORECASE | re.ASCII)


def is_url(text: str) -> bool:
    """Return whether a path names its scheme; `file:` does not count."""
    return _URL.match(text) is not None and not text.startswith("file:/")


def read_files(section: Section, *, base_dir: str, weight: int) -> Source:
    """Return a source of files.

    Args:
        section: An entry of `sources` that has `files`.
        base_dir: Relative paths are made absolute below it; "" refuses them.
        weight: Of the source.
    """
    files = _path(section, base_dir)
    span = _span(section, files)
    markers = _markers(section, files)
    waits = span is not None or bool(markers)
    missing, skip_after_ms = _missing(section, is_timed=span is not None, waits=waits)
    rescan_ms, rescan_for_ms = read_rescan(section, is_timed=span is not None)
    return Source(
        files,
        weight=weight,
        span=span,
        markers=markers,
        missing=missing,
        skip_after_ms=skip_after_ms,
        is_recursive=section.flag("recursive", default=False),
        storage=_storage(section, files),
        delay_ms=_delay_ms(section) if span is not None else 0,
        rescan_ms=rescan_ms,
        rescan_for_ms=rescan_for_ms,
    )


def render_files(source: Source) -> dict[str, object]:
    """Return a source of files as a job file has it, all that is no default."""
    found: dict[str, object] = {"files": source.files}
    if source.span is not None:
        found |= {"from": source.span.first, "to": source.span.last, "zone": source.span.zone}
    if source.delay_ms:
        found["delay"] = format_duration(source.delay_ms)
    if source.markers:
        found["marker"] = source.markers[0] if len(source.markers) == 1 else [*source.markers]
    if source.missing != "fail" or source.span is not None or source.markers:
        after = f" after {format_duration(source.skip_after_ms)}" if source.skip_after_ms else ""
        found["missing"] = source.missing + after
    if source.is_recursive:
        found["recursive"] = True
    if source.rescan_ms:
        found["rescan"] = render_rescan(source)
    if source.storage:
        found["storage"] = dict(source.storage)
    return found


def _path(section: Section, base_dir: str) -> str:
    """Return an absolute path, or the URL as it is."""
    written = section.text("files")
    if not written:
        return ""
    if is_url(written):
        return checked_url(section, "files", written)
    path = re.sub(r"^file:/+", "/", written)
    if path.startswith("~"):
        section.wrong("files", "a path without ~, written in full")
        return ""
    if not path.startswith("/"):
        if not base_dir:
            section.wrong(
                "files",
                "an absolute path",
                "primusctl makes it absolute, from the job file's folder",
            )
            return ""
        path = posixpath.join(base_dir, path)
    # A folder keeps its slash: it says that a folder is meant.
    slash = "/" if path.endswith("/") and path.strip("/") else ""
    return "/" + posixpath.normpath(path).lstrip("/") + slash


def checked_url(section: Section, key: str, written: str) -> str:
    """Return a URL as it is; what it lacks, or should not have, is found."""
    scheme = _scheme(written)
    is_of_default = scheme in ("hdfs", "viewfs") and written.startswith(f"{scheme}:///")
    if not is_of_default and not _AUTHORITY.match(written):
        section.wrong(key, f"a URL with its host or bucket, as {scheme}://name/path")
    elif _PASSWORD.match(written):
        section.wrong(key, "a URL without a password", "the storage's environment has it")
    return written


def _scheme(files: str) -> str:
    found = _URL.match(files)
    return found[1].lower() if found is not None else ""


def _span(section: Section, files: str) -> TimeRange | None:
    template = words_of(files)
    unknown = unknown_words(files)
    if unknown:
        hint = f"{{{{{unknown[0]}}}}} is none of them"
        section.wrong("files", "{{YYYY}}, {{MM}}, {{DD}} and {{HH}}", hint)
        return None
    if not template:
        for key in TIME_FIELDS:
            if section.has(key):
                section.wrong(key, "nothing here", "files has no {{YYYY}}{{MM}}{{DD}} in it")
        return None
    step = step_of(files)
    if not step:
        section.wrong("files", "{{HH}} with {{DD}}, {{DD}} with {{MM}}, {{MM}} with {{YYYY}}")
        return None
    first = _label(section, "from", step)
    last = _label(section, "to", step, may_be_now=True)
    zone = section.text("zone", "UTC")
    if not _is_zone(zone):
        section.wrong("zone", "a name of the IANA database, as UTC or Asia/Shanghai")
        zone = "UTC"
    length = min(len(first), len(last))
    if first and last not in ("", "now") and last[:length] < first[:length]:
        section.wrong("to", f"{first} or later", "both ends are included")
    return TimeRange(first, last, zone) if first and last else None


def _label(section: Section, key: str, step: str, *, may_be_now: bool = False) -> str:
    """Return an end of a time range; "" with a finding where it is none."""
    form = {"year": "2026", "month": "2026-01", "day": "2026-01-01", "hour": "2026-01-01T05"}[step]
    allowed = f"{form}{' or now' if may_be_now else ''}: its folders are by the {step}"
    if not section.has(key):
        section.findings.add(section.path, hint=f"{key} is missing: {allowed}")
        return ""
    written = section.text(key)
    if may_be_now and written == "now":
        return "now"
    found = step_of_label(written)
    # A day stands for all its hours; an hour says nothing of folders by the day.
    if not found or STEPS.index(found) > STEPS.index(step):
        if written:
            section.wrong(key, allowed)
        return ""
    return written


def _delay_ms(section: Section) -> int:
    found = section.duration_ms("delay", 0)
    if found > DELAY_MS_MAX:
        section.wrong("delay", f"0s to {format_duration(DELAY_MS_MAX)}")
    return found


def _is_zone(name: str) -> bool:
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError  # noqa: PLC0415 - few files name a zone

    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True


def _missing(section: Section, *, is_timed: bool, waits: bool) -> tuple[str, int]:
    """Return what is done while files are missing, and how long after their time."""
    if not section.has("missing"):
        return ("wait" if waits else "fail"), 0
    written = section.text("missing")
    word, _, rest = written.partition(" ")
    if word in ("wait", "fail") and not rest:
        return word, 0
    if word != "skip" or (rest and not rest.startswith("after ")):
        section.wrong("missing", MISSING_FORMS)
        return "fail", 0
    if not is_timed:
        hint = "without from and to nothing says when it is late"
        section.wrong("missing", "wait or fail", hint)
        return "fail", 0
    if not rest:
        return "skip", 0
    try:
        return "skip", parse_duration_ms(rest.removeprefix("after ").strip())
    except ValueError as error:
        section.wrong("missing", MISSING_FORMS, str(error))
        return "fail", 0


def _markers(section: Section, files: str) -> tuple[str, ...]:
    if not section.has("marker"):
        return ()
    written = section.raw("marker")
    names = (section.text("marker"),) if isinstance(written, str) else section.texts("marker")
    for name in names:
        if not name or name.startswith("/") or is_url(name) or ".." in name.split("/"):
            section.wrong("marker", "a name in the folder, as _SUCCESS")
            return ()
        if unknown_words(name) or (words_of(name) and not words_of(files)):
            section.wrong("marker", "{{YYYY}}, {{MM}}, {{DD}} and {{HH}} as in files")
            return ()
    if len(names) > MARKERS_MAX:
        section.wrong("marker", f"at most {MARKERS_MAX} names")
    return names


def _storage(section: Section, files: str) -> dict[str, str]:
    if not section.has("storage"):
        return {}
    written = section.raw("storage")
    if not is_mapping(written):
        section.wrong("storage", "a mapping of options, as {endpoint: http://127.0.0.1:9000}")
        return {}
    if not is_url(files):
        section.wrong("storage", "nothing here", "files is no URL")
        return {}
    scheme = _scheme(files)
    known = next((names for kinds, names in STORAGE_OPTIONS.items() if scheme in kinds), None)
    found: dict[str, str] = {}
    for key, value in written.items():
        path = (*section.at("storage"), key)
        if known is not None and key not in known:
            section.findings.add(path, allowed=known, hint=f"{scheme}: has no option {key}")
        elif known is None and _SECRET.search(key):
            section.findings.add(
                path, hint="no secrets stand in a job file: drivers read them from the environment"
            )
        elif isinstance(value, bool):
            found[key] = "true" if value else "false"
        elif isinstance(value, (str, int)):
            found[key] = str(value)
        else:
            section.findings.add(path, hint="is a text, a number, or true or false")
    return found
