"""One stream of this trainer, pulled by a thread while clients ask, and lent by the event loop."""

import os
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import anyio.to_thread

import primus
from primus.remote import EndWatch
from primusd.gateway.loans import Loan, Loans

LEASE_S = 30.0
IDLE_S = 5.0
LOOK_S = 1.0
AHEAD_MAX = 64
"""Batches lent and not used; more wait at the executor."""


class Source:
    """Lends the batches of a stream.

    It reads only while somebody asks: after a while without a client the stream is closed, so that
    what was read ahead goes to its other readers, and opened again when a client comes.

    Attributes:
        loans: What is lent and not used.
        is_ended: Every row of the stream was used, here or elsewhere.
    """

    def __init__(
        self, stream: str, batch_rows: int, lease_s: float = LEASE_S, idle_s: float = IDLE_S
    ) -> None:
        self.name = stream
        self.loans = Loans(lease_s)
        self.is_ended = False
        self._batch_rows = batch_rows
        self._idle_s = idle_s
        self._feed: Any = None
        self._ready: Any = None
        self._clients = 0
        self._asked_at = 0.0
        self._asked = anyio.Event()
        self._changed = anyio.Event()
        self._room = anyio.Event()

    async def pull(self) -> None:
        """Ask for batches whenever somebody wants some, until the stream is finished."""
        while await self._is_asked() and not await self._read():
            await self._give_all_back()
        self.is_ended = True
        self._tell()

    async def _is_asked(self) -> bool:
        """Wait for a client; return False when the stream ended before one came."""
        watch = await anyio.to_thread.run_sync(EndWatch, os.environ["PRIMUS_SOCKET"], self.name)
        try:
            while not self._asked.is_set():
                await _first_of(self._asked.wait, partial(anyio.wait_readable, watch))
                if not self._asked.is_set() and watch.has_ended():
                    return False
        finally:
            watch.close()
        return True

    async def _read(self) -> bool:
        """Read while somebody asks; return whether the stream is finished."""
        self._feed = await anyio.to_thread.run_sync(self._opened)
        while (batch := await anyio.to_thread.run_sync(next, self._feed, None)) is not None:
            self._ready = batch
            self._tell()
            while self._ready is not None or len(self.loans) >= AHEAD_MAX:
                self._room = anyio.Event()
                with anyio.move_on_after(max(0.0, self._idle_at() - time.monotonic())):
                    await self._room.wait()
                if self._idle_at() <= time.monotonic():
                    return False
        return True

    def _opened(self) -> Any:
        return primus.dataset(self.name, batch_rows=self._batch_rows, layout="arrow", manual=True)

    def _idle_at(self) -> float:
        """Return when nobody will want anything any more, as it looks now."""
        if self._clients:
            return time.monotonic() + self._idle_s
        last = max(self._asked_at + self._idle_s, self.loans.over_at())
        # Who gets the rows of a gap elsewhere gets those again that were used behind it.
        return last + self.loans.lease_s if self.loans.has_gap else last

    async def _give_all_back(self) -> None:
        feed, self._feed, self._ready = self._feed, None, None
        self._asked = anyio.Event()
        self.loans.drop_all()
        await anyio.to_thread.run_sync(feed.close)

    async def borrow(self, wait_s: float) -> Loan | None:
        """Return a batch; None: there is none for now, or none any more (`is_ended`)."""
        self._clients += 1
        self._asked.set()
        try:
            with anyio.move_on_after(wait_s):
                return await self._borrowed()
        finally:
            self._clients -= 1
            self._asked_at = time.monotonic()
        return None

    async def _borrowed(self) -> Loan | None:
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

    def hold(self, loan: Loan) -> None:
        """Let a client keep a batch for as long as it is being sent."""
        self.loans.hold(loan.name)

    def use(self, name: str) -> bool:
        """Note that a batch is used; return whether the client still had it."""
        had, receipt = self.loans.use(name)
        if receipt and self._feed is not None:
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


async def _first_of(*waits: Callable[[], Awaitable[object]]) -> None:
    """Return when the first of several waits is over."""
    async with anyio.create_task_group() as tasks:

        async def wait(one: Callable[[], Awaitable[object]]) -> None:
            await one()
            tasks.cancel_scope.cancel()

        for one in waits:
            tasks.start_soon(wait, one)
