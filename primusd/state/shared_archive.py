"""History in a place that all heads reach: whoever leads adds to it, and each reads all of it.

Nothing can be appended to an object, and two heads must never write one file: one that is not the
leader any more, and does not know it, may be archiving still. So a head writes segments of its own:
runs of entries without a gap, each written whole again as it grows, until it is large, old or of
another day. A name tells day, first revision and who wrote it: `entries/2026-01-02/000000184467-
1f3a9c02.zst`. Entries that two heads archived are the same, and are read once.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import structlog
from msgspec import Struct

from primusd.records import Entry, job_of
from primusd.state.archive import ArchivedEntry, day_of, entries_in, frame_of
from primusd.state.bases import Base, Parts, base_name, base_named, due, packed
from primusd.state.places import Item, Place, PlaceError

log = structlog.get_logger()

ENTRIES, BASES = "entries", "bases"
SUFFIX = ".zst"
SEGMENT_BYTES_MAX = 4 << 20
"""What is written again for each few entries, at most."""
SEGMENT_MS_MAX = 3_600_000
UNWRITTEN_MAX = 16
"""Segments that wait for the place to be there again; the oldest are lost beyond that."""
HOME_LETTERS = 8


class Segment(Struct, frozen=True):
    """A file of it."""

    name: str
    first: int
    """Revision."""
    home: str
    byte_count: int = 0


class _Growing:
    """The segment that is being written."""

    def __init__(self, name: str, first: ArchivedEntry, day: str) -> None:
        self.name = name
        self.day = day
        self.begun_ms = first.at_ms
        self.last = first.revision - 1
        self.data = b""

    def takes(self, entry: ArchivedEntry) -> bool:
        """Return whether an entry belongs to it."""
        return (
            entry.revision == self.last + 1
            and day_of(entry.at_ms) == self.day
            and entry.at_ms - self.begun_ms < SEGMENT_MS_MAX
            and len(self.data) < SEGMENT_BYTES_MAX
        )


class SharedArchive:
    """Segments of all heads; see archive.History. Its methods block."""

    def __init__(self, place: Place, *, home: str) -> None:
        """Name it; nothing is asked yet.

        Args:
            place: Where it lies.
            home: Of this head's state directory.
        """
        self._place = place
        self._home = home[:HOME_LETTERS]
        self._growing: _Growing | None = None
        self._unwritten: dict[str, bytes] = {}
        self._bases: tuple[Base, ...] | None = None

    def append(self, entries: Sequence[ArchivedEntry]) -> None:
        """Add entries; see History.append. What cannot be written now is tried again later."""
        if self._growing is not None:
            last = self._growing.last
            # A write of the journal failed after they had been archived, and comes again.
            entries = [one for one in entries if one.revision > last]
        some: list[ArchivedEntry] = []
        for entry in entries:
            growing = self._growing
            if growing is None or not growing.takes(entry):
                self._grow(some)
                some = []
                growing = self._growing = self._begun(entry)
            growing.last = entry.revision
            some.append(entry)
        self._grow(some)
        self._write()

    def read(self, from_revision: int = 0, *, job: str = "", from_ms: int = 0) -> Iterator[Entry]:
        """Yield the entries from a revision on; see History.read."""
        for segment in _needed(self._segments(from_day=day_of(from_ms)), from_revision):
            try:
                data = self._place.read(segment.name)
            except PlaceError as error:
                # It was pruned meanwhile, or cannot be read: whoever reads sees the gap.
                log.warning("archive.segment_unreadable", text=error.strerror)
                continue
            for entry in entries_in(data, from_revision):
                from_revision = entry.revision + 1
                if not job or any(job_of(one.machine) == job for one in entry.records):
                    yield entry

    def prune(self, *, now_ms: int, keep_ms: int, bytes_max: int) -> tuple[Path, ...]:
        """Remove the oldest segments that are too old or too much, never today's."""
        today, oldest_day = day_of(now_ms), day_of(now_ms - keep_ms)
        known = self._segments()
        byte_count = sum(one.byte_count for one in known)
        removed: list[Path] = []
        # Older days first; of one day all go.
        for segment in sorted(known, key=lambda one: one.name):
            day = _day(segment.name)
            if day == today or (day >= oldest_day and byte_count <= bytes_max):
                break
            byte_count -= segment.byte_count
            self._place.remove(segment.name)
            removed.append(Path(segment.name))
        if removed:
            kept = [_day(one.name) for one in known if Path(one.name) not in removed]
            for base in self.bases():
                if kept and base.day < min(kept):
                    self._place.remove(str(base.path))
            self._bases = None
        return tuple(removed)

    def bases(self) -> tuple[Base, ...]:
        """Return all bases; see History.bases."""
        found = []
        for item in self._place.items(BASES):
            name = f"{BASES}/{item.name}"
            base = base_named(Path(name), partial(self._place.read, name))
            if base is not None:
                found.append(base)
        return tuple(sorted(found, key=lambda one: one.revision))

    def wants_base(self, *, revision: int, at_ms: int) -> str:
        """Return which base is worth keeping now, see `bases.due`."""
        if self._bases is None:
            self._bases = self.bases()
        return due(self._bases, revision=revision, at_ms=at_ms, day=day_of(at_ms))

    def keep_base(self, parts: Parts, *, kind: str, revision: int, at_ms: int) -> None:
        """Keep snapshots for replays; see History.keep_base."""
        name = base_name(kind=kind, revision=revision, at_ms=at_ms, day=day_of(at_ms))
        self._place.write(f"{BASES}/{name}", packed(parts))
        self._bases = None

    def _begun(self, entry: ArchivedEntry) -> _Growing:
        day = day_of(entry.at_ms)
        name = f"{ENTRIES}/{day}/{entry.revision:012d}-{self._home}{SUFFIX}"
        return _Growing(name, entry, day)

    def _grow(self, some: Sequence[ArchivedEntry]) -> None:
        if some:
            assert self._growing is not None
            self._growing.data += frame_of(some)
            self._unwritten[self._growing.name] = self._growing.data

    def _write(self) -> None:
        """Write what is not written yet, the oldest first.

        Raises:
            PlaceError: The place does not take it.
        """
        while len(self._unwritten) > UNWRITTEN_MAX:
            lost = next(iter(self._unwritten))
            del self._unwritten[lost]
            log.warning("archive.segment_lost", name=lost)
        for name, data in tuple(self._unwritten.items()):
            self._place.write(name, data)
            del self._unwritten[name]

    def _segments(self, from_day: str = "") -> list[Segment]:
        """Return the segments of a day and later ones, by their first revision."""
        found = []
        for day in self._place.folders(ENTRIES):
            if day >= from_day:
                folder = f"{ENTRIES}/{day}"
                found += [
                    one for item in self._place.items(folder) if (one := _segment(folder, item))
                ]
        return sorted(found, key=lambda one: (one.first, one.home))


def _segment(folder: str, item: Item) -> Segment | None:
    first, _, home = item.name.removesuffix(SUFFIX).partition("-")
    if not item.name.endswith(SUFFIX) or not first.isdecimal():
        return None
    return Segment(f"{folder}/{item.name}", int(first), home, item.byte_count)


def _day(name: str) -> str:
    return name.split("/")[1]


def _needed(segments: Sequence[Segment], from_revision: int) -> list[Segment]:
    """Return the segments that may have entries from a revision on.

    A head's segments follow on each other: what its next one begins with, this one does not have.
    """
    needed: list[Segment] = []
    later: dict[str, int] = {}
    for segment in reversed(segments):
        if later.get(segment.home, from_revision + 1) > from_revision:
            needed.append(segment)
        later[segment.home] = segment.first
    return needed[::-1]
