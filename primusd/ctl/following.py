"""Verbs that follow: events, logs."""

import re
import sys
import zlib
from collections.abc import Iterator

import click

from primusd.ctl.call import Call, Verb, pass_call, shared_options
from primusd.ctl.client import Json, job_path
from primusd.ctl.describing import event_line
from primusd.ctl.documents import count, mapping, mappings, text
from primusd.ctl.failures import USAGE, CtlError, verdict_exit_code
from primusd.ctl.output import Printer
from primusd.ctl.waiting import FINAL_PHASES, detached, resumed

SILENCE_S = 30.0
"""Three bookmarks of a watch."""
LEVELS = ("info", "warning", "error")
_COLORS = ("blue", "green", "yellow", "red", "grey")
_EVENT_FORMS = ("table", "wide", "json", "jsonl")
_LOG_FORMS = ("table", "wide", "jsonl")


@click.command("events", cls=Verb)
@click.argument("name", required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on, of one job until it ends.")
@click.option("--level", type=click.Choice(LEVELS), help="At least so grave.")
@click.option("--limit", default=200, show_default=True, help="The last so many.")
@shared_options
@pass_call
def events(call: Call, name: str | None, level: str | None, limit: int, *, follow: bool) -> None:
    """Show what happened to a job, or to all of them."""
    printer = call.printer_of(_EVENT_FORMS)
    ended = False
    if name:
        namespace, job_name = call.job(name)
        job = call.client.get(job_path(namespace, job_name))
        ended = text(mapping(job, "status"), "phase") in FINAL_PHASES
        path = job_path(namespace, text(job, "uid"), "events")
    else:
        path = "/api/v1/events"
    query = {"level": level or "", "limit": str(limit)}
    found = call.client.get(path, query)
    if printer.form == "json" and not follow:
        printer.document(found)
        return
    for event in mappings(found, "items"):
        _print_event(printer, event)
    if follow and not ended:
        version = text(found, "resourceVersion")
        with detached(f"primusctl events {name or ''} -f".strip()):
            # All levels are asked for, since the end of a job is no warning.
            for event in _watched(call, path, version):
                if LEVELS.index(text(event, "level")) >= LEVELS.index(level or "info"):
                    _print_event(printer, event)
                if name and _is_last(event):
                    return


def _is_last(event: Json) -> bool:
    """Return whether it is the last one of its job, which names the phase it ended in."""
    is_gone = text(event, "reason") == "AllGone"
    return is_gone and text(mapping(event, "details"), "phase") in FINAL_PHASES


def _print_event(printer: Printer, event: Json) -> None:
    if printer.form in ("json", "jsonl"):
        printer.json_line(event)
    else:
        printer.line(event_line(printer, event))
        sys.stdout.flush()


def _watched(call: Call, path: str, version: str) -> Iterator[Json]:
    """Yield events from a version on, over restarts of the daemon too."""
    query = {"watch": "1", "resourceVersion": version}

    def lines() -> Iterator[bytes]:
        return call.client.lines(path, query, silence_s=SILENCE_S)

    for found in resumed(call.client, lines, is_over=lambda: False):
        shown = mapping(found, "object")
        seen = text(found, "resourceVersion") or text(shown, "resourceVersion")
        query["resourceVersion"] = seen or query["resourceVersion"]
        if found.get("type") == "ERROR":
            raise CtlError(text(mapping(found, "problem"), "title"))
        if found.get("type") in ("ADDED", "MODIFIED"):
            yield shown


@click.command("logs", cls=Verb)
@click.argument("name")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job ends, with its exit code.")
@click.option("--role", default="", help="Only this role.")
@click.option("--index", type=int, help="Only this replica of the role.")
@click.option("--attempt", default="", help="Only this attempt of each replica.")
@click.option("--previous", is_flag=True, help="Only the attempt before the newest.")
@click.option("--stream", type=click.Choice(["stdout", "stderr"]), help="Only this stream.")
@click.option("--since", default="", metavar="10m", help="Not older; a time works too.")
@click.option("--tail", type=int, help="Only the last so many lines.")
@click.option("--grep", default="", metavar="REGEX", help="Only lines that match.")
@shared_options
@pass_call
def logs(  # noqa: PLR0917 - click passes them by name
    call: Call,
    name: str,
    role: str,
    index: int | None,
    attempt: str,
    stream: str | None,
    since: str,
    tail: int | None,
    grep: str,
    *,
    follow: bool,
    previous: bool,
) -> int:
    """Show what the trainers of a job wrote, each line with its replica."""
    printer = call.printer_of(_LOG_FORMS)
    if previous and attempt:
        raise CtlError(
            f"--previous and --attempt {attempt} name two attempts; give one of them",
            exit_code=USAGE,
        )
    namespace, job_name = call.job(name)
    query = {
        "role": role,
        "index": "" if index is None else str(index),
        "attempt": "previous" if previous else attempt,
        "stream": stream or "",
        "since": since,
        "tail": "" if tail is None else str(tail),
        "follow": "1" if follow else "",
    }
    wanted = _pattern(grep)
    job = call.client.get(job_path(namespace, job_name))
    uid = text(job, "uid")
    writer = _LogWriter(printer, is_live=follow)
    with detached(f"primusctl logs {name} -f", job=name if follow else ""):
        for record in _records(call, job_path(namespace, uid), query, follows=follow):
            if wanted is None or wanted.search(text(record, "text")):
                writer.write(record)
    sys.stdout.flush()
    if not follow:
        return 0
    status = mapping(call.client.get(job_path(namespace, uid)), "status")
    return verdict_exit_code(status) if text(status, "phase") in FINAL_PHASES else 0


def _records(call: Call, job: str, query: dict[str, str], *, follows: bool) -> Iterator[Json]:
    """Yield log records, each once; one that follows goes on over restarts of the daemon."""
    seen: dict[tuple[str, str, str], int] = {}
    times: dict[tuple[str, str, str], str] = {}

    def lines() -> Iterator[bytes]:
        # The last lines of then are not those of now.
        is_part = bool(times and (query["tail"] or query["since"]))
        again = {**query, "tail": "", "since": min(times.values())} if is_part else query
        return call.client.lines(f"{job}/logs", again, silence_s=None)

    def is_over() -> bool:
        return not follows or _phase(call.client.get(job)) in FINAL_PHASES

    for record in resumed(call.client, lines, is_over=is_over):
        key = (text(record, "replica"), text(record, "attempt"), text(record, "stream"))
        end = count(record, "nextOffset") or 0
        if end > seen.get(key, -1):
            seen[key] = end
            times[key] = text(record, "at")
            yield record


def _phase(job: Json) -> str:
    """Return the phase of a job's document."""
    return text(mapping(job, "status"), "phase")


def _pattern(grep: str) -> re.Pattern[str] | None:
    if not grep:
        return None
    try:
        return re.compile(grep)
    except re.error as error:
        raise CtlError(f"--grep {grep!r}: {error}", exit_code=USAGE) from error


class _LogWriter:
    """Writes log records: each line behind its replica's name."""

    def __init__(self, printer: Printer, *, is_live: bool) -> None:
        self._printer = printer
        self._is_live = is_live or printer.is_terminal
        self._width = 0
        self._open: tuple[str, str, str] | None = None

    def write(self, record: Json) -> None:
        """Write one record; parts of one long line are put together again."""
        if self._printer.form == "jsonl":
            self._printer.json_line(record)
            return
        replica = text(record, "replica")
        key = (replica, text(record, "attempt"), text(record, "stream"))
        prefix = "" if self._open == key else self._prefix(replica)
        if self._open not in (None, key):
            prefix = "\n" + prefix
        gap = record.get("gap")
        body = f"[{gap} bytes are no longer kept]\n" if gap else text(record, "text")
        sys.stdout.write(prefix + body)
        self._open = None if body.endswith("\n") else key
        if self._is_live:
            sys.stdout.flush()

    def _prefix(self, replica: str) -> str:
        self._width = max(self._width, len(replica))
        color = _COLORS[zlib.crc32(replica.encode()) % len(_COLORS)]
        padding = " " * (self._width - len(replica)) if self._printer.is_terminal else ""
        return f"{self._printer.paint(color, replica)}{padding}  "


COMMANDS = {"events": events, "logs": logs}
