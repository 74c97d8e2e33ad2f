"""Mirrors acknowledged offsets to consumer groups, for tools that show lag; and measures rates.

The ledger is the truth and reads nothing back, so a failure is told in the log and tried again. The
lowest unfinished offset is committed: whoever began there would lose nothing.
"""

from collections.abc import Callable, Mapping

import anyio
import structlog
from msgspec import Struct

from primusd.clock import Clock
from primusd.core import World
from primusd.datafeed.ledger.places import PartitionPlace, partition_places
from primusd.datafeed.sources.files import ListingError
from primusd.datafeed.sources.topics import Cluster, Place
from primusd.following import CLOSE_S, OpenCluster, open_cluster
from primusd.job.spec import KafkaSource, follows_topics
from primusd.timer import Sleep, sleep_ms
from primusd.views.live import LivePartition

log = structlog.get_logger()

MIRROR_MS = 10_000
COMMIT_S = 15.0
CLUSTERS_MAX = 64
"""Connections kept; more groups than that are committed to with a new one each time."""

Group = tuple[str, int]
"""Name of a stream machine, number of the source."""


class _Sample(Struct, frozen=True):
    at_ms: int
    end: int
    passed: int


class Mirror:
    """Commits for groups, and knows how fast partitions grow and are read."""

    def __init__(
        self,
        world: Callable[[], World],
        clock: Clock,
        told: Callable[[Mapping[tuple[str, int], LivePartition]], None],
        *,
        open_cluster: OpenCluster = open_cluster,
        sleep: Sleep = sleep_ms,
    ) -> None:
        """Make a mirror that has committed nothing yet.

        Args:
            world: Returns the state as it is.
            clock: For rates.
            told: Is given the rates of all partitions, by machine and unit.
            open_cluster: Returns what offsets are committed to.
            sleep: Waits.
        """
        self._world = world
        self._clock = clock
        self._told = told
        self._open_cluster = open_cluster
        self._sleep = sleep
        self._samples: dict[tuple[str, int], _Sample] = {}
        self._committed: dict[Group, dict[Place, int]] = {}
        self._clusters: dict[Group, Cluster] = {}
        self._faults: dict[Group, str] = {}

    async def run(self) -> None:
        """Mirror every ten seconds until cancelled."""
        try:
            while True:
                await self._sleep(MIRROR_MS)
                await self.look()
        finally:
            with anyio.move_on_after(CLOSE_S, shield=True):
                await self._forget(set())

    async def look(self) -> None:
        """Measure all partitions, and commit what moved."""
        rates: dict[tuple[str, int], LivePartition] = {}
        samples: dict[tuple[str, int], _Sample] = {}
        wanted: dict[Group, tuple[KafkaSource, dict[Place, int]]] = {}
        for machine, stream in self._world().streams.items():
            if not follows_topics(stream.spec):
                continue
            for place in partition_places(stream):
                key = (machine, place.unit)
                samples[key] = _Sample(self._clock.boot_ms(), place.end, place.passed)
                rates[key] = _rate(self._samples.get(key), samples[key])
                kafka = stream.spec.sources[place.source].kafka
                if kafka is not None and kafka.group and kafka.is_mirrored:
                    _, offsets = wanted.setdefault((machine, place.source), (kafka, {}))
                    offsets[_place(place)] = place.low
        self._samples = samples
        self._told(rates)
        for group, (kafka, offsets) in wanted.items():
            await self._commit(group, kafka, offsets)
        await self._forget(set(wanted))

    async def _commit(self, group: Group, kafka: KafkaSource, offsets: dict[Place, int]) -> None:
        if self._committed.get(group) == offsets:
            return
        cluster = self._clusters.get(group)
        if cluster is None:
            cluster = self._clusters[group] = self._open_cluster(kafka)
        try:
            with anyio.fail_after(COMMIT_S):
                await cluster.commit(offsets)
        except (ListingError, TimeoutError) as error:
            text = str(error)
            if self._faults.get(group) != text:
                log.warning("mirror.failed", stream=group[0], group=kafka.group, text=text)
                self._faults[group] = text
            return
        self._faults.pop(group, None)
        self._committed[group] = offsets
        if len(self._clusters) > CLUSTERS_MAX:
            await self._clusters.pop(group).close()

    async def _forget(self, kept: set[Group]) -> None:
        """Let go of what is mirrored no more."""
        for group in self._clusters.keys() - kept:
            await self._clusters.pop(group).close()
        for found in (self._committed, self._faults):
            for group in found.keys() - kept:
                del found[group]


def _place(place: PartitionPlace) -> Place:
    topic, _, partition = place.location.rpartition("/")
    return Place(topic, int(partition))


def _rate(before: _Sample | None, now: _Sample) -> LivePartition:
    """Return how fast a partition grew and was read between two samples; -1 not known yet."""
    if before is None or now.at_ms <= before.at_ms:
        return LivePartition()
    spent_ms = now.at_ms - before.at_ms
    return LivePartition(
        produced_per_s=max(0, now.end - before.end) * 1000 // spent_ms,
        read_per_s=max(0, now.passed - before.passed) * 1000 // spent_ms,
    )
