"""primusctl's own start: `version`, against a Python that does nothing, in the same run."""

import statistics
import subprocess
import sys
import time

from bench import head
from bench.figures import Figure

REPEATS = 15
GOAL_MS = 150.0


def run() -> list[Figure]:
    """Return how long `primusctl version` takes with a daemon that answers."""
    with head.running() as daemon:
        ctl = [str(head.BIN / "primusctl"), "version"]
        bare = [sys.executable, "-c", "pass"]
        took: dict[str, list[float]] = {"ctl": [], "bare": []}
        for _ in range(REPEATS):
            took["ctl"].append(_took_ms(ctl, daemon.environment))
            took["bare"].append(_took_ms(bare, daemon.environment))
    ctl_ms, bare_ms = (statistics.median(took[name]) for name in ("ctl", "bare"))
    return [
        Figure(
            name="primusctl version",
            value=ctl_ms,
            unit="ms",
            goal="< 150 ms",
            met=ctl_ms < GOAL_MS,
            rival=f"python -c pass: {bare_ms:.0f} ms",
        )
    ]


def _took_ms(command: list[str], environment: dict[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, env=environment, check=True, capture_output=True)
    return (time.perf_counter() - began) * 1000
