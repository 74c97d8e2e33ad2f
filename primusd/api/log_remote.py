"""Logs of live attempts on other hosts: their executors are asked for what is new."""

from collections.abc import Iterator
from itertools import chain

import anyio

from primusd.api.context import Context
from primusd.api.log_index import TimeIndex
from primusd.api.log_merge import LogMerge, Wanted
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
    """What an executor has told so far and nobody has taken yet."""

    def __init__(self, offset: int) -> None:
        """Begin at an offset; a negative one counts from the end."""
        self.next_offset = offset
        self._pieces: list[Piece] = []

    def push(self, offset: int, data: bytes) -> None:
        """Take what came."""
        self.next_offset = offset + len(data)
        if data:
            self._pieces.append(Piece(offset, data, self.next_offset))

    def read(self, offset: int, byte_count: int) -> Piece:
        """Return the next piece, however much was asked for."""
        if byte_count and self._pieces:
            return self._pieces.pop(0)
        return Piece(offset, b"", max(0, self.next_offset))

    def times(self) -> TimeIndex:
        """Return an empty index: the times stay with the executor."""
        return TimeIndex(None, "")


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
            reader = self._readers[key] = AskedReader(self._first_offset)
            self._merge.add(reader, attempt.replica, attempt.attempt, stream)
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
