"""Positions that go from one stream to another: by location, at any number of workers."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from primusd.datafeed.ledger import events as ev
from primusd.datafeed.ledger import machine as ledger
from primusd.datafeed.ledger import savepoints
from primusd.datafeed.ledger.carrying import carried_units, order_fault, order_of, whole_epochs
from primusd.datafeed.ledger.model import CarriedUnit, Range, Stream
from primusd.datafeed.ledger.portable import (
    Portable,
    PortableError,
    as_carried,
    as_portable,
    decode,
    encode,
)
from primusd.datafeed.protocol import BadRange, UnitMap
from primusd.errors import ConflictError
from primusd.job.commands import CarryPositions, KeepPositions, ListUnits
from primusd.job.events import StreamFinished
from tests.datafeed.ledger_driver import Driver, Reader, rows_unit, stream_spec, text_unit

RESTORE = {"job": "before", "savepoint": "s"}


def carried_into(units: tuple[CarriedUnit, ...], *, whole: int = 0, **fields: object) -> Driver:
    driver = Driver(stream_spec(restore=RESTORE, **fields))
    driver.propose(ev.PositionsCarried(units, 0, is_complete=True, whole_epochs=whole))
    return driver


def read_all(driver: Driver, *readers: Reader) -> list[tuple[int, int, int, int]]:
    """Read to the end; return epoch, unit and range of what was taken."""
    found: list[tuple[int, int, int, int]] = []
    for _ in range(1_000):
        if driver.now.phase == "Done":
            return sorted(found)
        for reader in readers:
            reader.beat(2)
            for token, held in sorted(reader.held.items()):
                if held.position < held.hi:
                    found.append((held.epoch, held.unit, held.position, held.hi))
                    reader.take(held.hi - held.position, token)
            reader.beat(2)
    raise AssertionError("it does not end")


def unit(name: str, size: int, *done: tuple[int, int], byte_count: int = -1) -> CarriedUnit:
    parts = tuple(Range(lo, hi) for lo, hi in done)
    return CarriedUnit(
        f"/data/{name}", byte_count if byte_count >= 0 else size, "", size, ((0, parts),)
    )


def test_nothing_is_listed_before_it_is_known_where_the_stream_starts() -> None:
    driver = Driver(stream_spec(restore=RESTORE))
    before = ledger.plan(driver.now)

    driver.propose(ev.PositionsCarried((), 0, is_complete=True))

    assert [type(one) for one in before] == [CarryPositions]
    assert [type(one) for one in ledger.plan(driver.now)] == [ListUnits]


def test_what_is_done_is_not_handed_out_and_the_rest_is() -> None:
    """A8 to A10, M116, M118, M121: units are found by location, in any order of listing."""
    driver = carried_into((unit("a", 100, (0, 100)), unit("b", 100, (0, 10), (40, 60))))
    driver.list_all([text_unit(100, "c"), text_unit(100, "b")], is_complete=False)
    driver.list_all([text_unit(100, "a")])

    taken = read_all(driver, driver.open(0))

    assert taken == [(0, 0, 0, 100), (0, 1, 10, 40), (0, 1, 60, 100)]
    assert (driver.now.consumed, driver.now.carried_count) == (300, 130)
    assert driver.told_of(StreamFinished) == [StreamFinished("clicks", 300, 0, 0, 130)]


def test_a_stream_that_is_done_already_ends_with_its_listing() -> None:
    """A9: zero rows."""
    driver = carried_into((unit("a", 100, (0, 100)), unit("b", 50, (0, 50))))

    driver.list_all([text_unit(100, "a"), text_unit(50, "b")])

    assert driver.now.phase == "Done"
    assert driver.now.last_token == 0


def test_a_finished_file_behind_one_that_waits_stays_finished() -> None:
    """It is ahead of the cursor: without an entry it would wait."""
    driver = carried_into((unit("b", 50, (0, 50)), unit("d", 0)))
    driver.list_all([text_unit(10, "a"), text_unit(50, "b"), text_unit(10, "c")])

    assert read_all(driver, driver.open(0)) == [(0, 0, 0, 10), (0, 2, 0, 10)]
    assert driver.now.epochs == ()


def test_passes_that_had_ended_are_whole_and_a_new_file_is_read_in_them_too() -> None:
    """M077."""
    driver = carried_into((unit("a", 100, (0, 30)),), whole=1, epochs=2)
    done_in_second = replace(unit("a", 100), done=((1, (Range(0, 30),)),))
    driver = carried_into((done_in_second,), whole=1, epochs=2)
    driver.list_all([text_unit(100, "a"), text_unit(10, "new")])

    taken = read_all(driver, driver.open(0))

    assert taken == [(0, 1, 0, 10), (1, 0, 30, 100), (1, 1, 0, 10)]


def test_a_file_whose_rows_were_counted_need_not_be_opened() -> None:
    carried = CarriedUnit("/data/a", 1000, "1", 60, ((0, (Range(0, 60),)),), cuts=(20, 40, 60))
    driver = carried_into((carried,))

    driver.list_all([rows_unit(1000, "a")])

    assert driver.now.phase == "Done"
    assert driver.now.known == 60


def test_a_file_that_was_changed_since_fails_the_stream_and_is_named() -> None:
    """M125: new files are welcome, changed ones are not, unless the file says so."""
    driver = carried_into((unit("a", 100, (0, 100), byte_count=100),))

    driver.list_all([text_unit(120, "a")])

    assert driver.now.phase == "Failed"
    assert "/data/a was changed" in driver.now.failure
    assert "had 100 bytes, now it has 120" in driver.now.failure


def test_a_file_that_was_changed_since_is_read_anew_where_that_was_said() -> None:
    driver = carried_into((unit("a", 100, (0, 100), byte_count=100),), on_changed="anew")

    driver.list_all([text_unit(120, "a")])

    assert read_all(driver, driver.open(0)) == [(0, 0, 0, 120)]


def test_what_was_left_out_stays_so_and_is_counted() -> None:
    """C54."""
    first = Driver(stream_spec(on_bad="deadLetter", bad_rows=-1))
    first.list_all([text_unit(100, "a")])
    reader = first.open(0)
    reader.beat(1)
    held = reader.obey()[0]
    reader.beat(bad=(BadRange(held, 10, 20, "data", "broken", b"\x01"),))
    reader.take(50)
    reader.beat()
    first.propose(ev.SavepointRequested("s"))
    units = carried_units(first.now, first.now.savepoints[0])
    driver = carried_into(units, on_bad="deadLetter", bad_rows=-1)
    driver.list_all([text_unit(100, "a")])

    read_all(driver, driver.open(0))

    dead = list(ledger.tasks(driver.now, "dead"))
    assert [(one.lo, one.hi, one.kind, one.head) for one in dead] == [(10, 20, "data", b"\x01")]
    assert (driver.now.consumed, driver.now.skipped) == (90, 10)


def test_positions_come_in_parts_and_a_repeat_changes_nothing() -> None:
    driver = Driver(stream_spec(restore=RESTORE))
    first, second = unit("a", 10, (0, 10)), unit("b", 10, (0, 5))
    driver.propose(ev.PositionsCarried((first,), 0, is_complete=False))

    repeat = driver.propose(ev.PositionsCarried((first,), 0, is_complete=False))
    driver.propose(ev.PositionsCarried((first, second), 0, is_complete=True))

    assert repeat == "repeat"
    assert driver.now.carried == (first, second)
    assert not driver.now.is_carrying


def test_what_cannot_be_carried_fails_the_stream_or_is_tried_again() -> None:
    driver = Driver(stream_spec(restore=RESTORE))
    driver.propose(ev.CarryingFailed("the folder does not answer", is_permanent=False))
    waits = (driver.now.phase, driver.now.waiting_for, ledger.plan(driver.now))
    driver.wait(2_000)
    again = ledger.plan(driver.now)

    driver.propose(ev.CarryingFailed("no such savepoint", is_permanent=True))

    assert waits == ("Opening", ("the folder does not answer",), ())
    assert [type(one) for one in again] == [CarryPositions]
    assert (driver.now.phase, driver.now.failure) == ("Failed", "no such savepoint")


def test_a_closed_stream_keeps_its_positions_until_they_are_kept() -> None:
    driver = Driver(stream_spec(staging="/keep"))
    driver.propose(ev.PositionsCarried((), 0, is_complete=True))
    driver.propose(ev.StreamClosed())
    before = ledger.plan(driver.now)

    driver.propose(ev.PositionsKept())

    assert [type(one) for one in before] == [KeepPositions]
    assert ledger.plan(driver.now) == ()
    assert driver.propose(ev.PositionsKept()) == "repeat"


def test_an_imported_savepoint_is_restored_like_any_other() -> None:
    """M121: also while it runs; units that are listed later are as it says, too."""
    driver = Driver(stream_spec(split={"byte_count": 50}))
    driver.list_all([text_unit(100, "a")], is_complete=False)
    reader = driver.open(0)
    reader.beat(1)
    units = (unit("a", 100, (0, 80)), unit("b", 10, (0, 10)))
    driver.propose(ev.SavepointImported("brought", units))

    driver.propose(ev.RestoreRequested("brought"))
    driver.list_all([text_unit(10, "b"), text_unit(5, "c")])

    assert read_all(driver, reader) == [(0, 0, 80, 100), (0, 2, 0, 5)]
    with pytest.raises(ConflictError):
        driver.propose(ev.SavepointImported("brought", ()))
    assert driver.propose(ev.SavepointImported("brought", units)) == "repeat"


def test_units_listed_after_a_savepoint_are_as_they_were_carried() -> None:
    driver = carried_into((unit("b", 10, (0, 10)),))
    driver.list_all([text_unit(20, "a")], is_complete=False)
    reader = driver.open(0)
    driver.propose(ev.SavepointRequested("s"))
    driver.list_all([text_unit(10, "b")])

    driver.propose(ev.RestoreRequested("s"))

    assert read_all(driver, reader) == [(0, 0, 0, 20)]


def test_parts_of_files_go_on_in_the_same_order_only() -> None:
    """A part of a shuffled file is other rows than a part of it as it lies."""
    plain, shuffled = stream_spec(), stream_spec(shuffle={"seed": 7})
    part, whole = unit("a", 100, (0, 30)), unit("b", 50, (0, 50))

    assert order_fault((part,), order_of(plain), plain) == ""
    assert order_fault((part,), order_of(shuffled), shuffled) == ""
    assert order_fault((whole,), order_of(plain), shuffled) == ""
    assert "/data/a was read in part" in order_fault((whole, part), order_of(plain), shuffled)
    assert "shuffled" in order_fault((part,), order_of(shuffled), plain)


# By the clock, and at a suspension.


def test_savepoints_by_the_clock_come_as_often_as_was_said_and_the_newest_stay() -> None:
    """M117, M120."""
    driver = Driver(stream_spec(savepoint_every_ms=10_000, savepoints_keep=3))
    driver.list_all([text_unit(1000)])
    reader = driver.open(0)
    reader.beat(1)
    for _ in range(5):
        driver.wait(10_000)
        reader.take(10)
        reader.beat()

    done = [(one.origin, one.done) for one in driver.now.savepoints]

    assert done == [("timer", 20), ("timer", 30), ("timer", 40)]
    assert [one.reason for one in driver.now.moments] == ["SavepointMade"]
    assert driver.replay() == driver.now


def test_a_suspension_keeps_positions_exactly() -> None:
    """M120: every reader has stopped by then."""
    driver = Driver()
    driver.list_all([text_unit(1000)])
    reader = driver.open(0)
    reader.beat(1)
    reader.take(123)
    reader.end()

    driver.propose(ev.PauseRequested(for_suspension=True))

    (made,) = driver.now.savepoints
    assert (made.origin, made.done) == ("suspend", 123)
    assert made.name.startswith("suspend-2023")


def test_what_happened_to_a_stream_is_told() -> None:
    driver = Driver(stream_spec(on_bad="deadLetter", bad_rows=-1))
    driver.list_all([text_unit(100, "a")])
    reader = driver.open(0)
    reader.beat(1)
    driver.propose(ev.SavepointRequested("mine"), by="uid:1000 (ann)")
    reader.take(40)
    reader.beat()
    driver.propose(ev.RestoreRequested("mine"), by="uid:1000 (ann)")
    driver.propose(ev.TaskSkipRequested(0, 0, 0, "not wanted"), by="uid:1000 (ann)")

    told = [(one.reason, one.by, one.message) for one in driver.now.moments]

    assert told == [
        ("SavepointSealed", "uid:1000 (ann)", "savepoint mine at 0 taken"),
        ("Restored", "uid:1000 (ann)", "went back to mine, 0 taken there"),
        (
            "TaskSkipRequested",
            "uid:1000 (ann)",
            "/data/a from 0 is left out: not wanted",
        ),
        ("EpochEnded", "settle", "pass 1 ended, 0 taken"),
        ("StreamEnded", "settle", "read to its end"),
    ]
    assert driver.now.rewound == 40


# JSON.


def test_a_savepoint_in_json_comes_back_as_it_was() -> None:
    units = (unit("ä b", 100, (0, 10), (20, 30)), unit("c", 5))
    portable = Portable(job="j", stream="clicks", name="s", units=as_portable(units))

    found = decode(encode(portable))

    assert as_carried(found.units)[0] == units[0]
    assert found == portable


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "no exported savepoint"),
        (b"[]", "no exported savepoint"),
        (b'{"kind": "Job"}', "a Job, no Savepoint"),
        (b'{"kind": "Savepoint", "form": 99}', "form 99"),
        (b'{"kind": "Savepoint", "units": [{"location": 7}]}', r"\$\.units\[0\]\.location"),
        (
            b'{"kind": "Savepoint", "units": [{"location": "/a", "epochs": '
            b'[{"epoch": 0, "done": [[5, 9], [7, 8]]}]}]}',
            "not in order",
        ),
    ],
)
def test_what_is_no_savepoint_is_refused_with_the_reason(text: bytes, says: str) -> None:
    """M124: also one of a newer form."""
    with pytest.raises(PortableError, match=says):
        decode(text)


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_a_stream_goes_on_in_another_job_at_any_number_of_workers(seed: int) -> None:
    """C52: every row once over both jobs, whatever had been taken by whom."""
    rnd = random.Random(seed)
    sizes = [rnd.randint(0, 60) for _ in range(rnd.randint(1, 5))]
    epochs, has_rows = rnd.randint(1, 2), rnd.random() < 0.5
    split = {"rows" if has_rows else "byte_count": rnd.randint(5, 40)}
    first = Driver(stream_spec(epochs=epochs, split=split))
    make = rows_unit if has_rows else text_unit
    first.list_all([make(size or 1, f"{n}") for n, size in enumerate(sizes)])
    taken = Rows(rnd, first, [size or 1 for size in sizes])
    taken.some([first.open(n) for n in range(rnd.randint(1, 4))])
    first.propose(ev.SavepointRequested("s"))
    if first.now.savepoints:
        made = first.now.savepoints[-1]
        portable = Portable(
            units=as_portable(carried_units(first.now, made)), whole_epochs=whole_epochs(made)
        )
        found = decode(encode(portable))
        second = Driver(stream_spec(epochs=epochs, split=split, restore=RESTORE))
        units = as_carried(found.units)
        second.propose(
            ev.PositionsCarried(units, 0, is_complete=True, whole_epochs=found.whole_epochs)
        )
        order = list(range(len(sizes)))
        rnd.shuffle(order)
        second.list_all([make(sizes[n] or 1, f"{n}") for n in order])
        rest = Rows(rnd, second, [sizes[n] or 1 for n in order])
        rest.all([second.open(n) for n in range(rnd.randint(1, 4))])
        rows = [*taken.rows, *((epoch, order[n], row) for epoch, n, row in rest.rows)]
        assert sorted(rows) == [
            (epoch, n, row)
            for epoch in range(epochs)
            for n, size in enumerate(sizes)
            for row in range(size or 1)
        ]
        assert second.now.consumed == len(rows)
        assert second.replay() == second.now
        assert ledger.verify(second.now).ok


class Rows:
    """Readers that take rows, and what they took."""

    def __init__(self, rnd: random.Random, driver: Driver, sizes: list[int]) -> None:
        self.rnd = rnd
        self.driver = driver
        self.sizes = sizes
        self.rows: list[tuple[int, int, int]] = []

    def some(self, readers: list[Reader]) -> None:
        for _ in range(self.rnd.randint(0, 12)):
            self.step(self.rnd.choice(readers))

    def all(self, readers: list[Reader]) -> None:
        for _ in range(3_000):
            if self.driver.now.phase == "Done":
                return
            self.driver.wait(500)
            self.step(self.rnd.choice(readers))
        raise AssertionError("it does not end")

    def step(self, reader: Reader) -> None:
        reader.beat(1)
        maps = tuple(
            UnitMap(held.unit, (self.sizes[held.unit],), self.sizes[held.unit])
            for held in reader.held.values()
            if held.hi > 1 << 40
        )
        if maps:
            reader.beat(mapped=maps)
        for token in sorted(reader.held)[:1]:
            held = reader.held[token]
            reader.take(self.rnd.randint(1, 20), token)
            now = reader.held[token].position
            self.rows += [(held.epoch, held.unit, row) for row in range(held.position, now)]
        reader.beat(1)


def test_where_a_stream_is_now_can_be_told_without_keeping_it() -> None:
    driver = Driver()
    driver.list_all([text_unit(100, "a")])
    reader = driver.open(0)
    reader.beat(1)
    reader.take(30)
    reader.beat()
    before: Stream = driver.now

    found = savepoints.as_it_is(before)

    assert [one.done for one in carried_units(before, found)] == [((0, (Range(0, 30),)),)]
    assert driver.now is before
