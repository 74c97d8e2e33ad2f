"""Everything of the cluster but trainers is off for a weekend: nothing is lost but time."""

import random

import pytest

from primusd.executor.protocol import Exit
from primusd.job.ids import AttemptId
from tests.simulation import cluster
from tests.simulation.cluster import Town
from tests.simulation.deeds import DEEDS
from tests.simulation.script import Deed, PlannedJob, Script

OFF_MS = 4_000
HOUR_MS = 3_600_000


class LongGap(Town):
    """Heads that went come back after so long."""

    def __init__(self, script: Script, *, back_ms: int) -> None:
        super().__init__(script)
        self.back_ms = back_ms
        self.ended_ms: list[int] = []

    def exited(self, attempt: AttemptId, exit_: Exit) -> None:
        super().exited(attempt, exit_)
        self.ended_ms.append(self.schedule.now_ms)

    def _calm(self) -> None:
        if self.schedule.now_ms < self.back_ms:
            self.schedule.later(self.back_ms - self.schedule.now_ms, self._calm)
        else:
            super()._calm()


def turn_off(town: Town, _rnd: random.Random) -> None:
    for head in town.heads:
        if not head.is_dead:
            town.kill_head(head, lands=False)


@pytest.mark.parametrize(("feature", "hours"), [("long work", 62), ("stream", 8)])
def test_c40_m063_a_gap_of_a_weekend_loses_nothing_but_time(
    feature: str, hours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trainers that can end do so meanwhile, and it counts; those that read wait for more."""
    monkeypatch.setattr(cluster, "CALLS_MAX", 10_000_000)
    job = PlannedJob(0, features=("two workers", feature))
    script = Script(640, (job,), (Deed(OFF_MS, "turn off"),), hosts=2)
    town = LongGap(script, back_ms=hours * HOUR_MS)

    town.run({**DEEDS, "turn off": turn_off})

    ended = town.ended_ms
    assert len(ended) == 2
    if feature == "long work":
        assert all(OFF_MS < one < HOUR_MS for one in ended), ended
    else:
        # All rows were counted, which `Checks` looks at, and none could be before.
        assert all(one > town.back_ms for one in ended), ended
    assert town.world.jobs["j0"].phase == "Succeeded"
    assert {attempt.attempt for attempt in town.exits} == {1}
