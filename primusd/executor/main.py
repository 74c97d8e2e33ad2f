"""`primusd executor --bootstrap FILE`: the process beside one trainer."""

import argparse
import os
import time
from pathlib import Path

import anyio
import msgspec
import structlog

from primusd.executor import own_log
from primusd.executor.directory import (
    AttemptDirectory,
    Holder,
    allocate_exit_record,
    read_exit_record,
    take_lock,
)
from primusd.executor.hang_watch import watch_progress
from primusd.executor.life import Life
from primusd.executor.machine import EXIT_DISK, EXIT_INTERNAL, EXIT_LEFT
from primusd.executor.processes import become_subreaper, boot_id, started_ticks
from primusd.executor.protocol import Bootstrap
from primusd.executor.starter import Starter, fork_starter
from primusd.executor.talk import talk

log = structlog.get_logger()

_decode_bootstrap = msgspec.json.Decoder(Bootstrap).decode

LOCK_TRIES = 20
LOCK_RETRY_S = 0.02
"""A node that looks whether the lock is held holds it for a moment itself."""


def main(argv: list[str] | None = None) -> int:
    """Run an executor to its end; return its exit code (docs/protocol.md §7)."""
    parser = argparse.ArgumentParser(prog="primusd executor", description=__doc__)
    parser.add_argument("--bootstrap", type=Path, required=True, metavar="FILE")
    parser.add_argument("--directory", type=Path, metavar="DIR", help="default: FILE's folder")
    options = parser.parse_args(argv)
    bootstrap_path: Path = options.bootstrap.absolute()
    directory = AttemptDirectory((options.directory or bootstrap_path.parent).absolute())
    own_log.configure()
    lock = hold(directory)
    if lock is None:
        return EXIT_LEFT
    return run(bootstrap_path, directory, lock)


def hold(directory: AttemptDirectory) -> int | None:
    """Take the attempt's lock for the life of this process; None: it is held, or over."""
    pid = os.getpid()
    holder = Holder(pid, started_ticks(pid), boot_id())
    for _ in range(LOCK_TRIES):
        lock = take_lock(directory.lock, holder)
        if lock is not None:
            return lock
        time.sleep(LOCK_RETRY_S)
    return None


def prepare(close: tuple[int, ...] = ()) -> Starter:
    """Do what needs no attempt: before there is a second thread, and from the main one.

    The end of that thread ends the trainer.

    Args:
        close: Descriptors that must not live on in the trainer.
    """
    become_subreaper()
    return fork_starter(close=close)


def run(
    bootstrap_path: Path, directory: AttemptDirectory, lock: int, starter: Starter | None = None
) -> int:
    """Live as the executor of an attempt whose lock is held.

    Args:
        bootstrap_path: Of the attempt.
        directory: Of the attempt.
        lock: Descriptor that holds it.
        starter: What `prepare` returned in this process, where that was done ahead.
    """
    try:
        if read_exit_record(directory.exit) is not None:
            return EXIT_LEFT
        allocate_exit_record(directory.exit)
    except OSError:
        log.exception("exit.allocate_failed")
        return EXIT_DISK
    try:
        bootstrap = _decode_bootstrap(bootstrap_path.read_bytes())
    except (OSError, msgspec.DecodeError):
        log.exception("bootstrap.unreadable")
        return EXIT_INTERNAL
    starter = starter or prepare(close=(lock,))
    life = Life(bootstrap, directory, starter)
    structlog.contextvars.bind_contextvars(
        job=bootstrap.attempt.job, attempt=bootstrap.attempt.label
    )
    code: int = anyio.run(life.run, _accompany)
    return code


async def _accompany(life: Life) -> None:
    """Talk with the daemon, and watch the trainer's progress."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(talk, life)
        tasks.start_soon(watch_progress, life)
