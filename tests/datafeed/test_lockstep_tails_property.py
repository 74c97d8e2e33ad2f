"""`tail: drop | pad` with the real ledger and the real counts of readers, in drawn worlds.

Trainers that wait for each other at each step; reports that come late and answers that are lost.
"""

from dataclasses import dataclass, field
from random import Random

import pyarrow as pa
import pytest

from primusd.datafeed.drawing import Drawing
from primusd.datafeed.formats.base import RowBlock
from primusd.datafeed.ledger import machine as ledger
from primusd.datafeed.ledger.events import BeatReceived, ReaderEnded, ReaderOpened
from primusd.datafeed.protocol import FeedAsk
from primusd.datafeed.reader.offers import Offers
from primusd.datafeed.reader.state import ReaderState
from primusd.datafeed.reader.steps import StepCount
from primusd.datafeed.reader.turns import Turns
from tests.datafeed.ledger_driver import Driver, attempt_id, rows_unit, stream_spec

BATCH = 7
BLOCK = 5
ROUNDS = 4_000


@dataclass
class Trainer:
    """A reader with its trainer: rows go out as `SocketStream` lets them, batches one a step."""

    driver: Driver
    index: int
    tail: str
    sizes: list[int]
    rows: list[tuple[int, int]] = field(default_factory=list)
    """Handed over in this epoch and in no batch yet."""
    batches: list[tuple[int, int, int]] = field(default_factory=list)
    """Epoch, rows, whether it is a pad."""
    used: list[tuple[int, int]] = field(default_factory=list)
    pads: int = 0
    receipt: int = 0
    last: int = 0
    has_dropped: bool = False
    has_ended: bool = False
    """The stream is at its end, by the daemon's word."""
    attempt: int = 1
    savepoint: str | None = None
    """Where an exactlyOnce group begins; "" at the beginning; None: there is no group."""

    def __post_init__(self) -> None:
        self.state = ReaderState("clicks", memory_bytes=1 << 20)
        self.turns: Turns[RowBlock] = Turns(Drawing())
        self.steps = self.state.steps = StepCount(self.tail)
        self.offers = Offers(self.steps, self.state, self.turns)
        self.state.tell_steps, self.state.least_cut = self.offers.told, self.offers.least_cut
        self.id = attempt_id(self.index, self.attempt)
        self.driver.propose(ReaderOpened(self.id, "a", is_awaited=self.savepoint is not None))
        if self.savepoint is None:
            self.open()
        else:
            self.state.ask(FeedAsk(1, "restore", self.savepoint))

    def open(self) -> None:
        self.state.is_open = True
        self.steps.open(BATCH, 0)

    def beat(self, now: float, *, is_answered: bool) -> None:
        report = self.state.report(buffered_bytes=0, now=now)
        self.driver.wait(50)
        self.driver.propose(BeatReceived(self.id, "a", report))
        if is_answered:
            orders = ledger.feed_orders(self.driver.now, self.id, "a")
            self.state.obey(orders, sent_at=now, ttl_s=1e9)
        if not self.state.is_open and (answer := self.state.pledges.answers.get(1)) is not None:
            assert answer == ""
            self.open()

    def mark(self, step: int, now: float) -> None:
        """What `feed.mark` does: the batches so far are used."""
        self.state.take(self.receipt, now=now)
        self.state.mark(step)

    def read(self) -> None:
        holding = self.state.next_to_read()
        if holding is None:
            return
        size = self.sizes[holding.lease.unit]
        self.state.opened(holding.lease.unit, cuts=(size,), row_count=size)
        lo, hi = holding.read, min(holding.read + BLOCK, holding.hi)
        if lo < hi:
            numbers = [holding.lease.unit * 1000 + one for one in range(lo, hi)]
            batch = pa.RecordBatch.from_pydict({"n": numbers})
            self.turns.add(holding.lease, RowBlock(batch, lo, hi))
        self.state.was_read(holding.lease.token, hi)

    def deliver(self, now: float) -> None:
        while self.steps.room > 0 and (waiting := self.turns.head((), now)) is not None:
            holding = self.state.holding(waiting.token)
            if holding is None or waiting.block.lo >= holding.hi:
                self.turns.take(waiting, 0)
                continue
            block = waiting.block.up_to(holding.hi)
            self.turns.take(waiting, block.row_count)
            if block.row_count > self.steps.room:
                room = self.steps.room
                self.turns.put_back(waiting, block.part(room, block.row_count - room))
                block = block.part(0, room)
            self.steps.deliver(block.row_count)
            self.state.deliver(
                waiting.token,
                lo=block.lo,
                hi=block.hi,
                size=block.row_count,
                row_count=block.row_count,
                locate=block.position_after,
                now=now,
            )
            epoch = holding.lease.epoch
            self.rows += [(epoch, int(one or 0)) for one in block.batch.column(0).to_pylist()]
        self._hear_end()

    def _hear_end(self) -> None:
        """What `SocketStream` says at the end of an epoch."""
        steps = self.steps
        if steps.drops_now():
            if not self.has_dropped and len(self.rows) < BATCH:
                self.has_dropped = True
                self.rows.clear()
            if self.has_dropped and steps.used_all(self.state.flights.taken):
                self.has_dropped = False
                self.turns.clear()
                self.state.leave_out("tail", "the rest")
                self.receipt = self.state.flights.delivered
                steps.has_ended = True
        elif self.tail == "pad" and not self.turns and self.state.is_delivered:
            if count := steps.pads_now():
                steps.pad(count)
                self.pads += count
            if steps.is_last and not self.pads:
                steps.has_ended = True
        self.has_ended = self.state.state == "end" and not self.turns and not self.pads

    @property
    def has_batch(self) -> bool:
        return len(self.rows) >= BATCH or self.pads > 0

    def step(self, now: float) -> None:
        """Use a batch; asking for it said that the one before was used."""
        self.state.take(self.receipt, now=now)
        count = min(BATCH, len(self.rows))
        if count < BATCH:
            self.pads -= 1
        rows, self.rows = self.rows[:count], self.rows[count:]
        self.used += rows
        self.receipt += count
        self.batches.append((self.steps.epoch, count, int(not count)))

    def wait_for_more(self, now: float) -> None:
        """Asking again says that the last one was used."""
        self.state.take(self.receipt, now=now)


def run(tail: str, sizes: list[int], workers: int, dice: Random) -> tuple[Driver, list[Trainer]]:
    driver = Driver(stream_spec(tail=tail, epochs=2))
    trainers = [Trainer(driver, index, tail, sizes) for index in range(workers)]
    driver.list_all([rows_unit(name=f"part-{number}") for number in range(len(sizes))])
    for turn in range(ROUNDS):
        now = turn * 0.05
        which = dice.choice(trainers)
        if dice.random() < 0.8:
            which.read()
            which.deliver(now)
        if dice.random() < 0.7:
            which.beat(now, is_answered=dice.random() < 0.8)
        if all(one.has_batch for one in trainers):
            for one in trainers:
                one.step(now)
        for one in trainers:
            if not one.has_batch:
                one.wait_for_more(now)
        if all(one.has_ended for one in trainers):
            return driver, trainers
    raise AssertionError(f"it hangs: {driver.now.step_limit} {driver.now.readers}")


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("tail", ["drop", "pad"])
def test_all_trainers_have_as_many_steps_and_no_row_is_lost_or_twice(tail: str, seed: int) -> None:
    """C54: what is left out is counted, and is less than two batches a trainer and epoch."""
    dice = Random(seed)
    workers = dice.randint(1, 4)
    sizes = [dice.randint(1, 90) for _ in range(dice.randint(1, 5))]
    if tail == "pad" and sum(sizes) < 6 * workers * BATCH:
        sizes = [*sizes, 6 * workers * BATCH]
    driver, trainers = run(tail, sizes, workers, dice)

    steps = [[epoch for epoch, *_ in one.batches] for one in trainers]
    assert all(one == steps[0] for one in steps)
    used = [row for one in trainers for row in one.used]
    assert len(used) == len(set(used))
    stream = driver.now
    assert stream.consumed == len(used)
    assert stream.consumed + stream.skipped == 2 * sum(sizes)
    if tail == "pad":
        assert stream.skipped == 0
    else:
        assert stream.skipped <= 2 * workers * 2 * BATCH
    assert driver.replay() == stream


# The same with marks, and a group that begins anew at its newest savepoint.


@dataclass
class Group:
    """Trainers that step together and mark the same steps; their models, as checkpoints keep them.

    `parts` has of each step that was marked what all of them had used by then.
    """

    driver: Driver
    tail: str
    sizes: list[int]
    workers: int
    trainers: list[Trainer] = field(default_factory=list)
    lives: int = 0
    base: int = 0
    model: tuple[tuple[int, int], ...] = ()
    parts: dict[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    steps: int = 0

    def begin(self) -> None:
        """Begin where the newest sealed step was, of any generation."""
        for one in self.trainers:
            ended = ReaderEnded(one.id, (), has_completed=False, was_own_fault=True)
            self.driver.propose(ended)
        name = ""
        sealed = [one for one in self.driver.now.savepoints if one.origin != "timer"]
        if sealed:
            newest = max(sealed, key=lambda one: one.step)
            name, self.base, self.model = newest.name, newest.step, self.parts[newest.step]
        self.lives += 1
        self.steps = self.base
        self.parts = {self.base: self.model}
        self.trainers = [
            Trainer(self.driver, index, self.tail, self.sizes, attempt=self.lives, savepoint=name)
            for index in range(self.workers)
        ]

    def step(self, now: float) -> None:
        for one in self.trainers:
            one.step(now)
        self.steps += 1

    def mark(self, now: float) -> None:
        used = [row for one in self.trainers for row in one.used]
        self.parts[self.steps] = (*self.model, *used)
        for one in self.trainers:
            one.mark(self.steps, now)


def run_group(tail: str, sizes: list[int], workers: int, dice: Random, crashes: int) -> Group:
    driver = Driver(stream_spec(tail=tail, epochs=2, delivery="exactlyOnce"))
    driver.list_all([rows_unit(name=f"part-{number}") for number in range(len(sizes))])
    group = Group(driver, tail, sizes, workers)
    group.begin()
    for turn in range(ROUNDS):
        now = turn * 0.05
        which = dice.choice(group.trainers)
        if dice.random() < 0.8:
            which.read()
            which.deliver(now)
        if dice.random() < 0.7:
            which.beat(now, is_answered=dice.random() < 0.8)
        if all(one.has_batch for one in group.trainers):
            group.step(now)
            if dice.random() < 0.4:
                group.mark(now)
        for one in group.trainers:
            if not one.has_batch:
                one.wait_for_more(now)
        if all(one.has_ended for one in group.trainers):
            return group
        if crashes and group.steps > group.base and dice.random() < 0.01:
            crashes -= 1
            group.begin()
    raise AssertionError(f"it hangs: {driver.now.step_limit} {driver.now.readers}")


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("tail", ["drop", "pad"])
def test_a_group_goes_back_to_a_step_and_has_each_row_once_with_equal_steps(
    tail: str, seed: int
) -> None:
    """C52, C54, M122: `tail` with `delivery: exactlyOnce`."""
    dice = Random(1000 + seed)
    workers = dice.randint(1, 4)
    sizes = [dice.randint(30, 90) for _ in range(dice.randint(1, 5))]
    if tail == "pad" and sum(sizes) < 6 * workers * BATCH:
        sizes = [*sizes, 6 * workers * BATCH]

    group = run_group(tail, sizes, workers, dice, crashes=seed % 4)

    counts = [[epoch for epoch, *_ in one.batches] for one in group.trainers]
    assert all(one == counts[0] for one in counts)
    used = [*group.model, *(row for one in group.trainers for row in one.used)]
    assert len(used) == len(set(used))
    stream = group.driver.now
    assert stream.consumed == len(used)
    assert stream.consumed + stream.skipped == 2 * sum(sizes)
    if tail == "pad":
        assert stream.skipped == 0
    else:
        assert stream.skipped <= 2 * workers * 2 * BATCH
    assert stream.repeated == 0
    assert group.driver.replay() == stream
