"""Tasks of one unit in one epoch: ranges that wait, are leased, done or dead (table 9, as ranges).

A task is a range that is not finished. What waits is all from `fresh` on, and `loose` below it; so
giving out the next range costs the same in a unit of one task and in one of 20,000.
"""

from msgspec.structs import replace

from primusd.datafeed.ledger.model import OPEN_END, DeadRange, Range, Strike, UnitState
from primusd.datafeed.ledger.ranges import (
    add,
    insert,
    measure,
    overlap,
    remove,
    subtract,
    take,
    total,
    union,
)

STRIKES_MAX = 3
"""Readers that must have died on a range before it is struck out."""


def waiting(state: UnitState, end: int) -> tuple[Range, ...]:
    """Return the ranges that nobody holds and nobody has finished, in order."""
    return (*state.loose, Range(state.fresh, end)) if state.fresh < end else state.loose


def does_wait(state: UnitState, end: int) -> bool:
    """Return whether a range waits."""
    return bool(state.loose) or state.fresh < end


def is_finished(state: UnitState, end: int) -> bool:
    """Return whether every position is done or dead."""
    return not state.leased and not state.loose and state.fresh >= end


def phase_at(state: UnitState, end: int, position: int) -> str:
    """Return the phase of the task at a position (`waiting`, …), "" behind the unit's end."""
    for phase, ranges in (
        ("leased", state.leased),
        ("dead", dead_ranges(state)),
        ("waiting", waiting(state, end)),
    ):
        if any(one.lo <= position < one.hi for one in ranges):
            return phase
    return "done" if 0 <= position < end else ""


def dead_ranges(state: UnitState) -> tuple[Range, ...]:
    """Return where the dead ranges lie."""
    return tuple(Range(one.lo, one.hi) for one in state.dead)


def dead_count(state: UnitState) -> int:
    """Return the positions that are left out."""
    return sum(measure(one.lo, one.hi) for one in state.dead)


def passed_count(state: UnitState) -> int:
    """Return the positions that are done or dead, each counted once."""
    return total(subtract(state.done, dead_ranges(state))) + dead_count(state)


def held(state: UnitState, one: Range) -> UnitState:
    """Return the state with a lease on a range that waits."""
    return replace(_without_waiting(state, one), leased=insert(state.leased, one))


def trimmed(state: UnitState, one: Range, hi: int) -> UnitState:
    """Return the state with a lease that ends earlier; the rest waits."""
    leased = insert(remove(state.leased, one), Range(one.lo, hi))
    return _with_waiting(replace(state, leased=leased), Range(hi, one.hi))


def released(state: UnitState, one: Range, position: int) -> UnitState:
    """Return the state without a lease: done up to the position, waiting from there."""
    done = add(state.done, Range(one.lo, position))
    after = replace(state, leased=remove(state.leased, one), done=done)
    if state.strikes or state.tired:
        strikes = left_of_strikes(state.strikes, done)
        after = replace(after, strikes=strikes, tired=subtract(state.tired, done))
    return _with_waiting(after, Range(position, one.hi))


def killed(state: UnitState, dead: DeadRange) -> UnitState:
    """Return the state with one more dead range, which was waiting, or is inside a lease."""
    one = Range(dead.lo, dead.hi)
    after = replace(state, dead=_joined(sorted((*state.dead, dead), key=lambda one: one.lo)))
    parts = overlap(state.loose, one.lo, one.hi)
    for part in parts:
        after = _without_waiting(after, part)
    if one.hi > state.fresh:
        after = _without_waiting(after, Range(max(one.lo, state.fresh), one.hi))
    return after


def revived(state: UnitState, dead: DeadRange) -> UnitState:
    """Return the state in which a dead range waits again; not one inside a lease."""
    one = Range(dead.lo, dead.hi)
    after = replace(
        state,
        dead=tuple(other for other in state.dead if other != dead),
        done=subtract(state.done, (one,)),
    )
    return _with_waiting(after, one)


def undone(state: UnitState, one: Range) -> UnitState:
    """Return the state in which a range that was done waits again, but for what is dead in it."""
    return _with_waiting(replace(state, done=subtract(state.done, (one,))), one)


def taken_over(done: tuple[Range, ...], first: int) -> UnitState:
    """Return the state of a unit of which these ranges were done before; the rest waits.

    Args:
        done: Sorted, disjoint, merged.
        first: Where the unit begins.
    """
    if not done:
        return UnitState(first)
    fresh = done[-1].hi
    return UnitState(fresh, loose=subtract((Range(first, fresh),), done), done=done)


def alive_parts(state: UnitState, one: Range) -> tuple[Range, ...]:
    """Return the parts of a range that are neither done nor dead."""
    return subtract((one,), union((*state.done, *dead_ranges(state))))


def clipped(state: UnitState, end: int) -> UnitState:
    """Return the state now that the unit turned out to end here."""
    return UnitState(
        fresh=min(state.fresh, end),
        loose=overlap(state.loose, 0, end),
        leased=tuple(Range(one.lo, max(one.lo, min(one.hi, end))) for one in state.leased),
        done=overlap(state.done, 0, end),
        dead=tuple(replace(one, hi=min(one.hi, end)) for one in state.dead if one.lo < end),
        strikes=tuple(replace(one, hi=min(one.hi, end)) for one in state.strikes if one.lo < end),
        tired=overlap(state.tired, 0, end),
    )


def struck(state: UnitState, one: Range, reader: str, minimum: int) -> tuple[UnitState, Strike]:
    """Return the state after a reader died on a range, and what is suspected from now on.

    The range is halved as long as it is longer than `minimum`: its first half is leased alone next
    and keeps the readers that died on the whole, its second half is an ordinary range again.

    Args:
        state: Without the lease.
        one: The range that the lease had, its position unmoved.
        reader: Label of the attempt.
        minimum: Positions that are not halved: one record, or 1 MiB of bytes.
    """
    readers = {reader}
    for strike in state.strikes:
        if strike.lo <= one.lo < strike.hi:
            readers.update(strike.readers)
    hi = one.hi
    if hi != OPEN_END and hi - one.lo > minimum:
        hi = one.lo + max(minimum, (hi - one.lo) // 2)
    suspect = Strike(one.lo, hi, tuple(sorted(readers)))
    others = tuple(strike for strike in state.strikes if not strike.lo <= one.lo < strike.hi)
    return replace(state, strikes=tuple(sorted((*others, suspect), key=lambda s: s.lo))), suspect


def suspected(state: UnitState, one: Range, reader: str) -> UnitState:
    """Return the state after a reader died within a lease; who died on it before did elsewhere.

    Args:
        state: Without the lease.
        one: What the lease had left.
        reader: Label of the attempt.
    """
    others = tuple(strike for strike in state.strikes if not strike.lo <= one.lo < strike.hi)
    strikes = (*others, Strike(one.lo, one.hi, (reader,)))
    return replace(state, strikes=tuple(sorted(strikes, key=lambda one: one.lo)))


def is_struck_out(suspect: Strike, one: Range) -> bool:
    """Return whether the range that a reader just died on cannot be halved and had its chances."""
    return suspect.hi == one.hi and len(suspect.readers) >= STRIKES_MAX


def _joined(dead: list[DeadRange]) -> tuple[DeadRange, ...]:
    """Return sorted dead ranges, those that touch and say the same as one; a bad file has many."""
    found: list[DeadRange] = []
    for one in dead:
        last = found[-1] if found else None
        if last is not None and last.hi == one.lo and _says(last) == _says(one):
            found[-1] = replace(last, hi=one.hi)
        else:
            found.append(one)
    return tuple(found)


def _says(dead: DeadRange) -> tuple[str, str, str]:
    return dead.kind, dead.text, dead.by


def _with_waiting(state: UnitState, one: Range) -> UnitState:
    """Return the state in which a range waits that was given out before, but for what is dead."""
    parts = subtract((one,), dead_ranges(state)) if state.dead else (one,)
    loose = state.loose
    for part in parts:
        loose = add(loose, part)
    if loose and loose[-1].hi == state.fresh:
        return replace(state, loose=loose[:-1], fresh=loose[-1].lo)
    return state if loose is state.loose else replace(state, loose=loose)


def _without_waiting(state: UnitState, one: Range) -> UnitState:
    """Return the state in which a range that waited no longer does."""
    if one.lo < state.fresh:
        return replace(state, loose=take(state.loose, one))
    between = Range(state.fresh, one.lo)
    return replace(state, fresh=one.hi, loose=add(state.loose, between))


def left_of_strikes(strikes: tuple[Strike, ...], done: tuple[Range, ...]) -> tuple[Strike, ...]:
    """Return the suspected ranges as far as nobody got past them."""
    found = []
    for strike in strikes:
        rest = subtract((Range(strike.lo, strike.hi),), done)
        if rest:
            found.append(replace(strike, lo=rest[0].lo, hi=rest[-1].hi))
    return tuple(found)
