"""Replicas in chunks of 100: how one or many of them change, and how those with work are found.

A role never walks its replicas to decide: it reads the sums of the chunks' counts and their
earliest times, and opens only chunks that have something due.
"""

from collections.abc import Callable, Iterable, Iterator

from msgspec.structs import replace

from primusd.job.counts import (
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

NO_COUNTS = (0,) * len(Count)
NOBODY = Replica(-1)
"""What is counted nowhere."""


def _kept(replica: Replica, rules: RoleRules) -> Replica:
    """Return the replica with its two times and its marks right."""
    due_ms, begin_ms = due_of(replica, rules), begins_at(replica, rules)
    marks = marks_of(replica, rules)
    if due_ms == replica.due_ms and begin_ms == replica.begin_ms and marks == replica.marks:
        return replica
    return replace(replica, due_ms=due_ms, begin_ms=begin_ms, marks=marks)


def _earliest(times: Iterable[int]) -> int:
    return min((one for one in times if one), default=0)


def _chunk(replicas: Iterable[Replica], rules: RoleRules) -> Chunk:
    """Return a chunk counted from nothing."""
    kept = tuple(_kept(one, rules) for one in replicas)
    counts = list(NO_COUNTS)
    wanted = 0
    for bit, replica in enumerate(kept):
        _count(counts, NOBODY, replica)
        if _is_wanted(replica, rules):
            wanted |= 1 << bit
    return Chunk(
        kept,
        tuple(counts),
        _earliest([one.due_ms for one in kept]),
        _earliest([one.begin_ms for one in kept]),
        wanted,
    )


def _is_wanted(replica: Replica, rules: RoleRules) -> bool:
    return replica.phase in WANTING and replica.index < rules.size


def _count(counts: list[int], old: Replica, new: Replica) -> None:
    """Move counts from what a replica was to what it is."""
    changed = old.marks ^ new.marks
    while changed:
        bit = changed & -changed
        counts[bit.bit_length() - 1] += 1 if new.marks & bit else -1
        changed ^= bit
    counts[Count.NOT_GONE] += not_gone_of(new) - not_gone_of(old)
    counts[Count.ATTEMPTS] += new.last_number - old.last_number


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
        deadline_ms=_earliest([one.deadline_ms for one in chunks]),
        begin_ms=_earliest([one.begin_ms for one in chunks]),
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


def put(role: RoleState, rules: RoleRules, changed: dict[int, Replica]) -> RoleState:
    """Return the role with these replicas in place of those of the same index."""
    by_chunk: dict[int, dict[int, Replica]] = {}
    for index, replica in changed.items():
        number, offset = divmod(index, CHUNK_REPLICAS)
        by_chunk.setdefault(number, {})[offset] = replica
    chunks = list(role.chunks)
    sums = list(role.counts)
    for number, ones in by_chunk.items():
        chunks[number] = _put_in_chunk(chunks[number], rules, ones, sums)
    after = tuple(chunks)
    return replace(
        role,
        chunks=after,
        counts=tuple(sums),
        deadline_ms=role.deadline_ms
        if all(after[one].deadline_ms == role.chunks[one].deadline_ms for one in by_chunk)
        else _earliest([one.deadline_ms for one in after]),
        begin_ms=role.begin_ms
        if all(after[one].begin_ms == role.chunks[one].begin_ms for one in by_chunk)
        else _earliest([one.begin_ms for one in after]),
        wanted=_wanted(role, after, by_chunk),
    )


def _put_in_chunk(
    chunk: Chunk, rules: RoleRules, changed: dict[int, Replica], sums: list[int]
) -> Chunk:
    """Return the chunk with the replicas at these offsets, and move `sums` along."""
    replicas = list(chunk.replicas)
    counts = list(chunk.counts)
    wanted = chunk.wanted
    has_new_due = has_new_begin = False
    for offset, replica in changed.items():
        old = replicas[offset]
        new = replicas[offset] = _kept(replica, rules)
        _count(counts, old, new)
        has_new_due |= new.due_ms != old.due_ms
        has_new_begin |= new.begin_ms != old.begin_ms
        bit = 1 << offset
        wanted = wanted | bit if _is_wanted(new, rules) else wanted & ~bit
    for position, (before, after) in enumerate(zip(chunk.counts, counts, strict=True)):
        if before != after:
            sums[position] += after - before
    return Chunk(
        tuple(replicas),
        tuple(counts),
        _earliest([one.due_ms for one in replicas]) if has_new_due else chunk.deadline_ms,
        _earliest([one.begin_ms for one in replicas]) if has_new_begin else chunk.begin_ms,
        wanted,
    )


def _wanted(role: RoleState, chunks: tuple[Chunk, ...], changed: Iterable[int]) -> tuple[Span, ...]:
    """Return what the demand names from now on; the same object when nothing is worth telling."""
    if all(chunks[number].wanted == role.chunks[number].wanted for number in changed):
        return role.wanted
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


def find(role: RoleState, count: Count) -> Iterator[Replica]:
    """Yield the replicas that are counted at a position, in the order of their indices."""
    if role.counts[count]:
        bit = 1 << count
        for chunk in role.chunks:
            if chunk.counts[count]:
                yield from (one for one in chunk.replicas if one.marks & bit)


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
