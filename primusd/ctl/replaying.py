"""replay: a job as it was at a time, or after one of its events."""

import click

from primusd.ctl.call import Call, Verb, pass_call, shared_options
from primusd.ctl.client import Json, job_path
from primusd.ctl.describing import event_line, show_head, show_roles, show_streams
from primusd.ctl.documents import mapping, mappings, text
from primusd.ctl.explaining import explanation_lines
from primusd.ctl.failures import USAGE, CtlError
from primusd.ctl.output import Printer, local_time, printable
from primusd.ctl.reading import REPLICA_HEADER, replica_row

_FORMS = ("table", "wide", "json", "yaml")
REPLICAS_SHOWN = 50


@click.command("replay", cls=Verb)
@click.argument("name")
@click.option("--at", default="", metavar="T", help="10m ago, or 2026-01-02T03:04:05Z.")
@click.option("--event", default="", metavar="ID", help="An event's id, or a revision.")
@shared_options
@pass_call
def replay(call: Call, name: str, at: str, event: str) -> None:
    """Show a job as it was: state, what had to be in motion, and why it waited or restarted."""
    if bool(at) == bool(event):
        raise CtlError(
            "say --at or --event", hint=f"primusctl events {name} -o json", exit_code=USAGE
        )
    printer = call.printer_of(_FORMS)
    namespace, job_name = call.job(name)
    query = {"at": at} if at else {"event": event}
    found = call.client.get(job_path(namespace, job_name, "replay"), query)
    if printer.form in ("json", "yaml"):
        printer.document(found)
        return
    _show(printer.as_of(found.get("at")), found)


def _show(printer: Printer, found: Json) -> None:
    job = mapping(found, "job")
    revision = text(found, "revision")
    printer.line(f"{'as of':<12} {local_time(found.get('at'))}, revision {revision}")
    if not text(mapping(found, "reach"), "clusterFrom"):
        printer.line(f"{'':<12} (the queue and the nodes of that time are not known any more)")
    show_head(printer, job)
    show_roles(printer, mapping(job, "status"))
    show_streams(printer, mapping(job, "status"))
    printer.line()
    rows = [replica_row(printer, one) for one in mappings(found, "replicas")[:REPLICAS_SHOWN]]
    printer.table(REPLICA_HEADER, rows)
    for title, lines in (
        ("what the entry told:", [event_line(printer, one) for one in mappings(found, "events")]),
        ("what had to be in motion:", [_command(one) for one in mappings(found, "plan")]),
    ):
        if lines:
            printer.line()
            printer.line(title)
            for line in lines:
                printer.line(f"  {line}")
    for explanation in mappings(found, "explanations"):
        printer.line()
        for line in explanation_lines(printer, explanation):
            printer.line(line)


def _command(command: Json) -> str:
    words = [f"{key} {value}" for key, value in command.items() if key != "command"]
    return printable(f"{text(command, 'command')} {', '.join(words)}".rstrip())


COMMANDS = {"replay": replay}
