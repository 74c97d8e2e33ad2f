"""Evidence of whether a trainer has used all that it read from a pipe (proc(5))."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
PROCESSES_MAX = 64


def is_waiting_for_input(pid: int, pipe_name: str) -> bool:
    """Return whether a process, or one it started, waits in a system call on the pipe.

    A program that reads, works and reads again has worked on all it read by then. `False` says
    nothing: it works, it polls, or the kernel does not show it.

    Source: proc(5), /proc/pid/syscall: the number of the call, then its arguments; the first one
    of read, readv and splice is the descriptor.
    """
    return any(_reads(process, pipe_name) for process in _tree(pid))


def has_open(pid: int, pipe_name: str) -> bool:
    """Return whether a process, or one it started, has the pipe open."""
    return any(pipe_name in _open_files(process) for process in _tree(pid))


def _open_files(pid: int) -> Iterator[str]:
    try:
        entries = list((PROC / f"{pid}/fd").iterdir())
    except OSError:
        return
    for entry in entries:
        with contextlib.suppress(OSError):
            yield str(entry.readlink())


def activity(pid: int) -> int:
    """Return how often threads of a process and of those it started were put on and off a core.

    While it stands still, the whole tree only waits.
    """
    total = 0
    for process in _tree(pid):
        for task in _tasks(process):
            try:
                status = (PROC / f"{process}/task/{task}/status").read_text()
            except OSError:
                continue
            total += sum(
                int(line.split()[1]) for line in status.splitlines() if "ctxt_switches" in line
            )
    return total


def _tree(pid: int) -> Iterator[int]:
    waiting = [pid]
    for _ in range(PROCESSES_MAX):
        if not waiting:
            return
        process = waiting.pop()
        yield process
        for task in _tasks(process):
            try:
                children = (PROC / f"{process}/task/{task}/children").read_text()
            except OSError:
                continue
            waiting += [int(child) for child in children.split()]


def _tasks(pid: int) -> list[str]:
    try:
        return [task.name for task in (PROC / f"{pid}/task").iterdir()]
    except OSError:
        return []


def _reads(pid: int, pipe_name: str) -> bool:
    for task in _tasks(pid):
        try:
            call = (PROC / f"{pid}/task/{task}/syscall").read_text().split()
            if len(call) > 1 and int(call[0]) >= 0:
                target = (PROC / f"{pid}/fd/{int(call[1], 16)}").readlink()
                if str(target) == pipe_name:
                    return True
        except (OSError, ValueError):
            continue
    return False
