"""Savepoints of a stream over HTTP: make, show, export, import, go back, drop; dead letters."""

from aiohttp import web
from msgspec import Struct

from primusd.api.asking import answer, caller_of, context_of, find_job, read_body
from primusd.api.context import Context
from primusd.api.data import find_streams
from primusd.carriage import exported
from primusd.core import Ignored
from primusd.datafeed.ledger.carrying import order_fault
from primusd.datafeed.ledger.events import (
    RestoreRequested,
    SavepointDropped,
    SavepointImported,
    SavepointRequested,
    StreamEvent,
    TaskRetryRequested,
    TaskSkipRequested,
)
from primusd.datafeed.ledger.model import Savepoint, Stream
from primusd.datafeed.ledger.portable import FORM, Portable, PortableError, as_carried, check
from primusd.errors import ConflictError, MalformedError, NotFoundError, Problem
from primusd.job.model import Job
from primusd.jobfile.promises import is_savepoint_name
from primusd.views import feed_documents as documents
from primusd.views.streams import savepoint_document, stream_document, stream_history

REASON_LENGTH_MAX = 1_000


class SavepointBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `POST …/savepoints`: a name, and what was exported where it comes from outside."""

    name: str
    positions: Portable | None = None


class TaskBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `:skip` and `:retry`: a range, by any position in it."""

    unit: int
    lo: int
    epoch: int = 0
    reason: str = ""


async def list_savepoints(request: web.Request) -> web.Response:
    """List the savepoints of a stream, the oldest first."""
    stream, job = _stream(request)
    return answer(
        documents.SavepointList(
            resource_version=str(stream.changed_revision),
            items=tuple(savepoint_document(stream, one, job.spec) for one in stream.savepoints),
        )
    )


async def create_savepoint(request: web.Request) -> web.Response:
    """Keep positions under a name: those of now, or some that were exported."""
    body = await read_body(request, SavepointBody)
    if not is_savepoint_name(body.name):
        problem = Problem(
            "name", found=body.name[:80], allowed="1 to 128 letters, digits, dots, - and _"
        )
        raise MalformedError("a savepoint cannot be called so", errors=(problem,))
    event: StreamEvent = SavepointRequested(body.name)
    if body.positions is not None:
        event = _imported(body.name, body.positions)
    stream, _ = _stream(request)
    _check_order(stream, body.positions)
    ignored = await _propose(request, event)
    after, job = _stream(request)
    if isinstance(event, SavepointRequested) and ignored:
        raise ConflictError(
            f"stream {stream.name} has a savepoint {body.name} already",
            hint="take another name, or drop that one first",
        )
    made = _named(after, body.name)
    return answer(savepoint_document(after, made, job.spec), status=201)


def _check_order(stream: Stream, positions: Portable | None) -> None:
    if positions is None:
        return
    fault = order_fault(as_carried(positions.units), positions.order, stream.spec)
    if fault:
        raise ConflictError(fault, hint="with shuffle as it was, or at a whole pass")


def _imported(name: str, positions: Portable) -> SavepointImported:
    if positions.form > FORM:
        raise PortableError(f"the savepoint has form {positions.form}, we know up to {FORM}")
    for unit in positions.units:
        check(unit)
    return SavepointImported(name, as_carried(positions.units), positions.whole_epochs)


async def get_savepoint(request: web.Request) -> web.Response:
    """Show a savepoint."""
    stream, job = _stream(request)
    found = _named(stream, request.match_info["savepoint"])
    return answer(savepoint_document(stream, found, job.spec))


async def export_savepoint(request: web.Request) -> web.Response:
    """Show the positions of a savepoint, by file, in the form that can be imported."""
    stream, _ = _stream(request)
    found = _named(stream, request.match_info["savepoint"])
    return answer(exported(stream, context_of(request).engine.world, found))


async def restore_savepoint(request: web.Request) -> web.Response:
    """Go back to a savepoint; what was taken since comes again."""
    await _propose(request, RestoreRequested(request.match_info["savepoint"]))
    return _stream_answer(request)


async def drop_savepoint(request: web.Request) -> web.Response:
    """Forget a savepoint."""
    stream, job = _stream(request)
    found = _named(stream, request.match_info["savepoint"])
    await _propose(request, SavepointDropped(found.name))
    return answer(savepoint_document(stream, found, job.spec))


async def skip(request: web.Request) -> web.Response:
    """Leave a range out, or accept one that is left out already; the reason is kept."""
    body = await read_body(request, TaskBody)
    if not body.reason.strip() or len(body.reason) > REASON_LENGTH_MAX:
        problem = Problem("reason", allowed=f"1 to {REASON_LENGTH_MAX} characters")
        raise MalformedError("rows are left out for a reason, which is kept", errors=(problem,))
    await _propose(request, TaskSkipRequested(body.epoch, body.unit, body.lo, body.reason))
    return _stream_answer(request)


async def retry(request: web.Request) -> web.Response:
    """Let a range that is left out be read again."""
    body = await read_body(request, TaskBody)
    if await _propose(request, TaskRetryRequested(body.epoch, body.unit, body.lo)):
        raise ConflictError(
            "that range is not left out, or lies in a lease that is still open",
            hint="primusctl data NAME dead lists them; try again once the lease is done",
        )
    return _stream_answer(request)


async def show_history(request: web.Request) -> web.Response:
    """Show what happened to a stream, the oldest first."""
    stream, job = _stream(request)
    return answer(stream_history(stream, job.spec))


def _stream(request: web.Request) -> tuple[Stream, Job]:
    job = find_job(request)
    (stream,) = find_streams(request, job)
    return stream, job


def _named(stream: Stream, name: str) -> Savepoint:
    found = next((one for one in stream.savepoints if one.name == name), None)
    if found is None:
        names = ", ".join(one.name for one in stream.savepoints) or "none"
        raise NotFoundError(f"stream {stream.name} has no savepoint {name}; it has {names}")
    return found


async def _propose(request: web.Request, event: StreamEvent) -> bool:
    """Propose an event to the stream; return whether it changed nothing."""
    stream, job = _stream(request)
    context: Context = context_of(request)
    machine = f"{job.uid}/{stream.name}"
    said = await context.engine.propose(machine, event, by=caller_of(request))
    return isinstance(said, Ignored)


def _stream_answer(request: web.Request) -> web.Response:
    context, (stream, _) = context_of(request), _stream(request)
    engine = context.engine
    document = stream_document(stream, engine.world, context.live(), at_ms=engine.at_ms())
    assert document is not None, "a stream of a job in the same world"
    return answer(document)
