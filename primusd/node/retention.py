"""Logs of attempts that are over: kept for a time and up to a size, then removed, oldest first."""

import shutil
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import anyio
import structlog
from msgspec import Struct

from primusd.config.settings import Logs
from primusd.executor.directory import AttemptDirectory, is_lock_held

log = structlog.get_logger()

LOOK_EVERY_S = 600.0


class AttemptLogs(Struct, frozen=True):
    """What lies in the directory of an attempt."""

    path: Path
    written_ms: int
    """When something was last written; wall clock of this host."""
    byte_count: int
    is_over: bool
    """It was released: nothing of it runs, and only logs and exit record are left."""


async def keep_within(state: Path, logs: Logs) -> None:
    """Remove logs that are too old or too many, now and then, until cancelled."""
    look = partial(prune, state, keep_ms=logs.keep_ms, bytes_max=logs.bytes_max)
    while True:
        now_ms = time.time_ns() // 1_000_000
        if removed := await anyio.to_thread.run_sync(partial(look, now_ms=now_ms)):
            log.info("logs.removed", attempts=removed)
        await anyio.sleep(LOOK_EVERY_S)


def prune(state: Path, *, now_ms: int, keep_ms: int, bytes_max: int) -> int:
    """Remove the logs that are due; return of how many attempts."""
    paths = due(find_logs(state), now_ms=now_ms, keep_ms=keep_ms, bytes_max=bytes_max)
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)
        for folder in (path.parent / "work", path.parent, path.parents[1]):
            _remove_empty(folder)
    return len(paths)


def due(
    found: Iterable[AttemptLogs], *, now_ms: int, keep_ms: int, bytes_max: int
) -> tuple[Path, ...]:
    """Return whose logs go: those older than `keep_ms`, then the oldest until all that is fits.

    Attempts that are not over count in the size and are never returned.
    """
    found = tuple(found)
    byte_count = sum(one.byte_count for one in found)
    paths = []
    over = (one for one in found if one.is_over)
    for one in sorted(over, key=lambda one: (one.written_ms, one.path)):
        if one.written_ms >= now_ms - keep_ms and byte_count <= bytes_max:
            break
        paths.append(one.path)
        byte_count -= one.byte_count
    return tuple(paths)


def find_logs(state: Path) -> Iterator[AttemptLogs]:
    """Yield what every attempt of this host has written."""
    for path in state.glob("jobs/*/*/a*"):
        directory = AttemptDirectory(path)
        is_over = not directory.placing.exists() and not is_lock_held(directory.lock)
        try:
            written_s, byte_count = path.stat().st_mtime, 0
            for file in path.iterdir():
                stat = file.stat()
                written_s = max(written_s, stat.st_mtime)
                byte_count += stat.st_size
        except FileNotFoundError:
            # It is being released just now.
            continue
        yield AttemptLogs(path, int(written_s * 1000), byte_count, is_over)


def _remove_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return
