"""Bases: snapshots kept beside the archive, from which a replay may begin.

Entries alone tell of a job from its submit on, and of admission from the first entry of the store
on. So that a replay need not read weeks of them, nor what is gone, snapshots are copied now and
then: admission's, and once a day those of all live jobs. A file's name tells when:
`2026-01-02-000000184467-1767323045006.base` (day, newest revision, journal time); with the jobs it
ends in `.all`. Its content is a msgpack map of snapshot key to (covers, body), in zstd.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import zstandard
from msgspec import Struct

ADMISSION_ONLY = ".base"
ALL = ".all"
BASE_EVERY_REVISIONS = 5_000
"""A replay applies about so many entries of admission at most, ..."""
BASE_EVERY_MS = 600_000
"""... but of a busy store none is kept sooner than this after the one before."""
_BYTES_MAX = 1 << 30
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[str, tuple[int, bytes]]).decode

Parts = Mapping[str, tuple[int, bytes]]
"""Snapshot key to the revision that it covers, and its body."""


class Base(Struct, frozen=True):
    """Where a base lies, and what its name tells."""

    revision: int
    """Newest when it was written: nothing in it is later."""
    at_ms: int
    """Journal time of that."""
    path: Path
    """Of a shared one, its name in the place where it lies."""
    read: Callable[[], bytes] | None = None
    """Gives its bytes, where it is no file of this host."""

    @property
    def has_jobs(self) -> bool:
        """Whether live jobs are in it."""
        return self.path.suffix == ALL

    @property
    def day(self) -> str:
        """The day on which it was written."""
        return self.path.name[:10]

    def parts(self) -> Parts:
        """Return its content."""
        content = self.path.read_bytes() if self.read is None else self.read()
        return _decode(zstandard.ZstdDecompressor().decompress(content, max_output_size=_BYTES_MAX))


def bases(folder: Path) -> tuple[Base, ...]:
    """Return all bases, oldest first; files that are none are passed over."""
    paths = [path for suffix in (ADMISSION_ONLY, ALL) for path in folder.glob(f"*{suffix}")]
    found = [base for path in paths if (base := base_named(path)) is not None]
    return tuple(sorted(found, key=lambda one: one.revision))


def base_named(path: Path, read: Callable[[], bytes] | None = None) -> Base | None:
    """Return the base that has a name; None: it is the name of something else."""
    words = path.stem.rsplit("-", 2)
    is_one = path.suffix in (ADMISSION_ONLY, ALL) and len(words) == 3
    if not is_one or not (words[1].isdecimal() and words[2].isdecimal()):
        return None
    return Base(int(words[1]), int(words[2]), path, read)


def base_name(*, kind: str, revision: int, at_ms: int, day: str) -> str:
    """Return the name that tells when a base was written."""
    return f"{day}-{revision:012d}-{at_ms}{kind}"


def packed(parts: Parts) -> bytes:
    """Return snapshots as a base holds them."""
    return zstandard.ZstdCompressor(level=3, write_checksum=True).compress(_encode(parts))


def due(known: Sequence[Base], *, revision: int, at_ms: int, day: str) -> str:
    """Return which base is worth keeping now: ALL, ADMISSION_ONLY, or "" none.

    Args:
        known: Those there are, oldest first.
        revision: The newest.
        at_ms: Journal time now.
        day: Of that.
    """
    if not known or known[-1].day != day:
        return ALL
    newest = known[-1]
    is_time = at_ms >= newest.at_ms + BASE_EVERY_MS
    return ADMISSION_ONLY if is_time and revision >= newest.revision + BASE_EVERY_REVISIONS else ""


def keep_base(
    folder: Path, parts: Parts, *, kind: str, revision: int, at_ms: int, day: str
) -> None:
    """Write a base, whole or not at all.

    Raises:
        OSError: It could not be written.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / base_name(kind=kind, revision=revision, at_ms=at_ms, day=day)
    part = path.with_suffix(".part")
    content = packed(parts)
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)


def prune_bases(folder: Path, *, oldest_day: str) -> tuple[Path, ...]:
    """Remove the bases of days whose entries are gone; return them."""
    removed = []
    for one in bases(folder):
        if one.day < oldest_day:
            one.path.unlink()
            removed.append(one.path)
    return tuple(removed)
