"""Where ranges are cut: lazily, in order, by the spec's split or by the reader's own rate."""

from bisect import bisect_left

from msgspec import Struct

from primusd.datafeed.ledger.listed import UnitEntry
from primusd.datafeed.ledger.model import OPEN_END, Range, can_grow
from primusd.job.spec import Split

GRANULE_MS = 10_000
"""A grant aims at this much of the reader's own work."""
BYTES_MIN = 4 << 20
"""Least bytes of a grant that the rate decides."""
ROWS_MIN = 8_192
"""Least rows of a grant where no row groups are known."""
OFFSETS_AT_FIRST = 65_536
"""Most offsets of a partition for a reader of unknown rate: all partitions have their turn."""
SPEC_SLACK = 8
"""A rest below a granule divided by this goes with the grant before it."""


class Share(Struct, frozen=True):
    """What decides how much a reader gets at once."""

    per_s: int
    """Its positions per second; 0 not known yet."""
    remaining: int
    """Positions that nobody holds in this epoch, as far as known."""
    reader_count: int


def cut(
    entry: UnitEntry,
    one: Range,
    *,
    size: int,
    cuts: tuple[int, ...],
    has_bytes: bool,
    split: Split,
    share: Share,
) -> int:
    """Return where the next grant from the beginning of a waiting range ends.

    Args:
        entry: The unit.
        one: The range that waits.
        size: Of the unit; -1 not known: it is granted to its end.
        cuts: Where the unit is cut cheaply; empty: anywhere, or not known.
        has_bytes: Positions are bytes, not rows.
        split: Of the spec; wins over the reader's rate.
        share: Of the reader.
    """
    if one.hi == OPEN_END or size < 0:
        return one.hi
    wished = split_size(entry, size=size, has_bytes=has_bytes, split=split)
    if wished:
        is_exact = has_bytes or split.rows > 0
        return min(one.hi, one.lo + wished) if is_exact else _at_cut(one, wished, cuts)
    grows = can_grow(entry.unit)
    if share.reader_count <= 1 and not grows:
        # Nobody to share with; who comes later is given a part by consent.
        return one.hi
    least = BYTES_MIN if has_bytes else (1 if cuts else ROWS_MIN)
    fair = max(1, share.remaining // (2 * share.reader_count))
    if grows and not share.per_s:
        fair = min(fair, OFFSETS_AT_FIRST)
    granule = max(least, min(fair, share.per_s * GRANULE_MS // 1000) if share.per_s else fair)
    return _at_cut(one, granule, cuts)


def split_size(entry: UnitEntry, *, size: int, has_bytes: bool, split: Split) -> int:
    """Return the positions of a task that the spec asks for, 0 when it does not."""
    if has_bytes:
        return split.byte_count
    if split.rows:
        return split.rows
    if split.byte_count and entry.unit.byte_count > 0:
        return max(1, size * split.byte_count // entry.unit.byte_count)
    return 0


def middle(
    position: int, hi: int, *, per_s: int, other_per_s: int, cuts: tuple[int, ...], rest_ms: int
) -> int:
    """Return where a holder should end so that it and another reader finish together; -1 nowhere.

    Args:
        position: What the holder has taken.
        hi: Where its lease ends.
        per_s: The holder's positions per second; 0 not known.
        other_per_s: The other reader's.
        cuts: Where the unit is cut cheaply.
        rest_ms: What is left, as time; -1 not known. Only where it is much is a row group cut.
    """
    rest = hi - position
    kept = rest * per_s // (per_s + other_per_s) if per_s and other_per_s else rest // 2
    at = position + max(1, min(rest - 1, kept))
    inner = [one for one in cuts if position < one < hi]
    near = min(inner, key=lambda one: abs(one - at), default=-1)
    is_fair = near >= 0 and rest // 8 <= near - position <= rest - rest // 8
    if is_fair or (cuts and 0 <= rest_ms < GRANULE_MS):
        return near
    return at if position < at < hi else -1


def _at_cut(one: Range, granule: int, cuts: tuple[int, ...]) -> int:
    """Return the first cheap cut from a granule on, or the range's end where little is left."""
    hi = one.lo + granule
    if cuts:
        place = bisect_left(cuts, hi)
        hi = cuts[place] if place < len(cuts) else one.hi
    return one.hi if hi + granule // SPEC_SLACK >= one.hi else hi
