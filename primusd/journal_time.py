"""Journal time: the one clock of everything durable (docs/state-machines.md §2)."""

from primusd.clock import Clock

SLEW_PER_MS = 1_000
"""Journal time moves towards the wall clock by one millisecond in so many."""


class JournalTime:
    """Advances with the boot clock, leans slowly towards the wall clock, never goes back.

    A wall clock that jumps moves nothing: deadlines in the state stay as far away as they were.
    """

    def __init__(self, clock: Clock, *, last_at_ms: int) -> None:
        self._clock = clock
        self._boot_ms = clock.boot_ms()
        self._now_ms = max(clock.wall_ms(), last_at_ms + 1)
        self._unslewed_ms = 0

    def now_ms(self) -> int:
        """Return journal time now."""
        boot_ms = self._clock.boot_ms()
        if boot_ms != self._boot_ms:
            self._advance(boot_ms)
        return self._now_ms

    def _advance(self, boot_ms: int) -> None:
        passed_ms = max(0, boot_ms - self._boot_ms)
        self._boot_ms = boot_ms
        self._now_ms += passed_ms
        self._unslewed_ms += passed_ms
        allowed_ms, self._unslewed_ms = divmod(self._unslewed_ms, SLEW_PER_MS)
        if allowed_ms:
            off_ms = self._clock.wall_ms() - self._now_ms
            self._now_ms += max(-allowed_ms, min(allowed_ms, off_ms))

    def skew_ms(self) -> int:
        """Return by how much the wall clock is ahead of journal time; `doctor` shows it."""
        return self._clock.wall_ms() - self.now_ms()
