"""The ledger added up, for people: positions, tasks, and the proof that nothing is missing."""

from collections.abc import Iterable, Iterator
from itertools import pairwise

from msgspec import Struct

from primusd.datafeed.ledger import tasks as ranges_of
from primusd.datafeed.ledger.model import (
    OPEN_END,
    EpochState,
    LeaseState,
    Range,
    Stream,
    UnitState,
    size_of,
    word_of,
)
from primusd.datafeed.ledger.ranges import overlap, subtract, total, union
from primusd.datafeed.ledger.shards import items
from primusd.datafeed.ledger.tracks import is_passed, tracks_of
from primusd.job.formats import has_bytes
from primusd.job.ids import AttemptId
from primusd.job.spec import has_files

TASK_PHASES = ("leased", "waiting", "dead")


class Positions(Struct, frozen=True):
    """Where the positions of an epoch are: total = done + leased + waiting + skipped + dead."""

    unit: str
    """`rows`, `bytes` or `offsets`."""
    epoch: int
    total: int
    """-1 not known while a unit was never opened."""
    done: int
    leased: int
    waiting: int
    """-1 not known."""
    skipped: int
    """Left out by a person."""
    dead: int
    """Left out otherwise."""
    expected: int = -1
    """The total; while units were never opened, guessed from their bytes; -1 not even that."""


class TaskRange(Struct, frozen=True):
    """A range that is not finished, or is left out."""

    phase: str
    """`leased`, `waiting` or `dead`."""
    epoch: int
    unit: int
    location: str
    lo: int
    hi: int
    """OPEN_END: to the end of a unit that nobody has opened yet."""
    position: int = -1
    """Acknowledged, of a leased one; -1 none."""
    attempt: AttemptId | None = None
    """The holder of a leased one, None for others."""
    token: int = 0
    kind: str = ""
    text: str = ""
    by: str = ""
    head: bytes = b""
    at_ms: int = 0


class Flaw(Struct, frozen=True):
    """A range that the ledger cannot account for, or accounts for twice."""

    epoch: int
    unit: int
    location: str
    lo: int
    hi: int


class Verified(Struct, frozen=True):
    """All epochs added up: listed = done + leased + waiting + skipped + dead."""

    ok: bool
    unit: str
    listed: int
    """Positions of all epochs of the spec together; -1 not known."""
    done: int
    leased: int
    waiting: int
    """-1 not known."""
    skipped: int
    dead: int
    gaps: tuple[Flaw, ...]
    overlaps: tuple[Flaw, ...]
    repeated: int
    """The most that may have come twice."""
    text: str = ""
    """What does not add up though every range is there; "" nothing."""


def unit_word(stream: Stream) -> str:
    """Return what positions count: `bytes`, `offsets` or `rows`; `positions` where they differ."""
    if stream.units:
        # Files come before topics, so the first and the last differ if any do.
        first, last = word_of(stream.units[0].unit), word_of(stream.units[-1].unit)
        return first if first == last else "positions"
    if not has_files(stream.spec):
        return "offsets"
    return "bytes" if has_bytes({"format": stream.spec.format}) else "rows"


def positions(stream: Stream) -> Positions:
    """Return where the positions of the oldest open epoch are, of the last one once all ended."""
    word = unit_word(stream)
    total_count = -1 if stream.unsized_units or not stream.is_listed else stream.known
    if stream.epochs:
        epoch = stream.epochs[0]
    else:
        number = max(0, stream.epochs_begun - 1)
        last = EpochState(number, consumed=stream.known)
        epoch = next((one for one in stream.ended if one.number == number), last)
    skipped = _skipped(epoch)
    dead = epoch.skipped - skipped
    passed = epoch.consumed + epoch.skipped + epoch.leased
    waiting = -1 if total_count < 0 else max(0, total_count - passed)
    return Positions(
        unit=word,
        epoch=epoch.number,
        total=total_count,
        done=epoch.consumed,
        leased=epoch.leased,
        waiting=waiting,
        skipped=skipped,
        dead=dead,
        expected=expected_positions(stream),
    )


def expected_positions(stream: Stream) -> int:
    """Return the positions of a pass, guessed from the bytes of units never opened; -1 unknown."""
    if not stream.is_listed:
        return -1
    if not stream.unsized_units:
        return stream.known
    packed_bytes = sum(pack.byte_count for pack in stream.units.packs)
    other_bytes = sum(one.unit.byte_count for one in stream.units.tail)
    return positions_in_bytes(stream, packed_bytes + other_bytes)


def positions_in_bytes(stream: Stream, byte_count: int) -> int:
    """Return about how many positions so many bytes of units have; -1 unknown."""
    known_bytes = sum(pack.sized_bytes for pack in stream.units.packs)
    known_bytes += sum(one.unit.byte_count for one in stream.units.tail if one.size >= 0)
    found = (stream.units[number] for number, _ in items(stream.found))
    known_bytes += sum(one.unit.byte_count for one in found if one.size < 0)
    return stream.known * byte_count // known_bytes if known_bytes else -1


def tasks(stream: Stream, phase: str) -> Iterator[TaskRange]:
    """Yield the ranges in a phase (`leased`, `waiting` or `dead`), in order of epoch and unit."""
    if phase == "leased":
        found = sorted(stream.leases.values(), key=lambda one: (one.epoch, one.unit, one.lo))
        yield from (_leased(stream, lease) for lease in found)
    elif phase == "waiting":
        for epoch in stream.epochs:
            yield from _waiting(stream, epoch)
    elif phase == "dead":
        for epoch in sorted((*stream.ended, *stream.epochs), key=lambda one: one.number):
            yield from _dead(stream, epoch)


def verify(stream: Stream) -> Verified:
    """Return the proof that every position of every epoch is accounted for once, or the flaws."""
    gaps: list[Flaw] = []
    overlaps: list[Flaw] = []
    texts: list[str] = []
    leases = sorted(stream.leases.values(), key=lambda one: (one.epoch, one.unit, one.lo))
    by_unit: dict[tuple[int, int], list[LeaseState]] = {}
    for lease in leases:
        by_unit.setdefault((lease.epoch, lease.unit), []).append(lease)
    leased = 0
    for epoch in stream.epochs:
        counted = _Count(stream, epoch, by_unit, gaps, overlaps)
        texts += counted.texts
        leased += counted.leased
    texts += _ended_texts(stream)
    skipped = sum(_skipped(epoch) for epoch in (*stream.epochs, *stream.ended))
    is_known = stream.is_listed and not stream.unsized_units
    # Endings that were never seen are counted as one position each (EpochState.unsized).
    listed = stream.known * max(1, stream.spec.epochs) if is_known else -1
    done, all_skipped = stream.consumed, stream.skipped
    waiting = listed - done - all_skipped - leased if is_known else -1
    if is_known and waiting < 0:
        texts.append(f"{-waiting} positions more were counted than were listed")
    return Verified(
        not (gaps or overlaps or texts),
        unit_word(stream),
        listed,
        done,
        leased,
        max(-1, waiting),
        skipped,
        all_skipped - skipped,
        tuple(gaps),
        tuple(overlaps),
        stream.repeated,
        "; ".join(texts),
    )


class _Count:
    """One epoch counted range by range, and compared with what its counters say."""

    def __init__(
        self,
        stream: Stream,
        epoch: EpochState,
        by_unit: dict[tuple[int, int], list[LeaseState]],
        gaps: list[Flaw],
        overlaps: list[Flaw],
    ) -> None:
        self.texts: list[str] = []
        self.leased = 0
        consumed = 0
        entries = epoch.units
        tracks = tracks_of(stream)
        for number in range(len(stream.units)):
            state = entries.get(number)
            size = size_of(stream, number)
            leases = by_unit.get((epoch.number, number), [])
            if state is None:
                first = stream.units[number].first
                consumed += size - first if is_passed(tracks, epoch, number) else 0
                if leases:
                    overlaps += [_flaw(stream, one, number, epoch.number) for one in leases]
                continue
            consumed += _taken(state, leases)
            self.leased += sum(_left(state, lease) for lease in leases)
            end = OPEN_END if size < 0 else size
            missing = _missing(state, stream.units[number].first, end)
            if is_passed(tracks, epoch, number) and number not in epoch.reopened:
                missing = (*missing, *ranges_of.waiting(state, end))
            gaps += [_flaw(stream, one, number, epoch.number) for one in missing]
            twice = _twice(state, leases, end)
            overlaps += [_flaw(stream, one, number, epoch.number) for one in twice]
        if consumed != epoch.consumed:
            self.texts.append(
                f"epoch {epoch.number}: {epoch.consumed} were counted as taken, "
                f"the ranges hold {consumed}"
            )
        if self.leased != epoch.leased:
            self.texts.append(
                f"epoch {epoch.number}: {epoch.leased} were counted as leased, "
                f"the leases hold {self.leased}"
            )


def _taken(state: UnitState, leases: list[LeaseState]) -> int:
    """Return the positions taken in a unit, those left out not among them."""
    passed = union((*state.done, *(Range(one.lo, one.position) for one in leases)))
    return total(subtract(passed, ranges_of.dead_ranges(state)))


def _left(state: UnitState, lease: LeaseState) -> int:
    """Return the positions that a lease still has, as far as its end is known."""
    if lease.hi == OPEN_END:
        return 0
    dead = overlap(ranges_of.dead_ranges(state), lease.position, lease.hi)
    return lease.hi - lease.position - total(dead)


def _missing(state: UnitState, first: int, end: int) -> tuple[Range, ...]:
    """Return what is neither done, nor leased, nor dead, nor waits."""
    waiting = ranges_of.waiting(state, end)
    known = union((*state.done, *state.leased, *ranges_of.dead_ranges(state), *waiting))
    return subtract((Range(first, end),), known) if end > first else ()


def _twice(state: UnitState, leases: list[LeaseState], end: int) -> Iterator[Range]:
    """Yield what has two places, and what is leased on one side of the books only."""
    held = sorted(Range(one.lo, one.hi) for one in leases)
    if held != sorted(state.leased):
        yield from (one for one in held if one not in state.leased)
        yield from (one for one in state.leased if one not in held)
    waiting = ranges_of.waiting(state, end)
    # What is dead inside a lease, or was passed over, lies in the ranges that are leased or done.
    for segments in ((*state.done, *held, *waiting), (*ranges_of.dead_ranges(state), *waiting)):
        for before, after in pairwise(sorted(segments)):
            if after.lo < before.hi:
                yield Range(after.lo, min(before.hi, after.hi))


def _ended_texts(stream: Stream) -> list[str]:
    """Return what does not add up in the epochs that ended."""
    count = stream.epochs_done
    passed = stream.consumed_before + stream.skipped_before
    if stream.unsized_before or stream.unsized_units:
        return []
    if passed == stream.known * count:
        return []
    return [f"{count} epochs ended with {passed} positions, {stream.known * count} were listed"]


def _skipped(epoch: EpochState) -> int:
    """Return the positions of an epoch that a person left out."""
    if not epoch.skipped:
        return 0
    return sum(
        1 if one.hi == OPEN_END else one.hi - one.lo
        for state in epoch.units.values()
        for one in state.dead
        if one.kind == "skipped"
    )


def _flaw(stream: Stream, one: Range | LeaseState, unit: int, epoch: int) -> Flaw:
    return Flaw(epoch, unit, stream.units[unit].unit.location, one.lo, one.hi)


def _leased(stream: Stream, lease: LeaseState) -> TaskRange:
    return TaskRange(
        "leased",
        lease.epoch,
        lease.unit,
        stream.units[lease.unit].unit.location,
        lease.lo,
        lease.hi,
        lease.position,
        lease.attempt,
        lease.token,
    )


def _waiting(stream: Stream, epoch: EpochState) -> Iterator[TaskRange]:
    entries = epoch.units
    tracks = tracks_of(stream)
    count = len(stream.units)
    rest: Iterable[int] = range(epoch.next_unit, count)
    if not tracks.is_plain:
        rest = (number for number in range(count) if not is_passed(tracks, epoch, number))
    for number in (*epoch.reopened, *rest):
        size = size_of(stream, number)
        state = entries.get(number, UnitState(stream.units[number].first))
        location = stream.units[number].unit.location
        for one in ranges_of.waiting(state, OPEN_END if size < 0 else size):
            yield TaskRange("waiting", epoch.number, number, location, one.lo, one.hi)


def _dead(stream: Stream, epoch: EpochState) -> Iterator[TaskRange]:
    for number, state in sorted(epoch.units.items()):
        location = stream.units[number].unit.location
        for one in state.dead:
            yield TaskRange(
                "dead",
                epoch.number,
                number,
                location,
                one.lo,
                one.hi,
                kind=one.kind,
                text=one.text,
                by=one.by,
                head=one.head,
                at_ms=one.at_ms,
            )
