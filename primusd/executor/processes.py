"""Processes of this host: identity, descent, and signals that hit nobody else.

A pid alone names no process, it is used again. A process is (boot id, pid, start time); signals go
through a pidfd that is opened before the start time is compared.
Source: proc(5), prctl(2), pidfd_open(2).
"""

import ctypes
import os
import signal
from collections.abc import Iterable
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def boot_id() -> str:
    """Return the id of this boot; "" where the kernel does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def become_subreaper() -> None:
    """Let orphans among the descendants of this process become its children."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def set_name(name: str) -> None:
    """Set what `ps` and `top` call this process; at most 15 bytes count."""
    _libc.prctl(PR_SET_NAME, name.encode(), 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """Be killed when the thread that forked this process ends.

    Args:
        parent: Pid of the parent as it was before the fork; if it is gone already, end now.
    """
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def stat_fields(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the state (field 3) on; None: no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="latin-1")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()


def started_ticks(pid: int) -> int:
    """Return the start time of a process in clock ticks since boot; 0: no such process."""
    fields = stat_fields(pid)
    return int(fields[19]) if fields else 0


def is_process(pid: int, ticks: int) -> bool:
    """Return whether the process of that start time lives; a zombie does not."""
    fields = stat_fields(pid)
    return fields is not None and int(fields[19]) == ticks and fields[0] not in "ZX"


def signal_process(pid: int, ticks: int, number: int) -> bool:
    """Signal the process of that start time and nobody else; return whether it was there."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if not ticks or started_ticks(pid) != ticks:
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def all_pids() -> list[int]:
    """Return the pids of all processes that this one can see."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208 hot


def children(pid: int) -> list[int]:
    """Return the pids of a process's children, zombies too."""
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 hot
        for thread in threads:
            text = Path(f"/proc/{pid}/task/{thread}/children").read_text(encoding="ascii")
            found += map(int, text.split())
    except OSError:
        return found
    return found


def descendants(roots: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return (pid, start time) of all that descend from the roots, without them; zombies too."""
    found: list[tuple[int, int]] = []
    waiting = list(roots)
    while waiting:
        for pid in children(waiting.pop()):
            found.append((pid, started_ticks(pid)))
            waiting.append(pid)
    return tuple(found)


def marked(variable: bytes) -> tuple[tuple[int, int], ...]:
    """Return (pid, start time) of the processes that were started with this `NAME=value`."""
    found = []
    for pid in all_pids():
        if not _has(pid, variable):
            continue
        ticks = started_ticks(pid)
        # Asked again, since the pid may have become another process's in between.
        if _has(pid, variable):
            found.append((pid, ticks))
    return tuple(found)


def _has(pid: int, variable: bytes) -> bool:
    """Return whether a process was started with the variable; hot: asked of every process."""
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:  # noqa: PTH123 see above
            environ = file.read()
    except OSError:
        return False
    return variable in environ and variable in environ.split(b"\0")
