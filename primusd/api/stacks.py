"""What every thread of a trainer does now: asked of its executor, which answers with its report."""

from aiohttp import web

from primusd.api.asking import context_of, find_job
from primusd.api.replicas import named_replica
from primusd.errors import NotFoundError, PhaseConflictError
from primusd.job.ids import AttemptId
from primusd.job.phases import AttemptPhase


async def read_stacks(request: web.Request) -> web.Response:
    """Show the stacks of a replica's trainer."""
    context, job = context_of(request), find_job(request)
    name = request.match_info["replica"]
    role, replica = named_replica(job, name)
    newest = replica.newest
    if newest is None or newest.phase not in (AttemptPhase.RUNNING, AttemptPhase.STOPPING):
        phase = newest.phase.value if newest is not None else replica.phase.value
        raise PhaseConflictError(f"{name} has no trainer that runs", phase=phase, event="Ask")
    attempt = AttemptId(job.uid, role.name, replica.index, newest.number)
    answer = await context.ask(attempt, "stacks")
    if answer.error:
        raise NotFoundError(f"{name}: {answer.error}")
    return web.Response(body=answer.data, content_type="text/plain", charset="utf-8")
