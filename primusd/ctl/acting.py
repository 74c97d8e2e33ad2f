"""Verbs that a person acts with: cancel, restart, finish, delete; and stacks."""

import sys

import click

from primusd.ctl.call import Call, Verb, pass_call, shared_options
from primusd.ctl.client import Json, job_path
from primusd.ctl.documents import mapping, text
from primusd.ctl.failures import OK, USAGE, CtlError
from primusd.ctl.reading import jobs_path, pages
from primusd.ctl.verdicts import wait_for_verdict

_FORMS = ("table", "json", "yaml", "name")
LIVE_PHASES = "Queued,Starting,Running,Draining,Stopping,Suspended"


def act(call: Call, name: str, action: str, body: Json) -> Json:
    """Ask for an action on a job and return its document as it is then."""
    namespace, job_name = call.job(name)
    path = job_path(namespace, f"{job_name}:{action}")
    return call.client.call("POST", path, body=body)


def tell(call: Call, job: Json) -> None:
    """Print where a job stands after an action."""
    printer = call.printer_of(_FORMS)
    if printer.form in ("json", "yaml"):
        printer.document(job)
        return
    status = mapping(job, "status")
    then = f", then {text(status, 'then')}" if text(status, "then") else ""
    name = text(job, "name")
    line = name if printer.form == "name" else f"{name} {text(status, 'phase')}{then}"
    printer.line(line)


@click.command("cancel", cls=Verb)
@click.argument("names", nargs=-1, metavar="NAME...")
@click.option(
    "--all", "takes_all", is_flag=True, help="Every live job of the namespace (-A: of all)."
)
@click.option("--reason", default="", help="Kept in the journal.")
@click.option("--wait", is_flag=True, help="Until nothing of it is left.")
@shared_options
@pass_call
def cancel(call: Call, names: tuple[str, ...], reason: str, *, takes_all: bool, wait: bool) -> int:
    """Stop jobs for good; one that has ended stays as it is."""
    if takes_all == bool(names):
        raise CtlError("name jobs, or --all", exit_code=USAGE)
    if takes_all:
        found = pages(call.client, jobs_path(call), {"phase": LIVE_PHASES})
        names = tuple(f"{text(job, 'namespace')}/{text(job, 'uid')}" for job in found)
    jobs = [act(call, name, "cancel", {"reason": reason}) for name in names]
    for job in jobs:
        tell(call, job)
    for job in jobs if wait else ():
        wait_for_verdict(call, job)
    return OK


@click.command("restart", cls=Verb)
@click.argument("name")
@click.argument("replicas", nargs=-1, metavar="[REPLICA|ROLE]...")
@click.option("--reason", default="", help="Kept in the journal.")
@shared_options
@pass_call
def restart(call: Call, name: str, replicas: tuple[str, ...], reason: str) -> None:
    """Restart replicas (worker-3), whole roles (worker), or without any all of a job."""
    named = [one for one in replicas if one.rpartition("-")[2].isdecimal()]
    roles = [one for one in replicas if one not in named]
    body: Json = {"roles": roles, "replicas": named, "reason": reason}
    tell(call, act(call, name, "restart", body))


@click.command("finish", cls=Verb)
@click.argument("name")
@click.option(
    "--as", "as_phase", type=click.Choice(["Succeeded", "Failed"]), required=True, help="Verdict."
)
@click.option("--reason", required=True, help="Why; shown with the verdict.")
@shared_options
@pass_call
def finish(call: Call, name: str, as_phase: str, reason: str) -> None:
    """End a job with a verdict that you decide."""
    tell(call, act(call, name, "finish", {"as": as_phase, "reason": reason}))


@click.command("delete", cls=Verb)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@shared_options
@pass_call
def delete(call: Call, names: tuple[str, ...]) -> None:
    """Forget ended jobs: their records and logs."""
    for name in names:
        namespace, job_name = call.job(name)
        job = call.client.call("DELETE", job_path(namespace, job_name))
        if not call.is_quiet:
            call.printer_of(_FORMS).line(f"{text(job, 'name')} deleted")


@click.command("stacks", cls=Verb)
@click.argument("name")
@click.argument("replica")
@shared_options
@pass_call
def stacks(call: Call, name: str, replica: str) -> None:
    """Show what every thread of a trainer is doing now."""
    call.printer_of(("table",))
    namespace, job_name = call.job(name)
    for part in call.client.parts(job_path(namespace, job_name, "replicas", replica, "stacks")):
        sys.stdout.buffer.write(part)


COMMANDS = {
    "cancel": cancel,
    "restart": restart,
    "finish": finish,
    "delete": delete,
    "stacks": stacks,
}
