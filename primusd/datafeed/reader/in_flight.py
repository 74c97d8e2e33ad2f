"""What was delivered and not yet taken: from a count of rows or bytes to positions. Pure."""

from collections import deque
from collections.abc import Callable, Iterator

from msgspec import Struct


class Flight(Struct, frozen=True):
    """One delivered stretch of a lease."""

    token: int
    lo: int
    hi: int
    begin: int
    """Rows (socket) or bytes (pipe) that were delivered before it, over all leases."""
    size: int
    """Its rows or bytes; 0 where no record begins in the range."""
    row_count: int
    locate: Callable[[int], int]
    """Its position after so many of them, rounded down to a record."""
    left_out: Callable[[int], int] | None = None
    """How many records that were left out lie before a position; None: none."""

    def passed(self, position: int) -> int:
        """Return how many left out ones it has before a position."""
        return 0 if self.left_out is None else self.left_out(position) - self.left_out(self.lo)


class Taken(Struct, frozen=True):
    """How far the trainer got in one lease."""

    token: int
    position: int
    row_count: int
    """Newly taken, as far as it is known."""
    left_out: int = 0
    """Newly passed over: filter, sample or transform left them out."""


class InFlight:
    """Delivered stretches in their order, and the count of what was taken of them."""

    def __init__(self) -> None:
        self._flights: deque[Flight] = deque()
        self._rows_counted: int = 0  # of the first flight
        self._left_out_counted: int = 0
        self.delivered: int = 0
        self.taken: int = 0

    def __len__(self) -> int:
        return len(self._flights)

    def deliver(
        self,
        *,
        token: int,
        lo: int,
        hi: int,
        size: int,
        row_count: int,
        locate: Callable[[int], int],
        left_out: Callable[[int], int] | None = None,
    ) -> None:
        """Note that a stretch was handed over, behind all others."""
        flight = Flight(token, lo, hi, self.delivered, size, row_count, locate, left_out)
        self._flights.append(flight)
        self.delivered += size

    def take(self, count: int) -> tuple[Taken, ...]:
        """Note that so many rows or bytes were taken in all; a lower count changes nothing.

        Returns:
            What moved, oldest first; a lease may come more than once.
        """
        self.taken = max(self.taken, min(count, self.delivered))
        return tuple(self._moved())

    def _moved(self) -> Iterator[Taken]:
        while self._flights:
            first = self._flights[0]
            inside = self.taken - first.begin
            if inside >= first.size:
                self._flights.popleft()
                yield self._counted(first, first.hi, first.row_count)
                self._rows_counted = self._left_out_counted = 0
                continue
            if inside > 0:
                rows = first.row_count * inside // first.size
                yield self._counted(first, first.locate(inside), rows)
            return

    def _counted(self, first: Flight, position: int, rows: int) -> Taken:
        """Return what is newly taken of the first flight, now that so much of it is."""
        passed = first.passed(position)
        taken = Taken(
            first.token, position, rows - self._rows_counted, passed - self._left_out_counted
        )
        self._rows_counted, self._left_out_counted = rows, passed
        return taken

    def reached(self, count: int) -> dict[int, int]:
        """Return how far each lease in flight was handed over with so many rows or bytes."""
        found: dict[int, int] = {}
        for one in self._flights:
            inside = count - one.begin
            if inside >= one.size:
                found[one.token] = one.hi
            elif inside > 0:
                found[one.token] = one.locate(inside)
            else:
                found.setdefault(one.token, one.lo)
        return found

    def pass_over(self) -> None:
        """Forget what is in flight: the trainer was told to drop it."""
        self._flights.clear()
        self._rows_counted = self._left_out_counted = 0
        self.taken = self.delivered

    def clear(self) -> None:
        """Forget all of it: whoever held it is gone."""
        self._flights.clear()
        self._rows_counted = self._left_out_counted = 0
        self.taken = self.delivered
