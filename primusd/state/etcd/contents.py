"""What the journal of a cluster holds in etcd, but for the bodies of snapshots.

It is made from one read of everything, and goes on from what a watch tells or from what this head
writes itself.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from primusd.errors import StoreUnavailableError
from primusd.records import Entry, decode_entry
from primusd.state.archive import ArchivedEntry
from primusd.state.etcd import redo
from primusd.state.etcd.layout import Layout, part, split
from primusd.state.etcd.reading import Read
from primusd.state.etcd.redo import Change
from primusd.state.etcd.values import first_part, joined, part_count
from primusd.state.journal import Loaded, Snapshot, Written
from primusd.state.schema import Head, check_schema

_DELETED = 1
"""Type of an etcd event."""


class Contents:
    """Entries as they were written, and what has to be known of everything else.

    Attributes:
        entries: Those that are kept, in order.
        snapshot_parts: Of each snapshot that there is: in how many parts it lies.
        redo_rows: What is written down of changes, whether they count or not.
        unfinished: Changes that count and may not all be carried out yet.
        schema: The highest that ever wrote, as the store says; 0 it does not.
        term: The highest that ever wrote.
        revision: Of the last entry.
        at_ms: Journal time of the last entry.
    """

    def __init__(self, layout: Layout) -> None:
        self.entries: deque[ArchivedEntry] = deque()
        self.snapshot_parts: dict[str, int] = {}
        self.unfinished: tuple[Change, ...] = ()
        self.schema = 0
        self.term = self.revision = self.at_ms = 0
        self._layout = layout
        self.redo_rows: dict[bytes, bytes] = {}
        self._pieces: dict[bytes, bytes] = {}
        """Parts of an entry of which others are still to come."""

    def decoded(self) -> tuple[Entry, ...]:
        """Return the entries that are kept."""
        return tuple(decoded(one.body) for one in self.entries)

    def appended(self, entry: Entry, body: bytes) -> None:
        """Note an entry that was written."""
        self.term, self.revision, self.at_ms = entry.term, entry.revision, entry.at_ms
        self.entries.append(ArchivedEntry(entry.revision, entry.at_ms, body))

    def covered(self, snapshots: Iterable[Snapshot]) -> None:
        """Note snapshots that were written, or removed."""
        for one in snapshots:
            if one.body:
                self.snapshot_parts[one.machine] = part_count(len(one.body))
            else:
                self.snapshot_parts.pop(one.machine, None)

    def dropped_below(self, keep_from: int) -> None:
        """Note that older entries went."""
        while self.entries and self.entries[0].revision < keep_from:
            self.entries.popleft()

    def take(self, events: Iterable[Any]) -> Written:
        """Take in what etcd tells, and return what it comes to.

        A write that is too large for one transaction is taken as a whole as soon as it counts; that
        it is carried out afterwards changes nothing.

        Raises:
            NewerSchemaError: A newer version has written.
            StoreUnavailableError: What was written is damaged.
        """
        found = _Draft(self)
        for event in events:
            key, value = event.kv.key, event.kv.value
            is_gone = event.type == _DELETED
            if key.startswith(self._layout.redo):
                self._take_redo(found, key, b"" if is_gone else value)
            elif is_gone:
                self._gone(found, key)
            else:
                self._put(found, key, value)
        return found.written()

    def _take_redo(self, found: "_Draft", key: bytes, value: bytes) -> None:
        if value:
            self.redo_rows[key] = value
        else:
            self.redo_rows.pop(key, None)
        if key != redo.head(self._layout):
            return
        self.unfinished = redo.read(self._layout, self.redo_rows)
        for change in self.unfinished:
            if change.value:
                self._put(found, change.key, change.value)
            elif not change.end:
                self._gone(found, change.key)
            elif change.key == self._layout.entry(0):
                self._gone_below(found, int(change.end[len(self._layout.journal) :]))

    def _put(self, found: "_Draft", key: bytes, value: bytes) -> None:
        layout = self._layout
        if key == layout.schema:
            check_schema(number(value))
            self.schema = number(value)
        elif key.startswith(layout.journal):
            self._take_piece(found, key, value)
        elif key.startswith(layout.snapshots) and not split(key)[1]:
            name, first = key[len(layout.snapshots) :].decode(), first_part(key, value)
            self.snapshot_parts[name] = first.parts
            found.put(name, first.covers)

    def _gone(self, found: "_Draft", key: bytes) -> None:
        layout = self._layout
        if key.startswith(layout.journal):
            revision = int(split(key)[0][len(layout.journal) :])
            self._gone_below(found, revision + 1)
        elif key.startswith(layout.snapshots) and not split(key)[1]:
            name = key[len(layout.snapshots) :].decode()
            if self.snapshot_parts.pop(name, 0):
                found.remove(name)

    def _gone_below(self, found: "_Draft", keep_from: int) -> None:
        self.dropped_below(keep_from)
        found.keep_from = max(found.keep_from, keep_from)

    def _take_piece(self, found: "_Draft", key: bytes, value: bytes) -> None:
        """Take a part of an entry; the entry, once all are there."""
        name = split(key)[0]
        if int(name[len(self._layout.journal) :]) <= self.revision:
            return
        self._pieces[key] = value
        if name not in self._pieces:
            return
        first = first_part(name, self._pieces[name])
        rest = [part(name, count) for count in range(1, first.parts)]
        if any(one not in self._pieces for one in rest):
            return
        body = b"".join((first.body, *(self._pieces[one] for one in rest)))
        self._pieces.clear()
        entry = decoded(body)
        if entry.revision != self.revision + 1:
            raise StoreUnavailableError(
                f"entry {entry.revision} in etcd follows on entry {self.revision}",
                hint="the store is damaged; restore it from a copy",
            )
        self.appended(entry, body)
        found.entries.append(entry)


class _Draft:
    """What some events come to, in the making."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self.entries: list[Entry] = []
        self._covers: dict[str, int] = {}
        self._gone: set[str] = set()
        self.keep_from = 0

    def put(self, name: str, covers: int) -> None:
        self._covers[name] = covers
        self._gone.discard(name)

    def remove(self, name: str) -> None:
        self._covers.pop(name, None)
        self._gone.add(name)

    def written(self) -> Written:
        return Written(tuple(self.entries), self._covers, frozenset(self._gone), self.keep_from)


def read_contents(layout: Layout, read: Read) -> tuple[Contents, Loaded]:
    """Return what there is, and the same as a load tells it.

    Raises:
        NewerSchemaError: A newer version wrote it.
        StoreUnavailableError: It is damaged.
    """
    contents = Contents(layout)
    values = {key: row.value for key, row in read.rows.items()}
    if (schema := values.get(layout.schema)) is not None:
        check_schema(number(schema))
        contents.schema = number(schema)
    contents.unfinished = redo.read(layout, values)
    contents.redo_rows = {key: one for key, one in values.items() if key.startswith(layout.redo)}
    values = redo.laid_over(values, contents.unfinished)
    snapshots = _snapshots(layout, values, contents)
    entries = []
    for _, _, _, body in joined(values, layout.journal):
        entry = decoded(body)
        entries.append(entry)
        contents.appended(entry, body)
    return contents, Loaded(snapshots, tuple(entries), contents.term, contents.revision)


def _snapshots(
    layout: Layout, values: Mapping[bytes, bytes], contents: Contents
) -> dict[str, Snapshot]:
    snapshots = {}
    for name, covers, count, body in joined(values, layout.snapshots):
        machine = name.decode()
        snapshots[machine] = Snapshot(machine, covers, body)
        contents.snapshot_parts[machine] = count
    return snapshots


def number(value: bytes) -> int:
    """Return a schema number; what is none is higher than all."""
    return int(value) if value.isdigit() else 1 << 30


def decoded(body: bytes) -> Entry:
    """Return an entry, after a look at its schema: a newer one need not decode at all.

    Raises:
        NewerSchemaError: A newer version wrote it.
        StoreUnavailableError: It is damaged.
    """
    try:
        check_schema(msgspec.msgpack.decode(body, type=Head).schema)
        return decode_entry(body)
    except msgspec.MsgspecError as error:
        raise StoreUnavailableError(
            f"an entry of the journal in etcd cannot be read: {error}",
            hint="the store is damaged; restore it from a copy",
        ) from error
