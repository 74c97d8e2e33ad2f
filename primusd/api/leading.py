"""What a head that does not lead says: who does, and nothing else."""

from collections.abc import Callable

from aiohttp import web
from aiohttp.typedefs import Middleware

from primusd.api.auth import OPEN_PATHS
from primusd.api.problems import Handler
from primusd.errors import NotLeaderError
from primusd.executor.protocol import Refused
from primusd.state.election import Heads

STANDBY_PATHS = OPEN_PATHS | {"/api/v1/cluster"}
CONNECT_PATHS = frozenset({"/executor/v1/connect", "/node/v1/connect"})
"""Whoever dials these is told in the words of its protocol, once it has shown whose it is."""
REFUSAL: web.RequestKey[Refused] = web.RequestKey("refusal", Refused)


def leader_only(is_leader: Callable[[], bool], heads: Callable[[], Heads]) -> Middleware:
    """Return what turns requests away, with the leader's address, while this head does not lead.

    Args:
        is_leader: Whether all parts of this head work.
        heads: Who leads, as far as this one knows.
    """

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not is_leader() and request.path not in STANDBY_PATHS:
            found = heads()
            error = not_leader(found)
            if request.path not in CONNECT_PATHS:
                raise error
            request[REFUSAL] = Refused("notLeader", error.message, to_dial(found))
        return await handler(request)

    return check


def refusal(request: web.Request) -> Refused | None:
    """Return what an executor or node is told whose connection came while this head stood by."""
    return request.get(REFUSAL)


def to_dial(heads: Heads) -> tuple[str, ...]:
    """Return the addresses of all heads, the leader's first; () while nobody is known to lead."""
    if heads.leader is None:
        return ()
    others = [one for member in heads.members for one in member.addresses]
    return tuple(dict.fromkeys([*heads.leader.addresses, *others]))


def not_leader(heads: Heads) -> NotLeaderError:
    """Return what a caller is told."""
    if heads.leader is None:
        return NotLeaderError(
            "this daemon does not lead, and nobody else does yet",
            hint="try again in a moment",
            leader="",
        )
    address = next(iter(heads.leader.addresses), "")
    return NotLeaderError(
        f"this daemon stands by: {heads.leader.member} leads, term {heads.term}",
        hint=f"ask {address}" if address else "",
        leader=address,
    )
