"""What two rules for positions lose and repeat, in the same worlds.

Ours: a position is what the trainer took. The original's: it is what was written to the pipe, so
what lies there when a trainer dies is lost. `python -m tests.simulation.feed_rules 200` prints the
figures that docs/datafeed.md has.
"""

import sys

from msgspec import Struct

from tests.simulation.feed_world import World

READERS = 3
TROUBLES = 6


class Sum(Struct):
    """What happened in some worlds."""

    rows: int = 0
    lost: int = 0
    repeated: int = 0
    losses: int = 0


def measure(seeds: range, *, is_original: bool) -> Sum:
    """Return the sums over worlds of a calm and of a bad wire."""
    found = Sum()
    for seed in seeds:
        for worst in (False, True):
            world = World(seed, worst=worst, is_original=is_original, has_restores=False)
            world.run(READERS, TROUBLES)
            rows = world.rows()
            found.rows += len(rows)
            found.lost += len(rows - set(world.read))
            found.repeated += sum(world.read.values()) - len(world.read)
            found.losses += world.losses
    return found


def main() -> None:
    """Print the figures of both rules."""
    seeds = range(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
    for name, is_original in (("taken by the trainer", False), ("written to the pipe", True)):
        one = measure(seeds, is_original=is_original)
        print(  # noqa: T201 a command
            f"{name:22} {one.rows:9,} rows, {one.losses:6,} readers lost: "
            f"{one.lost:7,} rows lost ({one.lost / one.rows:.2%}), "
            f"{one.repeated:7,} came again ({one.repeated / one.rows:.2%})"
        )


if __name__ == "__main__":
    main()
