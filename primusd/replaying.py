"""Replay: a job as it was after any entry, from journal and archive, by the code that recovers.

The job and its streams are known from their own records, from the submit on. What depends on the
queue and the nodes needs admission of that time too: it is replayed from a base (`state/bases.py`),
or from the first entry of the store where that is still there.
"""

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from primusd import core
from primusd.core import World
from primusd.errors import MalformedError, ResourceVersionTooOldError
from primusd.job.admission_model import Admission
from primusd.job.events import JobSubmitted
from primusd.records import ADMISSION, Entry, job_of
from primusd.state.archive import Archive
from primusd.state.bases import Base, bases
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
    entry: Entry
    """The last one that says something of the job."""
    at_ms: int
    """Journal time that was asked for, not before that of the entry."""
    submitted_revision: int
    admission_from: int
    """Revision from which admission is known; UNKNOWN: it is not."""


def replay(
    archive: Archive, newest: Iterable[Entry], job: str, moment: Moment, *, created_ms: int
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
    base = _base(archive, moment)
    from_revision = base.covers + 1 if base is not None and base.at_ms < created_ms else 0
    found = _Replay(job, base, created_ms=created_ms)
    entries = _entries(archive, newest, from_revision, 0 if from_revision else created_ms)
    for entry in entries:
        if moment.is_before(entry):
            break
        found.apply(entry)
    return found.result(moment)


def _base(archive: Archive, moment: Moment) -> Base | None:
    """Return the newest base that holds nothing later than the moment."""
    known = [
        one
        for one in bases(archive.folder)
        if (one.covers <= moment.revision if moment.revision else one.at_ms <= moment.at_ms)
    ]
    return known[-1] if known else None


def _entries(
    archive: Archive, newest: Iterable[Entry], from_revision: int, from_ms: int
) -> Iterator[Entry]:
    """Yield archived entries, then those of the journal, each once."""
    last = from_revision - 1
    for entry in archive.read(from_revision, from_ms=from_ms):
        last = entry.revision
        yield entry
    yield from (one for one in newest if one.revision > last)


class _Replay:
    """A replay in the making."""

    def __init__(self, job: str, base: Base | None, *, created_ms: int) -> None:
        self._job = job
        self._created_ms = created_ms
        self._world = World()
        self._admission_from = UNKNOWN
        self._base_covers = 0
        if base is not None:
            admission = decode_machine(ADMISSION, {"": base.body()})
            assert isinstance(admission, Admission)
            self._world = World(admission)
            self._base_covers = self._admission_from = base.covers
        self._first: Entry | None = None
        self._last = 0
        self._submitted = 0
        self._newest: Entry | None = None
        self._count = 0

    def apply(self, entry: Entry) -> None:
        """Take an entry in: what it says of the job, and of admission where that is known.

        Raises:
            MalformedError: It is one too many.
            ResourceVersionTooOldError: Entries before it are missing.
        """
        check_schema(entry.schema)
        if self._first is None:
            self._first = entry
            if entry.revision == 1 and not self._base_covers:
                self._admission_from = 1
        elif entry.revision != self._last + 1:
            self._gap(entry)
        self._last = entry.revision
        covers = self._covers(entry)
        if len(covers) == len({one.machine for one in entry.records}):
            return
        self._count += 1
        if self._count > ENTRIES_MAX:
            raise MalformedError(
                f"more than {ENTRIES_MAX} entries lie before that: a replay of so many is refused",
                hint="primusctl events NAME shows what happened",
            )
        self._world = core.replay(self._world, entry, covers=covers)
        if any(job_of(one.machine) == self._job for one in entry.records):
            self._newest = entry

    def _gap(self, entry: Entry) -> None:
        """Judge a hole in the archive, which a full disk leaves."""
        if self._submitted:
            raise ResourceVersionTooOldError(
                f"entries {self._last + 1} to {entry.revision - 1} are not in the archive; "
                "without them nobody can tell how the job was after them",
                oldest=entry.revision,
            )
        if self._base_covers < entry.revision - 1:
            self._admission_from = UNKNOWN

    def _covers(self, entry: Entry) -> Mapping[str, int]:
        """Return the machines of an entry whose records are left alone."""
        covers: dict[str, int] = {}
        for record in entry.records:
            if isinstance(record.event, JobSubmitted) and record.machine == self._job:
                self._submitted = entry.revision
            if not self._wants(record.machine, entry.revision):
                covers[record.machine] = entry.revision
        return covers

    def _wants(self, machine: str, revision: int) -> bool:
        if machine == ADMISSION:
            return self._admission_from != UNKNOWN and revision > self._base_covers
        return bool(self._submitted) and job_of(machine) == self._job

    def result(self, moment: Moment) -> Replayed:
        """Return what it came to.

        Raises:
            MalformedError: The job was not there yet, or not any more.
            ResourceVersionTooOldError: The entry of its submit is gone.
        """
        if self._newest is not None and self._job in self._world.jobs:
            at_ms = max(moment.at_ms, self._newest.at_ms)
            return Replayed(self._world, self._newest, at_ms, self._submitted, self._admission_from)
        if self._first is not None and self._first.at_ms > self._created_ms:
            raise ResourceVersionTooOldError(
                "the entries of the job's beginning are gone: they are older than history.keep",
                oldest=self._first.revision,
            )
        raise MalformedError(
            "there was no such job at that moment",
            hint="a time or an event of the job: primusctl events NAME",
        )
