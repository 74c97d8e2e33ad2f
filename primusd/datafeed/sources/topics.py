"""Topics as a source: partitions become units, and what they hold by now becomes their end.

Nothing is joined and nobody is told what to read: the ledger hands out ranges of offsets. A stream
begins where its `start` says in partitions that are there when it is first looked at, and at the
earliest offset in those that come later. What `until` means is found anew with each look, so that a
look after a crash needs no memory but the units.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from primusd.datafeed.ledger.events import TopicsFollowed
from primusd.datafeed.ledger.model import Stream, can_grow, size_of
from primusd.datafeed.protocol import Unit
from primusd.datafeed.sources.files import ListingError
from primusd.job.spec import KafkaSource, Offsets, StreamSpec

PARTITIONS_MAX = 10_000
"""Of a stream; one event tells them all."""


class UnusableError(ListingError):
    """What is asked for cannot be had: a name or a right is wrong.

    While a stream serves already it may be had again, as it was before.
    """


class Place(Struct, frozen=True, order=True):
    """A partition of a topic."""

    topic: str
    partition: int

    @property
    def label(self) -> str:
        """Its name, as units have it."""
        return f"{self.topic}/{self.partition}"


class Cluster(Protocol):
    """What is asked of a cluster. All of it raises ListingError and never waits without end."""

    async def partitions(self, topics: Sequence[str]) -> Mapping[str, int]:
        """Return how many partitions each topic has."""
        ...

    async def ids(self, topics: Sequence[str]) -> Mapping[str, str]:
        """Return what tells each topic from a later one of its name, where that is told."""
        ...

    async def begins(self, places: Sequence[Place]) -> Mapping[Place, int]:
        """Return the first offset that each partition still has."""
        ...

    async def ends(self, places: Sequence[Place]) -> Mapping[Place, int]:
        """Return the offset after the last one that may be read: the last stable offset."""
        ...

    async def at_time(self, places: Sequence[Place], at_ms: int) -> Mapping[Place, int]:
        """Return the offset of the first record of a time or later, where there is one."""
        ...

    async def committed(self, places: Sequence[Place]) -> Mapping[Place, int]:
        """Return what the group of the source has committed, where it has."""
        ...

    async def commit(self, offsets: Mapping[Place, int]) -> None:
        """Commit offsets for the group of the source."""
        ...

    async def close(self) -> None:
        """Let go of all connections."""
        ...


class _Known(Struct, frozen=True):
    number: int
    first: int
    end: int
    topic_id: str
    """"" not told."""


class _Reached(Struct, frozen=True):
    """How far a partition may be read."""

    end: int
    is_final: bool


async def look(
    stream: Stream, clusters: Mapping[int, Cluster], *, now_ms: int
) -> TopicsFollowed | None:
    """Return what is new of a stream's topics, None when nothing is.

    Args:
        stream: As the ledger has it.
        clusters: By number of the source.
        now_ms: Of the wall clock, against which `until: time` is held.

    Raises:
        ListingError: A cluster does not answer, or its answer is not what was known before.
    """
    units: list[Unit] = []
    firsts: list[int] = []
    ends: list[tuple[int, int]] = []
    is_complete = True
    for number, source in enumerate(stream.spec.sources):
        if source.kafka is None:
            continue
        known = _known(stream, number)
        fresh, reached, ids = await _look_at(clusters[number], source.kafka, known, now_ms)
        is_complete &= source.kafka.until.kind != "never"
        for place, one in reached.items():
            is_complete &= one.is_final
            if place not in known:
                ends.append((len(stream.units) + len(units), one.end))
                unit = unit_of(place, number, source.kafka, stream.spec)
                units.append(replace(unit, pin=ids.get(place.topic, "")))
                firsts.append(fresh[place])
            elif one.end > known[place].end:
                ends.append((known[place].number, one.end))
    if not (units or ends or is_complete or stream.waiting_for or stream.phase == "Opening"):
        return None
    if len(stream.units) + len(units) > PARTITIONS_MAX and units:
        raise ListingError(
            f"stream {stream.name} has {len(stream.units) + len(units)} partitions, at most "
            f"{PARTITIONS_MAX} can be followed; put its topics into several streams"
        )
    return TopicsFollowed(
        tuple(units), tuple(firsts), tuple(ends), len(stream.units), is_complete=is_complete
    )


async def first_look(
    spec: StreamSpec, clusters: Mapping[int, Cluster], *, now_ms: int
) -> tuple[tuple[Unit, int, int], ...]:
    """Return the partitions that a stream would have now, each with its first offset and its end.

    Raises:
        ListingError: As `look`.
    """
    stream = Stream("", spec.name, spec, (), "Opening", now_ms)
    event = await look(stream, clusters, now_ms=now_ms)
    assert event is not None, "the first look tells something"
    ends = dict(event.ends)
    pairs = zip(event.units, event.firsts, strict=True)
    return tuple((unit, first, ends[number]) for number, (unit, first) in enumerate(pairs))


def unit_of(place: Place, source: int, kafka: KafkaSource, spec: StreamSpec) -> Unit:
    """Return a partition as its readers get it: all that they need to read a range of it."""
    security = kafka.security
    options = {
        "source": str(source),
        "format": spec.format,
        "bootstrap": ",".join(kafka.bootstrap),
        "isolation": kafka.isolation,
        "protocol": security.protocol,
        "mechanism": security.mechanism,
        "username": security.username,
        "passwordFile": security.password_file,
        "ca": security.ca_file,
        "cert": security.cert_file,
        "key": security.key_file,
    }
    return Unit("kafka", place.label, 0, "", {key: one for key, one in options.items() if one})


def place_of(unit: Unit) -> Place:
    """Return the partition that a unit is."""
    topic, _, partition = unit.location.rpartition("/")
    return Place(topic, int(partition))


def _known(stream: Stream, source: int) -> dict[Place, _Known]:
    return {
        place_of(entry.unit): _Known(number, entry.first, size_of(stream, number), entry.unit.pin)
        for number, entry in enumerate(stream.units)
        if can_grow(entry.unit) and entry.unit.options["source"] == str(source)
    }


async def _look_at(
    cluster: Cluster, source: KafkaSource, known: Mapping[Place, _Known], now_ms: int
) -> tuple[dict[Place, int], dict[Place, _Reached], Mapping[str, str]]:
    """Return where new partitions begin, how far all of them may be read, and their topics' ids."""
    if source.until.kind == "end" and known:
        # Its ends were found with its partitions; a file that changes later is no other matter.
        found = {place: _Reached(one.end, is_final=True) for place, one in known.items()}
        return {}, found, {}
    counts = await cluster.partitions(source.topics)
    ids = await cluster.ids(source.topics)
    _check_same(known, ids)
    places = [Place(topic, one) for topic in source.topics for one in range(counts[topic])]
    if source.until.kind == "offset":
        places = [one for one in places if _goal(source.until, one) >= 0]
    _check_named(source, counts)
    _check_gone(known, set(places))
    fresh = [place for place in places if place not in known]
    firsts = await _firsts(cluster, source, fresh, {one.topic for one in known})
    ends = await cluster.ends(places)
    for place, one in known.items():
        # A start may lie behind the last stable offset, in a transaction that is open.
        if ends[place] < one.end and one.end > one.first:
            raise _made_anew(place, ends[place], one.end)
    for place, first in firsts.items():
        if source.start.kind == "offset" and first > ends[place]:
            raise ListingError(f"start is offset {first}, and {place.label} ends at {ends[place]}")
    reached = await _reached(cluster, source.until, places, ends, now_ms)
    starts = {place: one.first for place, one in known.items()} | firsts
    found = {
        place: _Reached(max(one.end, starts[place]), one.is_final) for place, one in reached.items()
    }
    return firsts, found, ids


def _check_named(source: KafkaSource, counts: Mapping[str, int]) -> None:
    named = {**source.start.offsets, **source.until.offsets}
    most = max(counts.values(), default=0)
    if named and max(named) >= most:
        raise ListingError(
            f"offsets are given for partition {max(named)}, and {', '.join(source.topics)} "
            f"has {most}, from 0 to {most - 1}"
        )


def _check_gone(known: Mapping[Place, _Known], found: set[Place]) -> None:
    gone = sorted(known.keys() - found)
    if gone:
        raise ListingError(f"partition {gone[0].label} is gone: its topic was made anew")


def _check_same(known: Mapping[Place, _Known], ids: Mapping[str, str]) -> None:
    for place, one in sorted(known.items()):
        now = ids.get(place.topic, "")
        if one.topic_id and now and one.topic_id != now:
            raise ListingError(
                f"topic {place.topic} was deleted and made anew (its id was {one.topic_id}, now it "
                f"is {now}): its offsets mean other records than those that were read"
            )


def _made_anew(place: Place, end: int, before: int) -> ListingError:
    return ListingError(
        f"{place.label} ends at offset {end}, and reached {before} before: "
        "its topic was made anew, or lost records when a broker did"
    )


async def _firsts(
    cluster: Cluster, source: KafkaSource, fresh: list[Place], seen: set[str]
) -> dict[Place, int]:
    """Return where new partitions begin: as `start` says, in topics that were never looked at."""
    if not fresh:
        return {}
    begins = await cluster.begins(fresh)
    initial = [place for place in fresh if place.topic not in seen]
    firsts = dict(begins)
    match source.start.kind if initial else "earliest":
        case "latest":
            firsts |= await cluster.ends(initial)
        case "committed":
            # Also an offset that retention passed: what lies between is lost, and is to be told.
            firsts |= await cluster.committed(initial)
        case "offset":
            firsts |= {one: at for one in initial if (at := _goal(source.start, one)) >= 0}
        case "time":
            firsts |= await cluster.ends(initial)
            firsts |= await cluster.at_time(initial, source.start.at_ms)
        case _:
            pass
    return firsts


async def _reached(
    cluster: Cluster, until: Offsets, places: list[Place], ends: Mapping[Place, int], now_ms: int
) -> dict[Place, _Reached]:
    match until.kind:
        case "end":
            return {place: _Reached(ends[place], is_final=True) for place in places}
        case "offset":
            goals = {place: _goal(until, place) for place in places}
        case "time":
            goals = dict(await cluster.at_time(places, until.at_ms))
            if now_ms >= until.at_ms:
                goals = dict(ends) | goals
        case _:
            goals = {}
    found = {}
    for place in places:
        goal = goals.get(place)
        is_final = goal is not None and ends[place] >= goal
        end = ends[place] if goal is None else min(goal, ends[place])
        found[place] = _Reached(end, is_final)
    return found


def _goal(offsets: Offsets, place: Place) -> int:
    return offsets.offsets.get(place.partition, offsets.offset)
