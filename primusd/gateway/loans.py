"""Which batches are at which client, until when, and what is used of the stream in a row: pure.

A stream counts what was used from its beginning on, clients finish in any order: a batch that is
used is counted once all before it are.
"""

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Loan:
    """A batch, and who has it."""

    number: int
    batch: Any
    """As the feed gave it."""
    turn: int = 0
    """How often it was lent; a client of an earlier turn has lost it."""
    until: float = -1.0
    """When it comes back by itself; -1: nobody has it."""
    is_used: bool = False

    @property
    def name(self) -> str:
        """What a client calls it by."""
        return f"{self.number}.{self.turn}"


@dataclass(slots=True)
class Loans:
    """The batches of one stream that are not used yet, oldest first.

    Attributes:
        lease_s: For how long a client has a batch.
        returned_count: How often one came back unused.
    """

    lease_s: float
    returned_count: int = 0
    _open: deque[Loan] = field(default_factory=deque)
    _next: int = 0

    def __len__(self) -> int:
        return len(self._open)

    def lend(self, batch: Any, now: float) -> Loan:
        """Return a new batch as lent."""
        loan = Loan(self._next, batch)
        self._next += 1
        self._open.append(loan)
        return self._lent(loan, now)

    def lend_again(self, now: float) -> Loan | None:
        """Return the oldest batch that came back, as lent anew; None: there is none."""
        for loan in self._open:
            if not loan.is_used and loan.until < now:
                self.returned_count += loan.until >= 0
                return self._lent(loan, now)
        return None

    def _lent(self, loan: Loan, now: float) -> Loan:
        loan.turn += 1
        loan.until = now + self.lease_s
        return loan

    def renew(self, name: str, now: float) -> bool:
        """Give the client that has a batch its full time again; return whether it has it."""
        loan = self._find(name)
        if loan is None:
            return False
        loan.until = now + self.lease_s
        return True

    def hold(self, name: str) -> None:
        """Let a client keep a batch until it is used or given back."""
        loan = self._find(name)
        if loan is not None:
            loan.until = math.inf

    def give_back(self, name: str) -> bool:
        """Take a batch back unused; return whether the client had it."""
        loan = self._find(name)
        if loan is None:
            return False
        loan.until = -1.0
        self.returned_count += 1
        return True

    def use(self, name: str) -> tuple[bool, int]:
        """Note that a batch is used.

        Returns:
            Whether the client had it, and the receipt up to which all is used now; 0: no more
            than before.
        """
        loan = self._find(name)
        if loan is None:
            return False, 0
        loan.is_used = True
        receipt = 0
        while self._open and self._open[0].is_used:
            receipt = self._open.popleft().batch.receipt
        return True, receipt

    def over_at(self) -> float:
        """Return when the time of the last client is over; -1.0: none has a batch."""
        return max((one.until for one in self._unused()), default=-1.0)

    @property
    def has_gap(self) -> bool:
        """Whether one is used that cannot be counted, since an earlier one is not."""
        return any(one.is_used for one in self._open)

    def drop_all(self) -> None:
        """Forget the batches that are not counted: they are given back to the stream."""
        self.returned_count += sum(not one.is_used for one in self._open)
        self._open.clear()

    def _unused(self) -> Iterator[Loan]:
        return (one for one in self._open if not one.is_used)

    def _find(self, name: str) -> Loan | None:
        return next((one for one in self._unused() if one.name == name and one.until >= 0), None)
