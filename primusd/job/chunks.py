"""Replicas in chunks of 100: how one or many of them change, and how those with work are found.

A role never walks its replicas to decide: it reads the sums of the chunks' counts and their
earliest times, and opens only chunks that have something due.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from operator import attrgetter

from msgspec.structs import replace

from primusd.job.counts import (
    COUNTS,
    WANTING,
    Count,
    RoleRules,
    begins_at,
    due_of,
    marks_of,
    not_gone_of,
)
from primusd.job.ids import Span
from primusd.job.model import CHUNK_REPLICAS, Chunk, Replica, RoleState

SHED_SHARE = 10
"""The demand is told anew when one in so many of the replicas it names wants no slot any more."""

NO_COUNTS = (0,) * COUNTS
NOBODY = Replica(-1)
"""What is counted nowhere."""
DUE, BEGIN, DEADLINE = attrgetter("due_ms"), attrgetter("begin_ms"), attrgetter("deadline_ms")


def _kept(replica: Replica, rules: RoleRules) -> Replica:
    """Return the replica with its two times and its marks right."""
    due_ms, begin_ms = due_of(replica, rules), begins_at(replica, rules)
    marks = marks_of(replica, rules)
    if due_ms == replica.due_ms and begin_ms == replica.begin_ms and marks == replica.marks:
        return replica
    return replace(replica, due_ms=due_ms, begin_ms=begin_ms, marks=marks)


def _earliest(times: Iterable[int]) -> int:
    return min(filter(None, times), default=0)


def _chunk(replicas: Iterable[Replica], rules: RoleRules) -> Chunk:
    """Return a chunk counted from nothing."""
    kept = tuple(_kept(one, rules) for one in replicas)
    counts = list(NO_COUNTS)
    wanted = 0
    for bit, replica in enumerate(kept):
        _count(NOBODY, replica, counts, [*NO_COUNTS])
        if _is_wanted(replica, rules):
            wanted |= 1 << bit
    return Chunk(
        kept,
        tuple(counts),
        _earliest(map(DUE, kept)),
        _earliest(map(BEGIN, kept)),
        wanted,
    )


def _is_wanted(replica: Replica, rules: RoleRules) -> bool:
    return replica.phase in WANTING and replica.index < rules.size


def _count(old: Replica, new: Replica, counts: list[int], sums: list[int]) -> None:
    """Move the counts of a chunk and of its role from what a replica was to what it is."""
    changed = old.marks ^ new.marks
    while changed:
        bit = changed & -changed
        position, step = bit.bit_length() - 1, 1 if new.marks & bit else -1
        counts[position] += step
        sums[position] += step
        changed ^= bit
    if new.attempts is old.attempts:
        return
    not_gone = not_gone_of(new) - not_gone_of(old)
    begun = new.last_number - old.last_number
    for one in (counts, sums):
        one[Count.NOT_GONE] += not_gone
        one[Count.ATTEMPTS] += begun


def make_role(name: str, size: int, *, generation: int = 1) -> RoleState:
    """Return a role whose replicas all wait; `recount` completes it."""
    return RoleState(
        name=name,
        size=size,
        chunks=tuple(
            Chunk(tuple(Replica(index) for index in range(low, min(low + CHUNK_REPLICAS, size))))
            for low in range(0, size, CHUNK_REPLICAS)
        ),
        generation=generation,
    )


def recount(role: RoleState, rules: RoleRules) -> RoleState:
    """Return the role with everything counted anew: after its rules changed."""
    chunks = tuple(_chunk(one.replicas, rules) for one in role.chunks)
    return replace(
        role,
        chunks=chunks,
        counts=tuple(map(sum, zip(*(one.counts for one in chunks), strict=True))) or NO_COUNTS,
        deadline_ms=_earliest(map(DEADLINE, chunks)),
        begin_ms=_earliest(map(BEGIN, chunks)),
        wanted=wanted_spans(role.name, chunks),
    )


def grow(role: RoleState, size: int) -> RoleState:
    """Return the role with replicas for every index below `size`; `recount` completes it."""
    replicas = [one for chunk in role.chunks for one in chunk.replicas]
    replicas += [Replica(index) for index in range(len(replicas), size)]
    chunks = tuple(
        Chunk(tuple(replicas[low : low + CHUNK_REPLICAS]))
        for low in range(0, len(replicas), CHUNK_REPLICAS)
    )
    return replace(role, size=size, chunks=chunks)


def wanted_spans(name: str, chunks: tuple[Chunk, ...]) -> tuple[Span, ...]:
    """Return the replicas that want a slot."""
    return mask_spans(name, [one.wanted for one in chunks])


def mask_spans(name: str, masks: Iterable[int]) -> tuple[Span, ...]:
    """Return spans of the bits that are set, 100 bits to a mask."""
    found: list[tuple[int, int]] = []
    for number, mask in enumerate(masks):
        base = number * CHUNK_REPLICAS
        bits = mask
        while bits:
            low = (bits & -bits).bit_length() - 1
            rest = ~(bits >> low)
            length = (rest & -rest).bit_length() - 1
            if found and found[-1][1] == base + low - 1:
                found[-1] = (found[-1][0], base + low + length - 1)
            else:
                found.append((base + low, base + low + length - 1))
            bits &= ~(((1 << length) - 1) << low)
    return tuple(Span(name, low, high) for low, high in found)


def span_length(spans: Iterable[Span]) -> int:
    """Return how many replicas the spans name."""
    return sum(one.high - one.low + 1 for one in spans)


def put(role: RoleState, rules: RoleRules, changed: Mapping[int, Replica]) -> RoleState:
    """Return the role with these replicas in place of those of the same index."""
    by_chunk: dict[int, dict[int, Replica]] = {}
    for index, replica in changed.items():
        number, offset = divmod(index, CHUNK_REPLICAS)
        by_chunk.setdefault(number, {})[offset] = replica
    chunks, counts = list(role.chunks), list(role.counts)
    deadline_ms: int | None = role.deadline_ms
    begin_ms: int | None = role.begin_ms
    is_other_wanted = False
    for number, ones in by_chunk.items():
        old = chunks[number]
        new = chunks[number] = _put_in_chunk(old, rules, ones, counts)
        deadline_ms = _moved(deadline_ms, old.deadline_ms, new.deadline_ms)
        begin_ms = _moved(begin_ms, old.begin_ms, new.begin_ms)
        is_other_wanted |= old.wanted != new.wanted
    after = tuple(chunks)
    return replace(
        role,
        chunks=after,
        counts=tuple(counts),
        deadline_ms=_earliest(map(DEADLINE, after)) if deadline_ms is None else deadline_ms,
        begin_ms=_earliest(map(BEGIN, after)) if begin_ms is None else begin_ms,
        wanted=_wanted(role, after, by_chunk) if is_other_wanted else role.wanted,
    )


def _put_in_chunk(
    chunk: Chunk, rules: RoleRules, changed: Mapping[int, Replica], sums: list[int]
) -> Chunk:
    """Return the chunk with the replicas at these offsets, and move the role's `sums` along."""
    replicas, counts, wanted = list(chunk.replicas), list(chunk.counts), chunk.wanted
    deadline_ms: int | None = chunk.deadline_ms
    begin_ms: int | None = chunk.begin_ms
    for offset, replica in changed.items():
        old = replicas[offset]
        new = replicas[offset] = _kept(replica, rules)
        _count(old, new, counts, sums)
        deadline_ms = _moved(deadline_ms, old.due_ms, new.due_ms)
        begin_ms = _moved(begin_ms, old.begin_ms, new.begin_ms)
        bit = 1 << offset
        wanted = wanted | bit if _is_wanted(new, rules) else wanted & ~bit
    return Chunk(
        tuple(replicas),
        tuple(counts),
        _earliest(map(DUE, replicas)) if deadline_ms is None else deadline_ms,
        _earliest(map(BEGIN, replicas)) if begin_ms is None else begin_ms,
        wanted,
    )


def _moved(first_ms: int | None, old_ms: int, new_ms: int) -> int | None:
    """Return the earliest of some times after one of them changed; None: all have to be asked."""
    if old_ms == new_ms or first_ms is None:
        return first_ms
    if new_ms and (new_ms <= first_ms or not first_ms):
        return new_ms
    return None if old_ms == first_ms else first_ms


def _wanted(role: RoleState, chunks: tuple[Chunk, ...], changed: Iterable[int]) -> tuple[Span, ...]:
    """Return what the demand names from now on; the same object when nothing is worth telling."""
    counts = sum(chunk.wanted.bit_count() for chunk in chunks)
    named = span_length(role.wanted)
    is_within = all(
        _is_named(role.wanted, number, chunks[number].wanted & ~role.chunks[number].wanted)
        for number in changed
    )
    if is_within and counts and (named - counts) * SHED_SHARE < named:
        return role.wanted
    found = wanted_spans(role.name, chunks)
    return role.wanted if found == role.wanted else found


def _is_named(spans: tuple[Span, ...], number: int, bits: int) -> bool:
    """Return whether the spans name every replica whose bit is set in chunk `number`."""
    base = number * CHUNK_REPLICAS
    return all(
        any(span.low <= base + bit <= span.high for span in spans)
        for bit in range(bits.bit_length())
        if bits >> bit & 1
    )


def is_named(role: RoleState, index: int) -> bool:
    """Return whether the demand, as last told, names the replica."""
    return any(span.low <= index <= span.high for span in role.wanted)


def change(
    role: RoleState,
    rules: RoleRules,
    spans: Iterable[Span],
    make: Callable[[Replica], Replica],
) -> RoleState:
    """Return the role with every replica that the spans name made anew."""
    changed = {}
    for span in spans:
        for index in range(span.low, span.high + 1):
            old = role.chunks[index // CHUNK_REPLICAS].replicas[index % CHUNK_REPLICAS]
            new = make(old)
            if new is not old:
                changed[index] = new
    return put(role, rules, changed) if changed else role


def find(role: RoleState, count: int) -> Iterator[Replica]:
    """Yield the replicas that are counted at a position, in the order of their indices."""
    if role.counts[count]:
        bit = 1 << count
        for chunk in role.chunks:
            left = chunk.counts[count]
            if left:
                yield from islice((one for one in chunk.replicas if one.marks & bit), left)


def due(role: RoleState, at_ms: int) -> Iterator[Replica]:
    """Yield the replicas whose time to be looked at has come."""
    if role.deadline_ms and role.deadline_ms <= at_ms:
        for chunk in role.chunks:
            if chunk.deadline_ms and chunk.deadline_ms <= at_ms:
                yield from (one for one in chunk.replicas if one.due_ms and one.due_ms <= at_ms)


def names(role: RoleState, replicas: Iterable[Replica]) -> tuple[Span, ...]:
    """Return the replicas as spans of the role; they come in the order of their indices."""
    found: list[Span] = []
    for replica in replicas:
        last = found[-1] if found else None
        if last is not None and last.high == replica.index - 1:
            found[-1] = Span(role.name, last.low, replica.index)
        else:
            found.append(Span(role.name, replica.index, replica.index))
    return tuple(found)
