"""The journal port, and its form in memory."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import anyio
from msgspec import Struct

from primusd.errors import DeposedError, NewerSchemaError
from primusd.records import Entry


class Snapshot(Struct, frozen=True, array_like=True):
    """A machine as of a revision, encoded; the first bytes hold its schema."""

    machine: str
    covers: int
    """Revision whose records, and all before, are in it."""
    body: bytes
    """b"" in an append: the machine is gone, remove its snapshot."""


class Loaded(Struct, frozen=True):
    """All that a journal holds."""

    snapshots: Mapping[str, Snapshot]
    entries: tuple[Entry, ...]
    """In order, without gaps from the first."""
    term: int
    """The highest term that ever wrote; 0 none."""
    revision: int
    """Of the last entry ever appended; 0 none."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever written."""
        return not self.entries and not self.snapshots


class Written(Struct, frozen=True):
    """What another head wrote, as one who follows it is told."""

    entries: tuple[Entry, ...] = ()
    """In order, behind all that were told before."""
    covers: Mapping[str, int] = {}
    """Keys of snapshots that were written, each with the revision that it covers."""
    gone: frozenset[str] = frozenset()
    """Keys of snapshots that were removed."""
    keep_from: int = 0
    """Entries with a lower revision went; 0: none did."""


class Seen(Struct, frozen=True):
    """How far one is who follows a journal."""

    newest: int = 0
    """Revision of the last entry that is known to be there, be it told or not."""
    complete_ms: int = 0
    """By the clock since the host's start: when all that was there was told last; 0 never."""


class Followed(Protocol):
    """A journal that another head writes, as this one sees it until it leads itself."""

    async def follow(
        self, load: Callable[[Loaded], Awaitable[None]], take: Callable[[Written], None]
    ) -> None:
        """Tell all that it holds and then what is written to it, until `caught_up` or cancelled.

        Args:
            load: Told of everything; again whenever what was written meanwhile cannot be had.
            take: Told of each write after that.

        Raises:
            NewerSchemaError: A newer version writes it.
        """
        ...

    async def caught_up(self) -> bool:
        """Return, as the leader, once all that was ever written was told; no more is told then.

        False: that cannot be had in time, and it has to be loaded.

        Raises:
            StoreUnavailableError: It cannot be read.
        """
        ...

    def seen(self) -> Seen:
        """Return how far that is."""
        ...


class Journal(Protocol):
    """Durable entries, in order."""

    async def load(self) -> Loaded:
        """Return the snapshots and the entries after them.

        Raises:
            NewerSchemaError: A newer version wrote it; nothing was touched.
            StoreUnavailableError: It cannot be read.
        """
        ...

    async def entries(self) -> tuple[Entry, ...]:
        """Return the entries after the snapshots, of a journal that was loaded.

        Raises:
            StoreUnavailableError: They cannot be read.
        """
        ...

    async def append(
        self, entry: Entry | None, snapshots: tuple[Snapshot, ...] = (), keep_from: int = 0
    ) -> None:
        """Make an entry and snapshots durable and drop entries below `keep_from`: all or nothing.

        Args:
            entry: The next entry; None to write snapshots alone.
            snapshots: Each replaces the machine's older one.
            keep_from: Entries with a lower revision are covered by snapshots and may go; 0: none.

        Raises:
            DeposedError: An entry of a newer term is in the journal already.
            StoreFullError: There is no room; nothing was written.
            StoreUnavailableError: It is not known whether it was written: load again.
        """
        ...

    async def replace(self, loaded: Loaded) -> None:
        """Make it hold this and nothing else: all or nothing. It has to be loaded again then.

        Args:
            loaded: Of another journal, or of a backup.

        Raises:
            StoreFullError: There is no room; it is as it was.
            StoreUnavailableError: It is not known whether it was done.
        """
        ...

    async def close(self) -> None:
        """Let go of the store."""
        ...


class MemoryJournal:
    """A journal that lives as long as its process; for tests and the simulator."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._snapshots: dict[str, Snapshot] = {}
        self._term = 0
        self._revision = 0
        self.on_written: list[Callable[[Written], None]] = []
        """Called with each write that was kept."""

    async def load(self) -> Loaded:
        """Return what was appended."""
        return Loaded(dict(self._snapshots), tuple(self._entries), self._term, self._revision)

    async def entries(self) -> tuple[Entry, ...]:
        """Return the entries that are kept."""
        return tuple(self._entries)

    @property
    def revision(self) -> int:
        """Of the last entry."""
        return self._revision

    async def append(
        self, entry: Entry | None, snapshots: tuple[Snapshot, ...] = (), keep_from: int = 0
    ) -> None:
        """Keep the entry; see Journal.append."""
        if entry is not None:
            if entry.term < self._term:
                raise DeposedError(f"term {entry.term} is over: term {self._term} has written")
            assert entry.revision == self._revision + 1
            self._entries.append(entry)
            self._term, self._revision = entry.term, entry.revision
        for snapshot in snapshots:
            if snapshot.body:
                self._snapshots[snapshot.machine] = snapshot
            else:
                self._snapshots.pop(snapshot.machine, None)
        if keep_from:
            self._entries = [one for one in self._entries if one.revision >= keep_from]
        written = Written(
            () if entry is None else (entry,),
            {one.machine: one.covers for one in snapshots if one.body},
            frozenset(one.machine for one in snapshots if not one.body),
            keep_from,
        )
        for tell in tuple(self.on_written):
            tell(written)

    async def replace(self, loaded: Loaded) -> None:
        """Keep this alone; see Journal.replace."""
        self._entries, self._snapshots = list(loaded.entries), dict(loaded.snapshots)
        self._term, self._revision = loaded.term, loaded.revision

    async def close(self) -> None:
        """Forget nothing: a test may load again."""


class MemoryFollowed:
    """One head's view of a journal in memory that another one writes.

    Attributes:
        is_held_up: What is written is kept back until this head leads: a watch that is behind.
    """

    def __init__(self, journal: MemoryJournal) -> None:
        self.is_held_up = False
        self._journal = journal
        self._take: Callable[[Written], None] | None = None
        self._kept_back: list[Written] = []
        self._newer: NewerSchemaError | None = None
        self._over = anyio.Event()

    async def follow(
        self, load: Callable[[Loaded], Awaitable[None]], take: Callable[[Written], None]
    ) -> None:
        """Tell what is written; see Followed.follow."""
        self._over, self._take, self._newer = anyio.Event(), None, None
        self._journal.on_written.append(self._hear)
        try:
            await load(await self._journal.load())
            self._take = take
            if not self.is_held_up:
                self._tell_kept_back()
            await self._over.wait()
        finally:
            self._stop()
        if self._newer is not None:
            raise self._newer

    async def caught_up(self) -> bool:
        """Tell what was kept back, and nothing more; see Followed.caught_up."""
        self._tell_kept_back()
        self._stop()
        self._over.set()
        return True

    def seen(self) -> Seen:
        """Return how far that is; see Followed.seen."""
        return Seen(self._journal.revision)

    def _hear(self, written: Written) -> None:
        self._kept_back.append(written)
        if self._take is not None and not self.is_held_up:
            try:
                self._tell_kept_back()
            except NewerSchemaError as error:
                # Told to who follows, not to who writes.
                self._newer = error
                self._over.set()

    def _tell_kept_back(self) -> None:
        assert self._take is not None
        kept_back, self._kept_back = self._kept_back, []
        for written in kept_back:
            self._take(written)

    def _stop(self) -> None:
        if self._hear in self._journal.on_written:
            self._journal.on_written.remove(self._hear)
