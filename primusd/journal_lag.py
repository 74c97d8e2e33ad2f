"""How far the journal is behind: how long it takes until what happened is durable."""

from primusd.clock import Clock


class JournalLag:
    """Measures writes: the newest one, or that in flight once it takes longer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begun_ms: int | None = None
        self._newest_ms = 0

    def begin(self) -> None:
        """Note that something waits to be made durable; a second call means the same write."""
        if self._begun_ms is None:
            self._begun_ms = self._clock.boot_ms()

    def end(self) -> None:
        """Note that it is durable."""
        if self._begun_ms is not None:
            self._newest_ms = self._clock.boot_ms() - self._begun_ms
            self._begun_ms = None

    def ms(self) -> int:
        """Return the lag in milliseconds; it grows while a write does not come to its end."""
        if self._begun_ms is None:
            return self._newest_ms
        return max(self._newest_ms, self._clock.boot_ms() - self._begun_ms)
