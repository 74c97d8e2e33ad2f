"""Text to standard input: the feed beside a bare `cat`, both into `wc -l`."""

from bench import click_rows, feeding
from bench.figures import Figure
from primusd.executor.protocol import FeedPlan

LEASE_BYTES = 64 << 20
GOAL_GB_PER_S = 2.5
GOAL_RATIO = 0.5


def run() -> list[Figure]:
    """Measure whole files and leases of 64 MiB against `cat | wc -l`."""
    paths = click_rows.write_lines(feeding.DATA / "lines")
    units = feeding.units_of(paths, "text")
    giga = sum(unit.byte_count for unit in units) / 1e9
    lines = str(sum(path.read_bytes().count(b"\n") for path in paths))
    plan = FeedPlan("lines", "stdin", "lines", {}, 0)

    def fed(granule: int) -> float:
        out, seconds = feeding.feed(units, plan, ["wc", "-l"], granule=granule)
        assert out.strip() == lines
        return giga / seconds

    names = " ".join(f"'{path}'" for path in paths)
    bare = feeding.median(lambda: giga / feeding.timed(f"cat {names} | wc -l", wanted=lines))
    figures = []
    for what, granule in (("whole files", 0), ("leases of 64 MiB", LEASE_BYTES)):
        rate = feeding.median(lambda granule=granule: fed(granule))
        figures.append(
            Figure(
                f"text to stdin, {what}",
                rate,
                "GB/s",
                f"≥ {GOAL_GB_PER_S} GB/s or ≥ {GOAL_RATIO:.0%} of cat",
                rate >= GOAL_GB_PER_S or rate >= GOAL_RATIO * bare,
                f"cat | wc -l: {bare:.2f} GB/s, so {rate / bare:.0%}",
            )
        )
    return figures
