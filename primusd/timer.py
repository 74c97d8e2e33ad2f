"""The timer: says TimePassed to each machine whose earliest deadline has passed."""

import heapq
from collections.abc import Awaitable, Callable

import anyio

from primusd import core
from primusd.engine import Engine
from primusd.job.events import TimePassed

REPEAT_MS = 1_000
"""A machine that stands at the same deadline hears of it again after so long."""
HEAP_SLACK = 1_000
SLEEP_MS_MAX = 60_000
"""Journal time leans towards the wall clock: a long sleep is taken in parts."""

Sleep = Callable[[int], Awaitable[None]]


async def sleep_ms(duration_ms: int) -> None:
    """Sleep in real time."""
    await anyio.sleep(duration_ms / 1000)


class Timer:
    """The earliest deadline of each machine."""

    def __init__(self, engine: Engine, *, sleep: Sleep = sleep_ms) -> None:
        self._engine = engine
        self._sleep = sleep
        self._deadlines: dict[str, int] = {}
        self._heap: list[tuple[int, str, int]] = []
        """When to look, machine, the deadline it is about; stale ones are passed over."""
        self._changed = anyio.Event()

    def set(self, machine: str) -> None:
        """Take over the machine's deadline as it is now."""
        deadline_ms = core.deadline_ms(self._engine.world, machine)
        if deadline_ms == self._deadlines.get(machine, 0):
            return
        if deadline_ms == 0:
            del self._deadlines[machine]
            return
        self._deadlines[machine] = deadline_ms
        self._push(deadline_ms, machine, deadline_ms)

    def clear(self) -> None:
        """Forget all deadlines."""
        self._deadlines.clear()
        self._heap.clear()
        self._changed.set()

    async def run(self) -> None:
        """Speak at each deadline, until cancelled."""
        while True:
            self._changed = anyio.Event()
            wait_ms = self._tell_due()
            async with anyio.create_task_group() as group:
                if wait_ms >= 0:
                    group.start_soon(self._wake_after, wait_ms)
                await self._changed.wait()
                group.cancel_scope.cancel()

    def _tell_due(self) -> int:
        """Tell every machine that is due; return how long until the next is, -1 none."""
        now_ms = self._engine.at_ms()
        while self._heap:
            look_ms, machine, deadline_ms = self._heap[0]
            if self._deadlines.get(machine) != deadline_ms:
                heapq.heappop(self._heap)
            elif look_ms > now_ms:
                return min(look_ms - now_ms, SLEEP_MS_MAX)
            else:
                heapq.heapreplace(self._heap, (now_ms + REPEAT_MS, machine, deadline_ms))
                self._engine.tell(machine, TimePassed(), by="timer")
        return -1

    async def _wake_after(self, wait_ms: int) -> None:
        await self._sleep(wait_ms)
        self._changed.set()

    def _push(self, look_ms: int, machine: str, deadline_ms: int) -> None:
        if len(self._heap) > HEAP_SLACK + 4 * len(self._deadlines):
            self._heap = [one for one in self._heap if self._deadlines.get(one[1]) == one[2]]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (look_ms, machine, deadline_ms))
        if self._heap[0][1] == machine:
            self._changed.set()
