"""Faults on purpose (`primusctl drill`): what really goes wrong, brought about beside the trainer.

The daemon asks for them (docs/protocol.md §4), each once; an ask that is repeated is answered from
memory by `talk.py`.
"""

import os
import signal
from collections.abc import Callable, Coroutine
from functools import partial

import anyio
import structlog
from anyio.abc import TaskGroup

from primusd.executor.protocol import PAUSE_MS_MAX, Answer, Ask

log = structlog.get_logger()

FAULTS = frozenset({"kill", "pause", "die"})
ANSWER_S = 0.3
"""An executor that is to die lets its answer go first."""


class Drill:
    """Brings faults about; what has to happen later runs in a task group of the executor's."""

    def __init__(self, pids: Callable[[], tuple[int, ...]], tasks: TaskGroup) -> None:
        self._pids = pids
        self._tasks = tasks

    def inject(self, ask: Ask) -> Answer:
        """Bring a fault about and answer how many processes it met, or why it cannot."""
        pids = self._pids()
        if not pids:
            return Answer(ask.id, b"", end=True, error="no trainer runs")
        log.warning("drill.injected", fault=ask.kind, processes=len(pids))
        match ask.kind:
            case "kill":
                _signal(pids, signal.SIGKILL)
            case "pause":
                self._pause(ask, pids)
            case _:
                self._later(partial(_die, pids))
        return Answer(ask.id, str(len(pids)).encode(), end=True)

    def _pause(self, ask: Ask, pids: tuple[int, ...]) -> None:
        """Stop the trainer for so many ms as `path` says; it goes on also without any head."""
        pause_ms = min(int(ask.path), PAUSE_MS_MAX) if ask.path.isdecimal() else 0
        _signal(pids, signal.SIGSTOP)
        self._later(partial(_continue, pids, pause_ms / 1000))

    def _later(self, work: Callable[[], Coroutine[object, object, None]]) -> None:
        self._tasks.start_soon(work)


async def _continue(pids: tuple[int, ...], after_s: float) -> None:
    try:
        await anyio.sleep(after_s)
    finally:
        _signal(pids, signal.SIGCONT)


async def _die(pids: tuple[int, ...]) -> None:
    """End trainer and executor without a word, as a host that is switched off does."""
    await anyio.sleep(ANSWER_S)
    _signal((*pids, os.getpid()), signal.SIGKILL)


def _signal(pids: tuple[int, ...], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
