"""What the executor tells this trainer in files: its peers, a limit that is near, a stop."""

import json
import os
import time
from typing import Any, NamedTuple

from primus import stops


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
