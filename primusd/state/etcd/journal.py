"""The journal in etcd: entries and snapshots as keys, each append one fenced transaction."""

from collections.abc import Awaitable, Callable, Sequence

import anyio
import anyio.to_thread

from primusd.errors import DeposedError, StoreFullError, StoreUnavailableError
from primusd.records import SCHEMA, Entry, encode_entry
from primusd.state.archiving import Archiver
from primusd.state.etcd import redo
from primusd.state.etcd.client import EtcdClient
from primusd.state.etcd.contents import Contents, read_contents
from primusd.state.etcd.following import Following
from primusd.state.etcd.lane import Lane
from primusd.state.etcd.layout import REVISION_MAX, Layout, part
from primusd.state.etcd.leadership import Leadership
from primusd.state.etcd.reading import read_all
from primusd.state.etcd.redo import Change
from primusd.state.etcd.requests import prefix_end
from primusd.state.etcd.values import cut, joined
from primusd.state.journal import Loaded, Seen, Snapshot, Written


class EtcdJournal:
    """The journal of one cluster; anybody may load it, only the leader may append."""

    def __init__(
        self,
        client: EtcdClient,
        layout: Layout,
        leadership: Leadership,
        *,
        archiver: Archiver | None = None,
    ) -> None:
        """Name the cluster; nothing is read before the first `load`.

        Args:
            client: Connections; whoever made it closes it.
            layout: Of the cluster.
            leadership: Of this head.
            archiver: Gets entries before they go; None: they just go.
        """
        self._client = client
        self._layout = layout
        self._lane = Lane(client, layout, leadership)
        self._archiver = archiver
        self._turn = anyio.Lock()
        self._following = Following(client, layout)
        self._contents = Contents(layout)

    async def load(self) -> Loaded:
        """Return all it holds; see Journal.load."""
        async with self._turn:
            self._lane.forget()
            read = await read_all(self._client, self._layout.prefix)
            self._contents, loaded = read_contents(self._layout, read)
            lane = read.rows.get(self._layout.lane)
            self._lane.was_read(lane.changed if lane else 0, lane.value if lane else b"")
            return loaded

    async def entries(self) -> tuple[Entry, ...]:
        """Return the entries that it holds; see Journal.entries."""
        return self._contents.decoded()

    async def follow(
        self, load: Callable[[Loaded], Awaitable[None]], take: Callable[[Written], None]
    ) -> None:
        """Tell what is written by another head; see Followed.follow."""
        await self._following.run(load, take)

    async def caught_up(self) -> bool:
        """Go on as the leader from what was told; see Followed.caught_up."""
        async with self._turn:
            self._lane.forget()
            found = await self._following.caught_up()
            if found is None:
                return False
            self._contents, newest = found
            self._lane.was_read(newest.lane_revision, newest.lane)
            return True

    def seen(self) -> Seen:
        """Return how far that is; see Followed.seen."""
        return self._following.seen

    async def append(
        self, entry: Entry | None, snapshots: tuple[Snapshot, ...] = (), keep_from: int = 0
    ) -> None:
        """Make it durable; see Journal.append."""
        if entry is not None and entry.term < self._contents.term:
            raise DeposedError(f"term {entry.term} is over: term {self._contents.term} has written")
        async with self._turn:
            await self._finish()
            if keep_from:
                await self._archive_below(keep_from)
            body = b"" if entry is None else encode_entry(entry)
            await self._write(self._changes(entry, body, snapshots, keep_from))
            contents = self._contents
            contents.schema = SCHEMA
            if entry is not None:
                contents.appended(entry, body)
            contents.covered(snapshots)
            contents.dropped_below(keep_from)

    async def replace(self, loaded: Loaded, beside: Sequence[Change] = ()) -> None:
        """Make it hold this alone; see Journal.replace.

        Args:
            loaded: Of another journal.
            beside: Further changes, which are made together with it.
        """
        layout = self._layout
        changes = [
            Change(layout.schema, b"%d" % SCHEMA),
            Change(layout.entry(0), b"", layout.entry(REVISION_MAX)),
            Change(layout.snapshots, b"", prefix_end(layout.snapshots)),
            *beside,
        ]
        for entry in loaded.entries:
            body = encode_entry(entry)
            changes += [Change(*one) for one in cut(layout.entry(entry.revision), 0, body)]
        for one in loaded.snapshots.values():
            key = layout.snapshot(one.machine)
            changes += [Change(*some) for some in cut(key, one.covers, one.body)]
        async with self._turn:
            await self._finish()
            await self._write(changes)
            self._lane.forget()

    async def note(self, change: Change) -> None:
        """Write a key of the cluster that is no part of the journal, as its leader."""
        async with self._turn:
            await self._lane.write([change.operation()])

    async def close(self) -> None:
        """Do nothing: the connections are not its own."""

    def _changes(
        self, entry: Entry | None, body: bytes, snapshots: tuple[Snapshot, ...], keep_from: int
    ) -> list[Change]:
        """Return what an append changes."""
        layout = self._layout
        changes: list[Change] = []
        if self._contents.schema < SCHEMA:
            changes.append(Change(layout.schema, b"%d" % SCHEMA))
        if keep_from:
            changes.append(Change(layout.entry(0), b"", layout.entry(keep_from)))
        if entry is not None:
            last = self._contents.revision
            assert entry.revision == last + 1, (entry.revision, last)
            changes += [Change(*one) for one in cut(layout.entry(entry.revision), 0, body)]
        for snapshot in snapshots:
            changes += self._snapshot_changes(snapshot)
        return changes

    def _snapshot_changes(self, snapshot: Snapshot) -> list[Change]:
        key = self._layout.snapshot(snapshot.machine)
        old = self._contents.snapshot_parts.get(snapshot.machine, 0)
        if not snapshot.body:
            # Its parts have keys of their own, between which no other machine's lie.
            return [Change(key), Change(part(key, 0), b"", key + b'"')]
        changes = [Change(*one) for one in cut(key, snapshot.covers, snapshot.body)]
        if old > len(changes):
            changes.append(Change(part(key, len(changes)), b"", key + b'"'))
        return changes

    async def _write(self, changes: list[Change]) -> None:
        """Carry out changes: in one transaction where it takes them, else by way of the redo."""
        some = list(redo.batches(changes))
        if len(some) == 1:
            await self._lane.write([one.operation() for one in some[0]])
            return
        if not some:
            return
        await self._lane.write([redo.done(self._layout).operation()])
        for batch in redo.batches(redo.written(self._layout, changes)):
            await self._lane.write([one.operation() for one in batch])
        self._contents.unfinished = tuple(changes)
        try:
            await self._finish()
        except StoreFullError as error:
            # It counts, so nobody may be told that nothing was recorded.
            raise StoreUnavailableError(
                "etcd is full: what was written last counts, and is carried out once there is room",
                hint=error.hint,
            ) from error

    async def _finish(self) -> None:
        """Carry out what counts already, and let go of what was written down and never will."""
        contents = self._contents
        if not contents.unfinished and not contents.redo_rows:
            return
        for batch in redo.batches(contents.unfinished):
            await self._lane.write([one.operation() for one in batch])
        await self._lane.write([redo.done(self._layout).operation()])
        contents.unfinished, contents.redo_rows = (), {}

    async def _archive_below(self, keep_from: int) -> None:
        """Hand the entries that go to the archive first."""
        if self._archiver is None:
            return
        going = tuple(one for one in self._contents.entries if one.revision < keep_from)
        revision, at_ms = self._contents.revision, self._contents.at_ms
        archiver = self._archiver
        wanted = await anyio.to_thread.run_sync(
            lambda: archiver.archive(going, revision=revision, at_ms=at_ms)
        )
        if wanted:
            await self._keep_base(archiver, wanted)

    async def _keep_base(self, archiver: Archiver, kind: str) -> None:
        """Copy snapshots beside the entries that go, for replays."""
        read = await read_all(self._client, self._layout.snapshots)
        values = {key: row.value for key, row in read.rows.items()}
        parts = {
            name.decode(): (covers, body)
            for name, covers, _, body in joined(values, self._layout.snapshots)
        }
        revision, at_ms = self._contents.revision, self._contents.at_ms
        await anyio.to_thread.run_sync(
            lambda: archiver.keep_base(parts, kind=kind, revision=revision, at_ms=at_ms)
        )
