"""Column chunks that are in memory only where they are read.

pyarrow asks for a chunk whole, or reads it through a buffer that grows by every page that is
smaller than 16 KiB. Here it gets memory as large as the chunk, in which only those pages are that
the next batch needs: they are read before it, and given back to the system after it.
"""

import mmap
import os
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from primusd.datafeed.formats.base import OpenFile
from primusd.datafeed.formats.parquet_memory import Chunk
from primusd.datafeed.storage.view import FileView

NO_RESERVE = 0x4000
"""MAP_NORESERVE, which Python has no name for."""


class Windows:
    """The chunks of a row group, all of whose pages are known and hold rows."""

    def __init__(self, file: OpenFile, chunks: Sequence[Chunk]) -> None:
        """Read nothing yet.

        Args:
            file: A local one.
            chunks: Of the columns that are read.
        """
        self._file = file
        self._windows = {chunk.offset: _Window(file, chunk) for chunk in chunks}

    def arrow(self) -> pa.NativeFile:
        """Return a view of the file for pyarrow, in which these chunks are windows."""
        return pa.PythonFile(_View(self._file, self._windows), mode="r")

    def move(self, first: int, last: int) -> None:
        """Have the pages that pyarrow needs to read some rows, counted from the group's first.

        Raises:
            ReadError: They cannot be read.
        """
        for window in self._windows.values():
            window.drop(first)
            window.fill(last)


class _Window:
    """One chunk."""

    def __init__(self, file: OpenFile, chunk: Chunk) -> None:
        self._file = file
        self._offset = chunk.offset
        head = sum(page.file_bytes for page in chunk.pages if page.is_dictionary)
        pages = [page for page in chunk.pages if not page.is_dictionary]
        self._row_ends = np.cumsum([page.value_count for page in pages])
        self._byte_ends = head + np.cumsum([page.file_bytes for page in pages])
        # A dictionary comes first, and stays.
        self._dropped = -(-head // mmap.PAGESIZE) * mmap.PAGESIZE
        self._row_filled = 0
        self._row_kept = int(self._row_ends[0]) if pages else 0
        self._wanted = head
        self._filled = 0
        self._region: mmap.mmap | None = None

    def region(self, byte_count: int) -> mmap.mmap:
        """Return the memory of the chunk; what is wanted now is in it."""
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
        self._region = mmap.mmap(-1, byte_count, flags=flags)
        self._region.madvise(mmap.MADV_NOHUGEPAGE)
        self._filled = 0
        self._read_on()
        return self._region

    def fill(self, rows: int) -> None:
        """Read up to the page that holds the row after the first `rows`: pyarrow looks at it."""
        if rows < self._row_filled or not len(self._row_ends):
            return
        place = min(int(self._row_ends.searchsorted(rows, side="right")), len(self._row_ends) - 1)
        self._row_filled = int(self._row_ends[place])
        self._wanted = int(self._byte_ends[place])
        self._read_on()

    def drop(self, rows: int) -> None:
        """Give the pages before that of the last one of the first `rows` back."""
        if self._region is None or rows <= self._row_kept:
            return
        place = int(self._row_ends.searchsorted(rows, side="left"))
        if not place:
            return
        self._row_kept = int(self._row_ends[min(place, len(self._row_ends) - 1)])
        end = int(self._byte_ends[place - 1]) // mmap.PAGESIZE * mmap.PAGESIZE
        if end > self._dropped:
            self._region.madvise(mmap.MADV_DONTNEED, self._dropped, end - self._dropped)
            self._dropped = end

    def _read_on(self) -> None:
        if self._region is None or self._filled >= self._wanted:
            return
        at, end = self._filled, min(self._wanted, len(self._region))
        with memoryview(self._region) as view, view[at:end] as part:
            count = os.preadv(self._file.fd, [part], self._offset + at)
            if count < end - at:
                # It says what is wrong, or has the rest.
                part[count:] = self._file.pread(self._offset + at + count, end - at - count)
        self._filled = end


class _View(FileView):
    """A file whose chunks are windows."""

    def __init__(self, file: OpenFile, windows: dict[int, _Window]) -> None:
        super().__init__(file)
        self._windows = windows

    def read_buffer(self, byte_count: int) -> mmap.mmap | bytes:
        """Return what pyarrow reads, without a copy."""
        window = self._windows.get(self.tell())
        if window is None:
            return self.read(byte_count)
        self.seek(byte_count, os.SEEK_CUR)
        return window.region(byte_count)
