"""What a daemon takes that has nothing to do: memory, and CPU over ten seconds."""

import subprocess
import sys
import time

import psutil

from bench import head
from bench.figures import Figure

SETTLE_S, MEASURE_S = 3.0, 10.0
GOAL_MB, GOAL_PERCENT = 80.0, 0.5
BARE = """
import psutil
from aiohttp import web
print(psutil.Process().memory_info().rss / 1e6)
"""


def run() -> list[Figure]:
    """Return both figures, for the daemon alone."""
    with head.running() as running:
        daemon = psutil.Process(running.daemon_pid)
        time.sleep(SETTLE_S)
        before, began = _cpu_s(daemon), time.monotonic()
        time.sleep(MEASURE_S)
        percent = (_cpu_s(daemon) - before) / (time.monotonic() - began) * 100
        memory_mb = daemon.memory_info().rss / 1e6
    bare_mb = float(subprocess.check_output([sys.executable, "-c", BARE]))
    beside = f"Python with aiohttp alone: {bare_mb:.0f} MB, so {memory_mb / bare_mb:.1f} times"
    return [
        Figure("idle daemon, memory", memory_mb, "MB", "≤ 80 MB", memory_mb <= GOAL_MB, beside),
        Figure("idle daemon, CPU", percent, "%", "≤ 0.5 %", percent <= GOAL_PERCENT, ""),
    ]


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
