"""Threads that wait for storages, so that a request has a deadline and many run at once.

They end with the process and hold no exit up: a storage may never answer.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import ParamSpec, TypeVar

from primusd.datafeed.storage.base import StorageError

THREADS_MAX = 32
ANSWER_S = 60.0
"""For one request; the clients that have limits of their own have shorter ones."""

P = ParamSpec("P")
R = TypeVar("R")


class Pool:
    """Threads that are made when they are needed, and then wait for more work."""

    def __init__(self, thread_count: int = THREADS_MAX) -> None:
        """Make a pool without a thread."""
        self._thread_count = thread_count
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._idle = 0

    def submit(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Begin a call; its future can be cancelled until a thread takes it."""
        future: Future[R] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(call(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 it is raised where the result is asked for
                future.set_exception(error)

        with self._lock:
            needs_thread = not self._idle and self._threads < self._thread_count
            if needs_thread:
                self._threads += 1
            elif self._idle:
                self._idle -= 1
        self._work.put(run)
        if needs_thread:
            threading.Thread(target=self._run, name="storage", daemon=True).start()
        return future

    def call(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Return what a call returns.

        Raises:
            StorageError: As the call, or it took longer than any answer may.
        """
        return answer(self.submit(call, *args, **kwargs))

    def _run(self) -> None:
        while True:
            self._work.get()()
            with self._lock:
                self._idle += 1


def answer(future: Future[R]) -> R:
    """Return what came, within the time that an answer may take."""
    try:
        return future.result(ANSWER_S)
    except TimeoutError:
        future.cancel()
        raise StorageError(f"no answer within {ANSWER_S:.0f} s", kind="transient") from None


POOL = Pool()
