"""Election, lane and journal in etcd, drawn from seeds: with the lane never an anomaly."""

import itertools
import os
import time

import pytest

from tests.simulation.etcd_world import AnomalyError, EtcdWorld

SEEDS = 60
SEEDS_WITHOUT_LANE = 40
SOAK_SEEDS = 2_000


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_C39_C40_what_was_recorded_stays_whoever_leads(first: int) -> None:
    """Members of etcd and heads stop, die, and are cut off; each entry is written once."""
    worlds = [EtcdWorld(seed).run() for seed in range(first, first + 10)]

    assert sum(world.warm for world in worlds) >= 10
    assert sum(world.deposed for world in worlds) >= 1


def test_C39_without_the_lane_a_late_write_of_the_leader_itself_undoes_newer_state() -> None:
    """A member that stood still carries out what was repeated elsewhere long before."""
    found = [seed for seed in range(SEEDS_WITHOUT_LANE) if _is_broken(seed)]

    assert found


def _is_broken(seed: int) -> bool:
    try:
        EtcdWorld(seed, has_lane=False).run()
    except (AnomalyError, ExceptionGroup):
        return True
    return False


@pytest.mark.soak
def test_C39_C40_many_seeds_for_as_long_as_asked(capsys: pytest.CaptureFixture[str]) -> None:
    """`SOAK_SECONDS` says how long; never less than 2,000 seeds."""
    end = time.monotonic() + int(os.environ.get("SOAK_SECONDS", "0"))
    entries = takeovers = 0
    for seed in itertools.count(SEEDS):
        if seed >= SEEDS + SOAK_SEEDS and time.monotonic() > end:
            break
        world = EtcdWorld(seed).run()
        entries += len(world.acknowledged)
        takeovers += world.warm + world.cold
    broken = sum(map(_is_broken, range(200)))

    with capsys.disabled():
        print(  # noqa: T201 - as told
            f"\n{seed - SEEDS:,} seeds: {takeovers:,} leaders, {entries:,} entries, none lost; "
            f"without the lane {broken} of 200 seeds break"
        )
