"""exactlyOnce: readers mark a step, and a savepoint of that moment is sealed (table 10).

No reader waits for another. What one takes after its mark is noted with it, so that the savepoint
has of each reader what it had taken at its own mark, however far it is when the last one marks.

A trainer that has not opened the stream yet is waited for like the others: it may have rows in the
model of that step. One that has not after a minute reads nothing, and is kept to that.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from primusd.datafeed.ledger import tasks
from primusd.datafeed.ledger.draft import StreamDraft
from primusd.datafeed.ledger.model import Marking, Range, ReaderState, Stream, UnitRange, UnitState
from primusd.datafeed.ledger.ranges import add, overlap, total
from primusd.datafeed.ledger.shards import ShardsDraft, find, values
from primusd.datafeed.protocol import Mark
from primusd.job.ids import AttemptId

MARKING_MS = 60_000
"""So long after the first mark of a step the others may mark it."""
LOOK_MS = 5_000
"""How often that time is counted; what is much longer was a time without a daemon."""
LATE_MS = 1_000
"""So much later than it should a look may come."""
MARKINGS_MAX = 8
"""Steps that wait for marks at once; of more the oldest fails."""


def name_of(step: int, generation: int) -> str:
    """Return the name of the savepoint of a step: one step may come again after a restore."""
    return f"step-{step}-g{generation}"


def fresh(draft: StreamDraft, reader: ReaderState, marks: tuple[Mark, ...]) -> Iterator[Mark]:
    """Yield the marks of a report that were not heard before, in order."""
    if draft.before.spec.delivery != "exactlyOnce" or reader.is_lost:
        return
    if draft.before.must_restore:
        # Nobody has said yet where the group begins.
        return
    for mark in sorted(marks, key=lambda one: one.step):
        marking = draft.markings.get(mark.step)
        is_known = marking is not None and _since(marking, reader.attempt) is not None
        if mark.step > draft.before.marked_to and not is_known:
            yield mark


def _since(marking: Marking, attempt: AttemptId) -> tuple[UnitRange, ...] | None:
    """Return what a reader took since it marked the step, None when it has not."""
    return find(marking.marked, attempt.index, attempt)


def _with_since(
    marking: Marking, attempt: AttemptId, since: tuple[UnitRange, ...], *, more: int = 0
) -> Marking:
    marked = ShardsDraft(marking.marked)
    marked.put(attempt.index, attempt, since)
    return replace(marking, marked=marked.result(), live_count=marking.live_count + more)


def add_mark(draft: StreamDraft, attempt: AttemptId, step: int) -> None:
    """Note that a reader has marked a step, its positions counted in up to it."""
    marking = draft.markings.get(step)
    if marking is None:
        name = name_of(step, draft.before.generation)
        marking = Marking(name, step, draft.at_ms, taken_in=())
        if len(draft.markings) >= MARKINGS_MAX:
            oldest = min(draft.markings)
            text = f"{MARKINGS_MAX} later steps were marked, and this one not by every trainer"
            give_up(draft, oldest, text)
    draft.markings[step] = _with_since(marking, attempt, (), more=1)


def note_ended(draft: StreamDraft, attempt: AttemptId) -> None:
    """Note that a reader ended: what it took stays with its marks, and nobody waits for it."""
    for step, marking in draft.markings.items():
        if _since(marking, attempt) is not None:
            draft.markings[step] = replace(marking, live_count=marking.live_count - 1)


def note_taken(draft: StreamDraft, attempt: AttemptId, one: UnitRange) -> None:
    """Note what a reader took, with every step that it has marked before."""
    for step, marking in draft.markings.items():
        since = _since(marking, attempt)
        if since is not None:
            noted = _with_since(marking, attempt, _joined(since, one))
            if noted.taken_in is not None and one.epoch not in noted.taken_in:
                noted = replace(noted, taken_in=(*noted.taken_in, one.epoch))
            draft.markings[step] = noted


def holds_open(stream: Stream, epoch: int) -> bool:
    """Return whether a step that waits for marks may have to take something back in an epoch."""
    return any(one.taken_in is None or epoch in one.taken_in for one in stream.markings)


def _joined(since: tuple[UnitRange, ...], one: UnitRange) -> tuple[UnitRange, ...]:
    for place, other in enumerate(since):
        if (other.epoch, other.unit, other.hi) == (one.epoch, one.unit, one.lo):
            longer = replace(other, hi=one.hi, left_out=other.left_out + one.left_out)
            return (*since[:place], longer, *since[place + 1 :])
    return (*since, one)


def missing(stream: Stream, marking: Marking) -> tuple[AttemptId, ...]:
    """Return the readers of the group that have not marked a step yet."""
    return tuple(
        sorted(
            reader.attempt
            for reader in values(stream.reader_shards)
            if reader.has_opened and not reader.is_lost and _since(marking, reader.attempt) is None
        )
    )


def complete(stream: Stream) -> Marking | None:
    """Return the oldest step that every reader has marked, None when there is none."""
    count = stream.opened_count + stream.awaited_count
    return next((one for one in stream.markings if one.live_count == count), None)


def as_marked(draft: StreamDraft, marking: Marking) -> None:
    """Take back what readers took after their marks; no lease may be open any more."""
    for since in values(marking.marked):
        for one in since:
            _take_back(draft, one)


def _take_back(draft: StreamDraft, one: UnitRange) -> None:
    end = draft.end(one.unit)
    state = draft.unit(one.epoch, one.unit)
    if state is None:
        # It was finished since.
        first = draft.untouched(one.unit).fresh
        state = UnitState(end, done=(Range(first, end),))
    taken = total(
        add((), Range(one.lo, one.hi))
    ) - total(overlap(tasks.dead_ranges(state), one.lo, one.hi))  # fmt: skip
    draft.epochs[one.epoch].consumed -= taken
    draft.epochs[one.epoch].left_out -= one.left_out
    draft.put_unit(one.epoch, one.unit, tasks.undone(state, Range(one.lo, one.hi)))


def give_up(draft: StreamDraft, step: int, text: str) -> None:
    """Note that a step gets no savepoint."""
    marking = draft.markings.pop(step)
    draft.changes["unsealed"] = (marking.step, text)
    before = draft.changes.get("marked_to", draft.before.marked_to)
    assert isinstance(before, int)
    draft.changes["marked_to"] = max(before, step)


def next_look_ms(stream: Stream) -> int:
    """Return when the time that steps wait for marks is counted next; 0 none waits."""
    return min((_looked_ms(one) + LOOK_MS for one in stream.markings), default=0)


def looked(stream: Stream, at_ms: int) -> tuple[Marking, ...]:
    """Return the steps that wait for marks, with the time counted that they could be marked in.

    While the daemon was away nobody could say so.
    """
    return tuple(_waited(one, at_ms - _looked_ms(one), at_ms) for one in stream.markings)


def _waited(marking: Marking, passed_ms: int, at_ms: int) -> Marking:
    if passed_ms < LOOK_MS:
        return marking
    counted_ms = passed_ms if passed_ms <= LOOK_MS + LATE_MS else 0
    return replace(marking, waited_ms=marking.waited_ms + counted_ms, looked_ms=at_ms)


def wait_anew(draft: StreamDraft) -> None:
    """Give who just opened the stream as much time to mark as the others had."""
    for step, one in draft.markings.items():
        draft.markings[step] = replace(one, waited_ms=0, looked_ms=draft.at_ms)


def _looked_ms(marking: Marking) -> int:
    return marking.looked_ms or marking.began_ms


def overdue(stream: Stream) -> Marking | None:
    """Return a step whose time for marks is over, None when there is none."""
    return next((one for one in stream.markings if one.waited_ms >= MARKING_MS), None)


def end_all(draft: StreamDraft) -> None:
    """Let every step have of who has not marked it all that it took: no more rows come.

    It goes on to its last mark, which it may make at once or never, as one that completed.
    """
    for reader in values(draft.before.reader_shards):
        if reader.is_lost:
            continue
        for step, marking in draft.markings.items():
            if _since(marking, reader.attempt) is None:
                draft.markings[step] = _with_since(marking, reader.attempt, (), more=1)


def time_out(draft: StreamDraft, late: Marking) -> None:
    """Go on without who has not opened the stream; the step fails if others have not marked it.

    Who is gone on without and opens it later would bring rows to a model whose savepoints do not
    have them. Before anybody took rows it may still come.
    """
    stream = draft.before
    if missing(stream, late):
        give_up(draft, late.step, overdue_text(stream, late))
    for reader in values(stream.reader_shards):
        if reader.is_missed:
            draft.put_reader(replace(reader, is_awaited=False, is_lost=_has_moved(stream)))


def _has_moved(stream: Stream) -> bool:
    """Return whether anybody took something since the group began."""
    began = next((one.done for one in stream.savepoints if one.name == stream.restored), -1)
    if not stream.restored:
        began = stream.carried_count
    return stream.consumed > began


def overdue_text(stream: Stream, marking: Marking) -> str:
    """Return in words who has not marked a step."""
    late = missing(stream, marking)
    names = ", ".join(one.label for one in late[:8]) or "nobody"
    rest = f" and {len(late) - 8} more" if len(late) > 8 else ""
    return (
        f"step {marking.step} was not marked within {MARKING_MS // 1000} s by {names}{rest}; "
        "every trainer of the group has to mark the same steps (feed.mark, feed.state_dict or "
        "primus.checkpoint)"
    )
