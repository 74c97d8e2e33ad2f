"""exactlyOnce by marks, atMostOnce, and what a fraction of bad rows does."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from primusd.datafeed.ledger import events as ev
from primusd.datafeed.ledger import machine as ledger
from primusd.datafeed.ledger import marking
from primusd.datafeed.ledger.model import OPEN_END, Range, Stream
from primusd.datafeed.protocol import BadRange, Mark, Unit, UnitMap
from primusd.errors import ConflictError
from primusd.job.events import GroupLeaseLost, SavepointSealed, StreamReopened
from tests.datafeed.ledger_driver import Driver, Reader, rows_unit, stream_spec, text_unit

Row = tuple[int, int, int]
"""Epoch, unit, position."""


def exactly_once(**fields: object) -> Driver:
    return Driver(stream_spec(delivery="exactlyOnce", split={"byte_count": 100}, **fields))


def taken_at(stream: Stream, name: str) -> dict[int, tuple[Range, ...]]:
    """Return what a savepoint has as done, by unit, of its first epoch."""
    found = next(one for one in stream.savepoints if one.name == name)
    states = found.epochs[0].units
    sizes = {n: entry.size for n, entry in enumerate(stream.units)}
    done = {n: state.done for n, state in states.items() if state.done}
    for number in range(found.epochs[0].next_unit):
        if number not in states:
            done[number] = (Range(0, sizes[number]),)
    return done


# Marks.


def test_a_savepoint_has_of_each_reader_what_it_took_up_to_its_own_mark() -> None:
    """M122: readers mark one after the other, and none waits for another."""
    driver = exactly_once()
    driver.list_all([text_unit(400)])
    first, second = driver.open(0), driver.open(1)
    first.beat(1)
    second.beat(1)
    first.take(30)
    mark = first.mark(5)
    first.take(20)
    first.beat(marks=(mark,))
    first.take(50)
    first.beat(1, marks=(mark,))
    first.take(10)
    first.beat(marks=(mark,))
    second.take(7)

    second.beat(marks=(second.mark(5),))

    assert driver.now.sealed == (5, "step-5-g1")
    assert first.orders().sealed == (5, "step-5-g1")
    assert taken_at(driver.now, "step-5-g1") == {0: (Range(0, 30), Range(100, 107))}
    assert driver.now.consumed == 117
    assert driver.told_of(SavepointSealed) == [SavepointSealed("clicks", "step-5-g1")]


def test_a_range_that_went_on_to_another_counts_where_it_was_used() -> None:
    driver = exactly_once()
    driver.list_all([text_unit(100)])
    first, second = driver.open(0), driver.open(1)
    first.beat(1)
    second.beat(1)
    first.take(10)
    mark = first.mark(1)
    token = min(first.held)
    first.trim(60, token)
    first.beat(marks=(mark,))
    second.beat(1)
    second.take(40)

    second.beat(marks=(second.mark(1),))

    assert taken_at(driver.now, "step-1-g1") == {0: (Range(0, 10), Range(60, 100))}


def test_a_unit_that_was_finished_since_the_mark_is_open_in_the_savepoint() -> None:
    driver = exactly_once()
    driver.list_all([text_unit(100), text_unit(100)])
    first, second = driver.open(0), driver.open(1)
    first.beat(1)
    second.beat(1)
    mark = first.mark(1)
    first.take(100)
    first.beat(marks=(mark,))

    second.beat(marks=(second.mark(1),))

    assert taken_at(driver.now, "step-1-g1") == {}
    assert driver.now.savepoints[0].done == 0


def test_the_end_waits_for_a_savepoint_in_the_making() -> None:
    """An epoch that ended could not be taken back."""
    driver = exactly_once()
    driver.list_all([text_unit(200)])
    first, second = driver.open(0), driver.open(1)
    first.beat(1)
    second.beat(1)
    mark = first.mark(1)
    first.take(100)
    first.beat(marks=(mark,))
    second.take(40)
    second.beat()
    before = driver.now.phase
    marks = (second.mark(1),)
    second.take(60)

    second.beat(1, marks=marks)

    assert (before, driver.now.phase) == ("Serving", "Done")
    assert driver.now.savepoints[0].done == 40
    assert driver.now.consumed == 200


def test_trainers_that_mark_on_without_rows_hold_no_epoch_open() -> None:
    """They go on with another stream, one of them always a step ahead."""
    driver = exactly_once(epochs=2)
    driver.list_all([text_unit(100)])
    first, second = driver.open(0), driver.open(1)
    first.beat(1)
    second.beat(1)
    first.take(100)
    first.beat(marks=(first.mark(1),))
    assert (driver.now.epochs_done, len(driver.now.markings)) == (1, 1)

    for step in range(2, 12):
        first.beat(marks=(first.mark(step),))
        second.beat(marks=(second.mark(step - 1),))
        assert len(driver.now.markings) == 1

    second.beat(1)
    second.take(100)
    second.beat(marks=(second.mark(11),))
    first.beat(marks=(first.mark(12),))
    second.beat(marks=(second.mark(12),))

    assert driver.now.phase == "Done"
    assert [one.done for one in driver.now.savepoints][-2:] == [200, 200]
    assert driver.replay() == driver.now


def test_rows_that_the_sample_left_out_are_taken_back_with_the_others() -> None:
    """C54."""
    driver = exactly_once(sample={"per_million": 500_000})
    driver.list_all([text_unit(300)])
    first, second = driver.open(0), driver.open(1)
    first.beat(1)
    second.beat(1)
    token = min(first.held)
    first.held[token] = replace(first.held[token], position=30, left_out=14)
    mark = first.mark(1)
    first.held[token] = replace(first.held[token], position=50, left_out=21)
    first.beat(marks=(mark,))

    second.beat(marks=(second.mark(1),))

    (made,) = driver.now.savepoints
    assert (made.done, made.epochs[0].left_out) == (30, 14)
    assert (driver.now.consumed, driver.now.left_out) == (50, 21)


def test_who_completed_need_not_mark() -> None:
    driver = exactly_once()
    driver.list_all([text_unit(200)])
    first, second = driver.open(0), driver.open(1)
    first.beat(1)
    second.beat(1)
    first.take(30)
    first.beat(marks=(first.mark(1),))
    second.take(100)

    second.end(has_completed=True)

    assert driver.now.sealed == (1, "step-1-g1")
    assert driver.now.savepoints[0].done == 130
    assert not driver.told_of(GroupLeaseLost)


def test_who_marked_and_completed_is_in_the_savepoint_with_what_it_had_then() -> None:
    """C52."""
    driver = exactly_once()
    driver.list_all([text_unit(300)])
    readers = [driver.open(index) for index in range(3)]
    for reader in readers:
        reader.beat(1)
    first, second, third = readers
    first.take(30)
    first.beat(marks=(first.mark(1),))
    first.take(20)
    first.end(has_completed=True)
    second.beat(marks=(second.mark(1),))
    early = driver.now.sealed

    third.beat(marks=(third.mark(1),))

    assert early == (-1, "")
    assert driver.now.sealed == (1, "step-1-g1")
    assert driver.now.savepoints[0].done == 30
    assert driver.now.consumed == 50


def test_marks_that_never_come_are_named() -> None:
    """Bounded: who waits for the savepoint hears who has not marked."""
    driver = exactly_once()
    driver.list_all([text_unit(400)])
    first, second = driver.open(0), driver.open(1)
    first.beat(1)
    second.beat(1)
    first.beat(marks=(first.mark(3),))

    driver.wait(marking.MARKING_MS)

    step, text = first.orders().unsealed
    assert step == 3
    assert "worker-1/1" in text
    assert driver.now.markings == ()
    first.beat(marks=(first.mark(3),))
    assert driver.now.markings == ()


def test_later_steps_meet_though_an_older_one_failed() -> None:
    driver = exactly_once()
    driver.list_all([text_unit(400)])
    first, second = driver.open(0), driver.open(1)
    first.beat(1)
    second.beat(1)
    for step in range(marking.MARKINGS_MAX + 1):
        first.beat(marks=(first.mark(step),))

    second.beat(marks=(second.mark(4),))

    step, text = first.orders().unsealed
    assert (step, "a later step" in text) == (3, True)
    assert driver.now.sealed == (4, "step-4-g1")


def test_the_last_checkpoint_comes_after_the_end() -> None:
    driver = exactly_once()
    driver.list_all([text_unit(50)])
    reader = driver.open(0)
    reader.beat(1)
    reader.take(50)
    reader.beat(1)
    assert driver.now.phase == "Done"

    reader.beat(marks=(reader.mark(9),))

    assert driver.now.sealed == (9, "step-9-g1")
    assert driver.now.savepoints[0].done == 50


def test_only_the_newest_that_nobody_named_stay() -> None:
    """M123."""
    driver = exactly_once(savepoints_keep=2)
    driver.list_all([text_unit(400)])
    reader = driver.open(0)
    reader.beat(1)
    driver.propose(ev.SavepointRequested("mine"))
    for step in range(5):
        reader.take(1)
        reader.beat(marks=(reader.mark(step),))

    names = [one.name for one in driver.now.savepoints]

    assert names == ["mine", "step-3-g1", "step-4-g1"]


def test_a_person_gets_the_newest_marked_positions_under_a_name() -> None:
    driver = exactly_once()
    driver.list_all([text_unit(400)])
    reader = driver.open(0)
    reader.beat(1)
    reader.take(10)
    reader.beat(marks=(reader.mark(1),))
    reader.take(10)
    reader.beat()

    driver.propose(ev.SavepointRequested("mine"))

    assert [(one.name, one.done) for one in driver.now.savepoints][-1] == ("mine", 10)
    with pytest.raises(ConflictError, match="exactlyOnce"):
        driver.propose(ev.RestoreRequested("mine"))


# The group.


def one_of_two_lost(driver: Driver) -> tuple[Reader, Reader]:
    driver.list_all([text_unit(400)])
    first, second = driver.open(0), driver.open(1)
    assert first.ask("restore", "") == ""
    assert second.ask("restore", "") == ""
    first.beat(1)
    second.beat(1)
    first.take(30)
    second.take(20)
    first.beat(marks=(first.mark(1),))
    second.beat(marks=(second.mark(1),))
    first.take(5)
    first.beat()
    second.crash(was_own_fault=False)
    return first, second


def test_a_lost_reader_fails_its_whole_group() -> None:
    driver = exactly_once()

    first, second = one_of_two_lost(driver)

    assert driver.told_of(GroupLeaseLost) == [GroupLeaseLost("clicks", second.attempt)]
    assert first.leases() == ()
    first.beat(1)
    assert first.leases() == ()
    assert first.orders().state == "wait"
    first.crash()
    assert len(driver.told_of(GroupLeaseLost)) == 1


def test_the_next_generation_begins_at_the_savepoint_of_its_checkpoint() -> None:
    """M122: what was taken after it comes again, and nothing before it does."""
    driver = exactly_once()
    first, _ = one_of_two_lost(driver)
    first.crash(was_own_fault=False)
    again, also = driver.open(0, 2), driver.open(1, 2)

    assert again.ask("restore", "step-1-g1", want=1) == ""
    again.beat(1)
    again.take(70)
    again.beat(1)
    assert also.ask("restore", "step-1-g1") == ""
    also.beat(1)

    assert driver.now.generation == 2
    assert driver.now.rewound == 5
    assert driver.now.repeated == 0
    assert [one.lo for one in again.leases()] == [120, 220]


def test_nothing_is_sealed_between_a_loss_and_a_restore() -> None:
    """What was acknowledged when the group was lost is in no checkpoint."""
    driver = exactly_once()
    first, _ = one_of_two_lost(driver)
    first.crash()
    again = driver.open(0, 2)

    again.beat(marks=(again.mark(2),))

    assert driver.now.markings == ()
    assert [one.name for one in driver.now.savepoints] == ["step-1-g1"]
    again.ask("restore", "step-1-g1")
    again.beat(marks=(again.mark(2),))
    assert [(one.name, one.done) for one in driver.now.savepoints][-1] == ("step-2-g2", 50)


def test_a_group_that_asks_for_nothing_begins_anew() -> None:
    driver = exactly_once()
    first, _ = one_of_two_lost(driver)
    first.crash()
    again = driver.open(0, 2)

    again.beat(1)

    assert [(one.lo, one.hi) for one in again.leases()] == [(0, 100)]
    assert driver.now.rewound == 55


def test_members_of_a_group_cannot_begin_at_different_savepoints() -> None:
    driver = exactly_once()
    first, _ = one_of_two_lost(driver)
    first.crash(was_own_fault=False)
    again, also = driver.open(0, 2), driver.open(1, 2)
    again.ask("restore", "step-1-g1")

    error = also.ask("restore", "")

    assert "worker-0/2 began at step-1-g1" in error
    assert "no savepoint other" in also.ask("restore", "other", 2) or "began at" in error


def test_a_restore_that_names_nothing_known_is_answered() -> None:
    driver = exactly_once()
    driver.list_all([text_unit(400)])
    reader = driver.open(0)

    assert "has no savepoint nowhere" in reader.ask("restore", "nowhere")
    assert driver.now.generation == 1


def test_who_reads_already_cannot_be_sent_back_by_a_late_one() -> None:
    driver = Driver(stream_spec(split={"byte_count": 100}))
    driver.list_all([text_unit(400)])
    first, second = driver.open(0), driver.open(1)
    first.ask("savepoint", "s")
    first.beat(1)
    first.take(10)
    first.beat()

    assert "worker-0/1 took rows already" in second.ask("restore", "s")


def test_a_lone_trainer_goes_back_with_at_least_once_too() -> None:
    driver = Driver(stream_spec(split={"byte_count": 100}))
    driver.list_all([text_unit(400)])
    reader = driver.open(0)
    reader.beat(1)
    reader.take(10)
    assert reader.ask("savepoint", "s") == ""
    reader.take(30)
    reader.beat()
    reader.end()
    again = driver.open(0, 2)

    assert again.ask("restore", "s") == ""
    again.beat(1)

    assert [(one.lo, one.hi) for one in again.leases()] == [(10, 110)]
    assert driver.now.rewound == 30


def test_a_crash_after_the_end_opens_the_stream_again() -> None:
    """The last checkpoint was not written yet."""
    driver = exactly_once()
    driver.list_all([text_unit(50)])
    reader = driver.open(0)
    reader.beat(1)
    reader.take(20)
    reader.beat(marks=(reader.mark(1),))
    reader.take(30)
    reader.beat(1)
    assert driver.now.phase == "Done"
    reader.crash()
    again = driver.open(0, 2)
    waits = again.orders().state

    again.ask("restore", "step-1-g1", want=1)

    assert waits == "wait"
    assert driver.now.phase == "Serving"
    assert driver.told_of(StreamReopened)
    again.beat(1)
    assert [(one.lo, one.hi) for one in again.leases()] == [(20, 50)]


def test_a_reader_that_never_opened_the_stream_takes_nobody_along() -> None:
    driver = exactly_once()
    driver.list_all([text_unit(400)])
    first, second = driver.open(0), driver.open(1)
    first.beat(1)

    second.crash()

    assert not driver.told_of(GroupLeaseLost)
    assert len(first.leases()) == 1


def test_an_answer_that_was_lost_is_given_again_and_done_once() -> None:
    driver = exactly_once()
    driver.list_all([text_unit(400)])
    reader = driver.open(0)
    reader.beat(1)
    reader.take(5)
    reader.beat()
    reader.ask("savepoint", "s")

    assert reader.ask("savepoint", "s") == ""
    assert [one.name for one in driver.now.savepoints] == ["s"]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_no_row_is_missing_from_a_lineage_or_in_it_twice(seed: int) -> None:
    """C52, C53, M111, M122: workers, marks, kills and restores drawn from a seed.

    The model is the list of rows that it was trained on; a checkpoint is a copy of it, which is
    whole only if its savepoint was sealed.
    """
    Training(seed).run()


class Training:
    """Trainers in lock-step, each step one batch of each; a death ends the generation."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.sizes = [self.random.randint(0, 60) for _ in range(self.random.randint(1, 5))]
        split = {"byte_count": self.random.randint(5, 40)}
        epochs = self.random.randint(1, 2)
        self.driver = Driver(
            stream_spec(delivery="exactlyOnce", split=split, epochs=epochs, savepoints_keep=3)
        )
        self.epochs = epochs
        self.checkpoints: list[tuple[str, tuple[Row, ...]]] = []
        self.deaths = self.random.randint(0, 4)

    def run(self) -> None:
        units = [text_unit(size, f"{n}") for n, size in enumerate(self.sizes)]
        middle = self.random.randint(0, len(units))
        self.driver.list_all(units[:middle], is_complete=False)
        self.rest = units[middle:]
        model: tuple[Row, ...] | None = None
        attempt = 0
        while model is None:
            attempt += 1
            model = self.generation(attempt)
        expected = sorted(
            (epoch, unit, row)
            for epoch in range(self.epochs)
            for unit, size in enumerate(self.sizes)
            for row in range(size)
        )
        assert sorted(model) == expected
        assert self.driver.replay() == self.driver.now
        assert ledger.verify(self.driver.now).ok

    def generation(self, attempt: int) -> tuple[Row, ...] | None:
        """Train until the end, and return the model, or until a death, and return None."""
        name, model = self.newest_checkpoint()
        self.rows = list(model)
        count = self.random.randint(1, 4)
        readers = [self.driver.open(index, attempt, f"i{attempt}") for index in range(count)]
        for reader in self.random.sample(readers, count):
            assert reader.ask("restore", name, want=2) == ""
            reader.obey()
        self.marks: dict[Reader, list[Mark]] = {reader: [] for reader in readers}
        self.snapshots: dict[int, tuple[Row, ...]] = {}
        for step in range(1, 2_000):
            self.one_step(step, readers)
            if self.deaths and self.random.random() < 0.05:
                self.die(readers)
                return None
            if self.driver.now.phase == "Done":
                for reader in readers:
                    reader.end(has_completed=True)
                return tuple(self.rows)
        raise AssertionError("it does not end")

    def newest_checkpoint(self) -> tuple[str, tuple[Row, ...]]:
        known = {one.name for one in self.driver.now.savepoints}
        whole = [one for one in self.checkpoints if one[0] in known]
        return self.random.choice(whole[-2:]) if whole else ("", ())

    def one_step(self, step: int, readers: list[Reader]) -> None:
        self.driver.wait(self.random.randint(1, 900))
        if self.rest and self.random.random() < 0.3:
            self.driver.list_all([self.rest.pop(0)], is_complete=not self.rest)
        elif not self.driver.now.is_listed and not self.rest:
            self.driver.list_all([])
        for reader in readers:
            self.rows += self.step(reader)
        if self.random.random() < 0.2:
            self.snapshots[step] = tuple(self.rows)
            for reader in readers:
                self.marks[reader].append(reader.mark(step))
        for reader in self.random.sample(readers, len(readers)):
            if self.random.random() < 0.7:
                reader.beat(self.random.randint(0, 2), marks=tuple(self.marks[reader]))
        sealed, name = self.driver.now.sealed
        if sealed in self.snapshots and self.random.random() < 0.9:
            self.checkpoints.append((name, self.snapshots.pop(sealed)))
        for reader in readers:
            self.marks[reader] = [one for one in self.marks[reader] if one.step > sealed]

    def die(self, readers: list[Reader]) -> None:
        self.deaths -= 1
        for reader in self.random.sample(readers, len(readers)):
            if self.random.random() < 0.5:
                reader.crash()
            else:
                reader.end()

    def step(self, reader: Reader) -> list[Row]:
        """Take some rows of the first lease that has some."""
        live = {one.token for one in reader.leases()}
        for token in sorted(reader.held):
            held = reader.held[token]
            if token in live and held.position < held.hi:
                reader.take(self.random.randint(1, 9), token)
                now = reader.held[token].position
                return [(held.epoch, held.unit, row) for row in range(held.position, now)]
        return []


# At most once.


def test_what_was_in_hand_of_a_lost_reader_never_comes_again() -> None:
    driver = Driver(stream_spec(delivery="atMostOnce", split={"byte_count": 100}))
    driver.list_all([text_unit(300)])
    first, second = driver.open(0), driver.open(1)
    first.beat(1)
    first.take(40)
    first.beat()

    first.crash()
    for _ in range(2):
        second.beat(1)
        second.take(100)
        second.beat(1)

    assert driver.now.phase == "Done"
    assert (driver.now.consumed, driver.now.skipped, driver.now.repeated) == (240, 60, 0)
    dead = next(ledger.tasks(driver.now, "dead"))
    assert (dead.lo, dead.hi, dead.kind) == (40, 100, "forgotten")
    assert driver.now.bad_count == 0


def test_what_a_trainer_was_not_handed_is_not_lost_with_it() -> None:
    driver = Driver(stream_spec(delivery="atMostOnce", split={"byte_count": 100}))
    driver.list_all([text_unit(100)])
    reader = driver.open(0)
    reader.beat(1)
    held = reader.obey()[0]

    reader.end(positions=(replace(held, position=10, delivered=30),))

    assert [(one.lo, one.hi) for one in ledger.tasks(driver.now, "dead")] == [(10, 30)]
    assert [(one.lo, one.hi) for one in ledger.tasks(driver.now, "waiting")] == [(30, 100)]


# A fraction of bad rows.


def bad(reader: Reader, lo: int, hi: int) -> BadRange:
    held = reader.obey()[0]
    return BadRange(held, lo, hi, "data", "broken", b"\x00\x01")


def test_a_fraction_is_held_against_all_that_was_listed() -> None:
    """M115: at once, with the record that is too much."""
    driver = Driver(stream_spec(on_bad="skipRecord", bad_rows=-1, bad_ppm=50_000))
    driver.list_all([text_unit(1000)])
    reader = driver.open(0)
    reader.beat(1)

    reader.beat(bad=(bad(reader, 0, 50),))
    within = driver.now.phase
    reader.beat(bad=(bad(reader, 50, 51),))

    assert (within, driver.now.phase) == ("Serving", "Failed")
    assert "badFraction" in driver.now.failure
    assert "51 of 1000" in driver.now.failure


def test_a_file_that_was_never_opened_counts_by_its_bytes() -> None:
    driver = Driver(stream_spec(on_bad="deadLetter", bad_rows=-1, bad_ppm=400_000))
    driver.list_all([rows_unit(1000, "a"), rows_unit(1000, "b")])
    reader = driver.open(0)
    reader.beat(1)
    reader.beat(mapped=(UnitMap(0, (100,), 100),))
    reader.take(100)
    reader.beat(1)
    held = next(one for one in reader.obey() if one.unit == 1)

    reader.beat(bad=(BadRange(held, 0, OPEN_END, "vanished", "gone"),))

    assert driver.now.phase == "Failed"
    assert "100 of 200" in driver.now.failure


@pytest.mark.parametrize(
    ("unit", "hi", "words"),
    [
        (text_unit(1000), 1000, "how many rows its 1000 bytes are is not known"),
        (rows_unit(1000, "a"), OPEN_END, "nobody knows how many rows it has"),
    ],
)
def test_a_budget_in_rows_says_where_it_had_to_guess(unit: Unit, hi: int, words: str) -> None:
    """M115."""
    driver = Driver(stream_spec(on_bad="deadLetter", bad_rows=100))
    driver.list_all([unit])
    reader = driver.open(0)
    reader.beat(1)
    (held,) = reader.obey()

    reader.beat(bad=(BadRange(held, 0, hi, "vanished", "gone"),))

    assert driver.now.phase == "Failed"
    assert "more than 100 rows (badRows)" in driver.now.failure
    assert words in driver.now.failure
    assert "badFraction goes by" in driver.now.failure


def test_a_dead_letter_that_is_skipped_by_hand_is_off_the_budget() -> None:
    driver = Driver(stream_spec(on_bad="deadLetter", bad_rows=1))
    driver.list_all([text_unit(1000)])
    reader = driver.open(0)
    reader.beat(1)
    reader.beat(bad=(bad(reader, 0, 10),))

    driver.propose(ev.TaskSkipRequested(0, 0, 0, "known to be broken"), by="uid:1000 (ann)")
    reader.beat(bad=(bad(reader, 20, 30),))

    assert driver.now.phase == "Serving"
    found = [(one.kind, one.text, one.by) for one in ledger.tasks(driver.now, "dead")]
    assert found[0] == ("skipped", "known to be broken", "uid:1000 (ann)")
    assert driver.now.bad_count == 1
    assert driver.propose(ev.TaskSkipRequested(0, 0, 0, "again")) == "stale token"


# What kills its readers.


def die_on(driver: Driver, rows: range, *, size: int, at_once: int = 30) -> list[int]:
    """Let one generation after the other die on poison; return the positions they died at."""
    died: list[int] = []
    for attempt in range(1, 60):
        reader = driver.open(0, attempt)
        reader.beat(1, mapped=(UnitMap(0, (size,), size),))
        while driver.now.phase == "Serving":
            if not reader.held:
                reader.beat(1)
            held = reader.held[min(reader.held)]
            ahead = range(held.position, min(held.hi, held.position + at_once))
            if set(ahead) & set(rows):
                died.append(held.position)
                reader.crash()
                break
            reader.take(at_once)
            reader.beat()
        else:
            return died
    return died


@pytest.mark.parametrize("marked_at", [0, 20])
def test_C48_what_kills_one_generation_after_the_other_is_struck_out(marked_at: int) -> None:
    driver = Driver(stream_spec(delivery="exactlyOnce", on_bad="deadLetter", bad_rows=-1))
    driver.list_all([rows_unit()])
    if marked_at:
        first = driver.open(0)
        first.beat(1, mapped=(UnitMap(0, (100,), 100),))
        first.take(marked_at)
        first.beat(marks=(first.mark(1),))

    died = die_on(driver, range(40, 41), size=100)

    assert driver.now.phase == "Done"
    (dead,) = ledger.tasks(driver.now, "dead")
    assert (dead.lo, dead.hi, dead.kind) == (40, 41, "struckOut")
    assert driver.now.strike_count < len(died) <= 24
    assert driver.now.bad_count == 1
    assert driver.replay() == driver.now


def test_C48_by_default_it_fails_the_stream() -> None:
    driver = Driver(stream_spec(delivery="exactlyOnce"))
    driver.list_all([rows_unit()])

    die_on(driver, range(40, 41), size=100)

    assert driver.now.phase == "Failed"
    assert "rows 40-41" in driver.now.failure


def test_deaths_at_one_place_after_another_strike_nothing_out() -> None:
    driver = Driver(stream_spec(delivery="exactlyOnce", on_bad="deadLetter", bad_rows=-1))
    driver.list_all([text_unit(100)])

    for attempt, place in enumerate((30, 50, 20, 70, 45, 60, 80), start=1):
        reader = driver.open(0, attempt)
        reader.beat(1)
        taken = 0
        while taken < place:
            if not reader.held:
                reader.beat(1)
            held = reader.held[min(reader.held)]
            reader.take(place - taken)
            taken += reader.held[held.token].position - held.position
            reader.beat()
        reader.crash()

    assert driver.now.strike_count <= 1
    assert tuple(ledger.tasks(driver.now, "dead")) == ()


def test_what_a_person_left_out_stays_so_when_a_group_goes_back() -> None:
    driver = exactly_once()
    driver.list_all([text_unit(300)])
    driver.propose(ev.TaskSkipRequested(0, 0, 0, "known to be broken"))
    (skipped,) = ledger.tasks(driver.now, "dead")
    first = driver.open(0)
    first.beat(1)
    first.crash()

    heir = driver.open(0, 2)
    heir.beat(1)

    assert driver.now.restored_by == heir.attempt.label
    assert tuple(ledger.tasks(driver.now, "dead")) == (skipped,)
    assert driver.now.bad_count == 0
    assert driver.replay() == driver.now
