"""Lives of small jobs in the simulator of tests/simulation: as many a second as a soak plays.

A small life is that of a job with one role and one replica, from its submit to the release of its
attempt, in a calm cluster, with all checks: 22 records in 6 or 7 steps, 68 calls of the schedule.
The second figure is of jobs that have one or two replicas in turn. Of this process's CPU, so that
a busy machine does not change the figures much. What bounds them: docs/testing-simulation.md.
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
    _play_all(_lone, runs=1)
    lives_s = LIVES / _play_all(_lone)
    mixed_s = LIVES / _play_all(_script)
    with _stopwatch() as spent:
        _play_all(_lone)
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
        Figure("of jobs with one or two replicas", mixed_s, "lives/s", "", met=True, rival=""),
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
