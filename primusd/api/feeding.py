"""Rows over HTTP: sends a client on to a gateway of the stream (docs/http-feed.md)."""

import secrets
from urllib.parse import urlencode

from aiohttp import web

from primusd.api.asking import context_of, find_job
from primusd.api.data import find_streams
from primusd.datafeed.ledger.model import Stream
from primusd.errors import ConflictError, NoGatewayError
from primusd.job.model import Attempt, Job, replicas_of
from primusd.job.phases import AttemptPhase
from primusd.job.spec import RoleSpec, stream_of
from primusd.keys import feed_key


async def send_to_gateway(request: web.Request) -> web.Response:
    """Answer where the rows of a stream are to be had, with the key that opens it.

    Raises:
        ConflictError: No role hands this stream out by HTTP.
        NoGatewayError: No replica of such a role runs now.
    """
    context, job = context_of(request), find_job(request)
    (stream,) = find_streams(request, job)
    roles = _roles_of(job, stream)
    if not roles:
        raise ConflictError(
            f"no role of {job.spec.name} hands stream {stream.name} out by HTTP",
            hint="a role with `feed: http` and `data` of that name does",
        )
    running = [
        (role, replica.attempts[-1])
        for name, role in roles.items()
        for replica in replicas_of(job.roles[name])
        if replica.attempts and _serves(replica.attempts[-1])
    ]
    if not running:
        raise NoGatewayError(f"no replica of {', '.join(roles)} serves now")
    role, attempt = secrets.choice(running)
    query = {**request.query, "key": feed_key(context.secret, job.uid)}
    plain_name = stream.name.partition("@")[0]
    where = f"http://{_address(role, attempt)}/{plain_name}/rows?{urlencode(query)}"
    raise web.HTTPTemporaryRedirect(where)


def _roles_of(job: Job, stream: Stream) -> dict[str, RoleSpec]:
    return {
        name: role
        for name, role in job.spec.roles.items()
        if role.feed == "http"
        and any(stream_of(name, reading) == stream.name for reading in role.data)
    }


def _serves(attempt: Attempt) -> bool:
    return attempt.phase is AttemptPhase.RUNNING and attempt.is_ready


def _address(role: RoleSpec, attempt: Attempt) -> str:
    host = f"[{attempt.host}]" if ":" in attempt.host else attempt.host
    return f"{host}:{dict(attempt.ports)[role.ports[0]]}"
