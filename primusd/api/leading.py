"""What a head that does not lead says: who does, and nothing else."""

from collections.abc import Callable

from aiohttp import web
from aiohttp.typedefs import Middleware

from primusd.api.auth import OPEN_PATHS
from primusd.api.problems import Handler
from primusd.errors import NotLeaderError
from primusd.state.election import Heads

STANDBY_PATHS = OPEN_PATHS | {"/api/v1/cluster"}


def leader_only(is_leader: Callable[[], bool], heads: Callable[[], Heads]) -> Middleware:
    """Return what turns requests away, with the leader's address, while this head does not lead.

    Args:
        is_leader: Whether all parts of this head work.
        heads: Who leads, as far as this one knows.
    """

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not is_leader() and request.path not in STANDBY_PATHS:
            raise not_leader(heads())
        return await handler(request)

    return check


def not_leader(heads: Heads) -> NotLeaderError:
    """Return what a caller is told."""
    if heads.leader is None:
        return NotLeaderError(
            "this daemon does not lead, and nobody else does yet", hint="try again in a moment"
        )
    where = f"ask {heads.leader.addresses[0]}" if heads.leader.addresses else ""
    return NotLeaderError(
        f"this daemon stands by: {heads.leader.member} leads, term {heads.term}", hint=where
    )
