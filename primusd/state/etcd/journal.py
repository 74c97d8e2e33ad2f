"""The journal in etcd: entries and snapshots as keys, each append one fenced transaction."""

from collections import deque

import anyio
import anyio.to_thread
import msgspec

from primusd.errors import DeposedError, StoreFullError, StoreUnavailableError
from primusd.records import SCHEMA, Entry, decode_entry, encode_entry
from primusd.state.archive import ArchivedEntry
from primusd.state.archiving import Archiver
from primusd.state.etcd import redo
from primusd.state.etcd.client import EtcdClient
from primusd.state.etcd.lane import Lane
from primusd.state.etcd.layout import Layout, part
from primusd.state.etcd.leadership import Leadership
from primusd.state.etcd.reading import Read, read_all
from primusd.state.etcd.redo import Change
from primusd.state.etcd.values import cut, joined, part_count
from primusd.state.journal import Loaded, Snapshot
from primusd.state.schema import Head, check_schema


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
        self._entries: deque[ArchivedEntry] = deque()
        self._snapshot_parts: dict[str, int] = {}
        self._unfinished: tuple[Change, ...] = ()
        self._has_schema = False
        self._term = 0
        self._revision = 0
        self._at_ms = 0

    async def load(self) -> Loaded:
        """Return all it holds; see Journal.load."""
        async with self._turn:
            self._lane.forget()
            read = await read_all(self._client, self._layout.prefix)
            return self._taken(read)

    async def append(
        self, entry: Entry | None, snapshots: tuple[Snapshot, ...] = (), keep_from: int = 0
    ) -> None:
        """Make it durable; see Journal.append."""
        if entry is not None and entry.term < self._term:
            raise DeposedError(f"term {entry.term} is over: term {self._term} has written")
        async with self._turn:
            await self._finish()
            if keep_from:
                await self._archive_below(keep_from)
            body = b"" if entry is None else encode_entry(entry)
            await self._write(self._changes(entry, body, snapshots, keep_from))
            self._has_schema = True
            if entry is not None:
                self._term, self._revision, self._at_ms = entry.term, entry.revision, entry.at_ms
                self._entries.append(ArchivedEntry(entry.revision, entry.at_ms, body))
            for snapshot in snapshots:
                self._snapshot_parts[snapshot.machine] = (
                    part_count(len(snapshot.body)) if snapshot.body else 0
                )
            while keep_from and self._entries and self._entries[0].revision < keep_from:
                self._entries.popleft()

    async def close(self) -> None:
        """Do nothing: the connections are not its own."""

    def _taken(self, read: Read) -> Loaded:
        layout = self._layout
        values = {key: row.value for key, row in read.rows.items()}
        if (schema := values.get(layout.schema)) is not None:
            check_schema(_number(schema))
        unfinished = redo.read(layout, values)
        values = redo.laid_over(values, unfinished)
        snapshots, parts = {}, {}
        for name, covers, count, body in joined(values, layout.snapshots):
            machine = name.decode()
            snapshots[machine] = Snapshot(machine, covers, body)
            parts[machine] = count
        entries = []
        kept: deque[ArchivedEntry] = deque()
        for _, _, _, body in joined(values, layout.journal):
            one = _decoded(body)
            entries.append(one)
            kept.append(ArchivedEntry(one.revision, one.at_ms, body))
        self._unfinished, self._snapshot_parts, self._entries = unfinished, parts, kept
        self._has_schema = schema is not None
        newest = entries[-1] if entries else None
        self._term = newest.term if newest else 0
        self._revision = newest.revision if newest else 0
        self._at_ms = newest.at_ms if newest else 0
        lane = read.rows.get(layout.lane)
        self._lane.was_read(lane.changed if lane else 0, lane.value if lane else b"")
        return Loaded(snapshots, tuple(entries), self._term, self._revision)

    def _changes(
        self, entry: Entry | None, body: bytes, snapshots: tuple[Snapshot, ...], keep_from: int
    ) -> list[Change]:
        """Return what an append changes."""
        layout = self._layout
        changes: list[Change] = []
        if not self._has_schema:
            changes.append(Change(layout.schema, b"%d" % SCHEMA))
        if keep_from:
            changes.append(Change(layout.entry(0), b"", layout.entry(keep_from)))
        if entry is not None:
            assert entry.revision == self._revision + 1, (entry.revision, self._revision)
            changes += [Change(*one) for one in cut(layout.entry(entry.revision), 0, body)]
        for snapshot in snapshots:
            changes += self._snapshot_changes(snapshot)
        return changes

    def _snapshot_changes(self, snapshot: Snapshot) -> list[Change]:
        key = self._layout.snapshot(snapshot.machine)
        old = self._snapshot_parts.get(snapshot.machine, 0)
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
        self._unfinished = tuple(changes)
        try:
            await self._finish()
        except StoreFullError as error:
            # It counts, so nobody may be told that nothing was recorded.
            raise StoreUnavailableError(
                "etcd is full: what was written last counts, and is carried out once there is room",
                hint=error.hint,
            ) from error

    async def _finish(self) -> None:
        """Carry out what counts already."""
        if not self._unfinished:
            return
        for batch in redo.batches(self._unfinished):
            await self._lane.write([one.operation() for one in batch])
        await self._lane.write([redo.done(self._layout).operation()])
        self._unfinished = ()

    async def _archive_below(self, keep_from: int) -> None:
        """Hand the entries that go to the archive first."""
        if self._archiver is None:
            return
        going = tuple(one for one in self._entries if one.revision < keep_from)
        revision, at_ms = self._revision, self._at_ms
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
        revision, at_ms = self._revision, self._at_ms
        await anyio.to_thread.run_sync(
            lambda: archiver.keep_base(parts, kind=kind, revision=revision, at_ms=at_ms)
        )


def _number(value: bytes) -> int:
    return int(value) if value.isdigit() else 1 << 30


def _decoded(body: bytes) -> Entry:
    """Return an entry, after a look at its schema: a newer one need not decode at all."""
    try:
        check_schema(msgspec.msgpack.decode(body, type=Head).schema)
        return decode_entry(body)
    except msgspec.MsgspecError as error:
        raise StoreUnavailableError(
            f"an entry of the journal in etcd cannot be read: {error}",
            hint="the store is damaged; restore it from a copy",
        ) from error
