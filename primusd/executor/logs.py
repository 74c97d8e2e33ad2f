"""What a trainer prints: files of bounded size, an index of times, the last lines, patterns.

A stream is one sequence of bytes, addressed by offset from the attempt's start. `stdout.log` is its
newest file, `stdout.<offset>.log` are older ones, named by the offset of their first byte.
`stdout.index` has 24 bytes per entry: offset, wall clock in milliseconds, bytes lost just before.
A full disk loses lines and never blocks; the loss is marked in the file and in the index.
"""

import os
import re
import struct
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

STREAMS = ("stdout", "stderr")
TAIL_BYTES = 4096
INDEX_EVERY_MS = 10
FILES_MIN = 2
ROOM_KEPT_BYTES = 32 << 20
ROOM_KEPT_PART = 20
"""Of a disk, one part in so many at most: what is printed must not take the last room, in which
the daemon records how jobs end.
"""
LINE_BYTES_MAX = 64 << 10
"""Of a line that patterns are looked for in; a longer one is searched in parts."""

_ENTRY = struct.Struct("<qqq")
INDEX_ENTRY_BYTES = _ENTRY.size


class Tail:
    """The last 4 KiB of all output, in the order it came."""

    def __init__(self) -> None:
        self._kept = bytearray()

    def add(self, data: bytes) -> None:
        """Take what came next."""
        self._kept += data[-TAIL_BYTES:]
        if len(self._kept) > 4 * TAIL_BYTES:
            del self._kept[:-TAIL_BYTES]

    def text(self) -> str:
        """Return the last lines; bytes that are no UTF-8 are replaced."""
        kept = bytes(self._kept[-TAIL_BYTES:])
        text = kept.decode("utf-8", errors="replace")
        while len(text.encode()) > TAIL_BYTES:
            text = text[len(text) // 8 + 1 :]
        return text


class Patterns:
    """Which of a job's log patterns were seen in lines, whole or cut anywhere by the pipe."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self._waiting = {
            position: re.compile(pattern.encode()) for position, pattern in enumerate(patterns)
        }
        self._rest: dict[str, bytes] = {}
        self.matched: tuple[int, ...] = ()

    def search(self, stream: str, data: bytes) -> None:
        """Look at what came next on a stream."""
        if not self._waiting:
            return
        lines = (self._rest.pop(stream, b"") + data).split(b"\n")
        self._rest[stream] = lines[-1][-LINE_BYTES_MAX:]
        found = [
            position
            for position, pattern in self._waiting.items()
            if any(pattern.search(line) for line in lines)
        ]
        for position in found:
            del self._waiting[position]
        self.matched = tuple(sorted((*self.matched, *found)))


class LogWriter:
    """One stream's files."""

    def __init__(
        self, directory: Path, stream: str, *, file_bytes_max: int, files_max: int
    ) -> None:
        self._directory = directory
        self._stream = stream
        self._file_bytes_max = file_bytes_max
        self._files_max = max(FILES_MIN, files_max)
        self._path = directory / f"{stream}.log"
        self._file = self._open(self._path)
        self._index = self._open(directory / f"{stream}.index")
        self._start = 0
        self._size = 0
        self._indexed_ms = 0
        self._lost = 0
        self._is_closed = False

    @staticmethod
    def _open(path: Path) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        return os.open(path, flags, 0o640)

    @property
    def offset(self) -> int:
        """How many bytes the stream has so far."""
        return self._start + self._size

    def write(self, data: bytes, at_ms: int) -> None:
        """Keep what came; what finds no room is counted and marked later."""
        if self._is_closed:
            return
        if not self._has_room(len(data)):
            self._lost += len(data)
            return
        try:
            if self._lost:
                self._mark_loss(at_ms)
            elif at_ms - self._indexed_ms >= INDEX_EVERY_MS:
                self._note(at_ms, 0)
        except OSError:
            self._lost += len(data)
            return
        self._append(data)
        if self._size >= self._file_bytes_max:
            self._rotate()

    def _has_room(self, byte_count: int) -> bool:
        disk = os.fstatvfs(self._file)
        kept = min(ROOM_KEPT_BYTES, disk.f_blocks * disk.f_frsize // ROOM_KEPT_PART)
        return disk.f_bavail * disk.f_frsize - byte_count > kept

    def close(self, at_ms: int) -> None:
        """Mark a loss if there is one, and close; what comes afterwards is dropped."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._lost:
                self._mark_loss(at_ms)
        except OSError:
            self._lost += 1
        os.close(self._file)
        os.close(self._index)

    def _mark_loss(self, at_ms: int) -> None:
        lost = self._lost
        text = f"\n[primusd: {lost} bytes of output were lost: no room on the disk]\n".encode()
        if os.write(self._file, text) < len(text):
            os.ftruncate(self._file, self._size)
            raise OSError("no room for the mark")
        self._note(at_ms, lost)
        self._size += len(text)
        self._lost = 0

    def _note(self, at_ms: int, lost: int) -> None:
        entry = _ENTRY.pack(self.offset, at_ms, lost)
        written = os.write(self._index, entry)
        if written < len(entry):
            os.ftruncate(self._index, os.fstat(self._index).st_size - written)
            raise OSError("no room for the index")
        self._indexed_ms = at_ms

    def _append(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                written = os.write(self._file, view)
            except OSError:
                self._lost += len(view)
                return
            self._size += written
            view = view[written:]

    def _rotate(self) -> None:
        try:
            self._path.rename(self._directory / f"{self._stream}.{self._start:016d}.log")
            fresh = self._open(self._path)
        except OSError:
            return
        os.close(self._file)
        self._file = fresh
        self._start += self._size
        self._size = 0
        for old, _ in _rotated(self._directory, self._stream)[: -(self._files_max - 1)]:
            old.unlink(missing_ok=True)


class Piece(Struct, frozen=True):
    """Bytes of a stream."""

    offset: int
    """Of the first byte: higher than asked for where older files are gone."""
    data: bytes
    size: int
    """Of the whole stream as of now."""


class Moment(Struct, frozen=True):
    """An entry of the index: what came from this offset on, came at this time or later."""

    offset: int
    at_ms: int
    lost: int
    """Bytes lost just before; the mark in the stream begins here."""


def _rotated(directory: Path, stream: str) -> list[tuple[Path, int]]:
    found = []
    for path in directory.glob(f"{stream}.*.log"):
        middle = path.name[len(stream) + 1 : -len(".log")]
        if middle.isdecimal():
            found.append((path, int(middle)))
    return sorted(found, key=lambda pair: pair[1])


def read_log(directory: Path, stream: str, offset: int, byte_count: int) -> Piece:
    """Return bytes of a stream of an attempt, live or ended.

    Args:
        directory: Of the attempt.
        stream: `stdout` or `stderr`.
        offset: Of the first byte wanted; negative counts from the end.
        byte_count: At most so many.

    Raises:
        FileNotFoundError: The attempt has no such stream.
    """
    files = _rotated(directory, stream)
    newest = directory / f"{stream}.log"
    start = files[-1][1] + files[-1][0].stat().st_size if files else 0
    files.append((newest, start))
    size = start + newest.stat().st_size
    position = max(0, size + offset) if offset < 0 else offset
    position = max(position, files[0][1])
    first = position
    parts: list[bytes] = []
    for path, file_start in files:
        file_end = file_start + path.stat().st_size
        if position >= file_end or byte_count <= 0:
            continue
        with path.open("rb") as file:
            file.seek(position - file_start)
            part = file.read(byte_count)
        parts.append(part)
        position += len(part)
        byte_count -= len(part)
    return Piece(min(first, size), b"".join(parts), size)


def read_index(directory: Path, stream: str) -> tuple[Moment, ...]:
    """Return the index of a stream, oldest entry first; empty where there is none."""
    try:
        data = (directory / f"{stream}.index").read_bytes()
    except FileNotFoundError:
        return ()
    whole = len(data) - len(data) % _ENTRY.size
    return tuple(Moment(*entry) for entry in _ENTRY.iter_unpack(data[:whole]))


class Output:
    """Both streams of a trainer: what `life` hands the bytes to."""

    def __init__(
        self,
        directory: Path,
        *,
        file_bytes_max: int,
        files_max: int,
        patterns: tuple[str, ...],
        wall_ms: Callable[[], int],
    ) -> None:
        self._wall_ms = wall_ms
        self._patterns = Patterns(patterns)
        self._tail = Tail()
        self._writers = {
            stream: LogWriter(directory, stream, file_bytes_max=file_bytes_max, files_max=files_max)
            for stream in STREAMS
        }

    @property
    def matched(self) -> tuple[int, ...]:
        """Positions of the patterns that were seen."""
        return self._patterns.matched

    @property
    def last_lines(self) -> str:
        """The end of all output."""
        return self._tail.text()

    def take(self, stream: str, data: bytes) -> None:
        """Keep what came on a stream."""
        self._tail.add(data)
        self._patterns.search(stream, data)
        self._writers[stream].write(data, self._wall_ms())

    def note(self, stream: str, text: str) -> None:
        """Keep what we have to say ourselves; it is no line of the trainer's."""
        self._writers[stream].write(text.encode(), self._wall_ms())

    def close(self) -> None:
        """Close the files."""
        for writer in self._writers.values():
            writer.close(self._wall_ms())
