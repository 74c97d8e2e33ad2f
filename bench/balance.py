"""Four readers, one four times slower: how long after the first the last ends, in virtual time."""

from bench.figures import Figure
from primusd.datafeed.ledger.splitting import GRANULE_MS
from tests.simulation.feed_world import World

RECORDS = 40_000
SLOW_S, FAST_S = 0.4, 0.1
"""Between two batches that a trainer takes."""


def run(*, records: int = RECORDS, worlds: int = 3) -> list[Figure]:
    """Play the real ledger and readers, and take the worst of some worlds."""
    spreads, ends = zip(*(_world(seed, records) for seed in range(1, worlds + 1)), strict=True)
    spread_s, end_s = max(spreads), max(ends)
    # Each alone with a quarter: the slow one needs four times as long as the others.
    share = end_s * (3 / FAST_S + 1 / SLOW_S) / 4
    static_s = share * (SLOW_S - FAST_S)
    return [
        Figure(
            "the last of 4 readers after the first, one 4 times slower",
            spread_s,
            "s",
            f"≤ {GRANULE_MS // 1000} s, one granule",
            spread_s <= GRANULE_MS / 1000,
            f"in virtual time, of {end_s:.0f} s; fixed quarters: {static_s:.0f} s after the first",
        )
    ]


def _world(seed: int, records: int) -> tuple[float, float]:
    world = World(seed, worst=False, records=records)
    world.paces = {0: SLOW_S, 1: FAST_S, 2: FAST_S, 3: FAST_S}
    began = world.now
    world.run(readers=4, troubles=0)
    assert set(world.read.values()) == {1}, "a row came twice"
    ended = world.took_at.values()
    return max(ended) - min(ended), max(ended) - began
