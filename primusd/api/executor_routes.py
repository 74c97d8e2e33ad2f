"""The paths of executors: connection, single beats, shipped files, peers (docs/protocol.md §1)."""

import anyio
import msgspec
from aiohttp import web

from primusd.api.asking import CONTEXT
from primusd.api.executors import ExecutorRegistry
from primusd.api.sessions import Session, streams_read
from primusd.api.start_variables import Documents, Makers
from primusd.errors import (
    MalformedError,
    NotFoundError,
    StoreUnavailableError,
    UnauthorizedError,
)
from primusd.executor.protocol import (
    DaemonMessage,
    ExecutorMessage,
    Hello,
    Refused,
    Report,
    decode_executor_message,
    encode,
)
from primusd.job.ids import AttemptId, parse_replica
from primusd.job.model import Job
from primusd.views.blobs import blob_path

BLOBS_AT_ONCE = 64
BLOB_PART_BYTES = 1 << 20
JSON = "application/json"
MSGPACK = "application/msgpack"

REGISTRY: web.AppKey[ExecutorRegistry] = web.AppKey("executors", ExecutorRegistry)
BLOB_SLOTS: web.AppKey[anyio.Semaphore] = web.AppKey("blob_slots", anyio.Semaphore)
DOCUMENTS: web.AppKey[Documents] = web.AppKey("peers_documents", Documents)
MAKERS: web.AppKey[Makers] = web.AppKey("makers", Makers)

_decode_json = msgspec.json.Decoder(ExecutorMessage).decode


def add_executor_routes(app: web.Application, registry: ExecutorRegistry) -> None:
    """Serve executors; before the application starts."""
    app[REGISTRY] = registry
    app[BLOB_SLOTS] = anyio.Semaphore(BLOBS_AT_ONCE)
    app[DOCUMENTS] = Documents()
    app[MAKERS] = Makers(app[DOCUMENTS])
    app.router.add_get("/executor/v1/connect", registry.connect)
    app.router.add_post("/executor/v1/beat", beat)
    app.router.add_get("/executor/v1/blobs/{digest}", get_blob)
    app.router.add_get("/executor/v1/peers/{job}/{generation}", get_peers)
    app.router.add_get("/executor/v1/variables/{job}/{generation}", get_variables)


async def beat(request: web.Request) -> web.Response:
    """Answer one hello or report of a reader that holds no connection."""
    registry = request.app[REGISTRY]
    is_json = request.content_type == JSON
    data = await request.read()
    try:
        message = _decode_json(data) if is_json else decode_executor_message(data)
    except msgspec.DecodeError as error:
        raise MalformedError(f"the body is no hello and no report: {error}") from error
    answer = await _answer(registry, request, message)
    body = msgspec.json.encode(answer) if is_json else encode(answer)
    return web.Response(body=body, content_type=JSON if is_json else MSGPACK)


async def _answer(
    registry: ExecutorRegistry, request: web.Request, message: ExecutorMessage
) -> DaemonMessage:
    match message:
        case Hello():
            return await registry.answer_hello(request, message)
        case Report():
            return await _answer_report(registry, request, message)


async def _answer_report(
    registry: ExecutorRegistry, request: web.Request, report: Report
) -> DaemonMessage:
    attempt = _attempt_of(request)
    if not registry.has_key(request, attempt.job):
        return Refused("badKey", "the key is not the job's")
    job = registry.engine.world.jobs.get(attempt.job)
    if job is None:
        return Refused("unknownJob", "neither a record nor a tombstone of its job is here")
    incarnation = request.query.get("incarnation", "")
    session = Session(attempt, incarnation, streams_read(job, attempt.role))
    if not await registry.take(session, report):
        raise StoreUnavailableError("nothing can be recorded now", hint="send it again")
    orders = registry.orders(session)
    return orders or Refused("attemptOver", "the record of its job was dropped")


def _attempt_of(request: web.Request) -> AttemptId:
    """Return the attempt that the query names: `<uid>/worker-3/2`.

    Raises:
        MalformedError: It names none.
    """
    text = request.query.get("attempt", "")
    job, _, rest = text.partition("/")
    replica, _, number = rest.rpartition("/")
    try:
        role, index = parse_replica(replica)
        return AttemptId(job, role, index, int(number))
    except ValueError as error:
        raise MalformedError(
            f"{text[:80]!r} is no attempt", hint="?attempt=<job uid>/worker-3/2"
        ) from error


async def get_blob(request: web.Request) -> web.StreamResponse:
    """Give an executor a file that its job ships."""
    digest = request.match_info["digest"]
    job = _job_of(request, request.query.get("job", ""))
    if all(file.digest != digest for file in job.spec.files):
        raise NotFoundError(f"the job ships no file {digest}")
    context = request.app[CONTEXT]
    path = blob_path(context.blobs, digest)
    if not path.exists():
        if context.shared_blobs is None:
            raise NotFoundError(f"{digest} is not in this store")
        await context.shared_blobs.fetch(path.name, path)
    response = web.StreamResponse()
    async with request.app[BLOB_SLOTS], await anyio.open_file(path, "rb") as file:
        response.content_length = path.stat().st_size
        await response.prepare(request)
        while part := await file.read(BLOB_PART_BYTES):
            await response.write(part)
    return response


async def get_peers(request: web.Request) -> web.Response:
    """Give an executor a peers document of its job."""
    body = request.app[DOCUMENTS].of(_job_of_peers(request))
    return web.Response(body=body, content_type=JSON)


async def get_variables(request: web.Request) -> web.Response:
    """Give an executor the variables of its replica that hang on a peers document."""
    job = _job_of_peers(request)
    try:
        role, index = parse_replica(request.query.get("replica", ""))
    except ValueError as error:
        raise MalformedError("no replica is named", hint="?replica=worker-3") from error
    if role not in job.roles:
        raise NotFoundError(f"the job has no role {role}")
    found = request.app[MAKERS].of(job)(role, index)
    return web.Response(body=msgspec.json.encode(found), content_type=JSON)


def _job_of_peers(request: web.Request) -> Job:
    """Return the job as of the peers document that a request is about.

    Raises:
        NotFoundError: It is about one that nobody is told of any more.
    """
    job = _job_of(request, request.match_info["job"])
    digest = request.query.get("digest", job.peers.digest)
    if digest == job.peers.digest:
        return job
    earlier = request.app[REGISTRY].job_with_peers(job.uid, digest)
    if earlier is None:
        raise NotFoundError("there is a newer peers document", hint="newer orders name it")
    return earlier


def _job_of(request: web.Request, uid: str) -> Job:
    """Return the job that a request shows the key of.

    Raises:
        UnauthorizedError: It does not.
        NotFoundError: There is no such job.
    """
    registry = request.app[REGISTRY]
    if not registry.has_key(request, uid):
        raise UnauthorizedError("the key is not the job's")
    job = registry.engine.world.jobs.get(uid)
    if job is None:
        raise NotFoundError(f"there is no job {uid}")
    return job
