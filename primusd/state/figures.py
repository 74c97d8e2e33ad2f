"""What a store tells of itself: how large it is, what it may take, and who keeps it."""

from msgspec import Struct


class ServerFigures(Struct, frozen=True):
    """One server of a store."""

    address: str
    version: str = ""
    byte_count: int = 0
    """Of its file, holes included: what a quota is compared with."""
    used_byte_count: int = 0
    """Without the holes that what went has left; 0: it does not tell."""
    is_leader: bool = False
    """Of the servers, which has nothing to do with the heads'."""
    error: str = ""
    """Why it tells nothing; "" it does."""


class StoreFigures(Struct, frozen=True):
    """A store as it is now."""

    kind: str
    place: str
    """A path, or the addresses."""
    byte_count: int = 0
    """The largest of its servers' files."""
    quota_byte_count: int = 0
    """What it may take; 0 as much as the disk has."""
    free_byte_count: int = 0
    """Of the disk; 0: nobody here knows."""
    revision: int = 0
    """Of etcd, not of the journal; 0 an embedded store, which has none."""
    compacted: int = 0
    """Up to which of these revisions nothing older is kept; 0 it keeps all."""
    is_full: bool = False
    """It takes nothing that needs room (etcd: the alarm NOSPACE)."""
    servers: tuple[ServerFigures, ...] = ()

    @property
    def used_percent(self) -> int:
        """How much of the quota is used; 0 without one."""
        return self.byte_count * 100 // self.quota_byte_count if self.quota_byte_count else 0
