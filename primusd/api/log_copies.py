"""Logs of attempts that ended on other hosts: their end is copied before their executors leave.

A copy has the form of the files that an executor writes, so whoever reads those reads it as well.
"""

import shutil
from pathlib import Path

import anyio
import anyio.to_thread
import structlog

from primusd.api.context import AskExecutor
from primusd.errors import NotFoundError
from primusd.executor.directory import attempt_path
from primusd.executor.logs import INDEX_ENTRY_BYTES, STREAMS
from primusd.job.ids import AttemptId

log = structlog.get_logger()

COPY_BYTES_MAX = 1 << 20
"""Of each stream of an attempt."""
INDEX_BYTES_MAX = 10_000 * INDEX_ENTRY_BYTES
"""What one answer holds; it covers the last 100 s at least."""
COPY_WITHIN_S = 5.0
"""So long an executor whose attempt is over waits to be told to leave, at most."""


def copies_folder(state: Path) -> Path:
    """Return where copies lie; `jobs/<uid>/…` below it is as below a node's state directory."""
    return state / "logs"


class LogCopies:
    """The copies on this head's disk."""

    def __init__(self, state: Path, *, within_s: float = COPY_WITHIN_S) -> None:
        self._state = state
        self._within_s = within_s

    def are_wanted(self, attempt: AttemptId) -> bool:
        """Return whether the attempt's own files are on another host."""
        return not attempt_path(self._state, attempt).exists()

    def are_missing(self, attempt: AttemptId) -> bool:
        """Return whether they are on another host and no copy was made yet."""
        copy = attempt_path(copies_folder(self._state), attempt)
        return self.are_wanted(attempt) and not copy.exists()

    async def copy(self, attempt: AttemptId, ask: AskExecutor) -> None:
        """Ask an executor for the end of its logs and keep what came in time."""
        tails = [_Tail(stream) for stream in STREAMS]
        with anyio.move_on_after(self._within_s):
            async with anyio.create_task_group() as group:
                for tail in tails:
                    group.start_soon(tail.fetch, attempt, ask)
                    group.start_soon(tail.fetch_index, attempt, ask)
        found = [tail for tail in tails if tail.offset >= 0]
        if not found:
            return
        path = attempt_path(copies_folder(self._state), attempt)
        try:
            await anyio.to_thread.run_sync(_keep, path, found)
        except OSError as error:
            log.warning("logs.not_copied", attempt=attempt.label, job=attempt.job, text=str(error))


class _Tail:
    """The end of one stream, as far as it has come."""

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.offset = -1
        """Of the first byte; -1 none has come."""
        self.data = b""
        self.index = b""

    async def fetch(self, attempt: AttemptId, ask: AskExecutor) -> None:
        offset = -COPY_BYTES_MAX
        while True:
            try:
                answer = await ask(attempt, "logs", path=self.stream, offset=offset)
            except NotFoundError:
                return
            if answer.error:
                return
            if self.offset < 0:
                self.offset = answer.offset
            self.data += answer.data
            offset = answer.offset + len(answer.data)
            if answer.end or not answer.data:
                return

    async def fetch_index(self, attempt: AttemptId, ask: AskExecutor) -> None:
        try:
            path = f"{self.stream}.index"
            self.index = (await ask(attempt, "logs", path=path, offset=-INDEX_BYTES_MAX)).data
        except NotFoundError:
            return

    def write(self, folder: Path) -> None:
        """Write it as `LogWriter` would: what is cut off at the front shows in a file's name."""
        newest = folder / f"{self.stream}.log"
        (folder / f"{self.stream}.index").write_bytes(self.index)
        if not self.offset:
            newest.write_bytes(self.data)
            return
        # A line that is cut in half goes whole.
        first = self.data.find(b"\n") + 1
        older = folder / f"{self.stream}.{self.offset + first:016d}.log"
        older.write_bytes(self.data[first:])
        newest.write_bytes(b"")


def _keep(path: Path, tails: list[_Tail]) -> None:
    """Write a copy so that it appears whole, in place of an older one."""
    part = path.with_name(path.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(mode=0o700, parents=True)
    try:
        for tail in tails:
            tail.write(part)
        shutil.rmtree(path, ignore_errors=True)
        part.rename(path)
    finally:
        shutil.rmtree(part, ignore_errors=True)
