"""Properties of the ledger under readers that crash, fall silent, come late, double and reorder."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from primusd.datafeed.ledger import events as ev
from primusd.datafeed.ledger import invariants
from primusd.datafeed.ledger import machine as ledger
from primusd.datafeed.ledger.model import OPEN_END
from primusd.datafeed.protocol import FeedReport, Held, Unit, UnitMap
from primusd.job.events import ReaderSettled, StreamFinished
from primusd.job.ids import AttemptId
from tests.datafeed.ledger_driver import Driver, attempt_id, rows_unit, stream_spec, text_unit

READERS = 3
STEPS = 60
SHUFFLE = {"seed": 7}
THREE = [{"files": "/a", "weight": 3}, {"files": "/b"}, {"files": "/c", "weight": 2}]
SHAPES: tuple[dict[str, object], ...] = (
    {},
    {},
    {},
    {"shuffle": SHUFFLE},
    {"sources": THREE, "mixing": "weighted"},
    {"sources": THREE, "mixing": "priority", "shuffle": SHUFFLE},
    {"order": "unit"},
    {"order": "strict", "lanes": 3},
    {"order": "strict", "lanes": 4, "shuffle": SHUFFLE},
)
SEEDS = st.integers(0, 1 << 30)


class WildReader:
    """A reader that goes by what it last heard, and takes rows that it may have lost."""

    def __init__(self, world: "World", attempt: AttemptId, incarnation: str) -> None:
        self.world = world
        self.attempt = attempt
        self.incarnation = incarnation
        self.held: dict[int, Held] = {}

    def hear(self) -> None:
        orders = ledger.feed_orders(self.world.driver.now, self.attempt, self.incarnation)
        before, self.held = self.held, {}
        for lease in orders.leases:
            old = before.get(lease.token)
            hi = min(lease.hi, self.world.sizes[lease.unit])
            position = lease.position
            if old is not None:
                hi, position = min(hi, old.hi), max(position, old.position)
            if lease.trim >= 0:
                hi = min(hi, max(position, lease.trim))
            self.held[lease.token] = Held(
                "clicks", lease.epoch, lease.unit, lease.lo, lease.token, position, hi
            )

    def take(self, count: int) -> None:
        open_ones = [one for one in self.held.values() if one.position < one.hi]
        if open_ones:
            one = min(open_ones, key=lambda held: held.token)
            end = min(one.hi, one.position + count)
            for row in range(one.position, end):
                self.world.read[one.epoch, one.unit, row] += 1
            self.held[one.token] = replace(one, position=end)

    def report(self, want: int, returned: tuple[Held, ...] = ()) -> ev.BeatReceived:
        maps = {
            one.unit: UnitMap(one.unit, (self.world.sizes[one.unit],), self.world.sizes[one.unit])
            for one in self.held.values()
            if self.world.units[one.unit].options["format"] != "text"
        }
        report = FeedReport(
            "clicks", tuple(self.held.values()), want, returned, mapped=tuple(maps.values())
        )
        return ev.BeatReceived(self.attempt, self.incarnation, report)


class World:
    """A stream, readers that misbehave, and what trainers really read."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        epochs = self.random.choice((1, 1, 2, 3))
        split = self.random.choice(({}, {"byte_count": 7}))
        shape = self.random.choice(SHAPES)
        self.driver = Driver(stream_spec(epochs=epochs, split=split, **shape))
        self.epochs = epochs
        self.is_text = self.random.random() < 0.5
        self.listed: list[int] = []
        self.sizes: list[int] = []
        self.units: list[Unit] = []
        self.read: Counter[tuple[int, int, int]] = Counter()
        self.readers: dict[int, WildReader] = {}
        self.attempts: Counter[int] = Counter()
        self.late: list[ev.BeatReceived] = []
        for _ in range(self.random.randint(1, 5)):
            self.list_one()

    def list_one(self, *, is_last: bool = False) -> None:
        if self.driver.now.is_listed:
            return
        size = self.random.choice((0, 1, 5, 20, 40))
        name = str(len(self.listed))
        unit = text_unit(size, name) if self.is_text else rows_unit(name=name)
        source = str(self.random.randrange(3))
        unit = replace(unit, options={**unit.options, "source": source})
        self.listed.append(size)
        self.driver.propose(ev.UnitsListed((unit,), len(self.listed) - 1, is_last))
        self.units = [entry.unit for entry in self.driver.now.units]
        self.sizes = [self._size(unit) for unit in self.units]

    def _size(self, unit: Unit) -> int:
        """Return the rows of a unit, which is a slice where the order is strict."""
        size = self.listed[int(unit.location.rpartition("/")[2])]
        number, count = map(int, unit.options.get("slice", "0/1").split("/"))
        return size * (number + 1) // count - size * number // count

    def open(self, index: int) -> WildReader:
        self.attempts[index] += 1
        reader = WildReader(self, attempt_id(index, self.attempts[index]), "a")
        self.readers[index] = reader
        self.driver.propose(ev.ReaderOpened(reader.attempt, "a"))
        return reader

    def step(self) -> None:
        """Do one thing at random."""
        index = self.random.randrange(READERS)
        reader = self.readers.get(index)
        if reader is None:
            self.open(index)
            return
        what = self.random.choices(
            (
                self._beat, self._take, self._hear, self._crash, self._end, self._expire,
                self._late, self._give_back, self._trim, self._restart, self._wait,
                self._reopen, self._list,
            ),
            (30, 30, 20, 3, 2, 3, 6, 3, 3, 2, 6, 1, 4),
        )[0]  # fmt: skip
        what(index, reader)

    def _beat(self, _index: int, reader: WildReader) -> None:
        event = reader.report(self.random.randint(0, 3))
        self.late.append(event)
        if self.random.random() < 0.9:
            self.driver.propose(event)

    def _take(self, _index: int, reader: WildReader) -> None:
        reader.take(self.random.randint(1, 12))

    def _hear(self, _index: int, reader: WildReader) -> None:
        reader.hear()

    def _crash(self, index: int, reader: WildReader) -> None:
        # Of its own fault only after it moved: the poison of other tests is not here.
        self.driver.propose(
            ev.ReaderEnded(reader.attempt, (), has_completed=False, was_own_fault=False)
        )
        del self.readers[index]

    def _end(self, index: int, reader: WildReader) -> None:
        last = tuple(reader.held.values())
        self.driver.propose(
            ev.ReaderEnded(reader.attempt, last, has_completed=True, was_own_fault=False)
        )
        del self.readers[index]

    def _expire(self, _index: int, reader: WildReader) -> None:
        self.driver.propose(ev.LeaseExpired(reader.attempt, ()))

    def _late(self, _index: int, _reader: WildReader) -> None:
        if self.late:
            self.driver.propose(self.random.choice(self.late))

    def _give_back(self, _index: int, reader: WildReader) -> None:
        event = reader.report(0, tuple(reader.held.values()))
        self.late.append(event)
        reader.held = {}
        self.driver.propose(event)

    def _trim(self, _index: int, reader: WildReader) -> None:
        for token, one in list(reader.held.items()):
            hi = self.random.randint(one.position, one.hi)
            reader.held[token] = replace(one, hi=hi)

    def _restart(self, _index: int, _reader: WildReader) -> None:
        self.driver.reload()

    def _wait(self, _index: int, _reader: WildReader) -> None:
        self.driver.wait(self.random.choice((1, 50, 1_000, 30_000)))

    def _reopen(self, index: int, reader: WildReader) -> None:
        reader = WildReader(self, reader.attempt, f"b{len(self.late)}")
        self.readers[index] = reader
        self.driver.propose(ev.ReaderOpened(reader.attempt, reader.incarnation))

    def _list(self, _index: int, _reader: WildReader) -> None:
        self.list_one(is_last=self.random.random() < 0.3)

    def drain(self) -> None:
        """Let healthy readers finish what is left."""
        if not self.driver.now.is_listed:
            self.list_one(is_last=True)
        for reader in list(self.readers.values()):
            self.driver.propose(
                ev.ReaderEnded(reader.attempt, (), has_completed=False, was_own_fault=False)
            )
        readers = [self.open(index) for index in range(2)]
        for _ in range(2_000):
            if self.driver.now.phase != "Serving":
                return
            self.driver.wait(1_000)
            for reader in readers:
                reader.take(50)
                self.driver.propose(reader.report(2))
                reader.hear()
        raise AssertionError(f"never finished: {self.driver.now}")

    def rows(self) -> set[tuple[int, int, int]]:
        return {
            (epoch, unit, row)
            for epoch in range(self.epochs)
            for unit, size in enumerate(self.sizes)
            for row in range(size)
        }


@given(SEEDS)
@settings(max_examples=120)
def test_nothing_is_lost_and_each_row_is_counted_once_whatever_readers_do(seed: int) -> None:
    """A25, A27: counters are exact after each step, and no row has two holders at once."""
    world = World(seed)
    for _ in range(STEPS):
        world.step()

    world.drain()

    stream = world.driver.now
    assert stream.phase == "Done", stream.failure
    assert set(world.read) == world.rows()
    assert stream.consumed == len(world.rows())
    assert stream.skipped == 0
    assert world.driver.told_of(StreamFinished) == [StreamFinished("clicks", len(world.rows()), 0)]
    assert world.driver.replay() == stream


@given(SEEDS)
@settings(max_examples=60)
def test_every_reader_that_ended_was_answered(seed: int) -> None:
    world = World(seed)
    for _ in range(STEPS):
        world.step()

    world.drain()

    ended = [e.attempt for _, _, e in world.driver.records if isinstance(e, ev.ReaderEnded)]
    answered = [one.attempt for one in world.driver.told if isinstance(one, ReaderSettled)]
    assert answered == ended


# 800 seeds each time, 10,000 with `make soak`.
BLOCKS = [*range(8), *(pytest.param(block, marks=pytest.mark.soak) for block in range(8, 100))]


@pytest.mark.parametrize("block", BLOCKS)
def test_c50_restarts_at_random_points_lose_nothing_and_count_nothing_twice(block: int) -> None:
    """A restart goes through the journal, or through a snapshot; slow readers report late."""
    for seed in range(block * 100, block * 100 + 100):
        world = World(seed)
        world.driver.checks = False
        for number in range(STEPS):
            world.step()
            if world.random.random() < 0.15:
                if number % 2:
                    world.driver.stream = world.driver.replay()
                else:
                    world.driver.reload()
        assert invariants.broken(world.driver.now) == (), seed

        world.drain()

        assert world.driver.now.phase == "Done", seed
        assert set(world.read) == world.rows(), seed
        assert world.driver.now.consumed == len(world.rows()), seed


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=12))
def test_trims_and_positions_in_any_order_never_make_a_row_done_that_was_not_taken(
    claims: list[tuple[int, int]],
) -> None:
    driver = Driver()
    driver.list_all([text_unit(40)])
    driver.propose(ev.ReaderOpened(attempt_id(0), "a"))
    driver.propose(ev.BeatReceived(attempt_id(0), "a", FeedReport("clicks", (), 1)))
    token = driver.now.last_token
    highest = 0

    for position, hi in claims:
        held = Held("clicks", 0, 0, 0, token, position, hi)
        driver.propose(ev.BeatReceived(attempt_id(0), "a", FeedReport("clicks", (held,), 0)))
        if position <= hi:
            highest = max(highest, position)

    assert driver.now.consumed <= highest


def test_an_unknown_end_is_beyond_every_position_of_a_real_unit() -> None:
    assert OPEN_END > 1 << 60
    assert OPEN_END < 1 << 63
