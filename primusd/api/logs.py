"""Logs over HTTP: one merged stream for a job, raw or as NDJSON, followed until the job ends."""

import codecs
import re
from collections.abc import AsyncIterator, Iterable

import anyio
import anyio.to_thread
import msgspec
from aiohttp import web
from msgspec import UNSET, Struct, UnsetType

from primusd.api.asking import choice, context_of, find_job, flag, number, time_parameter
from primusd.api.context import Context
from primusd.api.log_copies import copies_folder
from primusd.api.log_merge import LogLine, LogMerge, Wanted
from primusd.api.log_remote import RemoteLogs
from primusd.api.watching import NDJSON, WRITE_TIMEOUT_S, cut_off
from primusd.errors import MalformedError, NotFoundError, Problem
from primusd.executor.logs import STREAMS
from primusd.job.model import Job, find_replica, replicas_of
from primusd.views.times import rfc3339

POLL_S = 0.1
TAIL_LINES_MAX = 100_000
PREVIOUS = "previous"
_NUMBER = re.compile(r"[0-9]{1,6}", re.ASCII)


class Record(Struct, frozen=True, rename="camel"):
    """A line as NDJSON has it."""

    replica: str
    attempt: int
    stream: str
    at: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    gap: int | UnsetType = UNSET
    """Bytes that are missing here."""
    next_offset: int = 0
    """Where in its stream the bytes after this one begin: what has been seen, for a reader that
    comes again."""


async def read_logs(request: web.Request) -> web.StreamResponse:
    """Show what the trainers of a job wrote, and follow it if asked to."""
    context, job = context_of(request), find_job(request)
    wanted = _wanted(request, job)
    tail = number(request, "tail", -1, low=-1, high=TAIL_LINES_MAX)
    since_ms = time_parameter(request, "since", now_ms=context.clock.wall_ms())
    merge = LogMerge(
        tuple(one / "jobs" / job.uid for one in (context.state, copies_folder(context.state))),
        wanted,
        newest=_newest(job),
        since_ms=since_ms,
        tail=tail,
    )
    remote = RemoteLogs(context, merge, wanted, tails=tail >= 0)
    follows = flag(request, "follow")
    is_ndjson = NDJSON in request.headers.get("Accept", "")
    response = web.StreamResponse(
        headers={
            "Content-Type": NDJSON if is_ndjson else "application/octet-stream",
            "Cache-Control": "no-store",
            "X-Primus-Job-Uid": job.uid,
        }
    )
    await response.prepare(request)
    encoder = _Encoder() if is_ndjson else None
    try:
        async for lines in _followed(context, job.uid, merge, remote, follows=follows):
            data = encoder.encode(lines) if encoder else b"".join(map(_raw, lines))
            with anyio.fail_after(WRITE_TIMEOUT_S):
                await response.write(data)
        await response.write_eof()
    except (ConnectionResetError, TimeoutError):
        # The files hold what it missed.
        cut_off(request)
    return response


async def _followed(
    context: Context, uid: str, merge: LogMerge, remote: RemoteLogs, *, follows: bool
) -> AsyncIterator[list[LogLine]]:
    """Yield lines as they come; ends with the job, or at once when nobody follows."""
    seen = -1
    while True:
        job = context.engine.world.jobs.get(uid)
        is_over = not follows or job is None or job.is_final
        if job is not None and not job.is_final:
            await remote.poll(job)
        revision = job.changed_revision if job is not None else 0
        lines = await anyio.to_thread.run_sync(_polled, merge, is_over, revision != seen)
        seen = revision
        if lines:
            yield lines
        elif is_over:
            return
        else:
            await anyio.sleep(POLL_S)


def _polled(merge: LogMerge, is_over: bool, discovers: bool) -> list[LogLine]:  # noqa: FBT001  run_sync passes no names
    return merge.poll(flushes=is_over, discovers=discovers)


class _Encoder:
    """Lines to NDJSON; a character that is cut between two parts of a line stays whole."""

    def __init__(self) -> None:
        self._decoders: dict[tuple[str, int, str], codecs.IncrementalDecoder] = {}
        self._make = codecs.getincrementaldecoder("utf-8")

    def encode(self, lines: Iterable[LogLine]) -> bytes:
        """Return the records, one a line."""
        return b"".join(msgspec.json.encode(self._record(line)) + b"\n" for line in lines)

    def _record(self, line: LogLine) -> Record:
        at = rfc3339(line.at_ms) if line.at_ms else UNSET
        if line.gap:
            end = line.offset + line.gap
            return Record(
                line.replica, line.attempt, line.stream, at, gap=line.gap, next_offset=end
            )
        key = (line.replica, line.attempt, line.stream)
        if key not in self._decoders:
            self._decoders[key] = self._make(errors="replace")
        text = self._decoders[key].decode(line.data, final=line.data.endswith(b"\n"))
        end = line.offset + len(line.data)
        return Record(line.replica, line.attempt, line.stream, at, text=text, next_offset=end)


def _raw(line: LogLine) -> bytes:
    if line.gap:
        return f"[primusd: {line.gap} bytes of {line.replica} are no longer kept]\n".encode()
    return line.data


def _wanted(request: web.Request, job: Job) -> Wanted:
    """Return which logs are asked for.

    Raises:
        MalformedError: A parameter is wrong.
        NotFoundError: The job has no such role or replica.
    """
    role = request.query.get("role", "")
    index = number(request, "index", -1, low=-1, high=10**6)
    if role and role not in job.roles:
        raise NotFoundError(f"{job.spec.name} has no role {role!r}", hint=", ".join(job.roles))
    if role and index >= 0 and find_replica(job, role, index) is None:
        raise NotFoundError(f"{job.spec.name} has no replica {role}-{index}")
    if index >= 0 and all(find_replica(job, name, index) is None for name in job.roles):
        raise NotFoundError(f"no role of {job.spec.name} has a replica {index}")
    text = request.query.get("attempt", "0")
    if text != PREVIOUS and _NUMBER.fullmatch(text) is None:
        problem = Problem("?attempt", found=text[:80], allowed="a number, or previous")
        raise MalformedError("attempt has to be a number, or previous", errors=(problem,))
    return Wanted(
        role,
        index,
        -1 if text == PREVIOUS else int(text),
        choice(request, "stream", ("", *STREAMS), ""),
    )


def _newest(job: Job) -> dict[str, int]:
    """Return by replica the number of its newest attempt."""
    return {
        f"{role.name}-{replica.index}": replica.last_number
        for role in job.roles.values()
        for replica in replicas_of(role)
    }
