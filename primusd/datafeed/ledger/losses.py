"""What cannot be read and what kills its readers: strikes, dead ranges, budgets."""

from msgspec.structs import replace

from primusd.datafeed.ledger import tasks
from primusd.datafeed.ledger.accounts import expected_positions, positions_in_bytes, unit_word
from primusd.datafeed.ledger.draft import StreamDraft
from primusd.datafeed.ledger.events import StruckOut, TaskRetryRequested, TaskSkipRequested
from primusd.datafeed.ledger.model import (
    OPEN_END,
    DeadRange,
    LeaseState,
    Range,
    ReaderState,
    Stream,
    has_byte_positions,
    word_of,
)
from primusd.datafeed.ledger.ranges import measure, overlap, union
from primusd.datafeed.protocol import BadRange
from primusd.errors import NotFoundError

STRUCK_BYTES_MIN = 1 << 20
"""Bytes that are struck out together: where a record begins is not known here."""
TEXT_CHARS_MAX = 500
HEAD_BYTES_MAX = 64
LOST = "lost"
"""Kind of a range that its storage let go before it was read."""
SCHEMA = "schema"
"""Kind of a file with other columns than its stream, which the job file leaves out (onSchema)."""
TAIL = "tail"
"""Kind of what lies behind the last batch that all trainers of a group have (`tail: drop`)."""
DATA_KINDS = ("data", "changed", "vanished", LOST, SCHEMA, TAIL)
UNREACHED_KINDS = ("transient", "expired")
"""A storage did not answer, or refused a credential: of the rows nothing is known."""
WITHOUT_BOUND = -1
UNCHARGED_KINDS = ("skipped", "forgotten", LOST, SCHEMA, TAIL)
"""Left out, and no fault of the data."""
MILLION = 1_000_000


def least(draft: StreamDraft, unit: int) -> int:
    """Return how few positions are struck out together."""
    return STRUCK_BYTES_MIN if has_byte_positions(draft.units[unit].unit) else 1


def strike(draft: StreamDraft, lease: LeaseState) -> None:
    """Note that a reader died of its own fault on a lease that it did not move; it is let go."""
    state = draft.unit(lease.epoch, lease.unit)
    assert state is not None
    minimum = least(draft, lease.unit)
    one = Range(lease.lo, lease.hi)
    after, suspect = tasks.struck(state, one, lease.attempt.label, minimum)
    draft.put_unit(lease.epoch, lease.unit, after)
    draft.strike_count += 1
    if tasks.is_struck_out(suspect, one):
        draft.struck_due = (*draft.struck_due, (lease.epoch, lease.unit, suspect))


def strike_out(draft: StreamDraft, event: StruckOut) -> None:
    """Leave a range out that killed its readers."""
    draft.struck_due = tuple(
        (epoch, unit, one)
        for epoch, unit, one in draft.struck_due
        if (epoch, unit, one.lo) != (event.epoch, event.unit, event.lo)
    )
    assert _phase(draft, event) == "waiting"
    state = draft.unit(event.epoch, event.unit) or draft.untouched(event.unit)
    rest = tuple(one for one in state.strikes if one.lo != event.lo)
    draft.put_unit(event.epoch, event.unit, replace(state, strikes=rest))
    dead = DeadRange(event.lo, event.hi, "struckOut", event.text, "settle")
    bury(draft, event.epoch, event.unit, dead)


def give_up(
    draft: StreamDraft, reader: ReaderState, lease: LeaseState, bad: BadRange, by: str
) -> None:
    """End a lease where its storage did not answer: somebody else tries once, then it is dead.

    Where a credential was refused others try for ever: another host may have a better one.
    """
    state = draft.unit(lease.epoch, lease.unit)
    assert state is not None
    at = min(max(bad.lo, lease.position), lease.hi)
    was_tried = bool(overlap(state.tired, at, lease.hi))
    if at > lease.position:
        draft.change(reader, replace(lease, hi=at, trim=-1))
    else:
        draft.let_go(reader, lease)
    if bad.kind == "expired":
        return
    if was_tried:
        text = bad.text[:TEXT_CHARS_MAX]
        bury(draft, lease.epoch, lease.unit, DeadRange(at, lease.hi, "data", text, by))
        return
    state = draft.unit(lease.epoch, lease.unit) or draft.untouched(lease.unit)
    tired = union((*state.tired, Range(at, lease.hi)))
    draft.put_unit(lease.epoch, lease.unit, replace(state, tired=tired))


def count_bad(draft: StreamDraft, lease: LeaseState, bad: BadRange, by: str) -> None:
    """Leave out a range of a held lease that cannot be read; a repeat changes nothing."""
    kind = bad.kind if bad.kind in DATA_KINDS else "data"
    lo, hi = max(bad.lo, lease.position), min(bad.hi, lease.hi)
    if lo >= hi:
        return
    dead = DeadRange(lo, hi, kind, bad.text[:TEXT_CHARS_MAX], by, bad.head[:HEAD_BYTES_MAX])
    draft.count_leased(lease, -1)
    bury(draft, lease.epoch, lease.unit, dead)
    draft.count_leased(lease, 1)


def bury(draft: StreamDraft, epoch: int, unit: int, dead: DeadRange) -> None:
    """Add a range to the dead ones and charge it to the budget, or fail the stream."""
    state = draft.unit(epoch, unit) or draft.untouched(unit)
    rows = weight = 0
    for part in tasks.alive_parts(state, Range(dead.lo, dead.hi)):
        state = tasks.killed(state, replace(dead, lo=part.lo, hi=part.hi, at_ms=draft.at_ms))
        rows += _charged(draft, unit, part, dead.kind)
        weight += _weighed(draft, unit, part)
    if not rows:
        return
    draft.put_unit(epoch, unit, state)
    spec = draft.before.spec
    if dead.kind in (SCHEMA, TAIL) or (dead.kind == LOST and spec.out_of_range == "earliest"):
        return
    draft.bad_count += rows
    draft.bad_positions += weight
    where = f"{draft.units[unit].unit.location} {_where(draft, unit, dead)}: {dead.text}"
    if draft.failure:
        return
    if dead.kind == LOST:
        hint = "outOfRange: earliest counts them as lost and goes on"
        draft.failure = f"{where}; {hint}"
    elif spec.on_bad == "fail":
        draft.failure = where
    elif spec.bad_rows != WITHOUT_BOUND and draft.bad_count > spec.bad_rows:
        allowed = f"more than {spec.bad_rows} rows (badRows) could not be read"
        draft.failure = f"{allowed}; last: {where}{_uncounted(draft, unit, dead)}"
    elif text := over_fraction(draft.before, draft.bad_positions):
        draft.failure = f"{text}; last: {where}"


def over_fraction(stream: Stream, bad_positions: int, *, is_final: bool = False) -> str:
    """Return in words that more than `badFraction` of a stream cannot be read; "" it is not so.

    Args:
        stream: As it is.
        bad_positions: Those that could not be read so far.
        is_final: All of it is known. Before, how much it is may be a guess by bytes.
    """
    ppm = stream.spec.bad_ppm
    if ppm < 0:
        return ""
    epochs = max(1, stream.spec.epochs)
    expected = stream.known if is_final else expected_positions(stream)
    all_positions = max(expected * epochs, stream.consumed + stream.skipped)
    if expected < 0 and not is_final:
        return ""
    if bad_positions * MILLION <= ppm * all_positions:
        return ""
    return (
        f"more than {ppm / MILLION:.4%} of the {unit_word(stream)} (badFraction) could not be "
        f"read: {bad_positions} of {all_positions}"
    )


def forget(draft: StreamDraft, lease: LeaseState, one: Range) -> None:
    """Leave out for good what a trainer may have used: with delivery atMostOnce it is lost."""
    state = draft.unit(lease.epoch, lease.unit) or draft.untouched(lease.unit)
    parts = tasks.alive_parts(state, one) if one.lo < one.hi else ()
    for part in parts:
        text = f"{lease.attempt.label} had it in hand when it was lost"
        dead = DeadRange(part.lo, part.hi, "forgotten", text, "settle", at_ms=draft.at_ms)
        state = tasks.killed(state, dead)
    if parts:
        draft.put_unit(lease.epoch, lease.unit, state)


def skip(draft: StreamDraft, event: TaskSkipRequested, by: str) -> bool:
    """Leave a task out because a person said so; a holder loses it. False: it is left out already.

    One that is dead for another reason is accepted so, and no budget has it any more.

    Raises:
        NotFoundError: There is no task there that is not finished.
    """
    phase = _phase(draft, event)
    dead = _dead_at(draft, event) if phase in {"dead", "leased"} else None
    if dead is not None:
        return _accept(draft, event, dead, by)
    if phase not in {"leased", "waiting"}:
        raise _no_task(event)
    one = _taken_away(draft, event) if phase == "leased" else None
    state = draft.unit(event.epoch, event.unit) or draft.untouched(event.unit)
    if one is None:
        waiting = tasks.waiting(state, draft.end(event.unit))
        one = next(one for one in waiting if one.lo <= event.lo < one.hi)
    for part in tasks.alive_parts(state, one):
        dead = DeadRange(part.lo, part.hi, "skipped", event.reason, by, at_ms=draft.at_ms)
        state = tasks.killed(state, dead)
    draft.put_unit(event.epoch, event.unit, state)
    return True


def _dead_at(draft: StreamDraft, event: TaskSkipRequested) -> DeadRange | None:
    """Return what is left out at a position; inside an open lease, too."""
    state = draft.unit(event.epoch, event.unit)
    dead = () if state is None else state.dead
    return next((one for one in dead if one.lo <= event.lo < one.hi), None)


def _accept(draft: StreamDraft, event: TaskSkipRequested, dead: DeadRange, by: str) -> bool:
    state = draft.unit(event.epoch, event.unit)
    assert state is not None
    if dead.kind == "skipped":
        return False
    _refund(draft, event.unit, dead)
    accepted = replace(dead, kind="skipped", text=event.reason, by=by, at_ms=draft.at_ms)
    others = tuple(accepted if one == dead else one for one in state.dead)
    draft.put_unit(event.epoch, event.unit, replace(state, dead=others))
    return True


def _refund(draft: StreamDraft, unit: int, dead: DeadRange) -> None:
    """Take a dead range off the budgets again."""
    if dead.kind in UNCHARGED_KINDS:
        return
    one = Range(dead.lo, dead.hi)
    draft.bad_count = max(0, draft.bad_count - _charged(draft, unit, one, dead.kind))
    draft.bad_positions = max(0, draft.bad_positions - _weighed(draft, unit, one))


def retry(draft: StreamDraft, event: TaskRetryRequested) -> bool:
    """Let a dead range wait again, also of an epoch that had ended. False: it is not left out.

    Raises:
        NotFoundError: There is no task there that is not done.
    """
    ended = next((one for one in draft.before.ended if one.number == event.epoch), None)
    if ended is not None:
        draft.reopen_epoch(ended)
    phase = _phase(draft, event)
    if phase in {"leased", "waiting"}:
        return False
    if phase != "dead":
        raise _no_task(event)
    state = draft.unit(event.epoch, event.unit)
    assert state is not None
    dead = next(one for one in state.dead if one.lo <= event.lo < one.hi)
    _refund(draft, event.unit, dead)
    draft.put_unit(event.epoch, event.unit, tasks.revived(state, dead))
    return True


def _phase(draft: StreamDraft, event: TaskSkipRequested | TaskRetryRequested | StruckOut) -> str:
    """Return the phase of the task that an event names, "" when there is none."""
    epoch = draft.epochs.get(event.epoch)
    if epoch is None or not 0 <= event.unit < len(draft.units):
        return ""
    first, end = draft.units[event.unit].first, draft.end(event.unit)
    state = draft.unit(event.epoch, event.unit)
    if state is None and draft.is_passed(epoch, event.unit):
        return "done" if first <= event.lo < end else ""
    phase = tasks.phase_at(state or draft.untouched(event.unit), end, event.lo)
    return phase if event.lo >= first else ""


def _taken_away(draft: StreamDraft, event: TaskSkipRequested) -> Range:
    """Take the lease that covers a position away from its holder; return what it had left."""
    for reader in draft.before.readers.values():
        for lease in reader.leases:
            is_there = (lease.epoch, lease.unit) == (event.epoch, event.unit)
            if is_there and lease.lo <= event.lo < lease.hi:
                draft.let_go(reader, lease)
                return Range(lease.position, lease.hi)
    raise AssertionError("a leased range without a lease")


def _charged(draft: StreamDraft, unit: int, one: Range, kind: str) -> int:
    """Return the rows that a dead range counts in the budget; what cannot be told is too much."""
    if one.hi == OPEN_END:
        return 1 << 40
    if has_byte_positions(draft.units[unit].unit) and kind == "data":
        # One record; a longer range is counted by its bytes, which rows cannot exceed.
        return 1 if one.hi - one.lo <= STRUCK_BYTES_MIN else one.hi - one.lo
    return measure(one.lo, one.hi)


def _uncounted(draft: StreamDraft, unit: int, dead: DeadRange) -> str:
    """Return why a dead range is more rows than it may have had, "" where it is not."""
    if dead.hi == OPEN_END:
        return "; nobody knows how many rows it has: badFraction goes by its bytes"
    if not has_byte_positions(draft.units[unit].unit):
        return ""
    if dead.kind == "data" and dead.hi - dead.lo <= STRUCK_BYTES_MIN:
        return ""
    return (
        f"; how many rows its {dead.hi - dead.lo} bytes are is not known, so each byte counts as "
        "one: badFraction goes by bytes"
    )


def _weighed(draft: StreamDraft, unit: int, one: Range) -> int:
    """Return the positions of a range; of one to an unknown end a guess by the unit's bytes."""
    if one.hi != OPEN_END:
        return one.hi - one.lo
    byte_count = max(1, draft.units[unit].unit.byte_count)
    if has_byte_positions(draft.units[unit].unit):
        return byte_count
    return max(1, positions_in_bytes(draft.before, byte_count))


def _where(draft: StreamDraft, unit: int, dead: DeadRange) -> str:
    word = word_of(draft.units[unit].unit)
    return f"from {word[:-1]} {dead.lo}" if dead.hi == OPEN_END else f"{word} {dead.lo}-{dead.hi}"


def _no_task(event: TaskSkipRequested | TaskRetryRequested) -> NotFoundError:
    return NotFoundError(
        f"there is no such task: {event.epoch + 1}.{event.unit}.{event.lo}, which is pass "
        f"{event.epoch + 1}, file {event.unit}, position {event.lo}",
        hint="primusctl data NAME tasks lists them",
    )
