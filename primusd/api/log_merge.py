"""The logs of a job's attempts as one stream of lines, in the order in which they came.

Blocking reads of files: it runs in a worker thread. A line stays bytes; what is longer than 64 KiB
comes in parts.
"""

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from msgspec import Struct

from primusd.api.log_index import TimeIndex
from primusd.executor.logs import STREAMS, Piece, read_log
from primusd.job.ids import parse_replica

READ_BYTES = 256 << 10
LINE_BYTES_MAX = 64 << 10
TAIL_BYTES_MAX = 1 << 20
"""Of one file; the tail of a job is put together from those of its files."""
POLL_BYTES_MAX = 1 << 20


class LogLine(Struct, frozen=True, order=True):
    """A line, or a part of a very long one, or a gap."""

    at_ms: int
    """When it came, at the latest known before it; 0 not known."""
    replica: str
    attempt: int
    stream: str
    offset: int
    data: bytes = b""
    gap: int = 0
    """Bytes that are missing here."""


class Wanted(Struct, frozen=True):
    """Which logs of a job are asked for."""

    role: str = ""
    index: int = -1
    attempt: int = 0
    """0 all; -1 the one before the newest."""
    stream: str = ""


class LogReader(Protocol):
    """Where the bytes of one stream come from."""

    def read(self, offset: int, byte_count: int) -> Piece:
        """Return what is there from an offset on; empty: nothing more yet.

        Raises:
            OSError: Nothing can be read.
        """
        ...

    def times(self) -> TimeIndex:
        """Return when which byte came."""
        ...


class FileReader:
    """A stream whose files are on this host."""

    def __init__(self, directory: Path, stream: str) -> None:
        self._directory = directory
        self._stream = stream
        self._quiet: tuple[int, int] | None = None

    def read(self, offset: int, byte_count: int) -> Piece:
        """Return what the files hold; one that stands still is not opened again."""
        stat = (self._directory / f"{self._stream}.log").stat()
        mark = (stat.st_ino, stat.st_size)
        if byte_count and mark == self._quiet:
            return Piece(offset, b"", offset)
        piece = read_log(self._directory, self._stream, offset, byte_count)
        self._quiet = mark if byte_count and not piece.data else None
        return piece

    def times(self) -> TimeIndex:
        """Return the index beside the files."""
        return TimeIndex(self._directory, self._stream)


class Source:
    """One stream of one attempt."""

    def __init__(
        self, reader: LogReader, replica: str, attempt: int, stream: str, *, since_ms: int = 0
    ) -> None:
        self.replica = replica
        self.attempt = attempt
        self.stream = stream
        self.pending: deque[LogLine] = deque()
        self._reader = reader
        self._rest = b""
        self._position = 0
        if since_ms:
            with reader.times() as index:
                found = index.offset_since(since_ms)
            self._position = found if found >= 0 else self._end()

    def _end(self) -> int:
        try:
            return self._reader.read(0, 0).size
        except OSError:
            return 0

    def fill(self) -> bool:
        """Read on, if something is there; True when something was."""
        try:
            piece = self._reader.read(self._position, READ_BYTES)
        except OSError:
            return False
        if piece.offset > self._position:
            lost = piece.offset - self._position
            self.pending.append(self._line(0, self._position, gap=lost))
            self._rest = b""
        if not piece.data:
            return False
        begin = piece.offset - len(self._rest)
        self._position = piece.offset + len(piece.data)
        self._split(begin, self._rest + piece.data)
        return True

    def flush(self) -> None:
        """Give out a last line without an end: nothing more comes."""
        if self._rest:
            rest, self._rest = self._rest, b""
            self._add(self._position - len(rest), (rest,))

    def _split(self, begin: int, data: bytes) -> None:
        lines = data.split(b"\n")
        self._rest = lines.pop()
        whole = [line + b"\n" for line in lines]
        if len(self._rest) >= LINE_BYTES_MAX:
            whole.append(self._rest)
            self._rest = b""
        self._add(begin, whole)

    def _add(self, begin: int, lines: Iterable[bytes]) -> None:
        with self._reader.times() as index:
            for line in lines:
                self.pending.append(self._line(index.at_ms(begin), begin, data=line))
                begin += len(line)

    def _line(self, at_ms: int, offset: int, *, data: bytes = b"", gap: int = 0) -> LogLine:
        return LogLine(at_ms, self.replica, self.attempt, self.stream, offset, data, gap)

    def skip_to_tail(self, line_count: int) -> None:
        """Go on with the last lines only, as far as they are within 1 MiB."""
        end = self._end()
        begin = max(self._position, end - TAIL_BYTES_MAX)
        try:
            piece = self._reader.read(begin, end - begin)
        except OSError:
            return
        # Higher than asked for where older files are gone.
        begin, data = piece.offset, piece.data
        place = len(data) - (1 if data.endswith(b"\n") else 0)
        for _ in range(line_count):
            place = data.rfind(b"\n", 0, place)
            if place < 0:
                break
        if place < 0 and begin > self._position:
            place = data.find(b"\n")
        self._position = begin + place + 1


class LogMerge:
    """All logs of a job that are wanted, merged."""

    def __init__(
        self,
        folders: tuple[Path, ...],
        wanted: Wanted,
        *,
        newest: Mapping[str, int] = MappingProxyType({}),
        since_ms: int = 0,
        tail: int = -1,
    ) -> None:
        """Make a merge; nothing is read yet.

        Args:
            folders: Of the job: `<state>/jobs/<uid>`, and where copies from other hosts are.
            wanted: Which attempts and streams.
            newest: By replica, the number of its newest attempt, which may have no files here.
            since_ms: Only what came then or later; 0 all.
            tail: Only the last so many lines of what is there now; -1 all.
        """
        self._folders = folders
        self._wanted = wanted
        self._newest = newest
        self._since_ms = since_ms
        self._tail = tail
        self._sources: dict[tuple[str, int, str], Source] = {}

    def poll(self, *, flushes: bool = False, discovers: bool = True) -> list[LogLine]:
        """Return the next lines, oldest first, at most about 1 MiB of them.

        Args:
            flushes: Nothing more is written: last lines without an end count as whole.
            discovers: There may be attempts that were not there before.
        """
        if discovers:
            self._discover()
        if self._tail >= 0:
            tail, self._tail = self._tail, -1
            return self._take_tail(tail, flushes=flushes)
        found = list(self._take())
        if not found and flushes:
            for source in self._sources.values():
                source.flush()
            found = list(self._take())
        return found

    def _take_tail(self, line_count: int, *, flushes: bool) -> list[LogLine]:
        newest: list[LogLine] = []
        for source in self._sources.values():
            source.skip_to_tail(line_count)
            while source.fill():
                pass
            if flushes:
                source.flush()
            for line in source.pending:
                heapq.heappush(newest, line)
                if len(newest) > line_count:
                    heapq.heappop(newest)
            source.pending.clear()
        return sorted(newest)

    def _take(self) -> Iterator[LogLine]:
        heap: list[tuple[LogLine, Source]] = []
        for source in self._sources.values():
            if source.pending or source.fill():
                self._push(heap, source)
        byte_count = 0
        while heap and byte_count < POLL_BYTES_MAX:
            line, source = heapq.heappop(heap)
            source.pending.popleft()
            byte_count += len(line.data) + 1
            yield line
            if source.pending or source.fill():
                self._push(heap, source)

    def _push(self, heap: list[tuple[LogLine, Source]], source: Source) -> None:
        if source.pending:
            heapq.heappush(heap, (source.pending[0], source))

    def add(self, reader: LogReader, replica: str, attempt: int, stream: str) -> None:
        """Read one more stream."""
        source = Source(reader, replica, attempt, stream, since_ms=self._since_ms)
        self._sources[replica, attempt, stream] = source

    def is_read(self, replica: str, attempt: int, stream: str) -> bool:
        """Return whether a stream is among those that are read."""
        return (replica, attempt, stream) in self._sources

    def _discover(self) -> None:
        """Open what has come since."""
        for replica, attempt, directory in self._attempts():
            for stream in STREAMS:
                key = (replica, attempt, stream)
                if key not in self._sources and self._wanted.stream in ("", stream):
                    self.add(FileReader(directory, stream), *key)

    def _attempts(self) -> Iterator[tuple[str, int, Path]]:
        found: dict[str, dict[int, Path]] = {}
        for folder in self._folders:
            for replica, number, path in _attempts_below(folder):
                found.setdefault(replica, {}).setdefault(number, path)
        for replica, paths in sorted(found.items()):
            for number in sorted(self._wanted_numbers(replica, paths)):
                yield replica, number, paths[number]

    def _wanted_numbers(self, replica: str, numbers: Iterable[int]) -> set[int]:
        """Return which attempts of a replica are wanted, of those that have files here."""
        wanted, there = self._wanted, set(numbers)
        role, index = parse_replica(replica)
        if wanted.role not in ("", role) or wanted.index not in (-1, index):
            return set()
        if wanted.attempt == -1:
            known = sorted(there | {self._newest.get(replica, 0)} - {0})
            return there & set(known[-2:-1])
        return there if wanted.attempt == 0 else there & {wanted.attempt}


def _attempts_below(folder: Path) -> Iterator[tuple[str, int, Path]]:
    """Yield replica, number and directory of every attempt that has files in a job's folder."""
    try:
        replicas = list(folder.iterdir())
    except OSError:
        return
    for one in replicas:
        try:
            parse_replica(one.name)
        except ValueError:
            continue
        for path in one.glob("a*"):
            if path.name[1:].isdecimal():
                yield one.name, int(path.name[1:]), path
