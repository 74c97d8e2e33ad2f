"""The HTTP application, for both listeners."""

from aiohttp import web
from aiohttp.typedefs import Middleware

from primusd.api.asking import CONTEXT
from primusd.api.auth import authenticator
from primusd.api.blob_room import BLOB_ROOM, BlobRoom
from primusd.api.connections import Connections, connection_limiter
from primusd.api.context import Context
from primusd.api.forwarding import FORWARDER, Forwarder, Own
from primusd.api.leading import Standing, leader_only
from primusd.api.limits import Rates, limiter
from primusd.api.openapi import OPENAPI, describe
from primusd.api.problems import answer_problems
from primusd.api.routes import ROUTES
from primusd.api.vouching import vouched_for
from primusd.api.watching import OPEN_WATCHES, Line
from primusd.views import documents


def build(context: Context) -> web.Application:
    """Return the application around the daemon's parts.

    The paths of executors and nodes are added by whoever serves them, before it starts.
    """
    config = context.config().config
    clock = context.clock
    standing = Standing(context.is_leader, context.members, config.member, context.news)
    rates = Rates(
        per_s=lambda: context.config().config.limits.api_requests_per_s,
        now_ms=clock.boot_ms,
    )
    own = Own(
        config.member,
        context.secret,
        wall_ms=clock.wall_ms,
        ca=context.ca,
        has_tls=bool(config.listen.tls_cert),
    )
    forwarder = Forwarder(own, context.members, context.news)
    middlewares: tuple[Middleware, ...] = (
        connection_limiter(Connections(config.listen.connections_max)),
        answer_problems,
        authenticator(
            context.access,
            lambda request: vouched_for(request, context.secret, now_ms=clock.wall_ms()),
        ),
        leader_only(standing, forwarder.forward),
        limiter(rates),
    )
    app = web.Application(
        client_max_size=config.listen.body_bytes_max,
        middlewares=middlewares,
    )
    app[CONTEXT] = context
    app[FORWARDER] = forwarder
    app[BLOB_ROOM] = BlobRoom(
        context.blobs / "sha256",
        bytes_max=lambda: context.config().config.blobs.bytes_max,
        world=lambda: context.engine.world,
        shared=context.shared_blobs,
    )
    app[OPEN_WATCHES] = set()
    app[OPENAPI] = describe(ROUTES, (documents.Plan, documents.Event, Line))
    for route in ROUTES:
        app.router.add_route(route.method, route.path, route.handler)
    return app
