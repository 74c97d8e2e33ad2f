"""What two rules for positions lose and repeat, in the same worlds.

Ours: a position is what the trainer took. The original's: it is what was written to the pipe, so
what lies there when a trainer dies is lost. `python -m tests.simulation.feed_rules 200` prints the
figures that docs/datafeed.md has: of 200 seeds, each with a calm and with a bad wire.
"""

import os
import sys
from concurrent.futures import ProcessPoolExecutor

from msgspec import Struct

from tests.simulation.feed_world import World

READERS = 3
TROUBLES = 6
BLOCK = 25
TOLD_BLOCKS = 20
LOSING_TOLD = 5
RULES = {
    "taken by the trainer": {"is_original": False, "has_restores": False},
    "the same, with restores": {"is_original": False, "has_restores": True},
    "written to the pipe": {"is_original": True, "has_restores": False},
}


class Sum(Struct):
    """What happened in some worlds."""

    worlds: int = 0
    rows: int = 0
    lost: int = 0
    twice: int = 0
    """Positions that the ledger counted more than once."""
    repeated: int = 0
    losses: int = 0
    restores: int = 0
    late: int = 0
    """Files that came late."""
    losing: tuple[int, ...] = ()
    """The first seeds in which rows were lost."""

    def add(self, other: "Sum") -> None:
        """Add what happened in further worlds."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.losing = self.losing[:LOSING_TOLD]


def measure(seeds: range, *, is_original: bool, has_restores: bool = False) -> Sum:
    """Return the sums over worlds of a calm and of a bad wire."""
    found = Sum()
    for seed in seeds:
        for worst in (False, True):
            world = World(seed, worst=worst, is_original=is_original, has_restores=has_restores)
            world.run(READERS, TROUBLES)
            found.add(_sum_of(world, seed))
    return found


def _sum_of(world: World, seed: int) -> Sum:
    rows = world.rows()
    lost = len(rows - set(world.read))
    positions = sum(file.size for file in world.files) * world.epochs
    return Sum(
        1,
        len(rows),
        lost,
        world.driver.now.consumed - positions,
        sum(world.read.values()) - len(world.read),
        world.losses,
        world.restores,
        world.came_late,
        (seed,) if lost else (),
    )


def told(name: str, one: Sum) -> str:
    """Return a line with the figures of a rule."""
    losing = f", in seeds {', '.join(map(str, dict.fromkeys(one.losing)))}, …" if one.losing else ""
    return (
        f"{name:24} {one.worlds:6,} worlds, {one.rows:10,} rows, {one.losses:6,} readers lost, "
        f"{one.restores:5,} restores, {one.late:5,} late files: "
        f"{one.lost:7,} rows lost ({one.lost / one.rows:.2%}{losing}), {one.twice} counted twice, "
        f"{one.repeated:7,} came again ({one.repeated / one.rows:.2%})"
    )


def _of_rule(name: str, seeds: range) -> tuple[str, Sum]:
    return name, measure(seeds, **RULES[name])


def main() -> None:
    """Print the figures of each rule, now and then on the way."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    blocks = [range(first, min(count, first + BLOCK)) for first in range(0, count, BLOCK)]
    work = [(name, block) for block in blocks for name in RULES]
    found = {name: Sum() for name in RULES}
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for number, (name, one) in enumerate(pool.map(_of_rule, *zip(*work, strict=True)), 1):
            found[name].add(one)
            if number % (TOLD_BLOCKS * len(RULES)) == 0 or number == len(work):
                for each, sums in found.items():
                    print(told(each, sums), flush=True)  # noqa: T201 a command


if __name__ == "__main__":
    main()
