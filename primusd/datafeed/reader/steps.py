"""`tail: drop | pad`: what a trainer may be handed so that all of its group have as many batches.

Rows go out up to the limit that the daemon told, and as many more as fill no further batch. Pure.
"""

from primusd.datafeed.protocol import StepLimit, Steps


class StepCount:
    """Batches of one stream at one reader, of the epoch that its trainers are in.

    Attributes:
        tail: `drop` or `pad`.
        batch_rows: 0 until the trainer opened the stream.
        epoch: That is counted.
        has_ended: It was told how the epoch ends.
        kept: Token of a lease that was to end earlier, and cannot.
    """

    def __init__(self, tail: str) -> None:
        self.tail = tail
        self.batch_rows = 0
        self.epoch = 0
        self.has_ended = False
        self.kept = 0
        self._limit = StepLimit(0, 0)
        self._rows = 0
        self._pads = 0
        self._first_row = 0
        self._said = (-1, False, False)

    def open(self, batch_rows: int, first_row: int) -> None:
        """Count from here on: a trainer opened the stream.

        Args:
            batch_rows: Of each of its batches.
            first_row: Rows handed over before, in all.
        """
        self.batch_rows = batch_rows
        self._begin(first_row)

    def _begin(self, first_row: int) -> None:
        self._first_row = first_row
        self._rows = self._pads = 0
        self.has_ended = False

    def obey(self, limit: StepLimit | None, delivered: int) -> None:
        """Take over what the daemon says; a new epoch begins with it."""
        if limit is None:
            return
        if limit.epoch != self.epoch:
            self.epoch = limit.epoch
            self._begin(delivered)
        elif not limit.is_final:
            limit = StepLimit(limit.epoch, max(limit.limit, self._limit.limit), pads=limit.pads)
            self.has_ended = False
        self._limit = limit

    @property
    def limit(self) -> int:
        """Batches that may be handed over."""
        return self._limit.limit

    @property
    def room(self) -> int:
        """Rows that may be handed over now."""
        if self._limit.is_final and self.tail == "drop":
            most = self._limit.limit * self.batch_rows
        elif self._limit.is_final:
            return 1 << 62
        else:
            most = (self._limit.limit + 1) * self.batch_rows - 1
        return max(0, most - self._rows)

    def deliver(self, row_count: int) -> None:
        """Note that so many rows were handed over."""
        self._rows += row_count

    def spare(self, in_hand: int) -> int:
        """Return how many of the rows in hand the limit does not need."""
        return max(0, self._rows + in_hand - self._limit.limit * self.batch_rows)

    def drops_now(self) -> bool:
        """Return whether the trainer has all batches of the epoch, and is to drop what is left."""
        is_last = self.tail == "drop" and self._limit.is_final and not self.has_ended
        return is_last and self._rows >= self._limit.limit * self.batch_rows

    def used_all(self, taken: int) -> bool:
        """Return whether the trainer used all batches of the epoch."""
        return taken >= self._first_row + self._limit.limit * self.batch_rows

    def pads_now(self) -> int:
        """Return for how many batches the trainer is to repeat its last one; it has all rows.

        Its last rows, where they fill no batch, are one of them.
        """
        if not self._limit.pads:
            return 0
        found = self._limit.limit - self._rows // self.batch_rows - self._pads
        return max(0, found)

    def pad(self, count: int) -> None:
        """Note that so many were ordered."""
        self._pads += count

    @property
    def is_last(self) -> bool:
        """Return whether there are no more batches of the epoch."""
        return self._limit.is_final

    def steps(
        self,
        in_hand: int,
        *,
        is_dry: bool,
        is_full: bool,
        seen: int,
        offer: tuple[int, int, int],
    ) -> Steps:
        """Return what a report says."""
        ready, rows = divmod(self._rows + in_hand, self.batch_rows)
        self._said = (ready, is_dry, is_full)
        return Steps(
            self.epoch, ready, rows, is_dry, is_full, seen, self.has_ended, offer, self.kept
        )

    def is_news(self, in_hand: int, *, is_dry: bool, is_full: bool) -> bool:
        """Return whether others may wait for what was not reported yet."""
        if not self.batch_rows:
            return False
        ready = (self._rows + in_hand) // self.batch_rows
        said, was_dry, was_full = self._said
        if ready < said or (is_dry, is_full) != (was_dry, was_full):
            return True
        # Half of what the others know of is gone.
        return ready > said and 2 * (ready - said) >= said - self._rows // self.batch_rows
