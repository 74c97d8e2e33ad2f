"""Positions that came from another stream: which unit they belong to, and what they say of it.

Units are told apart by their location. A stream numbers its own units; another one, or the same
one in another job, may list more of them, fewer, or in another order.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from primusd.datafeed.drawing import described
from primusd.datafeed.ledger import tasks
from primusd.datafeed.ledger.folding import settled
from primusd.datafeed.ledger.listed import Units
from primusd.datafeed.ledger.model import (
    OPEN_END,
    CarriedUnit,
    DeadRange,
    EpochState,
    Range,
    Savepoint,
    Stream,
    UnitState,
    cuts_of,
    size_of,
)
from primusd.datafeed.ledger.ranges import overlap, union
from primusd.datafeed.ledger.tracks import is_passed, tracks_of
from primusd.datafeed.protocol import Unit
from primusd.job.spec import StreamSpec


def matching(
    units: Units, carried: Iterable[CarriedUnit], first: int
) -> Iterator[tuple[int, CarriedUnit]]:
    """Yield the units from a number on that something was carried of.

    A location that is listed more often than it was carried keeps what was carried last.
    """
    known: dict[str, list[CarriedUnit]] = defaultdict(list)
    for one in carried:
        known[place_of(one.location)].append(one)
    has_doubles = any(len(ones) > 1 for ones in known.values())
    seen: dict[str, int] = defaultdict(int)
    for number in range(0 if has_doubles else first, len(units)):
        place = place_of(units[number].unit.location)
        ones = known.get(place, [])
        if ones and number >= first:
            yield number, ones[min(seen[place], len(ones) - 1)]
        seen[place] += has_doubles


def place_of(location: str) -> str:
    """Return a location in its plain form: a local file is known by its path."""
    for prefix in ("file://", "file:"):
        if location.startswith(prefix):
            return location.removeprefix(prefix)
    return location


def changed(one: CarriedUnit, unit: Unit) -> str:
    """Return in words that a unit is not what it was when its positions were kept; "" it is."""
    if one.byte_count >= 0 and unit.byte_count >= 0 and one.byte_count != unit.byte_count:
        what = f"it had {one.byte_count} bytes, now it has {unit.byte_count}"
    elif one.pin and unit.pin and one.pin != unit.pin:
        what = "it was modified"
    else:
        return ""
    return (
        f"{unit.location} was changed since positions in it were kept: {what}; "
        "with changed: anew it is read from its beginning"
    )


def state_of(
    one: CarriedUnit, epoch: int, first: int, end: int, *, is_whole: bool
) -> UnitState | None:
    """Return the state of a unit in an epoch as it was carried; None: nothing was handed out.

    Args:
        one: What was carried.
        epoch: Its number.
        first: Where the unit begins.
        end: Where it ends; OPEN_END not known.
        is_whole: All of it is done in this epoch.
    """
    dead = dict(one.dead).get(epoch, ())
    done = dict(one.done).get(epoch, ())
    if is_whole:
        done = (Range(first, end),) if end != OPEN_END else ()
    done = union(overlap(done, first, end))
    if not done and not dead:
        return None
    state = tasks.taken_over(done, first)
    for part in dead:
        state = _buried(state, part, end)
    return state


def _buried(state: UnitState, dead: DeadRange, end: int) -> UnitState:
    hi = min(dead.hi, end)
    return tasks.killed(state, DeadRange(dead.lo, hi, *_said(dead))) if dead.lo < hi else state


def _said(dead: DeadRange) -> tuple[str, str, str, bytes, int]:
    return dead.kind, dead.text, dead.by, dead.head, dead.at_ms


def carried_units(stream: Stream, savepoint: Savepoint) -> tuple[CarriedUnit, ...]:
    """Return the content of a savepoint by location; units that say nothing are left out."""
    if savepoint.carried:
        return savepoint.carried
    savepoint = settled(stream, savepoint)
    count = len(stream.units) if savepoint.unit_count < 0 else savepoint.unit_count
    known = {epoch.number: epoch.units for epoch in (*savepoint.epochs, *savepoint.ended)}
    found = []
    whole = whole_epochs(savepoint)
    for number in range(count):
        done = [
            (epoch.number, parts)
            for epoch in savepoint.epochs
            if (parts := _done(stream, epoch, known[epoch.number].get(number), number))
        ]
        dead = [
            (of, state.dead)
            for of, states in known.items()
            if (state := states.get(number)) is not None and state.dead
        ]
        if done or dead or whole:
            unit = stream.units[number].unit
            found.append(
                CarriedUnit(
                    unit.location,
                    unit.byte_count,
                    unit.pin,
                    size_of(stream, number),
                    tuple(done),
                    tuple(dead),
                    cuts_of(stream, number),
                )
            )
    return tuple(found)


def whole_epochs(savepoint: Savepoint) -> int:
    """Return how many epochs had ended."""
    if savepoint.carried:
        return savepoint.whole_epochs
    return savepoint.epochs_begun - len(savepoint.epochs)


def _done(
    stream: Stream, epoch: EpochState, state: UnitState | None, number: int
) -> tuple[Range, ...]:
    if state is not None:
        return state.done
    size = size_of(stream, number)
    first = stream.units[number].first
    was_passed = is_passed(tracks_of(stream), epoch, number)
    return (Range(first, size),) if was_passed and size > first else ()


def order_of(spec: StreamSpec) -> str:
    """Return how rows of a file are permuted, "" when they are not."""
    return described(spec).get("shuffle", "")


def order_fault(units: Iterable[CarriedUnit], order: str, spec: StreamSpec) -> str:
    """Return why parts of files mean other rows in a stream; "" they do not.

    Args:
        units: As carried.
        order: Of the stream that they come from, as `order_of` said it.
        spec: Of the stream that they go to.
    """
    own = order_of(spec)
    if own == order:
        return ""
    part = next((one for one in units if _is_in_part(one)), None)
    if part is None:
        return ""
    return (
        f"{part.location} was read in part, {_words(order)}, and this stream reads it "
        f"{_words(own)}: the rows that are left would be others"
    )


def _is_in_part(one: CarriedUnit) -> bool:
    taken = [sum(part.hi - part.lo for part in parts) for _, parts in one.done]
    left_out = sum(part.hi - part.lo for _, parts in one.dead for part in parts)
    return any(count > 0 and (one.size < 0 or count + left_out < one.size) for count in taken)


def _words(order: str) -> str:
    return f"shuffled (seed, blocks, blockRows: {order})" if order else "as it lies"
