"""The trainer's process: its start, its output, its end with all that it started.

It lives in a session of its own and, where one can be had, in a control group. The executor is the
subreaper above it, so whatever it leaves behind becomes the executor's child and is ended.
"""

import os
from pathlib import Path

import anyio
from anyio.abc import TaskGroup
from msgspec import Struct

from primusd.executor.cgroup import Group
from primusd.executor.logs import Output
from primusd.executor.processes import descendants, signal_process, started_ticks, stat_fields
from primusd.executor.protocol import Usage
from primusd.executor.starter import StartCall, Starter

READ_BYTES = 256 << 10
END_ALL_S = 5.0
"""How long ended processes may take to go before the exit is told without them."""
END_AGAIN_S = 0.01
DRAIN_S = 2.0
KIB = 1024
SIGKILL = 9


class Ended(Struct, frozen=True):
    """How the process ended."""

    code: int | None
    signal: int | None
    peak_rss_bytes: int
    oom_kills: int
    is_clean: bool
    """Nothing of it is left."""


class Trainer:
    """One trainer, from the process that waits to become it to the last that it left behind."""

    def __init__(self, starter: Starter, output: Output, group: Group) -> None:
        self._starter = starter
        self._output = output
        self._group = group
        self._ticks = 0
        self._status: int | None = None
        self._peak_rss_bytes = 0
        self._pipes_open = 0
        self._drained = anyio.Event()
        self.exited = anyio.Event()

    @property
    def pid(self) -> int:
        """Its process; before the start the one that waits."""
        return self._starter.pid

    @property
    def cgroups(self) -> tuple[str, ...]:
        """The files by which it enters its control groups."""
        return self._group.procs

    def pids(self) -> tuple[int, ...]:
        """Return its process and all that it started."""
        return (self.pid, *(pid for pid, _ in descendants([self.pid])))

    def start(self, call: StartCall, stdin: int, tasks: TaskGroup) -> int:
        """Start it and read what it prints from now on; return 0, or the errno of what failed."""
        pipes = {"stdout": os.pipe2(os.O_CLOEXEC), "stderr": os.pipe2(os.O_CLOEXEC)}
        try:
            failure = self._starter.start(
                call, stdin=stdin, stdout=pipes["stdout"][1], stderr=pipes["stderr"][1]
            )
        finally:
            for _, write_end in pipes.values():
                os.close(write_end)
        for stream, (read_end, _) in pipes.items():
            os.set_blocking(read_end, False)
            self._pipes_open += 1
            tasks.start_soon(self._pump, stream, read_end)
        self._ticks = started_ticks(self.pid)
        return failure

    async def _pump(self, stream: str, descriptor: int) -> None:
        try:
            while True:
                await anyio.wait_readable(descriptor)
                data = os.read(descriptor, READ_BYTES)
                if not data:
                    break
                self._output.take(stream, data)
        finally:
            os.close(descriptor)
            self._pipes_open -= 1
            if not self._pipes_open:
                self._drained.set()

    def reap(self) -> bool:
        """Take in every child that ended; return whether there are children left."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self._peak_rss_bytes = max(self._peak_rss_bytes, usage.ru_maxrss * KIB)
            if pid == self.pid:
                self._status = status
                self.exited.set()

    def signal(self, number: int) -> None:
        """Signal the trainer itself, not what it started."""
        signal_process(self.pid, self._ticks, number)

    async def end_all(self) -> bool:
        """End all that it started; return whether nothing is left."""
        self._starter.dismiss()
        with anyio.move_on_after(END_ALL_S, shield=True):
            while self.reap():
                self._group.kill()
                for pid, ticks in descendants([os.getpid()]):
                    signal_process(pid, ticks, SIGKILL)
                if not self.reap():
                    break
                await anyio.sleep(END_AGAIN_S)
            return True
        return False

    async def finish(self) -> Ended:
        """End what is left of it, read the rest of its output, and tell how it ended."""
        is_clean = await self.end_all()
        if self._pipes_open:
            with anyio.move_on_after(DRAIN_S, shield=True):
                await self._drained.wait()
        oom_kills = self._group.oom_kills()
        self._group.remove()
        status = self._status
        code = signal = None
        if status is not None and os.WIFEXITED(status):
            code = os.WEXITSTATUS(status)
        elif status is not None:
            signal = os.WTERMSIG(status)
        return Ended(code, signal, self._peak_rss_bytes, oom_kills, is_clean)

    def usage(self) -> Usage:
        """Return what it and all that it started use now."""
        ticks = rss_pages = read = written = 0
        for pid in self.pids():
            fields = stat_fields(pid)
            if fields is None:
                continue
            ticks += sum(int(fields[position]) for position in (11, 12, 13, 14))
            rss_pages += int(fields[21])
            done = _io(pid)
            read += done[0]
            written += done[1]
        rss = rss_pages * os.sysconf("SC_PAGE_SIZE")
        self._peak_rss_bytes = max(self._peak_rss_bytes, rss)
        cpu_ms = self._group.cpu_ms()
        if cpu_ms is None:
            cpu_ms = ticks * 1000 // os.sysconf("SC_CLK_TCK")
        net_in, net_out = network_bytes()
        return Usage(cpu_ms, rss, read, written, net_in, net_out, ())


def _io(pid: int) -> tuple[int, int]:
    try:
        text = Path(f"/proc/{pid}/io").read_text(encoding="ascii")
    except OSError:
        return 0, 0
    values = dict(line.split(": ") for line in text.splitlines())
    return int(values["read_bytes"]), int(values["write_bytes"])


def network_bytes() -> tuple[int, int]:
    """Return the bytes that came in and went out over this host's (or container's) interfaces."""
    try:
        text = Path("/proc/net/dev").read_text(encoding="ascii")
    except OSError:
        return -1, -1
    received = sent = 0
    for line in text.splitlines()[2:]:
        name, _, rest = line.partition(":")
        fields = rest.split()
        if name.strip() != "lo" and len(fields) > 8:
            received += int(fields[0])
            sent += int(fields[8])
    return received, sent
