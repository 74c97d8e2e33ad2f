"""Invariants 7 to 9 of a stream (docs/state-machines.md §12), checked after each step in tests."""

from collections.abc import Iterator

from primusd.datafeed.ledger.accounts import verify
from primusd.datafeed.ledger.model import Stream, can_grow, size_of


def broken(stream: Stream, before: Stream | None = None) -> tuple[str, ...]:
    """Return what does not hold, one sentence each.

    Args:
        stream: The stream now.
        before: The same one earlier, for what may only grow.
    """
    found = [*_accounts(stream), *_counters(stream)]
    if before is not None:
        found += _falls(before, stream)
    return tuple(found)


def _accounts(stream: Stream) -> Iterator[str]:
    proof = verify(stream)
    yield from (f"gap {one}" for one in proof.gaps)
    yield from (f"twice {one}" for one in proof.overlaps)
    if proof.text:
        yield proof.text
    waiting = [one for one in stream.epochs if one.consumed < 0 or one.skipped < 0]
    yield from (f"epoch {one.number} has negative counters" for one in waiting)


def _counters(stream: Stream) -> Iterator[str]:
    readers = stream.readers.values()
    leases = [lease for reader in readers for lease in reader.leases]
    tokens = [lease.token for lease in leases]
    pairs = {
        "readers": (stream.reader_count, len(readers)),
        "idle readers": (stream.idle_count, sum(not reader.leases for reader in readers)),
        "leases": (stream.lease_count, len(leases)),
        "trims": (stream.trim_count, sum(lease.trim >= 0 for lease in leases)),
        "opened readers": (
            stream.opened_count,
            sum(reader.has_opened and not reader.is_lost for reader in readers),
        ),
        "awaited readers": (stream.awaited_count, sum(reader.is_missed for reader in readers)),
        "different tokens": (len(set(tokens)), len(tokens)),
        "tokens up to the last": (sum(one <= stream.last_token for one in tokens), len(tokens)),
    }
    yield from (f"{a} {name}, {b} counted" for name, (a, b) in pairs.items() if a != b)
    for name, queue, has_leases in (
        ("hungry", stream.hungry, False),
        ("greedy", stream.greedy, True),
    ):
        should = {one.attempt for one in readers if one.want > 0 and bool(one.leases) == has_leases}
        members = list(queue)
        if set(members) != should or len(members) != len(should) or queue.count != len(should):
            yield f"{name} are {members}, should be {should}"
    for lease in leases:
        if not lease.lo <= lease.position <= lease.hi:
            yield f"a position outside its lease: {lease}"


def _falls(before: Stream, after: Stream) -> Iterator[str]:
    if after.last_token < before.last_token:
        yield "the last token fell"
    for number, entry in enumerate(before.units):
        if can_grow(entry.unit) and size_of(after, number) < size_of(before, number):
            yield f"{entry.unit.location} ends earlier than it did"
    if after.generation != before.generation:
        return
    if after.consumed < before.consumed:
        yield f"{before.consumed - after.consumed} positions are no longer taken"
    earlier = before.leases
    for token, lease in after.leases.items():
        if token in earlier and lease.position < earlier[token].position:
            yield f"the position of lease {token} fell"
