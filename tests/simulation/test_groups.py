"""Groups of exactlyOnce trainers, drawn from seeds: each row is in their model once, no stall."""

import pytest

from primusd.datafeed.ledger import machine as ledger
from tests.simulation.group_world import GroupWorld


@pytest.mark.parametrize("seed", range(24))
def test_each_row_is_in_the_model_once_whatever_happens(seed: int) -> None:
    """C52, C53, M111, M122."""
    world = GroupWorld(seed, worst=seed % 2 == 1)

    world.run_group(troubles=6)

    assert sorted(world.kept[-1].model) == sorted(world.rows())
    assert ledger.verify(world.driver.now).ok
    assert world.driver.now.repeated == 0
    assert world.driver.replay() == world.driver.now


@pytest.mark.parametrize("seed", range(12))
def test_a_group_that_nobody_disturbs_gets_every_savepoint(seed: int) -> None:
    """However fast each one is, and however late it opens the stream within the minute."""
    world = GroupWorld(seed, worst=False, is_calm=True)

    world.run_group(troubles=0)

    assert world.failed_steps == []
    assert world.begun == 1
    assert sorted(world.kept[-1].model) == sorted(world.rows())
