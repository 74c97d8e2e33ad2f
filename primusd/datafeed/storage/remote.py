"""A file that is reached over a network: read ahead in pieces, many at once, within a budget.

What is needed next is told by `prefetch`, or seen from reading on where the last read ended. It is
cut into pieces, near ranges merged first; so many pieces are on their way or wait to be read as fit
into the budget. A piece is dropped once its end was read. Whatever was not told is read by itself.
"""

import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from primusd.datafeed.protocol import Unit
from primusd.datafeed.storage.base import HEAD_BYTES, Handle, ReadError, Storage, StorageError
from primusd.datafeed.storage.credentials import WAITED_FOR
from primusd.datafeed.storage.pool import POOL, Pool, answer

if TYPE_CHECKING:  # Loaded after the fork only: it starts threads.
    import pyarrow as pa

AHEAD_BYTES = 32 << 20
"""Of one file, where nobody names another bound."""
PIECE_BYTES = 4 << 20
GAP_BYTES = 512 << 10
"""Between two ranges: fetching so much in vain costs less than a second request."""
ALONE_BYTES = 64 << 10
"""The least that is asked for, since many small reads lie close together."""
TRIES = 3
CHECK_S = 5.0
"""Between two looks at whether the file is still the one that was listed."""


@dataclass(slots=True, eq=False)
class _Piece:
    lo: int
    hi: int
    coming: Future[bytes] | None = None
    read_to: int = field(init=False)

    def __post_init__(self) -> None:
        self.read_to = self.lo


class RemoteFile:
    """An opened, pinned file of a storage."""

    fd = -1

    def __init__(
        self,
        unit: Unit,
        storage: Storage,
        *,
        ahead_bytes: int = AHEAD_BYTES,
        pool: Pool = POOL,
    ) -> None:
        """Open the file that was listed.

        Args:
            unit: As it was listed.
            storage: That has it.
            ahead_bytes: The most that is fetched and not read yet.
            pool: Whose threads fetch.

        Raises:
            ReadError: It is gone, another one, or cannot be opened.
        """
        self.size = unit.byte_count
        self._unit = unit
        self._storage = storage
        self._pool = pool
        self._budget = ahead_bytes
        self._lock = threading.Lock()
        self._queue: deque[_Piece] = deque()
        self._pieces: list[_Piece] = []
        self._last_end = -1
        self._follows = -1
        self._alone: tuple[int, bytes] = (0, b"")
        self._checked_s = -CHECK_S
        self.check()
        try:
            self._handle: Handle = pool.call(storage.open, unit.location)
        except StorageError as error:
            raise self._failed(error) from error

    def pread(self, offset: int, count: int) -> bytes:
        """Return bytes of it, as `OpenFile.pread`."""
        offset = max(0, offset)
        end = min(offset + count, self.size)
        parts = []
        at = offset
        while at < end:
            part = self._part(at, end)
            parts.append(part)
            at += len(part)
        self._last_end = end
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def prefetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Say what is read next, as `OpenFile.prefetch`.

        What was told before, is not read and is not told again goes; the rest of it stays.
        """
        wanted = merged(ranges, self.size)
        with self._lock:
            self._follows = -1
            kept = [
                one for one in self._pieces if any(lo < one.hi and one.lo < hi for lo, hi in wanted)
            ]
            fresh = _without(wanted, [(one.lo, one.hi) for one in kept])
            self._replace([piece for lo, hi in fresh for piece in _cut(lo, hi)], kept)

    def arrow(self) -> "pa.NativeFile":
        """Return a view of it for pyarrow."""
        import pyarrow as pa  # noqa: PLC0415 starts threads

        from primusd.datafeed.storage.view import FileView  # noqa: PLC0415

        return pa.PythonFile(FileView(self), mode="r")

    def check(self) -> None:
        """Check that it is still as it was listed, as `OpenFile.check`; not more than once in 5 s.

        What was read is right without: it was checked after it came, or is of the opened file.
        """
        now_s = time.monotonic()
        if now_s < self._checked_s + CHECK_S:
            return
        self._checked_s = now_s
        try:
            self._pool.call(self._check_now)
        except StorageError as error:
            raise self._failed(error) from error

    @property
    def held_bytes(self) -> int:
        """What was fetched, or is on its way, and is not read yet."""
        with self._lock:
            return self._held()

    # Inside.

    def _part(self, at: int, end: int) -> bytes:
        """Return some bytes from a place on, at least one."""
        with self._lock:
            piece = self._find(at) or self._go_on(at, end)
            if piece is not None and piece.coming is None:
                self._begin(piece)
        if piece is None:
            return self._read_alone(at, end)
        assert piece.coming is not None
        try:
            data = answer(piece.coming)
        except StorageError as error:
            self._drop(piece)
            raise self._failed(error) from error
        part = data[at - piece.lo : end - piece.lo]
        with self._lock:
            piece.read_to = max(piece.read_to, at + len(part))
            if piece.read_to >= piece.hi and piece in self._pieces:
                self._pieces.remove(piece)
            self._start_more()
        return part

    def _find(self, at: int) -> _Piece | None:
        for group in (self._pieces, self._queue):
            for piece in group:
                if piece.lo <= at < piece.hi:
                    return piece
        return None

    def _go_on(self, at: int, end: int) -> _Piece | None:
        """Return the piece at a place where the last read ended: more of the like will follow."""
        is_told = self._follows < 0 and (self._queue or self._pieces)
        if at != self._last_end or is_told:
            return None
        self._follows = min(self.size, max(end, at + PIECE_BYTES))
        self._replace(_cut(at, self._follows))
        return self._find(at)

    def _replace(self, pieces: list[_Piece], kept: Sequence[_Piece] = ()) -> None:
        for old in self._pieces:
            if old.coming is not None and old not in kept:
                old.coming.cancel()
        self._pieces = [*kept]
        self._queue = deque(pieces)
        self._start_more()

    def _read_alone(self, at: int, end: int) -> bytes:
        first, data = self._alone
        if first <= at and end <= first + len(data):
            return data[at - first : end - first]
        # The first bytes of a record are often followed by a look at those before it.
        end = min(end, at + PIECE_BYTES)
        lo = at if end - at >= ALONE_BYTES else max(0, min(at, self.size - ALONE_BYTES))
        hi = min(self.size, max(end, lo + ALONE_BYTES))
        try:
            data = self._pool.call(self._fetch, lo, hi)
        except StorageError as error:
            raise self._failed(error) from error
        if len(data) <= ALONE_BYTES:
            self._alone = (lo, data)
        return data[at - lo : end - lo]

    def _begin(self, piece: _Piece) -> None:
        if piece in self._queue:
            self._queue.remove(piece)
            self._pieces.append(piece)
        piece.coming = self._pool.submit(self._fetch, piece.lo, piece.hi)

    def _start_more(self) -> None:
        while self._queue or 0 <= self._follows < self.size:
            if not self._queue:
                lo, self._follows = self._follows, min(self.size, self._follows + PIECE_BYTES)
                self._queue.append(_Piece(lo, self._follows))
            piece = self._queue[0]
            if self._pieces and self._held() + piece.hi - piece.lo > self._budget:
                return
            self._begin(piece)

    def _held(self) -> int:
        return sum(piece.hi - piece.lo for piece in self._pieces)

    def _drop(self, piece: _Piece) -> None:
        with self._lock:
            if piece in self._pieces:
                self._pieces.remove(piece)

    def _fetch(self, lo: int, hi: int) -> bytes:
        """Return bytes of the file that was listed; tries again at once, since much is brief."""
        for left in reversed(range(TRIES)):
            try:
                data = self._handle.read(lo, hi - lo)
                if len(data) != hi - lo:
                    self._note_short(lo + len(data))
                if self._storage.reads_by_name:
                    # Another file may have got the name since it was opened.
                    self._check_now()
            except StorageError as error:
                if not left or error.kind != "transient":
                    raise
            else:
                return data
        raise AssertionError("the last try returns or raises")

    def _note_short(self, end: int) -> None:
        self._check_now()
        raise StorageError(f"ends early, at byte {end}", kind="transient")

    def _check_now(self) -> None:
        found = self._storage.find(self._unit.location)
        if found is None or found.is_folder:
            raise StorageError("is gone since it was listed", kind="vanished")
        if found.byte_count != self._unit.byte_count:
            text = f"it has {found.byte_count} bytes and had {self._unit.byte_count}"
        elif self._unit.pin and found.pin and found.pin != self._unit.pin:
            text = "it was written again"
        else:
            return
        raise StorageError(f"changed since it was listed: {text}", kind="changed")

    def _failed(self, error: StorageError) -> ReadError:
        kind, text = error.kind, error.message
        if kind in ("transient", "data"):
            # What cannot be read may be so because it is another file by now.
            try:
                self._pool.call(self._check_now)
            except StorageError as why:
                # Clients say little of a read that is refused.
                if why.kind in ("changed", "vanished") or why.kind in WAITED_FOR:
                    kind, text = why.kind, why.message
        says = f"{self._unit.location} {text}"
        if kind not in ("changed", "vanished"):
            says = f"{self._unit.location} cannot be read: {text}"
        return ReadError(says, kind=kind, head=self._head() if kind == "changed" else b"")

    def _head(self) -> bytes:
        try:
            handle = self._pool.call(self._storage.open, self._unit.location)
            return self._pool.call(handle.read, 0, HEAD_BYTES)
        except StorageError:
            return b""


def merged(ranges: Sequence[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """Return ranges as (lo, hi) within a size, sorted; those with a small gap become one."""
    found: list[tuple[int, int]] = []
    for offset, count in sorted(ranges):
        lo, hi = max(0, offset), min(offset + count, size)
        if lo >= hi:
            continue
        if found and lo - found[-1][1] <= GAP_BYTES:
            found[-1] = (found[-1][0], max(hi, found[-1][1]))
        else:
            found.append((lo, hi))
    return found


def _without(
    ranges: Sequence[tuple[int, int]], taken: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return what is left of sorted ranges without those that are taken."""
    found = []
    for begin, end in ranges:
        at = begin
        for lo, hi in sorted(taken):
            if lo < end and at < hi:
                if at < lo:
                    found.append((at, lo))
                at = max(at, hi)
        if at < end:
            found.append((at, end))
    return found


def _cut(lo: int, hi: int) -> list[_Piece]:
    return [_Piece(at, min(at + PIECE_BYTES, hi)) for at in range(lo, hi, PIECE_BYTES)]
