"""What a head does that does not lead: few answers are its own, all others are the leader's."""

from collections.abc import Awaitable, Callable, Container

import anyio
from aiohttp import web
from aiohttp.typedefs import Middleware
from msgspec import Struct

from primusd.api.auth import OPEN_PATHS
from primusd.api.forwarding import not_leader
from primusd.api.problems import Handler
from primusd.executor.protocol import LOST, Refused
from primusd.state.election import Heads, News

STANDBY_PATHS = OPEN_PATHS | {"/api/v1/cluster", "/metrics"}
CONNECT_PATHS = frozenset({"/executor/v1/connect", "/node/v1/connect"})
"""Whoever dials these is told in the words of its protocol, once it has shown whose it is."""
REFUSAL: web.RequestKey[Refused] = web.RequestKey("refusal", Refused)
HELD_S = 4.0
"""How long whoever dials is kept waiting for a leader to be named: it gives up after 10 s."""
AGAIN_MS = 250
"""Within about this time it dials again that was kept waiting in vain."""

Forward = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Standing(Struct, frozen=True):
    """How a head knows whether it leads, and who else does."""

    is_leader: Callable[[], bool]
    """Whether all its parts work."""
    heads: Callable[[], Heads]
    """Who leads, as far as it knows."""
    member: str = ""
    """Its own name."""
    news: News | None = None
    """Told when one of both changes; None: nobody is kept waiting for it."""

    def to_dial(self, lost: Container[str] = ()) -> tuple[str, ...]:
        """Return the addresses of all heads, the leader's first; () where another one has to lead.

        Args:
            lost: Heads that do not answer whoever asks.
        """
        heads = self.heads()
        leader = heads.leader
        if leader is None or leader.member == self.member:
            return ()
        if any(one in lost for one in leader.addresses):
            return ()
        others = [one for member in heads.members for one in member.addresses]
        return tuple(dict.fromkeys([*leader.addresses, *others]))


def leader_only(standing: Standing, forward: Forward | None = None) -> Middleware:
    """Return what hands requests on to the leader while this head does not lead.

    Args:
        standing: Of this head.
        forward: Hands a request on; None: it is refused, with the leader's address.
    """

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if standing.is_leader() or request.path in STANDBY_PATHS:
            return await handler(request)
        if request.path in CONNECT_PATHS:
            refused = await _refused(request, standing)
            if refused is not None:
                request[REFUSAL] = refused
            return await handler(request)
        if forward is None:
            raise not_leader(standing.heads())
        return await forward(request)

    return check


async def _refused(request: web.Request, standing: Standing) -> Refused | None:
    """Return what whoever dials is told, once there is a leader to name; None: it is this head."""
    lost = frozenset(request.headers.get(LOST, "").split(","))
    if standing.news is not None:
        with anyio.move_on_after(HELD_S):
            while not (standing.is_leader() or standing.to_dial(lost)):
                await standing.news.wait()
    if standing.is_leader():
        return None
    text = not_leader(standing.heads()).message
    found = standing.to_dial(lost)
    if found or standing.news is None:
        return Refused("notLeader", text, standing.to_dial())
    # Should it be there again, it answers by now.
    return Refused("notLeader", text, standing.to_dial(), AGAIN_MS)


def refusal(request: web.Request) -> Refused | None:
    """Return what an executor or node is told whose connection came while this head stood by."""
    return request.get(REFUSAL)
