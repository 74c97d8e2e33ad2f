"""Why a job waits, restarted, or has its verdict, over HTTP."""

from aiohttp import web

from primusd.api.asking import answer, context_of, find_job
from primusd.views.explaining import explanations
from primusd.views.explanation_documents import ExplanationList
from primusd.views.queue import queue_of


async def explain(request: web.Request) -> web.Response:
    """Answer all that can be asked of a job now."""
    engine, job = context_of(request).engine, find_job(request)
    world = engine.world
    return answer(
        ExplanationList(
            resource_version=str(engine.revision),
            items=explanations(job, world, queue_of(world.admission), at_ms=engine.at_ms()),
        )
    )
