"""A group of exactlyOnce trainers in a bad world: what its model has, and whether it comes on.

The ledger and the readers' side are real, as in `feed_world`; the trainers are here. Each keeps the
rows that it used; the model at a step is what all of them had used at their own marks. One of them
writes checkpoints, most of the time while it waits for the others' part.
"""

import heapq
import math
from bisect import bisect_left
from typing import NamedTuple

from primusd.datafeed.ledger import events as ev
from primusd.datafeed.ledger.model import reader_of
from primusd.datafeed.protocol import FeedAsk, Held
from primusd.job.ids import AttemptId
from tests.datafeed.ledger_driver import Driver, attempt_id, stream_spec
from tests.simulation.feed_world import END_S, TTL_S, Executor, World

Row = tuple[int, int, int]
"""Epoch, unit, where it begins."""
FINAL = 1_000_000
MARKED = (4, 8, 12)
"""Batches after which a trainer marks a step."""
MARKS_KEPT = 3
BEGINS_WITHIN_S = 2.0


class Kept(NamedTuple):
    """A checkpoint that is whole."""

    step: int
    savepoint: str
    model: tuple[Row, ...]


NOTHING = Kept(0, "", ())


class Member(Executor):
    """An attempt whose trainer marks its steps."""

    world: "GroupWorld"

    def __init__(self, world: "GroupWorld", attempt: AttemptId, kept: Kept) -> None:
        super().__init__(world, attempt)
        self.kept = kept
        self.state.is_open = False
        self.opens_at = world.now + world.opening_s(attempt.index)
        self.has_asked = False
        self.batches = 0
        self.rows: list[Row] = []
        self.parts: dict[int, tuple[Row, ...]] = {}
        self.waits_for: list[int] = []
        self.is_over = False
        self.has_hung_up = False

    def tick(self) -> None:
        if self.is_alive and not self.has_hung_up and self.world.now >= self.is_frozen_until:
            self._go_on()
        super().tick()

    def _go_on(self) -> None:
        if not self.has_asked:
            if self.world.now >= self.opens_at:
                self.has_asked = True
                self.state.ask(FeedAsk(1, "restore", self.kept.savepoint))
            return
        answer = self.state.pledges.answers.get(1)
        if answer:
            self.world.fail()
        elif answer == "" and not self.state.is_open and not self.is_over:
            self.state.is_open = self.state.is_urgent = True
        self._write()
        if self.state.state == "end" and not self.queue and FINAL not in self.parts:
            self._mark(FINAL)
            self.is_over = True

    def _take(self) -> None:
        if self.is_blocked:
            return
        epoch, unit, lo, count = self.queue[0]
        starts = self.world.files[unit].starts
        first = bisect_left(starts, lo)
        self.rows += [(epoch, unit, start) for start in starts[first : first + count]]
        super()._take()
        self.batches += 1
        if self.batches in self.world.marked:
            self._mark(self.kept.step + self.batches)

    @property
    def is_blocked(self) -> bool:
        """Whether it writes a checkpoint, and does nothing else meanwhile."""
        return bool(self.waits_for) and not self.world.writes_beside

    def _mark(self, step: int) -> None:
        self.parts[step] = tuple(self.rows)
        self.state.mark(step)
        if self.attempt.index == 0:
            self.waits_for.append(step)

    def _write(self) -> None:
        """Finish the oldest checkpoint that is being written, once all of it is there."""
        if not self.waits_for:
            return
        step = self.waits_for[0]
        word = self.state.pledges.word_on(step)
        # Who came to the end before the step has all that it used in the model.
        parts = [one.parts.get(step, one.parts.get(FINAL)) for one in self.world.reading()]
        if word is None or (word[0] and None in parts):
            return
        if not word[0]:
            self.world.step_failed(step, word[1])
            return
        self.waits_for.pop(0)
        union = [row for part in parts for row in part or ()]
        self.world.write(Kept(step, word[0], (*self.kept.model, *union)))
        self.world.is_trained = step == FINAL


class GroupWorld(World):
    """The wire, the daemon, the clock, and who begins a group anew."""

    def __init__(self, seed: int, *, worst: bool, is_calm: bool = False) -> None:
        """Make the world of a seed.

        Args:
            seed: Of all that is drawn.
            worst: Messages are lost, doubled and late.
            is_calm: Nobody dies, all open the stream within the minute, and the writer does not
                sit on the last rows while it waits for who has none.
        """
        super().__init__(seed, worst=worst, records=2_000 if is_calm else 600)
        self.is_calm = is_calm
        self.epochs = 1 if is_calm else self.random.choice((1, 2))
        split = {"byte_count": self.random.choice((300, 900, 100_000))}
        spec = stream_spec(delivery="exactlyOnce", epochs=self.epochs, split=split)
        self.driver = Driver(spec, checks=False)
        self.driver.list_all([one.unit for one in self.files])
        self.kept: list[Kept] = []
        self.marked: tuple[int, ...] = MARKED
        self.writes_beside = is_calm or self.random.random() < 0.3
        self.is_trained = False
        self.has_failed = True
        self.begins_at = self.now
        self.begun = 0
        self.everybody: list[Member] = []
        self.failed_steps: list[str] = []
        self.shy: set[int] = set()

    # The group.

    def opening_s(self, index: int) -> float:
        """Return how long a trainer takes until it opens the stream."""
        if index in self.shy:
            return math.inf
        if self.is_calm:
            return self.random.uniform(0, 50)
        return self.random.choice((0.0, 1.0, self.random.uniform(0, 50), 90.0))

    def reading(self) -> list[Member]:
        """Return the members that read the stream, ended ones too."""
        return [one for one in self.everybody if one.attempt.index not in self.shy]

    def write(self, kept: Kept) -> None:
        """Take a checkpoint that is whole; the daemon hears of it, if it is there."""
        self.kept.append(kept)
        if self.is_up:
            self.propose(ev.CheckpointKept(kept.savepoint))

    def fail(self) -> None:
        """Note that a trainer failed: its whole group begins anew."""
        self.has_failed = True

    def step_failed(self, step: int, text: str) -> None:
        """Note that the writer got no savepoint."""
        self.failed_steps.append(f"{step}: {text}")
        # Where fewer rows are left than steps ask for, nobody comes to the next one.
        self.marked = ()
        self.has_failed = True

    def _run_group(self) -> None:
        found = (reader_of(self.driver.now, one.attempt) for one in self.executors.values())
        if self.driver.now.must_restore and any(one is not None and one.is_lost for one in found):
            self.fail()
        if not self.has_failed:
            self._end_those_done()
            return
        if self.executors:
            for executor in list(self.executors.values()):
                executor.is_alive = False
                positions = executor.state.give_back_all()
                self._ended(executor, positions if self.random.random() < 0.5 else ())
            self.begins_at = self.now + self.random.uniform(0, BEGINS_WITHIN_S)
        if self.now >= self.begins_at:
            self._begin()

    def _begin(self) -> None:
        self.has_failed = False
        self.begun += 1
        count = self.random.randint(2, 4)
        self.shy = {i for i in range(1, count) if not self.is_calm and self.random.random() < 0.1}
        kept = self._loaded()
        self.everybody = []
        for index in range(count):
            attempt = attempt_id(index, self.begun)
            self.executors[index] = member = Member(self, attempt, kept)
            self.everybody.append(member)
            self.heard_at[attempt] = self.now
            self.propose(ev.ReaderOpened(attempt, "a", is_awaited=True))

    def _loaded(self) -> Kept:
        """Return the newest checkpoint, or one before: never one without its savepoint."""
        there = self.kept[-MARKS_KEPT:]
        known = {one.name for one in self.driver.now.savepoints}
        assert all(one.savepoint in known for one in there), "a checkpoint lost its savepoint"
        if not there:
            return NOTHING
        return self.random.choice(there) if self.random.random() < 0.2 else there[-1]

    def _end_those_done(self) -> None:
        for executor in list(self.executors.values()):
            assert isinstance(executor, Member)
            if executor.is_over and not executor.waits_for and executor.is_alive:
                positions = executor.state.give_back_all()
                event = ev.ReaderEnded(
                    executor.attempt, positions, has_completed=True, was_own_fault=False
                )
                self.propose(event)
                del self.executors[executor.attempt.index]

    # What goes wrong.

    def trouble(self) -> None:
        """Let something happen to somebody."""
        executor = self.random.choice(list(self.executors.values()) or [None])
        if executor is None or not executor.is_alive:
            return
        kinds = [
            self._kill_daemon,
            self._cut_off,
            self._freeze,
            self._kill_trainer,
            self._hang_up,
            self._kill_all,
            self._begin_again,
            self._save,
            self._scale,
        ]
        self.random.choice(kinds)(executor)

    def _hang_up(self, executor: Executor) -> None:
        """Kill a trainer; what it had in hand comes back with a report, its end later."""
        assert isinstance(executor, Member)
        executor.state.give_back_all()
        executor.queue.clear()
        executor.has_hung_up = True

    def _ended(self, executor: Executor, positions: tuple[Held, ...]) -> None:
        super()._ended(executor, positions)
        self.fail()

    def _begin_again(self, executor: Executor) -> None:
        if self.is_up:
            self.propose(ev.ReaderOpened(executor.attempt, "b", is_awaited=True))
            self.fail()

    def _scale(self, _executor: Executor) -> None:
        """Let a person ask for more or fewer: a group meets anew."""
        self.fail()

    # Time.

    def run_group(self, troubles: int) -> None:
        """Run until the last checkpoint is written."""
        trouble_at = self.now + self.random.uniform(0, 60)
        while not self.is_trained:
            assert self.now < END_S, "never trained"
            self.now = max(self.now + 0.001, self._next_at(trouble_at if troubles else END_S))
            if not self.is_up and self.now >= self.is_down_until:
                self._restart()
            if self.is_up:
                self._run_group()
                self._find_silent()
                self._timer()
            while self.wire and self.wire[0][0] <= self.now:
                heapq.heappop(self.wire)[2]()
            for executor in list(self.executors.values()):
                executor.tick()
            if troubles and self.now >= trouble_at:
                troubles -= 1
                trouble_at = self.now + self.random.uniform(0, 30)
                self.trouble()

    def _find_silent(self) -> None:
        """Let the end of those be known who say nothing any more."""
        for executor in list(self.executors.values()):
            silent_s = self.now - self.heard_at.get(executor.attempt, self.now)
            is_gone = not executor.is_alive or (
                isinstance(executor, Member) and executor.has_hung_up
            )
            if is_gone and silent_s >= 0.5:
                self._ended(executor, ())
            elif silent_s >= TTL_S and reader_of(self.driver.now, executor.attempt) is not None:
                self.propose(ev.LeaseExpired(executor.attempt, ()))
