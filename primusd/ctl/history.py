"""history: jobs that have ended, the newest first."""

import click

from primusd.ctl.call import Call, Verb, pass_call, shared_options
from primusd.ctl.documents import count, mapping, text
from primusd.ctl.output import short_duration
from primusd.ctl.reading import LIST_FORMS, JobTable, pages, print_jobs, shown_name

HEADER = ("NAME", "ENDED", "AFTER", "PHASE", "REASON", "MESSAGE", "UID")


@click.command("history", cls=Verb)
@click.option("--phase", multiple=True, help="Only jobs that ended so; may be repeated.")
@click.option("-l", "--label", multiple=True, metavar="K=V", help="Only jobs with this label.")
@shared_options
@pass_call
def history(call: Call, phase: tuple[str, ...], label: tuple[str, ...]) -> None:
    """List jobs that have ended, the newest first, with their verdicts."""
    printer = call.printer_of(LIST_FORMS)
    query = {"phase": ",".join(phase), "label": ",".join(label)}
    if not call.has_all_namespaces:
        query["namespace"] = call.namespace
    jobs = pages(call.client, "/api/v1/history", query)
    table = JobTable(
        HEADER,
        lambda job: _row(shown_name(call, job), job, printer.age(_ended(job))),
        nothing="no job has ended yet",
    )
    print_jobs(call, printer, jobs, table)


def _ended(job: dict[str, object]) -> object:
    return mapping(job, "status").get("endedAt")


def _row(name: str, job: dict[str, object], age: str) -> list[object]:
    status = mapping(job, "status")
    verdict = mapping(status, "verdict")
    duration_ms = count(status, "durationMs")
    return [
        name,
        f"{age} ago",
        short_duration(duration_ms / 1000) if duration_ms is not None else "",
        text(status, "phase"),
        text(verdict, "reason"),
        text(verdict, "message"),
        text(job, "uid"),
    ]


COMMANDS = {"history": history}
