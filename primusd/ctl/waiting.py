"""wait, and what submit and run do while they wait: follow a job to its end."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from primusd.ctl.call import Call, Verb, duration_s, pass_call, shared_options
from primusd.ctl.client import Client, Json, job_path
from primusd.ctl.documents import mapping, text
from primusd.ctl.failures import (
    INTERRUPTED,
    NOT_FOUND,
    OK,
    TIMED_OUT,
    USAGE,
    ApiError,
    CtlError,
    DetachedError,
    UnreachableError,
    verdict_exit_code,
)

FINAL_PHASES = frozenset({"Succeeded", "Failed", "Cancelled"})
PHASES = (
    "Queued",
    "Starting",
    "Running",
    "Draining",
    "Stopping",
    "Suspended",
    "Succeeded",
    "Failed",
    "Cancelled",
)
_FORMS = ("table", "json", "yaml")
SILENCE_S = 30.0
AWAY_S = 60.0
"""A daemon may restart meanwhile: for so long it is waited for."""
RETRY_S = 0.3
STARTING_STATUS = 503
"""It answers, and does not lead yet."""


@contextmanager
def detached(again: str, *, job: str = "") -> Iterator[None]:
    """Let Ctrl-C leave the job alone, and say how to come back and how to end it."""
    try:
        yield
    except KeyboardInterrupt:
        ends = f"; end it: primusctl cancel {job}" if job else ""
        runs = "the job runs on; " if job else ""
        message = f"detached: {runs}come back: {again}{ends}"
        raise DetachedError(message, exit_code=INTERRUPTED) from None


def follow_job(
    client: Client, namespace: str, uid: str, *, until: Callable[[Json], bool], deadline_s: float
) -> Iterator[Json]:
    """Yield the job's document at each change, until it is as wanted; the last one is.

    Live values make no change: they are as of the newest one, and at most 10 s old. A daemon that
    restarts is waited for.

    Args:
        client: Of the daemon.
        namespace: Of the job.
        uid: Of the job.
        until: Whether a document is as wanted.
        deadline_s: On the monotonic clock; 0 none.

    Raises:
        CtlError: The deadline passed, or the job's record went.
        UnreachableError: The daemon stayed away.
    """
    heard_s = time.monotonic()
    while True:
        try:
            for job in _changes(client, namespace, uid, deadline_s):
                heard_s = time.monotonic()
                yield job
                if until(job):
                    return
                _check_deadline(deadline_s)
        except (UnreachableError, ApiError) as error:
            if not _is_away(error) or time.monotonic() - heard_s > AWAY_S:
                raise
        _check_deadline(deadline_s)
        time.sleep(RETRY_S)


def resumed(
    client: Client, lines: Callable[[], Iterator[bytes]], *, is_over: Callable[[], bool]
) -> Iterator[Json]:
    """Yield what a stream says; one that breaks off is opened anew.

    Args:
        client: Of the daemon; one that restarts is waited for.
        lines: Opens the stream, each time behind what was yielded.
        is_over: Whether an end of the stream is its true one.

    Raises:
        ApiError: The daemon refused.
        UnreachableError: It stayed away.
    """
    while True:
        try:
            for line in lines():
                yield json.loads(line)
            if is_over():
                return
        except (UnreachableError, ApiError) as error:
            if not _is_away(error):
                raise
        time.sleep(RETRY_S)
        _wait_until_back(client)


def _wait_until_back(client: Client) -> None:
    end_s = time.monotonic() + AWAY_S
    while True:
        try:
            client.exists("/readyz")
            return
        except ApiError:
            # It answers: what is wrong with it the stream is told.
            return
        except UnreachableError:
            if time.monotonic() > end_s:
                raise
        time.sleep(RETRY_S)


def _is_away(error: UnreachableError | ApiError) -> bool:
    return isinstance(error, UnreachableError) or error.status == STARTING_STATUS


def _changes(client: Client, namespace: str, uid: str, deadline_s: float) -> Iterator[Json]:
    """Yield the job's documents, at each bookmark too. Ends when the watch does."""
    path, query = job_path(namespace, uid), {"watch": "1"}
    silence_s = SILENCE_S
    if deadline_s:
        silence_s = max(0.1, min(SILENCE_S, deadline_s - time.monotonic()))
    for line in client.lines(path, query, silence_s=silence_s):
        found = json.loads(line)
        match found.get("type"):
            case "ADDED" | "MODIFIED":
                yield mapping(found, "object")
            case "DELETED":
                raise CtlError(f"the job {uid} was deleted meanwhile", exit_code=NOT_FOUND)
            case "ERROR":
                return
            case _:
                yield client.get(path)


def _check_deadline(deadline_s: float) -> None:
    if deadline_s and time.monotonic() >= deadline_s:
        raise CtlError("timed out waiting", hint="a longer --timeout", exit_code=TIMED_OUT)


def wait_until(
    call: Call, job: Json, goal: str, *, until: Callable[[Json], bool], timeout: str = ""
) -> Json:
    """Return a job's document once it is as wanted; Ctrl-C leaves it alone.

    Args:
        call: Of the verb that waits.
        job: As it is now.
        goal: What is waited for, in a word.
        until: Whether a document is as wanted.
        timeout: As a person wrote it; "" for ever.

    Raises:
        CtlError: The job ended otherwise, or the time is over.
    """
    namespace, name, uid = (text(job, key) for key in ("namespace", "name", "uid"))
    deadline_s = time.monotonic() + duration_s(timeout, "--timeout") if timeout else 0.0

    def is_settled(document: Json) -> bool:
        return until(document) or text(mapping(document, "status"), "phase") in FINAL_PHASES

    with detached(f"primusctl wait {name}", job=name):
        documents = follow_job(call.client, namespace, uid, until=is_settled, deadline_s=deadline_s)
        for document in documents:
            job = document
    if not until(job):
        phase = text(mapping(job, "status"), "phase")
        raise CtlError(f"{name} is {phase}: it never will be {goal}")
    return job


@click.command("wait", cls=Verb)
@click.argument("name")
@click.option("--for", "what", default="ended", metavar="phase=P|ended", show_default=True)
@click.option("--timeout", default="", metavar="10m", help="Give up after so long; exit code 6.")
@shared_options
@pass_call
def wait(call: Call, name: str, what: str, timeout: str) -> int:
    """Wait until a job is in a phase, or ended; ended: exits with the verdict's code."""
    printer = call.printer_of(_FORMS)
    phase = _wanted_phase(what)
    deadline_s = time.monotonic() + duration_s(timeout, "--timeout") if timeout else 0.0
    namespace, job_name = call.job(name)
    job = call.client.get(job_path(namespace, job_name))

    def until(document: Json) -> bool:
        now = text(mapping(document, "status"), "phase")
        return now in FINAL_PHASES or now == phase

    with detached(f"primusctl wait {name} --for {what}", job=name):
        documents = follow_job(
            call.client, namespace, text(job, "uid"), until=until, deadline_s=deadline_s
        )
        for document in documents:
            job = document
    status = mapping(job, "status")
    now = text(status, "phase")
    if printer.form in ("json", "yaml"):
        printer.document(job)
    elif not call.is_quiet:
        printer.line(now)
    if not phase:
        return verdict_exit_code(status)
    if now != phase:
        raise CtlError(f"{name} is {now}: it never will be {phase}")
    return OK


def _wanted_phase(what: str) -> str:
    """Return the phase to wait for; "" any end."""
    if what == "ended":
        return ""
    kind, _, phase = what.partition("=")
    if kind != "phase" or phase not in PHASES:
        raise CtlError(
            f"--for {what} is nothing to wait for",
            hint=f"ended, or phase= and one of {' '.join(PHASES)}",
            exit_code=USAGE,
        )
    return phase


COMMANDS = {"wait": wait}
