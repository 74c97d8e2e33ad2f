"""describe: a job on one screen, with what a person would ask first."""

import click

from primusd.ctl.call import Call, Verb, pass_call, shared_options
from primusd.ctl.client import Json, job_path
from primusd.ctl.documents import count, mapping, mappings, text
from primusd.ctl.explaining import explanation_lines
from primusd.ctl.output import Printer, grouped, local_time, printable, short_duration
from primusd.ctl.reading import REPLICA_HEADER, done_fraction, replica_row

EVENTS_SHOWN = "20"
REPLICAS_SHOWN = "50"
WHY_RESTARTED = "why did it restart"
HOUR_MS = 3_600_000
_FORMS = ("table", "wide", "json", "yaml")


@click.command("describe", cls=Verb)
@click.argument("name")
@shared_options
@pass_call
def describe(call: Call, name: str) -> None:
    """Show a job with its replicas, timeline, budgets, data and first cause."""
    printer = call.printer_of(_FORMS)
    namespace, job_name = call.job(name)
    client = call.client
    job = client.get(job_path(namespace, job_name))
    uid = text(job, "uid")
    replicas = client.get(job_path(namespace, uid, "replicas"), {"limit": REPLICAS_SHOWN})
    events = client.get(job_path(namespace, uid, "events"), {"limit": EVENTS_SHOWN})
    explained = client.get(job_path(namespace, uid, "explain"))
    if printer.form in ("json", "yaml"):
        parts = {"job": job, "replicas": replicas, "events": events, "explanations": explained}
        printer.document(parts)
        return
    show_head(printer, job)
    show_roles(printer, mapping(job, "status"))
    show_streams(printer, mapping(job, "status"))
    _replicas(printer, replicas)
    _restarts(printer, explained)
    _events(printer, events)


def show_head(printer: Printer, job: Json) -> None:
    """Print what a person asks first of a job."""
    status = mapping(job, "status")
    verdict, cause = mapping(status, "verdict"), mapping(status, "firstCause")
    lines = [
        ("name", f"{text(job, 'namespace')}/{text(job, 'name')}  ({text(job, 'uid')})"),
        ("phase", _phase(printer, status)),
        ("why", text(status, "message")),
        ("verdict", _verdict(verdict)),
        ("first cause", _cause(cause)),
        ("generation", text(status, "generation")),
        ("labels", ", ".join(f"{key}={value}" for key, value in mapping(job, "labels").items())),
        ("submitted", f"{local_time(job.get('createdAt'))} by {text(job, 'submittedBy')}"),
        ("deadline", "" if text(status, "endedAt") else local_time(status.get("deadlineAt"))),
        ("hours", _replica_hours(mapping(status, "replicaHours"))),
        ("checkpoint", _checkpoint(mapping(status, "checkpoint"))),
        ("ended", _ended(status)),
        ("budgets", _budgets(mapping(status, "budgets"))),
        ("conditions", _conditions(status)),
    ]
    for label, value in lines:
        if value:
            printer.line(f"{label + ':':<13}{printable(value)}")


def _phase(printer: Printer, status: Json) -> str:
    since = printer.age(status.get("since"))
    then = f", then {text(status, 'then')}" if text(status, "then") else ""
    return f"{text(status, 'phase')}{then}, for {since}"


def _verdict(verdict: Json) -> str:
    if not verdict:
        return ""
    rule = f"  [{text(verdict, 'rule')}]" if text(verdict, "rule") else ""
    return f"{text(verdict, 'phase')}, {text(verdict, 'reason')}: {text(verdict, 'message')}{rule}"


def _cause(cause: Json) -> str:
    if not cause:
        return ""
    evidence = cause.get("evidence")
    shown = ", ".join(map(str, evidence)) if isinstance(evidence, list) else ""
    last = f": {text(cause, 'lastLine')}" if text(cause, "lastLine") else ""
    ends = count(cause, "ends") or 1
    more = f"; {ends - 1} more {'end' if ends == 2 else 'ends'} followed" if ends > 1 else ""
    return f"{text(cause, 'attempt')} {text(cause, 'cause')} ({shown}){last}{more}"


def _replica_hours(hours: Json) -> str:
    used_ms, limit_ms = count(hours, "usedMs"), count(hours, "limitMs")
    if used_ms is None or limit_ms is None:
        return ""
    used = used_ms / HOUR_MS
    shown = f"{used:.1f}" if used >= 1 or not used_ms else f"{used:.2g}"
    return f"{shown} of {limit_ms / HOUR_MS:g} replica hours used"


def _checkpoint(checkpoint: Json) -> str:
    return f"step {text(checkpoint, 'step')}, {text(checkpoint, 'path')}" if checkpoint else ""


def _ended(status: Json) -> str:
    took_ms = count(status, "durationMs")
    if took_ms is None:
        return ""
    return f"{local_time(status.get('endedAt'))}, after {short_duration(took_ms / 1000)}"


def _budgets(budgets: Json) -> str:
    parts = []
    for name in budgets:
        budget = mapping(budgets, name)
        of = f" of {text(budget, 'role')}" if text(budget, "role") else ""
        parts.append(f"{name}{of} {text(budget, 'used')} of {text(budget, 'limit')} used")
    return ", ".join(parts)


def _conditions(status: Json) -> str:
    held = [one for one in mappings(status, "conditions") if one.get("status") is True]
    return ", ".join(
        text(one, "type") + (f" ({text(one, 'message')})" if text(one, "message") else "")
        for one in held
    )


def show_roles(printer: Printer, status: Json) -> None:
    """Print how many replicas of each role are where."""
    printer.line()
    columns = ("replicas", "waiting", "delayed", "running", "ready", "completed", "failed")
    header = ("ROLE", *(one.upper() for one in columns), "ATTEMPTS", "SUCCESS", "RESTART")
    rows = []
    for name, role in mapping(status, "roles").items():
        if isinstance(role, dict):
            cells = [role.get(one) for one in (*columns, "attempts", "success", "restartUnit")]
            rows.append((name, *cells))
    printer.table(header, rows)


def show_streams(printer: Printer, status: Json) -> None:
    """Print how far each stream is read."""
    streams = mapping(status, "data")
    if not streams:
        return
    printer.line()
    header = ("STREAM", "PHASE", "EPOCH", "DONE", "OF", "UNIT", "PART", "PER SECOND", "LEFT")
    printer.table(header, [stream_row(name, mapping(streams, name)) for name in streams])


def stream_row(name: str, stream: Json) -> list[object]:
    """Return the cells of a stream in a table."""
    eta_ms, fraction = count(stream, "etaMs"), done_fraction(stream)
    return [
        name,
        text(stream, "phase") + (" (paused)" if stream.get("paused") is True else ""),
        f"{(count(stream, 'epoch') or 0) + 1}/{text(stream, 'epochs')}",
        grouped(stream.get("done")),
        _total(stream),
        text(stream, "unit"),
        f"{fraction * 100:.0f} %" if fraction is not None else "?",
        grouped(stream.get("perSecond")),
        short_duration(eta_ms / 1000) if eta_ms is not None else "",
    ]


def _total(stream: Json) -> str:
    """Return the total of a pass; a guess of it while not every file has been opened."""
    if count(stream, "total") is not None:
        return grouped(stream.get("total"))
    return f"~{grouped(stream.get('expected'))}" if count(stream, "expected") else "?"


def _replicas(printer: Printer, replicas: Json) -> None:
    printer.line()
    rows = [replica_row(printer, replica) for replica in mappings(replicas, "items")]
    printer.table(REPLICA_HEADER, rows)
    if text(replicas, "cursor"):
        printer.line("… more: primusctl get NAME --replicas")


def _restarts(printer: Printer, explained: Json) -> None:
    """Print why attempts began anew; why it waits and its verdict stand in the head."""
    for explanation in mappings(explained, "items"):
        if text(explanation, "question") == WHY_RESTARTED:
            printer.line()
            for line in explanation_lines(printer, explanation):
                printer.line(line)


def _events(printer: Printer, events: Json) -> None:
    printer.line()
    for event in mappings(events, "items"):
        printer.line(event_line(printer, event))


def event_line(printer: Printer, event: Json) -> str:
    """Return an event as one line."""
    level = text(event, "level")
    color = {"warning": "yellow", "error": "red"}.get(level, "")
    mark = {"warning": "!", "error": "!!"}.get(level, "")
    line = f"{local_time(event.get('at'))}  {mark:<2} {printable(text(event, 'message'))}"
    return printer.paint(color, line) if color else line


COMMANDS = {"describe": describe}
