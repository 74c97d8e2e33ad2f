"""The embedded store: the journal in SQLite, for one head and without anything to install.

WAL mode and `synchronous=FULL`: what was acknowledged is on disk. One writer thread; the connection
holds the file exclusively, so nobody else writes and no shared memory file is needed. Values are
cut into parts of at most 256 KiB. Source: https://www.sqlite.org/wal.html.
"""

import os
import sqlite3
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.to_thread
import msgspec
import structlog

from primusd.errors import (
    DeposedError,
    NewerSchemaError,
    StoreFullError,
    StoreUnavailableError,
)
from primusd.records import ADMISSION, SCHEMA, Entry, decode_entry, encode_entry
from primusd.state.archive import ArchivedEntry, History
from primusd.state.archiving import ArchiveLimits, Archiver
from primusd.state.ballast import Ballast
from primusd.state.bases import ALL
from primusd.state.figures import StoreFigures
from primusd.state.journal import Loaded, Snapshot
from primusd.state.schema import Head, check_schema

log = structlog.get_logger()
T = TypeVar("T")

VALUE_BYTES_MAX = 256 << 10
"""No stored value is larger: a later move to another store keeps its limits."""
WAL_BYTES_KEPT = 16 << 20
_MAGIC = b"SQLite format 3\0"
_USER_VERSION_OFFSET = 60
"""Of the file's header: https://www.sqlite.org/fileformat.html#user_version_number."""

_TABLES = """
CREATE TABLE IF NOT EXISTS journal(
    revision INTEGER NOT NULL, part INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (revision, part));
CREATE TABLE IF NOT EXISTS snapshots(
    key TEXT NOT NULL, part INTEGER NOT NULL, covers INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (key, part));
"""


class EmbeddedJournal:
    """The journal in one SQLite file."""

    def __init__(
        self,
        path: Path,
        *,
        archive: History | None = None,
        ballast: Ballast | None = None,
        limits: ArchiveLimits = ArchiveLimits(),  # noqa: B008 - a frozen value.
    ) -> None:
        """Name the file; it is opened by the first `load`.

        Args:
            path: Of the file; its folder exists.
            archive: Gets entries before they go; None: they just go.
            ballast: Given up when the disk is full.
            limits: Of the archive.
        """
        self._path = path
        self._archiver = None if archive is None else Archiver(archive, limits)
        self._ballast = ballast
        self._db: sqlite3.Connection | None = None
        self._schema = 0
        self._term = 0
        self._revision = 0
        self._at_ms = 0
        self._lane = anyio.CapacityLimiter(1)

    async def load(self) -> Loaded:
        """Return all it holds; see Journal.load."""
        return await self._run(self._load)

    async def entries(self) -> tuple[Entry, ...]:
        """Return the entries that it holds; see Journal.entries."""
        return await self._run(
            lambda: tuple(_decoded(revision, body) for revision, body in _bodies(self._opened()))
        )

    async def append(
        self, entry: Entry | None, snapshots: tuple[Snapshot, ...] = (), keep_from: int = 0
    ) -> None:
        """Make it durable; see Journal.append."""
        if entry is not None and entry.term < self._term:
            raise DeposedError(f"term {entry.term} is over: term {self._term} has written")
        await self._run(lambda: self._append(entry, snapshots, keep_from))

    async def replace(self, loaded: Loaded) -> None:
        """Make it hold this alone; see Journal.replace."""
        await self._run(lambda: self._replace(loaded))

    async def close(self) -> None:
        """Let go of the file."""
        await self._run(self._close)

    async def _run(self, work: Callable[[], T]) -> T:
        """Run a piece of work in the writer thread, its failures told as errors of the store."""

        def guarded() -> T:
            try:
                return work()
            except sqlite3.Error as error:
                raise self._failed(error) from error

        return await anyio.to_thread.run_sync(guarded, limiter=self._lane)

    def _load(self) -> Loaded:
        db = self._opened()
        snapshots = {one.machine: one for one in _snapshots(db)}
        entries = tuple(_decoded(revision, body) for revision, body in _bodies(db))
        self._revision = entries[-1].revision if entries else 0
        self._term = entries[-1].term if entries else 0
        self._at_ms = entries[-1].at_ms if entries else 0
        return Loaded(snapshots, entries, self._term, self._revision)

    def _append(self, entry: Entry | None, snapshots: tuple[Snapshot, ...], keep_from: int) -> None:
        if self._db is None:
            raise StoreUnavailableError("the journal is closed; it has to be loaded again")
        db = self._db
        if keep_from:
            self._archive_below(db, keep_from)
        db.execute("BEGIN IMMEDIATE")
        if entry is not None:
            assert entry.revision == self._revision + 1, (entry.revision, self._revision)
            _write_entry(db, entry)
        for snapshot in snapshots:
            _write_snapshot(db, snapshot)
        if keep_from:
            db.execute("DELETE FROM journal WHERE revision < ?", (keep_from,))
        if self._schema < SCHEMA:
            db.execute(f"PRAGMA user_version={SCHEMA}")
        db.execute("COMMIT")
        if self._schema < SCHEMA:
            _show_schema(db)
            self._schema = SCHEMA
        if entry is not None:
            self._term, self._revision = entry.term, entry.revision
            self._at_ms = entry.at_ms

    def _replace(self, loaded: Loaded) -> None:
        db = self._opened()
        db.execute("BEGIN IMMEDIATE")
        db.execute("DELETE FROM journal")
        db.execute("DELETE FROM snapshots")
        for entry in loaded.entries:
            _write_entry(db, entry)
        for snapshot in loaded.snapshots.values():
            _write_snapshot(db, snapshot)
        db.execute("COMMIT")
        self._close()

    def _archive_below(self, db: sqlite3.Connection, keep_from: int) -> None:
        """Hand the entries that go to the archive first."""
        if self._archiver is None:
            return
        found = [
            ArchivedEntry(revision, _decoded(revision, body).at_ms, body)
            for revision, body in _bodies(db, below=keep_from)
        ]
        kind = self._archiver.archive(found, revision=self._revision, at_ms=self._at_ms)
        if kind:
            rows = _snapshots(db, None if kind == ALL else ADMISSION)
            at_ms = max(found[-1].at_ms, self._at_ms)
            snapshots = {one.machine: (one.covers, one.body) for one in rows}
            self._archiver.keep_base(snapshots, kind=kind, revision=self._revision, at_ms=at_ms)

    def _opened(self) -> sqlite3.Connection:
        if self._db is None:
            check_schema(_user_version(self._path))
            db = _connect(self._path)
            # Who wrote it last may have ended before the header said so.
            self._schema = db.execute("PRAGMA user_version").fetchone()[0]
            try:
                check_schema(self._schema)
            except NewerSchemaError:
                db.close()
                raise
            self._db = db
        return self._db

    def _close(self) -> None:
        if self._db is not None:
            db, self._db = self._db, None
            db.close()

    def _failed(self, error: sqlite3.Error) -> StoreUnavailableError:
        """Return the error of the store that a failure of SQLite is; nothing stays half done."""
        is_full = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL
        try:
            if self._db is not None and self._db.in_transaction:
                self._db.execute("ROLLBACK")
        except sqlite3.Error:
            is_full = False
        if is_full:
            if self._ballast is not None:
                self._ballast.give_up()
            return StoreFullError(
                f"the disk of {self._path.parent} is full; nothing was recorded",
                hint="free some room there; running trainers go on meanwhile",
            )
        # It is not known what stands in the file: it is opened anew by the next load.
        try:
            self._close()
        except sqlite3.Error as closing:
            log.warning("journal.close_failed", text=str(closing))
        return StoreUnavailableError(f"the journal {self._path} failed: {error}")


def embedded_figures(path: Path) -> StoreFigures:
    """Return how large the store is, and what its disk has left. Blocks.

    Args:
        path: Of the file; one that is not there has no bytes.
    """
    files = (path, path.with_name(f"{path.name}-wal"))
    disk = os.statvfs(path.parent)
    return StoreFigures(
        kind="embedded",
        place=str(path),
        byte_count=sum(one.stat().st_size for one in files if one.exists()),
        free_byte_count=disk.f_bavail * disk.f_frsize,
    )


def _user_version(path: Path) -> int:
    """Return the schema in the header of the file without opening it; 0 for a new one."""
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise StoreUnavailableError(
            f"the journal {path} cannot be read: {error.strerror}"
        ) from error
    if not header.startswith(_MAGIC):
        # Not ours to judge; SQLite says what it is.
        return 0
    return int.from_bytes(header[_USER_VERSION_OFFSET : _USER_VERSION_OFFSET + 4], "big")


def _connect(path: Path) -> sqlite3.Connection:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0)
    try:
        # Exclusive first: then WAL mode keeps its index in memory instead of a shared file.
        db.execute("PRAGMA locking_mode=EXCLUSIVE")
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute(f"PRAGMA journal_size_limit={WAL_BYTES_KEPT}")
        if db.execute("PRAGMA user_version").fetchone()[0] == 0:
            db.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version={SCHEMA}; COMMIT;")
            _show_schema(db)
    except sqlite3.Error:
        db.close()
        raise
    return db


def _show_schema(db: sqlite3.Connection) -> None:
    """Let the number stand in the file's own header, where others look for it."""
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _parts(body: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of each part of a value."""
    for part, first in enumerate(range(0, max(1, len(body)), VALUE_BYTES_MAX)):
        yield part, body[first : first + VALUE_BYTES_MAX]


def _write_entry(db: sqlite3.Connection, entry: Entry) -> None:
    db.executemany(
        "INSERT INTO journal VALUES (?, ?, ?)",
        [(entry.revision, part, body) for part, body in _parts(encode_entry(entry))],
    )


def _write_snapshot(db: sqlite3.Connection, snapshot: Snapshot) -> None:
    db.execute("DELETE FROM snapshots WHERE key = ?", (snapshot.machine,))
    if snapshot.body:
        db.executemany(
            "INSERT INTO snapshots VALUES (?, ?, ?, ?)",
            [
                (snapshot.machine, part, snapshot.covers, body)
                for part, body in _parts(snapshot.body)
            ],
        )


def _snapshots(db: sqlite3.Connection, wanted: str | None = None) -> Iterator[Snapshot]:
    """Yield all snapshots, or the one whose key is wanted."""
    rows = db.execute(
        "SELECT key, covers, body FROM snapshots WHERE ? IS NULL OR key = ? ORDER BY key, part",
        (wanted, wanted),
    )
    for (key, covers), some in groupby(rows, key=lambda row: (row[0], row[1])):
        yield Snapshot(key, covers, b"".join(row[2] for row in some))


def _bodies(db: sqlite3.Connection, *, below: int = 1 << 62) -> Iterator[tuple[int, bytes]]:
    """Yield revision and body of the entries below a revision, in order."""
    rows = db.execute(
        "SELECT revision, body FROM journal WHERE revision < ? ORDER BY revision, part", (below,)
    )
    for revision, some in groupby(rows, key=lambda row: row[0]):
        yield revision, b"".join(row[1] for row in some)


def _decoded(revision: int, body: bytes) -> Entry:
    """Return an entry, after a look at its schema: a newer one need not decode at all."""
    try:
        check_schema(msgspec.msgpack.decode(body, type=Head).schema)
        return decode_entry(body)
    except msgspec.MsgspecError as error:
        raise StoreUnavailableError(
            f"journal entry {revision} cannot be read: {error}",
            hint="the store is damaged; restore it from a copy",
        ) from error
