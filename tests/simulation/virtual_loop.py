"""An event loop in virtual time: each callback of asyncio is a call of the schedule.

What runs in it is the real asynchronous code, on behalf of hosts. One that stands still, as after
SIGSTOP, has its callbacks late, all at once, and in their order; one that was killed has none.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar
from typing import Any, TypeVar, TypeVarTuple, Unpack

import anyio.to_thread

from tests.simulation.schedule import Schedule

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
HOST: ContextVar[str] = ContextVar("HOST", default="")
"""On whose behalf a task runs; "" that of the world itself."""


class VirtualLoop(asyncio.AbstractEventLoop):
    """As much of a loop as tasks, futures and timers need: there is no I/O.

    Attributes:
        failures: What nobody waited for, and raised.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.failures: list[BaseException] = []
        self._schedule = schedule
        self._thaws_at_ms: dict[str, int] = {}
        self._buried: set[str] = set()
        self._is_running = False

    def freeze(self, host: str, until_ms: int) -> None:
        """Let nothing of a host happen until then."""
        self._thaws_at_ms[host] = max(until_ms, self._thaws_at_ms.get(host, 0))

    def bury(self, host: str) -> None:
        """Let nothing of a host happen any more, not even what it would do on its way out."""
        self._buried.add(host)

    # What asyncio and anyio ask of a loop.

    def time(self) -> float:
        """Return virtual seconds."""
        return self._schedule.now_ms / 1000

    def get_debug(self) -> bool:
        """Return False: nothing is slow here."""
        return False

    def is_running(self) -> bool:
        """Return whether a callback is under way."""
        return self._is_running

    def is_closed(self) -> bool:
        """Return False: there is nothing to close."""
        return False

    def create_future(self) -> "asyncio.Future[Any]":
        """Return a future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        name: str | None = None,
        context: Context | None = None,
        **_: object,
    ) -> "asyncio.Task[T]":
        """Start a coroutine with the next callbacks."""
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def get_task_factory(self) -> None:
        """Return None: tasks are the usual ones."""

    def call_soon(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """Call within this millisecond, after all that waits already."""
        handle = asyncio.Handle(callback, args, self, context)
        self._put(self._schedule.now_ms, handle)
        return handle

    def call_soon_threadsafe(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """Call within this millisecond: there are no threads."""
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call after so many seconds."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call at that time, never before it."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        at_ms = math.ceil(when * 1000)
        if at_ms / 1000 < when:
            at_ms += 1
        at_ms = max(self._schedule.now_ms, at_ms)
        self._put(at_ms, handle)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Leave it where it is: it does nothing any more."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep what would have been printed; that a host's tasks never ended is as it should be."""
        if (error := context.get("exception")) is not None:
            self.failures.append(error)

    def _put(self, at_ms: int, handle: asyncio.Handle) -> None:
        self._schedule.put(at_ms, self._run, (handle,))

    def _run(self, handle: asyncio.Handle) -> None:
        host = handle._context.get(HOST, "")  # type: ignore[attr-defined]
        if handle.cancelled() or host in self._buried:
            return
        thaws_at_ms = self._thaws_at_ms.get(host, 0)
        if thaws_at_ms > self._schedule.now_ms:
            self._put(thaws_at_ms, handle)
            return
        asyncio.events._set_running_loop(self)
        self._is_running = True
        try:
            handle._run()
        finally:
            self._is_running = False
            asyncio.events._set_running_loop(None)


async def _at_once(call: Callable[[], T], *_: object, **__: object) -> T:
    return call()


@contextmanager
def no_threads() -> Iterator[None]:
    """Do at once what would be done in a thread: threads have no virtual time."""
    real = anyio.to_thread.run_sync
    anyio.to_thread.run_sync = _at_once  # type: ignore[assignment]
    try:
        yield
    finally:
        anyio.to_thread.run_sync = real
