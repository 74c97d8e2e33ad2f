"""The sources of a stream, each with what is done of it; and what was left out, by reason."""

from collections.abc import Mapping, Sequence

from msgspec import UNSET, UnsetType

from primusd.datafeed.ledger.accounts import tasks
from primusd.datafeed.ledger.model import EpochState, Stream, UnitState, size_of
from primusd.datafeed.ledger.places import PartitionPlace
from primusd.datafeed.ledger.ranges import measure, total, union
from primusd.datafeed.ledger.tasks import dead_ranges
from primusd.datafeed.ledger.tracks import Tracks, is_passed, tracks_of
from primusd.job.spec import Source
from primusd.views.feed_documents import LeftOut, SourceStatus
from primusd.views.feed_findings import UNITS_MAX


class _Sum:
    """What is known of one source."""

    def __init__(self) -> None:
        self.units = 0
        self.bytes = 0
        self.done = 0
        self.total = 0
        self.is_known = True
        self.per_s = 0
        self.lag: int | None = None


def source_statuses(
    stream: Stream, places: Sequence[PartitionPlace]
) -> tuple[SourceStatus, ...] | UnsetType:
    """Return the sources of a stream; absent where it is one, or has too many files for that.

    Args:
        stream: Its newest epoch is looked at.
        places: Of its partitions.
    """
    if len(stream.spec.sources) < 2 or len(stream.units) > UNITS_MAX:
        return UNSET
    sums = [_Sum() for _ in stream.spec.sources]
    _add_units(stream, sums)
    _add_rates(stream, sums)
    for place in places:
        one = sums[place.source]
        one.lag = (one.lag or 0) + place.lag
    return tuple(
        _document(number, source, one)
        for number, (source, one) in enumerate(zip(stream.spec.sources, sums, strict=True))
    )


def _add_units(stream: Stream, sums: list[_Sum]) -> None:
    epoch = stream.epochs[0] if stream.epochs else None
    entries = {} if epoch is None else epoch.units
    tracks = tracks_of(stream)
    positions = {
        (lease.unit, lease.lo): lease.position
        for lease in stream.leases.values()
        if epoch is not None and lease.epoch == epoch.number
    }
    for number, entry in enumerate(stream.units):
        one = sums[_source_of(stream, number)]
        one.units += 1
        one.bytes += max(0, entry.unit.byte_count)
        size = size_of(stream, number)
        if size < 0:
            one.is_known = False
        one.total += max(0, size - entry.first)
        one.done += _passed(entries.get(number), epoch, tracks, number, size - entry.first)
        one.done += sum(
            positions.get((number, lease.lo), lease.lo) - lease.lo
            for lease in (entries[number].leased if number in entries else ())
        )


def _passed(
    state: UnitState | None, epoch: EpochState | None, tracks: Tracks, number: int, size: int
) -> int:
    """Return the positions of a unit that are done or left out, leases not among them."""
    if state is not None:
        return total(union((*state.done, *dead_ranges(state))))
    return size if epoch is None or is_passed(tracks, epoch, number) else 0


def _add_rates(stream: Stream, sums: list[_Sum]) -> None:
    """Give each reader's speed to the sources that it holds ranges of."""
    for reader in stream.readers.values():
        for lease in reader.leases:
            sums[_source_of(stream, lease.unit)].per_s += reader.per_s // len(reader.leases)


def _source_of(stream: Stream, number: int) -> int:
    source = int(stream.units[number].unit.options.get("source", "0"))
    return min(source, len(stream.spec.sources) - 1)


def _document(number: int, source: Source, one: _Sum) -> SourceStatus:
    left = one.total - one.done
    return SourceStatus(
        source=number,
        name=source_name(source),
        units=one.units,
        bytes=one.bytes if source.files else UNSET,
        done=one.done,
        total=one.total if one.is_known else UNSET,
        per_second=one.per_s or UNSET,
        eta_ms=max(0, left) * 1000 // one.per_s if one.per_s and one.is_known else UNSET,
        lag=UNSET if one.lag is None else one.lag,
    )


def source_name(source: Source) -> str:
    """Return how people call a source: its files, or its topics."""
    if source.kafka is None:
        return source.files
    return ", ".join(source.kafka.topics)


def left_out(stream: Stream) -> Mapping[str, LeftOut] | UnsetType:
    """Return what is left out, by reason; absent when nothing is."""
    if not stream.skipped:
        return UNSET
    counts: dict[str, tuple[int, int]] = {}
    for one in tasks(stream, "dead"):
        ranges, positions = counts.get(one.kind, (0, 0))
        counts[one.kind] = (ranges + 1, positions + measure(one.lo, one.hi))
    found = {
        kind: LeftOut(ranges=ranges, positions=positions)
        for kind, (ranges, positions) in sorted(counts.items())
    }
    return found or UNSET
