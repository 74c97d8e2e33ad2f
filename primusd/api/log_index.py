"""When which byte of a log came: binary search in the index that the executor keeps beside it."""

import os
import struct
from pathlib import Path
from types import TracebackType
from typing import Self

_ENTRY = struct.Struct("<qqq")
_OFFSET, _AT = 0, 1


class TimeIndex:
    """The index of one stream, read where it is needed: it may be long."""

    def __init__(self, directory: Path | None, stream: str) -> None:
        """Open the index; one that is not there is empty.

        Args:
            directory: Of the attempt; None makes an empty index.
            stream: `stdout` or `stderr`.
        """
        self._file = -1
        if directory is None:
            return
        try:
            self._file = os.open(directory / f"{stream}.index", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the index."""
        if self._file >= 0:
            os.close(self._file)

    def __len__(self) -> int:
        return os.fstat(self._file).st_size // _ENTRY.size if self._file >= 0 else 0

    def at_ms(self, offset: int) -> int:
        """Return when the byte at an offset came, at the earliest; 0 not known."""
        place = self._first_above(_OFFSET, offset) - 1
        return self._entry(place)[_AT] if place >= 0 else 0

    def offset_since(self, at_ms: int) -> int:
        """Return the offset from which on everything came then or later; -1 none is known."""
        place = self._first_above(_AT, at_ms - 1)
        return self._entry(place)[_OFFSET] if place < len(self) else -1

    def _first_above(self, field: int, value: int) -> int:
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self._entry(middle)[field] > value:
                high = middle
            else:
                low = middle + 1
        return low

    def _entry(self, place: int) -> tuple[int, int, int]:
        data = os.pread(self._file, _ENTRY.size, place * _ENTRY.size)
        offset, at_ms, lost = _ENTRY.unpack(data)
        return offset, at_ms, lost
