"""What the feed benches share: a trainer fed without a daemon, and the median of some runs."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import anyio
import anyio.to_thread

from bench.grantor import Grantor, drive
from primusd.datafeed.delivery.server import FeedServer
from primusd.datafeed.protocol import Unit
from primusd.datafeed.sources.files import list_sources
from primusd.executor.protocol import FeedPlan
from primusd.job.ids import AttemptId
from primusd.job.spec import Source

RUNS = 3
DATA = Path(os.environ.get("PRIMUS_BENCH_DATA", tempfile.gettempdir())) / "primus-bench"
ROOT = Path(__file__).parent.parent


def units_of(paths: Sequence[Path], format_name: str = "") -> list[Unit]:
    """Return the files as pinned units."""
    return list_sources([Source(str(path)) for path in paths], format_name)


def median(work: Callable[[], float], runs: int = RUNS) -> float:
    """Return the median of some runs, the first one not counted: it warms the page cache."""
    work()
    return statistics.median(work() for _ in range(runs))


def rounds(ways: Mapping[str, Callable[[], float]], count: int) -> dict[str, list[float]]:
    """Return what each way gave, in rounds of all of them, so that all meet the same load.

    A round before them, not counted, warms the page cache.
    """
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(count + 1):
        for name, work in ways.items():
            value = work()
            if number:
                found[name].append(value)
    return found


def timed(command: list[str] | str, *, wanted: str = "") -> float:
    """Return the seconds that a command takes; a string is a shell line."""
    began = time.perf_counter()
    done = subprocess.run(
        command, shell=isinstance(command, str), capture_output=True, text=True, check=True
    )
    seconds = time.perf_counter() - began
    assert wanted in done.stdout, done.stdout
    return seconds


def said(command: list[str]) -> list[float]:
    """Return the numbers that a program prints as JSON."""
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    found: list[float] = json.loads(done.stdout)
    return found


def feed(
    units: list[Unit], plan: FeedPlan, command: list[str], *, granule: int = 0
) -> tuple[str, float]:
    """Feed a program until it ends; return what it printed, and the seconds it lived."""

    async def main() -> tuple[str, float]:
        with tempfile.TemporaryDirectory() as folder:
            server = FeedServer(
                (plan,), directory=Path(folder), attempt=AttemptId("bench", "worker", 0, 1)
            )
            grantor = Grantor(plan.stream, units, granule=granule)
            async with anyio.create_task_group() as tasks:
                await tasks.start(server.run)
                tasks.start_soon(drive, server, grantor)
                found = await anyio.to_thread.run_sync(_run, server, command)
                assert grantor.is_done, "the program ended before its rows"
                tasks.cancel_scope.cancel()
        return found

    return anyio.run(main)


def _run(server: FeedServer, command: list[str]) -> tuple[str, float]:
    stdin = server.stdin_for_trainer()
    began = time.perf_counter()
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL if stdin is None else stdin,
        stdout=subprocess.PIPE,
        env={**os.environ, **server.environment(), "PYTHONPATH": str(ROOT)},
        text=True,
    ) as process:
        if stdin is not None:
            os.close(stdin)
        server.trainer_started(process.pid)
        out, _ = process.communicate()
        seconds = time.perf_counter() - began
    assert process.returncode == 0, process.returncode
    return out, seconds


def python(script: str, *arguments: str) -> list[str]:
    """Return the command that runs a script in the interpreter of this bench."""
    return [sys.executable, "-c", script, *arguments]
