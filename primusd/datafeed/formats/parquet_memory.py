"""How a row group of Parquet is read, and what that holds of memory. Pure.

Each column that is read has one page open, decompressed, and its dictionary. The pages as they are
in the file come in three ways: all of a column at once; through a buffer, which pyarrow lets grow
by every page below 16 KiB until a larger one comes; or those of the next rows (parquet_window.py).
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
import pyarrow as pa
from msgspec import Struct

from primusd.datafeed.formats.parquet_pages import Page

BUFFER_BYTES = 64 << 10
"""Of a column: a page that is longer is read past it."""
BUFFER_BYTES_MIN = 4 << 10
FAR_BUFFER_BYTES = 1 << 20
"""Of a file over a network, where every read waits for an answer."""
FAR_BUFFER_BYTES_MIN = 64 << 10
BUFFERS_SHARE = 16
"""All buffers have at most this part of memory, as long as each has the least."""
FAR_BUFFERS_SHARE = 8
LOOKED_AT_BYTES = 16 << 10
"""pyarrow looks at so much of a buffer to find the head of a page."""
PAGE_BYTES = 1 << 20
"""Most writers end a page there; what is taken of one that nobody looked at."""
ENTRY_BYTES = 32
"""Of a text in a dictionary: where it lies, beside the text."""
DICTIONARIES, DICTIONARIES_GIVEN = 3, 5
"""A dictionary as it was read, decompressed and looked up; for rows that have it, made anew."""
KEPT_SHARE = 2
"""Allocators keep this part more, since pages are of many sizes and come in several threads."""


class Chunk(Struct, frozen=True):
    """A column of a row group."""

    offset: int
    data_offset: int
    """Of its first page that is no dictionary."""
    packed_bytes: int
    """In the file."""
    byte_count: int
    """Decompressed."""
    is_packed: bool
    """It is compressed."""
    is_text: bool = False
    """Its values are of many lengths."""
    is_dictionary: bool = False
    """Rows come as places in a dictionary, which each batch has."""
    pages: tuple[Page, ...] = ()
    """The first ones; none: nobody looked."""
    has_rows: bool = False
    """All pages are known, and a value is a row."""

    @property
    def data_pages(self) -> list[Page]:
        """Its known pages, the dictionary excepted."""
        return [page for page in self.pages if not page.is_dictionary]

    @property
    def page_bytes(self) -> int:
        """The largest page, decompressed."""
        found = max((page.byte_count for page in self.data_pages), default=PAGE_BYTES)
        return min(self.byte_count, found)

    @property
    def next_page_bytes(self) -> int:
        """What is in memory more than that while a page comes and the one before it is there."""
        if self.is_packed:
            # It is decompressed into the place of the one before.
            return max((page.file_bytes for page in self.data_pages), default=PAGE_BYTES)
        sizes = [page.byte_count for page in self.data_pages] or [PAGE_BYTES] * 2
        pairs = (one + after for one, after in pairwise(sizes))
        return max(0, max(pairs, default=0) - max(sizes))

    @property
    def dictionary_bytes(self) -> int:
        """What a dictionary takes, in all its forms."""
        times = DICTIONARIES_GIVEN if self.is_dictionary else DICTIONARIES
        return sum(
            times * page.byte_count + ENTRY_BYTES * page.value_count
            for page in self.pages
            if page.is_dictionary
        )


class GroupPlan(Struct, frozen=True):
    """How a row group is read."""

    way: Literal["whole", "buffered", "windows"]
    held_bytes: int
    buffer_bytes: int = 0
    needed_bytes: int = 0
    """What is held with the largest buffers; 0: the same."""


def whole_plan(chunks: Sequence[Chunk]) -> GroupPlan:
    """Return what it takes to read columns whole."""
    packed = sum(chunk.packed_bytes for chunk in chunks)
    # Pages that are not compressed are used where they are.
    open_bytes = sum(one.page_bytes + one.dictionary_bytes for one in chunks if one.is_packed)
    return GroupPlan("whole", packed + _kept(open_bytes))


def buffered_plan(chunks: Sequence[Chunk], *, memory_bytes: int, is_far: bool) -> GroupPlan:
    """Return what it takes to read columns page by page, through buffers."""
    most, least, share = BUFFER_BYTES, BUFFER_BYTES_MIN, BUFFERS_SHARE
    if is_far:
        most, least, share = FAR_BUFFER_BYTES, FAR_BUFFER_BYTES_MIN, FAR_BUFFERS_SHARE
    buffer_bytes = max(least, min(most, memory_bytes // share // max(1, len(chunks))))
    coming = sorted((one.next_page_bytes for one in chunks), reverse=True)
    open_bytes = sum(coming[: pa.cpu_count()])
    open_bytes += sum(one.page_bytes + one.dictionary_bytes for one in chunks)
    open_bytes += sum(_grown_bytes(one) for one in chunks)

    def held(byte_count: int) -> int:
        return _kept(open_bytes + sum(min(byte_count, one.packed_bytes) for one in chunks))

    return GroupPlan("buffered", held(buffer_bytes), buffer_bytes, held(most))


def windows_plan(chunks: Sequence[Chunk], rows: int) -> GroupPlan:
    """Return what it takes to have of each column the pages for so many rows."""
    open_bytes = sum(one.dictionary_bytes + one.page_bytes for one in chunks if one.is_packed)
    windows = sum(min(one.packed_bytes, _window_bytes(one, rows)) for one in chunks)
    return GroupPlan("windows", windows + _kept(open_bytes))


def _window_bytes(chunk: Chunk, rows: int) -> int:
    """Return what the pages have at most in which a row and so many after it lie."""
    pages = chunk.data_pages
    dictionaries = sum(page.file_bytes for page in chunk.pages if page.is_dictionary)
    if not pages:
        return dictionaries
    row_ends = np.cumsum([page.value_count for page in pages])
    byte_ends = np.cumsum([page.file_bytes for page in pages])
    byte_begins = np.concatenate(([0], byte_ends[:-1]))
    # The last row of a page, and those after it.
    last = row_ends.searchsorted(row_ends + rows, side="right").clip(max=len(pages) - 1)
    return dictionaries + int((byte_ends[last] - byte_begins).max())


def uneven_bytes(chunks: Sequence[Chunk], block_bytes: int) -> int:
    """Return what a batch may have above what it was to have, while it is made of texts.

    All the long ones of a page may lie together.
    """
    return sum(2 * max(0, one.page_bytes - block_bytes) for one in chunks if one.is_text)


def _kept(byte_count: int) -> int:
    return byte_count + byte_count // KEPT_SHARE


def _grown_bytes(chunk: Chunk) -> int:
    """Return by how much the buffer of a column grows: by its longest run of small pages."""
    most = run = 0
    for page in chunk.data_pages:
        run = run + page.file_bytes if page.file_bytes < LOOKED_AT_BYTES else 0
        most = max(most, run)
    if most and not chunk.has_rows:
        # Nobody knows how it goes on.
        return chunk.packed_bytes
    return min(most, chunk.packed_bytes)


def rows_within(chunks: Sequence[Chunk], rows: int, *, block_bytes: int) -> int:
    """Return how many rows make a batch so that none is far above the others: at most `rows`.

    Values of very different length come in pages of very different numbers of rows, which tells
    where the large ones are.
    """
    spans = [
        Span((page.value_count, page.byte_count) for page in chunk.data_pages)
        for chunk in chunks
        if chunk.has_rows
    ]
    while rows > 1 and sum(one.most(rows) for one in spans) > block_bytes:
        rows = -(-rows // 2)
    return rows


class Span:
    """The bytes of a column up to each of its rows, evenly within a page."""

    def __init__(self, pages: Iterable[tuple[int, int]]) -> None:
        """Add pages up, each with its rows and bytes."""
        found = np.array([(0, 0), *pages], np.int64).cumsum(axis=0)
        self._rows, self._bytes = found[:, 0], found[:, 1]

    def most(self, rows: int) -> int:
        """Return how many bytes so many rows in sequence have at most."""
        begins = np.concatenate((self._rows, self._rows - rows)).clip(0)
        return int((self._before(begins + rows) - self._before(begins)).max())

    def _before(self, rows: np.ndarray) -> np.ndarray:
        found: np.ndarray = np.interp(rows, self._rows, self._bytes)
        return found
