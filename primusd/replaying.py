"""Replay: a job as it was after any entry, from journal and archive, by the code that recovers.

It begins with the newest snapshots before the moment (`state/bases.py`), else with the job's submit
and the first entry of the store. A job is always known; the queue and the nodes of that time are
not where neither a base nor the first entry is left.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from primusd import core
from primusd.admission.model import Admission
from primusd.core import World
from primusd.datafeed.ledger.model import Stream
from primusd.errors import MalformedError, ResourceVersionTooOldError
from primusd.job.events import JobSubmitted
from primusd.job.model import Job
from primusd.records import ADMISSION, Entry, job_of
from primusd.state.archive import History
from primusd.state.bases import Base, Parts
from primusd.state.schema import check_schema
from primusd.state.snapshots import decode_machine

ENTRIES_MAX = 500_000
"""A replay that would have to apply more is refused: it would take minutes."""
UNKNOWN = -1


class Moment(Struct, frozen=True):
    """The entry after which a job is to be shown."""

    revision: int = 0
    """The last one to apply; 0: the last one before `at_ms`."""
    at_ms: int = 0
    """Journal time; 0: none, `revision` says it."""

    def is_before(self, entry: Entry) -> bool:
        """Return whether an entry came later."""
        if self.revision:
            return entry.revision > self.revision
        return entry.at_ms > self.at_ms


class Replayed(Struct, frozen=True):
    """What a replay came to."""

    world: World
    """With this job only; admission as far as it is known."""
    revision: int
    """Of the newest entry that says something of the job."""
    at_ms: int
    """Journal time that was asked for, not before that of the entry."""
    job_from: int
    """Revision that the replay of the job began with: of a base, or of the submit."""
    admission_from: int
    """The same of admission; UNKNOWN: it is not known."""


class Start(Struct, frozen=True):
    """What a replay begins with."""

    world: World = World()
    covers: Mapping[str, int] = {}
    """Machines in `world` to the revision that each holds."""
    from_revision: int = 0
    """Of the first entry wanted; 0: all of the days from `from_ms` on."""
    from_ms: int = 0
    at_ms: int = 0
    """Journal time of the newest base that was used."""


def replay(
    archive: History, newest: Iterable[Entry], job: str, moment: Moment, *, created_ms: int
) -> Replayed:
    """Return a job as it was. Blocks: it belongs in a worker thread.

    Args:
        archive: Older entries, and bases.
        newest: What the journal holds; it may overlap with the archive.
        job: Its uid.
        moment: After which entry.
        created_ms: When the job was submitted.

    Raises:
        MalformedError: The job was not there yet, or too many entries lie before.
        ResourceVersionTooOldError: Entries that are needed are gone.
    """
    start = _start(archive, job, moment, created_ms)
    found = _Replay(job, start, created_ms=created_ms)
    for entry in _entries(archive, newest, start):
        found.first = found.first or entry
        if moment.is_before(entry):
            break
        found.apply(entry)
    return found.result(moment)


def _start(archive: History, job: str, moment: Moment, created_ms: int) -> Start:
    """Return the newest snapshots that hold nothing later than the moment."""
    known = [
        one
        for one in archive.bases()
        if (one.revision <= moment.revision if moment.revision else one.at_ms <= moment.at_ms)
    ]
    if not known:
        return Start(from_ms=created_ms)
    newest = known[-1]
    own = _own_parts(known, job, created_ms)
    parts = {ADMISSION: newest.parts()[ADMISSION], **own}
    covers = {
        key.partition("#")[0]: revision
        for key, (revision, _) in parts.items()
        if not key.partition("#")[2]
    }
    world = _world(parts)
    if own or newest.at_ms < created_ms:
        return Start(world, covers, min(covers.values()) + 1, at_ms=newest.at_ms)
    return Start(world, covers, from_ms=created_ms)


def _own_parts(known: Sequence[Base], job: str, created_ms: int) -> Parts:
    """Return the snapshots of a job and its streams out of the newest base that has them."""
    for base in reversed(known):
        if base.at_ms < created_ms:
            break
        if base.has_jobs:
            parts = base.parts()
            own = {key: one for key, one in parts.items() if job_of(key.partition("#")[0]) == job}
            if own:
                return own
    return {}


def _world(parts: Parts) -> World:
    """Return the machines that the snapshots are of."""
    bodies: defaultdict[str, dict[str, bytes]] = defaultdict(dict)
    for key, (_, body) in parts.items():
        machine, _, part = key.partition("#")
        bodies[machine][part] = body
    world = World()
    for machine, some in bodies.items():
        match decode_machine(machine, some):
            case Admission() as admission:
                world = replace(world, admission=admission)
            case Job() as job:
                world = replace(world, jobs={machine: job})
            case Stream() as stream:
                world = replace(world, streams={**world.streams, machine: stream})
    return world


def _entries(archive: History, newest: Iterable[Entry], start: Start) -> Iterator[Entry]:
    """Yield archived entries, then those of the journal, each once."""
    last = start.from_revision - 1
    for entry in archive.read(start.from_revision, from_ms=start.from_ms):
        last = entry.revision
        yield entry
    yield from (one for one in newest if one.revision > last)


class _Replay:
    """A replay in the making.

    Attributes:
        first: The first entry that there is.
    """

    def __init__(self, job: str, start: Start, *, created_ms: int) -> None:
        self._job = job
        self._created_ms = created_ms
        self._world = start.world
        self._covers = start.covers
        self._admission_from = start.covers.get(ADMISSION, UNKNOWN)
        self._job_from = start.covers.get(job, 0)
        self.first: Entry | None = None
        self._last = start.from_revision - 1 if start.from_revision else 0
        self._revision = self._changed()
        self._at_ms = start.at_ms
        self._count = 0

    def _changed(self) -> int:
        """Return the revision of the newest change of the job, as far as snapshots tell."""
        job = self._world.jobs.get(self._job)
        streams = (one.changed_revision for one in self._world.streams.values())
        return max(job.changed_revision, *streams, 0) if job is not None else 0

    def apply(self, entry: Entry) -> None:
        """Take an entry in: what it says of the job, and of admission where that is known.

        Raises:
            MalformedError: It is one too many.
            ResourceVersionTooOldError: Entries before it are missing.
        """
        check_schema(entry.schema)
        if entry.revision == 1 and self._admission_from == UNKNOWN:
            self._admission_from = 1
        if self._last and entry.revision != self._last + 1:
            self._gap(entry)
        self._last = entry.revision
        covers = self._left_alone(entry)
        if len(covers) == len({one.machine for one in entry.records}):
            return
        self._count += 1
        if self._count > ENTRIES_MAX:
            raise MalformedError(
                f"more than {ENTRIES_MAX} entries lie before that: a replay of so many is refused",
                hint="primusctl events NAME shows what happened",
            )
        self._world = core.replay(self._world, entry, covers=covers)
        if any(one.machine not in covers and one.machine for one in entry.records):
            self._revision, self._at_ms = entry.revision, entry.at_ms

    def _gap(self, entry: Entry) -> None:
        """Judge a hole in the archive, which a full disk leaves, or entries that were pruned."""
        if self._job_from:
            raise ResourceVersionTooOldError(
                f"entries {self._last + 1} to {entry.revision - 1} are not in the archive; "
                "without them nobody can tell how the job was after them",
                oldest=entry.revision,
            )
        if self._covers.get(ADMISSION, 0) < entry.revision - 1:
            self._admission_from = UNKNOWN

    def _left_alone(self, entry: Entry) -> Mapping[str, int]:
        """Return the machines of an entry whose records are left alone."""
        covers: dict[str, int] = {}
        for record in entry.records:
            if isinstance(record.event, JobSubmitted) and record.machine == self._job:
                self._job_from = entry.revision
            if not self._wants(record.machine, entry.revision):
                covers[record.machine] = entry.revision
        return covers

    def _wants(self, machine: str, revision: int) -> bool:
        if revision <= self._covers.get(machine, 0):
            return False
        if machine == ADMISSION:
            return self._admission_from != UNKNOWN
        return bool(self._job_from) and job_of(machine) == self._job

    def result(self, moment: Moment) -> Replayed:
        """Return what it came to.

        Raises:
            MalformedError: The job was not there yet, or not any more.
            ResourceVersionTooOldError: The entry of its submit is gone.
        """
        if self._job in self._world.jobs:
            at_ms = max(moment.at_ms, self._at_ms)
            return Replayed(
                self._world, self._revision, at_ms, self._job_from, self._admission_from
            )
        if self.first is not None and self.first.at_ms > self._created_ms:
            raise ResourceVersionTooOldError(
                "the entries of the job's beginning are gone: they are older than history.keep",
                oldest=self.first.revision,
            )
        raise MalformedError(
            "there was no such job at that moment",
            hint="a time or an event of the job: primusctl events NAME",
        )
