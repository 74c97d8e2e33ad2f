"""Topics in the ledger: partitions grow, take turns, lose what retention removed, and end."""

import random
from collections import Counter
from collections.abc import Mapping

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from primusd.clock import ManualClock
from primusd.core import World
from primusd.datafeed.ledger import events as ev
from primusd.datafeed.ledger import machine as ledger
from primusd.datafeed.ledger.carrying import carried_units
from primusd.datafeed.ledger.model import size_of
from primusd.datafeed.ledger.places import partition_places
from primusd.datafeed.protocol import BadRange, Unit
from primusd.datafeed.sources.files import ListingError
from primusd.datafeed.sources.topics import Place
from primusd.job.commands import FollowTopics, ListUnits
from primusd.job.events import StreamFailed, StreamFinished
from primusd.job.spec import Offsets, Restore, Source, Split
from primusd.mirroring import Mirror
from primusd.views.live import LivePartition
from tests.datafeed.ledger_driver import Reader, text_unit
from tests.datafeed.topics_world import FakeCluster, Follower, kafka_source, topics_spec

CLICKS_0, CLICKS_1 = Place("clicks", 0), Place("clicks", 1)


def read_all(reader: Reader) -> list[tuple[int, int, int]]:
    """Take all there is, and return the ranges: unit, lo, hi."""
    found: list[tuple[int, int, int]] = []
    for _ in range(100):
        reader.beat(2)
        if not reader.held:
            return found
        for token, held in sorted(reader.held.items()):
            found.append((held.unit, held.lo, held.hi))
            reader.take(held.hi - held.position, token)
    raise AssertionError("there is no end")


def spans(ranges: list[tuple[int, int, int]]) -> Counter[tuple[int, int]]:
    return Counter((unit, at) for unit, lo, hi in ranges for at in range(lo, hi))


def test_what_a_partition_gets_more_waits_and_is_read_once() -> None:
    cluster = FakeCluster(clicks=[5, 0])
    world = Follower(cluster)
    reader = world.driver.open(0)

    world.look()
    first = read_all(reader)
    cluster.end |= {CLICKS_0: 8, CLICKS_1: 3}
    world.look()
    second = read_all(reader)

    assert first == [(0, 0, 5)]
    assert sorted(second) == [(0, 5, 8), (1, 0, 3)]
    assert world.look() == "nothing new"
    assert world.driver.now.phase == "Serving"
    assert world.driver.now.consumed == 11
    assert not world.driver.told_of(StreamFinished)
    assert ledger.positions_left(world.driver.now) == -1
    assert world.driver.replay() == world.driver.now


def test_partitions_that_come_later_begin_at_their_earliest_offset() -> None:
    """M103: whatever `start` says, which is for what is there at first."""
    cluster = FakeCluster(clicks=[5])
    world = Follower(cluster, topics_spec(kafka_source(start=Offsets("latest"))))
    reader = world.driver.open(0)
    world.look()

    cluster.end |= {CLICKS_0: 6, CLICKS_1: 4}
    cluster.begin[CLICKS_1] = 1
    world.look()

    assert sorted(read_all(reader)) == [(0, 5, 6), (1, 1, 4)]


def test_partitions_take_turns_however_fast_one_of_them_grows() -> None:
    cluster = FakeCluster(clicks=[1_000_000, 1_000_000, 1_000_000])
    world = Follower(cluster)
    reader = world.driver.open(0)
    world.look()

    units = []
    for _ in range(6):
        reader.beat(1)
        ((token, held),) = reader.held.items()
        units.append(held.unit)
        reader.take(held.hi - held.lo, token)
        world.driver.at_ms += 10_000
        cluster.end[CLICKS_0] += 100_000
        world.look()

    assert units == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize(
    ("start", "lo"),
    [
        (Offsets("earliest"), 2),
        (Offsets("latest"), 10),
        (Offsets("committed"), 7),
        (Offsets("offset", offset=4), 4),
        (Offsets("offset", offsets={0: 5}), 5),
        (Offsets("offset", offsets={1: 5}), 2),
        (Offsets("time", 200), 6),
        (Offsets("time", 900), 10),
    ],
)
def test_a_start_is_found_once_and_kept(start: Offsets, lo: int) -> None:
    cluster = FakeCluster(clicks=[10, 9])
    cluster.begin[CLICKS_0] = 2
    cluster.times[CLICKS_0] = ((100, 2), (200, 6))
    cluster.group[CLICKS_0] = 7
    world = Follower(cluster, topics_spec(kafka_source(start=start, group="g")))

    world.look()
    cluster.group[CLICKS_0], cluster.begin[CLICKS_0] = 9, 8
    world.look()

    assert world.driver.now.units[0].first == lo


def test_a_group_that_committed_nothing_begins_at_the_earliest_offset() -> None:
    cluster = FakeCluster(clicks=[10])
    cluster.begin[CLICKS_0] = 3
    world = Follower(cluster, topics_spec(kafka_source(start=Offsets("committed"), group="g")))

    world.look()

    assert world.driver.now.units[0].first == 3


@pytest.mark.parametrize(
    "until", [Offsets("end"), Offsets("offset", offset=6), Offsets("time", 500)]
)
def test_an_end_that_is_reached_ends_the_stream(until: Offsets) -> None:
    cluster = FakeCluster(clicks=[6])
    cluster.times[CLICKS_0] = ((100, 0), (500, 6))
    world = Follower(cluster, topics_spec(kafka_source(until=until)))
    reader = world.driver.open(0)

    world.look()
    cluster.end[CLICKS_0] = 9
    found = read_all(reader)

    assert found == [(0, 0, 6)]
    assert world.driver.now.phase == "Done"
    (finished,) = world.driver.told_of(StreamFinished)
    assert isinstance(finished, StreamFinished)
    assert finished.consumed == 6
    assert ledger.plan(world.driver.now) == ()


def test_an_end_that_has_to_come_is_waited_for() -> None:
    cluster = FakeCluster(clicks=[4, 3])
    until = Offsets("offset", offsets={0: 6})
    world = Follower(cluster, topics_spec(kafka_source(until=until)))
    reader = world.driver.open(0)

    world.look()
    early = read_all(reader)
    before = world.driver.now.phase
    cluster.end[CLICKS_0] = 100
    world.look()

    assert early == [(0, 0, 4)]
    assert before == "Serving"
    assert read_all(reader) == [(0, 4, 6)]
    assert world.driver.now.phase == "Done"
    assert [entry.unit.location for entry in world.driver.now.units] == ["clicks/0"]


def test_a_time_that_passed_without_a_record_ends_a_partition_where_it_is() -> None:
    cluster = FakeCluster(clicks=[4])
    world = Follower(cluster)
    at_ms = world.driver.at_ms + 1_000
    world = Follower(cluster, topics_spec(kafka_source(until=Offsets("time", at_ms))))
    reader = world.driver.open(0)
    world.look()
    read_all(reader)
    before = world.driver.now.phase

    world.driver.at_ms += 2_000
    world.look()

    assert (before, world.driver.now.phase) == ("Serving", "Done")


def test_empty_topics_that_end_now_are_done_at_once() -> None:
    world = Follower(FakeCluster(clicks=[0]), topics_spec(kafka_source(until=Offsets("end"))))

    world.look()

    assert world.driver.now.phase == "Done"


def test_a_cluster_that_is_away_is_named_and_asked_again() -> None:
    cluster = FakeCluster(clicks=[4])
    world = Follower(cluster)
    world.look()
    cluster.fault = ListingError("kafka k1:9092: refused", permanent=False)

    world.look()
    away = world.driver.now
    for _ in range(8):
        world.driver.wait(10_000)
        world.look()
    cluster.fault = None
    world.driver.wait(10_000)
    world.look()

    assert away.phase == "Serving"
    assert away.waiting_for == ("kafka k1:9092: refused",)
    assert ledger.plan(away) == ()
    assert world.driver.now.waiting_for == ()
    assert ledger.plan(world.driver.now) == (FollowTopics("0000000000000001", "clicks"),)


def test_a_topic_that_was_made_anew_fails_the_stream() -> None:
    cluster = FakeCluster(clicks=[4])
    world = Follower(cluster)
    world.look()

    cluster.end[CLICKS_0] = 1
    world.look()

    assert world.driver.now.phase == "Failed"
    assert "made anew" in world.driver.now.failure


def test_a_topic_with_another_id_fails_the_stream_however_long_it_is() -> None:
    cluster = FakeCluster(clicks=[4])
    cluster.id["clicks"] = "one"
    world = Follower(cluster)
    world.look()

    cluster.end[CLICKS_0] = 9
    cluster.id.clear()
    world.look()
    assert world.driver.now.phase == "Serving"
    cluster.id["clicks"] = "two"
    world.look()

    assert world.driver.now.phase == "Failed"
    assert "topic clicks was deleted and made anew" in world.driver.now.failure


def test_a_start_inside_an_open_transaction_waits_for_its_end() -> None:
    cluster = FakeCluster(clicks=[4])
    cluster.times[CLICKS_0] = ((500, 6),)
    world = Follower(cluster, topics_spec(kafka_source(start=Offsets("time", 500))))
    reader = world.driver.open(0)
    world.look()

    cluster.end[CLICKS_0] = 5
    world.look()
    early = read_all(reader)
    cluster.end[CLICKS_0] = 9
    world.look()

    assert early == []
    assert read_all(reader) == [(0, 6, 9)]


def test_offsets_for_a_partition_that_is_not_there_fail_the_stream() -> None:
    start = Offsets("offset", offsets={7: 1})
    world = Follower(FakeCluster(clicks=[4]), topics_spec(kafka_source(start=start)))

    world.look()

    assert "partition 7" in world.driver.now.failure
    assert "from 0 to 0" in world.driver.now.failure


@pytest.mark.parametrize("out_of_range", ["fail", "earliest"])
def test_what_retention_removed_is_named_or_counted_c54(out_of_range: str) -> None:
    cluster = FakeCluster(clicks=[10])
    world = Follower(
        cluster, topics_spec(kafka_source(until=Offsets("end")), out_of_range=out_of_range)
    )
    reader = world.driver.open(0)
    world.look()
    reader.beat(1)
    ((token, held),) = reader.held.items()
    reader.take(2, token)

    lost = BadRange(reader.held[token], 2, 6, "lost", "offsets 2 to 5 of clicks/0 were removed")
    reader.beat(1, bad=(lost,))

    stream = world.driver.now
    if out_of_range == "fail":
        assert stream.phase == "Failed"
        assert "offsets 2-6" in stream.failure
        assert "outOfRange: earliest" in stream.failure
        assert world.driver.told_of(StreamFailed)
        return
    reader.take(held.hi, token)
    reader.beat(1)
    stream = world.driver.now
    assert stream.phase == "Done"
    assert (stream.consumed, stream.skipped, stream.bad_count) == (6, 4, 0)
    (dead,) = ledger.tasks(stream, "dead")
    assert (dead.kind, dead.lo, dead.hi) == ("lost", 2, 6)
    assert ledger.verify(stream).ok


def test_files_come_before_topics_and_positions_are_added_up_m079() -> None:
    spec = topics_spec(kafka_source(until=Offsets("end")))
    spec = type(spec)("clicks", (Source("/data/*.txt"), *spec.sources), format="text")
    world = Follower(FakeCluster(clicks=[4]), spec)
    reader = world.driver.open(0)
    first = ledger.plan(world.driver.now)

    world.driver.list_all([text_unit(10)])
    then = ledger.plan(world.driver.now)
    is_over = world.driver.now.is_listed
    world.look()
    read_all(reader)

    assert isinstance(first[0], ListUnits)
    assert then == (FollowTopics("0000000000000001", "clicks"),)
    assert not is_over
    assert ledger.positions(world.driver.now).unit == "positions"
    assert world.driver.now.phase == "Done"
    assert world.driver.now.consumed == 14


def test_a_savepoint_of_earlier_knows_that_partitions_grew_since() -> None:
    cluster = FakeCluster(clicks=[4, 0])
    world = Follower(cluster)
    reader = world.driver.open(0)
    world.look()
    read_all(reader)
    world.driver.propose(ev.SavepointRequested("early"))
    cluster.end |= {CLICKS_0: 6, CLICKS_1: 5}
    world.look()
    read_all(reader)
    cluster.end[CLICKS_0] = 9
    world.look()

    world.driver.propose(ev.RestoreRequested("early"))

    assert spans(read_all(reader)) == Counter(
        [(0, at) for at in range(4, 9)] + [(1, at) for at in range(5)]
    )


def test_positions_of_an_earlier_job_go_on_in_the_next() -> None:
    """Its topics are listed anew; what retention removed of what was done is no matter."""
    cluster = FakeCluster(clicks=[8])
    before = Follower(cluster)
    reader = before.driver.open(0)
    before.look()
    read_all(reader)
    before.driver.propose(ev.SavepointRequested("end"))
    (savepoint,) = before.driver.now.savepoints
    carried = carried_units(before.driver.now, savepoint)

    cluster.begin[CLICKS_0] = 5
    cluster.end |= {CLICKS_0: 12, CLICKS_1: 3}
    after = Follower(
        cluster,
        topics_spec(kafka_source(until=Offsets("end")), restore=Restore("before", savepoint="end")),
    )
    after.driver.propose(ev.PositionsCarried(carried, 0, is_complete=True))
    after.look()

    assert sorted(read_all(after.driver.open(0))) == [(0, 8, 12), (1, 0, 3)]
    assert after.driver.now.phase == "Done"
    assert ledger.verify(after.driver.now).ok


def test_records_of_a_partition_come_in_their_order_where_that_is_asked_for() -> None:
    cluster = FakeCluster(clicks=[100_000, 100_000])
    world = Follower(cluster, topics_spec(kafka_source(), order="unit"))
    readers = [world.driver.open(index) for index in range(3)]
    world.look()

    for reader in readers:
        reader.beat(2)

    held = [one for reader in readers for one in reader.held.values()]
    assert sorted(one.unit for one in held) == [0, 1]


def test_lag_and_the_lowest_offset_that_is_not_done() -> None:
    cluster = FakeCluster(clicks=[100])
    cluster.begin[CLICKS_0] = 10
    world = Follower(cluster, topics_spec(kafka_source(), split=Split(rows=20)))
    reader = world.driver.open(0)
    world.look()
    reader.beat(2)
    first, second = sorted(reader.held)
    reader.take(5, first)
    reader.take(20, second)
    reader.beat(0)

    (place,) = partition_places(world.driver.now)

    assert (place.first, place.low, place.end, place.lag) == (10, 15, 100, 65)


def test_C53_mirrored_is_the_lowest_offset_that_is_not_acknowledged() -> None:
    cluster = FakeCluster(clicks=[50])
    world = Follower(cluster, topics_spec(kafka_source(group="ctr")))
    reader = world.driver.open(0)
    world.look()
    reader.beat(1)
    ((token, _),) = reader.held.items()
    reader.take(7, token)
    reader.beat(0)
    told: list[Mapping[tuple[str, int], LivePartition]] = []
    clock = ManualClock()
    streams = {"j/clicks": world.driver.now}
    mirror = Mirror(
        lambda: World(streams=streams), clock, told.append, open_cluster=lambda _: cluster
    )
    anyio.run(mirror.look)
    mirrored = dict(cluster.group)
    reader.take(50, token)
    reader.beat(0)
    streams["j/clicks"] = world.driver.now
    clock.since_boot_ms += 1_000
    anyio.run(mirror.look)

    assert mirrored == {CLICKS_0: 7}
    assert cluster.group == {CLICKS_0: 50}
    assert told[1]["j/clicks", 0].read_per_s == 43
    streams.clear()
    anyio.run(mirror.look)
    assert cluster.is_closed


class Wild:
    """Readers that crash and are late, on partitions that grow, come and lose their beginnings."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.cluster = FakeCluster(clicks=[self.random.randrange(5)])
        self.world = Follower(self.cluster, topics_spec(out_of_range="earliest"))
        self.world.look()
        self.read: Counter[tuple[int, int]] = Counter()
        self.attempts = 0
        self.readers = [self.reader() for _ in range(3)]

    def reader(self) -> Reader:
        self.attempts += 1
        return self.world.driver.open(self.attempts % 3, self.attempts)

    def step(self) -> None:
        place = self.random.randrange(3)
        reader = self.readers[place]
        match self.random.randrange(8):
            case 0:
                one = self.random.choice(list(self.cluster.end))
                self.cluster.end[one] += self.random.randrange(20)
                self.world.look()
            case 1 if len(self.cluster.end) < 5:
                self.cluster.end[Place("clicks", len(self.cluster.end))] = 2
                self.world.look()
            case 2:
                reader.crash(was_own_fault=self.random.random() < 0.2)
                self.readers[place] = self.reader()
            case 3:
                self.world.driver.propose(ev.LeaseExpired(reader.attempt, ()))
                reader.obey()
            case _:
                self.take(reader)

    def take(self, reader: Reader) -> None:
        reader.beat(self.random.randrange(3))
        for token, held in list(reader.held.items()):
            count = self.random.randrange(held.hi - held.position + 1)
            self.read.update((held.unit, held.position + at) for at in range(count))
            reader.take(count, token)
        reader.beat(0)

    def finish(self) -> None:
        for reader in self.readers:
            reader.obey()
        for _ in range(500):
            for reader in self.readers:
                self.take(reader)
            if all(one.lag == 0 for one in partition_places(self.world.driver.now)):
                return
        raise AssertionError("some offsets are never handed out")


@settings(max_examples=30)
@given(st.integers(0, 1 << 30))
def test_every_offset_is_read_or_struck_out_whatever_happens(seed: int) -> None:
    wild = Wild(seed)
    for _ in range(60):
        wild.step()

    wild.finish()

    stream = wild.world.driver.now
    dead = {(one.unit, at) for one in ledger.tasks(stream, "dead") for at in range(one.lo, one.hi)}
    for number in range(len(stream.units)):
        for at in range(size_of(stream, number)):
            assert wild.read[number, at] or (number, at) in dead
    assert wild.world.driver.replay() == stream
    assert ledger.verify(stream).ok


def test_a_unit_says_all_that_its_readers_need_and_no_secret() -> None:
    world = Follower(FakeCluster(clicks=[1]))
    world.look()

    assert world.driver.now.units[0].unit == Unit(
        "kafka",
        "clicks/0",
        0,
        "",
        {
            "source": "0",
            "bootstrap": "k1:9092",
            "isolation": "committed",
            "protocol": "PLAINTEXT",
        },
    )
