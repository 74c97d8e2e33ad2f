"""What a reader's report and its end change: positions, trims, returns, maps, bad ranges."""

from collections.abc import Iterable

from msgspec.structs import replace

from primusd.datafeed.ledger import asking, marking, savepoints, splitting, tails, tasks
from primusd.datafeed.ledger.draft import StreamDraft
from primusd.datafeed.ledger.events import BeatReceived, LeaseExpired, ReaderEnded, ReaderOpened
from primusd.datafeed.ledger.lanes import end_lanes, inherit_lanes
from primusd.datafeed.ledger.losses import UNREACHED_KINDS, count_bad, forget, give_up, strike
from primusd.datafeed.ledger.model import (
    OPEN_END,
    LeaseState,
    Range,
    ReaderState,
    Stream,
    UnitRange,
    has_byte_positions,
    reader_of,
)
from primusd.datafeed.ledger.ranges import overlap, subtract, total
from primusd.datafeed.ledger.shards import values
from primusd.datafeed.ledger.suspects import suspect
from primusd.datafeed.protocol import BadRange, FeedReport, Held, Mark, UnitMap
from primusd.job.ids import AttemptId
from primusd.job.machine import IGNORE_REASONS, At, Ignore

WANT_MAX = 64
"""Leases that one report may bring."""
RATE_OVER_MS = 10_000
"""A reader's rate is smoothed over about this time."""


def open_reader(stream: Stream, event: ReaderOpened, at_ms: int) -> Stream | Ignore:
    """Return the stream with a reader; a new incarnation frees what the older one held."""
    before = reader_of(stream, event.attempt)
    if before is not None and before.incarnation == event.incarnation:
        return Ignore(IGNORE_REASONS["a"])
    draft = StreamDraft(stream, at_ms)
    if before is not None:
        _lose(draft, before, before.leases)
        if _loses_group(stream, before):
            _lose_group(draft, f"{event.attempt.label} began anew")
    is_awaited = event.is_awaited and stream.spec.delivery == "exactlyOnce"
    reader = ReaderState(event.attempt, event.incarnation, moved_ms=at_ms, is_awaited=is_awaited)
    draft.put_reader(reader)
    if before is None and event.is_awaited and _is_over(stream):
        draft.changes["must_restore"] = True
    if draft.lane_owners:
        inherit_lanes(draft, event.attempt)
    return draft.result()


def _is_over(stream: Stream) -> bool:
    """Return whether a group read the stream and is gone: who comes now is of the next one.

    All that had opened it completed, and the role restarts all the same. A group's members are all
    there before the first one opens it.
    """
    has_begun = stream.spec.delivery == "exactlyOnce" and bool(stream.restored_by)
    return has_begun and not stream.opened_count and not stream.must_restore


def expire(stream: Stream, event: LeaseExpired, at_ms: int) -> Stream | Ignore:
    """Return the stream without the leases of a holder that was silent for too long."""
    reader = reader_of(stream, event.attempt)
    leases = reader.leases if reader else ()
    gone = [one for one in leases if not event.tokens or one.token in event.tokens]
    if reader is None or not gone:
        return Ignore(IGNORE_REASONS["s"])
    draft = StreamDraft(stream, at_ms)
    was_part = _loses_group(stream, reader)
    reader = draft.put_reader(replace(reader, want=0))
    _lose(draft, reader, gone)
    if was_part:
        _lose_group(draft, f"a lease of {event.attempt.label} ran out")
    return draft.result()


def end_reader(stream: Stream, event: ReaderEnded, at: At) -> Stream:
    """Return the stream after a reader's end, its last positions counted in.

    One that completed need not mark any more: others may have waited for it.
    """
    after = _ended_reader(stream, event, at.at_ms)
    return savepoints.seal_marked(after, at) if after.markings else after


def _ended_reader(stream: Stream, event: ReaderEnded, at_ms: int) -> Stream:
    draft = StreamDraft(stream, at_ms)
    draft.changes["ended_readers"] = stream.ended_readers + 1
    reader = draft.reader(event.attempt)
    if reader is None:
        return draft.result()
    if event.has_completed:
        draft.repeated += reader.in_hand
    marks = tuple(mark for name, mark in event.marks if name == stream.name)
    reader = _hear_marks(draft, event.attempt, marks)
    last = {held.token: held for held in event.positions if held.stream == stream.name}
    blamed = reader.leases[0].token if event.was_own_fault and reader.leases else 0
    for lease in reader.leases:
        reader, _ = _take(draft, reader, lease, last.get(lease.token))
    rest = reader.leases
    known = [one for one in rest if event.has_completed or one.token in last]
    has_completed = event.has_completed
    for lease in known:
        held = last.get(lease.token)
        reader = _give_back(draft, reader, lease, held, has_completed=has_completed)
    _lose(draft, reader, reader.leases)
    for lease in rest:
        if lease.token == blamed:
            _blame(draft, lease)
    draft.drop_reader(event.attempt)
    marking.note_ended(draft, event.attempt)
    end_lanes(draft, event.attempt, has_completed=event.has_completed)
    before = reader_of(stream, event.attempt)
    if before is not None and not event.has_completed and _loses_group(stream, before):
        _lose_group(draft, f"{event.attempt.label} ended")
    return draft.result()


def _blame(draft: StreamDraft, lease: LeaseState) -> None:
    """Note on what a reader died of its own fault; what it moved past was not to blame."""
    delivery = draft.before.spec.delivery
    if lease.position == lease.lo and delivery != "atMostOnce":
        strike(draft, lease)
    elif delivery == "exactlyOnce":
        suspect(draft, lease)


def _loses_group(stream: Stream, reader: ReaderState) -> bool:
    """Return whether the loss of a reader is that of its group: what it took is in all models."""
    is_part = reader.has_opened and not reader.is_lost
    return stream.spec.delivery == "exactlyOnce" and is_part and not stream.must_restore


def _lose_group(draft: StreamDraft, text: str) -> None:
    """Take everything back from a group; it begins anew at a savepoint."""
    for reader in values(draft.readers.result()):
        kept = reader
        for lease in reader.leases:
            kept = draft.let_go(kept, lease)
        draft.put_reader(replace(kept, is_lost=True, want=0))
    for step in sorted(draft.markings):
        marking.give_up(draft, step, text)
    draft.changes["must_restore"] = True


def beat(stream: Stream, event: BeatReceived, at: At) -> Stream | Ignore:
    """Return the stream after a report; what names a lease it does not hold changes nothing."""
    counted = _counted(stream, event, at.at_ms)
    before = stream if isinstance(counted, Ignore) else counted
    report = event.report
    reader = reader_of(before, event.attempt)
    if reader is None or reader.incarnation != event.incarnation:
        return counted
    after = before
    if report.asks or reader.answers or before.must_restore:
        after = asking.answer_asks(before, event.attempt, report.asks, at)
    if after.markings:
        after = savepoints.seal_marked(after, at)
    return counted if after is stream else after


def _counted(stream: Stream, event: BeatReceived, at_ms: int) -> Stream | Ignore:
    reader = reader_of(stream, event.attempt)
    if reader is None or reader.incarnation != event.incarnation:
        return Ignore(IGNORE_REASONS["s"])
    report = event.report
    draft = StreamDraft(stream, at_ms)
    consumed = sum(epoch.consumed for epoch in draft.epochs.values())
    _count_in(draft, event)
    gained = sum(epoch.consumed for epoch in draft.epochs.values()) - consumed
    reader = draft.reader(event.attempt)
    assert reader is not None
    after = _with_wishes(_with_rates(reader, report, gained, at_ms), report)
    after = tails.heard(draft, after, report.steps)
    if gained > 0 and not after.has_taken:
        after = replace(after, has_taken=True)
    if report.want and after.in_hand:
        # Its trainer lives, and reads the stream again.
        draft.repeated += after.in_hand
        after = replace(after, in_hand=0)
    if reader.is_missed and after.has_opened:
        marking.wait_anew(draft)
    if after != reader:
        draft.put_reader(after)
    elif draft.is_same():
        live = {lease.token for lease in reader.leases}
        named = {held.token for held in (*report.held, *report.returned)}
        return Ignore(IGNORE_REASONS["s" if named - live else "a"])
    return draft.result()


def _count_in(draft: StreamDraft, event: BeatReceived) -> None:
    """Take in a report; what cannot be read comes before the positions that pass over it."""
    report = event.report
    if draft.before.phase == "Serving":
        for found in report.mapped:
            _learn(draft, event.attempt, found)
    for bad in report.bad:
        if bad.kind not in UNREACHED_KINDS:
            _note_bad(draft, event, bad)
    if report.marks:
        _hear_marks(draft, event.attempt, report.marks)
    for held in report.held if report.bad else _moved(draft, event):
        _hear(draft, event.attempt, held, is_returned=False)
    for bad in report.bad:
        if bad.kind in UNREACHED_KINDS:
            _note_bad(draft, event, bad)
    for held in report.returned:
        _hear(draft, event.attempt, held, is_returned=True)


def _moved(draft: StreamDraft, event: BeatReceived) -> list[Held]:
    """Return what a report says that is not known yet: most leases are where they were."""
    reader = draft.reader(event.attempt)
    assert reader is not None
    known = {lease.token: lease for lease in reader.leases}
    return [
        held
        for held in event.report.held
        if (lease := known.get(held.token)) is not None
        # An empty one is done as it is.
        and (held.position > lease.position or held.hi < lease.hi or lease.position == lease.hi)
    ]


def _hear_marks(draft: StreamDraft, attempt: AttemptId, marks: tuple[Mark, ...]) -> ReaderState:
    """Count in how far the trainer was at each mark, before how far it is now."""
    reader = draft.reader(attempt)
    assert reader is not None
    for mark in marking.fresh(draft, reader, marks):
        for held in mark.positions:
            _hear(draft, attempt, held, is_returned=False)
        marking.add_mark(draft, attempt, mark.step)
    reader = draft.reader(attempt)
    assert reader is not None
    return reader


def _with_rates(reader: ReaderState, report: FeedReport, gained: int, at_ms: int) -> ReaderState:
    """Return the reader with its rates, which change only when it took something."""
    if gained <= 0:
        return reader
    spent_ms = max(1, at_ms - reader.moved_ms)
    if reader.per_s:
        per_s = (reader.per_s * RATE_OVER_MS + gained * 1000) // (RATE_OVER_MS + spent_ms)
    else:
        per_s = gained * 1000 // max(1000, spent_ms)
    rows_per_s = report.rows_per_s
    if abs(rows_per_s - reader.rows_per_s) * 4 <= reader.rows_per_s:
        # Small changes would only make new orders.
        rows_per_s = reader.rows_per_s
    return replace(reader, per_s=max(1, per_s), rows_per_s=rows_per_s, moved_ms=at_ms)


def _with_wishes(reader: ReaderState, report: FeedReport) -> ReaderState:
    """Return the reader with what it wants; leases that are on their way to it count."""
    known = {held.token for held in (*report.held, *report.returned)}
    coming = sum(lease.token not in known for lease in reader.leases)
    want = 0 if reader.is_lost else max(0, min(report.want, WANT_MAX) - coming)
    has_opened = reader.has_opened or bool(
        report.want or report.asks or report.held or report.marks
    )
    return replace(reader, want=want, has_opened=has_opened)


def _hear(draft: StreamDraft, attempt: AttemptId, held: Held, *, is_returned: bool) -> None:
    reader = draft.reader(attempt)
    assert reader is not None
    lease = find_lease(reader, held)
    if lease is None:
        return
    reader, after = _take(draft, reader, lease, held)
    if after is not None and is_returned:
        _give_back(draft, reader, after, held)


def _give_back(
    draft: StreamDraft,
    reader: ReaderState,
    lease: LeaseState,
    held: Held | None,
    *,
    has_completed: bool = False,
) -> ReaderState:
    """End a lease whose holder said how far it was; its trainer may have used what it had in hand.

    That comes again, or with delivery atMostOnce never.
    """
    after = draft.let_go(reader, lease)
    if held is None:
        return after
    in_hand = Range(lease.position, min(held.delivered, lease.hi))
    count = max(0, in_hand.hi - in_hand.lo)
    match draft.before.spec.delivery:
        case "atMostOnce":
            forget(draft, lease, in_hand)
        case "exactlyOnce" if not has_completed:
            # If the trainer is gone its group goes back, and nothing comes twice.
            after = draft.put_reader(replace(after, in_hand=after.in_hand + count))
        case _:
            draft.repeated += count
    return after


def _is_at_most_once(draft: StreamDraft) -> bool:
    return draft.before.spec.delivery == "atMostOnce"


def find_lease(reader: ReaderState, held: Held) -> LeaseState | None:
    """Return the live lease that a reader means, None when token or task do not match one."""
    for lease in reader.leases:
        if lease.token == held.token:
            same = (lease.epoch, lease.unit, lease.lo) == (held.epoch, held.unit, held.lo)
            return lease if same else None
    return None


def _take(
    draft: StreamDraft, reader: ReaderState, lease: LeaseState, held: Held | None
) -> tuple[ReaderState, LeaseState | None]:
    """Count in how far a lease is: first its new end, then its position; None when it is done."""
    after = lease
    if held is not None and held.position <= held.hi:
        if max(lease.position, held.position) <= held.hi < lease.hi:
            after = replace(after, hi=held.hi, trim=-1)
        # Past an end that nobody knows yet nothing can be taken.
        if after.position < held.position < OPEN_END:
            left_out = max(lease.left_out, held.left_out)
            draft.epochs[lease.epoch].left_out += left_out - lease.left_out
            position = min(held.position, after.hi)
            after = replace(after, position=position, left_out=left_out)
    if after.position > lease.position:
        state = draft.unit(lease.epoch, lease.unit)
        assert state is not None
        taken_count = after.position - lease.position
        if state.dead:
            dead = tasks.dead_ranges(state)
            taken_count -= total(overlap(dead, lease.position, after.position))
        draft.epochs[lease.epoch].consumed += taken_count
        if draft.markings:
            taken = UnitRange(
                lease.epoch,
                lease.unit,
                lease.position,
                after.position,
                after.left_out - lease.left_out,
            )
            marking.note_taken(draft, lease.attempt, taken)
    if after.position == after.hi == lease.hi:
        return draft.let_go(reader, lease, after.position), None
    if after != lease:
        reader = draft.change(reader, after)
    if after.position == after.hi or _is_all_dead(draft, after):
        return draft.let_go(reader, after), None
    return reader, after


def _is_all_dead(draft: StreamDraft, lease: LeaseState) -> bool:
    """Return whether nothing of what a lease still has can be read."""
    state = draft.unit(lease.epoch, lease.unit)
    rest = (Range(lease.position, lease.hi),)
    return state is not None and bool(state.dead) and not subtract(rest, tasks.dead_ranges(state))


def _lose(draft: StreamDraft, reader: ReaderState, leases: Iterable[LeaseState]) -> ReaderState:
    """Take leases back whose holder cannot say how far its trainer is."""
    lost = tuple(leases)
    if draft.before.spec.delivery == "atLeastOnce":
        draft.repeated += _repeatable(draft.before, reader, lost)
    for lease in lost:
        reader = draft.let_go(reader, lease)
        if _is_at_most_once(draft):
            forget(draft, lease, Range(lease.position, lease.hi))
    return reader


def _repeatable(stream: Stream, reader: ReaderState, leases: tuple[LeaseState, ...]) -> int:
    """Return how many positions of lost leases the trainer may have taken unheard, at most."""
    rest = sum(
        # Nobody knows how many rows an unopened unit has; hardly more than bytes.
        stream.units[one.unit].unit.byte_count if one.hi == OPEN_END else one.hi - one.position
        for one in leases
    )
    if not reader.rows_per_s:
        # It was told no window: it goes by its own rate, which is not known here yet.
        return rest
    has_bytes = any(has_byte_positions(stream.units[one.unit].unit) for one in leases)
    # Its own rate leaves out the time that it waited, and the window goes by that.
    per_s = reader.per_s if has_bytes else max(reader.per_s, reader.rows_per_s)
    window = per_s * stream.spec.window_ms // 1000
    return min(rest, window) if window else rest


def _learn(draft: StreamDraft, attempt: AttemptId, found: UnitMap) -> None:
    """Take in the size and the cuts of a unit that was opened for the first time."""
    if not 0 <= found.unit < len(draft.units) or draft.size(found.unit) >= 0:
        return
    size = found.rows if found.rows >= 0 else (found.cuts[-1] if found.cuts else -1)
    if size < 0:
        return
    states = [draft.unit(number, found.unit) for number in draft.epochs]
    leased = [one for state in states if state for one in state.leased]
    done = [one for state in states if state for one in state.done]
    leases = _leases_of(draft, attempt, found.unit, len(leased))
    if any(one.hi > size for one in done) or any(one.position > size for one in leases):
        # Rows were taken from behind that end: the map is wrong.
        return
    too_long = [one for one in leases if one.hi > size]
    for lease in too_long:
        draft.count_leased(lease, -1)
    draft.learn(found.unit, size, tuple(sorted({one for one in found.cuts if 0 < one <= size})))
    for lease in too_long:
        _narrow(draft, lease, size)


def _leases_of(
    draft: StreamDraft, attempt: AttemptId, unit: int, count: int
) -> tuple[LeaseState, ...]:
    """Return all leases of a unit; who opened it usually holds them."""
    reader = draft.reader(attempt)
    own = tuple(one for one in reader.leases if one.unit == unit) if reader else ()
    if len(own) == count:
        return own
    holders = values(draft.readers.result())
    return tuple(one for holder in holders for one in holder.leases if one.unit == unit)


def _narrow(draft: StreamDraft, lease: LeaseState, size: int) -> None:
    reader = draft.reader(lease.attempt)
    assert reader is not None
    reader = draft.narrow(reader, lease, size)
    entry = draft.units[lease.unit]
    wished = splitting.split_size(
        entry,
        size=size,
        has_bytes=has_byte_positions(entry.unit),
        split=draft.before.spec.split,
    )
    is_cut = draft.before.spec.order == "any"
    if is_cut and wished and size - lease.position > wished:
        draft.split_due = (*draft.split_due, (lease.attempt, lease.token))


def _note_bad(draft: StreamDraft, event: BeatReceived, bad: BadRange) -> None:
    reader = draft.reader(event.attempt)
    assert reader is not None
    lease = find_lease(reader, bad.held)
    if lease is None:
        return
    if bad.kind in UNREACHED_KINDS:
        give_up(draft, reader, lease, bad, event.attempt.label)
    else:
        count_bad(draft, lease, bad, event.attempt.label)
