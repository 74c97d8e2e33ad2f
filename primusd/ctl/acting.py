"""Verbs that a person acts with: cancel, suspend, resume, restart, scale, set, finish, delete."""

import sys
import time
from collections.abc import Callable, Sequence

import click

from primusd.ctl.call import Call, Verb, duration_s, pass_call, shared_options
from primusd.ctl.client import Json, job_path
from primusd.ctl.documents import count, mapping, text
from primusd.ctl.failures import OK, USAGE, ApiError, CtlError
from primusd.ctl.reading import jobs_path, pages
from primusd.ctl.verdicts import wait_for_verdict
from primusd.ctl.waiting import wait_until

_FORMS = ("table", "json", "yaml", "name")
NOT_THERE = 404
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


_reason_option = click.option("--reason", default="", help="Kept in the journal.")
_timeout_option = click.option(
    "--timeout", default="", metavar="10m", help="With --wait: give up after so long; exit code 6."
)


def _deadline_s(timeout: str) -> float:
    """Return when a wait is given up, on the monotonic clock; 0.0 never."""
    return time.monotonic() + duration_s(timeout, "--timeout") if timeout else 0.0


@click.command("cancel", cls=Verb)
@click.argument("names", nargs=-1, metavar="NAME...")
@click.option(
    "--all", "takes_all", is_flag=True, help="Every live job of the namespace (-A: of all)."
)
@_reason_option
@click.option("--wait", is_flag=True, help="Until nothing of it is left.")
@_timeout_option
@shared_options
@pass_call
def cancel(
    call: Call, names: tuple[str, ...], reason: str, timeout: str, *, takes_all: bool, wait: bool
) -> int:
    """Stop jobs for good; one that has ended stays as it is."""
    deadline_s = _deadline_s(timeout)
    if takes_all == bool(names):
        raise CtlError("name jobs, or --all", exit_code=USAGE)
    if takes_all:
        found = pages(call.client, jobs_path(call), {"phase": LIVE_PHASES})
        names = tuple(f"{text(job, 'namespace')}/{text(job, 'uid')}" for job in found)
    jobs, failures = [], []
    for name in names:
        try:
            jobs.append(act(call, name, "cancel", {"reason": reason}))
        except ApiError as error:
            if not (takes_all and error.status == NOT_THERE):
                failures.append(error)
            continue
        tell(call, jobs[-1])
    for job in jobs if wait else ():
        wait_for_verdict(call, job, deadline_s=deadline_s)
    _raise_all(failures)
    return OK


def _raise_all(failures: Sequence[ApiError]) -> None:
    """Raise what went wrong with some of several jobs, now that the others are done with."""
    if failures:
        first, *others = failures
        more = [line for one in others for line in (one.message, *one.details)]
        raise CtlError(
            first.message,
            hint=first.hint,
            exit_code=first.exit_code,
            details=[*first.details, *more],
        )


def _in_phase(phase: str) -> Callable[[Json], bool]:
    return lambda job: text(mapping(job, "status"), "phase") == phase


def _settle(
    call: Call, job: Json, goal: str, until: Callable[[Json], bool], *, wait: bool, timeout: str
) -> None:
    """Tell where a job stands, at once or once it is as wanted."""
    if wait:
        job = wait_until(call, job, goal, until=until, timeout=timeout)
    tell(call, job)


@click.command("suspend", cls=Verb)
@click.argument("name")
@_reason_option
@click.option("--wait", is_flag=True, help="Until nothing of it runs.")
@_timeout_option
@shared_options
@pass_call
def suspend(call: Call, name: str, reason: str, timeout: str, *, wait: bool) -> None:
    """Stop a job's trainers and free its places; its data rests, its deadline stands still."""
    job = act(call, name, "suspend", {"reason": reason})
    _settle(call, job, "Suspended", _in_phase("Suspended"), wait=wait, timeout=timeout)


@click.command("resume", cls=Verb)
@click.argument("name")
@_reason_option
@click.option("--wait", is_flag=True, help="Until it runs.")
@_timeout_option
@shared_options
@pass_call
def resume(call: Call, name: str, reason: str, timeout: str, *, wait: bool) -> None:
    """Let a suspended job go on: it takes its turn in its queue."""
    job = act(call, name, "resume", {"reason": reason})
    _settle(call, job, "Running", _in_phase("Running"), wait=wait, timeout=timeout)


@click.command("scale", cls=Verb)
@click.argument("name")
@click.argument("sizes", nargs=-1, required=True, metavar="ROLE=N...")
@click.option("--wait", is_flag=True, help="Until so many run, and no more.")
@_timeout_option
@shared_options
@pass_call
def scale(call: Call, name: str, sizes: tuple[str, ...], timeout: str, *, wait: bool) -> None:
    """Change how many replicas roles have, within the bounds of the job file: worker=8 ps=2."""
    wanted = dict(map(_size, sizes))
    job = act(call, name, "scale", dict(wanted))

    def is_scaled(document: Json) -> bool:
        roles = mapping(mapping(document, "status"), "roles")
        return _in_phase("Running")(document) and all(
            _has_size(mapping(roles, role), size) for role, size in wanted.items()
        )

    _settle(call, job, "of that size", is_scaled, wait=wait, timeout=timeout)


def _size(text_: str) -> tuple[str, int]:
    role, equals, size = text_.partition("=")
    if not role or not equals or not (size.isascii() and size.isdecimal() and len(size) < 10):
        raise CtlError(
            f"{text_!r} is no size of a role",
            hint="primusctl scale NAME worker=8",
            exit_code=USAGE,
        )
    return role, int(size)


def _has_size(role: Json, size: int) -> bool:
    done = (count(role, "completed") or 0) + (count(role, "failed") or 0)
    return count(role, "replicas") == size and (count(role, "running") or 0) + done == size


@click.command("set", cls=Verb)
@click.argument("name")
@click.argument("fields", nargs=-1, required=True, metavar="FIELD=VALUE...")
@shared_options
@pass_call
def set_fields(call: Call, name: str, fields: tuple[str, ...]) -> None:
    """Change a living job: priority=60 deadline=48h labels.team=ads; =null is the default."""
    from primusd.errors import PrimusdError  # noqa: PLC0415 - seldom needed
    from primusd.jobfile.setting import read_sets  # noqa: PLC0415 - seldom needed

    try:
        assignments, variables = read_sets(fields)
    except PrimusdError as error:
        raise CtlError(error.message, exit_code=USAGE) from error
    if variables:
        raise CtlError(
            f"{next(iter(variables))!r} is no field of a job",
            hint="primusctl set NAME priority=60",
            exit_code=USAGE,
        )
    patch: Json = {}
    for one in assignments:
        target = patch
        for part in one.path[:-1]:
            target = target.setdefault(str(part), {})  # type: ignore[assignment] # made here
        target[str(one.path[-1])] = one.value
    namespace, job_name = call.job(name)
    path = job_path(namespace, job_name)
    tell(call, call.client.call("PATCH", path, body={"spec": patch}))


@click.command("restart", cls=Verb)
@click.argument("name")
@click.argument("parts", nargs=-1, metavar="[REPLICA|ROLE]...")
@click.option("--role", "roles", multiple=True, metavar="ROLE", help="All replicas of a role.")
@click.option("--replica", "replicas", multiple=True, metavar="REPLICA", help="As worker-3.")
@_reason_option
@click.option("--wait", is_flag=True, help="Until all that was restarted runs again.")
@_timeout_option
@shared_options
@pass_call
def restart(
    call: Call,
    name: str,
    *,
    parts: tuple[str, ...],
    roles: tuple[str, ...],
    replicas: tuple[str, ...],
    reason: str,
    timeout: str,
    wait: bool,
) -> None:
    """Restart replicas (worker-3), whole roles (worker), or without any all of a job."""
    named = [one for one in parts if one.rpartition("-")[2].isdecimal()]
    whole = [one for one in parts if one not in named]
    body: Json = {
        "roles": [*whole, *roles],
        "replicas": [*named, *replicas],
        "reason": reason,
    }
    namespace, job_name = call.job(name)
    before = call.client.get(job_path(namespace, job_name)) if wait else {}
    job = act(call, name, "restart", body)

    def is_back(document: Json) -> bool:
        return _in_phase("Running")(document) and _runs_anew(before, document)

    _settle(call, job, "running again", is_back, wait=wait, timeout=timeout)


def _runs_anew(before: Json, now: Json) -> bool:
    """Return whether new attempts began, and every replica runs or is done."""
    old = mapping(mapping(before, "status"), "roles")
    new = mapping(mapping(now, "status"), "roles")
    begun = sum(
        (count(mapping(new, role), "attempts") or 0) - (count(mapping(old, role), "attempts") or 0)
        for role in new
    )
    return begun > 0 and all(
        _has_size(mapping(new, role), count(mapping(new, role), "replicas") or 0) for role in new
    )


@click.command("finish", cls=Verb)
@click.argument("name")
@click.option(
    "--as",
    "as_phase",
    type=click.Choice(["Succeeded", "Failed"], case_sensitive=False),
    required=True,
    help="Verdict.",
)
@click.option("--reason", required=True, help="Why; shown with the verdict.")
@click.option("--wait", is_flag=True, help="Until nothing of it is left.")
@_timeout_option
@shared_options
@pass_call
def finish(call: Call, name: str, as_phase: str, reason: str, timeout: str, *, wait: bool) -> int:
    """End a job with a verdict that you decide."""
    deadline_s = _deadline_s(timeout)
    job = act(call, name, "finish", {"as": as_phase.capitalize(), "reason": reason})
    tell(call, job)
    return wait_for_verdict(call, job, deadline_s=deadline_s) if wait else OK


@click.command("delete", cls=Verb)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@shared_options
@pass_call
def delete(call: Call, names: tuple[str, ...]) -> None:
    """Forget ended jobs: their records and logs."""
    failures = []
    for name in names:
        namespace, job_name = call.job(name)
        try:
            job = call.client.call("DELETE", job_path(namespace, job_name))
        except ApiError as error:
            failures.append(error)
            continue
        if not call.is_quiet:
            call.printer_of(_FORMS).line(f"{text(job, 'name')} deleted")
    _raise_all(failures)


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
    "suspend": suspend,
    "resume": resume,
    "restart": restart,
    "scale": scale,
    "set": set_fields,
    "finish": finish,
    "delete": delete,
    "stacks": stacks,
}
