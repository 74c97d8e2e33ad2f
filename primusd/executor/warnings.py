"""Limits that are near, told to the trainer: by file, by message, and by signal where one is asked.

No stop: the trainer writes a checkpoint and goes on.
"""

from pathlib import Path

import msgspec
import structlog

from primusd.datafeed.delivery.server import FeedServer
from primusd.executor.preparing import write_whole
from primusd.executor.protocol import Near
from primusd.executor.trainer import Trainer

log = structlog.get_logger()

MOVED_MS = 2_000
"""A limit that moved by less is where it was: messages take their time."""


class Warnings:
    """What a trainer was told of limits."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ends_ms: dict[str, int] = {}

    def hear(
        self,
        near: tuple[Near, ...],
        *,
        now_ms: int,
        feed: FeedServer | None,
        trainer: Trainer | None,
    ) -> None:
        """Tell what the orders say, once.

        Args:
            near: All limits that are near.
            now_ms: Of a clock that never goes back.
            feed: Who speaks with the trainer; None not yet.
            trainer: That runs; None there is none.
        """
        ends_ms = {one.limit: now_ms + one.left_ms for one in near}
        if ends_ms.keys() == self._ends_ms.keys() and all(
            abs(end_ms - self._ends_ms[limit]) < MOVED_MS for limit, end_ms in ends_ms.items()
        ):
            return
        signals = {one.signal for one in near if one.limit not in self._ends_ms}
        self._ends_ms = ends_ms
        self._write(near)
        if feed is not None:
            feed.limits_near(near)
        for number in signals - {0}:
            if trainer is not None:
                trainer.signal(number)

    def _write(self, near: tuple[Near, ...]) -> None:
        """Write the nearest limit; no file where none is near."""
        if not near:
            self._path.unlink(missing_ok=True)
            return
        first = min(near, key=lambda one: one.left_ms)
        word = msgspec.json.encode({"reason": first.limit, "leftMs": first.left_ms})
        try:
            write_whole(self._path, word)
        except OSError as error:
            log.warning("file.not_written", path=self._path.name, text=str(error))
