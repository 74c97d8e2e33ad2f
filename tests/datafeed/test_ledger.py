"""The ledger of a stream: what readers are given, what counts, what comes back."""

import pytest
from msgspec.structs import replace

from primusd.datafeed.ledger import events as ev
from primusd.datafeed.ledger import machine as ledger
from primusd.datafeed.ledger.model import OPEN_END
from primusd.datafeed.protocol import BadRange, FeedReport, Held, UnitMap
from primusd.errors import NotFoundError, PhaseConflictError
from primusd.job.commands import KeepPositions, ListUnits
from primusd.job.events import ReaderSettled, StreamFailed, StreamFinished, StreamReopened
from primusd.state.snapshots import decode_machine, encode_parts
from tests.datafeed.ledger_driver import (
    JOB,
    Driver,
    Reader,
    attempt_id,
    rows_unit,
    stream_spec,
    text_unit,
)

MIB = 1 << 20


def finish(driver: Driver, *readers: Reader, step: int = 1 << 40) -> None:
    """Let readers take all there is."""
    for _ in range(1000):
        if driver.now.phase != "Serving":
            return
        driver.at_ms += 1000
        for reader in readers:
            reader.obey()
            if reader.held:
                reader.take(step)
            reader.beat(1)
    raise AssertionError("never finished")


def test_two_readers_share_units_in_order_and_the_stream_is_done_once() -> None:
    driver = Driver()
    one, two = driver.open(0), driver.open(1)
    driver.list_all(text_unit(10, f"{n}.txt") for n in range(5))

    one.beat(1)
    two.beat(1)
    first = (one.leases()[0].unit, two.leases()[0].unit)
    finish(driver, one, two)

    assert first == (0, 1)
    assert driver.told == [StreamFinished("clicks", 50, 0)]
    assert one.orders().state == "end"
    assert ledger.verify(driver.now).ok
    assert driver.replay() == driver.now


def test_a25_tasks_come_in_order_one_per_want_and_the_counters_are_exact_after_each_step() -> None:
    """M112."""
    driver = Driver(stream_spec(split={"byte_count": 10}))
    reader = driver.open(0)
    driver.open(1)
    driver.list_all([text_unit(20), text_unit(10)])
    seen = []

    for step in range(3):
        reader.beat(1)
        (lease,) = reader.leases()
        seen.append((lease.unit, lease.lo, lease.hi))
        places = ledger.positions(driver.now)
        assert (places.done, places.leased, places.waiting) == (10 * step, 10, 20 - 10 * step)
        reader.take(4)
        reader.beat(0)
        places = ledger.positions(driver.now)
        assert (places.done, places.leased) == (10 * step + 4, 6)
        reader.take(6)
        reader.beat(0)

    assert seen == [(0, 0, 10), (0, 10, 20), (1, 0, 10)]
    assert ledger.positions(driver.now).done == 30
    assert driver.now.phase == "Done"


def test_a25_a_range_whose_readers_die_often_enough_moves_to_the_dead_and_back_by_retry() -> None:
    driver = Driver(stream_spec(on_bad="deadLetter", bad_rows=-1))
    driver.list_all([text_unit(100), text_unit(10)])
    for attempt in range(1, 4):
        reader = driver.open(0, attempt)
        reader.beat(1)
        assert reader.leases()[0].unit == 0
        reader.crash()

    (dead,) = ledger.tasks(driver.now, "dead")
    driver.propose(ev.TaskRetryRequested(0, 0, 0))

    assert (dead.unit, dead.lo, dead.hi, dead.kind) == (0, 0, 100, "struckOut")
    assert [one.lo for one in ledger.tasks(driver.now, "waiting")] == [0, 0]
    assert driver.now.skipped == 0


def test_a26_order_is_kept_over_batches_of_the_listing_and_over_a_reload() -> None:
    driver = Driver()
    reader = driver.open(0)
    driver.list_all([text_unit(10), text_unit(10)], is_complete=False)
    reader.beat(1)
    driver.reload()
    driver.list_all([text_unit(10), text_unit(10)])
    order = []

    while driver.now.phase != "Done":
        reader.obey()
        order += [one.unit for one in reader.leases()]
        reader.take(10)
        reader.beat(1)

    assert order == [0, 1, 2, 3]
    assert driver.replay() == driver.now


def test_a26_a_restart_at_a_position_begins_there() -> None:
    driver = Driver()
    reader = driver.open(0)
    driver.list_all([text_unit(100)])
    reader.beat(1)
    reader.take(37)
    reader.beat(0)

    reader.end()
    heir = driver.open(0, 2)
    heir.beat(1)

    assert [(one.lo, one.hi, one.position) for one in heir.leases()] == [(37, 100, 37)]


def test_a27_holders_exclude_each_other() -> None:
    driver = Driver()
    one, two = driver.open(0), driver.open(1)
    driver.list_all([text_unit(10)])
    one.beat(1)
    stolen = Held("clicks", 0, 0, 0, one.leases()[0].token, 10, 10)

    reason = two.beat(1, held=(stolen,))

    assert two.leases() == ()
    assert driver.now.consumed == 0
    assert reason == ""  # it wants, so it was recorded; what it does not hold was not


def test_c49_a_late_report_after_the_range_was_leased_again_is_refused_and_told_so() -> None:
    driver = Driver()
    late = driver.open(0)
    driver.list_all([text_unit(10)])
    late.beat(1)
    old = late.obey()
    driver.propose(ev.LeaseExpired(late.attempt, ()))
    heir = driver.open(1)
    heir.beat(1)

    reason = late.beat(0, held=(replace(old[0], position=10),))

    assert reason == "stale token"
    assert late.leases() == ()
    assert driver.now.consumed == 0
    heir.take(10)
    heir.beat(0)
    assert driver.told_of(StreamFinished) == [StreamFinished("clicks", 10, 0)]


def test_c51_a_frozen_readers_tasks_go_to_others_when_its_lease_runs_out() -> None:
    driver = Driver()
    frozen, other = driver.open(0), driver.open(1)
    driver.list_all([text_unit(50 * MIB)])
    frozen.beat(1)
    frozen.take(MIB)
    driver.at_ms += 1000
    frozen.beat(1, rows_per_s=1000)

    driver.propose(ev.LeaseExpired(frozen.attempt, ()))
    other.beat(1)

    assert other.leases()[0].lo == MIB
    assert frozen.leases() == ()
    # It read up to 10 s of its own rate that it could not tell any more.
    assert driver.now.repeated == 10 * MIB


def test_c51_one_that_was_told_no_window_may_have_read_all_that_it_held() -> None:
    """Its first words told no rate: it goes by one that the daemon has not heard of."""
    driver = Driver()
    frozen, other = driver.open(0), driver.open(1)
    driver.list_all([text_unit(50 * MIB)])
    frozen.beat(1)
    frozen.take(MIB)
    driver.at_ms += 1000
    frozen.beat(1)
    rest = sum(lease.hi - lease.position for lease in frozen.leases())

    driver.propose(ev.LeaseExpired(frozen.attempt, ()))
    other.beat(1)

    assert rest > 10 * MIB
    assert driver.now.repeated == rest


def test_c51_the_tasks_of_a_dead_worker_are_given_out_at_once() -> None:
    driver = Driver()
    dead, other = driver.open(0), driver.open(1)
    driver.list_all([text_unit(10), text_unit(10)])
    dead.beat(1)
    other.beat(2)
    dead.crash()

    other.beat(2)

    assert [one.unit for one in other.leases()] == [1, 0]


def test_c53_nothing_is_acknowledged_before_the_trainer_took_it() -> None:
    driver = Driver()
    reader = driver.open(0)
    driver.list_all([text_unit(100)])
    reader.beat(1)  # it holds [0, 100) and may have read all of it

    reader.crash()
    heir = driver.open(0, 2)
    heir.beat(1)

    assert heir.leases()[0].position == 0


def test_c54_counters_add_up_to_all_rows_with_tails_and_several_readers() -> None:
    """1,000 rows in batches of 64 over 3 workers."""
    driver = Driver()
    readers = [driver.open(index) for index in range(3)]
    driver.list_all([rows_unit(name=f"{n}.parquet") for n in range(7)])
    sizes = [143, 143, 143, 143, 143, 143, 142]
    taken = 0

    for _ in range(200):
        if driver.now.phase == "Done":
            break
        driver.at_ms += 100
        for reader in readers:
            reader.obey()
            maps = tuple(
                UnitMap(one.unit, (sizes[one.unit],), sizes[one.unit])
                for one in reader.leases()
                if one.hi == OPEN_END
            )
            reader.beat(1, mapped=maps)
            if reader.held:
                token = min(reader.held)
                before = reader.held[token].position
                reader.take(64, token)
                taken += reader.held[token].position - before

    assert taken == 1000
    assert driver.told == [StreamFinished("clicks", 1000, 0)]
    proof = ledger.verify(driver.now)
    assert (proof.ok, proof.listed, proof.done, proof.skipped) == (True, 1000, 1000, 0)


def test_c56_what_was_acknowledged_is_not_given_out_again_after_a_restart() -> None:
    driver = Driver()
    reader = driver.open(0)
    driver.list_all([text_unit(10), text_unit(10)])
    reader.beat(1)
    reader.take(10)
    reader.beat(1)

    driver.stream = driver.replay()
    reader.crash()
    heir = driver.open(0, 2)
    heir.beat(2)

    assert [one.unit for one in heir.leases()] == [1]


# C48: poison.


def poison(driver: Driver, *, lo: int, hi: int, size: int) -> list[tuple[int, int]]:
    """Let readers die on each range that has poison in it; return the ranges they died on."""
    died: list[tuple[int, int]] = []
    for attempt in range(1, 60):
        if driver.now.phase != "Serving":
            return died
        reader = driver.open(0, attempt)
        while driver.now.phase == "Serving":
            reader.beat(1, mapped=(UnitMap(0, (size,), size),))
            (lease,) = reader.leases()
            if lease.position <= lo < lease.hi:
                # Everything before the poison was taken, as far as the window goes.
                if lease.lo < lo and lo - lease.lo > 10:
                    reader.take(lo - lease.lo - 5)
                    reader.beat(0)
                died.append((lease.lo, lease.hi))
                reader.crash()
                break
            reader.take(1 << 40)
            reader.beat(0)
    return died


def test_c48_a_poison_record_fails_the_job_by_default() -> None:
    driver = Driver()
    driver.list_all([rows_unit()])

    died = poison(driver, lo=40, hi=41, size=100)

    assert driver.now.phase == "Failed"
    (failed,) = driver.told_of(StreamFailed)
    assert isinstance(failed, StreamFailed)
    assert "/data/part.parquet rows 40-41" in failed.message
    assert died[-1] == (40, 41)


def test_c48_with_dead_letters_the_poison_is_halved_down_to_one_record_and_listed() -> None:
    driver = Driver(stream_spec(on_bad="deadLetter", bad_rows=-1))
    driver.list_all([rows_unit()])

    poison(driver, lo=40, hi=41, size=100)

    assert driver.told_of(StreamFinished) == [StreamFinished("clicks", 99, 1)]
    (dead,) = ledger.tasks(driver.now, "dead")
    assert (dead.lo, dead.hi, dead.kind) == (40, 41, "struckOut")
    assert "worker-0/" in dead.text
    assert ledger.verify(driver.now).dead == 1


def test_bytes_are_struck_out_by_the_mebibyte() -> None:
    driver = Driver(stream_spec(on_bad="deadLetter", bad_rows=-1))
    driver.list_all([text_unit(64 * MIB)])

    poison(driver, lo=0, hi=1, size=0)

    (dead,) = ledger.tasks(driver.now, "dead")
    assert (dead.lo, dead.hi) == (0, MIB)
    assert driver.now.phase == "Done"


def test_a_holder_that_moved_or_was_taken_away_gets_no_strike() -> None:
    """M113."""
    driver = Driver()
    driver.list_all([text_unit(100)])
    for attempt in range(1, 9):
        reader = driver.open(0, attempt)
        reader.beat(1)
        if attempt % 2:
            reader.take(1)
            reader.beat(1)
            reader.crash()
        else:
            reader.crash(was_own_fault=False)

    assert driver.now.strike_count == 0
    assert driver.now.phase == "Serving"


def test_only_the_oldest_lease_of_a_dead_holder_is_suspected() -> None:
    driver = Driver()
    driver.list_all([text_unit(100), text_unit(100)])
    reader = driver.open(0)
    reader.beat(2)

    reader.crash()

    suspected = [unit for unit, state in driver.now.epochs[0].units.items() if state.strikes]
    assert suspected == [0]


def test_an_unreadable_record_fails_the_stream_or_is_left_out_and_counted() -> None:
    outcomes = []
    for fields in ({}, {"on_bad": "skipRecord", "bad_rows": 1}, {"on_bad": "skipRecord"}):
        driver = Driver(stream_spec(**fields))
        reader = driver.open(0)
        driver.list_all([text_unit(100)])
        reader.beat(1)
        held = reader.obey()[0]
        bad = BadRange(held, 20, 30, "data", "not UTF-8", b"\xff")
        for _ in range(3):  # Repeated until covered, counted once.
            reader.beat(0, bad=(bad,))
        if driver.now.phase == "Serving":
            reader.take(100)
            reader.beat(0)
        outcomes.append((driver.now.phase, driver.now.consumed, driver.now.skipped))

    assert outcomes == [("Failed", 0, 10), ("Done", 90, 10), ("Failed", 0, 10)]


def test_a_file_with_other_columns_is_left_out_where_the_job_file_says_so() -> None:
    driver = Driver(stream_spec())
    reader = driver.open(0)
    driver.list_all([rows_unit(name="old.parquet"), rows_unit(name="new.parquet")])
    reader.beat(1, mapped=(UnitMap(0, (50,), 50),))
    held = reader.obey()[0]

    reader.beat(1, bad=(BadRange(held, 0, OPEN_END, "schema", "column s is missing"),))
    reader.beat(1, returned=(held,))

    assert driver.now.phase == "Serving"
    (dead,) = ledger.tasks(driver.now, "dead")
    assert (dead.kind, dead.text, driver.now.bad_count) == ("schema", "column s is missing", 0)


def test_bad_records_that_touch_are_kept_as_one_range() -> None:
    driver = Driver(stream_spec(on_bad="skipRecord", bad_rows=3))
    reader = driver.open(0)
    driver.list_all([text_unit(100)])
    reader.beat(1)
    held = reader.obey()[0]

    for lo in (20, 40, 30):
        reader.beat(0, bad=(BadRange(held, lo, lo + 10, "data", "not UTF-8"),))

    (dead,) = ledger.tasks(driver.now, "dead")
    assert (dead.lo, dead.hi, driver.now.bad_count) == (20, 50, 3)


def test_a_split_by_rows_of_text_is_refused_not_ignored() -> None:
    driver = Driver(stream_spec(split={"rows": 10}))

    driver.list_all([rows_unit(), text_unit(100, "odd.txt")])

    assert driver.now.phase == "Failed"
    assert "odd.txt is cut by bytes" in driver.now.failure


def test_what_cannot_be_counted_is_over_every_budget() -> None:
    driver = Driver(stream_spec(on_bad="skipRecord", bad_rows=1000))
    reader = driver.open(0)
    driver.list_all([rows_unit()])
    reader.beat(1)
    held = reader.obey()[0]

    reader.beat(0, bad=(BadRange(held, 0, OPEN_END, "vanished", "no such file"),))

    assert driver.now.phase == "Failed"


def test_a_file_that_cannot_be_opened_is_one_dead_letter() -> None:
    driver = Driver(stream_spec(on_bad="deadLetter", bad_rows=-1))
    reader = driver.open(0)
    driver.list_all([rows_unit(name="bad.parquet"), text_unit(10)])
    reader.beat(1)
    held = reader.obey()[0]

    reader.beat(1, bad=(BadRange(held, 0, OPEN_END, "data", "no footer"),))
    reader.beat(1, returned=(held,))
    finish(driver, reader)

    assert driver.now.phase == "Done"
    assert (driver.now.consumed, driver.now.skipped) == (10, 1)


def test_a_transient_fault_goes_elsewhere_once_then_counts_as_bad() -> None:
    driver = Driver()
    one, two = driver.open(0), driver.open(1)
    driver.list_all([text_unit(100)])
    one.beat(1)
    one.take(30)
    held = one.held[min(one.held)]

    one.beat(0, bad=(BadRange(held, 40, 100, "transient", "timeout"),))

    assert [(lease.lo, lease.hi) for lease in one.leases()] == [(0, 40)]
    two.beat(1)
    (other,) = two.obey()
    assert (other.lo, other.hi) == (40, 100)
    two.beat(0, bad=(BadRange(other, 40, 100, "transient", "timeout"),))
    assert driver.now.phase == "Failed"


# Sizes that are known only once a unit was opened.


def test_a_unit_of_unknown_size_is_leased_to_its_end_and_narrowed_by_its_map() -> None:
    driver = Driver()
    reader = driver.open(0)
    driver.list_all([rows_unit()])
    reader.beat(1)
    assert reader.leases()[0].hi == OPEN_END
    assert ledger.positions(driver.now).total == -1

    reader.beat(0, mapped=(UnitMap(0, (40, 80, 100), 100),))

    assert reader.leases()[0].hi == 100
    assert ledger.positions(driver.now).total == 100
    reader.take(100)
    reader.beat(0)
    assert driver.now.phase == "Done"


def test_without_a_map_a_lease_to_an_unknown_end_is_never_done() -> None:
    driver = Driver()
    reader = driver.open(0)
    driver.list_all([rows_unit()])
    reader.beat(1)
    held = reader.obey()[0]

    reader.beat(0, held=(replace(held, position=OPEN_END),))

    assert driver.now.phase == "Serving"
    assert driver.now.consumed == 0


def test_a_map_that_contradicts_what_was_taken_is_not_believed() -> None:
    driver = Driver()
    reader = driver.open(0)
    driver.list_all([rows_unit()])
    reader.beat(1)
    reader.take(50)
    reader.beat(0)

    reader.beat(0, mapped=(UnitMap(0, (10,), 10),))

    assert reader.leases()[0].hi == OPEN_END


def test_an_empty_file_is_done_by_its_map() -> None:
    driver = Driver()
    reader = driver.open(0)
    driver.list_all([rows_unit()])
    reader.beat(1)

    reader.beat(0, mapped=(UnitMap(0, (0,), 0),))
    reader.beat(0)

    assert driver.told == [StreamFinished("clicks", 0, 0)]


def test_a_split_of_rows_cuts_a_lease_that_was_given_before_the_unit_was_open() -> None:
    driver = Driver(stream_spec(split={"rows": 10}))
    reader = driver.open(0)
    driver.list_all([rows_unit()])
    reader.beat(1)

    reader.beat(0, mapped=(UnitMap(0, (100,), 100),))
    assert reader.leases()[0].trim == 10
    reader.trim(10, min(reader.held))
    reader.beat(2)

    assert [(one.lo, one.hi) for one in reader.leases()] == [(0, 10), (10, 20), (20, 30)]


def test_row_groups_are_the_cuts_of_later_grants() -> None:
    driver = Driver(stream_spec(epochs=2))
    readers = [driver.open(index) for index in range(2)]
    driver.list_all([rows_unit()])
    readers[0].beat(1)
    readers[0].beat(0, mapped=(UnitMap(0, (40, 80, 100), 100),))
    readers[0].take(100)
    readers[0].beat(0)

    readers[1].beat(1)

    (lease,) = readers[1].leases()
    assert (lease.epoch, lease.lo) == (1, 0)
    assert lease.hi in {40, 80}


# Trims.


def test_a_holder_with_much_left_is_asked_to_share_when_nothing_waits() -> None:
    driver = Driver()
    holder = driver.open(0)
    driver.list_all([text_unit(100 * MIB)])
    holder.beat(1)
    driver.at_ms += 1000
    holder.take(10 * MIB)
    holder.beat(0)
    assert holder.leases()[0].trim == -1

    idle = driver.open(1)
    idle.beat(1)

    lease = holder.leases()[0]
    assert lease.trim == 55 * MIB
    holder.trim(60 * MIB, lease.token)  # It had delivered more than that.
    holder.beat(0)
    assert holder.leases()[0].hi == 60 * MIB
    assert idle.leases()[0].lo == 60 * MIB


def test_a_holder_with_little_left_is_left_alone() -> None:
    driver = Driver()
    holder = driver.open(0)
    driver.list_all([text_unit(20 * MIB)])
    holder.beat(1)
    driver.at_ms += 1000
    holder.take(19 * MIB)
    holder.beat(0)

    driver.open(1).beat(1)

    assert [one.trim for one in holder.leases()] == [-1]


def test_a_trim_that_comes_too_late_is_forgotten() -> None:
    driver = Driver()
    holder, idle = driver.open(0), driver.open(1)
    driver.list_all([text_unit(100 * MIB)])
    holder.beat(1)
    if holder.leases()[0].hi == 100 * MIB:
        idle.beat(1)

    holder.take(100 * MIB)
    holder.beat(0)
    idle.obey()
    finish(driver, holder, idle)

    assert driver.now.phase == "Done"
    assert driver.now.trim_count == 0


def test_a_reader_may_trim_unasked_and_the_rest_waits() -> None:
    driver = Driver()
    frozen, other = driver.open(0), driver.open(1)
    driver.list_all([text_unit(100)])
    frozen.beat(1)
    frozen.trim(30, min(frozen.held))
    frozen.beat(0)

    other.beat(1)

    assert [(one.lo, one.hi) for one in other.leases()] == [(30, 100)]


def test_the_end_a_reader_trimmed_to_counts_before_its_position() -> None:
    """It trimmed, read to the new end, and died: the old end is not done."""
    driver = Driver()
    reader = driver.open(0)
    driver.list_all([text_unit(100)])
    reader.beat(1)
    held = reader.obey()[0]

    reader.end(positions=(replace(held, hi=40, position=40),), has_completed=True)

    assert [(one.lo, one.hi) for one in ledger.tasks(driver.now, "waiting")] == [(40, 100)]
    assert driver.now.consumed == 40


def test_a_hungry_reader_is_served_by_the_timer_when_the_holder_takes_nothing() -> None:
    driver = Driver()
    stuck, hungry = driver.open(0), driver.open(1)
    driver.list_all([text_unit(1000)])
    stuck.beat(1)
    hungry.beat(1)
    assert stuck.leases()[0].trim == -1  # Too little to bother, as far as known.

    driver.wait(20_000)

    assert stuck.leases()[0].trim == 500


# Readers.


def test_a_new_incarnation_frees_the_leases_of_the_older() -> None:
    driver = Driver()
    old = driver.open(0, incarnation="a")
    driver.list_all([text_unit(100)])
    old.beat(1)
    stale = old.obey()

    new = driver.open(0, incarnation="b")

    assert new.leases() == ()
    assert old.leases() == ()
    assert old.beat(1, held=stale) == "stale token"
    new.beat(1)
    assert new.leases()[0].token > stale[0].token


def test_the_end_of_a_reader_is_always_answered_with_what_is_left() -> None:
    driver = Driver()
    reader = driver.open(0)
    driver.list_all([text_unit(100)])
    reader.beat(1)
    reader.take(100)
    stranger = attempt_id(9)

    reader.end(has_completed=True)
    driver.propose(ev.ReaderEnded(stranger, (), has_completed=True, was_own_fault=False))

    assert driver.told == [
        StreamFinished("clicks", 100, 0),
        ReaderSettled(reader.attempt, "clicks", 0),
        ReaderSettled(stranger, "clicks", 0),
    ]


def test_what_is_left_is_told_or_said_not_to_be_known() -> None:
    lefts = []
    for unit in (text_unit(100), rows_unit()):
        driver = Driver()
        reader = driver.open(0)
        driver.list_all([unit])
        reader.beat(1)
        reader.take(30)
        reader.end()
        (settled,) = driver.told
        assert isinstance(settled, ReaderSettled)
        lefts.append(settled.left)

    assert lefts == [70, -1]


def test_leases_on_their_way_are_not_given_twice() -> None:
    driver = Driver()
    reader = driver.open(0)
    driver.list_all(text_unit(10) for _ in range(9))
    reader.beat(2)

    reader.beat(2, held=())  # It has not heard of them yet.

    assert len(reader.leases()) == 2


def test_the_last_units_go_to_readers_that_hold_nothing() -> None:
    driver = Driver()
    readers = [driver.open(index) for index in range(4)]
    driver.list_all(text_unit(10) for _ in range(4))

    for reader in readers:
        reader.beat(2)

    assert [len(reader.leases()) for reader in readers] == [1, 1, 1, 1]


def test_positions_never_fall_and_never_leave_the_lease() -> None:
    driver = Driver()
    reader = driver.open(0)
    driver.list_all([text_unit(100), text_unit(100)])
    reader.beat(1)
    held = reader.obey()[0]
    reader.beat(0, held=(replace(held, position=60),))

    for position, hi in ((10, 100), (-5, 100), (60, 50), (70, 20), (500, 100)):
        reader.beat(0, held=(replace(held, position=position, hi=hi),))

    lease = reader.leases()[0]
    assert (lease.position, lease.hi) == (60, 100)
    reader.beat(0, held=(replace(held, position=500, hi=500),))
    assert driver.now.consumed == 100


@pytest.mark.parametrize("field", ["epoch", "unit", "lo"])
def test_a_token_counts_only_for_its_own_task(field: str) -> None:
    driver = Driver()
    reader = driver.open(0)
    driver.list_all([text_unit(100)])
    reader.beat(1)
    held = reader.obey()[0]

    reader.beat(0, held=(replace(held, position=50, **{field: 1}),))

    assert driver.now.consumed == 0


def test_a_report_without_news_changes_nothing() -> None:
    driver = Driver()
    reader = driver.open(0)
    driver.list_all([text_unit(100)])
    reader.beat(1)
    reader.take(5)
    reader.beat(0, rows_per_s=7)
    before = driver.now

    reason = reader.beat(0, rows_per_s=9000)

    assert reason == "already so"
    assert driver.now is before


def test_orders_bring_a_unit_until_its_reader_has_shown_that_it_has_it() -> None:
    driver = Driver()
    reader = driver.open(0)
    driver.list_all([text_unit(100)])
    reader.beat(1)
    first = reader.leases()[0].body

    reader.take(1)
    reader.beat(0, rows_per_s=50)

    assert first == text_unit(100)
    assert reader.leases()[0].body is None
    assert reader.orders().window_rows == 500
    assert reader.orders().state == "serve"


# Epochs.


def test_epochs_follow_each_other_and_each_counts_all() -> None:
    """M082."""
    driver = Driver(stream_spec(epochs=3))
    one, two = driver.open(0), driver.open(1)
    driver.list_all([text_unit(10), text_unit(10), text_unit(10)])

    finish(driver, one, two, step=3)

    ended = [event for _, _, event in driver.records if isinstance(event, ev.EpochEnded)]
    assert ended == [ev.EpochEnded(number, 30, 0) for number in range(3)]
    assert driver.told == [StreamFinished("clicks", 90, 0)]


def test_the_next_epoch_begins_while_a_straggler_holds_this_one_and_a_third_does_not() -> None:
    driver = Driver(stream_spec(epochs=5))
    straggler, other = driver.open(0), driver.open(1)
    driver.list_all([text_unit(10), text_unit(10)])
    straggler.beat(1)
    seen = []

    for _ in range(9):
        other.beat(1)
        if not other.held:
            break
        seen.append((other.leases()[0].epoch, other.leases()[0].unit))
        other.take(10)
        other.beat(0)

    assert seen == [(0, 1), (1, 0), (1, 1)]
    assert other.orders().state == "wait"


def test_an_epoch_that_does_not_add_up_fails_the_stream() -> None:
    driver = Driver(checks=False)
    reader = driver.open(0)
    driver.list_all([text_unit(10)])
    reader.beat(1)
    driver.stream = replace(driver.now, known=11)

    reader.take(10)
    reader.beat(0)

    assert driver.now.phase == "Failed"
    assert "does not add up" in driver.now.failure


# People.


def test_pause_grants_nothing_and_resume_goes_on() -> None:
    driver = Driver()
    reader = driver.open(0)
    driver.list_all([text_unit(10)])
    driver.propose(ev.PauseRequested())
    reader.beat(1)
    assert (reader.leases(), reader.orders().state) == ((), "paused")
    assert driver.propose(ev.PauseRequested()) == "already so"

    driver.propose(ev.PauseRequested(for_suspension=True))
    driver.propose(ev.ResumeRequested())
    assert reader.leases() == ()
    driver.propose(ev.ResumeRequested(for_suspension=True))

    assert len(reader.leases()) == 1


def test_a_person_skips_a_task_that_is_held_and_takes_it_back() -> None:
    driver = Driver()
    reader = driver.open(0)
    driver.list_all([text_unit(100)])
    reader.beat(1)
    reader.take(40)
    reader.beat(0)

    driver.propose(ev.TaskSkipRequested(0, 0, 50, "known to be wrong"), by="uid:1000 (ann)")
    assert driver.now.phase == "Done"
    assert reader.leases() == ()
    (dead,) = ledger.tasks(driver.now, "dead")
    assert (dead.lo, dead.hi, dead.by, dead.text) == (
        40,
        100,
        "uid:1000 (ann)",
        "known to be wrong",
    )
    driver.propose(ev.TaskRetryRequested(0, 0, 40))

    assert driver.told == [StreamFinished("clicks", 40, 60), StreamReopened("clicks")]
    finish(driver, reader)
    assert driver.told[-1] == StreamFinished("clicks", 100, 0)


def test_a_task_that_is_done_cannot_be_skipped_nor_one_that_is_not_dead_retried() -> None:
    driver = Driver()
    reader = driver.open(0)
    driver.list_all([text_unit(10), text_unit(10)])
    reader.beat(1)
    reader.take(10)
    reader.beat(0)

    for event in (
        ev.TaskSkipRequested(0, 0, 3, ""),
        ev.TaskSkipRequested(7, 0, 3, ""),
        ev.TaskSkipRequested(0, 99, 3, ""),
        ev.TaskRetryRequested(0, 0, 0),
        ev.TaskRetryRequested(3, 1, 0),
    ):
        with pytest.raises(NotFoundError):
            driver.propose(event)
    assert driver.propose(ev.TaskRetryRequested(0, 1, 0)) == "stale token"


def test_a_savepoint_restores_positions_for_any_readers_and_makes_older_messages_stale() -> None:
    driver = Driver(stream_spec(epochs=2))
    reader = driver.open(0)
    driver.list_all([text_unit(100), rows_unit()])
    reader.beat(2)
    reader.take(30)
    reader.beat(0)
    driver.propose(ev.SavepointRequested("s"))
    reader.take(70)
    reader.beat(0)
    reader.beat(0, mapped=(UnitMap(1, (50,), 50),))
    held = reader.obey()

    driver.propose(ev.RestoreRequested("s"))

    assert driver.now.consumed == 30
    assert driver.now.generation == 2
    assert reader.beat(0, held=held) == "stale token"
    finish(driver, reader, driver.open(1), driver.open(2))
    assert driver.told[-1] == StreamFinished("clicks", 300, 0)
    with pytest.raises(NotFoundError):
        driver.propose(ev.RestoreRequested("other"))


# Listing.


def test_listing_is_planned_until_it_is_complete_and_again_after_a_failure() -> None:
    """M086."""
    driver = Driver()
    assert ledger.plan(driver.now) == (ListUnits(JOB, "clicks", 0),)
    driver.propose(ev.ListingFailed("host is down", is_permanent=False))
    assert ledger.plan(driver.now) == ()
    assert driver.now.waiting_for == ("host is down",)

    driver.wait(1_000)
    assert ledger.plan(driver.now) == (ListUnits(JOB, "clicks", 0),)
    driver.list_all([text_unit(1)], is_complete=False)
    assert ledger.plan(driver.now) == (ListUnits(JOB, "clicks", 1),)
    driver.propose(ev.PauseRequested())
    assert ledger.plan(driver.now) == ()
    driver.propose(ev.ResumeRequested())
    driver.list_all([])

    assert ledger.plan(driver.now) == ()


def test_m086_what_can_never_be_listed_fails_the_stream_by_name() -> None:
    driver = Driver()

    driver.propose(ev.ListingFailed("/d/a.txt: no such file", is_permanent=True))

    assert driver.now.phase == "Failed"
    assert driver.told == [StreamFailed("clicks", "/d/a.txt: no such file")]
    assert ledger.plan(driver.now) == ()


def test_units_that_are_known_are_not_listed_twice() -> None:
    driver = Driver()
    driver.list_all([text_unit(1, "a"), text_unit(2, "b")], is_complete=False)

    repeat = ev.UnitsListed((text_unit(1, "a"), text_unit(2, "b")), 0, is_complete=False)
    longer = ev.UnitsListed((text_unit(2, "b"), text_unit(3, "c")), 1, is_complete=True)
    beyond = ev.UnitsListed((text_unit(9, "z"),), 5, is_complete=True)

    assert driver.propose(repeat) == "repeat"
    assert driver.propose(beyond) == "repeat"
    assert driver.propose(longer) == ""
    assert [entry.unit.location for entry in driver.now.units] == ["/data/a", "/data/b", "/data/c"]


def test_events_before_the_stream_was_declared_are_refused() -> None:
    driver = Driver()
    driver.stream = None

    with pytest.raises(PhaseConflictError):
        driver.propose(ev.BeatReceived(attempt_id(0), "a", FeedReport("clicks", (), 1)))


# As the daemon keeps it.


def test_a_stream_comes_back_from_its_snapshot_as_it_was() -> None:
    driver = Driver(stream_spec(on_bad="deadLetter", bad_rows=-1, epochs=2))
    readers = [driver.open(index) for index in range(3)]
    driver.list_all([text_unit(100), rows_unit(), text_unit(9)])
    for reader in readers:
        reader.beat(2)
        reader.take(5)
        reader.beat(2)
    driver.propose(ev.SavepointRequested("s"))
    driver.propose(ev.TaskSkipRequested(0, 2, 8, "test"))
    key = f"{JOB}/clicks"

    parts = {
        name.partition("#")[2]: body
        for name, body in encode_parts(key, driver.now)
        if body is not None
    }

    assert decode_machine(key, parts) == driver.now


def test_a_beat_of_one_of_many_readers_copies_one_shard_and_looks_through_no_unit() -> None:
    driver = Driver(stream_spec(split={"byte_count": 100}), checks=False)
    driver.list_all(text_unit(1000, f"{n}.txt") for n in range(300))
    readers = [driver.open(index) for index in range(300)]
    for reader in readers:
        reader.beat(2)
    before = driver.now

    readers[150].take(10)
    readers[150].beat(0)

    after = driver.now
    changed = [a is not b for a, b in zip(before.reader_shards, after.reader_shards, strict=True)]
    assert sum(changed) == 1
    assert after.units is before.units
    assert after.epochs[0].unit_shards is before.epochs[0].unit_shards
    assert after.hungry is before.hungry


def test_a_stream_without_rows_is_closed_for_good_and_leaves_its_positions() -> None:
    """It ended anew with each event, after its close too, so nobody kept its positions."""
    driver = Driver(stream_spec(staging="/keep"))
    driver.propose(ev.PositionsCarried((), 0, is_complete=True))
    driver.list_all([])
    reader = driver.open(0)
    reader.end(has_completed=True)

    driver.propose(ev.StreamClosed())

    assert driver.now.phase == "Closed"
    assert ledger.plan(driver.now) == (KeepPositions(JOB, "clicks"),)
    driver.propose(ev.PositionsKept())
    assert ledger.plan(driver.now) == ()
    assert driver.replay() == driver.now
