"""Units as they are listed: append only, in order, each once."""

from primusd.datafeed.draft import StreamDraft
from primusd.datafeed.events import ListingFailed, UnitsListed
from primusd.datafeed.model import Stream, UnitEntry, has_byte_positions
from primusd.datafeed.protocol import Unit
from primusd.job.machine import IGNORE_REASONS, Ignore

RETRY_MS = 1_000
RETRY_MAX_MS = 60_000


def list_units(stream: Stream, event: UnitsListed, at_ms: int) -> Stream | Ignore:
    """Return the stream with further units; those that are known already are left out."""
    known = len(stream.units)
    fresh = event.units[max(0, known - event.first) :] if event.first <= known else ()
    if stream.is_listed or (not fresh and not event.is_complete) or event.first > known:
        return Ignore(IGNORE_REASONS["r"])
    draft = StreamDraft(stream, at_ms)
    entries = tuple(UnitEntry(unit, listed_size(unit)) for unit in fresh)
    draft.units = stream.units + entries
    draft.known += sum(entry.size for entry in entries if entry.size >= 0)
    draft.unsized_units += sum(entry.size < 0 for entry in entries)
    draft.is_listed = event.is_complete
    if stream.spec.split.rows and (uncut := next((e for e in entries if e.size >= 0), None)):
        draft.failure = (
            f"split.rows cannot be kept: {uncut.unit.location} is text, which is cut by bytes; "
            f"write split: {{bytes: 64Mi}}"
        )
    for epoch in draft.epochs.values():
        draft.move_on(epoch)
    draft.changes |= {"waiting_for": (), "listing_failures": 0, "next_listing_ms": 0}
    if stream.phase == "Opening":
        draft.changes |= {"phase": "Serving", "phase_since_ms": at_ms}
    return draft.result()


def fail_listing(stream: Stream, event: ListingFailed, at_ms: int) -> Stream | Ignore:
    """Return the stream with the next try put off, or about to fail."""
    if stream.is_listed:
        return Ignore(IGNORE_REASONS["o"])
    draft = StreamDraft(stream, at_ms)
    failures = stream.listing_failures + 1
    delay_ms = min(RETRY_MS << min(failures - 1, 16), RETRY_MAX_MS)
    draft.changes |= {
        "waiting_for": (event.text,),
        "listing_failures": failures,
        "next_listing_ms": at_ms + delay_ms,
    }
    if event.is_permanent:
        draft.failure = event.text
    return draft.result()


def listed_size(unit: Unit) -> int:
    """Return the positions in a unit as listed, -1 when it must be opened to know."""
    return unit.byte_count if has_byte_positions(unit) else -1
