"""Units as they are listed: append only, in order, each once."""

from msgspec.structs import replace

from primusd.datafeed.ledger import rescans
from primusd.datafeed.ledger.draft import StreamDraft
from primusd.datafeed.ledger.events import (
    CarryingFailed,
    ListingFailed,
    TopicsFollowed,
    UnitsListed,
)
from primusd.datafeed.ledger.listed import UnitEntry, Units, alike
from primusd.datafeed.ledger.model import Stream, UnitFound, has_byte_positions
from primusd.datafeed.ledger.packing import pack_passed
from primusd.datafeed.protocol import Unit
from primusd.job.formats import is_compressed
from primusd.job.machine import IGNORE_REASONS, Ignore
from primusd.job.spec import follows_topics, has_files

RETRY_MS = 1_000
RETRY_MAX_MS = 60_000
FOLLOW_RETRY_MAX_MS = 10_000
"""Records that came while a broker was away are waited for."""
AHEAD_UNITS = 2_000
"""Two pieces of a listing, so that one is there while the next comes."""
AHEAD_PER_READER = 8
SLICES_PER_LANE = 4
"""So that lanes differ little in length."""


def list_units(stream: Stream, event: UnitsListed, at_ms: int) -> Stream | Ignore:
    """Return the stream with further units; those that are known already are left out."""
    known = len(stream.units)
    fresh = event.units[max(0, known - event.first) :] if event.first <= known else ()
    is_over = stream.is_listed or stream.has_listed_files
    missing = tuple(name for name in event.missing if name not in stream.missing)
    is_news = bool(fresh or missing or event.is_complete or event.scan is not None)
    if is_over or not is_news or event.first > known:
        return Ignore(IGNORE_REASONS["r"])
    draft = StreamDraft(stream, at_ms)
    options = stream.units[known - 1].unit.options if known else None
    entries = tuple(UnitEntry(unit, listed_size(unit)) for unit in alike(fresh, options))
    if stream.spec.shuffle is not None:
        draft.windows = _windows(draft, len(entries))
    draft.units = stream.units.with_more(entries)
    draft.known += sum(entry.size for entry in entries if entry.size >= 0)
    draft.unsized_units += sum(entry.size < 0 for entry in entries)
    draft.is_listed = event.is_complete and not follows_topics(stream.spec)
    if stream.spec.split.rows and (uncut := next((e for e in entries if e.size >= 0), None)):
        draft.failure = (
            f"split.rows cannot be kept: {uncut.unit.location} is cut by bytes; "
            f"write split: {{bytes: 64Mi}}"
        )
    if draft.is_listed and stream.spec.order == "strict":
        _slice(draft)
    for epoch in draft.epochs.values():
        draft.seed(epoch.number, known)
        draft.move_on(epoch)
    pack_passed(draft)
    draft.changes["has_listed_files"] = event.is_complete
    draft.changes["missing"] = stream.missing + missing
    return _heard(draft, rests_to_ms=_scan(draft, event, len(fresh)))


def _scan(draft: StreamDraft, event: UnitsListed, fresh_count: int) -> int:
    """Note what a look at folders listed before came to; return until when listing rests."""
    every_ms = rescans.every_ms(draft.before.spec)
    if not every_ms:
        return 0
    before = draft.before.scanning
    after = rescans.heard(before, event, fresh_count, every_ms=every_ms, at_ms=draft.at_ms)
    draft.changes["scanning"] = after
    return after.next_ms if event.scan is not None and event.scan.is_at_end else 0


def needs_listing(stream: Stream) -> bool:
    """Return whether files are to be listed now: always so many ahead of what was begun.

    Where files are mixed or come in another order than listed, all are needed at once.
    """
    spec = stream.spec
    in_order = spec.shuffle is None and spec.order != "strict" and spec.mixing == "inOrder"
    if not in_order or not stream.epochs:
        return True
    if stream.scanning.due_ms:
        return True
    ahead = len(stream.units) - stream.epochs[-1].next_unit
    return ahead < AHEAD_UNITS + AHEAD_PER_READER * stream.reader_count


def follow_topics(stream: Stream, event: TopicsFollowed, at_ms: int) -> Stream | Ignore:
    """Return the stream with further partitions, and those it has as long as they are by now."""
    known = len(stream.units)
    if stream.is_listed or (event.units and event.first != known):
        return Ignore(IGNORE_REASONS["r"])
    draft = StreamDraft(stream, at_ms)
    fresh = zip(event.units, event.firsts, strict=True)
    draft.units = stream.units.with_more(UnitEntry(unit, -1, first) for unit, first in fresh)
    for number in range(known, len(draft.units)):
        # Not a size of -1: that would be leased to an end that nobody knows.
        draft.found.put(number, number, UnitFound(draft.units[number].first))
    numbers = range(len(draft.units))
    grown = [(n, end) for n, end in event.ends if n in numbers and end > draft.end(n)]
    if not (event.units or grown or event.is_complete or stream.waiting_for):
        return Ignore(IGNORE_REASONS["a"])
    for epoch in draft.epochs.values():
        draft.move_on(epoch)
    for number, end in grown:
        draft.grow(number, end)
    for epoch in draft.epochs.values():
        draft.seed(epoch.number, known)
    draft.is_listed = event.is_complete
    return _heard(draft)


def _heard(draft: StreamDraft, *, rests_to_ms: int = 0) -> Stream:
    """Return the stream after its sources answered; from now on it serves."""
    draft.changes |= {"waiting_for": (), "listing_failures": 0, "next_listing_ms": rests_to_ms}
    if draft.before.phase == "Opening":
        draft.changes |= {"phase": "Serving", "phase_since_ms": draft.at_ms}
    return draft.result()


def fail_listing(stream: Stream, event: ListingFailed, at_ms: int) -> Stream | Ignore:
    """Return the stream with the next try put off, or about to fail."""
    if stream.is_listed:
        return Ignore(IGNORE_REASONS["o"])
    draft = StreamDraft(stream, at_ms)
    failures = stream.listing_failures + 1
    is_following = follows_topics(stream.spec) and (
        stream.has_listed_files or not has_files(stream.spec)
    )
    most_ms = FOLLOW_RETRY_MAX_MS if is_following else RETRY_MAX_MS
    delay_ms = min(RETRY_MS << min(failures - 1, 16), most_ms)
    draft.changes |= {
        "waiting_for": (event.text,),
        "listing_failures": failures,
        "next_listing_ms": at_ms + delay_ms,
    }
    if event.is_permanent:
        draft.failure = event.text
    return draft.result()


def _windows(draft: StreamDraft, fresh: int) -> tuple[int, ...]:
    """Return where windows end now: what was listed joins the last one unless that was begun."""
    windows, known = draft.windows, len(draft.units)
    start = windows[-2] if len(windows) > 1 else 0
    if windows and not draft.has_begun(start):
        return (*windows[:-1], known + fresh)
    return (*windows, known + fresh) if fresh else windows


def _slice(draft: StreamDraft) -> None:
    """Cut the files of strict order into slices, each a unit, where there are few of them."""
    if draft.before.carried:
        draft.failure = "positions of another stream cannot be carried into order: strict"
    wanted = SLICES_PER_LANE * draft.before.spec.lanes
    count = -(-wanted // max(1, len(draft.units)))
    if count <= 1:
        return
    entries: list[UnitEntry] = []
    for entry in draft.units:
        parts = 1 if is_compressed(entry.unit.options) else count
        for number in range(parts):
            options = {**entry.unit.options, "slice": f"{number}/{parts}"}
            unit = replace(entry.unit, options=options)
            entries.append(UnitEntry(unit, listed_size(unit)))
    draft.units = Units((), tuple(one for one in entries if one.size))
    draft.known = sum(entry.size for entry in draft.units if entry.size >= 0)
    draft.unsized_units = sum(entry.size < 0 for entry in draft.units)
    if draft.windows:
        draft.windows = (len(draft.units),)


def fail_carrying(stream: Stream, event: CarryingFailed, at_ms: int) -> Stream | Ignore:
    """Return the stream with the next try put off to read the positions that it starts at."""
    if not stream.is_carrying:
        return Ignore(IGNORE_REASONS["o"])
    if event.is_waiting:
        return replace(stream, waiting_for=(event.text,))
    failed = ListingFailed(event.text, event.is_permanent)
    return fail_listing(stream, failed, at_ms)


def listed_size(unit: Unit) -> int:
    """Return the positions in a unit as listed, -1 when it must be opened to know."""
    if not has_byte_positions(unit):
        return -1
    part = unit.options.get("slice", "")
    if not part:
        return unit.byte_count
    number, count = map(int, part.split("/"))
    return unit.byte_count * (number + 1) // count - unit.byte_count * number // count
