"""Why a job waits, restarted, or has its verdict, over HTTP."""

import anyio
import anyio.to_thread
from aiohttp import web

from primusd.api.asking import answer, context_of, find_job
from primusd.views.explaining import explanations
from primusd.views.explanation_documents import ExplanationList
from primusd.views.queue import queue_of

AT_ONCE = anyio.CapacityLimiter(1)
"""Looking ahead in a long queue takes a while: the loop turns meanwhile."""


async def explain(request: web.Request) -> web.Response:
    """Answer all that can be asked of a job now."""
    engine, job = context_of(request).engine, find_job(request)
    world, revision, at_ms = engine.world, engine.revision, engine.at_ms()
    items = await anyio.to_thread.run_sync(
        lambda: explanations(job, world, queue_of(world.admission), at_ms=at_ms), limiter=AT_ONCE
    )
    return answer(ExplanationList(resource_version=str(revision), items=items))
