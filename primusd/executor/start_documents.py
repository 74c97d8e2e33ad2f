"""What belongs to a start and is fetched: the peers document, and the variables that hang on it."""

from collections.abc import Awaitable, Callable

import anyio
import msgspec
import structlog

from primusd.executor.connection import Head, UnreachableError
from primusd.executor.protocol import Start, StartVariables
from primusd.job.ids import AttemptId

log = structlog.get_logger()

FETCH_AGAIN_S = 1.0


class Newest:
    """The work for the newest order; that for one before, which may be in vain, is given up."""

    def __init__(self) -> None:
        self._scope: anyio.CancelScope | None = None

    async def run(self, work: Callable[[Start], Awaitable[None]], start: Start) -> None:
        """Do it, unless a newer order comes meanwhile."""
        if self._scope is not None:
            self._scope.cancel()
        self._scope = scope = anyio.CancelScope()
        with scope:
            await work(start)


async def fetch_peers(head: Callable[[], Head], attempt: AttemptId, start: Start) -> bytes:
    """Return the peers document that an order names; asks until a head has it."""
    return start.inline or await _fetch(head, attempt, start, "peers", "")


async def fetch_variables(
    head: Callable[[], Head], attempt: AttemptId, start: Start
) -> StartVariables:
    """Return the replica's variables that hang on those peers; asks until a head has them."""
    if not start.has_variables:
        return StartVariables()
    found = await _fetch(head, attempt, start, "variables", f"&replica={attempt.replica}")
    return msgspec.json.decode(found, type=StartVariables)


async def _fetch(
    head: Callable[[], Head], attempt: AttemptId, start: Start, what: str, query: str
) -> bytes:
    path = f"/executor/v1/{what}/{attempt.job}/{start.generation}?digest={start.peers}{query}"
    while True:
        try:
            return b"".join([chunk async for chunk in head().fetch(path)])
        except UnreachableError as error:
            log.warning("peers.fetch_failed", text=str(error))
            await anyio.sleep(FETCH_AGAIN_S)
