"""A stream's sources listed piece by piece, no further than somebody asks.

Order: sources without times first, one after the other; then those with times by their moments,
where the coarsest step among them leads: with daily and hourly folders in one stream each day
comes whole, in the order of the sources. After a restart a listing goes on at the last unit that is
known: its folder is listed again and tells what is new in it; folders before it are closed.
"""

import posixpath
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future

from msgspec import Struct
from msgspec.structs import replace

from primusd.datafeed.ledger.listed import UnitEntry, Units
from primusd.datafeed.ledger.model import can_grow
from primusd.datafeed.protocol import Unit
from primusd.datafeed.sources.files import Files, ListingError, NotThereError, said_of
from primusd.datafeed.storage.pool import Pool, answer
from primusd.job.partitions import STEPS, Moment, coarse_after, filled, moments, step_of
from primusd.job.spec import Source, StreamSpec
from primusd.units import format_duration

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


class WaitingError(ListingError):
    """Something is not there yet, and is waited for."""

    def __init__(self, text: str) -> None:
        super().__init__(text, permanent=False)


class _Job(Struct, frozen=True):
    """A source, at one of its moments."""

    index: int
    source: Source
    moment: Moment | None = None

    @property
    def due_ms(self) -> int:
        """When it may be listed, in milliseconds since the Unix epoch; 0 at any time."""
        return 0 if self.moment is None else self.moment.ends_ms + self.source.delay_ms


class _Found(Struct, frozen=True):
    units: tuple[Unit, ...] = ()
    lacks: str = ""
    """What is not there; "" the folder is whole."""


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
        self._spec = spec
        self._said = said_of(spec)
        self._clock_ms = clock_ms
        self._known = known
        self._last: tuple[int, Piece] = (-1, Piece(()))
        self._jobs: Iterator[list[Unit] | str] | None = None
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

    def piece(self, count: int) -> Piece:
        """Return what follows so many units; the same again when it is asked again.

        Raises:
            ListingError: What comes next cannot be listed, or is waited for.
        """
        if count == self._last[0]:
            return self._last[1]
        is_complete = self._collect()
        is_news = bool(self._units) or len(self._missing) > self._told_missing
        if self._failure is not None and not is_news:
            failure, self._failure = self._failure, None
            raise failure
        first = min(PIECE_UNITS, len(self._units))
        units = tuple(self._units.popleft() for _ in range(first))
        piece = Piece(units, is_complete and not self._units, tuple(self._missing))
        self._told_missing = len(self._missing)
        if units:
            # What was missing is told with each piece until one moves the count: none gets lost.
            self._missing, self._told_missing = [], 0
            self._last = (count, piece)
            self._known = self._known.with_more(UnitEntry(unit, -1) for unit in units)
        return piece

    def _collect(self) -> bool:
        """Take in what is next, up to a piece; return whether nothing follows."""
        if self._failure is not None:
            return False
        if self._jobs is None:
            self._jobs = self._found()
        end = time.monotonic() + PIECE_S
        try:
            while len(self._units) < PIECE_UNITS:
                found = next(self._jobs, None)
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
            self._jobs, self._failure = None, error
        return False

    def _found(self) -> Iterator[list[Unit] | str]:
        """Yield units folder by folder, or the name of one that is passed over."""
        jobs = self._work()
        if run := _last_run(self._known):
            job = _job_of(run[-1], jobs)
            after = run[-1].location if job.moment is None else ""
            for found in self._list(job, after=after):
                yield _fresh(found, run)
        for job in jobs:
            if job.moment is not None:
                yield from self._by_moment(job, jobs)
                return
            yield from self._list(job)

    def _work(self) -> Iterator[_Job]:
        timed = []
        for index, source in enumerate(self._spec.sources):
            if source.files and source.span is None:
                yield _Job(index, source)
            elif source.files:
                timed.append((index, source))
        yield from _merged(timed)

    def _list(self, job: _Job, *, after: str = "") -> Iterator[list[Unit]]:
        """Yield the units of a source without times, folder by folder."""
        if job.moment is not None:
            yield list(self._whole(job).units)
            return
        files = self._files(job)
        if job.source.markers and (lacks := files.has_markers(job.source.markers)):
            self._judge(job, f"{lacks} is not there")
        try:
            yield from files.parts(after=after)
        except NotThereError as error:
            if job.source.missing != "wait":
                raise
            self._judge(job, error.message)

    def _by_moment(self, first: _Job, jobs: Iterator[_Job]) -> Iterator[list[Unit] | str]:
        """Yield the units of folders by time; the further it goes, the more of them at once."""
        coming: deque[tuple[_Job, Future[_Found]]] = deque([(first, self._begin(first))])
        ahead = 1
        while coming:
            job, future = coming[0]
            found = answer(future)
            if found.lacks:
                yield self._judge(job, found.lacks)
            else:
                yield list(found.units)
            coming.popleft()
            ahead = min(ahead * 2, FOLDERS_AHEAD)
            while len(coming) < ahead and (job_after := next(jobs, None)) is not None:
                coming.append((job_after, self._begin(job_after)))

    def _begin(self, job: _Job) -> Future[_Found]:
        return _FOLDERS.submit(self._whole, job)

    def _whole(self, job: _Job) -> _Found:
        """Return the units of one folder by time, or what it lacks."""
        assert job.moment is not None
        files = self._files(job)
        is_early = self._clock_ms() < job.due_ms
        if is_early and job.source.delay_ms:
            delay = format_duration(job.source.delay_ms)
            return _Found(lacks=f"{files.path} comes {delay} after its time")
        if job.source.markers:
            names = [filled(name, job.moment) for name in job.source.markers]
            if lacks := files.has_markers(names):
                return _Found(lacks=f"{lacks} is not there")
        elif is_early:
            return _Found(lacks=f"{files.path} is not over")
        try:
            return _Found(tuple(unit for part in files.parts() for unit in part))
        except NotThereError as error:
            # A folder that is whole may be empty.
            return _Found() if job.source.markers else _Found(lacks=error.message)

    def _judge(self, job: _Job, lacks: str) -> str:
        """Return that a folder is passed over.

        Raises:
            ListingError: It is waited for, or that it is missing is a fault.
        """
        now_ms = self._clock_ms()
        if job.source.missing == "wait" or now_ms < job.due_ms:
            raise WaitingError(f"waits: {lacks}")
        if job.source.missing == "fail":
            raise ListingError(
                f"{lacks}; missing: wait waits for it, missing: skip after 6h passes over it"
            )
        if now_ms < job.due_ms + job.source.skip_after_ms:
            raise WaitingError(f"waits, and then passes over it: {lacks}")
        return lacks

    def _files(self, job: _Job) -> Files:
        source = job.source
        options = {}
        if len(self._spec.sources) > 1:
            options["source"] = str(job.index)
        if job.moment is not None:
            options["part"] = job.moment.label
            source = replace(source, files=filled(source.files, job.moment))
        return Files(source, self._said, options=options)


class Listings:
    """The listings under way, each by the name of its stream's machine."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, Listing] = OrderedDict()
        self._lock = threading.Lock()

    def piece(self, machine: str, spec: StreamSpec, known: Units) -> Piece:
        """Return what follows the units that are known. Blocks.

        Raises:
            ListingError: As `Listing.piece`.
        """
        files = _files_of(known)
        with self._lock:
            found = self._open.pop(machine, None)
        if found is None or not found.is_at(len(files)):
            found = Listing(spec, files)
        found.share(files)
        piece = found.piece(len(files))
        if not piece.is_complete:
            with self._lock:
                self._open[machine] = found
                if len(self._open) > LISTINGS_MAX:
                    self._open.popitem(last=False)
        return piece


def _merged(sources: Sequence[tuple[int, Source]]) -> Iterator[_Job]:
    """Yield the moments of sources with times: step by step, in each source after source."""
    if not sources:
        return
    lines: list[tuple[int, Source, Iterator[Moment]]] = []
    for index, source in sources:
        span = source.span
        assert span is not None
        step = step_of(source.files)
        lines.append((index, source, moments(span.first, span.last, step, span.zone)))
    lead = min((step_of(source.files) for _, source in sources), key=STEPS.index)
    following = [next(line, None) for _, _, line in lines]
    while any(following):
        now = min(
            coarse_after(one, source.delay_ms, lead)
            for one, (_, source, _) in zip(following, lines, strict=True)
            if one is not None
        )
        for place, (index, source, line) in enumerate(lines):
            while (one := following[place]) is not None and (
                coarse_after(one, source.delay_ms, lead) == now
            ):
                yield _Job(index, source, one)
                following[place] = next(line, None)


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
    key = _key(known[-1].unit)
    first = len(known)
    while first and _key(known[first - 1].unit) == key:
        first -= 1
    return tuple(known[number].unit for number in range(max(0, first - 1), len(known)))


def _key(unit: Unit) -> tuple[str, str, str]:
    options = unit.options
    # Of a moment all folders are one: they are listed together.
    folder = "" if "part" in options else posixpath.dirname(unit.location)
    return options.get("source", "0"), options.get("part", ""), folder


def _job_of(unit: Unit, jobs: Iterator[_Job]) -> _Job:
    """Return the job that a unit is of, and leave those after it in the iterator."""
    index, label, _ = _key(unit)
    for job in jobs:
        moment = "" if job.moment is None else job.moment.label
        if (str(job.index), moment) == (index, label):
            return job
    raise ListingError(f"{unit.location} is of none of the stream's sources")


def _fresh(units: list[Unit], run: tuple[Unit, ...]) -> list[Unit]:
    """Return those behind the last run of known units, and those that are new between them."""
    told = {unit.location for unit in run}
    last = run[-1]
    if _key(last)[1]:
        return [unit for unit in units if unit.location not in told]
    before = run[0]
    is_of_source = _key(before)[0] == _key(last)[0]
    floor = before.location if is_of_source and _key(before) != _key(last) else ""
    return [
        unit
        for unit in units
        if unit.location not in told
        and (unit.location > last.location or (_key(unit) == _key(last) and unit.location > floor))
    ]
