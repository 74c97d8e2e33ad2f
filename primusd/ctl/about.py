"""version, doctor, completion."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator

import click

from primusd import __version__
from primusd.ctl.call import Call, Verb, pass_call, shared_options
from primusd.ctl.client import Json
from primusd.ctl.documents import count, mapping, mappings, text
from primusd.ctl.failures import FAILED, OK, CtlError, UnreachableError

SHELLS = ("bash", "zsh", "fish")
SKEW_WARNED_MS = 2_000
STORE_WARNED_PERCENT = 70
FREE_BYTES_WARNED = 1 << 30
_FORMS = ("table", "json", "yaml")
Finding = tuple[str, str, str]
"""`ok`, `warning` or `error`; what was looked at; what was found."""


@click.command("version", cls=Verb)
@shared_options
@pass_call
def version(call: Call) -> int:
    """Show the versions of client and daemon; exits 5 when no daemon answers."""
    printer = call.printer_of(_FORMS)
    try:
        daemon: Json = call.client.get("/version")
    except UnreachableError as error:
        if printer.form == "table":
            printer.line(f"primusctl {__version__}")
        else:
            printer.document({"client": __version__})
        raise error from None
    if printer.form == "table":
        printer.line(f"primusctl {__version__}")
        printer.line(f"primusd   {text(daemon, 'version')} at {call.client.address}")
    else:
        printer.document({"client": __version__, "daemon": text(daemon, "version")})
    return OK


@click.command("doctor", cls=Verb)
@shared_options
@pass_call
def doctor(call: Call) -> int:
    """Check what a daemon and its jobs need; exits 1 when something is wrong."""
    printer = call.printer_of(_FORMS)
    findings = [finding for check in CHECKS for finding in _guarded(check, call)]
    if printer.form == "table":
        colors = {"ok": "green", "warning": "yellow", "error": "red"}
        for level, what, found in findings:
            printer.line(f"{printer.paint(colors[level], f'{level:<8}')} {what}: {found}")
    else:
        keys = ("level", "what", "found")
        checks = [dict(zip(keys, one, strict=True)) for one in findings]
        printer.document({"kind": "Diagnosis", "checks": checks})
    return FAILED if any(level == "error" for level, _, _ in findings) else OK


def _guarded(check: Callable[[Call], Iterator[Finding]], call: Call) -> Iterator[Finding]:
    """Yield a check's findings; a daemon that does not answer is one of them."""
    try:
        yield from check(call)
    except CtlError as error:
        hint = f" (try: {error.hint})" if error.hint else ""
        yield "error", check.__name__.strip("_"), f"{error.message}{hint}"


def _daemon(call: Call) -> Iterator[Finding]:
    found = call.client.get("/version")
    daemon = text(found, "version")
    level = "ok" if daemon == __version__ else "warning"
    yield level, "daemon", f"{daemon} at {call.client.address}, client {__version__}"


def _cluster(call: Call) -> Iterator[Finding]:
    found = call.client.get("/api/v1/cluster")
    store = text(mapping(found, "store"), "kind")
    yield "ok", "leader", f"{text(found, 'leader')}, term {text(found, 'term')}, {store} store"
    used = count(mapping(found, "store"), "usedPercent")
    if used is not None:
        level = "ok" if used < STORE_WARNED_PERCENT else "warning"
        yield level, "store", f"{used} % of its quota used; primusctl store tells more"
    skew_ms = abs(count(found, "clockSkewMs") or 0)
    level = "ok" if skew_ms < SKEW_WARNED_MS else "warning"
    yield level, "clock", f"{skew_ms} ms between the wall clock and journal time"
    for machine, bug in mapping(found, "wedged").items():
        yield "error", "wedged", f"{machine or 'admission'}: {bug}"


def _nodes(call: Call) -> Iterator[Finding]:
    nodes = mappings(call.client.get("/api/v1/nodes"), "items")
    if not nodes:
        yield "error", "nodes", "none: no job can start"
    for node in nodes:
        phase = text(node, "phase")
        yield "ok" if phase == "Ready" else "warning", f"node {text(node, 'name')}", phase
        free = count(mapping(node, "usage"), "diskFreeBytes")
        if free is not None and free < FREE_BYTES_WARNED:
            yield "warning", f"node {text(node, 'name')}", f"{free >> 20} MiB free on its disk"


def _strays(call: Call) -> Iterator[Finding]:
    found = mappings(call.client.get("/api/v1/strays"), "items")
    if found:
        yield "warning", "strays", f"{len(found)}; see: primusctl strays list"
    else:
        yield "ok", "strays", "none"


def _host(_call: Call) -> Iterator[Finding]:
    by = _keeper_of_limits()
    unkept = f"not enforced: no control group that uid {os.geteuid()} may write is here"
    yield "ok" if by else "warning", "memory limits", f"enforced by {by}" if by else unkept
    free = shutil.disk_usage(os.environ.get("HOME") or "/").free
    yield "ok" if free > FREE_BYTES_WARNED else "warning", "disk", f"{free >> 30} GiB free at home"


def _keeper_of_limits() -> str:
    """Return by what a node that this user starts here keeps memory limits; "" by nothing."""
    from primusd.executor.cgroup import find_trees  # noqa: PLC0415 - only here

    trees = find_trees("auto")
    if trees.memory_v1 is not None:
        return "cgroup v1"
    try:
        there = trees.unified and (trees.unified / "cgroup.controllers").read_text(encoding="ascii")
    except OSError:
        return ""
    return "cgroup v2" if "memory" in (there or "").split() else ""


CHECKS: tuple[Callable[[Call], Iterator[Finding]], ...] = (
    _daemon,
    _cluster,
    _nodes,
    _strays,
    _host,
)


@click.command("completion", cls=Verb)
@click.argument("shell", type=click.Choice(SHELLS))
@shared_options
@pass_call
def completion(call: Call, shell: str) -> None:
    """Print the completion script: eval "$(primusctl completion bash)"."""
    from click.shell_completion import get_completion_class  # noqa: PLC0415 - only here

    from primusd.ctl.main import primusctl  # noqa: PLC0415 - it loads this module

    found = get_completion_class(shell)
    assert found is not None, "the choice allows only shells that click knows"
    sys.stdout.write(found(primusctl, {}, "primusctl", "_PRIMUSCTL_COMPLETE").source())


COMMANDS = {"version": version, "doctor": doctor, "completion": completion}
