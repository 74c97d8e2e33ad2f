"""Logs of live attempts on other hosts: their executors are asked for what is new."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import anyio

from primusd.api.context import Context
from primusd.api.log_copies import copies_folder
from primusd.api.log_index import TimeIndex
from primusd.api.log_merge import FileReader, LogMerge, Wanted
from primusd.errors import NotFoundError
from primusd.executor.directory import attempt_path
from primusd.executor.logs import STREAMS, Piece
from primusd.job.ids import AttemptId
from primusd.job.model import Job, replicas_of
from primusd.job.phases import AttemptPhase

ASKED_BYTES = 256 << 10
ASKS_AT_ONCE = 32
LIVE = frozenset({AttemptPhase.RUNNING, AttemptPhase.STOPPING})


class AskedReader:
    """What an executor has told so far and nobody has taken yet; then the copy of its files."""

    def __init__(self, offset: int, copy: Path, stream: str) -> None:
        """Begin at an offset; a negative one counts from the end.

        Args:
            offset: Of the first byte to ask for.
            copy: Where the end of the log lies once the attempt is over.
            stream: `stdout` or `stderr`.
        """
        self.next_offset = offset
        self._copy = copy
        self._stream = stream
        self._files = FileReader(copy, stream)
        self._begin = 0
        self._data = b""
        self._read_to = 0

    @property
    def is_read(self) -> bool:
        """Whether all that came was read, so that more may be asked for."""
        return self._read_to >= self._begin + len(self._data)

    def push(self, offset: int, data: bytes) -> None:
        """Take what came."""
        if offset != self._begin + len(self._data):
            self._begin, self._data = offset, b""
        self._data += data
        self.next_offset = offset + len(data)

    def read(self, offset: int, byte_count: int) -> Piece:
        """Return what came from an offset on, and let go of what came before it.

        Raises:
            OSError: All that came was taken, and there is no copy.
        """
        end = self._begin + len(self._data)
        if byte_count and offset >= end:
            return self._files.read(offset, byte_count)
        begin = max(offset, self._begin)
        if not byte_count:
            return Piece(begin, b"", end)
        self._data = self._data[begin - self._begin :]
        self._begin = begin
        data = self._data[:byte_count]
        self._read_to = begin + len(data)
        return Piece(begin, data, end)

    def times(self) -> TimeIndex:
        """Return the index beside the copy; empty before there is one."""
        return TimeIndex(self._copy, self._stream)


class RemoteLogs:
    """All live attempts of a job whose files are not on this host."""

    def __init__(self, context: Context, merge: LogMerge, wanted: Wanted, *, tails: bool) -> None:
        """Make it; nothing is asked yet.

        Args:
            context: Asks executors.
            merge: What is read is put in there.
            wanted: Which attempts and streams.
            tails: Only the last part of what is there now is wanted.
        """
        self._context = context
        self._merge = merge
        self._wanted = wanted
        self._first_offset = -ASKED_BYTES if tails else 0
        self._readers: dict[tuple[AttemptId, str], AskedReader] = {}

    async def poll(self, job: Job) -> None:
        """Ask every executor once for what is new."""
        slots = anyio.Semaphore(ASKS_AT_ONCE)
        async with anyio.create_task_group() as group:
            for attempt in self._attempts(job):
                for stream in STREAMS:
                    if self._wanted.stream in ("", stream):
                        group.start_soon(self._ask, attempt, stream, slots)

    def _attempts(self, job: Job) -> Iterator[AttemptId]:
        wanted = self._wanted
        roles = [role for role in job.roles.values() if wanted.role in ("", role.name)]
        for role, replica in chain.from_iterable(
            ((role, one) for one in replicas_of(role)) for role in roles
        ):
            newest = replica.newest
            if (
                newest is None
                or newest.phase not in LIVE
                or wanted.index not in (-1, replica.index)
            ):
                continue
            attempt = AttemptId(job.uid, role.name, replica.index, newest.number)
            is_wanted = wanted.attempt in (0, newest.number)
            if is_wanted and not attempt_path(self._context.state, attempt).exists():
                yield attempt

    async def _ask(self, attempt: AttemptId, stream: str, slots: anyio.Semaphore) -> None:
        key = (attempt, stream)
        reader = self._readers.get(key)
        if reader is None:
            copy = attempt_path(copies_folder(self._context.state), attempt)
            reader = self._readers[key] = AskedReader(self._first_offset, copy, stream)
            self._merge.add(reader, attempt.replica, attempt.attempt, stream)
        if not reader.is_read:
            return
        async with slots:
            try:
                answer = await self._context.ask(
                    attempt, "logs", path=stream, offset=reader.next_offset, byte_count=ASKED_BYTES
                )
            except NotFoundError:
                # It comes back, or its end is recorded: the next round sees.
                return
        if not answer.error:
            reader.push(answer.offset, answer.data)
