"""What trainers ask of the ledger: savepoints under a name, and to go back to one.

Every trainer of a group may ask for the same savepoint as it starts; the first one moves the
stream. Once somebody has taken rows, going back would take them away from who goes on.
"""

from msgspec.structs import replace

from primusd.datafeed.ledger import savepoints
from primusd.datafeed.ledger.draft import StreamDraft
from primusd.datafeed.ledger.model import ReaderState, Stream, reader_of
from primusd.datafeed.ledger.shards import values
from primusd.datafeed.protocol import FeedAsk
from primusd.errors import PrimusdError
from primusd.job.ids import AttemptId
from primusd.job.machine import At, Ignore

ASKS_MAX = 16
"""Of one report; a trainer has one at a time."""
NAME_LENGTH_MAX = 128
WENT_ON = (
    "this trainer's group goes on without it: the others took rows and marked a step, and for a "
    "minute after that this one had not opened the stream; it can join when the role restarts"
)


def answer_asks(stream: Stream, attempt: AttemptId, asks: tuple[FeedAsk, ...], at: At) -> Stream:
    """Return the stream after what a reader's trainer asked for, with the answers."""
    reader = reader_of(stream, attempt)
    if reader is None or (not asks and not reader.answers):
        return _begun(stream, reader, at)
    known = dict(reader.answers)
    answers: list[tuple[int, str]] = []
    for ask in asks[:ASKS_MAX]:
        if ask.id not in known:
            stream, error = _answer(stream, attempt, ask, at)
            answers.append((ask.id, error))
        else:
            answers.append((ask.id, known[ask.id]))
    found = reader_of(stream, attempt)
    assert found is not None
    if found.answers != tuple(answers):
        draft = StreamDraft(stream, at.at_ms)
        draft.put_reader(replace(found, answers=tuple(answers)))
        stream = draft.result()
    return _begun(stream, found, at)


def _begun(stream: Stream, reader: ReaderState | None, at: At) -> Stream:
    """Return the stream at its start where a lost group begins anew and asked for nothing."""
    if reader is None or not stream.must_restore or reader.is_lost or not reader.want:
        return stream
    return savepoints.restore(stream, savepoints.START, at, asker=reader.attempt.label)


def _answer(stream: Stream, attempt: AttemptId, ask: FeedAsk, at: At) -> tuple[Stream, str]:
    reader = reader_of(stream, attempt)
    if reader is None or (reader.is_lost and stream.must_restore):
        return stream, "the group of this trainer was lost; it is being restarted"
    if reader.is_lost:
        return stream, WENT_ON
    is_early = stream.phase == "Opening" and ask.kind != "restore"
    if is_early or stream.phase in ("Failed", "Closed"):
        return stream, f"stream {stream.name} is {stream.phase}"
    if len(ask.name) > NAME_LENGTH_MAX or not ask.name.isprintable():
        return stream, f"a savepoint has a name of 1 to {NAME_LENGTH_MAX} plain characters"
    try:
        if ask.kind == "restore":
            return _restored(stream, attempt, ask.name, at)
        if ask.kind != "savepoint" or not ask.name:
            return stream, f"there is no {ask.kind!r} to ask for"
        made = savepoints.request(stream, ask.name, at)
    except PrimusdError as error:
        return stream, error.message
    return (stream, "") if isinstance(made, Ignore) else (made, "")


def _restored(stream: Stream, attempt: AttemptId, name: str, at: At) -> tuple[Stream, str]:
    if stream.must_restore:
        return savepoints.restore(stream, name, at, asker=attempt.label), ""
    live = [one for one in values(stream.reader_shards) if not one.is_lost]
    asker = stream.restored_by
    if stream.spec.delivery != "exactlyOnce" and asker not in {one.attempt.label for one in live}:
        asker = ""
    if asker:
        if name == stream.restored:
            return stream, ""
        began, wished = (one or "the start of the stream" for one in (stream.restored, name))
        return stream, (
            f"{asker} began at {began}, so nobody else of its group can at {wished}; all trainers "
            "of a group load the same checkpoint"
        )
    taken = sorted(one.attempt.label for one in live if one.has_taken)
    if taken:
        return stream, (
            f"{', '.join(taken[:8])} took rows already, which going back would take away; every "
            "trainer has to load before it reads, and the role to restart whole "
            "(restart: {unit: role})"
        )
    if name == savepoints.START and not stream.restored:
        return replace(stream, restored_by=attempt.label), ""
    return savepoints.restore(stream, name, at, asker=attempt.label), ""
