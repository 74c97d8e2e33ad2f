"""The invariants, looked at now and then while the daemon runs; tests look after every step."""

import anyio
import anyio.to_thread
import structlog

from primusd.core import World
from primusd.datafeed.ledger import invariants as feed_invariants
from primusd.engine import Engine
from primusd.job import invariants as job_invariants

log = structlog.get_logger()

SAMPLE_S = 60.0


async def sample(engine: Engine) -> None:
    """Check the state each minute in which it changed, until cancelled.

    A state never changes, so it is checked in a thread while the loop goes on.
    """
    seen = engine.revision
    while True:
        await anyio.sleep(SAMPLE_S)
        if engine.revision != seen:
            seen = engine.revision
            found = await anyio.to_thread.run_sync(broken_invariant, engine.world)
            if found:
                log.error("invariant.broken", revision=seen, text=found)


def broken_invariant(world: World) -> str:
    """Return which invariant does not hold, "" when all do."""
    try:
        job_invariants.check(world)
    except AssertionError as error:
        return str(error) or "an assertion without words"
    for machine, stream in world.streams.items():
        found = feed_invariants.broken(stream)
        if found:
            return f"{machine}: {'; '.join(found)}"
    return ""
