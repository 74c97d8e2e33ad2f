"""Arithmetic of sorted, disjoint ranges of positions."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from primusd.datafeed.model import OPEN_END, Range


def measure(lo: int, hi: int) -> int:
    """Return how many positions a range has; one when it reaches to an unknown end."""
    return 1 if hi == OPEN_END else hi - lo


def total(ranges: Iterable[Range]) -> int:
    """Return how many positions the ranges have."""
    return sum(measure(one.lo, one.hi) for one in ranges)


def union(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Return the ranges sorted, with those that touch or overlap merged and empty ones left out."""
    found: list[Range] = []
    for one in sorted(ranges):
        if one.lo >= one.hi:
            continue
        if found and one.lo <= found[-1].hi:
            found[-1] = Range(found[-1].lo, max(found[-1].hi, one.hi))
        else:
            found.append(one)
    return tuple(found)


def subtract(ranges: Iterable[Range], cut: Sequence[Range]) -> tuple[Range, ...]:
    """Return what is left of sorted, disjoint ranges without the parts that `cut` covers.

    Args:
        ranges: Sorted, disjoint.
        cut: Sorted, disjoint.
    """
    found: list[Range] = []
    for one in ranges:
        lo = one.lo
        for other in cut:
            if other.hi <= lo:
                continue
            if other.lo >= one.hi:
                break
            if lo < other.lo:
                found.append(Range(lo, other.lo))
            lo = other.hi
        if lo < one.hi:
            found.append(Range(lo, one.hi))
    return tuple(found)


def overlap(ranges: Iterable[Range], lo: int, hi: int) -> tuple[Range, ...]:
    """Return the parts of the ranges that lie within lo to hi."""
    return tuple(
        Range(max(one.lo, lo), min(one.hi, hi)) for one in ranges if one.lo < hi and lo < one.hi
    )


def insert(ranges: tuple[Range, ...], one: Range) -> tuple[Range, ...]:
    """Return sorted ranges with one more, none merged."""
    place = bisect_left(ranges, one)
    return (*ranges[:place], one, *ranges[place:])
