"""submit: a job file, with the files it ships, to the daemon; and waiting for its verdict."""

import os
import sys

import click
from msgspec.structs import replace

from primusd.ctl.call import Call, Verb, pass_call, shared_options
from primusd.ctl.client import Json
from primusd.ctl.documents import text
from primusd.ctl.failures import OK, USAGE, CtlError
from primusd.ctl.files import JobFile, jobs_path, read_job_file
from primusd.jobfile import Parsed
from primusd.jobfile.promises import restore_of

_FORMS = ("table", "json", "yaml", "name")


def submit_job(
    call: Call, job: JobFile, *, key: str, is_dry_run: bool, waits_for_nodes: bool
) -> Json:
    """Send a job with its files and return its document; of a dry run its plan."""

    def tell(line: str) -> None:
        if not call.is_quiet:
            sys.stderr.write(f"{line}\n")

    spec = job.parsed.spec
    if spec.files and not is_dry_run:
        from primusd.ctl.packing import ship  # noqa: PLC0415 - most jobs ship nothing

        spec = ship(spec, job.folder, call.client, tell)
    sent = JobFile(Parsed(spec, job.parsed.origins), job.folder)
    query = {"dryRun": "true"} if is_dry_run else {}
    if waits_for_nodes:
        query["waitForNodes"] = "true"
    # The key is made once per call: a repeat after a lost answer finds the job of the first try.
    headers = {"Idempotency-Key": key or os.urandom(16).hex()}
    path = jobs_path(spec.namespace)
    return call.client.call("POST", path, query=query, body=sent.document, headers=headers)


def print_submitted(call: Call, job: Json) -> None:
    """Print the job's name as the first word, and what to try next."""
    printer = call.printer_of(_FORMS)
    namespace, name = text(job, "namespace"), text(job, "name")
    if printer.form in ("json", "yaml"):
        printer.document(job)
        return
    shown = name if namespace == call.namespace else f"{namespace}/{name}"
    if printer.form == "name" or call.is_quiet:
        printer.line(shown)
        return
    printer.line(f"{shown} submitted ({text(job, 'uid')})")
    for verb in ("wait", "logs -f", "describe"):
        first, *flags = verb.split()
        printer.line(f"  primusctl {' '.join([first, shown, *flags])}")
    sys.stdout.flush()


@click.command("submit", cls=Verb)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--wait", is_flag=True, help="Show progress, exit with the verdict.")
@click.option("--set", "sets", multiple=True, metavar="PATH=VALUE", help="In place of the file's.")
@click.option("--name", default="", help="In place of the file's.")
@click.option("--key", default="", help="Idempotency key; default: made per call.")
@click.option("--dry-run", is_flag=True, help="Check everything, submit nothing.")
@click.option("--restore", default="", metavar="JOB[/SAVEPOINT]", help="Where its data starts.")
@click.option("--wait-for-nodes", is_flag=True, help="Queue it though no node could hold it.")
@shared_options
@pass_call
def submit(  # noqa: PLR0917 - click passes them by name
    call: Call,
    files: tuple[str, ...],
    sets: tuple[str, ...],
    name: str,
    key: str,
    restore: str,
    *,
    wait: bool,
    dry_run: bool,
    wait_for_nodes: bool,
) -> int:
    """Submit job files; - reads standard input."""
    if len(files) > 1 and (name or key):
        raise CtlError("--name and --key are for one file", exit_code=USAGE)
    read = [read_job_file(path, sets=sets, name=name, namespace=call.namespace) for path in files]
    read = [_starting_at(job, restore) for job in read] if restore else read
    submitted = []
    for job in read:
        document = submit_job(
            call, job, key=key, is_dry_run=dry_run, waits_for_nodes=wait_for_nodes
        )
        if dry_run:
            _print_dry_run(call, job, document)
        else:
            print_submitted(call, document)
            submitted.append(document)
    if not wait:
        return OK
    from primusd.ctl.verdicts import wait_for_verdict  # noqa: PLC0415 - seldom needed

    return max((wait_for_verdict(call, job) for job in submitted), default=OK)


def _starting_at(job: JobFile, restore: str) -> JobFile:
    """Return a job whose only stream starts at another job's savepoint."""
    spec = job.parsed.spec
    found = restore_of(restore)
    if found is None:
        raise CtlError(f"--restore {restore!r} is no JOB/SAVEPOINT", exit_code=USAGE)
    if len(spec.data) != 1:
        names = ", ".join(spec.data) or "none"
        raise CtlError(
            f"--restore is for a job with one stream; this one has {names}",
            hint=f"--set data.NAME.restore={restore}",
            exit_code=USAGE,
        )
    ((name, stream),) = spec.data.items()
    data = {name: replace(stream, restore=found, staging="")}
    return JobFile(Parsed(replace(spec, data=data), job.parsed.origins), job.folder)


def _print_dry_run(call: Call, job: JobFile, plan: Json) -> None:
    """Print what would be submitted; as a document, its plan."""
    printer = call.printer_of(_FORMS)
    if printer.form in ("json", "yaml"):
        printer.document(plan)
        return
    spec = job.parsed.spec
    shown = f"{spec.namespace}/{spec.name}"
    printer.line(shown if printer.form == "name" else f"{shown} would be submitted")


COMMANDS = {"submit": submit}
