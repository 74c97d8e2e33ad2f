"""Lives of small jobs in the simulator of tests/simulation: as many a second as a soak plays.

A small life is that of a job with one role and one or two replicas, from its submit to the release
of its last attempt, in a calm cluster: 28 records in 8 entries, 96 calls of the schedule. Of this
process's CPU, so that a busy machine does not change the figure much.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bench.figures import Figure
from primusd import core
from tests.simulation.playing import play
from tests.simulation.script import PlannedJob, Script

RUNS = 20
JOBS = 40
LIVES = RUNS * JOBS
GOAL = 1_000


def run() -> list[Figure]:
    """Return how many lives of small jobs one core plays in a second, and what bounds it."""
    _play_all(_script, runs=1)
    lives_s = LIVES / _play_all(_script)
    lone_s = LIVES / _play_all(_lone)
    with _stopwatch() as spent:
        _play_all(_script)
    bound = f"core.step alone: {LIVES / sum(spent):,.0f} lives/s"
    return [
        Figure(
            "lives of small jobs simulated",
            lives_s,
            "lives/s",
            f"≥ {GOAL:,} lives/s",
            lives_s >= GOAL,
            bound,
        ),
        Figure("of jobs with one replica", lone_s, "lives/s", "", met=True, rival=""),
    ]


def _play_all(script_of: Callable[[int], Script], runs: int = RUNS) -> float:
    """Return the seconds of CPU that so many scripts took."""
    began = time.process_time()
    for seed in range(runs):
        play(script_of(seed))
    return time.process_time() - began


@contextmanager
def _stopwatch() -> Iterator[list[float]]:
    """Have the seconds of every step put into a list."""
    step = core.step
    spent: list[float] = []

    def timed(*args: Any, **keywords: Any) -> core.Step:  # those of `step`
        began = time.process_time()
        found = step(*args, **keywords)
        spent.append(time.process_time() - began)
        return found

    core.step = timed
    try:
        yield spent
    finally:
        core.step = step


def _script(seed: int) -> Script:
    """Return a cluster without faults: jobs of one role, every other with two replicas."""
    jobs = tuple(
        PlannedJob(number, number * 150, ("two workers",) if number % 2 else ())
        for number in range(JOBS)
    )
    return Script(seed, jobs)


def _lone(seed: int) -> Script:
    """Return such a cluster in which each job has one replica."""
    return Script(seed, tuple(PlannedJob(number, number * 150) for number in range(JOBS)))
