"""A cluster in memory (`sources/topics.Cluster`), and a stream that follows it."""

from collections.abc import Mapping, Sequence

import anyio

from primusd.datafeed.ledger.events import ListingFailed, TopicsFollowed
from primusd.datafeed.sources.files import ListingError
from primusd.datafeed.sources.topics import Cluster, Place, look
from primusd.job.spec import KafkaSource, Offsets, Source, StreamSpec
from tests.datafeed.ledger_driver import Driver

EARLIEST, NEVER = Offsets("earliest"), Offsets("never")


class FakeCluster:
    """Partitions with a beginning, an end, and the times of their records.

    Attributes:
        id: Of topics, where it is told.
        begin: First offset by partition.
        end: Offset after the last by partition; a partition is there when it is in here.
        times: Milliseconds of the first record at or after which an offset lies.
        group: What was committed.
        fault: Raised by whatever is asked.
    """

    def __init__(self, **ends: Sequence[int]) -> None:
        self.end = {
            Place(topic, number): end
            for topic, found in ends.items()
            for number, end in enumerate(found)
        }
        self.id: dict[str, str] = {}
        self.begin: dict[Place, int] = {}
        self.times: dict[Place, tuple[tuple[int, int], ...]] = {}
        self.group: dict[Place, int] = {}
        self.fault: ListingError | None = None
        self.is_closed = False

    async def partitions(self, topics: Sequence[str]) -> Mapping[str, int]:
        self._check()
        return {topic: sum(one.topic == topic for one in self.end) for topic in topics}

    async def ids(self, topics: Sequence[str]) -> Mapping[str, str]:
        self._check()
        return {topic: self.id[topic] for topic in topics if topic in self.id}

    async def begins(self, places: Sequence[Place]) -> Mapping[Place, int]:
        self._check()
        return {one: self.begin.get(one, 0) for one in places}

    async def ends(self, places: Sequence[Place]) -> Mapping[Place, int]:
        self._check()
        return {one: self.end[one] for one in places}

    async def at_time(self, places: Sequence[Place], at_ms: int) -> Mapping[Place, int]:
        self._check()
        found = {}
        for one in places:
            later = [offset for time, offset in self.times.get(one, ()) if time >= at_ms]
            if later:
                found[one] = min(later)
        return found

    async def committed(self, places: Sequence[Place]) -> Mapping[Place, int]:
        self._check()
        return {one: self.group[one] for one in places if one in self.group}

    async def commit(self, offsets: Mapping[Place, int]) -> None:
        self._check()
        self.group |= offsets

    async def close(self) -> None:
        self.is_closed = True

    def _check(self) -> None:
        if self.fault is not None:
            raise self.fault


def kafka_source(
    *topics: str,
    start: Offsets = EARLIEST,
    until: Offsets = NEVER,
    group: str = "",
) -> KafkaSource:
    return KafkaSource(("k1:9092",), topics or ("clicks",), start=start, until=until, group=group)


def topics_spec(*sources: KafkaSource, **fields: object) -> StreamSpec:
    found = tuple(Source(kafka=one) for one in sources or (kafka_source(),))
    return StreamSpec("clicks", found, **fields)  # type: ignore[arg-type]  # fields of a Struct


class Follower:
    """Looks at a cluster for a stream, as the daemon does."""

    def __init__(self, cluster: Cluster, spec: StreamSpec | None = None) -> None:
        self.cluster = cluster
        self.driver = Driver(spec or topics_spec())

    def look(self) -> str:
        """Look once; return why the event was ignored, "" when it was recorded, or none came."""
        stream = self.driver.now
        clusters = dict.fromkeys(range(len(stream.spec.sources)), self.cluster)

        async def asked() -> TopicsFollowed | None:
            return await look(stream, clusters, now_ms=self.driver.at_ms)

        event: TopicsFollowed | ListingFailed | None
        try:
            event = anyio.run(asked)
        except ListingError as error:
            event = ListingFailed(error.message, error.permanent)
        return self.driver.propose(event) if event is not None else "nothing new"


__all__ = ["FakeCluster", "Follower", "kafka_source", "topics_spec"]
