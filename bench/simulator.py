"""Lives of small jobs in the simulator of tests/simulation: as many a second as a soak plays.

Of this process's CPU, so that a busy machine does not change the figure much.
"""

import time

from bench.figures import Figure
from tests.simulation.playing import play
from tests.simulation.script import PlannedJob, Script

RUNS = 20
JOBS = 40
GOAL = 1_000


def run() -> list[Figure]:
    """Return how many lives of jobs with one or two replicas one core plays in a second."""
    play(_script(0))
    began = time.process_time()
    for seed in range(RUNS):
        play(_script(seed))
    lives_s = RUNS * JOBS / (time.process_time() - began)
    return [
        Figure(
            "lives of small jobs simulated",
            lives_s,
            "lives/s",
            f"≥ {GOAL:,} lives/s",
            lives_s >= GOAL,
            "",
        )
    ]


def _script(seed: int) -> Script:
    """Return a cluster without faults: jobs of one role, every other with two replicas."""
    jobs = tuple(
        PlannedJob(number, number * 150, ("two workers",) if number % 2 else ())
        for number in range(JOBS)
    )
    return Script(seed, jobs)
