"""A job as it was, over HTTP: replayed in a worker thread, one replay at a time."""

import re
from functools import partial

import anyio
import anyio.to_thread
from aiohttp import web
from msgspec import UNSET

from primusd.api.asking import answer, context_of, find_job, time_parameter
from primusd.errors import MalformedError, Problem, TooManyRequestsError
from primusd.replaying import UNKNOWN, Moment, replay
from primusd.views.explanation_documents import Reach
from primusd.views.replays import replay_document

EVENT = re.compile(r"([0-9]{1,18})(\.[0-9]{1,9})?", re.ASCII)
AT_ONCE = anyio.CapacityLimiter(1)
"""A replay reads much and holds the interpreter while it does: never two at once."""


async def show_replay(request: web.Request) -> web.Response:
    """Show a job as it was at a time, or after an event."""
    context, job = context_of(request), find_job(request)
    engine = context.engine
    moment = _moment(request, now_ms=engine.at_ms(), newest=engine.revision)
    if AT_ONCE.borrowed_tokens:
        raise TooManyRequestsError("another replay is being made", hint="try again in a moment")
    newest = await engine.journal_entries()
    work = partial(replay, context.archive, newest, job.uid, moment, created_ms=job.created_ms)
    found = await anyio.to_thread.run_sync(work, limiter=AT_ONCE)
    is_known = found.admission_from != UNKNOWN
    reach = Reach(
        job_from=str(found.job_from),
        cluster_from=str(found.admission_from) if is_known else UNSET,
    )
    return answer(
        replay_document(
            found.world.jobs[job.uid],
            found.world,
            reach,
            revision=found.revision,
            at_ms=found.at_ms,
        )
    )


def _moment(request: web.Request, *, now_ms: int, newest: int) -> Moment:
    """Return what was asked for: `?event`, `?at`, else now.

    Raises:
        MalformedError: It is neither, both, or an event that has not come yet.
    """
    event, at_ms = request.query.get("event", ""), time_parameter(request, "at", now_ms=now_ms)
    if event and at_ms:
        raise MalformedError("either at or event can be asked for, not both")
    if not event:
        return Moment(at_ms=at_ms or now_ms)
    found = EVENT.fullmatch(event)
    if found is None or not 1 <= int(found[1]) <= newest:
        allowed = f"the id of an event, or a revision from 1 to {newest}"
        problem = Problem("?event", found=event[:80], allowed=allowed)
        raise MalformedError(f"event has to be {allowed}", errors=(problem,))
    return Moment(revision=int(found[1]))
