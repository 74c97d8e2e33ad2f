"""In which order units are handed out: as listed or permuted, in one track or several. Pure.

A *rank* is a unit's place in the order of an epoch: its number, or, shuffled, its place in a
permutation made from (seed, epoch) of each window. A window is what was listed before the first
of it was handed out; what is listed later makes the next one. A *track* is a source where sources
are mixed, a lane in strict order; each has a cursor of its own, so one is far where another is not.
"""

from bisect import bisect_right

from msgspec import Struct

from primusd.datafeed.keyed import Permutation, key_of
from primusd.datafeed.ledger.listed import Units
from primusd.datafeed.ledger.model import EpochState, Stream
from primusd.job.spec import StreamSpec

MIXED = ("roundRobin", "weighted", "priority")


class Tracks(Struct, frozen=True):
    """The order of a stream's units, as far as they are listed."""

    spec: StreamSpec
    units: Units
    windows: tuple[int, ...]
    """Numbers at which windows of a shuffled stream end."""
    is_listed: bool

    @property
    def is_plain(self) -> bool:
        """Whether units are handed out as they are listed, in one track."""
        return self.spec.shuffle is None and self.count == 1

    @property
    def is_strict(self) -> bool:
        """Whether the tracks are lanes."""
        return self.spec.order == "strict"

    @property
    def count(self) -> int:
        """How many tracks there are."""
        if self.is_strict:
            # Of fewer units than lanes each is a lane: the others would never have anything.
            return max(1, min(self.spec.lanes, len(self.units))) if self.is_listed else 1
        return len(self.spec.sources) if self.spec.mixing in MIXED else 1

    @property
    def end(self) -> int:
        """The rank behind the last unit that may be handed out by now."""
        return len(self.units) if self.is_listed or not self.is_strict else 0

    def unit_at(self, epoch: int, rank: int) -> int:
        """Return the unit of a rank."""
        if self.spec.shuffle is None:
            return rank
        start, order = self._window(epoch, rank)
        return start + order.at(rank - start)

    def rank_of(self, epoch: int, number: int) -> int:
        """Return the rank of a unit."""
        if self.spec.shuffle is None:
            return number
        start, order = self._window(epoch, number)
        return start + order.place(number - start)

    def track_of(self, epoch: int, number: int) -> int:
        """Return the track of a unit."""
        if self.is_strict:
            return self.rank_of(epoch, number) % self.count
        if self.spec.mixing in MIXED:
            source = int(self.units[number].unit.options.get("source", "0"))
            return min(source, self.count - 1)
        return 0

    def _window(self, epoch: int, place: int) -> tuple[int, Permutation]:
        assert self.spec.shuffle is not None
        number = bisect_right(self.windows, place)
        start = self.windows[number - 1] if number else 0
        end = self.windows[number] if number < len(self.windows) else len(self.units)
        key = key_of(self.spec.shuffle.seed, epoch, self.spec.name, start)
        return start, Permutation(end - start, key)


def tracks_of(stream: Stream) -> Tracks:
    """Return the order of a stream's units."""
    return Tracks(stream.spec, stream.units, stream.windows, stream.is_listed)


def cursors_of(epoch: EpochState) -> tuple[int, ...]:
    """Return the rank up to which units of each track were handed out whole at least once."""
    return (epoch.next_unit, *epoch.cursors)


def is_passed(tracks: Tracks, epoch: EpochState, number: int) -> bool:
    """Return whether a unit was handed out whole at least once."""
    if tracks.is_plain:
        return number < epoch.next_unit
    track = tracks.track_of(epoch.number, number)
    cursors = cursors_of(epoch)
    cursor = cursors[track] if track < len(cursors) else 0
    return tracks.rank_of(epoch.number, number) < cursor


def may_wait(tracks: Tracks, epoch: EpochState) -> bool:
    """Return whether something waits in an epoch."""
    if epoch.reopened or epoch.next_unit < tracks.end:
        return True
    if tracks.is_plain:
        return False
    others = epoch.cursors
    return len(others) + 1 < tracks.count or any(one < tracks.end for one in others)
