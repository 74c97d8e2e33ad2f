"""Savepoints: positions under a name, and going back to them (table 10).

With `atLeastOnce` and `atMostOnce` one is sealed at once, from what is acknowledged. With
`exactlyOnce` readers make them by their marks (marking.py), and a person who asks for one
gets the newest of those under the name: acknowledged positions fit nobody's model.
"""

from collections.abc import Iterable
from datetime import UTC, datetime

from msgspec.structs import replace

from primusd.datafeed.ledger import marking
from primusd.datafeed.ledger.draft import StreamDraft
from primusd.datafeed.ledger.events import PositionsCarried, SavepointImported
from primusd.datafeed.ledger.folding import folded_epochs, settled
from primusd.datafeed.ledger.model import CarriedUnit, EpochState, Savepoint, Stream, size_of
from primusd.datafeed.ledger.shards import items, values
from primusd.datafeed.ledger.suspects import keep_suspects
from primusd.datafeed.ledger.tracks import tracks_of
from primusd.errors import ConflictError, NotFoundError
from primusd.job.machine import IGNORE_REASONS, At, Ignore

START = ""
"""Names where a stream began."""
SAVEPOINTS_MAX = 1_000
PASSED_OVER = "a later step was marked by all, and this one was not"


def request(stream: Stream, name: str, at: At) -> Stream | Ignore:
    """Return the stream with its positions kept under a name; a name is sealed once.

    Raises:
        ConflictError: There are as many as a stream keeps.
    """
    if _named(stream, name) is not None:
        return Ignore(IGNORE_REASONS["r"])
    if len(stream.savepoints) >= SAVEPOINTS_MAX:
        raise ConflictError(
            f"stream {stream.name} has {SAVEPOINTS_MAX} savepoints",
            hint="drop those that are not needed: primusctl data NAME savepoint drop",
        )
    if stream.spec.delivery != "exactlyOnce":
        return _with(stream, _sealed_as_held(stream, name, at))
    newest = _named(stream, stream.sealed[1] or stream.restored)
    if newest is None:
        return _with(stream, _sealed(_at_start(stream, at), name, at))
    return _with(stream, replace(newest, name=name, origin="asked", has_checkpoint=False))


def save_by_itself(stream: Stream, origin: str, at: At) -> Stream:
    """Return the stream with a savepoint that nobody named: `timer` or `suspend`."""
    if stream.spec.delivery == "exactlyOnce" or stream.phase not in ("Serving", "Done"):
        return stream
    name = _free_name(stream, f"{origin}-{_moment_text(at.at_ms)}")
    return _pruned(_with(stream, _sealed_as_held(stream, name, at, origin=origin)))


def seal_marked(stream: Stream, at: At) -> Stream:
    """Return the stream with the savepoints of all steps that every reader has marked."""
    while (found := marking.complete(stream)) is not None:
        draft = StreamDraft(_folded(stream, at), at.at_ms)
        marking.as_marked(draft, found)
        made = _sealed(draft.result(), found.name, at, origin="mark", step=found.step)
        rest = tuple(one for one in stream.markings if one.step > found.step)
        passed = [one.step for one in stream.markings if one.step < found.step]
        stream = replace(
            _with(stream, made),
            markings=rest,
            marked_to=max(stream.marked_to, found.step),
            sealed=(found.step, found.name),
            unsealed=(passed[-1], PASSED_OVER) if passed else stream.unsealed,
        )
        stream = _pruned(stream)
    return stream


def as_it_is(stream: Stream) -> Savepoint:
    """Return where a stream is now, as a savepoint without a name that it does not keep.

    With exactlyOnce, unless it was read to its end: where its newest marked savepoint is.
    """
    newest = _named(stream, stream.sealed[1] or stream.restored)
    at = At(0, stream.changed_revision, 0, "")
    if stream.spec.delivery == "exactlyOnce" and stream.epochs_done < stream.spec.epochs:
        folded = _at_start(_folded(stream, at), at)
        return newest if newest is not None else _sealed(folded, "", at)
    return _sealed_as_held(stream, "", at)


def drop(stream: Stream, name: str) -> Stream | Ignore:
    """Return the stream without a savepoint."""
    rest = tuple(one for one in stream.savepoints if one.name != name)
    if len(rest) == len(stream.savepoints):
        return Ignore(IGNORE_REASONS["a"])
    return replace(stream, savepoints=rest)


def keep_for_checkpoint(stream: Stream, name: str) -> Stream | Ignore:
    """Return the stream with a savepoint that steps which are only marked push out no more."""
    after = _kept_for_checkpoint(stream, name)
    return Ignore(IGNORE_REASONS["s"]) if after is stream else after


def _kept_for_checkpoint(stream: Stream, name: str) -> Stream:
    found = _named(stream, name)
    if found is None or found.has_checkpoint:
        return stream
    kept = replace(found, has_checkpoint=True)
    savepoints = tuple(kept if one is found else one for one in stream.savepoints)
    return replace(stream, savepoints=savepoints)


def take_in(stream: Stream, event: SavepointImported, at: At) -> Stream | Ignore:
    """Return the stream with positions from outside kept under a name.

    Raises:
        ConflictError: There is a savepoint of that name.
    """
    known = _named(stream, event.name)
    if known is not None:
        if known.carried == event.units and known.whole_epochs == event.whole_epochs:
            return Ignore(IGNORE_REASONS["r"])
        raise ConflictError(
            f"stream {stream.name} has a savepoint {event.name} already", hint="take another name"
        )
    epoch = EpochState(0, consumed=_count(event.units, event.whole_epochs))
    made = Savepoint(
        event.name,
        "Sealed",
        at.revision,
        at.at_ms,
        (epoch,),
        (),
        1,
        0,
        0,
        0,
        origin="imported",
        carried=event.units,
        whole_epochs=event.whole_epochs,
    )
    return _with(stream, made)


def carry(stream: Stream, event: PositionsCarried, at: At) -> Stream | Ignore:
    """Return the stream with further positions that it starts at."""
    known = len(stream.carried)
    fresh = event.units[max(0, known - event.first) :] if event.first <= known else ()
    if not stream.is_carrying or event.first > known or not (fresh or event.is_complete):
        return Ignore(IGNORE_REASONS["r"])
    after = replace(
        stream,
        carried=stream.carried + fresh,
        whole_epochs=event.whole_epochs,
        carried_revision=at.revision,
        is_carrying=not event.is_complete,
    )
    if not event.is_complete:
        return after
    draft = StreamDraft(replace(after, epochs=(), waiting_for=(), listing_failures=0), at.at_ms)
    draft.begin_epoch(0)
    return draft.result()


def restore(stream: Stream, name: str, at: At, *, asker: str = "") -> Stream:
    """Return the stream at the positions of a savepoint; every lease and message is now stale.

    Args:
        stream: As it is.
        name: Of the savepoint; START where the stream began.
        at: Where and when.
        asker: Label of the attempt that asks; "" a person.

    Raises:
        NotFoundError: There is no sealed savepoint of that name.
    """
    # Epochs are replaced, so only readers have to let go.
    folded = _without_leases(stream, at)
    if name == START:
        after = _at_start(folded, at)
    else:
        found = _named(stream, name)
        if found is None:
            raise NotFoundError(
                f"stream {stream.name} has no savepoint {name}",
                hint="primusctl data NAME savepoint list shows those there are",
            )
        after = _at_savepoint(folded, found, at)
    if stream.spec.delivery == "exactlyOnce":
        after = replace(keep_suspects(stream, after, at), repeated=_repeated_at(stream, name))
        after = _kept_for_checkpoint(after, name)
    return replace(
        after,
        generation=stream.generation + 1,
        restored=name,
        restored_by=asker,
        must_restore=False,
        rewound=stream.rewound + max(0, stream.consumed - after.consumed),
        markings=(),
        marked_to=-1,
        sealed=(-1, ""),
        unsealed=(-1, ""),
        struck_due=(),
        split_due=(),
    )


def _repeated_at(stream: Stream, name: str) -> int:
    """Return what had come twice in the model that a group goes back to, at most."""
    found = _named(stream, name)
    if found is None:
        return 0
    return found.repeated if found.repeated >= 0 else stream.repeated


def _at_savepoint(folded: Stream, kept: Savepoint, at: At) -> Stream:
    found = settled(folded, kept)
    if found.origin == "imported":
        carried = replace(
            folded,
            carried=found.carried,
            whole_epochs=found.whole_epochs,
            carried_revision=at.revision,
        )
        return _at_start(carried, at)
    after = replace(
        folded,
        epochs=found.epochs,
        ended=found.ended,
        epochs_begun=found.epochs_begun,
        consumed_before=found.consumed_before,
        skipped_before=found.skipped_before,
        unsized_before=found.unsized_before,
        left_out_before=found.left_out_before,
        bad_count=found.bad_count,
        bad_positions=found.bad_positions,
    )
    if found.revision < folded.carried_revision:
        # What was carried in since is no part of it.
        after = replace(after, carried=(), whole_epochs=0)
    draft = StreamDraft(after, at.at_ms)
    for epoch in found.epochs:
        if found.unit_count >= 0:
            draft.seed(epoch.number, found.unit_count)
        draft.catch_up(epoch, found.unsized)
    return draft.result()


def _at_start(folded: Stream, at: At) -> Stream:
    """Return the stream as it began: nothing is done but what was carried into it."""
    after = replace(
        folded,
        epochs=(),
        ended=(),
        epochs_begun=1,
        consumed_before=0,
        skipped_before=0,
        unsized_before=0,
        left_out_before=0,
        bad_count=0,
        bad_positions=0,
        carried_count=0,
    )
    draft = StreamDraft(after, at.at_ms)
    draft.begin_epoch(0)
    return draft.result()


def _folded(stream: Stream, at: At) -> Stream:
    """Return the stream as if every lease were given back where it is now."""
    epochs = folded_epochs(tracks_of(stream), stream.epochs, stream.reader_shards)
    return _without_leases(replace(stream, epochs=epochs), at)


def _without_leases(stream: Stream, at: At) -> Stream:
    """Return the stream with readers that hold nothing; its epochs know of that already, or go."""
    draft = StreamDraft(stream, at.at_ms)
    for reader in values(stream.reader_shards):
        if reader.leases or reader.has_taken:
            draft.put_reader(replace(reader, leases=(), has_taken=False))
    return draft.result()


def _sealed(
    stream: Stream, name: str, at: At, *, origin: str = "asked", step: int = -1
) -> Savepoint:
    return Savepoint(
        name,
        "Sealed",
        at.revision,
        at.at_ms,
        stream.epochs,
        stream.ended,
        stream.epochs_begun,
        stream.consumed_before,
        stream.skipped_before,
        stream.unsized_before,
        _unsized(stream),
        left_out_before=stream.left_out_before,
        origin=origin,
        step=step,
        generation=stream.generation,
        unit_count=len(stream.units),
        bad_count=stream.bad_count,
        bad_positions=stream.bad_positions,
        repeated=stream.repeated,
    )


def _sealed_as_held(stream: Stream, name: str, at: At, *, origin: str = "asked") -> Savepoint:
    """Return a savepoint of a stream whose leases are open: worked out when it is looked into."""
    readers = stream.reader_shards if stream.lease_count else ()
    return replace(_sealed(stream, name, at, origin=origin), readers=readers)


def _unsized(stream: Stream) -> tuple[int, ...]:
    """Return the units begun whose size nobody knows."""
    if not stream.unsized_units:
        return ()
    begun = {number for epoch in stream.epochs for number, _ in items(epoch.unit_shards)}
    return tuple(sorted(number for number in begun if size_of(stream, number) < 0))


def _with(stream: Stream, savepoint: Savepoint) -> Stream:
    return replace(stream, savepoints=(*stream.savepoints, savepoint))


def _pruned(stream: Stream) -> Stream:
    """Return the stream with the newest of those that nobody named, and all that were named.

    Those with a checkpoint are counted by themselves, however many steps are marked beside them.
    The one that the group began at stays: it may have to go back to it.
    """
    by_itself = [one for one in stream.savepoints if one.origin in ("mark", "timer", "suspend")]
    gone = set()
    for has_checkpoint in (False, True):
        alike = [one.name for one in by_itself if one.has_checkpoint == has_checkpoint]
        gone |= {*alike[: -stream.spec.savepoints_keep]} - {stream.restored}
    if not gone:
        return stream
    return replace(
        stream, savepoints=tuple(one for one in stream.savepoints if one.name not in gone)
    )


def _named(stream: Stream, name: str) -> Savepoint | None:
    return next((one for one in stream.savepoints if name and one.name == name), None)


def _free_name(stream: Stream, name: str) -> str:
    found, again = name, 1
    while _named(stream, found) is not None:
        again += 1
        found = f"{name}.{again}"
    return found


def _moment_text(at_ms: int) -> str:
    """Return a journal time as part of a name: `20260102t030405`."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y%m%dt%H%M%S")


def _count(units: Iterable[CarriedUnit], whole_epochs: int) -> int:
    """Return how many positions are done, as far as sizes are known."""
    return sum(
        whole_epochs * max(0, unit.size)
        + sum(part.hi - part.lo for _, parts in unit.done for part in parts)
        for unit in units
    )
