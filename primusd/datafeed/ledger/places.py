"""Where the partitions of a stream are: what is done of each, and how far its end is away."""

from collections.abc import Iterator

from msgspec import Struct

from primusd.datafeed.ledger.model import (
    EpochState,
    LeaseState,
    Range,
    Stream,
    UnitState,
    can_grow,
    size_of,
)
from primusd.datafeed.ledger.ranges import total, union
from primusd.datafeed.ledger.shards import find
from primusd.datafeed.ledger.tasks import dead_ranges


class PartitionPlace(Struct, frozen=True):
    """A partition, in the oldest epoch that is open."""

    unit: int
    source: int
    location: str
    """`topic/partition`."""
    first: int
    end: int
    low: int
    """All below is done, or left out: the offset that a consumer group would have committed."""
    lag: int
    """Offsets up to the end that nobody has acknowledged."""

    @property
    def passed(self) -> int:
        """Offsets that are done or left out."""
        return self.end - self.first - self.lag


def partition_places(stream: Stream) -> Iterator[PartitionPlace]:
    """Yield the partitions of a stream, in order of their units."""
    leases: dict[int, list[LeaseState]] = {}
    epoch = stream.epochs[0] if stream.epochs else None
    for lease in stream.leases.values():
        if epoch is not None and lease.epoch == epoch.number:
            leases.setdefault(lease.unit, []).append(lease)
    for number, entry in enumerate(stream.units):
        if can_grow(entry.unit):
            end = size_of(stream, number)
            passed = _passed(stream, epoch, number, leases.get(number, []), end)
            low = passed[0].hi if passed and passed[0].lo <= entry.first else entry.first
            source = int(entry.unit.options["source"])
            lag = end - entry.first - total(passed)
            yield PartitionPlace(
                number, source, entry.unit.location, entry.first, end, low, max(0, lag)
            )


def _passed(
    stream: Stream, epoch: EpochState | None, number: int, leases: list[LeaseState], end: int
) -> tuple[Range, ...]:
    first = stream.units[number].first
    if epoch is None:
        # All epochs ended: every partition was read to its end.
        return (Range(first, end),) if end > first else ()
    state = find(epoch.unit_shards, number, number) or UnitState(first)
    taken = (Range(one.lo, one.position) for one in leases)
    return union((*state.done, *dead_ranges(state), *taken))
