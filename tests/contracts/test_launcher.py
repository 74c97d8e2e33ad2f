"""What every launcher promises: the fake one in virtual time, the local one with a real node."""

import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import anyio
import pytest
from aiohttp import web
from anyio.abc import TaskGroup

from primusd.api.live_values import LiveValues
from primusd.api.nodes import NodeRegistry, add_node_routes
from primusd.clock import SystemClock
from primusd.engine import Engine, EngineSettings
from primusd.executor.protocol import Bootstrap, Exit
from primusd.job.events import AttemptLaunched, AttemptVanished
from primusd.job.ids import AttemptId
from primusd.job.spec import Resources
from primusd.keys import node_key
from primusd.launchers.base import Launcher, LauncherEvent
from primusd.launchers.local import LocalLauncher
from primusd.node.bootstrap import NodeBootstrap, write_bootstrap
from primusd.state.journal import MemoryJournal
from primusd.testing import FakeLauncher, SoleElection, VirtualTime, exited
from tests.edges.node_process import NodeProcess, until_file
from tests.edges.scripted_head import CLUSTER, Executor, Head, attempt_id, launch_order, shell

pytestmark = pytest.mark.anyio

NODE = "n1"
SECRET = b"s" * 32
WAIT_S = 20.0
PASSES_MAX = 1_000


class Stage(Protocol):
    """A launcher with its back end, and what a test may do to it."""

    launcher: Launcher
    events: list[LauncherEvent]

    async def launch(self, attempt: AttemptId) -> None:
        """Launch an attempt whose trainer stays, and return once it runs."""
        ...

    async def ask(self, attempt: AttemptId) -> None:
        """Ask for the launch of an attempt."""
        ...

    async def end(self, attempt: AttemptId, code: int) -> None:
        """Let its trainer end with a code."""
        ...

    async def lose(self, attempt: AttemptId) -> None:
        """Let it end without any record."""
        ...

    async def restart(self) -> None:
        """Go on with a launcher that knows nothing, as a daemon that starts anew."""
        ...

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until something is so."""
        ...

    async def pass_time(self) -> None:
        """Let a little time pass."""
        ...

    def starts(self, attempt: AttemptId) -> int:
        """Return how many processes were made for an attempt."""
        ...


class FakeStage:
    """The fake launcher, slow and repeating itself."""

    def __init__(self) -> None:
        self.time = VirtualTime()
        self.back_end = FakeLauncher(self.time.call_later, delay_ms=50, repeats=2, shuffle_seed=1)
        self.launcher: Launcher = self.back_end
        self.events: list[LauncherEvent] = []
        self.launcher.watch(self.events.append)

    async def ask(self, attempt: AttemptId) -> None:
        bootstrap = Bootstrap(CLUSTER, attempt, (), "")
        await self.launcher.launch(attempt, NODE, Resources(), bootstrap)

    async def launch(self, attempt: AttemptId) -> None:
        await self.ask(attempt)
        await self.until(lambda: self.back_end.is_alive(attempt))

    async def end(self, attempt: AttemptId, code: int) -> None:
        self.back_end.finish(attempt, exited(code=code))

    async def lose(self, attempt: AttemptId) -> None:
        self.back_end.finish(attempt, None)

    async def restart(self) -> None:
        self.events = []
        self.launcher.watch(self.events.append)

    async def until(self, is_so: Callable[[], bool]) -> None:
        await self.time.run_until(is_so)

    async def pass_time(self) -> None:
        await self.time.run_for(100)

    def starts(self, attempt: AttemptId) -> int:
        return self.back_end.starts.get(attempt, 0)


class LocalStage:
    """The local launcher, a real node on this host, and a scripted head for its executors."""

    def __init__(self, folder: Path, tasks: TaskGroup) -> None:
        self.folder = folder
        self.tasks = tasks
        self.head = Head(folder / "executors.sock")
        self.nodes_path = folder / "nodes.sock"
        self.node = NodeProcess(folder, self.head)
        self.runner: web.AppRunner | None = None
        self.term = 0
        self.events: list[LauncherEvent] = []
        self.executors: dict[AttemptId, Executor] = {}
        self.launcher: Launcher = LocalLauncher(lambda: self.term)

    async def begin(self) -> None:
        """Serve nodes with a new launcher in a new term."""
        self.term += 1
        clock = SystemClock()
        engine = Engine(
            MemoryJournal(), SoleElection(), clock, settings=EngineSettings(CLUSTER, "0.1.0")
        )
        launcher = LocalLauncher(lambda: self.term)
        live = LiveValues(clock)
        registry = NodeRegistry(engine, launcher, live, clock, cluster_id=CLUSTER, secret=SECRET)
        self.events = []
        launcher.watch(self.events.append)
        self.launcher = launcher
        await self.tasks.start(engine.run)
        app = web.Application()
        add_node_routes(app, registry)
        self.runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self.runner.setup()
        self.nodes_path.unlink(missing_ok=True)
        await web.UnixSite(self.runner, str(self.nodes_path)).start()

    def introduce_node(self) -> None:
        heads = (f"unix:{self.nodes_path}",)
        bootstrap = NodeBootstrap(NODE, CLUSTER, heads, node_key(SECRET, NODE))
        write_bootstrap(self.folder, bootstrap)

    async def stop_serving(self) -> None:
        if self.runner is not None:
            await self.runner.cleanup()

    async def ask(self, attempt: AttemptId) -> None:
        if attempt not in self.executors:
            line = "mkfifo go$$ && mv go$$ go; echo up; read code < go; exit $code"
            self.executors[attempt] = self.head.expect(attempt, launch_order(*shell(line)))
        bootstrap = self.head.bootstrap(attempt)
        await self.launcher.launch(attempt, NODE, Resources(), bootstrap)

    async def launch(self, attempt: AttemptId) -> None:
        await self.ask(attempt)
        await until_file(self.node.directory(attempt).path / "stdout.log")

    async def end(self, attempt: AttemptId, code: int) -> None:
        fifo = self.node.directory(attempt).replica_work / "go"
        await anyio.to_thread.run_sync(fifo.write_text, f"{code}\n")

    async def lose(self, attempt: AttemptId) -> None:
        os.kill(self.executors[attempt].hellos[0].pid, signal.SIGKILL)

    async def restart(self) -> None:
        await self.stop_serving()
        await self.begin()

    async def until(self, is_so: Callable[[], bool]) -> None:
        with anyio.fail_after(WAIT_S):
            while not is_so():  # noqa: ASYNC110 the other process tells nobody here
                await anyio.sleep(0.005)

    async def pass_time(self) -> None:
        await anyio.sleep(0.01)

    def starts(self, attempt: AttemptId) -> int:
        return len(self.executors[attempt].hellos) if attempt in self.executors else 0


@asynccontextmanager
async def local_stage(folder: Path) -> AsyncIterator[LocalStage]:
    async with anyio.create_task_group() as tasks:
        stage = LocalStage(folder, tasks)
        await stage.head.start()
        await stage.begin()
        stage.introduce_node()
        try:
            stage.node.spawn()
            yield stage
        finally:
            await stage.node.clean()
            await stage.stop_serving()
            await stage.head.cut()
            tasks.cancel_scope.cancel()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["fake", "local"])
async def stage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stage]:
    if request.param == "fake":
        yield FakeStage()
        return
    async with local_stage(tmp_path) as local:
        yield local


def vanished(stage: Stage, attempt: AttemptId) -> list[AttemptVanished]:
    return [
        event
        for event in stage.events
        if isinstance(event, AttemptVanished) and event.attempt == attempt
    ]


def launched(stage: Stage, attempt: AttemptId) -> list[AttemptLaunched]:
    return [
        event
        for event in stage.events
        if isinstance(event, AttemptLaunched) and event.attempt == attempt
    ]


def exits(stage: Stage, attempt: AttemptId) -> set[tuple[int | None, int | None]]:
    records: list[Exit] = [one.exit for one in vanished(stage, attempt) if one.exit is not None]
    return {(one.code, one.signal) for one in records}


async def is_listed(stage: Stage, attempt: AttemptId, *, alive: bool) -> bool:
    return any(
        one.attempt == attempt and one.node == NODE and one.is_alive is alive
        for one in await stage.launcher.list()
    )


async def until_nothing_is_listed(stage: Stage) -> None:
    for _ in range(PASSES_MAX):
        if await stage.launcher.list() == ():
            return
        await stage.pass_time()
    raise AssertionError(await stage.launcher.list())


async def test_launching_twice_makes_one_process(stage: Stage) -> None:
    attempt = attempt_id()

    await stage.launch(attempt)
    for _ in range(3):
        await stage.ask(attempt)
    await stage.until(lambda: bool(launched(stage, attempt)))
    second = attempt_id(index=1)
    await stage.launch(second)
    await stage.until(lambda: bool(launched(stage, second)))

    assert stage.starts(attempt) == 1
    assert await is_listed(stage, attempt, alive=True)


async def test_what_was_launched_before_a_restart_is_found_again(stage: Stage) -> None:
    attempt = attempt_id()
    await stage.launch(attempt)

    await stage.restart()
    await stage.until(lambda: bool(launched(stage, attempt)))
    await stage.ask(attempt)

    assert await is_listed(stage, attempt, alive=True)
    assert stage.starts(attempt) == 1
    assert vanished(stage, attempt) == []


async def test_an_exit_code_arrives_unchanged_at_least_once(stage: Stage) -> None:
    attempts = {attempt_id(index=index): code for index, code in enumerate((0, 1, 42, 137, 255))}
    for attempt in attempts:
        await stage.launch(attempt)

    for attempt, code in attempts.items():
        await stage.end(attempt, code)
    await stage.until(lambda: all(vanished(stage, attempt) for attempt in attempts))

    assert {attempt: exits(stage, attempt) for attempt in attempts} == {
        attempt: {(code, None)} for attempt, code in attempts.items()
    }


async def test_an_end_during_a_restart_arrives_after_it(stage: Stage) -> None:
    attempt = attempt_id()
    await stage.launch(attempt)

    await stage.end(attempt, 9)
    await stage.restart()
    await stage.until(lambda: bool(vanished(stage, attempt)))

    assert exits(stage, attempt) == {(9, None)}


async def test_a_lost_one_is_told_from_a_failed_one(stage: Stage) -> None:
    lost, failed = attempt_id(index=0), attempt_id(index=1)
    await stage.launch(lost)
    await stage.launch(failed)

    await stage.lose(lost)
    await stage.end(failed, 1)
    await stage.until(lambda: bool(vanished(stage, lost) and vanished(stage, failed)))

    assert exits(stage, lost) == set()
    assert exits(stage, failed) == {(1, None)}


async def test_stop_is_final(stage: Stage) -> None:
    attempt = attempt_id()
    await stage.launch(attempt)

    assert await stage.launcher.stop(attempt, NODE)
    await stage.until(lambda: bool(vanished(stage, attempt)))
    await stage.ask(attempt)
    assert await stage.launcher.stop(attempt, NODE)

    assert not await is_listed(stage, attempt, alive=True)
    assert stage.starts(attempt) == 1


async def test_cancelling_a_launch_leaves_nothing_behind(stage: Stage) -> None:
    never, attempt = attempt_id(5), attempt_id()
    await stage.launch(attempt)

    assert await stage.launcher.stop(never, NODE)
    await stage.until(lambda: bool(vanished(stage, never)))
    assert await stage.launcher.release(never, NODE)
    await stage.ask(never)
    assert await stage.launcher.release(attempt, NODE)
    await stage.until(lambda: bool(vanished(stage, attempt)))

    await until_nothing_is_listed(stage)
    assert stage.starts(never) == 0


async def test_what_was_released_is_forgotten(stage: Stage) -> None:
    attempt = attempt_id()
    await stage.launch(attempt)
    await stage.end(attempt, 0)
    await stage.until(lambda: bool(vanished(stage, attempt)))

    assert await stage.launcher.release(attempt, NODE)
    assert await stage.launcher.release(attempt, NODE)

    await until_nothing_is_listed(stage)


async def test_nothing_is_said_of_what_was_never_wished_and_never_seen(stage: Stage) -> None:
    await stage.launch(attempt_id())
    await stage.restart()
    await stage.until(lambda: bool(launched(stage, attempt_id())))

    assert {event.attempt for event in stage.events} == {attempt_id()}
