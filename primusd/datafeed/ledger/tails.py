"""`tail: drop | pad`: trainers that step together have the same number of batches of each epoch.

Each reader tells how many whole batches it has in hand. The least of them is the limit for all: no
trainer is handed a batch that another will not have. When nothing waits any more, who has more than
a batch above the limit gives some up to who has none (trims); what is left then is less than two
batches a reader, and is left out (`drop`), or the others repeat their last batch (`pad`). An epoch
ends once every trainer was told.

What a reader told is a promise. While it is asked to give something up, no more counts of it than
the limit, and it never gives up what the limit needs.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from primusd.datafeed.ledger.draft import StreamDraft
from primusd.datafeed.ledger.events import (
    LeaseExpired,
    ReaderEnded,
    ReaderOpened,
    RestoreRequested,
    StreamEvent,
    TailReached,
    TaskRetryRequested,
    Trim,
    TrimAsked,
)
from primusd.datafeed.ledger.model import ReaderState, Stream
from primusd.datafeed.ledger.shards import values
from primusd.datafeed.ledger.tracks import may_wait, tracks_of
from primusd.datafeed.protocol import StepLimit, Steps
from primusd.job.events import TimePassed
from primusd.job.ids import AttemptId


def heard(draft: StreamDraft, reader: ReaderState, steps: Steps | None) -> ReaderState:
    """Return a reader with what it told of its batches."""
    if steps is None or steps == reader.steps:
        return reader
    for lease in reader.leases:
        if lease.trim >= 0 and lease.token == steps.kept:
            reader = draft.change(reader, replace(lease, trim=-1))
    before = reader.steps
    if any(lease.trim >= 0 for lease in reader.leases) and before is not None:
        # It may not know yet that it is to give something up.
        ready = before.ready if before.epoch == steps.epoch else 0
        ready = min(ready, steps.ready)
        steps = replace(steps, ready=ready, is_dry=False, is_full=False, offer=(0, 0, 0))
    return reader if steps == before else replace(reader, steps=steps)


def counted(stream: Stream, event: StreamEvent | TimePassed) -> Stream:
    """Return the stream with the limit that follows from what its readers told."""
    if stream.spec.tail == "uneven" or not stream.epochs:
        return stream
    number = stream.epochs[0].number
    before = stream.step_limit
    is_new = before is None or before.epoch != number
    if is_new and any(one.pads for one in values(stream.reader_shards)):
        stream = _without_pads(stream)
    is_stepping = _is_stepping(stream, event)
    if not is_new and before is not None and before.is_final and not _reopens(event):
        limit = before
    else:
        limit = StepLimit(number, _limit(stream, number) if is_stepping else 0)
    if limit == before and is_stepping == stream.is_stepping:
        return stream
    return replace(stream, step_limit=limit, is_stepping=is_stepping)


def _is_stepping(stream: Stream, event: StreamEvent | TimePassed) -> bool:
    """Return whether all trainers of the group have opened the stream."""
    if stream.is_stepping:
        return not _is_loss(event)
    opened = sum(one.steps is not None for one in values(stream.reader_shards))
    return 0 < max(stream.reader_count_wanted, stream.reader_count) <= opened


def _is_loss(event: StreamEvent | TimePassed) -> bool:
    if isinstance(event, ReaderEnded):
        return not event.has_completed
    return isinstance(event, ReaderOpened | LeaseExpired)


def _reopens(event: StreamEvent | TimePassed) -> bool:
    """Return whether rows wait again in an epoch that was about to end."""
    return _is_loss(event) or isinstance(event, RestoreRequested | TaskRetryRequested)


def _without_pads(stream: Stream) -> Stream:
    draft = StreamDraft(stream, 0)
    for reader in values(stream.reader_shards):
        if reader.pads:
            draft.put_reader(replace(reader, pads=False))
    return draft.result()


def _limit(stream: Stream, epoch: int) -> int:
    found = [
        one.steps.ready if one.steps is not None and one.steps.epoch == epoch else 0
        for one in _members(stream)
        if not one.pads
    ]
    before = stream.step_limit
    if not found:
        return before.limit if before is not None and before.epoch == epoch else 0
    return min(found)


def _members(stream: Stream) -> Iterator[ReaderState]:
    """Yield the readers whose trainers step together."""
    for reader in values(stream.reader_shards):
        if not reader.is_lost:
            yield reader


def step_orders(stream: Stream, reader: ReaderState) -> StepLimit | None:
    """Return how many batches a reader's trainer may have, None where trainers do not step."""
    limit = stream.step_limit
    return replace(limit, pads=True) if limit is not None and reader.pads else limit


def holds_open(stream: Stream) -> bool:
    """Return whether a trainer was not told yet how the epoch ends."""
    if stream.spec.tail == "uneven" or not stream.is_stepping or not stream.epochs:
        return False
    number = stream.epochs[0].number
    return any(
        one.steps is None or one.steps.epoch != number or not one.steps.has_ended
        for one in _members(stream)
    )


def decide(stream: Stream) -> TailReached | TrimAsked | None:
    """Return what follows when nothing waits in the epoch: trims, then its end."""
    limit = stream.step_limit
    if limit is None or limit.is_final or not stream.is_stepping or not stream.is_listed:
        return None
    if stream.is_paused or not stream.epochs or may_wait(tracks_of(stream), stream.epochs[0]):
        return None
    members = tuple(_members(stream))
    if not members or any(one.steps is None or one.steps.epoch != limit.epoch for one in members):
        return None
    if stream.trim_count:
        return None
    poor = [one for one in members if not one.pads and _is_poor(one, limit.limit)]
    rich = tuple(one for one in members if one not in poor)
    trims = _trims(rich, len(poor)) if stream.spec.order == "any" else ()
    if trims:
        return TrimAsked(trims)
    if all(map(_is_dry, members)):
        return TailReached(limit.epoch, _last(stream, members), _padding(stream, members))
    if not poor or not all(_is_dry(one) or _is_full(one) for one in members):
        return None
    # Others read what cannot be shared.
    if stream.spec.tail == "drop":
        return TailReached(limit.epoch, limit.limit)
    return TailReached(limit.epoch, -1, tuple(one.attempt for one in poor))


def _is_dry(reader: ReaderState) -> bool:
    """Return whether all that a reader was given is read, as far as it told."""
    steps = reader.steps
    assert steps is not None
    return steps.is_dry and all(one.token <= steps.seen for one in reader.leases)


def _is_full(reader: ReaderState) -> bool:
    return reader.steps is not None and reader.steps.is_full


def _is_poor(reader: ReaderState, limit: int) -> bool:
    """Return whether a reader holds the others up, and could start something."""
    steps = reader.steps
    return steps is not None and _is_dry(reader) and steps.ready <= limit and reader.want > 0


def _last(stream: Stream, members: tuple[ReaderState, ...]) -> int:
    found = [one.steps for one in members if one.steps is not None]
    if stream.spec.tail == "drop":
        return min(one.ready for one in found)
    before = stream.step_limit.limit if stream.step_limit is not None else 0
    return max(before, *(one.ready + (one.rows > 0) for one in found))


def _padding(stream: Stream, members: tuple[ReaderState, ...]) -> tuple[AttemptId, ...]:
    return tuple(one.attempt for one in members) if stream.spec.tail == "pad" else ()


def _trims(members: tuple[ReaderState, ...], count: int) -> tuple[Trim, ...]:
    """Return what the richest readers are asked to give up, one for each that has nothing."""
    found: list[tuple[int, Trim]] = []
    for reader in members:
        assert reader.steps is not None
        token, at, positions = reader.steps.offer
        lease = next((one for one in reader.leases if one.token == token), None)
        if lease is not None and positions and not reader.pads and lease.position <= at < lease.hi:
            found.append((positions, Trim(reader.attempt, token, at)))
    found.sort(key=lambda one: (-one[0], one[1].token))
    return tuple(trim for _, trim in found[:count])


def poorest(draft: StreamDraft) -> AttemptId | None:
    """Return who gets the next range: of those that want one, who has the fewest batches."""
    wanting = [one for one in values(draft.readers.result()) if one.want > 0 and not one.pads]
    found = min(wanting, key=_riches, default=None)
    return None if found is None else found.attempt


def _riches(reader: ReaderState) -> tuple[int, int, int, int]:
    steps = reader.steps
    if steps is None:
        return 0, 0, len(reader.leases), reader.place
    coming = sum(one.token > steps.seen for one in reader.leases)
    return steps.epoch, steps.ready, coming, reader.place


def asked(draft: StreamDraft, reader: ReaderState) -> None:
    """Let no more count of a reader that is to give something up than the others rely on."""
    limit = draft.before.step_limit
    if limit is None or reader.steps is None:
        return
    ready = min(reader.steps.ready, limit.limit)
    steps = replace(reader.steps, ready=ready, is_dry=False, is_full=False, offer=(0, 0, 0))
    draft.put_reader(replace(reader, steps=steps))


def reach(draft: StreamDraft, event: TailReached) -> None:
    """Note that an epoch has no more rows for some trainers, or for all."""
    for attempt in event.padding:
        reader = draft.reader(attempt)
        if reader is not None:
            draft.put_reader(replace(reader, pads=True))
    if event.limit >= 0:
        draft.changes["step_limit"] = StepLimit(event.epoch, event.limit, is_final=True)
