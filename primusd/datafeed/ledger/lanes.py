"""Strict order: lanes that each belong to one reader, and hand out whole units in their order.

A reader has an even share of the lanes, and of each of them a lease and what it asked for ahead.
A lane stays with its replica, also through a restart of it; only who holds nothing takes lanes of
one that is gone. Who comes later gets lanes from those with most, by consent: their leases end
where they are, and the rest is the newcomer's.
"""

from collections.abc import Iterator

from primusd.datafeed.ledger import tasks
from primusd.datafeed.ledger.draft import StreamDraft
from primusd.datafeed.ledger.epoch_draft import EpochDraft
from primusd.datafeed.ledger.events import Grant, Trim, TrimAsked
from primusd.datafeed.ledger.model import Range, ReaderState, Stream, UnitState, reader_of
from primusd.datafeed.ledger.shards import values
from primusd.datafeed.ledger.tracks import Tracks, tracks_of
from primusd.job.ids import AttemptId

KEPT_MS = 60_000
"""For so long the lanes of a reader that ended wait for its replica to come back."""


def lane_grants(draft: StreamDraft, most: int) -> Iterator[Grant]:
    """Yield what goes to the readers that want some; the caller makes each true before the next."""
    epoch = min(draft.epochs.values(), key=lambda one: one.number, default=None)
    if epoch is None or not draft.tracks.end:
        return
    given = 0
    for attempt in (*draft.before.hungry, *draft.before.greedy):
        for lane in _own_lanes(draft, epoch, attempt):
            while given < most and (grant := _next(draft, epoch, attempt, lane)) is not None:
                yield grant
                given += 1


def _own_lanes(draft: StreamDraft, epoch: EpochDraft, attempt: AttemptId) -> list[int]:
    """Return the lanes that a reader has, or may take now."""
    count = draft.tracks.count
    owners = draft.lane_owners or (None,) * count
    left = _lanes_left(draft, epoch)
    found = [lane for lane in range(count) if owners[lane] == attempt]
    reader = draft.reader(attempt)
    is_idle = reader is not None and not reader.leases and not left & set(found)
    absent = {one for one in owners if one is not None and draft.reader(one) is None}
    is_kept = draft.before.lanes_free_ms > 0
    sharers = draft.reader_count + (len(absent) if is_kept else 0)
    most = -(-count // max(1, sharers))
    if is_idle and len(set(owners) - {None}) >= sharers:
        # Nobody waits for a share any more, and this one has none left.
        most = max(most, len(found) + 1)
    for lane in sorted(left - set(found)):
        owner = owners[lane]
        if len(found) < most and (owner is None or (is_idle and owner in absent and not is_kept)):
            found.append(lane)
    return found


def _lanes_left(draft: StreamDraft, epoch: EpochDraft) -> set[int]:
    """Return the lanes in which something waits."""
    tracks = draft.tracks
    found = {lane for lane in range(tracks.count) if epoch.cursor(lane) < tracks.end}
    return found | {tracks.track_of(epoch.number, number) for number in epoch.reopened}


def _next(draft: StreamDraft, epoch: EpochDraft, attempt: AttemptId, lane: int) -> Grant | None:
    """Return the lane's next unit for a reader, if it wants one or has nothing of the lane."""
    reader = draft.reader(attempt)
    assert reader is not None
    tracks = draft.tracks
    held = [one for one in reader.leases if tracks.track_of(one.epoch, one.unit) == lane]
    if held and reader.want <= 0:
        return None
    if len(held) > 1 or _is_held_elsewhere(draft, tracks, attempt, lane):
        return None
    found = _first_waiting(draft, tracks, epoch, lane)
    if found is None:
        return None
    number, one = found
    return Grant(epoch.number, number, one.lo, one.hi, draft.last_token + 1, attempt)


def _first_waiting(
    draft: StreamDraft, tracks: Tracks, epoch: EpochDraft, lane: int
) -> tuple[int, Range] | None:
    """Return the first unit of a lane in which something waits, and what; None: nothing does.

    What somebody still holds of a unit comes before what waits behind it.
    """
    again = (one for one in epoch.reopened if tracks.track_of(epoch.number, one) == lane)
    number = min(again, key=lambda one: tracks.rank_of(epoch.number, one), default=-1)
    if number < 0:
        rank = epoch.cursor(lane)
        if rank >= tracks.end:
            return None
        number = tracks.unit_at(epoch.number, rank)
    state = epoch.units.find(number, number) or draft.untouched(number)
    if state.leased:
        return None
    return number, first_range(state, draft.end(number))


def first_range(state: UnitState, end: int) -> Range:
    """Return the first waiting range; one that is suspected stands alone."""
    one = tasks.waiting(state, end)[0]
    for strike in state.strikes:
        if strike.lo <= one.lo < strike.hi:
            return Range(one.lo, min(one.hi, strike.hi))
        if one.lo < strike.lo < one.hi:
            return Range(one.lo, strike.lo)
    return one


def _is_held_elsewhere(draft: StreamDraft, tracks: Tracks, attempt: AttemptId, lane: int) -> bool:
    return any(
        tracks.track_of(lease.epoch, lease.unit) == lane
        for reader in values(draft.readers.result())
        if reader.attempt != attempt
        for lease in reader.leases
    )


def take_lane(draft: StreamDraft, grant: Grant) -> None:
    """Make the reader of a grant the owner of its lane."""
    tracks = draft.tracks
    owners = list(draft.lane_owners or (None,) * tracks.count)
    lane = tracks.track_of(grant.epoch, grant.unit)
    if owners[lane] != grant.attempt:
        owners[lane] = grant.attempt
        draft.lane_owners = tuple(owners)


def end_lanes(draft: StreamDraft, attempt: AttemptId, *, has_completed: bool) -> None:
    """Keep the lanes of a reader that ended for its next attempt, for a while."""
    if attempt not in draft.lane_owners:
        return
    if has_completed:
        owners = (None if owner == attempt else owner for owner in draft.lane_owners)
        draft.lane_owners = tuple(owners)
    else:
        draft.changes["lanes_free_ms"] = draft.at_ms + KEPT_MS


def inherit_lanes(draft: StreamDraft, attempt: AttemptId) -> None:
    """Give the lanes of a replica to its new attempt."""
    key = (attempt.role, attempt.index)
    draft.lane_owners = tuple(
        attempt if owner is not None and (owner.role, owner.index) == key else owner
        for owner in draft.lane_owners
    )


def lane_trims(stream: Stream) -> TrimAsked | None:
    """Return the leases of a lane that goes to a reader without one, None when none does."""
    owners = stream.lane_owners
    if not owners or stream.is_paused or None in owners:
        return None
    if not any(_is_new(stream, attempt) for attempt in stream.hungry):
        return None
    tracks = tracks_of(stream)
    lanes: dict[AttemptId, list[int]] = {}
    for lane, owner in enumerate(owners):
        if owner is not None and reader_of(stream, owner) is not None:
            lanes.setdefault(owner, []).append(lane)
    richest = max(lanes, key=lambda one: (len(lanes[one]), -one.index), default=None)
    if richest is None or len(lanes[richest]) < 2:
        return None
    reader = reader_of(stream, richest)
    assert reader is not None
    for lane in reversed(lanes[richest]):
        leases = [one for one in reader.leases if tracks.track_of(one.epoch, one.unit) == lane]
        if leases and all(one.trim < 0 for one in leases):
            return TrimAsked(tuple(Trim(richest, one.token, one.position) for one in leases))
    return None


def _is_new(stream: Stream, attempt: AttemptId) -> bool:
    return attempt not in stream.lane_owners


def leave_lane(draft: StreamDraft, reader: ReaderState, token: int) -> None:
    """Take a lane from its owner: a lease of it is to end where it is."""
    tracks = draft.tracks
    lease = next(one for one in reader.leases if one.token == token)
    lane = tracks.track_of(lease.epoch, lease.unit)
    owners = list(draft.lane_owners)
    owners[lane] = None
    draft.lane_owners = tuple(owners)
