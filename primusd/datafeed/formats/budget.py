"""The memory of one reader, and who has how much of it.

Half is for rows that were read and not taken yet, as far as what reads them leaves it: open pages
and buffers, what a decompressor looks back on, a record or a batch that has to be whole, and what
is fetched ahead of a storage. These are charged here before they are taken; rows give way.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from primusd.datafeed.storage.base import OpenFile

ROWS_SHARE = 2
"""Rows that wait have at most this part of it: a half."""
AHEAD_SHARE = 4
"""What is fetched ahead of a storage and not read yet."""
DECODING_EIGHTHS = 5
"""Of memory: what reading may hold."""
SLACK_SHARE = 16
SLACK_BYTES = 12 << 20
"""For frames on their way, and what allocators keep of what was freed: the share, this at least,
and twice the share where memory is little."""
BLOCK_SHARE = 16
BLOCK_BYTES_MIN = 64 << 10
BLOCK_BYTES_MAX = 16 << 20
BLOCKS_DECODED = 2
"""A block that is decoded, and the same one as its stream has it."""


class Budget:
    """The memory of one reader.

    Attributes:
        memory_bytes: All of it.
        shares: Files that are read in turns.
        block_bytes: About how much of a file is decoded at once.
    """

    def __init__(
        self, memory_bytes: int, shares: int = 1, wait: Callable[[], None] = lambda: None
    ) -> None:
        """Share it out.

        Args:
            memory_bytes: All of it.
            shares: Files that are read in turns.
            wait: Called after something was charged; returns once the rows that wait leave room.
        """
        self.memory_bytes = memory_bytes
        self.shares = shares
        part = memory_bytes // BLOCK_SHARE // shares
        self.block_bytes = max(BLOCK_BYTES_MIN, min(part, BLOCK_BYTES_MAX))
        self._wait = wait
        self._charges: dict[object, int] = {}
        self._far: weakref.WeakSet[OpenFile] = weakref.WeakSet()

    @property
    def ahead_bytes(self) -> int:
        """What may be fetched ahead of one file."""
        return self.memory_bytes // AHEAD_SHARE // self.shares

    @property
    def decoding_max(self) -> int:
        """What reading one file may hold, beside the blocks that it gives.

        Of files that are read in turns each may, and rows of all of them give way.
        """
        return self.memory_bytes * DECODING_EIGHTHS // 8

    def memory_for(self, byte_count: int) -> int:
        """Return what memory has to be for reading one file to hold so much."""
        return -(-byte_count * 8 // DECODING_EIGHTHS)

    @property
    def held_bytes(self) -> int:
        """What was charged."""
        # A copy: a file that nobody holds any more may end in another thread.
        held = sum(list(self._charges.values()))
        return held + (self.memory_bytes // AHEAD_SHARE if self._far else 0)

    @property
    def rows_max(self) -> int:
        """What rows that wait may take now."""
        least = min(SLACK_BYTES, self.memory_bytes * 2 // SLACK_SHARE)
        slack = max(self.memory_bytes // SLACK_SHARE, least)
        kept = BLOCKS_DECODED * self.block_bytes * self.shares + slack
        left = self.memory_bytes - self.held_bytes - kept
        return max(0, min(self.memory_bytes // ROWS_SHARE, left))

    @contextmanager
    def holding(self, byte_count: int) -> Iterator[None]:
        """Charge so many bytes for a while; first the rows that wait have to leave room."""
        key = object()
        self._charges[key] = byte_count
        try:
            self._wait()
            yield
        finally:
            del self._charges[key]

    def make_room(self, byte_count: int) -> None:
        """Let the rows that wait leave room for what is taken next, and goes before more wait."""
        with self.holding(byte_count):
            pass

    def opened(self, file: OpenFile) -> None:
        """Note a file; what was fetched ahead of others is dropped where one is read at a time."""
        if file.fd >= 0:
            return
        if self.shares == 1:
            for other in list(self._far):
                other.prefetch(())
        self._far.add(file)
