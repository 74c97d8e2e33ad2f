"""Arithmetic of sorted, disjoint ranges of positions."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from operator import attrgetter

from primusd.datafeed.ledger.model import OPEN_END, Range

_LO = attrgetter("lo")


def measure(lo: int, hi: int) -> int:
    """Return how many positions a range has; one when it reaches to an unknown end."""
    return 1 if hi == OPEN_END else hi - lo


def total(ranges: Iterable[Range]) -> int:
    """Return how many positions the ranges have."""
    return sum(measure(one.lo, one.hi) for one in ranges)


def union(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Return the ranges sorted, with those that touch or overlap merged and empty ones left out."""
    ordered = sorted([one for one in ranges if one.lo < one.hi], key=_LO)
    if not ordered:
        return ()
    found: list[Range] = []
    # Numbers while they are merged: of a unit that is given back nearly all touch the next.
    lo, hi = ordered[0].lo, ordered[0].hi
    for one in ordered:
        if one.lo > hi:
            found.append(Range(lo, hi))
            lo, hi = one.lo, one.hi
        elif one.hi > hi:
            hi = one.hi
    return (*found, Range(lo, hi))


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


def remove(ranges: tuple[Range, ...], one: Range) -> tuple[Range, ...]:
    """Return sorted ranges without one of them, found by its beginning."""
    place = bisect_left(ranges, Range(one.lo, -1))
    assert ranges[place] == one
    return (*ranges[:place], *ranges[place + 1 :])


def add(ranges: tuple[Range, ...], one: Range) -> tuple[Range, ...]:
    """Return sorted, disjoint, merged ranges with one more, merged with those that it touches."""
    if one.lo >= one.hi:
        return ranges
    first = bisect_left(ranges, Range(one.lo, -1))
    if first and ranges[first - 1].hi >= one.lo:
        first -= 1
    last = first
    lo, hi = one.lo, one.hi
    while last < len(ranges) and ranges[last].lo <= hi:
        lo, hi = min(lo, ranges[last].lo), max(hi, ranges[last].hi)
        last += 1
    return (*ranges[:first], Range(lo, hi), *ranges[last:])


def take(ranges: tuple[Range, ...], one: Range) -> tuple[Range, ...]:
    """Return sorted, disjoint ranges without a part that lies within one of them."""
    place = bisect_left(ranges, Range(one.lo + 1, -1)) - 1
    assert place >= 0
    whole = ranges[place]
    assert whole.lo <= one.lo < one.hi <= whole.hi
    rest = (Range(whole.lo, one.lo), Range(one.hi, whole.hi))
    return (*ranges[:place], *(part for part in rest if part.lo < part.hi), *ranges[place + 1 :])
