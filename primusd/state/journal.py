"""The journal port, and its form in memory."""

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

from primusd.errors import DeposedError
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


class Journal(Protocol):
    """Durable entries, in order."""

    async def load(self) -> Loaded:
        """Return the snapshots and the entries after them.

        Raises:
            NewerSchemaError: A newer version wrote it; nothing was touched.
            StoreUnavailableError: It cannot be read.
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

    async def load(self) -> Loaded:
        """Return what was appended."""
        return Loaded(dict(self._snapshots), tuple(self._entries), self._term, self._revision)

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

    async def close(self) -> None:
        """Forget nothing: a test may load again."""
