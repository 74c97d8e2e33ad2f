"""Who is in an exactlyOnce group, what a step waits for, and what it must not wait for."""

from msgspec.structs import replace

from primusd.datafeed.ledger import events as ev
from primusd.datafeed.ledger import marking
from primusd.datafeed.protocol import FeedOrders
from primusd.datafeed.reader.pledges import Pledges
from primusd.job.events import GroupLeaseLost
from tests.datafeed.ledger_driver import Driver, Reader, stream_spec, text_unit


def group(*, byte_count: int = 400, piece: int = 100, **fields: object) -> Driver:
    driver = Driver(stream_spec(delivery="exactlyOnce", split={"byte_count": piece}, **fields))
    driver.list_all([text_unit(byte_count)])
    return driver


def taking(driver: Driver, reader: Reader, count: int) -> None:
    """Let a reader's trainer open the stream and take some rows."""
    assert reader.ask("restore", driver.now.restored) == ""
    reader.beat(1)
    reader.take(count)
    reader.beat()


# Who has to mark.


def test_no_step_is_whole_before_every_trainer_has_opened_the_stream_and_marked_it() -> None:
    """M122: one that starts later has its rows in the model of that step too."""
    driver = group()
    first, second = driver.open(0), driver.open(1)
    taking(driver, first, 30)
    first.beat(marks=(first.mark(5),))
    early = driver.now.sealed
    taking(driver, second, 20)

    second.beat(marks=(second.mark(5),))

    assert early == (-1, "")
    assert driver.now.sealed == (5, "step-5-g1")
    assert driver.now.savepoints[0].done == 50
    assert driver.replay() == driver.now


def test_a_trainer_that_ended_before_it_opened_the_stream_is_waited_for_no_more() -> None:
    driver = group()
    first, second = driver.open(0), driver.open(1)
    taking(driver, first, 30)
    first.beat(marks=(first.mark(5),))

    second.end(has_completed=True)

    assert driver.now.sealed == (5, "step-5-g1")


def test_who_has_not_opened_the_stream_after_a_minute_reads_nothing_of_it() -> None:
    """Else its rows would be in a model and not in the savepoint."""
    driver = group()
    first, second = driver.open(0), driver.open(1)
    taking(driver, first, 30)
    first.beat(marks=(first.mark(5),))

    driver.wait(marking.MARKING_MS)
    first.beat(marks=(first.mark(6),))

    assert driver.now.sealed == (6, "step-6-g1")
    told = [one.message for one in driver.now.moments if one.reason == "WentOnWithout"]
    assert len(told) == 1
    assert "worker-1/1" in told[0]
    assert "goes on without it" in second.ask("restore", "", want=1)
    assert second.leases() == ()
    assert not driver.told_of(GroupLeaseLost)


def test_before_anybody_took_rows_a_late_trainer_may_still_join() -> None:
    """A checkpoint of step 0 is written before the others are up."""
    driver = group()
    first, second = driver.open(0), driver.open(1)
    assert first.ask("restore", "") == ""
    first.beat(marks=(first.mark(0),))
    driver.wait(marking.MARKING_MS)

    taking(driver, second, 20)

    assert driver.now.sealed == (0, "step-0-g1")
    assert driver.now.consumed == 20


def test_who_opens_the_stream_late_has_a_minute_of_its_own() -> None:
    driver = group()
    first, second = driver.open(0), driver.open(1)
    taking(driver, first, 30)
    first.beat(marks=(first.mark(5),))
    driver.wait(marking.MARKING_MS - 1_000)
    taking(driver, second, 20)

    driver.wait(marking.MARKING_MS - 1_000)
    second.beat(marks=(second.mark(5),))

    assert driver.now.sealed == (5, "step-5-g1")


def test_a_time_without_a_daemon_is_no_time_to_mark_in() -> None:
    driver = group()
    first, second = driver.open(0), driver.open(1)
    taking(driver, first, 30)
    taking(driver, second, 20)
    first.beat(marks=(first.mark(5),))
    driver.at_ms += 10 * marking.MARKING_MS

    driver.wait(marking.MARKING_MS // 2)
    waiting = driver.now.markings
    driver.wait(marking.MARKING_MS)

    assert len(waiting) == 1
    assert driver.now.unsealed[0] == 5
    assert "worker-1/1" in driver.now.unsealed[1]


def test_a_mark_that_no_report_told_is_in_the_step_when_its_trainer_completes() -> None:
    """It marked, took more rows and ended with 0 within one report: the model has not got those."""
    driver = group()
    first, second = driver.open(0), driver.open(1)
    taking(driver, first, 30)
    taking(driver, second, 20)
    mark = second.mark(5)
    second.take(60)

    second.end(has_completed=True, marks=(mark,))
    first.beat(marks=(first.mark(5),))

    assert driver.now.sealed == (5, "step-5-g1")
    assert driver.now.savepoints[0].done == 50
    assert driver.now.consumed == 110
    assert driver.replay() == driver.now


def test_a_mark_that_was_told_before_is_not_heard_again_at_the_end() -> None:
    driver = group()
    first, second = driver.open(0), driver.open(1)
    taking(driver, first, 30)
    taking(driver, second, 20)
    mark = second.mark(5)
    second.beat(marks=(mark,))
    second.take(60)
    second.beat()

    second.end(has_completed=True, marks=(mark, second.mark(6)))
    first.beat(marks=(first.mark(5),))
    first.take(10)
    first.beat(marks=(first.mark(6),))

    assert driver.now.sealed == (6, "step-6-g1")
    assert [one.done for one in driver.now.savepoints] == [50, 120]


# Rows that are left.


def test_who_has_no_rows_to_come_to_a_step_with_is_in_it_with_all_it_took() -> None:
    """It waits for the end of the stream, and the end waited for its mark, for a minute."""
    driver = group(byte_count=300)
    first, second = driver.open(0), driver.open(1)
    taking(driver, first, 30)
    taking(driver, second, 100)
    mark = first.mark(5)
    first.take(70)
    first.beat(1, marks=(mark,))
    first.take(100)
    first.beat(1)

    assert driver.now.phase == "Done"
    assert driver.now.sealed == (5, "step-5-g1")
    assert driver.now.savepoints[0].done == 130
    assert second.orders().state == "end"
    assert driver.replay() == driver.now


def test_the_next_pass_begins_while_this_one_is_open_for_marks_alone() -> None:
    """Else who has not come to the step would get no rows to come to it with."""
    driver = group(byte_count=100, epochs=5)
    first, second = driver.open(0), driver.open(1)
    taking(driver, first, 30)
    taking(driver, second, 0)
    mark = first.mark(5)
    for _ in range(3):
        first.take(100)
        first.beat(1, marks=(mark,))
    begun = driver.now.epochs_begun
    second.beat(1)
    second.take(50)

    second.beat(marks=(second.mark(5),))

    assert begun > 2
    assert driver.now.sealed == (5, "step-5-g1")
    assert driver.now.savepoints[0].done == 30 + sum(one.position for one in second.obey())


def waiting_for(driver: Driver, *, takes: int) -> tuple[Reader, Reader]:
    """Return one that asked far ahead and stands still, and one that has nothing left."""
    first, second = driver.open(0), driver.open(1)
    taking(driver, first, takes)
    second.beat(1)
    first.beat(20)
    driver.wait(500)
    second.take(100)
    second.beat(2)
    return first, second


def test_who_waits_for_another_gives_up_leases_that_it_has_not_begun() -> None:
    """Each is too small to be cut, but together they are what the other needs to go on."""
    driver = group(byte_count=1_000)
    first, second = waiting_for(driver, takes=90)
    assert (len(first.leases()), second.leases()) == (9, ())

    driver.wait(3_000)
    for lease in first.leases():
        if lease.trim >= 0:
            assert lease.trim == lease.position == lease.lo
            first.trim(lease.trim, lease.token)
    first.beat()

    assert len(second.leases()) == 2
    assert driver.now.consumed == 190
    assert driver.replay() == driver.now


def test_who_does_not_answer_is_asked_for_other_leases_by_and_by() -> None:
    """What its trainer has in hand it cannot give."""
    driver = group(byte_count=1_000)
    first, second = waiting_for(driver, takes=90)
    driver.wait(3_000)
    before = {one.token for one in first.leases() if one.trim >= 0}

    second.beat(2)
    driver.wait(20_000)

    asked = {one.token for one in first.leases() if one.trim >= 0}
    assert before < asked
    assert first.leases()[0].trim < 0


def test_one_lease_of_a_holder_that_stands_still_is_cut_however_short_it_is() -> None:
    driver = group(byte_count=200, piece=190)
    first, second = driver.open(0), driver.open(1)
    taking(driver, first, 100)
    taking(driver, second, 0)
    driver.wait(500)
    first.take(20)
    first.beat()
    second.take(10)
    second.beat(1)

    driver.wait(10_000)

    (lease,) = first.leases()
    assert 120 < lease.trim < 190


# What came twice.


def killed_in_hand(driver: Driver) -> tuple[Reader, Reader]:
    """Return a reader whose trainer hung up with rows in its hands, and another."""
    first, second = driver.open(0), driver.open(1)
    taking(driver, first, 30)
    taking(driver, second, 20)
    (held,) = first.obey()
    first.beat(0, held=(), returned=(replace(held, delivered=80),))
    return first, second


def test_what_a_killed_trainer_had_in_hand_is_not_told_as_repeated() -> None:
    """Its connection ends before anybody knows that it does, and its group goes back."""
    driver = group()
    first, _ = killed_in_hand(driver)
    first.crash()
    again, also = driver.open(0, 2), driver.open(1, 2)

    assert again.ask("restore", "", want=1) == ""
    assert also.ask("restore", "") == ""

    assert driver.now.repeated == 0
    assert driver.now.rewound == 50


def test_what_a_trainer_gave_back_and_reads_again_is_told_as_repeated() -> None:
    driver = group()
    first, _ = killed_in_hand(driver)

    first.beat(1)

    assert driver.now.repeated == 50


def test_what_came_twice_after_a_savepoint_is_gone_with_it() -> None:
    driver = group()
    first, second = killed_in_hand(driver)
    first.beat(marks=(first.mark(1),))
    second.beat(marks=(second.mark(1),))
    first.beat(1)
    second.crash()
    again = driver.open(0, 2)

    assert again.ask("restore", "step-1-g1") == ""

    assert driver.now.repeated == 0


# The next group.


def test_a_group_that_restarts_after_all_who_read_completed_begins_anew() -> None:
    """One of them had not opened the stream, and failed: nothing was lost, but the model is."""
    driver = group(byte_count=100)
    first, second = driver.open(0), driver.open(1)
    taking(driver, first, 100)
    first.beat(1)
    first.end(has_completed=True)
    second.crash()
    assert driver.now.phase == "Done"

    again, also = driver.open(0, 2), driver.open(1, 2)
    waits = again.orders().state
    assert again.ask("restore", "", want=1) == ""
    assert also.ask("restore", "") == ""

    assert waits == "wait"
    assert driver.now.phase == "Serving"
    assert [(one.lo, one.hi) for one in again.leases()] == [(0, 100)]
    assert not driver.told_of(GroupLeaseLost)
    assert driver.replay() == driver.now


def test_steps_that_are_only_marked_push_no_savepoint_of_a_checkpoint_out() -> None:
    """M123: checkpoints are rarer than marks."""
    driver = group(savepoints_keep=2)
    reader = driver.open(0)
    taking(driver, reader, 10)
    for step in range(8):
        reader.beat(marks=(reader.mark(step),))
        if step in {0, 2, 4}:
            assert driver.propose(ev.CheckpointKept(f"step-{step}-g1")) == ""

    names = [one.name for one in driver.now.savepoints]

    assert names == [f"step-{step}-g1" for step in (2, 4, 6, 7)]
    assert driver.propose(ev.CheckpointKept("step-4-g1")) != ""
    assert driver.propose(ev.CheckpointKept("elsewhere")) != ""


# What a trainer hears of a step.


def test_each_step_has_its_word_however_many_came_after_it() -> None:
    """Orders that are not heard are no longer sent: the next have it all."""
    pledges = Pledges()
    for step in (1, 2, 3, 4, 5):
        pledges.mark(step, ())
    orders = FeedOrders("rows", (), "serve", 0)

    pledges.obey(
        replace(
            orders,
            sealed=(4, "four"),
            unsealed=(3, "worker-1 did not mark it"),
            marked=((2, "two"), (4, "four")),
        )
    )

    words = [pledges.word_on(step) for step in (1, 2, 3, 4, 5)]
    assert words[1:] == [("two", ""), ("", "worker-1 did not mark it"), ("four", ""), None]
    assert words[0] is not None
    assert words[0][0] == ""


def test_orders_name_the_last_steps_that_were_sealed() -> None:
    driver = group()
    reader = driver.open(0)
    taking(driver, reader, 10)
    for step in (1, 2):
        reader.beat(marks=(reader.mark(step),))

    assert reader.orders().marked == ((1, "step-1-g1"), (2, "step-2-g1"))
