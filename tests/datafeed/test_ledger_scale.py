"""What grows with a stream is what is open in it, never what is done."""

import random

import msgspec
import pytest

from primusd.datafeed.ledger import invariants
from primusd.datafeed.ledger.events import BeatReceived, ReaderOpened, SavepointRequested
from primusd.datafeed.ledger.model import reader_of
from primusd.datafeed.protocol import FeedReport, Held
from primusd.job.ids import AttemptId
from tests.datafeed.ledger_driver import Driver, attempt_id, stream_spec, text_unit

READERS = 8
HELD = 48
TASK_BYTES = 1 << 20
UNIT_BYTES = 1 << 30
BYTES_PER_OPEN_TASK = 150
BYTES_PER_UNIT = 110


class Finisher:
    """Readers that finish what they hold in any order."""

    def __init__(self, units: int) -> None:
        self.random = random.Random(1)
        self.driver = Driver(stream_spec(split={"byte_count": TASK_BYTES}), checks=False)
        self.driver.list_all(text_unit(UNIT_BYTES, f"part-{n:06d}.txt") for n in range(units))
        self.attempts = [attempt_id(index) for index in range(READERS)]
        self.entry_bytes = 0
        for attempt in self.attempts:
            self.driver.propose(ReaderOpened(attempt, "a"))

    def run(self, tasks: int) -> None:
        """Finish so many tasks."""
        driver = self.driver
        end = driver.now.last_token + tasks
        while driver.now.last_token < end and driver.now.phase == "Serving":
            for attempt in self.attempts:
                driver.at_ms += 10
                driver.records.clear()
                driver.sources.clear()
                driver.propose(BeatReceived(attempt, "a", self._report(attempt)))
                size = sum(len(msgspec.msgpack.encode(one)) for *_, one in driver.records)
                self.entry_bytes = max(self.entry_bytes, size)

    def _report(self, attempt: AttemptId) -> FeedReport:
        reader = reader_of(self.driver.now, attempt)
        assert reader is not None
        done = set(self.random.sample(reader.leases, len(reader.leases) // 2))
        held = tuple(
            Held("clicks", one.epoch, one.unit, one.lo, one.token,
                 one.hi if one in done else one.position, one.hi)
            for one in reader.leases
        )  # fmt: skip
        return FeedReport("clicks", held, HELD - len(reader.leases) + len(done))


@pytest.mark.parametrize(
    "tasks", [6_000, pytest.param(10_000_000, marks=pytest.mark.soak, id="ten million")]
)
def test_snapshot_and_entries_are_bounded_by_what_is_open_however_much_is_done(
    tasks: int,
) -> None:
    """A24, A28: what is finished, in any order, leaves nothing behind."""
    world = Finisher(tasks * TASK_BYTES // UNIT_BYTES + 2)

    world.run(tasks // 10)
    first = len(msgspec.msgpack.encode(world.driver.now))
    world.run(tasks - tasks // 10)

    stream = world.driver.now
    assert stream.consumed > 0.9 * tasks * TASK_BYTES
    size = len(msgspec.msgpack.encode(stream)) - BYTES_PER_UNIT * len(stream.units)
    assert size < BYTES_PER_OPEN_TASK * READERS * HELD
    assert len(msgspec.msgpack.encode(stream)) < first * 1.2
    assert world.entry_bytes < 60 * 2 * HELD + 500
    assert invariants.broken(stream) == ()


def test_a_savepoint_refers_to_what_is_open_and_copies_nothing() -> None:
    world = Finisher(4)
    world.run(1_000)
    before = world.driver.now

    world.driver.propose(SavepointRequested("s"))

    kept = world.driver.now.savepoints[-1]
    assert kept.readers is before.reader_shards
    assert all(a is b for a, b in zip(kept.epochs, before.epochs, strict=True))
