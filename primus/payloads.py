"""Memory for what comes over the socket, used again once nobody looks at it.

Fresh memory costs more than what is copied into it: the kernel clears each page and maps it.
Batches are views of it, so a piece is free when no view is left, which its count of references
tells. It begins at a multiple of 64, as tensors want that are made without a copy.
"""

import sys
from typing import Any

import numpy as np

from primus.wire import ALIGNMENT

KEPT_MAX = 8
"""One that is used, one on its way, and those that loaders hold: `tf.data` lets go of some late."""
FREE = 2
"""References to a piece that nobody looks at: of the list, and of who counts them."""


class Payloads:
    """Pieces of memory; one thread uses them."""

    def __init__(self) -> None:
        self._kept: list[Any] = []

    def allocate(self, byte_count: int) -> memoryview:
        """Return writable memory of so many bytes, with anything in it."""
        free = [place for place in range(len(self._kept)) if self._is_free(place)]
        for place in free:
            if self._kept[place].nbytes >= byte_count + ALIGNMENT:
                return _aligned(self._kept[place], byte_count)
        fresh = np.empty(byte_count + ALIGNMENT, np.uint8)
        if free:
            # Those that are free are too small.
            self._kept[free[0]] = fresh
        elif len(self._kept) < KEPT_MAX:
            self._kept.append(fresh)
        return _aligned(fresh, byte_count)

    def _is_free(self, place: int) -> bool:
        return sys.getrefcount(self._kept[place]) <= FREE


def _aligned(whole: Any, byte_count: int) -> memoryview:
    first = -whole.ctypes.data % ALIGNMENT
    return memoryview(whole.data)[first : first + byte_count]
