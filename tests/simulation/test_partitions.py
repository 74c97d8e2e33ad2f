"""C41: hosts are cut off long enough for others to take their replicas' places, and come back."""

import random

import pytest

from primusd.job.ids import AttemptId
from tests.simulation.cluster import Town
from tests.simulation.deeds import DEEDS
from tests.simulation.script import Deed, PlannedJob, Script

FEATURES = ("two workers", "servers", "replace after", "long work", "stream")
CUT_MS, CALM_MS = 180_000, 220_000
"""Lost after 30 s, given up after 60 s more, replaced a few seconds later."""


class Partition:
    """A deed that cuts off the host where the job runs, and what was seen of it."""

    def __init__(self) -> None:
        self.beside: set[AttemptId] = set()
        """Older attempts that ran while their successors did."""
        self.left: set[AttemptId] = set()
        """Those of them that were still there half a minute after the host came back."""

    def __call__(self, town: Town, _rnd: random.Random) -> None:
        host = next(one for one in town.hosts.values() if one.live)
        town.wire.cut.add(host.name)
        town.schedule.later(CUT_MS - 1, self._look, town)
        town.schedule.later(CUT_MS, town.wire.cut.discard, host.name)
        town.schedule.later(CUT_MS + 30_000, self._look_again, town)

    def _look(self, town: Town) -> None:
        alive = {executor.attempt for _, executor in town.executors()}
        newer = {(one.job, one.replica): max(_numbers(alive, one)) for one in alive}
        self.beside = {one for one in alive if one.attempt < newer[one.job, one.replica]}

    def _look_again(self, town: Town) -> None:
        self.left = self.beside & {executor.attempt for _, executor in town.executors()}


def _numbers(alive: set[AttemptId], of: AttemptId) -> list[int]:
    return [one.attempt for one in alive if (one.job, one.replica) == (of.job, of.replica)]


@pytest.mark.parametrize("first", range(0, 24, 12))
def test_C41_who_was_cut_off_comes_back_beside_its_replacement_and_leaves(first: int) -> None:
    beside = 0
    for seed in range(first, first + 12):
        partition = Partition()
        script = Script(
            seed,
            jobs=(PlannedJob(0, features=FEATURES),),
            deeds=(Deed(2_500, "partition"), Deed(CALM_MS, "tick")),
            hosts=2,
        )
        town = Town(script)

        town.run({**DEEDS, "partition": partition})

        assert town.jobs["j0"].phase == "Succeeded", seed
        assert partition.left == set(), seed
        beside += len(partition.beside)
    assert beside > 0, "nobody was replaced while it ran on: the case was not met"
