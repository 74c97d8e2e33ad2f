"""What every thread of a trainer is doing, into its own log: where it stands when it hangs.

Three views: the kernel's, always; a Python traceback that the trainer itself prints on a signal,
where its process imported the SDK; py-spy's, where that is installed and the SDK is not there.
"""

import os
import shutil
import signal

import anyio

from primusd.executor.life import Life
from primusd.executor.processes import signal_process, started_ticks
from primusd.executor.stacks import stacks_text

PY_SPY_S = 10.0
PY_SPY_MAX = 8
"""Processes; a trainer may have hundreds of loaders."""
READ_BYTES = 64 << 10
DUMP_BYTES_MAX = 256 << 10


async def dump_stacks(life: Life, why: str) -> None:
    """Write into the trainer's log why, and what its threads do."""
    pids = life.pids()
    attempt = life.bootstrap.attempt.label
    life.note(f"[primusd: {attempt} {why}; what its threads do]\n{stacks_text(pids)}")
    asked = _ask_themselves(life, pids)
    program = shutil.which("py-spy")
    if program is not None:
        for pid in [pid for pid in pids if pid not in asked][:PY_SPY_MAX]:
            life.note(await py_spy_text(program, pid))


def _ask_themselves(life: Life, pids: tuple[int, ...]) -> frozenset[int]:
    """Let each process that can print its own traceback do so; return which were asked."""
    signals = life.feed.stack_signals if life.feed is not None else {}
    return frozenset(
        pid
        for pid in pids
        if pid in signals and signal_process(pid, started_ticks(pid), signals[pid])
    )


async def py_spy_text(program: str, pid: int) -> str:
    """Return py-spy's view of a process; "" it is none of Python's.

    Not by `subprocess`: whatever ends below this process is taken in by the trainer's reaper.
    """
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    try:
        child = _spawn((program, "dump", "--pid", str(pid)), stdout=write_end)
    finally:
        os.close(write_end)
    ticks = started_ticks(child)
    try:
        return await _read_all(read_end) if child else ""
    finally:
        os.close(read_end)
        if ticks:
            signal_process(child, ticks, signal.SIGKILL)


def _spawn(argv: tuple[str, ...], *, stdout: int) -> int:
    """Return the process that runs a program; 0 it could not be started."""
    actions = [
        (os.POSIX_SPAWN_DUP2, stdout, 1),
        (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
    ]
    try:
        return os.posix_spawn(argv[0], argv, os.environ, file_actions=actions)
    except OSError:
        return 0


async def _read_all(descriptor: int) -> str:
    os.set_blocking(descriptor, False)
    parts = bytearray()
    with anyio.move_on_after(PY_SPY_S):
        while len(parts) < DUMP_BYTES_MAX:
            await anyio.wait_readable(descriptor)
            part = os.read(descriptor, READ_BYTES)
            if not part:
                break
            parts += part
    return parts.decode(errors="replace")
