"""Folders that were listed, looked at again: files that came since, each once (`rescan`).

Which files are known is the ledger's word, told by their paths. A look goes through the folders
whose time for late files is not over, in order, up to where the listing stands; what lies behind
that is the listing's own.
"""

from collections.abc import Callable, Iterator

from msgspec import Struct

from primusd.datafeed.ledger.listed import ChangedFile, Units
from primusd.datafeed.ledger.rescans import CHANGED_MAX
from primusd.datafeed.protocol import Unit
from primusd.datafeed.sources.files import NotThereError
from primusd.datafeed.sources.seen import Seen, key_of
from primusd.datafeed.sources.visits import Visit, Visits


class Asked(Struct, frozen=True):
    """A look that is due."""

    ended_for_ms: int
    """So long before all was listed for the first time; 0 it was not yet."""
    changed: tuple[ChangedFile, ...] = ()
    """What was told already."""


class Rescans:
    """Looks of one listing.

    Attributes:
        seen: The units that are known.
        changed: Files found that are not what they were, and were not told before.
    """

    def __init__(self, visits: Visits, clock_ms: Callable[[], int]) -> None:
        self._visits = visits
        self._clock_ms = clock_ms
        self.seen = Seen()
        self.changed: list[ChangedFile] = []

    def frontier(self, known: Units) -> Visit | None:
        """Return the last visit of which a unit is known; None when none is."""
        self.seen.take_in(known)
        left = set(self.seen.furthest)
        for visit in self._visits if left else ():
            left.discard(visit.part)
            if not left:
                return visit
        return None

    def is_over(self, asked: Asked) -> bool:
        """Return whether nothing is looked at again any more; all of it was listed."""
        return not any(self._is_open(visit, asked) for visit in self._visits)

    def fresh(self, units: list[Unit]) -> list[Unit]:
        """Return those of a folder's units that are not known."""
        return list(self._fresh(units, None))

    def look(self, known: Units, asked: Asked, *, is_exhausted: bool) -> Iterator[list[Unit]]:
        """Yield files that came late, folder by folder.

        Args:
            known: Units that are known.
            asked: What is due.
            is_exhausted: All was listed, so nothing is left to the listing.

        Raises:
            ListingError: A folder cannot be listed.
        """
        frontier = self.frontier(known)
        if frontier is None and not is_exhausted:
            return
        told = {one.unit: one for one in asked.changed}
        for visit in self._visits:
            if self._is_open(visit, asked):
                is_last = visit == frontier and not is_exhausted
                end = self.seen.furthest[visit.part] if is_last else ""
                for units in self._listed(visit, end):
                    yield list(self._fresh(units, told))
            if visit == frontier and not is_exhausted:
                return

    def _is_open(self, visit: Visit, asked: Asked) -> bool:
        """Return whether a visit is made again: until one look after its time for late files."""
        source = visit.source
        if not source.rescan_ms:
            return False
        most_ms = source.rescan_for_ms + source.rescan_ms
        if visit.moment is not None:
            return self._clock_ms() < visit.due_ms + most_ms
        return not source.rescan_for_ms or asked.ended_for_ms < most_ms

    def _listed(self, visit: Visit, end: str) -> Iterator[list[Unit]]:
        """Yield what lies there now, folder by folder.

        Args:
            visit: What is looked at.
            end: Without times: the last path that is looked at; "" all are.
        """
        if visit.moment is not None:
            yield list(self._visits.whole(visit).units)
            return
        files = self._visits.files(visit)
        if visit.source.markers and files.has_markers(visit.source.markers):
            return
        try:
            for units in files.parts():
                within = [one for one in units if not end or one.location <= end]
                yield within
                if len(within) < len(units):
                    return
        except NotThereError:
            return

    def _fresh(self, units: list[Unit], told: dict[int, ChangedFile] | None) -> Iterator[Unit]:
        if not units:
            return
        known = {unit.location: (number, unit) for number, unit in self.seen.of(key_of(units[0]))}
        for unit in units:
            if unit.location not in known:
                yield unit
            elif told is not None:
                self._compare(unit, *known[unit.location], told)

    def _compare(self, unit: Unit, number: int, before: Unit, told: dict[int, ChangedFile]) -> None:
        """Note a file that is not what it was when it was listed, or told last."""
        now = (unit.byte_count, unit.pin)
        last = told.get(number)
        was = (before.byte_count, before.pin) if last is None else (last.byte_count, last.pin)
        is_new = last is not None or len(told) < CHANGED_MAX
        if now != was and is_new:
            told[number] = ChangedFile(number, *now)
            self.changed.append(told[number])
