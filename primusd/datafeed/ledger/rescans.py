"""When folders that were listed are looked at again, and what that brought (`rescan`)."""

from msgspec.structs import replace

from primusd.datafeed.ledger.events import UnitsListed
from primusd.datafeed.ledger.listed import ChangedFile, Scanning
from primusd.datafeed.ledger.model import Stream
from primusd.job.spec import StreamSpec

CHANGED_MAX = 1_000
"""Changed files that a stream names; of more nobody wants to read."""


def every_ms(spec: StreamSpec) -> int:
    """Return how often a stream's folders are looked at again; 0 never."""
    return min((one.rescan_ms for one in spec.sources if one.rescan_ms), default=0)


def heard(
    scanning: Scanning, event: UnitsListed, fresh_count: int, *, every_ms: int, at_ms: int
) -> Scanning:
    """Return how looks go on after a listing told something.

    Args:
        scanning: Before.
        event: What it told.
        fresh_count: Units of it that were not known.
        every_ms: Of the stream.
        at_ms: Journal time.
    """
    if event.is_complete:
        scanning = replace(scanning, next_ms=0, due_ms=0)
    elif not scanning.next_ms and not scanning.due_ms:
        scanning = replace(scanning, next_ms=at_ms + every_ms)
    scan = event.scan
    if scan is None:
        return scanning
    if scan.has_ended:
        next_ms = 0 if event.is_complete else at_ms + every_ms
        count = scanning.count + 1
        scanning = replace(scanning, count=count, last_ms=at_ms, next_ms=next_ms, due_ms=0)
    if scan.is_at_end and not scanning.ended_ms:
        scanning = replace(scanning, ended_ms=at_ms)
    return replace(
        scanning,
        late_count=scanning.late_count + fresh_count,
        changed=_with_changed(scanning.changed, scan.changed),
    )


def _with_changed(
    known: tuple[ChangedFile, ...], fresh: tuple[ChangedFile, ...]
) -> tuple[ChangedFile, ...]:
    found = {one.unit: one for one in known}
    found |= {one.unit: one for one in fresh}
    return tuple(found.values())[:CHANGED_MAX]


def rests(stream: Stream) -> bool:
    """Return whether all was listed, and nothing else is before the next look."""
    return bool(stream.scanning.ended_ms and stream.next_listing_ms and not stream.waiting_for)


def begun(scanning: Scanning, at_ms: int) -> Scanning:
    """Return how looks go on at a time: the next one begins when it is due."""
    if not scanning.next_ms or at_ms < scanning.next_ms:
        return scanning
    return replace(scanning, next_ms=0, due_ms=at_ms)
