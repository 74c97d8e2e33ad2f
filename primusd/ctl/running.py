"""run: a job from flags; "it runs what I would have run" (docs/config.md §6)."""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from primusd.ctl.call import Call, Verb, pass_call, shared_options
from primusd.ctl.client import Json
from primusd.ctl.failures import OK, USAGE, CtlError, UnreachableError
from primusd.ctl.files import JobFile, spec_failure
from primusd.ctl.submitting import print_submitted, submit_job
from primusd.ctl.verdicts import wait_for_verdict
from primusd.errors import PrimusdError
from primusd.jobfile import ParseContext, parse_document, to_yaml

TAKEN_ALONG = ("PATH", "VIRTUAL_ENV")
STREAM = "data"
_NO_LABEL = re.compile(r"[^a-z0-9]+")


@click.command(
    "run",
    cls=Verb,
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- CMD...")
@click.option("--workers", default=1, show_default=True, help="Replicas of the role worker.")
@click.option("--name", default="", help="Default: from the command and the time.")
@click.option(
    "--data", "data", multiple=True, metavar="GLOB", help="Files to read; may be repeated."
)
@click.option("--feed", type=click.Choice(["sdk", "stdin"]), default="sdk", show_default=True)
@click.option("--format", "format_", type=click.Choice(["text", "parquet"]), help="Of the data.")
@click.option("--epochs", default=1, show_default=True, help="Passes over the data.")
@click.option("--cpu", default="", help="Cores of a replica.")
@click.option("--memory", default="", metavar="4Gi", help="Of a replica.")
@click.option("--gpu", default=0, help="GPUs of a replica.")
@click.option("--env", "env", multiple=True, metavar="K=V", help="Variable of the trainer.")
@click.option("--workdir", default="", metavar="DIR", help="Default: here.")
@click.option("--framework", default="", help="none, torch, tensorflow-ps, …")
@click.option("--detach", "-d", is_flag=True, help="Do not wait for the verdict.")
@click.option("--print-spec", is_flag=True, help="Print the job file, submit nothing.")
@shared_options
@pass_call
def run(  # noqa: PLR0917 - click passes them by name
    call: Call,
    command: tuple[str, ...],
    workers: int,
    name: str,
    data: tuple[str, ...],
    feed: str,
    format_: str | None,
    epochs: int,
    cpu: str,
    memory: str,
    gpu: int,
    env: tuple[str, ...],
    workdir: str,
    framework: str,
    *,
    detach: bool,
    print_spec: bool,
) -> int:
    """Run a command as a job, and exit with its verdict.

    Example: primusctl run --workers 4 --data 'data/*.parquet' -- python train.py
    """
    role: Json = {
        "replicas": workers,
        "command": list(command),
        "workdir": str(Path(workdir or ".").absolute()),
        "env": {**(environment(call.environ) if _is_own(call) else {}), **_variables(env)},
        "feed": feed,
    }
    resources: Json = {"cpu": _cpu(cpu)} if cpu else {}
    resources |= {"memory": memory} if memory else {}
    resources |= {"gpu": gpu} if gpu else {}
    if resources:
        role["resources"] = resources
    document: Json = {
        "apiVersion": "primus/v1",
        "name": name or default_name(command),
        "namespace": call.namespace,
        "roles": {"worker": role},
    }
    if framework:
        document["framework"] = framework
    if data:
        role["data"] = STREAM
        stream: Json = {"sources": [{"files": one} for one in data], "epochs": epochs}
        document["data"] = {STREAM: stream | ({"format": format_} if format_ else {})}
    job = _parsed(document)
    if print_spec:
        sys.stdout.write(to_yaml(job.parsed.spec))
        return OK
    submitted = submit_job(call, job, key="", is_dry_run=False, waits_for_nodes=False)
    print_submitted(call, submitted)
    return OK if detach else wait_for_verdict(call, submitted)


def _is_own(call: Call) -> bool:
    """Return whether the daemon is this user's, so that what is here means the same to it."""
    try:
        address = call.client.address
    except UnreachableError:
        # Only --print-spec goes on from here: show what a daemon of one's own would get.
        return True
    path = address.removeprefix("unix:")
    try:
        return path != address and Path(path).stat().st_uid == os.geteuid()
    except OSError:
        # Nobody listens there, as the call will find.
        return False


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make a command mean what it means here."""
    return {key: environ[key] for key in TAKEN_ALONG if environ.get(key)}


def _variables(given: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for one in given:
        key, equals, value = one.partition("=")
        if not equals or not key:
            raise CtlError(f"--env {one!r} is not K=V", exit_code=USAGE)
        found[key] = value
    return found


def _cpu(text: str) -> float | int:
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError as error:
        raise CtlError(f"--cpu {text!r} is no number of cores", exit_code=USAGE) from error


def default_name(command: tuple[str, ...]) -> str:
    """Return a name made from the command and something that differs each time: `train-3f9a2c`."""
    scripts = [word for word in command if word.endswith((".py", ".sh"))]
    word = Path((scripts or list(command))[0]).stem.lower()
    label = _NO_LABEL.sub("-", word).strip("-")[:30].strip("-") or "run"
    return f"{label}-{os.urandom(3).hex()}" if label[0].isalpha() else f"run-{os.urandom(3).hex()}"


def _parsed(document: Json) -> JobFile:
    folder = Path.cwd()
    try:
        parsed = parse_document(
            document, filename="run", context=ParseContext(base_dir=str(folder))
        )
    except PrimusdError as error:
        failure = spec_failure(error, "run")
        if any(one.path == f"data.{STREAM}" for one in error.errors):
            failure.hint = "--format text, or --format parquet"
        raise failure from error
    for warning in parsed.warnings:
        sys.stderr.write(f"warning: {warning}\n")
    return JobFile(parsed, folder)


COMMANDS = {"run": run}
