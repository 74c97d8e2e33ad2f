"""Savepoints: positions under a name, sealed at once from what is acknowledged (table 10)."""

from msgspec.structs import replace

from primusd.datafeed.draft import StreamDraft
from primusd.datafeed.model import Savepoint, Stream, size_of
from primusd.errors import NotFoundError
from primusd.job.machine import IGNORE_REASONS, At, Ignore


def seal(stream: Stream, name: str, at: At) -> Stream | Ignore:
    """Return the stream with its positions kept under a name; a name is sealed once."""
    if any(one.name == name for one in stream.savepoints):
        return Ignore(IGNORE_REASONS["r"])
    folded = _folded(stream, at.at_ms)
    savepoint = Savepoint(
        name,
        "Sealed",
        at.revision,
        at.at_ms,
        folded.epochs,
        folded.ended,
        folded.epochs_begun,
        folded.consumed_before,
        folded.skipped_before,
        folded.unsized_before,
        tuple(sorted({n for one in folded.epochs for n in one.units if size_of(stream, n) < 0})),
    )
    return replace(stream, savepoints=(*stream.savepoints, savepoint))


def drop(stream: Stream, name: str) -> Stream | Ignore:
    """Return the stream without a savepoint."""
    rest = tuple(one for one in stream.savepoints if one.name != name)
    if len(rest) == len(stream.savepoints):
        return Ignore(IGNORE_REASONS["a"])
    return replace(stream, savepoints=rest)


def restore(stream: Stream, name: str, at: At) -> Stream | Ignore:
    """Return the stream at the positions of a savepoint; every lease and message is now stale.

    Raises:
        NotFoundError: There is no sealed savepoint of that name.
    """
    found = next((one for one in stream.savepoints if one.name == name), None)
    if found is None:
        raise NotFoundError(
            f"stream {stream.name} has no savepoint {name}",
            hint="primusctl data NAME status shows those there are",
        )
    after = replace(
        _folded(stream, at.at_ms),
        epochs=found.epochs,
        ended=found.ended,
        epochs_begun=found.epochs_begun,
        consumed_before=found.consumed_before,
        skipped_before=found.skipped_before,
        unsized_before=found.unsized_before,
        generation=stream.generation + 1,
        struck_due=(),
        split_due=(),
    )
    draft = StreamDraft(after, at.at_ms)
    for epoch in found.epochs:
        draft.catch_up(epoch, found.unsized)
    return draft.result()


def _folded(stream: Stream, at_ms: int) -> Stream:
    """Return the stream as if every lease were given back where it is now."""
    draft = StreamDraft(stream, at_ms)
    for reader in stream.readers.values():
        kept = reader
        for lease in reader.leases:
            kept = draft.let_go(kept, lease)
    return draft.result()
