"""Virtual time: a heap of calls, each at its millisecond; nothing else moves the clock."""

import heapq
from collections.abc import Callable
from typing import Any

EPOCH_MS = 1_700_000_000_000
"""Wall clock of every host when a run begins."""


class Schedule:
    """What will happen, in order; calls of the same millisecond in the order of their making.

    Attributes:
        now_ms: Since the run began.
    """

    def __init__(self) -> None:
        self.now_ms = 0
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []  # their own
        self._count = 0

    def later(self, delay_ms: int, call: Callable[..., None], *args: object) -> None:
        """Call once so much time has passed."""
        self._count += 1
        heapq.heappush(self._heap, (self.now_ms + delay_ms, self._count, call, args))

    def step(self, until_ms: int) -> bool:
        """Move to the next call and make it; False, at `until_ms`, when none is before that."""
        heap = self._heap
        if not heap or heap[0][0] > until_ms:
            self.now_ms = until_ms
            return False
        at_ms, _, call, args = heapq.heappop(heap)
        self.now_ms = at_ms
        call(*args)
        return True


class HostClock:
    """The clocks of one head: a wall clock that people set, and one that only goes on."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self.skew_ms = 0

    def wall_ms(self) -> int:
        """Return the wall clock, as wrong as it was set."""
        return EPOCH_MS + self._schedule.now_ms + self.skew_ms

    def boot_ms(self) -> int:
        """Return the boot clock."""
        return 1_000_000 + self._schedule.now_ms
