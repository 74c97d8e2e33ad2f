"""Stores held by a tool while no daemon runs: read whole, filled from another one, and left.

What is moved or restored takes the cluster's id and secret along: by them executors and nodes know
the next daemon as their own.
"""

import os
import shutil
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import anyio
import anyio.to_thread
from msgspec import Struct

from primusd import core
from primusd.config import Loaded as Configuration
from primusd.errors import ConflictError, StoreUnavailableError
from primusd.recovery import recover
from primusd.state.archive import Archive
from primusd.state.directory import StateDirectory
from primusd.state.embedded import EmbeddedJournal
from primusd.state.journal import Loaded
from primusd.stores import JOURNAL_FILE, etcd_settings, etcd_url

if TYPE_CHECKING:
    from primusd.state.etcd.visiting import Visit

MOVED_SUFFIX = ".moved"
ANSWER_S = 10.0
FILES = (
    JOURNAL_FILE,
    f"{JOURNAL_FILE}-wal",
    f"{JOURNAL_FILE}-shm",
    "secret",
    "cluster.json",
    "home",
    "lock",
)


class Keys(Struct, frozen=True):
    """Which cluster a store is of."""

    id: str
    secret: bytes


class HeldStore(Protocol):
    """A store of which no daemon runs."""

    @property
    def place(self) -> str:
        """What it is, for a sentence: `the embedded store in /var/lib/primusd`."""
        ...

    @property
    def url(self) -> str:
        """As `--store` names it: `etcd://h1:2379`; "" the embedded one."""
        ...

    @property
    def keys(self) -> Keys | None:
        """Of its cluster; None: it is of none yet."""
        ...

    @property
    def is_left(self) -> bool:
        """Whether it was moved elsewhere: what it holds is over."""
        ...

    async def load(self) -> Loaded:
        """Return all it holds.

        Raises:
            StoreUnavailableError: It cannot be read.
            NewerSchemaError: A newer primusd wrote it.
        """
        ...

    async def fill(self, loaded: Loaded, keys: Keys) -> None:
        """Make it the store of a cluster, holding this and nothing else: all or nothing.

        Raises:
            StoreFullError: There is no room.
            StoreUnavailableError: It cannot be written.
        """
        ...

    async def leave(self, target: "HeldStore") -> str:
        """Let no daemon start on it any more; return what of it is kept, for a sentence.

        Args:
            target: Where its cluster is from now on.
        """
        ...


class HeldEmbedded:
    """The embedded store of a state directory."""

    is_left = False
    url = ""

    def __init__(self, directory: StateDirectory, *, is_new: bool) -> None:
        """Take the store of a directory.

        Args:
            directory: Held by this process.
            is_new: It was made for this: its id says nothing.
        """
        self._directory = directory
        self._is_new = is_new
        self._path = directory.path / JOURNAL_FILE

    @property
    def place(self) -> str:
        """What it is."""
        return f"the embedded store in {self._directory.path}"

    @property
    def keys(self) -> Keys | None:
        """Of its cluster; None for a new directory."""
        return None if self._is_new else Keys(self._directory.cluster_id, self._directory.secret)

    async def load(self) -> Loaded:
        """Return all it holds; see HeldStore.load."""
        if not self._path.exists():
            return Loaded({}, (), 0, 0)
        journal = EmbeddedJournal(self._path)
        try:
            return await journal.load()
        finally:
            await journal.close()

    async def fill(self, loaded: Loaded, keys: Keys) -> None:
        """Make it hold this alone; see HeldStore.fill."""
        was_there = self._path.exists()
        self._directory.keep(keys.id, keys.secret, store="")
        journal = EmbeddedJournal(self._path)
        try:
            await journal.replace(loaded)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await journal.close()
            if not was_there:
                self._path.unlink(missing_ok=True)
            raise
        await journal.close()
        give_to_owner(self._directory.path, FILES)

    async def leave(self, target: HeldStore) -> str:
        """Put the file aside; see HeldStore.leave."""
        # First: without its file the directory must not be taken for a new one.
        directory = self._directory
        directory.keep(directory.cluster_id, directory.secret, store=target.url)
        aside = self._path.with_name(f"{JOURNAL_FILE}{MOVED_SUFFIX}")
        self._path.replace(aside)
        return f"the old one is kept as {aside}"


class HeldEtcd:
    """The store of a cluster in etcd."""

    def __init__(self, visit: "Visit", url: str, directory: StateDirectory | None) -> None:
        """Take the store of a cluster.

        Args:
            visit: Holds it.
            url: As `--store` names it.
            directory: Of this host's head; None: there is none.
        """
        self._visit = visit
        self._url = url
        self._directory = directory

    @property
    def place(self) -> str:
        """What it is."""
        return f"etcd at {self._url.removeprefix('etcd://').replace(',', ', ')}"

    @property
    def url(self) -> str:
        """As `--store` names it."""
        return self._url

    @property
    def keys(self) -> Keys | None:
        """Of its cluster."""
        known = self._visit.identity
        return None if known is None else Keys(known.id, known.secret)

    @property
    def is_left(self) -> bool:
        """Whether it was moved elsewhere."""
        return bool(self._visit.moved)

    async def load(self) -> Loaded:
        """Return all it holds; see HeldStore.load."""
        return await self._visit.journal.load()

    async def fill(self, loaded: Loaded, keys: Keys) -> None:
        """Make it hold this alone; see HeldStore.fill."""
        from primusd.state.etcd.identity import ClusterIdentity  # noqa: PLC0415 - gRPC is large.

        await self._visit.fill(loaded, ClusterIdentity(keys.id, keys.secret))
        directory = self._directory
        if directory is not None and not (directory.path / JOURNAL_FILE).exists():
            directory.keep(keys.id, keys.secret, store=self._url)

    async def leave(self, target: HeldStore) -> str:
        """Note where it went; see HeldStore.leave."""
        where = target.place
        await self._visit.leave(where)
        return f"the old one is kept in etcd, marked as moved to {where}: no head starts on it"


@asynccontextmanager
async def held_store(
    configuration: Configuration, directory: StateDirectory | None, *, is_new: bool
) -> AsyncIterator[HeldStore]:
    """Yield the store that a configuration names.

    Args:
        configuration: Its `[store]`, cluster and directories.
        directory: Held by this process; None: there is none here, which etcd does not need.
        is_new: The directory was made for this.

    Raises:
        ConfigError: Its servers must not be used.
        ConflictError: A head of it runs.
        StoreUnavailableError: It does not answer.
    """
    if configuration.config.store.kind == "embedded":
        assert directory is not None
        yield HeldEmbedded(directory, is_new=is_new)
        return
    from primusd.state.etcd.visiting import visiting  # noqa: PLC0415 - gRPC is large.

    settings = etcd_settings(configuration.config.store.etcd)
    home = directory.home() if directory is not None else ""
    async with visiting(settings, cluster=configuration.config.cluster, home=home) as visit:
        yield HeldEtcd(visit, etcd_url(configuration.config.store.etcd), directory)


class Transfer(Struct, frozen=True):
    """What was moved or restored."""

    told: str
    """What it holds: `3 jobs at revision 812`."""
    kept: tuple[str, ...] = ()
    """What is left of what was there, a sentence each."""


async def move(source: HeldStore, target: HeldStore, *, may_replace: bool) -> Transfer:
    """Move a cluster's state from one store to another; the first one is left.

    It can be done again where it was broken off: what arrived already is known by its content.

    Raises:
        ConflictError: There is nothing to move, or the target is not free.
        PrimusdError: One of them cannot be read or written; the source is as it was.
    """
    loaded = await source.load()
    if loaded.is_empty or source.is_left or source.keys is None:
        went = "it was moved already" if source.is_left else "it is empty"
        raise ConflictError(f"there is nothing to move out of {source.place}: {went}")
    found = await target.load()
    has_arrived = not target.is_left and target.keys == source.keys and _is_same(found, loaded)
    if not has_arrived:
        check_free(target, found, source.keys, may_replace=may_replace)
        await target.fill(loaded, source.keys)
    return Transfer(told(loaded), (await source.leave(target),))


async def restore(loaded: Loaded, keys: Keys, target: HeldStore, *, may_replace: bool) -> Transfer:
    """Put what a backup holds into a store.

    Raises:
        ConflictError: The target is not free.
        PrimusdError: It cannot be written.
    """
    check_free(target, await target.load(), keys, may_replace=may_replace)
    await target.fill(loaded, keys)
    return Transfer(told(loaded))


def check_free(store: HeldStore, found: Loaded, keys: Keys, *, may_replace: bool) -> None:
    """See that a store may be filled.

    Raises:
        ConflictError: It holds something, or is another cluster's.
    """
    if may_replace:
        return
    if not found.is_empty and not store.is_left:
        raise ConflictError(
            f"{store.place} is not empty: it holds {told(found)}",
            hint="--replace puts this in the place of it, for good",
        )
    if store.keys is not None and store.keys.id != keys.id:
        raise ConflictError(
            f"{store.place} is of the cluster with id {store.keys.id}, this is of {keys.id}",
            hint="name another place, or --replace makes it part of this cluster",
        )


def told(loaded: Loaded) -> str:
    """Return what a store holds, for a sentence."""
    try:
        count = len(recover(loaded).world.jobs)
    except (core.ReplayError, StoreUnavailableError):
        return f"what cannot be replayed, at revision {loaded.revision}"
    return f"{count} job{'' if count == 1 else 's'} at revision {loaded.revision}"


async def put_archive_aside(directory: Path, revision: int) -> str:
    """Put history aside that is of a later past than a store; return what was done, "" nothing.

    Entries of the same numbers will follow, and would be taken for repeats.

    Args:
        directory: Of the state.
        revision: Of the store from now on.
    """
    folder = directory / "archive"
    newest = await anyio.to_thread.run_sync(Archive(folder).newest_revision)
    if newest <= revision:
        return ""
    aside = folder.with_name(f"archive-{newest}{MOVED_SUFFIX}")
    await anyio.to_thread.run_sync(shutil.rmtree, aside, True)  # noqa: FBT003 - as it takes it.
    folder.rename(aside)
    return f"history goes to revision {newest}, which is later: it is kept as {aside}"


def _is_same(one: Loaded, other: Loaded) -> bool:
    return (dict(one.snapshots), one.entries) == (dict(other.snapshots), other.entries)


def give_to_owner(folder: Path, names: Iterable[str]) -> None:
    """Let files that root made belong to whom their folder does: the daemon is that one."""
    if os.geteuid() != 0:
        return
    owner = folder.stat()
    for name in names:
        with suppress(FileNotFoundError):
            os.chown(folder / name, owner.st_uid, owner.st_gid)
