"""Who this trainer is, and what it tells its executor. Outside of a job it is rank 0 of 1."""

import atexit
import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, SupportsFloat

from primus import stacks, stops
from primus.errors import PrimusError
from primus.link import Link

# More often nobody looks, and a loop of short steps would keep its executor busy.
REPORT_EVERY_S = 0.05
PHASE_LENGTH_MAX = 128

_lock = threading.Lock()
_phases: list[str] = []
"""Those that this process is in, the innermost last."""
_links: dict[int, Link] = {}
"""By process: a child that was forked must not speak on its parent's connection."""


class _NextReport:
    """When the next report may go, and the last one that could not."""

    at = 0.0
    waiting: dict[str, object] | None = None


_next_report = _NextReport()


class Warned(NamedTuple):
    """A limit that is near: a good time for a checkpoint. Nothing is being stopped."""

    reason: str
    """`deadline`, `replicaHours` or `drain`."""
    seconds_left: float
    """Until the job is stopped by it."""


class Stop(NamedTuple):
    """A stop that is under way."""

    reason: str
    """As `preempted` or `cancelled`."""
    seconds_left: float
    """Until what still runs is killed; 0.0 none."""


def role() -> str:
    """Return the name of this trainer's role; "" outside of a job.

    >>> import primus
    >>> primus.role()
    ''
    """
    return os.environ.get("PRIMUS_ROLE", "")


def rank() -> int:
    """Return this trainer's number in its role, from 0.

    >>> import primus
    >>> primus.rank()
    0
    """
    return int(os.environ.get("PRIMUS_INDEX", "0"))


def world_size() -> int:
    """Return how many trainers the role has.

    >>> import primus
    >>> primus.world_size()
    1
    """
    return int(os.environ.get("PRIMUS_REPLICAS", "1"))


def peers() -> dict[str, list[dict[str, Any]]]:
    """Return the trainers of every role: `peers()["chief"][0]["host"]`, and `["ports"]["main"]`.

    It reads the file anew each time, since a replaced trainer has a new address.

    >>> import primus
    >>> primus.peers()
    {}
    """
    path = os.environ.get("PRIMUS_PEERS_FILE", "")
    if not path:
        return {}
    roles: dict[str, list[dict[str, Any]]] = json.loads(_text(path))["roles"]
    return roles


def stopping() -> Stop | None:
    """Return why and until when this trainer is being stopped; None while it is not.

    It needs neither a feed nor a thread: it looks at `$PRIMUS_STOP_FILE`. From the first call in
    the main thread on, the SIGTERM of a stop no longer ends the process: go on asking.

    >>> import primus
    >>> primus.stopping() is None
    True
    """
    stops.expect()
    return told_stop()


def told_stop() -> Stop | None:
    """Return the same; SIGTERM goes on to end a program that does not ask by itself."""
    told = _told("PRIMUS_STOP_FILE", "graceMs")
    return None if told is None else Stop(*told)


def warned() -> Warned | None:
    """Return the limit that is near, and how near; None while none is.

    The trainer runs on until `stopping`; ask between steps, write a checkpoint, and go on.

    >>> import primus
    >>> primus.warned() is None
    True
    """
    told = _told("PRIMUS_WARN_FILE", "leftMs")
    return None if told is None else Warned(*told)


def _told(variable: str, key: str) -> tuple[str, float] | None:
    """Return the reason in a file that the executor writes, and the seconds left now."""
    path = os.environ.get(variable, "")
    try:
        said_at = os.stat(path).st_mtime  # noqa: PTH116 pathlib takes long to import
        told = json.loads(_text(path))
    except (OSError, ValueError):
        return None
    left = said_at + told.get(key, 0) / 1000 - time.time()
    return str(told.get("reason", "")), max(0.0, left)


def _text(path: str) -> str:
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 pathlib takes long to import
        return file.read()


def report(step: int = 0, *, epoch: int = 0, **metrics: SupportsFloat) -> None:
    """Tell how far training is; `primusctl get` shows it. Never waits.

    Call it as often as you like: what comes too soon after another is left out, the last is not.

    >>> import primus
    >>> primus.report(step=100, loss=0.25)
    """
    numbers = {name: float(value) for name, value in metrics.items()}
    message: dict[str, object] = {
        "op": "progress",
        "step": int(step),
        "epoch": int(epoch),
        "metrics": numbers,
    }
    now = time.monotonic()
    if now < _next_report.at:
        _next_report.waiting = message
        return
    _next_report.at = now + REPORT_EVERY_S
    _next_report.waiting = None
    say(message)


@atexit.register
def _say_last_report() -> None:
    message, _next_report.waiting = _next_report.waiting, None
    if message is not None:
        say(message)


def ready() -> None:
    """Tell that this trainer is ready to work, where its role has `ready: sdk`.

    >>> import primus
    >>> primus.ready()
    """
    say({"op": "ready"})


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Say that this trainer does something else than steps, as long as the block lasts.

    What it does in a phase of its own is not taken for a hang (docs/jobspec.md, `hang`).

    >>> import primus
    >>> with primus.phase("evaluation"):
    ...     pass
    """
    if not name or len(name) > PHASE_LENGTH_MAX:
        raise PrimusError(f"a phase has a name of 1 to {PHASE_LENGTH_MAX} characters")
    _phases.append(name)
    say({"op": "phase", "name": name, "active": True})
    try:
        yield
    finally:
        _phases.pop()
        outer = _phases[-1] if _phases else ""
        say({"op": "phase", "name": outer or name, "active": bool(outer)})


def hello() -> dict[str, object]:
    """Return the first message of a connection."""
    return {
        "op": "hello",
        "sdk": "primus-py/1",
        "pid": os.getpid(),
        "framework": "",
        "stacks": stacks.listen(),
    }


def say(message: dict[str, object]) -> None:
    """Tell the executor something; outside of a job nobody hears it."""
    path = os.environ.get("PRIMUS_SOCKET", "")
    if not path:
        return
    with _lock:
        pid = os.getpid()
        try:
            link = _links.get(pid)
            if link is None:
                link = _links[pid] = Link(path)
                link.say(hello())
            link.say(message)
        except OSError:
            # The executor ends its trainer when it goes itself; nothing is to be done here.
            if (link := _links.pop(pid, None)) is not None:
                link.close()
