"""One stream of this trainer, pulled by a thread and lent by the event loop."""

import time
from typing import Any

import anyio
import anyio.to_thread

import primus
from primusd.gateway.loans import Loan, Loans

LEASE_S = 30.0
LOOK_S = 1.0
AHEAD_MAX = 64
"""Batches lent and not used; more wait at the executor."""


class Source:
    """Lends the batches of a stream.

    Attributes:
        loans: What is lent and not used.
        is_ended: Every row of the stream was used, here or elsewhere.
        rows: Handed out and used.
    """

    def __init__(self, stream: str, batch_rows: int, lease_s: float = LEASE_S) -> None:
        self.name = stream
        self.loans = Loans(lease_s)
        self.is_ended = False
        self.rows = 0
        self._feed = primus.dataset(stream, batch_rows=batch_rows, layout="arrow", manual=True)
        self._ready: Any = None
        self._changed = anyio.Event()
        self._room = anyio.Event()

    async def pull(self) -> None:
        """Ask for batches until the stream is finished."""
        while True:
            batch = await anyio.to_thread.run_sync(next, self._feed, None)
            if batch is None:
                break
            self._ready = batch
            self._tell()
            while self._ready is not None or len(self.loans) >= AHEAD_MAX:
                self._room = anyio.Event()
                await self._room.wait()
        self.is_ended = True
        self._tell()

    async def borrow(self, wait_s: float) -> Loan | None:
        """Return a batch; None: there is none for now, or none any more (`is_ended`)."""
        with anyio.move_on_after(wait_s):
            while not self.is_ended:
                now = time.monotonic()
                if (loan := self.loans.lend_again(now)) is not None:
                    return loan
                if self._ready is not None:
                    loan = self.loans.lend(self._ready, now)
                    self._ready = None
                    self._room.set()
                    return loan
                with anyio.move_on_after(LOOK_S):
                    await self._changed.wait()
        return None

    def use(self, name: str) -> bool:
        """Note that a batch is used; return whether the client still had it."""
        had, receipt = self.loans.use(name)
        if receipt:
            self._feed.commit(receipt)
        if had:
            self._room.set()
        return had

    def renew(self, name: str) -> bool:
        """Begin a client's time anew; return whether it still has the batch."""
        return self.loans.renew(name, time.monotonic())

    def give_back(self, name: str) -> bool:
        """Lend a batch to somebody else; return whether the client still had it."""
        had = self.loans.give_back(name)
        self._tell()
        return had

    def _tell(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
