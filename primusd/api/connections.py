"""How many connections are served at once: one more is answered with 429 and closed."""

import asyncio
from weakref import WeakSet

from aiohttp import web
from aiohttp.typedefs import Middleware

from primusd.api.auth import KEYED_PREFIXES, is_open, peer_of
from primusd.api.problems import Handler, problem_response
from primusd.errors import TooManyRequestsError


class Connections:
    """The connections that are served now."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: WeakSet[asyncio.BaseTransport] = WeakSet()

    def take(self, transport: asyncio.BaseTransport) -> None:
        """Count a connection in, unless it is already.

        Raises:
            TooManyRequestsError: There are as many as are served at once.
        """
        if transport in self._open:
            return
        if len(self._open) >= self._most:
            for one in [one for one in self._open if one.is_closing()]:
                self._open.discard(one)
        if len(self._open) >= self._most:
            raise TooManyRequestsError(
                f"{self._most} connections are open, which is listen.connections_max"
            )
        self._open.add(transport)


def connection_limiter(connections: Connections) -> Middleware:
    """Return the middleware that turns away whom there are too many of; it stands outermost.

    People on the unix socket, and those who ask whether the daemon is well, always get in.
    """

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.transport is not None and not _always_gets_in(request):
            try:
                connections.take(request.transport)
            except TooManyRequestsError as error:
                response = problem_response(error, "")
                response.force_close()
                return response
        return await handler(request)

    return check


def _always_gets_in(request: web.Request) -> bool:
    if request.path.startswith(KEYED_PREFIXES):
        return False
    return is_open(request.path) or peer_of(request) is not None
