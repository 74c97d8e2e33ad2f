"""Verbs that show jobs: list, get."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import click

from primusd.ctl.call import Call, Verb, pass_call, shared_options
from primusd.ctl.client import Client, Json, job_path
from primusd.ctl.documents import count, mapping, mappings, text
from primusd.ctl.output import Printer

PAGE_SIZE = "500"
LIST_FORMS = ("table", "wide", "json", "yaml", "name", "jsonl")
REPLICA_HEADER = ("REPLICA", "PHASE", "ATTEMPT", "STATE", "NODE", "SINCE", "LAST END")
GET_FORMS = ("table", "wide", "json", "yaml", "spec", "name")


def pages(client: Client, path: str, query: Mapping[str, str]) -> Iterator[Json]:
    """Yield every item of a list, page by page."""
    cursor = ""
    while True:
        document = client.get(path, {**query, "limit": PAGE_SIZE, "cursor": cursor})
        yield from mappings(document, "items")
        cursor = text(document, "cursor")
        if not cursor:
            return


def jobs_path(call: Call) -> str:
    """Return the path of the jobs in the namespaces that were asked for."""
    return (
        "/api/v1/jobs" if call.has_all_namespaces else f"/api/v1/namespaces/{call.namespace}/jobs"
    )


@click.command("list", cls=Verb)
@click.option("--phase", multiple=True, help="Only jobs in this phase; may be repeated.")
@click.option("-l", "--label", multiple=True, metavar="K=V", help="Only jobs with this label.")
@shared_options
@pass_call
def list_jobs(call: Call, phase: tuple[str, ...], label: tuple[str, ...]) -> None:
    """List jobs, the oldest first."""
    printer = call.printer_of(LIST_FORMS)
    query = {"phase": ",".join(phase), "label": ",".join(label)}
    jobs = pages(call.client, jobs_path(call), query)
    table = JobTable(
        _header(call, printer),
        lambda job: _row(call, printer, job),
        nothing="no jobs; submit one with: primusctl submit FILE",
    )
    print_jobs(call, printer, jobs, table)


class JobTable(NamedTuple):
    """How jobs are shown where people read them."""

    header: Sequence[str]
    row: Callable[[Json], Sequence[object]]
    nothing: str
    """The sentence in place of an empty table."""


def print_jobs(call: Call, printer: Printer, jobs: Iterator[Json], table: JobTable) -> None:
    """Print a list of jobs in the form that was asked for, as they come where the form allows."""
    match printer.form:
        case "jsonl":
            for job in jobs:
                printer.json_line(job)
        case "json" | "yaml":
            printer.document({"kind": "JobList", "items": list(jobs)})
        case "name":
            for job in jobs:
                printer.line(shown_name(call, job))
        case _:
            rows = [table.row(job) for job in jobs]
            if rows or not printer.is_terminal:
                printer.table(table.header, rows)
            elif not call.is_quiet:
                printer.line(table.nothing)


def shown_name(call: Call, job: Json) -> str:
    """Return a job's name, with its namespace where several are shown."""
    name = text(job, "name")
    return f"{text(job, 'namespace')}/{name}" if call.has_all_namespaces else name


def _header(call: Call, printer: Printer) -> list[str]:
    header = ["NAME", "PHASE", "REPLICAS", "DATA", "RESTARTS", "AGE"]
    if call.has_all_namespaces:
        header.insert(0, "NAMESPACE")
    return [*header, "UID", "GENERATION", "SUBMITTED BY", "WHY"] if printer.is_wide else header


def _row(call: Call, printer: Printer, job: Json) -> list[object]:
    status = mapping(job, "status")
    row: list[object] = [
        text(job, "name"),
        text(status, "phase"),
        replicas_text(status),
        data_text(status),
        restarts(status),
        printer.age(job.get("createdAt")),
    ]
    if call.has_all_namespaces:
        row.insert(0, text(job, "namespace"))
    if printer.is_wide:
        row += [
            text(job, "uid"),
            status.get("generation"),
            text(job, "submittedBy"),
            text(status, "message"),
        ]
    return row


def replicas_text(status: Json) -> str:
    """Return how many replicas run or are done, of how many: `3/4`."""
    roles = [one for one in mapping(status, "roles").values() if isinstance(one, dict)]
    is_over = bool(text(status, "endedAt"))
    there = sum(int(role["completed"]) + (0 if is_over else int(role["running"])) for role in roles)
    return f"{there}/{sum(int(role['replicas']) for role in roles)}"


def data_text(status: Json) -> str:
    """Return how much of the data is done, over all streams: `37 %`."""
    streams = [one for one in mapping(status, "data").values() if isinstance(one, dict)]
    parts = [fraction for one in streams if (fraction := done_fraction(one)) is not None]
    return f"{min(parts) * 100:.0f} %" if parts else "-"


def done_fraction(stream: Json) -> float | None:
    """Return which part of a stream is done, over all epochs; None while that is unknown."""
    if stream.get("phase") == "Done":
        return 1.0
    total = count(stream, "total")
    if total is None:
        total = count(stream, "expected")
    if total is None:
        return None
    epochs = max(1, count(stream, "epochs") or 1)
    passed = sum(count(stream, key) or 0 for key in ("done", "skipped", "dead"))
    done = passed + (count(stream, "epoch") or 0) * total
    return min(1.0, done / (total * epochs)) if total else None


def restarts(status: Json) -> int:
    """Return how many attempts came after the first of each replica."""
    roles = [one for one in mapping(status, "roles").values() if isinstance(one, dict)]
    return sum(max(0, int(role["attempts"]) - _begun(role)) for role in roles)


def _begun(role: Json) -> int:
    """Return how many replicas of a role had an attempt, those that were scaled away included.

    Who waits had none, as a rule; where nobody runs, as in a pause, who waits had.
    """
    phases = ("waiting", "delayed", "active", "completed", "failed", "retired")
    every = sum(int(str(role[phase])) for phase in phases)
    if role["delayed"] or role["active"]:
        return every - int(str(role["waiting"]))
    return min(every, int(str(role["attempts"])))


@click.command("get", cls=Verb)
@click.argument("name")
@click.option("--replicas", is_flag=True, help="Its replicas with their attempts instead.")
@shared_options
@pass_call
def get_job(call: Call, name: str, *, replicas: bool) -> None:
    """Show a job: -o json and yaml give the document, spec the job file; both can be submitted."""
    printer = call.printer_of(GET_FORMS)
    namespace, job_name = call.job(name)
    if replicas:
        _get_replicas(call, printer, job_path(namespace, job_name, "replicas"))
        return
    if printer.form == "spec":
        path = job_path(namespace, job_name, "spec")
        for part in call.client.parts(path, {"form": "yaml"}):
            printer.raw(part)
        return
    job = call.client.get(job_path(namespace, job_name))
    match printer.form:
        case "json" | "yaml":
            printer.document(job)
        case "name":
            printer.line(text(job, "name"))
        case _:
            printer.table(_header(call, printer), [_row(call, printer, job)])


def _get_replicas(call: Call, printer: Printer, path: str) -> None:
    found = list(pages(call.client, path, {}))
    match printer.form:
        case "json" | "yaml":
            printer.document({"kind": "ReplicaList", "items": found})
        case "name":
            for replica in found:
                printer.line(text(replica, "name"))
        case _:
            printer.table(REPLICA_HEADER, [replica_row(printer, one) for one in found])


def replica_row(printer: Printer, replica: Json) -> list[object]:
    """Return the cells of a replica in a table."""
    attempts = mappings(replica, "attempts")
    newest = attempts[-1] if attempts else {}
    return [
        text(replica, "name"),
        text(replica, "phase"),
        text(newest, "attempt"),
        text(newest, "phase"),
        text(newest, "node"),
        printer.age(newest.get("startedAt") or newest.get("requestedAt")),
        _last_end(attempts),
    ]


def _last_end(attempts: list[Json]) -> str:
    for attempt in reversed(attempts):
        outcome = mapping(attempt, "outcome")
        if outcome:
            code = count(outcome, "exitCode")
            shown = f" ({code})" if code else ""
            return f"{text(outcome, 'cause')}{shown}"
    return ""


COMMANDS = {"list": list_jobs, "get": get_job}
