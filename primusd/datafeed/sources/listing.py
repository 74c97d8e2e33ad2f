"""A stream's sources listed piece by piece, no further than somebody asks.

The order is that of `visits.py`. After a restart a listing goes on at the last unit that is known:
its folder is listed again and tells what is new in it; folders before it are closed, but for looks
that their sources ask for (`rescanning.py`).
"""

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future

from msgspec import Struct

from primusd.datafeed.ledger.events import Scan
from primusd.datafeed.ledger.listed import UnitEntry, Units
from primusd.datafeed.ledger.model import Stream, can_grow
from primusd.datafeed.ledger.rescans import every_ms
from primusd.datafeed.protocol import Unit
from primusd.datafeed.sources.files import ListingError, NotThereError
from primusd.datafeed.sources.rescanning import Asked, Rescans
from primusd.datafeed.sources.seen import key_of
from primusd.datafeed.sources.visits import Found, Visit, Visits
from primusd.datafeed.storage.pool import Pool, answer
from primusd.job.spec import StreamSpec

PIECE_UNITS = 1_000
"""So that a piece's entry in the journal stays small: a unit takes about 150 bytes."""
PIECE_S = 0.2
"""A piece with a unit in it is not held back longer for more."""
FOLDERS_AHEAD = 16
NONE = Units()
LISTINGS_MAX = 1_000
"""That are kept between two pieces; one that was dropped begins anew at the last known unit."""
# Of its own: what runs in it waits for what runs in the storages' pool.
_FOLDERS = Pool(FOLDERS_AHEAD)


class Piece(Struct, frozen=True):
    """What comes next of a listing."""

    units: tuple[Unit, ...]
    is_complete: bool = False
    missing: tuple[str, ...] = ()
    """Folders that were passed over: they did not come in time."""
    scan: Scan | None = None
    """Of a look at what was listed before, which `units` came late of."""


class WaitingError(ListingError):
    """Something is not there yet, and is waited for."""

    def __init__(self, text: str) -> None:
        super().__init__(text, permanent=False)


class Listing:
    """Goes through the sources of one stream; used by one thread at a time."""

    def __init__(
        self,
        spec: StreamSpec,
        known: Units = NONE,
        *,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """Begin behind the units that are known; nothing is looked at yet.

        Args:
            spec: Of the stream.
            known: Its files so far, in order.
            clock_ms: Milliseconds since the Unix epoch.
        """
        self._visits = Visits(spec, clock_ms)
        self._clock_ms = clock_ms
        self._known = known
        self._rescans = Rescans(self._visits, clock_ms) if every_ms(spec) else None
        self._look: Iterator[list[Unit]] | None = None
        self._is_exhausted = False
        self._last: tuple[int, Piece] = (-1, Piece(()))
        self._coming: Iterator[list[Unit] | str] | None = None
        self._units: deque[Unit] = deque()
        self._missing: list[str] = []
        self._told_missing = 0
        self._failure: ListingError | None = None

    def is_at(self, count: int) -> bool:
        """Return whether it can tell what follows so many units."""
        return count in (len(self._known), self._last[0])

    def share(self, known: Units) -> None:
        """Take units that are the same as the own ones; those that were read take less memory."""
        if len(known) == len(self._known):
            self._known = known

    def piece(self, count: int, asked: Asked | None = None) -> Piece:
        """Return what follows so many units; the same again when it is asked again.

        Args:
            count: Units that are known.
            asked: A look at what was listed before is due; None: none is.

        Raises:
            ListingError: What comes next cannot be listed, or is waited for.
        """
        if count == self._last[0]:
            return self._last[1]
        may_look = self._look is not None or not (self._units or self._failure)
        if self._rescans is not None and asked is not None and may_look:
            return self._told(count, self._late(self._rescans, asked))
        is_complete = self._collect()
        is_news = bool(self._units) or len(self._missing) > self._told_missing
        if self._failure is not None and not is_news:
            failure, self._failure = self._failure, None
            raise failure
        units = self._taken()
        piece = Piece(units, is_complete and not self._units, tuple(self._missing))
        self._told_missing = len(self._missing)
        if units:
            # What was missing is told with each piece until one moves the count: none gets lost.
            self._missing, self._told_missing = [], 0
        return self._told(count, self._at_end(piece))

    def _taken(self) -> tuple[Unit, ...]:
        first = min(PIECE_UNITS, len(self._units))
        return tuple(self._units.popleft() for _ in range(first))

    def _told(self, count: int, piece: Piece) -> Piece:
        """Return a piece, which is known from now on."""
        if piece.units:
            self._last = (count, piece)
            self._known = self._known.with_more(UnitEntry(unit, -1) for unit in piece.units)
        return piece

    def _at_end(self, piece: Piece) -> Piece:
        """Return a piece of the listing: at its end something may come late."""
        if not piece.is_complete or self._rescans is None:
            return piece
        self._is_exhausted = True
        if self._rescans.is_over(Asked(0)):
            return piece
        # Units in it are not late ones: the end comes with the next piece.
        scan = None if piece.units else Scan(has_ended=False, is_at_end=True)
        return Piece(piece.units, missing=piece.missing, scan=scan)

    def _late(self, rescans: Rescans, asked: Asked) -> Piece:
        """Return the next files that came late."""
        if self._look is None:
            is_exhausted = self._is_exhausted
            self._look = rescans.look(self._known, asked, is_exhausted=is_exhausted)
        has_ended = not self._units and self._has_looked(self._look)
        units = self._taken()
        has_ended = has_ended and not self._units
        changed = tuple(rescans.changed)
        rescans.changed = []
        if has_ended:
            self._look = None
        is_at_end = has_ended and self._is_exhausted
        scan = Scan(has_ended, is_at_end, changed)
        return Piece(units, is_at_end and rescans.is_over(asked), scan=scan)

    def _has_looked(self, look: Iterator[list[Unit]]) -> bool:
        """Take in what came late, up to a piece; return whether that was all."""
        end = time.monotonic() + PIECE_S
        try:
            while len(self._units) < PIECE_UNITS:
                found = next(look, None)
                if found is None:
                    return True
                self._units.extend(found)
                if self._units and time.monotonic() >= end:
                    break
        except ListingError:
            # All of it is looked at anew.
            self._look = None
            self._units.clear()
            raise
        return False

    def _collect(self) -> bool:
        """Take in what is next, up to a piece; return whether nothing follows."""
        if self._failure is not None:
            return False
        if self._coming is None:
            self._coming = self._found()
        end = time.monotonic() + PIECE_S
        try:
            while len(self._units) < PIECE_UNITS:
                found = next(self._coming, None)
                if found is None:
                    return True
                if isinstance(found, str):
                    self._missing.append(found)
                else:
                    self._units.extend(found)
                if (self._units or self._missing) and time.monotonic() >= end:
                    break
        except ListingError as error:
            # Begun anew behind what is known by then.
            self._coming, self._failure = None, error
        return False

    def _found(self) -> Iterator[list[Unit] | str]:
        """Yield units folder by folder, or the name of one that is passed over."""
        visits = iter(self._visits)
        if self._rescans is not None and (last := self._rescans.frontier(self._known)) is not None:
            visit = next(visit for visit in visits if visit == last)
            after = self._rescans.seen.furthest[visit.part] if visit.moment is None else ""
            for found in self._list(visit, after=after):
                yield self._rescans.fresh(found)
        elif run := _last_run(self._known):
            visit = _visit_of(run[-1], visits)
            after = run[-1].location if visit.moment is None else ""
            for found in self._list(visit, after=after):
                yield _fresh(found, run)
        for visit in visits:
            if visit.moment is not None:
                yield from self._by_moment(visit, visits)
                return
            yield from self._list(visit)

    def _list(self, visit: Visit, *, after: str = "") -> Iterator[list[Unit]]:
        """Yield the units of a source without times, folder by folder."""
        if visit.moment is not None:
            yield list(self._visits.whole(visit).units)
            return
        files = self._visits.files(visit)
        if visit.source.markers and (lacks := files.has_markers(visit.source.markers)):
            self._judge(visit, f"{lacks} is not there")
        try:
            yield from files.parts(after=after)
        except NotThereError as error:
            if visit.source.missing != "wait":
                raise NotThereError(f"{error.message}; missing: wait waits for it") from error
            self._judge(visit, error.message)

    def _by_moment(self, first: Visit, visits: Iterator[Visit]) -> Iterator[list[Unit] | str]:
        """Yield the units of folders by time; the further it goes, the more of them at once."""
        coming: deque[tuple[Visit, Future[Found]]] = deque([(first, self._begin(first))])
        ahead = 1
        while coming:
            visit, future = coming[0]
            found = answer(future)
            if found.lacks:
                yield self._judge(visit, found.lacks)
            else:
                yield list(found.units)
            coming.popleft()
            ahead = min(ahead * 2, FOLDERS_AHEAD)
            while len(coming) < ahead and (visit_after := next(visits, None)) is not None:
                coming.append((visit_after, self._begin(visit_after)))

    def _begin(self, visit: Visit) -> Future[Found]:
        return _FOLDERS.submit(self._visits.whole, visit)

    def _judge(self, visit: Visit, lacks: str) -> str:
        """Return that a folder is passed over.

        Raises:
            ListingError: It is waited for, or that it is missing is a fault.
        """
        now_ms = self._clock_ms()
        if visit.source.missing == "wait" or now_ms < visit.due_ms:
            raise WaitingError(f"waits: {lacks}")
        if visit.source.missing == "fail":
            raise ListingError(
                f"{lacks}; missing: wait waits for it, missing: skip after 6h passes over it"
            )
        if now_ms < visit.due_ms + visit.source.skip_after_ms:
            raise WaitingError(f"waits, and then passes over it: {lacks}")
        return lacks


class Listings:
    """The listings under way, each by the name of its stream's machine."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, Listing] = OrderedDict()
        self._lock = threading.Lock()

    def piece(self, stream: Stream) -> Piece:
        """Return what follows the units that a stream knows. Blocks.

        Raises:
            ListingError: As `Listing.piece`.
        """
        machine = f"{stream.job}/{stream.name}"
        files = _files_of(stream.units)
        with self._lock:
            found = self._open.pop(machine, None)
        if found is None or not found.is_at(len(files)):
            found = Listing(stream.spec, files)
        found.share(files)
        piece = found.piece(len(files), asked_of(stream))
        if not piece.is_complete:
            with self._lock:
                self._open[machine] = found
                if len(self._open) > LISTINGS_MAX:
                    self._open.popitem(last=False)
        return piece


def asked_of(stream: Stream) -> Asked | None:
    """Return the look that is due, None when none is."""
    scanning = stream.scanning
    if not scanning.due_ms:
        return None
    ended_for_ms = scanning.due_ms - scanning.ended_ms if scanning.ended_ms else 0
    return Asked(ended_for_ms, scanning.changed)


def _files_of(known: Units) -> Units:
    """Return the units that are files; partitions come behind them."""
    count = len(known.tail)
    while count and can_grow(known.tail[count - 1].unit):
        count -= 1
    return known if count == len(known.tail) else Units(known.packs, known.tail[:count])


def _last_run(known: Units) -> tuple[Unit, ...]:
    """Return the units at the end that lie in one folder of one source, and the one before them."""
    if not known:
        return ()
    key = key_of(known[-1].unit)
    first = len(known)
    while first and key_of(known[first - 1].unit) == key:
        first -= 1
    return tuple(known[number].unit for number in range(max(0, first - 1), len(known)))


def _visit_of(unit: Unit, visits: Iterator[Visit]) -> Visit:
    """Return the visit that a unit is of, and leave those after it in the iterator."""
    part = key_of(unit)[:2]
    for visit in visits:
        if visit.part == part:
            return visit
    raise ListingError(f"{unit.location} is of none of the stream's sources")


def _fresh(units: list[Unit], run: tuple[Unit, ...]) -> list[Unit]:
    """Return those behind the last run of known units, and those that are new between them."""
    told = {unit.location for unit in run}
    last, key = run[-1], key_of(run[-1])
    if key[1]:
        return [unit for unit in units if unit.location not in told]
    before = run[0]
    is_of_source = key_of(before)[0] == key[0]
    floor = before.location if is_of_source and key_of(before) != key else ""
    return [
        unit
        for unit in units
        if unit.location not in told
        and (unit.location > last.location or (key_of(unit) == key and unit.location > floor))
    ]
