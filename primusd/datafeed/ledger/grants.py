"""What settle gives out: the next waiting ranges, and trims when nothing waits."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain

from msgspec.structs import replace

from primusd.datafeed.ledger import lanes, splitting, tails, tasks
from primusd.datafeed.ledger.draft import StreamDraft
from primusd.datafeed.ledger.epoch_draft import EpochDraft
from primusd.datafeed.ledger.events import Grant, Granted, Trim, TrimAsked
from primusd.datafeed.ledger.lanes import first_range
from primusd.datafeed.ledger.model import (
    OPEN_END,
    EpochState,
    LeaseState,
    ReaderState,
    Stream,
    can_grow,
    cuts_of,
    has_byte_positions,
    reader_of,
    size_of,
)
from primusd.datafeed.ledger.shards import values
from primusd.datafeed.ledger.tracks import Tracks, cursors_of, may_wait, tracks_of
from primusd.job.ids import AttemptId

GRANTS_PER_EVENT_MAX = 512
OPEN_EPOCHS_MAX = 2
"""The next epoch begins while stragglers finish this one, a third does not."""
HELD_EPOCHS_MAX = 8
"""Beside them, those that are kept open for savepoints in the making."""
LEASES_LOOKED_THROUGH_MAX = 256
"""Up to so many leases the best one to trim is looked for at once, above when the timer says so."""
TRIM_REST_MS = 2_000
"""A holder with less work left is not asked to share it."""
TRIM_IDLE_MS = 10_000
"""A holder of unknown rate that took nothing for so long is asked in any case."""
TRIM_BYTES_MIN = 128 << 10
TRIM_ROWS_MIN = 2_048


def decide_grants(stream: Stream, at_ms: int) -> Granted | None:
    """Return the ranges that go to the readers that want some, None when there are none.

    Those that hold nothing come first; the last ranges are kept for such.
    """
    if stream.is_paused or stream.must_restore:
        return None
    if not (stream.hungry.count or stream.greedy.count):
        return None
    if not does_wait(stream):
        return None
    if stream.spec.order == "strict":
        return _lane_grants(stream, at_ms)
    steps = stream.spec.tail != "uneven"
    if not steps and not stream.hungry.count and not _has_more(stream, stream.idle_count, 0):
        return None
    draft = StreamDraft(stream, at_ms)
    grants: list[Grant] = []
    while len(grants) < GRANTS_PER_EVENT_MAX:
        attempt = tails.poorest(draft) if steps else _next_reader(draft, len(grants))
        grant = None if attempt is None else _next_grant(draft, attempt)
        if grant is None:
            break
        grants.append(grant)
        if _is_last(draft, grant):
            break
        grant_lease(draft, grant)
    return Granted(tuple(grants)) if grants else None


def _next_reader(draft: StreamDraft, given: int) -> AttemptId | None:
    """Return who gets the next range: one that holds nothing, else one that wants more."""
    attempt = draft.hungry.head()
    if attempt is None and _has_more(draft.before, draft.idle_count, given):
        return draft.greedy.head()
    return attempt


def _is_last(draft: StreamDraft, grant: Grant) -> bool:
    """Return whether nobody wants anything more after a grant that is not made true yet."""
    reader = draft.reader(grant.attempt)
    assert reader is not None
    return reader.want <= 1 and draft.hungry.count + draft.greedy.count == 1


def _lane_grants(stream: Stream, at_ms: int) -> Granted | None:
    draft = StreamDraft(stream, at_ms)
    grants = []
    for grant in lanes.lane_grants(draft, GRANTS_PER_EVENT_MAX):
        grant_lease(draft, grant)
        grants.append(grant)
    return Granted(tuple(grants)) if grants else None


def grant_lease(draft: StreamDraft, grant: Grant) -> None:
    """Make a grant true."""
    reader = draft.reader(grant.attempt)
    assert reader is not None
    assert grant.token == draft.last_token + 1
    draft.open_epoch(grant.epoch)
    draft.last_token = grant.token
    lease = LeaseState(
        grant.token,
        grant.attempt,
        grant.epoch,
        grant.unit,
        grant.lo,
        grant.hi,
        grant.lo,
        draft.at_ms,
    )
    draft.hold(replace(reader, want=max(0, reader.want - 1)), lease)
    if can_grow(draft.units[grant.unit].unit):
        draft.epochs[grant.epoch].turn = grant.unit + 1
    if draft.tracks.is_strict:
        lanes.take_lane(draft, grant)


def does_wait(stream: Stream) -> bool:
    """Return whether a range waits that may be given out."""
    tracks = tracks_of(stream)
    if any(may_wait(tracks, epoch) for epoch in stream.epochs):
        return True
    return may_begin_epoch(stream, len(stream.epochs), stream.epochs_begun)


def is_taken(stream: Stream, epoch: EpochState) -> bool:
    """Return whether all of an epoch was taken or left out."""
    return not epoch.open_count and not may_wait(tracks_of(stream), epoch)


def may_begin_epoch(stream: Stream, open_count: int, begun: int) -> bool:
    """Return whether the next epoch may begin now that all of the open ones is handed out.

    One of which all was taken may be open only because steps wait for marks, and those that have
    not marked them need rows to come to them.
    """
    # Where the order counts, or the steps, one epoch ends before the next begins.
    overlaps = stream.spec.order == "any" and stream.spec.tail == "uneven"
    most = OPEN_EPOCHS_MAX if overlaps else 1
    if stream.markings and stream.spec.order != "strict" and stream.spec.tail == "uneven":
        held = sum(is_taken(stream, one) for one in stream.epochs)
        most += min(held, HELD_EPOCHS_MAX)
    return stream.is_listed and open_count < most and begun < stream.spec.epochs


def _next_grant(draft: StreamDraft, attempt: AttemptId) -> Grant | None:
    reader = draft.reader(attempt)
    found = None if reader is None else _next_unit(draft, reader)
    if found is None or reader is None:
        return None
    epoch, number = found
    state = epoch.units.find(number, number) or draft.untouched(number)
    one = first_range(state, draft.end(number))
    entry = draft.units[number]
    if draft.before.spec.order == "unit":
        return Grant(epoch.number, number, one.lo, one.hi, draft.last_token + 1, attempt)
    hi = splitting.cut(
        entry,
        one,
        size=draft.size(number),
        cuts=_cuts(draft, number),
        has_bytes=has_byte_positions(entry.unit),
        split=draft.before.spec.split,
        share=splitting.Share(
            reader.per_s,
            max(0, draft.known - epoch.consumed - epoch.skipped - epoch.leased),
            draft.reader_count,
        ),
    )
    return Grant(epoch.number, number, one.lo, hi, draft.last_token + 1, attempt)


def _next_unit(draft: StreamDraft, reader: ReaderState) -> tuple[EpochDraft, int] | None:
    """Return the epoch and number of the first unit in which something waits."""
    tracks = draft.tracks
    for number in sorted(draft.epochs):
        epoch = draft.epochs[number]
        for track in _preferred(tracks, reader):
            found = _first_of(draft, tracks, epoch, track)
            if found is not None:
                return epoch, found
    if not may_begin_epoch(draft.before, len(draft.epochs), draft.epochs_begun):
        return None
    epoch = draft.open_epoch(draft.epochs_begun)
    for track in _preferred(tracks, reader):
        found = _first_of(draft, tracks, epoch, track)
        if found is not None:
            return epoch, found
    return None


def _preferred(tracks: Tracks, reader: ReaderState) -> Iterable[int]:
    """Return the tracks, that first of which the reader should have a lease next."""
    if tracks.count == 1:
        return (0,)
    if tracks.spec.mixing == "priority":
        return sorted(range(tracks.count), key=lambda one: -tracks.spec.sources[one].weight)
    held = Counter(tracks.track_of(lease.epoch, lease.unit) for lease in reader.leases)
    return sorted(range(tracks.count), key=lambda one: held[one])


def _first_of(draft: StreamDraft, tracks: Tracks, epoch: EpochDraft, track: int) -> int | None:
    """Return the first unit of a track in which something waits, None when nothing does."""
    is_whole = tracks.count == 1
    for number in epoch.reopened:
        if (is_whole or tracks.track_of(epoch.number, number) == track) and _may_grant(
            draft, epoch, number
        ):
            return _in_turn(draft, tracks, epoch, track, number)
    rank = epoch.cursor(track)
    if rank >= tracks.end:
        return None
    number = tracks.unit_at(epoch.number, rank)
    return _in_turn(draft, tracks, epoch, track, number)


def _may_grant(draft: StreamDraft, epoch: EpochDraft, number: int) -> bool:
    """Return whether a unit may have one more lease: in order `unit` it has one at a time."""
    if draft.before.spec.order != "unit":
        return True
    state = epoch.units.find(number, number)
    return state is None or not state.leased


def _in_turn(draft: StreamDraft, tracks: Tracks, epoch: EpochDraft, track: int, first: int) -> int:
    """Return the unit itself; of partitions the next that waits after the one that had its turn.

    None of them is read to its end before the next begins: they grow while they are read.
    """
    if not can_grow(draft.units[first].unit):
        return first
    count = len(draft.units)
    for number in chain(range(epoch.turn, count), range(min(epoch.turn, count))):
        if tracks.count > 1 and tracks.track_of(epoch.number, number) != track:
            continue
        state = epoch.units.find(number, number) or draft.untouched(number)
        is_open = number in epoch.reopened or not draft.is_passed(epoch, number)
        if (
            is_open
            and tasks.does_wait(state, draft.end(number))
            and _may_grant(draft, epoch, number)
        ):
            return number
    return first


def _has_more(stream: Stream, idle_count: int, given: int) -> bool:
    """Return whether there is more than a piece for each reader that holds nothing, roughly.

    Args:
        stream: Before the grants that are being decided.
        idle_count: Readers that hold nothing after them.
        given: How many they are.
    """
    if not idle_count or may_begin_epoch(stream, len(stream.epochs), stream.epochs_begun):
        return True
    pieces = 0
    for epoch in stream.epochs:
        waiting = stream.known - epoch.consumed - epoch.skipped - epoch.leased
        pieces += len(epoch.reopened) + len(stream.units) - min(cursors_of(epoch))
        pieces += max(0, waiting) // _piece(stream)
    return pieces - given > idle_count


def _piece(stream: Stream) -> int:
    """Return about how many positions a task has, at least."""
    split = stream.spec.split
    if stream.units and has_byte_positions(stream.units[0].unit):
        return split.byte_count or splitting.BYTES_MIN
    return split.rows or splitting.ROWS_MIN


def _cuts(draft: StreamDraft, number: int) -> tuple[int, ...]:
    found = draft.found.find(number, number)
    return draft.units[number].cuts if found is None else found.cuts


def decide_trims(stream: Stream, at_ms: int) -> TrimAsked | None:
    """Return whom to ask for a part of what it holds, None when nobody has much left."""
    if stream.split_due:
        return _split_trims(stream)
    if stream.spec.order != "any":
        return lanes.lane_trims(stream) if stream.spec.order == "strict" else None
    if stream.is_paused or not (stream.hungry.count or stream.greedy.count):
        return None
    if stream.lease_count > LEASES_LOOKED_THROUGH_MAX and not stream.is_trim_due:
        return None
    hungry = tuple(_hungry(stream, at_ms))
    # Who was asked for what its trainer has in hand does not answer: by the clock others are asked.
    owed = len(hungry) - (0 if stream.is_trim_due else stream.trim_count)
    if owed <= 0:
        return None
    asked: list[tuple[int, tuple[Trim, ...]]] = []
    for reader in values(stream.reader_shards):
        was_asked = any(lease.trim >= 0 for lease in reader.leases)
        if reader in hungry or (was_asked and not stream.is_trim_due):
            continue
        found = (
            _part(stream, reader, hungry[0], at_ms)
            or _spare(reader, hungry[0], at_ms)
            or _part(stream, reader, hungry[0], at_ms, stands_still=True)
        )
        if found is not None:
            asked.append(found)
    asked.sort(key=lambda one: (-one[0], one[1][0].token))
    return TrimAsked(tuple(t for _, trims in asked[:owed] for t in trims)) if asked else None


def _hungry(stream: Stream, at_ms: int) -> Iterator[ReaderState]:
    """Yield the readers that want more and have little or nothing left; who stands still has."""
    for attempt in (*stream.hungry, *stream.greedy):
        reader = reader_of(stream, attempt)
        assert reader is not None
        rest = sum(lease.hi - lease.position for lease in reader.leases)
        left_ms = max(rest * 1000 // max(1, reader.per_s), _idle_ms(reader, at_ms))
        if rest == 0 or (reader.per_s and left_ms < TRIM_REST_MS):
            yield reader


def _part(
    stream: Stream,
    reader: ReaderState,
    other: ReaderState,
    at_ms: int,
    *,
    stands_still: bool = False,
) -> tuple[int, tuple[Trim, ...]] | None:
    """Return where to cut the lease that has most left, None when none has much.

    Args:
        stream: As it is.
        reader: Its holder.
        other: Who is to have the rest.
        at_ms: Now.
        stands_still: That its holder takes nothing counts, too: it may wait for the others.
    """
    leases = (one for one in reader.leases if one.trim < 0)
    found = [_trim(stream, reader, one, other, at_ms, stands_still=stands_still) for one in leases]
    best = max((one for one in found if one is not None), key=lambda one: one[0], default=None)
    return None if best is None else (best[0], (best[1],))


def _spare(
    reader: ReaderState, other: ReaderState, at_ms: int
) -> tuple[int, tuple[Trim, ...]] | None:
    """Return the last of the leases that a reader has not begun: whole ones, for another reader.

    Each of them is too small to be cut, but a reader that asks far ahead has many. One that took
    nothing for a while may wait for the others to come as far as it is.
    """
    rest = sum(lease.hi - lease.position for lease in reader.leases if lease.hi != OPEN_END)
    rest_ms = max(rest * 1000 // reader.per_s if reader.per_s else 0, _idle_ms(reader, at_ms))
    order = sorted(reader.leases, key=lambda one: (one.epoch, one.unit, one.lo))
    whole = [one for one in order[1:] if one.position == one.lo and one.hi != OPEN_END]
    whole = [one for one in whole if one.trim < 0]
    if rest_ms < TRIM_REST_MS or not whole:
        return None
    speeds = reader.per_s, other.per_s
    share = len(whole) * speeds[1] // sum(speeds) if all(speeds) else len(whole) // 2
    spared = whole[-max(1, share) :]
    return rest_ms, tuple(Trim(reader.attempt, one.token, one.lo) for one in spared)


def _idle_ms(reader: ReaderState, at_ms: int) -> int:
    """Return for how long a reader has taken nothing, though it had something."""
    granted_ms = min((lease.granted_ms for lease in reader.leases), default=at_ms)
    return at_ms - max(granted_ms, reader.moved_ms)


def _trim(
    stream: Stream,
    reader: ReaderState,
    lease: LeaseState,
    other: ReaderState,
    at_ms: int,
    *,
    stands_still: bool,
) -> tuple[int, Trim] | None:
    """Return how much time a lease has left and where to cut it, None when it is not worth it."""
    if lease.hi == OPEN_END:
        return None
    rest = lease.hi - lease.position
    rest_ms = rest * 1000 // reader.per_s if reader.per_s else -1
    has_bytes = has_byte_positions(stream.units[lease.unit].unit)
    idle_ms = at_ms - max(lease.granted_ms, reader.moved_ms)
    if rest_ms < 0 and idle_ms >= TRIM_IDLE_MS:
        rest_ms = splitting.GRANULE_MS * 10
    elif stands_still and rest_ms >= 0:
        # As long again, at the least.
        rest_ms = max(rest_ms, idle_ms)
    is_much = (
        rest_ms >= TRIM_REST_MS
        if rest_ms >= 0
        else rest >= (TRIM_BYTES_MIN if has_bytes else TRIM_ROWS_MIN)
    )
    if rest < 2 or not is_much:
        return None
    at = splitting.middle(
        lease.position,
        lease.hi,
        per_s=reader.per_s,
        other_per_s=other.per_s,
        cuts=cuts_of(stream, lease.unit),
        rest_ms=rest_ms,
    )
    if at < 0:
        return None
    return (rest_ms if rest_ms >= 0 else rest), Trim(reader.attempt, lease.token, at)


def _split_trims(stream: Stream) -> TrimAsked:
    """Return the trims that the spec's split asks for, of leases given before the unit was open.

    One that ended meanwhile is named with `at` -1: nothing is asked, it is no longer due.
    """
    trims = []
    for attempt, token in stream.split_due:
        reader = reader_of(stream, attempt)
        leases = reader.leases if reader else ()
        lease = next((one for one in leases if one.token == token), None)
        at = -1 if lease is None or lease.trim >= 0 else _split_end(stream, lease)
        trims.append(Trim(attempt, token, at))
    return TrimAsked(tuple(trims))


def _split_end(stream: Stream, lease: LeaseState) -> int:
    size = size_of(stream, lease.unit)
    entry = stream.units[lease.unit]
    wished = splitting.split_size(
        entry, size=size, has_bytes=has_byte_positions(entry.unit), split=stream.spec.split
    )
    at = lease.position + wished
    return at if wished and at < lease.hi else -1


def ask_trims(draft: StreamDraft, event: TrimAsked) -> None:
    """Make trims wished for."""
    draft.split_due = ()
    draft.changes["is_trim_due"] = False
    for trim in event.trims:
        if trim.at < 0:
            continue
        reader = draft.reader(trim.attempt)
        assert reader is not None
        lease = next(one for one in reader.leases if one.token == trim.token)
        assert lease.trim < 0
        if draft.tracks.is_strict:
            lanes.leave_lane(draft, reader, trim.token)
        reader = draft.change(reader, replace(lease, trim=trim.at))
        tails.asked(draft, reader)
