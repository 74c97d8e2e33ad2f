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


class Taken(Struct, frozen=True):
    """How far the trainer got in one lease."""

    token: int
    position: int
    row_count: int
    """Newly taken, as far as it is known."""


class InFlight:
    """Delivered stretches in their order, and the count of what was taken of them."""

    def __init__(self) -> None:
        self._flights: deque[Flight] = deque()
        self._rows_counted: int = 0  # of the first flight
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
    ) -> None:
        """Note that a stretch was handed over, behind all others."""
        self._flights.append(Flight(token, lo, hi, self.delivered, size, row_count, locate))
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
                yield Taken(first.token, first.hi, first.row_count - self._rows_counted)
                self._rows_counted = 0
                continue
            if inside > 0:
                rows = first.row_count * inside // first.size
                yield Taken(first.token, first.locate(inside), rows - self._rows_counted)
                self._rows_counted = rows
            return

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

    def clear(self) -> None:
        """Forget all of it: whoever held it is gone."""
        self._flights.clear()
        self._rows_counted = 0
        self.taken = self.delivered
