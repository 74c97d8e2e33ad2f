"""Tasks of one unit in one epoch: ranges that wait, are leased, done or dead (table 9, as ranges).

A task is a range that is not finished. Waiting ranges are derived, never stored: what is neither
done, leased nor dead.
"""

from msgspec.structs import replace

from primusd.datafeed.model import OPEN_END, DeadRange, Range, Strike, UnitState
from primusd.datafeed.ranges import insert, measure, overlap, subtract, total, union

STRIKES_MAX = 3
"""Readers that must have died on a range before it is struck out."""


def waiting(state: UnitState, end: int) -> tuple[Range, ...]:
    """Return the ranges that nobody holds and nobody has finished, in order."""
    taken = union((*state.done, *state.leased, *dead_ranges(state)))
    return subtract((Range(0, end),), taken) if end else ()


def is_finished(state: UnitState, end: int) -> bool:
    """Return whether every position is done or dead."""
    if state.leased:
        return False
    passed = union((*state.done, *dead_ranges(state))) if state.dead else state.done
    return end == 0 or passed == (Range(0, end),)


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
    return replace(state, leased=insert(state.leased, one))


def trimmed(state: UnitState, one: Range, hi: int) -> UnitState:
    """Return the state with a lease that ends earlier; it is never empty."""
    rest = tuple(other for other in state.leased if other != one)
    return replace(state, leased=insert(rest, Range(one.lo, hi)))


def released(state: UnitState, one: Range, position: int) -> UnitState:
    """Return the state without a lease: done up to the position, waiting from there."""
    done = union((*state.done, Range(one.lo, position)))
    return replace(
        state,
        leased=tuple(other for other in state.leased if other != one),
        done=done,
        strikes=_left_of_strikes(state.strikes, done),
        tired=subtract(state.tired, done),
    )


def killed(state: UnitState, dead: DeadRange) -> UnitState:
    """Return the state with one more dead range, given disjoint from those there are."""
    return replace(state, dead=tuple(sorted((*state.dead, dead), key=lambda one: one.lo)))


def revived(state: UnitState, dead: DeadRange) -> UnitState:
    """Return the state in which a dead range waits again."""
    return replace(
        state,
        dead=tuple(one for one in state.dead if one != dead),
        done=subtract(state.done, (Range(dead.lo, dead.hi),)),
    )


def alive_parts(state: UnitState, one: Range) -> tuple[Range, ...]:
    """Return the parts of a range that are neither done nor dead."""
    return subtract((one,), union((*state.done, *dead_ranges(state))))


def clipped(state: UnitState, end: int) -> UnitState:
    """Return the state now that the unit turned out to end here."""
    return UnitState(
        done=overlap(state.done, 0, end),
        leased=tuple(Range(one.lo, max(one.lo, min(one.hi, end))) for one in state.leased),
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


def is_struck_out(suspect: Strike, one: Range) -> bool:
    """Return whether the range that a reader just died on cannot be halved and had its chances."""
    return suspect.hi == one.hi and len(suspect.readers) >= STRIKES_MAX


def _left_of_strikes(strikes: tuple[Strike, ...], done: tuple[Range, ...]) -> tuple[Strike, ...]:
    """Return the suspected ranges as far as nobody got past them."""
    found = []
    for strike in strikes:
        rest = subtract((Range(strike.lo, strike.hi),), done)
        if rest:
            found.append(replace(strike, lo=rest[0].lo, hi=rest[-1].hi))
    return tuple(found)
