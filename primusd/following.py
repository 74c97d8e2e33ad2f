"""Follows the topics of a stream: what is new of them becomes an event of its ledger."""

from collections.abc import Callable, Mapping

import anyio
import structlog

from primusd.datafeed.ledger.events import ListingFailed
from primusd.datafeed.ledger.model import Stream
from primusd.datafeed.protocol import Unit
from primusd.datafeed.sources.files import ListingError
from primusd.datafeed.sources.topics import Cluster, UnusableError, first_look, look
from primusd.engine import Engine
from primusd.errors import PrimusdError
from primusd.job.commands import FollowTopics
from primusd.job.spec import KafkaSource, StreamSpec
from primusd.timer import Sleep

log = structlog.get_logger()

FOLLOW_MS = 500
"""Between two looks while there is something new: it is handed out at most so much later."""
FOLLOW_IDLE_MS = 2_000
"""Between two looks while there is nothing new, doubled up to here."""
LOOKS_AT_ONCE = 16
LOOK_S = 20.0
CLOSE_S = 3.0

OpenCluster = Callable[[KafkaSource], Cluster]


def open_cluster(source: KafkaSource) -> Cluster:
    """Return a cluster that is asked over its own protocol."""
    # Imported here: most daemons follow nothing, and their client is large.
    from primusd.datafeed.sources.kafka import KafkaCluster  # noqa: PLC0415

    return KafkaCluster(source)


async def topics_now(spec: StreamSpec, *, now_ms: int) -> tuple[tuple[Unit, int, int], ...]:
    """Return the partitions that a stream would have now, each with its first offset and its end.

    Raises:
        ListingError: A cluster does not answer, or has not what is asked for.
    """
    clusters = _opened(spec, open_cluster)
    try:
        with anyio.fail_after(LOOK_S):
            return await first_look(spec, clusters, now_ms=now_ms)
    finally:
        await _close(clusters)


async def follow_topics(
    engine: Engine,
    command: FollowTopics,
    open_cluster: OpenCluster,
    sleep: Sleep,
    looks: anyio.CapacityLimiter,
) -> None:
    """Look at a stream's topics again and again, as long as that is planned.

    A failure is told to the ledger, which puts the next look off and names it in the status.

    Args:
        engine: Whose stream it is.
        command: Names the stream.
        open_cluster: Returns what answers about the topics of a source.
        sleep: Waits.
        looks: Bounds how many streams are looked for at once.
    """
    machine = f"{command.job}/{command.stream}"
    stream = engine.world.streams.get(machine)
    if stream is None:
        return
    clusters = _opened(stream.spec, open_cluster)
    try:
        delay_ms = FOLLOW_MS
        while (stream := engine.world.streams.get(machine)) is not None:
            async with looks:
                is_new = await _look(engine, machine, stream, clusters)
            delay_ms = FOLLOW_MS if is_new else min(2 * delay_ms, FOLLOW_IDLE_MS)
            await sleep(delay_ms)
    finally:
        await _close(clusters)


def _opened(spec: StreamSpec, open_cluster: OpenCluster) -> dict[int, Cluster]:
    return {
        number: open_cluster(source.kafka)
        for number, source in enumerate(spec.sources)
        if source.kafka is not None
    }


async def _close(clusters: Mapping[int, Cluster]) -> None:
    with anyio.move_on_after(CLOSE_S, shield=True):
        for cluster in clusters.values():
            await cluster.close()


async def _look(
    engine: Engine, machine: str, stream: Stream, clusters: Mapping[int, Cluster]
) -> bool:
    """Tell what is new, or why nobody can say; return whether there was something."""
    try:
        with anyio.fail_after(LOOK_S):
            event = await look(stream, clusters, now_ms=engine.at_ms())
    except UnusableError as error:
        failed = ListingFailed(error.message, is_permanent=stream.phase == "Opening")
    except ListingError as error:
        failed = ListingFailed(error.message, error.permanent)
    except TimeoutError:
        failed = ListingFailed(f"topics do not answer within {LOOK_S:.0f} s", is_permanent=False)
    else:
        if event is not None:
            await engine.propose(machine, event, by="source")
        return event is not None
    try:
        await engine.propose(machine, failed, by="source")
    except PrimusdError as error:
        log.warning("listing.failed", stream=machine, text=str(error))
    return False
