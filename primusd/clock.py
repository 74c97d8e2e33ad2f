"""Clocks: where time comes from; the core gets it with each step."""

import time
from typing import Protocol


class Clock(Protocol):
    """What the edges read time from."""

    def wall_ms(self) -> int:
        """Return milliseconds since the Unix epoch, as this host believes."""
        ...

    def boot_ms(self) -> int:
        """Return milliseconds since boot, suspension counted in; never falls."""
        ...


class SystemClock:
    """The clocks of this host."""

    def wall_ms(self) -> int:
        """Return milliseconds since the Unix epoch, as this host believes."""
        return time.time_ns() // 1_000_000

    def boot_ms(self) -> int:
        """Return milliseconds of CLOCK_BOOTTIME."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class ManualClock:
    """A clock that tests and the simulator move by hand."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now_ms = now_ms
        self.since_boot_ms = 1_000_000

    def wall_ms(self) -> int:
        """Return the wall clock as it was set."""
        return self.now_ms

    def boot_ms(self) -> int:
        """Return the boot clock as it was moved."""
        return self.since_boot_ms

    def advance(self, by_ms: int) -> None:
        """Move both clocks forward."""
        self.now_ms += by_ms
        self.since_boot_ms += by_ms
