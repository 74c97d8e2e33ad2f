"""The archive: entries that the journal no longer needs, one file a day, for `history` and replay.

A file is a sequence of zstd frames (RFC 8878); `zstd -dc FILE` gives msgpack arrays of entries, one
behind the other. Before each frame stands a skippable frame with its length and revisions, so that
a reader leaps over what it does not want, and a frame that a crash cut short is found and cut off.
"""

import io
import os
import struct
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec
import zstandard
from msgspec import Struct

from primusd.records import Entry, job_of
from primusd.state.bases import Base, Parts, bases, due, keep_base, prune_bases

SUFFIX = ".zst"
LEVEL = 3
FRAME_ENTRIES_MAX = 512
_DAY_MS = 86_400_000
_SKIPPABLE_MAGIC = 0x184D2A50
_HEADER = struct.Struct("<IIIQQ")
"""Magic, size of what follows, length of the data frame, its first and last revision."""
_HEADER_BODY_BYTES = _HEADER.size - 8
_DECOMPRESSED_BYTES_MAX = 1 << 30
_ARRAY_32 = struct.Struct(">BI")
_decode_entries = msgspec.msgpack.Decoder(list[Entry]).decode


class _Frame(Struct, frozen=True):
    start: int
    """Of the compressed data, behind the header."""
    byte_count: int
    first: int
    last: int


class ArchivedEntry(Struct, frozen=True):
    """An entry as the journal stored it."""

    revision: int
    at_ms: int
    body: bytes


class History(Protocol):
    """Entries that the journal no longer needs, and bases. Its methods block."""

    def append(self, entries: Sequence[ArchivedEntry]) -> None:
        """Add entries behind all others and wait until they are durable.

        Raises:
            OSError: They could not be written.
        """
        ...

    def read(self, from_revision: int = 0, *, job: str = "", from_ms: int = 0) -> Iterator[Entry]:
        """Yield the entries from a revision on, oldest first, each once.

        Args:
            from_revision: Of the first one wanted.
            job: Only entries that have a record of this job or its streams; "" all.
            from_ms: Entries of days before that of this time may be passed over.
        """
        ...

    def prune(self, *, now_ms: int, keep_ms: int, bytes_max: int) -> tuple[Path, ...]:
        """Remove the oldest files that are too old or too much, never today's; return them."""
        ...

    def bases(self) -> tuple[Base, ...]:
        """Return all bases, oldest first."""
        ...

    def wants_base(self, *, revision: int, at_ms: int) -> str:
        """Return which base is worth keeping now, see `bases.due`."""
        ...

    def keep_base(self, parts: Parts, *, kind: str, revision: int, at_ms: int) -> None:
        """Keep snapshots for replays.

        Args:
            parts: As the journal has them.
            kind: As `wants_base` said.
            revision: The newest; nothing in them is later.
            at_ms: Journal time of that.

        Raises:
            OSError: They could not be written.
        """
        ...


class Archive:
    """A folder of daily files of one head; see History."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._last_revision = -1
        self._bases: tuple[Base, ...] | None = None

    def append(self, entries: Sequence[ArchivedEntry]) -> None:
        """Add entries; see History.append. Repeats are left out."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._last_revision < 0:
            self._last_revision = self.newest_revision()
        new = [one for one in entries if one.revision > self._last_revision]
        for first in range(0, len(new), FRAME_ENTRIES_MAX):
            self._append_some(new[first : first + FRAME_ENTRIES_MAX])

    def _append_some(self, entries: Sequence[ArchivedEntry]) -> None:
        by_day: dict[str, list[ArchivedEntry]] = {}
        for entry in entries:
            by_day.setdefault(day_of(entry.at_ms), []).append(entry)
        for day, some in by_day.items():
            _append_durably(self.folder / f"{day}{SUFFIX}", frame_of(some))
            self._last_revision = some[-1].revision

    def read(self, from_revision: int = 0, *, job: str = "", from_ms: int = 0) -> Iterator[Entry]:
        """Yield the entries from a revision on; see History.read."""
        oldest_day = day_of(from_ms)
        for path in self.files():
            if path.stem < oldest_day:
                continue
            for entry in entries_in(path.read_bytes(), from_revision):
                from_revision = entry.revision + 1
                if not job or any(job_of(one.machine) == job for one in entry.records):
                    yield entry

    def prune(self, *, now_ms: int, keep_ms: int, bytes_max: int) -> tuple[Path, ...]:
        """Remove the oldest files that are too old or too much, never today's; return them."""
        oldest_day = day_of(now_ms - keep_ms)
        files = [path for path in self.files() if path.stem != day_of(now_ms)]
        byte_count = sum(path.stat().st_size for path in self.files())
        removed = []
        for path in files:
            if path.stem >= oldest_day and byte_count <= bytes_max:
                break
            byte_count -= path.stat().st_size
            path.unlink()
            removed.append(path)
        kept = self.files()
        if removed and kept:
            prune_bases(self.folder, oldest_day=kept[0].stem)
        return tuple(removed)

    def bases(self) -> tuple[Base, ...]:
        """Return all bases; see History.bases."""
        return bases(self.folder)

    def wants_base(self, *, revision: int, at_ms: int) -> str:
        """Return which base is worth keeping now, see `bases.due`."""
        if self._bases is None:
            self._bases = bases(self.folder)
        return due(self._bases, revision=revision, at_ms=at_ms, day=day_of(at_ms))

    def keep_base(self, parts: Parts, *, kind: str, revision: int, at_ms: int) -> None:
        """Keep snapshots for replays; see History.keep_base."""
        day = day_of(at_ms)
        keep_base(self.folder, parts, kind=kind, revision=revision, at_ms=at_ms, day=day)
        self._bases = bases(self.folder)

    def newest_revision(self) -> int:
        """Return the highest revision of an entry in it; 0 none."""
        return max((frame.last for path in self.files() for frame in _frames(path)), default=0)

    def files(self) -> tuple[Path, ...]:
        """Return the daily files, oldest first."""
        return tuple(sorted(self.folder.glob(f"*{SUFFIX}")))


def day_of(at_ms: int) -> str:
    """Return the day of a journal time, as its file is named."""
    return datetime.fromtimestamp(max(0, at_ms) / 1000, UTC).strftime("%Y-%m-%d")


def _append_durably(path: Path, data: bytes) -> None:
    """Append behind the last whole frame; a frame that a crash cut short is overwritten."""
    frames = _frames(path) if path.exists() else ()
    end = frames[-1].start + frames[-1].byte_count if frames else 0
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(fd, end)
        try:
            # Room first: a full disk must not leave half a frame.
            os.posix_fallocate(fd, end, len(data))
            written = 0
            while written < len(data):
                written += os.pwrite(fd, data[written:], end + written)
        except OSError:
            os.ftruncate(fd, end)
            raise
        os.fsync(fd)
    finally:
        os.close(fd)


def frame_of(entries: Sequence[ArchivedEntry]) -> bytes:
    """Return entries as one frame, behind the one that leaps over it."""
    data = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).compress(
        _joined([one.body for one in entries])
    )
    first, last = entries[0].revision, entries[-1].revision
    return _HEADER.pack(_SKIPPABLE_MAGIC, _HEADER_BODY_BYTES, len(data), first, last) + data


def entries_in(data: bytes, from_revision: int) -> Iterator[Entry]:
    """Yield the entries in the bytes of a file from a revision on, oldest first, each once."""
    decompressor = zstandard.ZstdDecompressor()
    for frame in _frames_in(io.BytesIO(data), len(data)):
        if frame.last < from_revision:
            continue
        body = decompressor.decompress(
            data[frame.start : frame.start + frame.byte_count],
            max_output_size=_DECOMPRESSED_BYTES_MAX,
        )
        for entry in _decode_entries(body):
            if entry.revision >= from_revision:
                from_revision = entry.revision + 1
                yield entry


def _frames(path: Path) -> tuple[_Frame, ...]:
    """Return the whole frames of a file, in order."""
    with path.open("rb") as file:
        return _frames_in(file, path.stat().st_size)


def _frames_in(file: BinaryIO, size: int) -> tuple[_Frame, ...]:
    found = []
    position = 0
    while len(header := file.read(_HEADER.size)) == _HEADER.size:
        magic, body_bytes, byte_count, first, last = _HEADER.unpack(header)
        start = position + _HEADER.size
        is_ours = magic == _SKIPPABLE_MAGIC and body_bytes == _HEADER_BODY_BYTES
        if not is_ours or start + byte_count > size or byte_count == 0:
            break
        found.append(_Frame(start, byte_count, first, last))
        position = start + byte_count
        file.seek(position)
    return tuple(found)


def _joined(bodies: Sequence[bytes]) -> bytes:
    """Return encoded values as one msgpack array, without decoding them."""
    return b"".join((_ARRAY_32.pack(0xDD, len(bodies)), *bodies))
