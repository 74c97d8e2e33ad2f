"""The store that outlives heads: entries and snapshots, with a disk that is slow, full or old."""

from msgspec import Struct

from primusd.core import World
from primusd.errors import DeposedError, StoreFullError
from primusd.records import Entry, decode_entry, encode_entry
from primusd.state.election import embedded_term
from primusd.state.journal import Loaded, Snapshot


class Copy(Struct, frozen=True):
    """What a backup of the store holds."""

    entries: tuple[Entry, ...]
    snapshots: dict[str, Snapshot]
    term: int
    revision: int
    world: World


class Store:
    """Durable entries of one cluster.

    Attributes:
        world: What the newest entry led to in memory: recovery has to come to the same.
        is_full: No room: every append is refused, and nothing of it is kept.
        latency_ms: From an append until it is durable.
    """

    def __init__(self, *, is_encoded: bool = False) -> None:
        self.world = World()
        self.is_full = False
        self.latency_ms = 1
        self._is_encoded = is_encoded
        self._entries: list[Entry] = []
        self._snapshots: dict[str, Snapshot] = {}
        self._term = 0
        self._fence = 0
        self._revision = 0

    def load(self) -> Loaded:
        """Return all there is; through its bytes when the run asks for that."""
        entries = tuple(self._entries)
        if self._is_encoded:
            entries = tuple(decode_entry(encode_entry(one)) for one in entries)
        return Loaded(dict(self._snapshots), entries, self._term, self._revision)

    def campaign(self, wall_ms: int) -> int:
        """Return the term of a new leader; from now on those before it write nothing."""
        self._fence = embedded_term(last_term=max(self._term, self._fence), wall_ms=wall_ms)
        return self._fence

    def append(
        self,
        term: int,
        entry: Entry | None,
        world: World,
        snapshots: tuple[Snapshot, ...] = (),
        keep_from: int = 0,
    ) -> None:
        """Keep an entry, snapshots, or both: all or nothing.

        Raises:
            DeposedError: A newer term leads.
            StoreFullError: The disk is full.
        """
        if term < self._fence:
            raise DeposedError(f"term {term} is over: term {self._fence} leads")
        if self.is_full:
            raise StoreFullError("the disk is full")
        if entry is not None:
            assert entry.revision == self._revision + 1, "the journal would have a gap"
            self._entries.append(entry)
            self._term, self._revision = entry.term, entry.revision
            self.world = world
        for snapshot in snapshots:
            if snapshot.body:
                self._snapshots[snapshot.machine] = snapshot
            else:
                self._snapshots.pop(snapshot.machine, None)
        if keep_from:
            self._entries = [one for one in self._entries if one.revision >= keep_from]

    def copy(self) -> Copy:
        """Return a backup of what is durable now."""
        return Copy(
            tuple(self._entries), dict(self._snapshots), self._term, self._revision, self.world
        )

    def restore(self, copy: Copy | None) -> None:
        """Become an older copy, or empty."""
        kept = copy or Copy((), {}, 0, 0, World())
        self._entries, self._snapshots = list(kept.entries), dict(kept.snapshots)
        self._term, self._revision, self.world = kept.term, kept.revision, kept.world
        self._fence = 0
