"""Properties of what is left out: poison, unreadable ranges, skips, retries, pauses, savepoints."""

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from primusd.datafeed.ledger import events as ev
from primusd.datafeed.ledger import machine as ledger
from primusd.datafeed.ledger.model import OPEN_END
from primusd.datafeed.protocol import BadRange, FeedReport, Held, UnitMap
from primusd.errors import NotFoundError
from primusd.job.events import StreamFinished, StreamReopened
from primusd.job.ids import AttemptId
from tests.datafeed.ledger_driver import Driver, attempt_id, rows_unit, stream_spec, text_unit

SEEDS = st.integers(0, 1 << 30)
STEPS = 80
READERS = 3


class Losses:
    """Readers that follow the protocol, on data that kills them or cannot be read."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.driver = Driver(stream_spec(on_bad="deadLetter", bad_rows=-1, epochs=2))
        self.sizes = [self.random.choice((1, 9, 30)) for _ in range(4)]
        self.is_text = [self.random.random() < 0.4] * len(self.sizes)
        self.poison = {
            (unit, self.random.randrange(size))
            for unit, size in enumerate(self.sizes)
            if self.random.random() < 0.4 and not self.is_text[unit]
        }
        self.unreadable = {
            (unit, self.random.randrange(size))
            for unit, size in enumerate(self.sizes)
            if self.random.random() < 0.4
        } - self.poison
        self.attempts: Counter[int] = Counter()
        self.readers: dict[int, AttemptId] = {}
        self.read: set[tuple[int, int, int]] = set()
        self.driver.list_all(
            text_unit(size) if self.is_text[unit] else rows_unit()
            for unit, size in enumerate(self.sizes)
        )

    def step(self) -> None:
        what = self.random.choices(
            (self.work, self.skip, self.retry, self.pause, self.seal, self.restore, self.reload),
            (60, 3, 4, 2, 2, 1, 2),
        )[0]
        what()

    def work(self) -> None:
        """Let a reader read on: some rows, a row that cannot be read, or one that kills it."""
        index = self.random.randrange(READERS)
        if index not in self.readers:
            self.attempts[index] += 1
            self.readers[index] = attempt_id(index, self.attempts[index])
            self.driver.propose(ev.ReaderOpened(self.readers[index], "a"))
        attempt = self.readers[index]
        self.driver.at_ms += 500
        orders = ledger.feed_orders(self.driver.now, attempt, "a")
        held = [
            Held("clicks", one.epoch, one.unit, one.lo, one.token, one.position, one.hi)
            for one in orders.leases
        ]
        held = [replace(one, hi=min(one.hi, self.sizes[one.unit])) for one in held]
        maps = tuple(
            UnitMap(one.unit, (self.sizes[one.unit],), self.sizes[one.unit])
            for one in held
            if not self.is_text[one.unit]
        )
        bad: tuple[BadRange, ...] = ()
        for number, one in enumerate(held):
            after, found, is_dead = self.read_on(one)
            held[number], bad = after, (*bad, *found)
            if is_dead:
                self.report(attempt, held, maps, bad)
                self.driver.propose(
                    ev.ReaderEnded(attempt, (), has_completed=False, was_own_fault=True)
                )
                del self.readers[index]
                return
        self.report(attempt, held, maps, bad)

    def read_on(self, one: Held) -> tuple[Held, tuple[BadRange, ...], bool]:
        """Return the lease after a few rows, what could not be read, and whether it killed."""
        rows: list[int] = []
        for row in range(one.position, min(one.hi, one.position + self.random.randint(1, 8))):
            if (one.unit, row) in self.poison:
                # The batch before it was acknowledged, this one never is.
                self.note(one, rows)
                return replace(one, position=row), (), True
            if (one.unit, row) in self.unreadable:
                kind = self.random.choice(("data", "transient"))
                found = BadRange(
                    replace(one, position=row), row, one.hi if kind == "transient" else row + 1,
                    kind, "test",
                )  # fmt: skip
                self.note(one, rows)
                return replace(one, position=row), (found,), False
            rows.append(row)
        self.note(one, rows)
        return replace(one, position=one.position + len(rows)), (), False

    def note(self, one: Held, rows: list[int]) -> None:
        self.read |= {(one.epoch, one.unit, row) for row in rows}

    def report(
        self,
        attempt: AttemptId,
        held: list[Held],
        maps: tuple[UnitMap, ...],
        bad: tuple[BadRange, ...],
    ) -> None:
        report = FeedReport("clicks", tuple(held), self.random.randint(0, 2), bad=bad, mapped=maps)
        self.driver.propose(ev.BeatReceived(attempt, "a", report))

    def skip(self) -> None:
        unit = self.random.randrange(len(self.sizes))
        self.try_it(ev.TaskSkipRequested(self.random.randrange(2), unit, self.row(unit), "test"))

    def retry(self) -> None:
        unit = self.random.randrange(len(self.sizes))
        self.try_it(ev.TaskRetryRequested(self.random.randrange(2), unit, self.row(unit)))

    def row(self, unit: int) -> int:
        return self.random.randrange(self.sizes[unit])

    def try_it(self, event: ev.StreamEvent) -> None:
        if self.driver.now.phase != "Serving":
            return
        try:
            self.driver.propose(event)
        except NotFoundError:
            assert isinstance(event, ev.TaskSkipRequested | ev.TaskRetryRequested)

    def pause(self) -> None:
        self.driver.propose(ev.PauseRequested())
        self.work()
        self.driver.propose(ev.ResumeRequested())

    def seal(self) -> None:
        self.try_it(ev.SavepointRequested(f"s{len(self.driver.now.savepoints)}"))

    def restore(self) -> None:
        if self.driver.now.savepoints:
            self.try_it(ev.RestoreRequested(self.random.choice(self.driver.now.savepoints).name))

    def reload(self) -> None:
        self.driver.reload()

    def drain(self) -> None:
        for _ in range(5_000):
            if self.driver.now.phase != "Serving":
                return
            self.work()
        raise AssertionError(f"never finished: {self.driver.now}")

    def dead(self) -> set[tuple[int, int, int]]:
        return {
            (task.epoch, task.unit, row)
            for task in ledger.tasks(self.driver.now, "dead")
            for row in range(task.lo, self.sizes[task.unit] if task.hi == OPEN_END else task.hi)
        }

    def rows(self) -> set[tuple[int, int, int]]:
        return {
            (epoch, unit, row)
            for epoch in range(2)
            for unit, size in enumerate(self.sizes)
            for row in range(size)
        }


@given(SEEDS)
@settings(max_examples=100)
def test_every_row_is_read_or_listed_as_left_out_and_the_counters_say_which(seed: int) -> None:
    """C48, C54: nothing is dropped without being counted and listed."""
    world = Losses(seed)
    for _ in range(STEPS):
        world.step()

    world.drain()

    stream = world.driver.now
    assert stream.phase == "Done", stream.failure
    dead = world.dead()
    assert world.read | dead == world.rows()
    proof = ledger.verify(stream)
    assert proof.ok, proof
    if stream.unsized_before:
        # A unit was left out before anybody had opened it: it counts as one.
        assert stream.consumed + stream.skipped <= len(world.rows())
    else:
        assert stream.consumed + stream.skipped == len(world.rows())
        assert proof.skipped + proof.dead == stream.skipped == len(dead)
    assert world.driver.replay() == stream


@given(SEEDS)
@settings(max_examples=40)
def test_what_was_left_out_can_be_taken_back_after_the_end(seed: int) -> None:
    world = Losses(seed)
    world.drain()
    left_out = world.dead()
    world.poison.clear()
    world.unreadable.clear()

    for epoch, unit, row in sorted(left_out):
        if world.driver.now.phase == "Done":
            world.driver.propose(ev.TaskRetryRequested(epoch, unit, row))
        else:
            world.try_it(ev.TaskRetryRequested(epoch, unit, row))
    world.drain()

    assert world.driver.now.phase == "Done"
    assert world.driver.now.skipped == 0
    assert world.read == world.rows()
    finished = world.driver.told_of(StreamFinished)
    assert finished[-1] == StreamFinished("clicks", len(world.rows()), 0)
    assert len(world.driver.told_of(StreamReopened)) == len(finished) - 1
