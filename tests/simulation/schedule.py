"""Virtual time: calls, each at its millisecond; nothing else moves the clock."""

import heapq
from collections import deque
from collections.abc import Callable
from typing import Any

EPOCH_MS = 1_700_000_000_000
"""Wall clock of every host when a run begins."""

Call = tuple[Callable[..., None], tuple[Any, ...]]  # with arguments of its own


class Schedule:
    """What will happen, in order; calls of the same millisecond in the order of their making.

    Attributes:
        now_ms: Since the run began.
    """

    def __init__(self) -> None:
        self.now_ms = 0
        self._times: list[int] = []
        """A heap: each millisecond in which there is something to call, once."""
        self._calls: dict[int, deque[Call]] = {}
        self._now: deque[Call] = deque()
        """Those of the present millisecond that are left."""

    def later(self, delay_ms: int, call: Callable[..., None], *args: object) -> None:
        """Call once so much time has passed."""
        self.put(self.now_ms + delay_ms, call, args)

    def put(self, at_ms: int, call: Callable[..., None], args: tuple[object, ...]) -> None:
        """Call at that time."""
        calls = self._calls.get(at_ms)
        if calls is None:
            self._calls[at_ms] = deque(((call, args),))
            heapq.heappush(self._times, at_ms)
        else:
            calls.append((call, args))

    def step(self, until_ms: int) -> bool:
        """Move to the next call and make it; False, at `until_ms`, when none is before that."""
        if not self._now and not self._move_on(until_ms):
            return False
        call, args = self._now.popleft()
        call(*args)
        return True

    def _move_on(self, until_ms: int) -> bool:
        """Move to the next millisecond that has a call; False, at `until_ms`, when none has."""
        times = self._times
        while times and times[0] <= until_ms:
            at_ms = times[0]
            calls = self._calls[at_ms]
            if calls:
                self.now_ms, self._now = at_ms, calls
                return True
            # It stood there still for what its last call put into the same millisecond.
            del self._calls[at_ms]
            heapq.heappop(times)
        self.now_ms = until_ms
        return False


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
