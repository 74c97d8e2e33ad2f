"""Bases: states of admission kept beside the archive, from which a replay may begin.

A job and its streams are replayed from their own first records; admission has no beginning once the
oldest entries are gone. So now and then its snapshot is kept, in a file whose name tells which
entries it covers: `2026-01-02-000000184467-1767323045006.base`, zstd of the snapshot's body.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import zstandard
from msgspec import Struct

SUFFIX = ".base"
BASE_EVERY_REVISIONS = 5_000
"""A replay applies at most so many entries of admission, and those of a day at most."""
_BYTES_MAX = 1 << 28


class Base(Struct, frozen=True):
    """Admission as of a revision."""

    covers: int
    """Revision whose records, and all before, are in it."""
    at_ms: int
    """Journal time by which all of these were written."""
    path: Path

    def body(self) -> bytes:
        """Return the snapshot, as `state/snapshots.py` encodes it."""
        packed = self.path.read_bytes()
        return zstandard.ZstdDecompressor().decompress(packed, max_output_size=_BYTES_MAX)


def bases(folder: Path) -> tuple[Base, ...]:
    """Return all bases, oldest first; files that are none are passed over."""
    found = []
    for path in folder.glob(f"*{SUFFIX}"):
        parts = path.stem.rsplit("-", 2)
        if len(parts) == 3 and parts[1].isdecimal() and parts[2].isdecimal():
            found.append(Base(int(parts[1]), int(parts[2]), path))
    return tuple(sorted(found, key=lambda one: one.covers))


def is_due(known: Sequence[Base], *, covers: int, day: str) -> bool:
    """Return whether another base is worth keeping: the first of a day, or after many entries."""
    if not known or covers <= 0:
        return covers > 0
    newest = known[-1]
    if covers <= newest.covers:
        return False
    return newest.path.name[:10] != day or covers >= newest.covers + BASE_EVERY_REVISIONS


def keep_base(folder: Path, body: bytes, *, covers: int, at_ms: int, day: str) -> None:
    """Write a base, whole or not at all.

    Raises:
        OSError: It could not be written.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{day}-{covers:012d}-{at_ms}{SUFFIX}"
    part = path.with_suffix(".part")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(zstandard.ZstdCompressor(level=3, write_checksum=True).compress(body))
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)


def prune_bases(folder: Path, *, oldest_day: str) -> tuple[Path, ...]:
    """Remove the bases of days whose entries are gone; return them."""
    removed = []
    for one in bases(folder):
        if one.path.name[:10] < oldest_day:
            one.path.unlink()
            removed.append(one.path)
    return tuple(removed)
