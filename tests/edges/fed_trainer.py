"""A real trainer process, fed by a real FeedServer from a small grantor."""

import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from bench.grantor import Grantor, drive
from primusd.datafeed.delivery.server import FeedServer, boot_clock
from primusd.datafeed.protocol import Unit
from primusd.datafeed.sources.files import list_sources
from primusd.executor.protocol import FeedPlan
from primusd.job.ids import AttemptId
from primusd.job.spec import Source

WAIT_S = 30.0


def units_of(*paths: Path | str, format_name: str = "") -> list[Unit]:
    return list_sources([Source(str(path)) for path in paths], format_name)


def plan(
    stream: str = "rows", *, delivery: str = "socket", framing: str = "arrow", **other: int
) -> FeedPlan:
    return FeedPlan(stream, delivery, framing, {}, other.get("memory_bytes", 0))


def stdin_plan(framing: str = "lines") -> FeedPlan:
    return plan(delivery="stdin", framing=framing)


@dataclass
class Fed:
    """One trainer's surroundings."""

    server: FeedServer
    grantor: Grantor
    name: str
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, command: list[str]) -> subprocess.Popen[bytes]:
        self.server.trainer_starting(generation=3)
        stdin = self.server.stdin_for_trainer()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **self.server.environment(), "PYTHONPATH": str(Path.cwd())},
        )
        self.processes.append(process)
        if stdin is not None:
            os.close(stdin)
        self.server.trainer_started(process.pid)
        return process

    def start_script(self, script: str, *arguments: str) -> subprocess.Popen[bytes]:
        return self.start([sys.executable, "-c", textwrap.dedent(script), *arguments])

    async def finish(self, process: subprocess.Popen[bytes]) -> str:
        """Wait for a trainer and count its last positions; return what it printed."""
        with anyio.fail_after(WAIT_S):
            out, error = await anyio.to_thread.run_sync(process.communicate)
        assert not error, error.decode()
        self.end(process)
        return out.decode("utf-8", "backslashreplace")

    def end(self, process: subprocess.Popen[bytes]) -> None:
        code = process.wait(WAIT_S)
        exit_code, signal = (code, None) if code >= 0 else (None, -code)
        for held in self.server.trainer_ended(exit_code, signal):
            self.grantor.give_back(self.name, held)
        self.grantor.lose(self.name)

    def kill_all(self) -> None:
        """End what a failed test left running."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.communicate()

    async def until(self, is_so: Callable[[], bool]) -> None:
        await until(is_so)


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for something that another process or thread does."""
    with anyio.fail_after(WAIT_S):
        while not is_so():  # noqa: ASYNC110 nobody here can set an event
            await anyio.sleep(0.005)


@asynccontextmanager
async def fed(
    grantor: Grantor,
    *plans: FeedPlan,
    name: str = "r1",
    is_driven: bool = True,
    clock: Callable[[], float] = boot_clock,
) -> AsyncIterator[Fed]:
    """Serve one trainer; its stream is the grantor's."""
    with tempfile.TemporaryDirectory() as folder:
        server = FeedServer(
            plans or (plan(grantor.stream),),
            directory=Path(folder),
            attempt=AttemptId("job", "worker", 2, 1),
            clock=clock,
        )
        async with anyio.create_task_group() as tasks:
            await tasks.start(server.run)
            if is_driven:

                async def carry() -> None:
                    await drive(server, grantor, reader=name)

                tasks.start_soon(carry)
            one = Fed(server, grantor, name)
            try:
                yield one
            finally:
                one.kill_all()
                tasks.cancel_scope.cancel()
