"""A lease in its reader's hands, and how fast such leases go by. Pure."""

from primusd.datafeed.protocol import Held, Lease, Unit

NEVER = float("-inf")
BEHIND_FILES = 1 << 62
HALF_LIFE_S = 5.0
BUSY_MIN_S = 0.001


class Holding:
    """A lease as its reader sees it."""

    __slots__ = (
        "acked",
        "deadline",
        "delivered",
        "hi",
        "is_stuck",
        "lease",
        "left_out",
        "left_out_to",
        "lo",
        "read",
        "rows_delivered",
        "taken",
        "unit",
    )

    def __init__(self, lease: Lease, unit: Unit) -> None:
        start = max(lease.lo, lease.position)
        self.lease = lease
        self.unit = unit
        self.lo = start
        self.hi = lease.hi
        self.read = start
        self.delivered = start
        self.taken = start
        self.acked = start
        self.rows_delivered = 0
        self.deadline = NEVER
        self.is_stuck = False
        self.left_out_to = -1
        self.left_out = 0

    @property
    def turn(self) -> tuple[int, int, int]:
        """What it is read by: epoch, unit and place; partitions as they were granted.

        Else one that grows for ever would keep all others waiting.
        """
        if self.unit.kind == "kafka":
            return self.lease.epoch, BEHIND_FILES, self.lease.token
        return self.lease.epoch, self.lease.unit, self.lease.lo

    @property
    def is_read(self) -> bool:
        """Whether all of it was read, or no more of it can be."""
        return self.is_stuck or self.read >= self.hi

    @property
    def is_delivered(self) -> bool:
        """Whether all of it was handed over, or no more of it can be."""
        return self.is_stuck or self.delivered >= self.hi

    @property
    def is_done(self) -> bool:
        """Whether the trainer took all of it."""
        return self.taken >= self.hi

    @property
    def unacknowledged_rows(self) -> int:
        """Rows taken and not acknowledged, by the lease's own rows per position."""
        span = self.delivered - self.lo
        if span <= 0:
            return 0
        return max(0, self.taken - self.acked) * self.rows_delivered // span

    def held(self, stream: str) -> Held:
        """Return what a report says of it."""
        lease = self.lease
        return Held(
            stream,
            lease.epoch,
            lease.unit,
            lease.lo,
            lease.token,
            min(max(self.taken, lease.lo), self.hi),
            self.hi,
            min(self.delivered, self.hi) if self.delivered > self.taken else -1,
            self.left_out,
        )


class Rate:
    """How fast the trainer takes rows while it has some; older times count less and less.

    Attributes:
        rows: Taken, weighed by their age; add to it.
        leases: Handed over whole, likewise.
    """

    def __init__(self) -> None:
        self.rows = 0.0
        self.leases = 0.0
        self._busy_s = 0.0
        self._at: float | None = None

    def advance(self, now: float, *, waited_s: float) -> None:
        """Count the time since the last call, less what the trainer waited."""
        past_s = 0.0 if self._at is None else max(0.0, now - self._at)
        self._at = now
        self._busy_s += max(0.0, past_s - waited_s)
        kept = 0.5 ** (past_s / HALF_LIFE_S)
        self.rows *= kept
        self.leases *= kept
        self._busy_s *= kept

    @property
    def rows_per_second(self) -> int:
        """Rows taken in a second; 0 not known yet."""
        return int(self.rows / self._busy_s) if self._busy_s > BUSY_MIN_S else 0

    @property
    def leases_per_second(self) -> float:
        """Leases handed over in a second; 0.0 not known yet."""
        return self.leases / self._busy_s if self._busy_s > BUSY_MIN_S else 0.0
