"""Waiting for the verdict of a job, with its progress, and telling it."""

from primusd.ctl.call import Call
from primusd.ctl.client import Json
from primusd.ctl.documents import mapping, text
from primusd.ctl.failures import verdict_exit_code
from primusd.ctl.progress import Progress
from primusd.ctl.waiting import FINAL_PHASES, detached, follow_job

_FORMS = ("table", "json", "yaml", "name")


def wait_for_verdict(call: Call, job: Json, *, deadline_s: float = 0.0) -> int:
    """Show a job's progress until its end, and return the verdict's exit code.

    Args:
        call: Of the verb that waits.
        job: As it is now.
        deadline_s: On the monotonic clock; 0 none.

    Raises:
        CtlError: The deadline passed, or the job's record went.
    """
    namespace, name, uid = (text(job, key) for key in ("namespace", "name", "uid"))
    shown = name if namespace == call.namespace else f"{namespace}/{name}"
    with (
        detached(f"primusctl wait {shown}", job=shown),
        Progress(is_quiet=call.is_quiet) as progress,
    ):
        documents = follow_job(call.client, namespace, uid, until=is_over, deadline_s=deadline_s)
        for document in documents:
            job = document
            progress.show(job)
    status = mapping(job, "status")
    if not call.is_quiet:
        tell_verdict(call, shown, status)
    return verdict_exit_code(status)


def is_over(job: Json) -> bool:
    """Return whether a job has ended."""
    return text(mapping(job, "status"), "phase") in FINAL_PHASES


def tell_verdict(call: Call, name: str, status: Json) -> None:
    """Print how a job ended, and what to look at."""
    verdict, cause = mapping(status, "verdict"), mapping(status, "firstCause")
    phase = text(status, "phase")
    printer = call.printer_of(_FORMS)
    color = {"Succeeded": "green", "Failed": "red"}.get(phase, "yellow")
    message = text(verdict, "message")
    printer.line(f"{name} {printer.paint(color, phase)}{': ' + message if message else ''}")
    if phase == "Failed" and cause:
        last = text(cause, "lastLine")
        printer.line(f"  first cause: {text(cause, 'attempt')} {text(cause, 'cause')}"
                     + (f": {last}" if last else ""))  # fmt: skip
        printer.line(f"  look at: primusctl describe {name}; primusctl logs {name}")
