"""What a job reads, over HTTP: streams, their tasks, the proof, pause and resume."""

from collections.abc import Iterable

from aiohttp import web
from msgspec import UNSET, Struct

from primusd.api.asking import answer, caller_of, choice, context_of, find_job, page
from primusd.api.context import Context
from primusd.api.watching import is_watch, serve_watch
from primusd.core import Ignored, Recorded
from primusd.datafeed.ledger.accounts import TASK_PHASES
from primusd.datafeed.ledger.events import PauseRequested, ResumeRequested
from primusd.datafeed.ledger.model import Stream
from primusd.errors import NotFoundError
from primusd.job.model import Job
from primusd.views import feed_documents as documents
from primusd.views.streams import stream_document
from primusd.views.tasks import task_documents, verification, verification_list


def find_streams(request: web.Request, job: Job) -> tuple[Stream, ...]:
    """Return the stream that the path names, all of the job's when it names none.

    Raises:
        NotFoundError: The job has none of that name.
    """
    world = context_of(request).engine.world
    known = {name: world.streams.get(f"{job.uid}/{name}") for name in job.streams}
    found = {name: stream for name, stream in known.items() if stream is not None}
    name = request.match_info.get("stream", "")
    if not name:
        return tuple(found.values())
    if name not in found:
        raise NotFoundError(
            f"{job.spec.name} has no stream {name!r}",
            hint=f"it has {', '.join(found)}" if found else "it reads no data",
        )
    return (found[name],)


def _document(context: Context, stream: Stream) -> documents.Stream:
    engine = context.engine
    document = stream_document(stream, engine.world, context.live(), at_ms=engine.at_ms())
    assert document is not None, "a stream of a job in the same world"
    return document


async def list_streams(request: web.Request) -> web.StreamResponse:
    """List or watch the streams of a job."""
    context, job = context_of(request), find_job(request)
    if is_watch(request):

        def wants(document: Struct) -> bool:
            assert isinstance(document, documents.Stream)
            return document.job_uid == job.uid

        return await serve_watch(request, ("Stream",), wants=wants)
    return answer(
        documents.StreamList(
            resource_version=str(context.engine.revision),
            items=tuple(_document(context, one) for one in find_streams(request, job)),
        )
    )


async def get_stream(request: web.Request) -> web.Response:
    """Show one stream."""
    context, job = context_of(request), find_job(request)
    (stream,) = find_streams(request, job)
    return answer(_document(context, stream))


async def list_tasks(request: web.Request) -> web.Response:
    """List the ranges of a stream that are leased, waiting or dead."""
    context, job = context_of(request), find_job(request)
    (stream,) = find_streams(request, job)
    phase = choice(request, "phase", ("", *TASK_PHASES), "")
    found: list[tuple[str, documents.Task]] = [
        (f"{one.epoch:06d}/{one.unit:09d}/{one.lo:020d}", one)
        for one in task_documents(stream, phase)
    ]
    found.sort(key=lambda pair: pair[0])
    shown, cursor = page(request, found)
    return answer(
        documents.TaskList(
            resource_version=str(context.engine.revision), items=shown, cursor=cursor or UNSET
        )
    )


async def verify(request: web.Request) -> web.Response:
    """Prove that every position is accounted for once, or name what is not."""
    job = find_job(request)
    streams = find_streams(request, job)
    if "stream" in request.match_info:
        return answer(verification(streams[0]))
    return answer(verification_list(verification(one) for one in streams))


async def pause(request: web.Request) -> web.Response:
    """Grant nothing for now."""
    return await _tell_streams(request, PauseRequested())


async def resume(request: web.Request) -> web.Response:
    """Grant again."""
    return await _tell_streams(request, ResumeRequested())


async def _tell_streams(
    request: web.Request, event: PauseRequested | ResumeRequested
) -> web.Response:
    context, job = context_of(request), find_job(request)
    streams = find_streams(request, job)
    for stream in streams:
        await _tell(context, f"{job.uid}/{stream.name}", event, caller_of(request))
    shown = find_streams(request, context.engine.world.jobs.get(job.uid, job))
    if "stream" in request.match_info:
        return answer(_document(context, shown[0]))
    return answer(_list(context, shown))


def _list(context: Context, streams: Iterable[Stream]) -> documents.StreamList:
    return documents.StreamList(
        resource_version=str(context.engine.revision),
        items=tuple(_document(context, one) for one in streams),
    )


async def _tell(
    context: Context, machine: str, event: PauseRequested | ResumeRequested, by: str
) -> Recorded | Ignored:
    return await context.engine.propose(machine, event, by=by)
