"""Text to standard input: the feed beside a bare `cat`, both into `wc -l`."""

import statistics

from bench import click_rows, feeding
from bench.figures import Figure
from primusd.executor.protocol import FeedPlan

LEASE_BYTES = 64 << 20
ROUNDS = 9
GOAL_GB_PER_S = 2.5
GOAL_RATIO = 0.5


def run(*, rounds: int = ROUNDS, lines: int = click_rows.LINES) -> list[Figure]:
    """Measure whole files and leases of 64 MiB against `cat | wc -l`."""
    paths = click_rows.write_lines(feeding.DATA / f"lines-{lines}", lines=lines)
    units = feeding.units_of(paths, "text")
    giga = sum(unit.byte_count for unit in units) / 1e9
    wanted = str(sum(path.read_bytes().count(b"\n") for path in paths))
    plan = FeedPlan("lines", "stdin", "lines", {}, 0)

    def fed(granule: int) -> float:
        out, seconds = feeding.feed(units, plan, ["wc", "-l"], granule=granule)
        assert out.strip() == wanted
        return giga / seconds

    names = " ".join(f"'{path}'" for path in paths)
    found = feeding.rounds(
        {
            "cat": lambda: giga / feeding.timed(f"cat {names} | wc -l", wanted=wanted),
            "whole files": lambda: fed(0),
            "leases of 64 MiB": lambda: fed(LEASE_BYTES),
        },
        rounds,
    )
    bare = statistics.median(found.pop("cat"))
    return [_figure(what, statistics.median(rates), bare) for what, rates in found.items()]


def _figure(what: str, rate: float, bare: float) -> Figure:
    return Figure(
        f"text to stdin, {what}",
        rate,
        "GB/s",
        f"≥ {GOAL_GB_PER_S} GB/s or ≥ {GOAL_RATIO:.0%} of cat",
        rate >= GOAL_GB_PER_S or rate >= GOAL_RATIO * bare,
        f"cat | wc -l: {bare:.2f} GB/s, so {rate / bare:.0%}",
    )
