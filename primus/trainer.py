"""Who this trainer is, and what it says to its executor. Outside of a job it is rank 0 of 1.

Many trainers start at once, often on few cores, so this loads nothing that a bare Python does not
have anyway; what needs more is loaded where it is used.
"""

import atexit
import os
import time
from _thread import allocate_lock

from primus.dialling import control_frame, dial, greeting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from typing import SupportsFloat

# More often nobody looks, and a loop of short steps would keep its executor busy.
REPORT_EVERY_S = 0.05
READY = '{"op":"ready"}'

_lock = allocate_lock()
_sockets: "dict[int, socket]" = {}
"""By process: a child that was forked must not speak on its parent's connection."""


class _NextReport:
    """When the next report may go, and the last one that could not."""

    at = 0.0
    waiting: dict[str, object] | None = None


_next_report = _NextReport()


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


def report(step: int = 0, *, epoch: int = 0, **metrics: "SupportsFloat") -> None:
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
    _say(READY)


def say(message: dict[str, object]) -> None:
    """Tell the executor something; outside of a job nobody hears it."""
    from json import dumps  # noqa: PLC0415 `ready` does without

    _say(dumps(message, separators=(",", ":")))


def _say(text: str) -> None:
    path = os.environ.get("PRIMUS_SOCKET", "")
    if not path:
        return
    frame = control_frame(text)
    with _lock:
        pid = os.getpid()
        try:
            if pid not in _sockets:
                _sockets[pid] = dial(path)
                frame = greeting() + frame
            _sockets[pid].sendall(frame)
        except OSError:
            # The executor ends its trainer when it goes itself; nothing is to be done here.
            if (gone := _sockets.pop(pid, None)) is not None:
                gone.close()
