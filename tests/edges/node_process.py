"""A real `primusd node` for tests, with everything it forks ended at the end."""

# ruff: noqa: ASYNC110, ASYNC240  a test may block its loop

import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path

import anyio
import anyio.to_thread

from primusd.executor.directory import AttemptDirectory, attempt_path, find_attempts
from primusd.executor.processes import all_pids, stat_fields
from primusd.job.ids import AttemptId
from primusd.node.attempts import end_processes
from primusd.node.bootstrap import NodeBootstrap, write_bootstrap
from tests.edges.scripted_head import CLUSTER, Head, serving

PROGRAM = "import sys; from primusd.{0}.main import main; sys.exit(main(sys.argv[1:]))"
END_S = 20.0
NO_SPARES = ("--spare-executors", "0")


def command(program: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", PROGRAM.format(program), *arguments]


class NodeProcess:
    """One node on a state directory, that can be killed and started again."""

    def __init__(self, state: Path, head: Head, *flags: str) -> None:
        self.state = state
        self.head = head
        self.flags = flags
        self.process: subprocess.Popen[bytes] | None = None
        write_bootstrap(state, NodeBootstrap("n1", CLUSTER, (head.address,), "key"))

    async def start(self) -> None:
        reports = len(self.head.node_reports.get("n1", []))
        self.spawn()
        await self.head.until(lambda: len(self.head.node_reports.get("n1", [])) > reports)

    def spawn(self) -> None:
        """Start it, and do not wait for its first word."""
        with (self.state / "node.log").open("ab") as log:
            self.process = subprocess.Popen(
                command("node", "--state-dir", str(self.state), *NO_SPARES, *self.flags),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PRIMUSD_CONFIG": ""},
            )

    async def end(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        process, self.process = self.process, None
        with anyio.fail_after(END_S):
            return await anyio.to_thread.run_sync(process.wait)

    def directory(self, attempt: AttemptId) -> AttemptDirectory:
        return AttemptDirectory(attempt_path(self.state, attempt))

    def text(self, attempt: AttemptId, name: str = "stdout.log") -> str:
        return (self.directory(attempt).path / name).read_text(errors="replace")

    def tell(self) -> None:
        """Print what node and executors logged, for whoever reads of a failed test."""
        for path in (self.state / "node.log", *self.state.glob("jobs/*/*/*/executor.log")):
            sys.stdout.write(f"--- {path}\n{path.read_text()[-2000:]}\n")
        for attempt, executor in self.head.executors.items():
            sys.stdout.write(f"--- {attempt}: {executor.hellos}\n{executor.reports[-3:]}\n")

    async def clean(self) -> None:
        if self.process is not None:
            await self.end()
        for attempt, path in find_attempts(self.state):
            await end_processes(AttemptDirectory(path), attempt)


@asynccontextmanager
async def running_node(tmp_path: Path, *flags: str) -> AsyncIterator[NodeProcess]:
    """Yield a node that talks to a scripted head, `node.head`."""
    async with serving(tmp_path / "head.sock") as head:
        node = NodeProcess(tmp_path, head, *flags)
        try:
            await node.start()
            yield node
        finally:
            node.tell()
            await node.clean()


def is_alive(pid: int) -> bool:
    fields = stat_fields(pid)
    return fields is not None and fields[0] not in "ZX"


async def until_dead(pid: int) -> None:
    with anyio.fail_after(END_S):
        while is_alive(pid):
            await anyio.sleep(0.01)


async def until_file(path: Path) -> str:
    """Return what is in a file once it is there and complete to the end of a line."""
    with anyio.fail_after(END_S):
        while not (path.exists() and path.read_text(errors="replace").endswith("\n")):
            await anyio.sleep(0.01)
    return path.read_text(errors="replace")


async def until_lines(path: Path, count: int) -> None:
    """Wait until a file has so many lines."""
    with anyio.fail_after(END_S):
        while not path.exists() or path.read_text(errors="replace").count("\n") < count:
            await anyio.sleep(0.01)


def free_ports(count: int) -> list[int]:
    """Return ports in a row that nobody holds now, outside the range that connections take."""
    while True:
        first = random.randrange(10_000, 19_000)
        with ExitStack() as stack, suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("", port))
            return list(range(first, first + count))


def pids_with(text: str) -> list[int]:
    """Return the live processes that have a text in their environment or command line."""
    found = []
    for pid in all_pids():
        try:
            told = Path(f"/proc/{pid}/environ").read_bytes()
            told += Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if text.encode() in told and is_alive(pid) and pid != os.getpid():
            found.append(pid)
    return found
