"""Verbs on job files that change nothing: validate, plan, convert; and how every verb reads one."""

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from primusd.ctl.call import Call, Verb, pass_call, shared_options
from primusd.ctl.client import Json, job_path
from primusd.ctl.documents import mapping, mappings, text
from primusd.ctl.failures import USAGE, CtlError, fault_lines
from primusd.ctl.output import Printer
from primusd.errors import MalformedError, PrimusdError, SpecError, TooLargeError
from primusd.jobfile import (
    Conversion,
    ParseContext,
    Parsed,
    convert_file,
    parse,
    render,
    to_yaml,
    write_yaml,
)

STDIN = "-"
_DOCUMENT_FORMS = ("table", "wide", "json", "yaml")


class JobFile:
    """A job file that was read and is right.

    Attributes:
        parsed: What it asks for.
        folder: What its relative paths are relative to.
    """

    def __init__(self, parsed: Parsed, folder: Path) -> None:
        self.parsed = parsed
        self.folder = folder

    @property
    def document(self) -> Json:
        """The file with all its defaults, and where each value comes from; as it is submitted."""
        spec = self.parsed.spec
        return {"kind": "Job", "spec": render(spec), "origins": dict(self.parsed.origins)}


def read_job_file(
    path: str, *, sets: Sequence[str] = (), name: str = "", namespace: str = "default"
) -> JobFile:
    """Read and check a job file; warnings go to standard error.

    Raises:
        CtlError: It cannot be read, or is wrong: everything at once.
    """
    if path == STDIN:
        data, folder, filename = sys.stdin.buffer.read(), Path.cwd(), "stdin"
    else:
        data, folder, filename = _data(path), Path(path).absolute().parent, path
    context = ParseContext(base_dir=str(folder), name=name, namespace=namespace)
    try:
        parsed = parse(data, filename=filename, sets=sets, context=context)
    except (SpecError, MalformedError, TooLargeError) as error:
        raise spec_failure(error, filename) from error
    for warning in parsed.warnings:
        sys.stderr.write(f"warning: {warning}\n")
    return JobFile(parsed, folder)


def _data(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise CtlError(
            f"{path}: {str(reason).lower()}", hint="- reads standard input", exit_code=USAGE
        ) from error


def spec_failure(error: PrimusdError, filename: str) -> CtlError:
    """Return the failure of a file that is wrong: the faults one a line when there are several."""
    if len(error.errors) < 2:
        return CtlError(error.message, hint=error.hint, exit_code=USAGE)
    faults = [
        {
            "path": one.path,
            "at": one.at,
            "found": one.found,
            "allowed": list(one.allowed) if isinstance(one.allowed, tuple) else one.allowed,
            "hint": one.hint,
        }
        for one in error.errors
    ]
    return CtlError(
        f"{filename} has {len(faults)} errors", exit_code=USAGE, details=fault_lines(faults)
    )


@click.command("validate", cls=Verb)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--set", "sets", multiple=True, metavar="PATH=VALUE", help="In place of the file's.")
@shared_options
@pass_call
def validate(call: Call, files: tuple[str, ...], sets: tuple[str, ...]) -> None:
    """Check job files; every fault is told at once. Needs no daemon."""
    printer = call.printer_of(("table",))
    failed: list[CtlError] = []
    for path in files:
        try:
            spec = read_job_file(path, sets=sets, namespace=call.namespace).parsed.spec
        except CtlError as error:
            failed.append(error)
            continue
        if not call.is_quiet:
            roles = ", ".join(f"{role.replicas} {name}" for name, role in spec.roles.items())
            printer.line(f"{path}: ok: {spec.namespace}/{spec.name}, {roles}")
    if len(failed) > 1:
        details = [
            line for one in failed for line in (one.message, *map("  {}".format, one.details))
        ]
        raise CtlError(f"{len(failed)} files are wrong", exit_code=USAGE, details=details)
    if failed:
        raise failed[0]


@click.command("plan", cls=Verb)
@click.argument("file")
@click.option("--set", "sets", multiple=True, metavar="PATH=VALUE", help="In place of the file's.")
@click.option("--name", default="", help="In place of the file's.")
@shared_options
@pass_call
def plan(call: Call, file: str, sets: tuple[str, ...], name: str) -> None:
    """Show what a job file comes to: effective spec, rules, environment, what it would wait for."""
    printer = call.printer_of(_DOCUMENT_FORMS)
    job = read_job_file(file, sets=sets, name=name, namespace=call.namespace)
    namespace = job.parsed.spec.namespace
    path = f"/api/v1/namespaces/{namespace}/jobs"
    document = call.client.call("POST", path, query={"plan": "true"}, body=job.document)
    if printer.form in ("json", "yaml"):
        printer.document(document)
    else:
        _print_plan(printer, job, document)


def _print_plan(printer: Printer, job: JobFile, document: Json) -> None:
    spec = job.parsed.spec
    printer.line(f"{'job:':<10}{spec.namespace}/{spec.name}")
    start = document.get("start")
    for number, rule in enumerate(start if isinstance(start, list) else ()):
        printer.line(f"{'starts:' if number == 0 else '':<10}{rule}")
    printer.line(f"{'success:':<10}{text(document, 'success')}")
    failure = document.get("failure")
    for number, rule in enumerate(failure if isinstance(failure, list) else ()):
        printer.line(f"{'failure:' if number == 0 else '':<10}{rule}")
    wait = mapping(document, "wouldWait")
    waits = f"waits: {text(wait, 'message')} ({text(wait, 'reason')})" if wait else "starts at once"
    printer.line(f"{'now:':<10}{waits}")
    for change in mappings(document, "diff"):
        line = f"{text(change, 'path')}: {change.get('from', '-')} → {change.get('to', '-')}"
        printer.line(f"{'changes:':<10}{line}")
    printer.line()
    printer.line("spec, with all defaults:")
    for line in to_yaml(spec).splitlines():
        printer.line(f"  {line}")
    for replica, variables in mapping(document, "environment").items():
        printer.line()
        printer.line(f"environment of {replica}, beside what its node passes on:")
        if isinstance(variables, dict):
            for variable, value in variables.items():
                printer.line(f"  {variable}={value}")


@click.command("convert", cls=Verb)
@click.argument("file")
@click.option("--set", "sets", multiple=True, metavar="PATH=VALUE", help="In place of the file's.")
@shared_options
@pass_call
def convert(call: Call, file: str, sets: tuple[str, ...]) -> None:
    """Print an original Primus job file as primus/v1; fields without effect are named."""
    printer = call.printer_of(_DOCUMENT_FORMS, default="yaml")
    if not sets and (conversion := _conversion(file)) is not None:
        # Without defaults, and also where this build refuses part of it.
        for note in conversion.notes:
            sys.stderr.write(f"warning: {note}\n")
        if printer.form == "json":
            printer.document(dict(conversion.document))
        else:
            sys.stdout.write(write_yaml(conversion.document))
        return
    parsed = read_job_file(file, sets=sets, namespace=call.namespace).parsed
    if printer.form == "json":
        printer.document(render(parsed.spec))
    else:
        sys.stdout.write(to_yaml(parsed.spec))


def _conversion(file: str) -> Conversion | None:
    """Return an original job file in our form, None when it is one of ours."""
    if file == STDIN:
        return None
    try:
        return convert_file(_data(file), filename=file)
    except (SpecError, MalformedError, TooLargeError) as error:
        raise spec_failure(error, file) from error


def jobs_path(namespace: str) -> str:
    """Return the path of the jobs of a namespace."""
    return job_path(namespace, "").rstrip("/")


COMMANDS = {"validate": validate, "plan": plan, "convert": convert}
