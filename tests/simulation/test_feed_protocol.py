"""Ledger and readers against each other: 200 worlds each time, 10,000 with `make soak`."""

import pytest

from primusd.datafeed.ledger import invariants
from primusd.datafeed.ledger.splitting import GRANULE_MS
from primusd.job.events import StreamFinished
from tests.simulation.feed_world import IN_FLIGHT_ROWS, WINDOW_ROWS, World

BLOCK = 25
BLOCKS = [*range(4), *(pytest.param(one, marks=pytest.mark.soak) for one in range(4, 200))]


@pytest.mark.parametrize("worst", [False, True], ids=["calm wire", "bad wire"])
@pytest.mark.parametrize("block", BLOCKS)
def test_no_row_is_lost_and_none_is_counted_twice_through_any_deaths(
    block: int, *, worst: bool
) -> None:
    """C49 to C54: whoever dies, in any order of rows, through savepoints and restores."""
    for seed in range(block * BLOCK, block * BLOCK + BLOCK):
        world = World(seed, worst=worst)

        world.run(readers=3, troubles=6)

        positions = sum(file.size for file in world.files) * world.epochs
        assert world.driver.now.phase == "Done", seed
        assert set(world.read) == world.rows(), seed
        assert world.driver.told_of(StreamFinished)[-1] == StreamFinished("clicks", positions, 0)
        assert invariants.broken(world.driver.now) == (), seed
        repeated = sum(world.read.values()) - len(world.read)
        assert repeated <= world.losses * (WINDOW_ROWS + IN_FLIGHT_ROWS), seed
        if not world.restores:
            # After one, who did not hear of it yet reads on, up to the window.
            told = world.driver.now.repeated + world.losses * IN_FLIGHT_ROWS
            assert repeated <= told, seed


def test_worlds_have_restores_and_files_that_come_late() -> None:
    """M077: late files are looked for while all else happens."""
    late, restores = 0, 0
    for seed in range(BLOCK):
        world = World(seed, worst=False)
        world.run(readers=3, troubles=6)
        late += world.came_late
        restores += world.restores

    assert late > 1
    assert restores > 0


@pytest.mark.parametrize("block", range(2))
def test_without_trouble_no_row_comes_twice(block: int) -> None:
    for seed in range(block * BLOCK, block * BLOCK + BLOCK):
        world = World(seed, worst=False)

        world.run(readers=3, troubles=0)

        assert set(world.read.values()) <= {1}, seed
        assert world.driver.now.repeated == 0, seed


def test_one_of_four_readers_that_is_four_times_slower_ends_a_granule_after_the_others() -> None:
    """G7: what it has left is shared by consent, again and again."""
    world = World(1, worst=False, records=40_000)
    world.paces = {0: 0.4, 1: 0.1, 2: 0.1, 3: 0.1}

    world.run(readers=4, troubles=0)

    assert world.driver.now.phase == "Done"
    assert max(world.took_at.values()) - min(world.took_at.values()) <= GRANULE_MS / 1000
    assert set(world.read.values()) == {1}


def test_with_the_rule_of_the_original_rows_are_lost() -> None:
    """What `python -m tests.simulation.feed_rules` measures: done is what was written to a pipe."""
    lost = 0
    for seed in range(10):
        world = World(seed, worst=False, is_original=True)
        world.run(readers=3, troubles=6)
        lost += len(world.rows() - set(world.read))

    assert lost > 0
