"""The reader's state: whatever is lost, revoked, trimmed or slow, no row is lost or told early."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.grantor import Grantor
from primusd.datafeed.protocol import BadRange, FeedOrders, Lease, Unit, UnitMap
from primusd.datafeed.reader.state import IDLE_S, ReaderState
from tests.datafeed.reader_world import (
    FAULTS,
    TTL_S,
    Counting,
    Life,
    World,
    opened,
    programs,
)

FILE = Unit("file", "/data/a.txt", 100, "1", {"format": "text"})
TABLE = Unit("file", "/data/a.parquet", 5_000, "1", {"format": "parquet"})


def lease(token: int = 1, lo: int = 0, hi: int = 100, **other: int) -> Lease:
    return Lease(
        other.get("epoch", 0), other.get("unit", 0), lo, hi, token,
        other.get("position", lo), other.get("trim", -1), FILE,
    )  # fmt: skip


def orders(*leases: Lease, state: str = "serve", window_rows: int = 0) -> FeedOrders:
    return FeedOrders("clicks", leases, state, window_rows)


def obey(state: ReaderState, *leases: Lease, sent_at: float = 0.0, window_rows: int = 0) -> None:
    state.obey(orders(*leases, window_rows=window_rows), sent_at=sent_at, ttl_s=TTL_S)


def deliver(state: ReaderState, token: int, lo: int, hi: int, now: float = 1.0) -> None:
    """Hand over rows of one position each."""
    state.was_read(token, hi)
    assert state.may_deliver(token, now)
    state.deliver(
        token, lo=lo, hi=hi, size=hi - lo, row_count=hi - lo, locate=lambda n: lo + n, now=now
    )


# One rule at a time.


def test_a_position_is_what_was_taken_and_not_what_was_handed_over() -> None:
    """C53."""
    state = opened()
    obey(state, lease())

    deliver(state, 1, 0, 40)
    state.take(7, now=2.0)

    (held,) = state.report(buffered_bytes=0, now=2.0).held
    assert (held.position, held.hi) == (7, 100)


def test_a_done_lease_is_told_until_the_daemon_has_heard_it() -> None:
    state = opened()
    obey(state, lease(hi=10))
    deliver(state, 1, 0, 10)
    state.take(10, now=1.0)

    first = state.report(buffered_bytes=0, now=1.0)
    obey(state, lease(hi=10))
    second = state.report(buffered_bytes=0, now=1.0)
    obey(state)
    third = state.report(buffered_bytes=0, now=1.0)

    assert [held.position for held in first.held] == [10]
    assert second.held == first.held
    assert third.held == ()


def test_a_lease_that_orders_lack_is_revoked_and_nothing_of_it_is_delivered() -> None:
    state = opened()
    obey(state, lease(1), lease(2, lo=100, hi=200))

    obey(state, lease(2, lo=100, hi=200))

    assert state.may_deliver(1, 1.0) is None
    assert state.may_deliver(2, 1.0) is True
    assert [held.token for held in state.report(buffered_bytes=0, now=1.0).held] == [2]


def test_taking_rows_of_a_revoked_lease_moves_no_position() -> None:
    """C49: rows of another's lease complete nothing."""
    state = opened()
    obey(state, lease(1))
    deliver(state, 1, 0, 40)
    obey(state, lease(2, lo=100, hi=200))
    deliver(state, 2, 100, 110)

    state.take(45, now=2.0)

    (held,) = state.report(buffered_bytes=0, now=2.0).held
    assert (held.token, held.position) == (2, 105)


def test_nothing_is_delivered_after_the_deadline_until_orders_renew_it() -> None:
    state = opened()
    obey(state, lease(), sent_at=10.0)

    assert state.may_deliver(1, 36.9) is True
    assert state.may_deliver(1, 37.0) is False

    obey(state, lease(), sent_at=36.0)

    assert state.may_deliver(1, 37.0) is True


def test_orders_that_answer_an_older_report_do_not_shorten_a_deadline() -> None:
    state = opened()
    obey(state, lease(), sent_at=20.0)
    obey(state, lease(), sent_at=10.0)

    assert state.may_deliver(1, 46.0) is True


def test_a_trim_ends_at_what_was_asked_or_at_what_was_delivered() -> None:
    state = opened()
    obey(state, lease(1), lease(2, lo=100, hi=200))
    deliver(state, 1, 0, 60)

    obey(state, lease(1, trim=50), lease(2, lo=100, hi=200, trim=130))

    first, second = state.report(buffered_bytes=0, now=1.0).held
    assert (first.hi, second.hi) == (60, 130)


def test_a_trim_below_all_that_was_delivered_changes_nothing() -> None:
    state = opened()
    obey(state, lease(hi=60))
    deliver(state, 1, 0, 60)

    obey(state, lease(hi=60, trim=50))

    assert [held.hi for held in state.report(buffered_bytes=0, now=1.0).held] == [60]


def test_where_pieces_go_whole_a_trim_spares_what_was_read() -> None:
    state = ReaderState("clicks", memory_bytes=1 << 20, keeps_read=True)
    state.is_open = True
    obey(state, lease())
    state.was_read(1, 70)

    obey(state, lease(trim=50))

    assert [held.hi for held in state.report(buffered_bytes=0, now=1.0).held] == [70]


def test_an_old_wish_to_end_later_is_not_granted() -> None:
    state = opened()
    obey(state, lease(trim=30))
    obey(state, lease())

    assert [held.hi for held in state.report(buffered_bytes=0, now=1.0).held] == [30]


def test_leases_are_read_by_epoch_then_unit_then_place() -> None:
    state = opened()
    obey(
        state,
        lease(1, lo=50, unit=0, epoch=1),
        lease(2, lo=50, unit=1),
        lease(3, lo=10, unit=1),
        lease(4, lo=90, unit=0),
    )

    found = []
    while (holding := state.next_to_read()) is not None:
        found.append(holding.lease.token)
        state.was_read(holding.lease.token, holding.hi)

    assert found == [4, 3, 2, 1]


def test_partitions_are_read_as_they_were_granted_so_that_none_waits_for_ever() -> None:
    state = opened()
    body = Unit("kafka", "clicks/0", 0, "")
    busy = Lease(0, 0, 50, 60, 3, 50, body=body)
    slow = Lease(0, 7, 0, 9, 2, 0, body=body)

    obey(state, busy, slow)
    first = state.next_to_read()
    state.was_read(2, 9)
    second = state.next_to_read()

    assert first is not None
    assert second is not None
    assert (first.lease.unit, second.lease.unit) == (7, 0)


def test_a_lease_without_a_known_body_is_not_held_so_that_its_body_comes() -> None:
    state = opened()
    bare = Lease(0, 7, 0, 10, 1, 0)

    obey(state, bare)

    assert state.report(buffered_bytes=0, now=1.0).held == ()

    obey(state, Lease(0, 7, 0, 10, 1, 0, -1, FILE))
    obey(state, bare)

    assert len(state.report(buffered_bytes=0, now=1.0).held) == 1


def test_opening_a_unit_ends_its_lease_and_tells_its_map_until_it_is_heard() -> None:
    state = opened()
    state.obey(orders(Lease(0, 3, 0, 1 << 62, 1, 0, -1, TABLE)), sent_at=0.0, ttl_s=TTL_S)

    state.opened(3, cuts=(10, 25), row_count=25)
    first = state.report(buffered_bytes=0, now=1.0)
    obey_open = Lease(0, 3, 0, 25, 1, 0, -1, TABLE)
    state.obey(orders(obey_open), sent_at=0.5, ttl_s=TTL_S)
    second = state.report(buffered_bytes=0, now=2.0)
    state.obey(orders(obey_open), sent_at=2.0, ttl_s=TTL_S)
    third = state.report(buffered_bytes=0, now=3.0)

    assert first.mapped == (UnitMap(3, (10, 25), 25),)
    assert first.held[0].hi == 25
    assert second.mapped == first.mapped
    assert third.mapped == ()


def test_a_bad_range_is_told_until_an_answer_covers_it() -> None:
    state = opened()
    obey(state, lease())
    held = state.report(buffered_bytes=0, now=0.0).held[0]
    bad = BadRange(held, 0, 10, "data", "cannot be read")
    state.was_bad(bad)

    assert state.is_urgent
    assert state.report(buffered_bytes=0, now=1.0).bad == (bad,)
    obey(state, lease(), sent_at=0.5)
    assert state.report(buffered_bytes=0, now=2.0).bad == (bad,)
    obey(state, lease(), sent_at=2.0)
    assert state.report(buffered_bytes=0, now=3.0).bad == ()


def test_a_transient_fault_stops_its_lease_and_no_other() -> None:
    state = opened()
    obey(state, lease(1), lease(2, lo=100, hi=200))
    held = state.report(buffered_bytes=0, now=0.0).held[0]

    state.was_bad(BadRange(held, 0, 100, "transient", "does not answer"))

    holding = state.next_to_read()
    assert holding is not None
    assert holding.lease.token == 2


def test_delivery_stops_at_the_window_and_goes_on_with_the_acknowledgement() -> None:
    state = opened()
    obey(state, lease(), window_rows=20)
    deliver(state, 1, 0, 30)

    state.take(9, now=1.0)
    assert state.may_deliver(1, 1.0) is True
    state.report(buffered_bytes=0, now=1.0)
    state.take(10, now=1.0)
    assert state.is_urgent, "half of the window asks for a report"

    state.take(20, now=1.0)
    assert state.may_deliver(1, 1.0) is False

    obey(state, lease(position=15), window_rows=20)
    assert state.may_deliver(1, 1.0) is True


def test_a_paused_stream_keeps_its_leases_and_delivers_nothing() -> None:
    state = opened()
    state.obey(orders(lease(), state="paused"), sent_at=0.0, ttl_s=TTL_S)

    assert state.may_deliver(1, 1.0) is False
    assert len(state.report(buffered_bytes=0, now=1.0).held) == 1


def test_a_frozen_trainer_gives_back_what_it_was_not_handed() -> None:
    state = opened()
    obey(state, lease(1), lease(2, lo=100, hi=200))
    deliver(state, 1, 0, 40, now=10.0)
    state.take(5, now=11.0)

    state.note_idle(11.0 + IDLE_S)
    assert state.report(buffered_bytes=0, now=71.0).returned == ()

    state.note_idle(11.1 + IDLE_S)
    found = state.report(buffered_bytes=0, now=72.0)

    assert [(held.token, held.position) for held in found.returned] == [(2, 100)]
    assert [(held.token, held.position, held.hi) for held in found.held] == [(1, 5, 40)]
    assert found.want == 0

    state.take(40, now=80.0)
    assert state.report(buffered_bytes=0, now=80.0).want > 0, "it woke up"


def test_what_is_granted_to_a_trainer_that_closed_its_stream_goes_back_at_once() -> None:
    """The grant crossed its word; whoever waits for these rows would wait for its end."""
    state = opened()
    obey(state, lease(1))
    assert state.report(buffered_bytes=0, now=1.0).want > 0

    state.give_back_all()
    obey(state, lease(1), lease(2, lo=100, hi=200))
    found = state.report(buffered_bytes=0, now=2.0)

    assert found.held == ()
    assert [(held.token, held.position) for held in found.returned] == [(1, 0), (2, 100)]
    assert found.want == 0


def test_a_stream_that_was_closed_after_a_long_pause_delivers_when_it_is_opened_again() -> None:
    state = opened()
    obey(state, lease(1))
    deliver(state, 1, 0, 40, now=10.0)
    state.note_idle(10.1 + IDLE_S)
    assert state.report(buffered_bytes=0, now=71.0).want == 0

    state.give_back_all()
    state.is_open = True
    assert state.report(buffered_bytes=0, now=72.0).want > 0
    state.obey(orders(lease(2)), sent_at=72.0, ttl_s=TTL_S)

    assert state.may_deliver(2, 73.0) is True


def test_a_stop_gives_back_at_once_and_the_end_gives_back_the_rest_where_it_stands() -> None:
    state = opened()
    obey(state, lease(1), lease(2, lo=100, hi=200), lease(3, lo=200, hi=210))
    deliver(state, 1, 0, 40)
    state.is_stopping = True
    state.give_back_undelivered()
    obey(state, lease(1), lease(4, lo=300, hi=310))
    state.take(12, now=2.0)

    final = state.give_back_all()

    assert {(held.token, held.position, held.hi) for held in final} == {
        (1, 12, 40),
        (4, 300, 310),
    }
    report = state.report(buffered_bytes=0, now=2.0)
    assert report.held == ()
    assert {held.token for held in report.returned} == {1, 4}
    assert report.want == 0


def test_orders_that_were_under_way_do_not_bring_a_returned_lease_back() -> None:
    state = opened()
    obey(state, lease(1))
    deliver(state, 1, 0, 40)
    state.take(12, now=2.0)
    state.give_back_all()
    state.is_open = True

    obey(state, lease(1, position=5))

    report = state.report(buffered_bytes=0, now=2.0)
    assert report.held == ()
    assert [(held.token, held.position) for held in report.returned] == [(1, 12)]
    assert state.may_deliver(1, 2.0) is None


def test_want_counts_what_was_not_handed_over_and_what_memory_holds() -> None:
    state = opened()
    assert state.report(buffered_bytes=0, now=0.0).want == 2

    obey(state, lease(1), lease(2, lo=100, hi=200))
    assert state.report(buffered_bytes=0, now=0.0).want == 0

    state.was_read(1, 100)
    assert state.report(buffered_bytes=0, now=0.0).want == 0, "others could use it meanwhile"
    deliver(state, 1, 0, 100)
    assert state.report(buffered_bytes=0, now=0.0).want == 1
    assert state.report(buffered_bytes=600 << 10, now=0.0).want == 0

    state.is_open = False
    assert state.report(buffered_bytes=0, now=0.0).want == 0


def has_no_more(state: ReaderState) -> bool:
    """Return what the state says now; mypy believes that an attribute stays as it was."""
    return state.has_no_more


def test_a_wish_that_is_answered_with_nothing_means_that_there_is_no_more_for_now() -> None:
    state = opened()
    obey(state, lease(1, hi=10))
    deliver(state, 1, 0, 10)
    assert not has_no_more(state), "nobody was asked"

    assert state.report(buffered_bytes=0, now=1.0).want == 2
    obey(state, lease(1, hi=10), sent_at=0.5)
    assert not has_no_more(state), "that answers an earlier report"

    obey(state, lease(1, hi=10), sent_at=1.1)
    assert has_no_more(state)

    obey(state, lease(1, hi=10), lease(2, lo=10, hi=20), sent_at=1.2)
    assert not has_no_more(state)


def test_a_window_smaller_than_two_batches_does_not_stop_a_trainer_in_a_batch() -> None:
    state = opened()
    state.window_rows_min = 40
    obey(state, lease(), window_rows=5)
    deliver(state, 1, 0, 60)

    state.take(39, now=1.0)
    assert state.may_deliver(1, 1.0) is True
    state.take(40, now=1.0)
    assert state.may_deliver(1, 1.0) is False


def test_small_files_are_asked_for_in_numbers() -> None:
    state = opened()
    state.report(buffered_bytes=0, now=0.0)
    for token in range(1, 21):
        obey(state, lease(token, hi=10))
        deliver(state, token, 0, 10)
        state.take(token * 10, now=1.0)

    assert 30 <= state.report(buffered_bytes=0, now=1.0).want <= 64


def test_a_range_in_which_no_record_begins_is_done_once_what_lies_before_is_taken() -> None:
    state = opened()
    obey(state, lease(1, hi=10), lease(2, lo=10, hi=20))
    deliver(state, 1, 0, 10)
    state.was_read(2, 20)
    state.deliver(2, lo=10, hi=20, size=0, row_count=0, locate=lambda _: 20, now=1.0)

    assert [held.position for held in state.report(buffered_bytes=0, now=1.0).held] == [0, 10]

    state.take(10, now=1.0)

    assert [held.position for held in state.report(buffered_bytes=0, now=1.0).held] == [10, 20]


# All rules together, against a grantor that counts.

POSITIONS = 60


@pytest.mark.parametrize("is_pipe", [False, True], ids=["rows", "bytes"])
@given(program=programs(*FAULTS), granule=st.sampled_from([5, 13, 60]))
def test_nothing_is_lost_or_told_early_whatever_happens(
    *, is_pipe: bool, program: list[tuple[str, int, int]], granule: int
) -> None:
    """C50, C53, A27: each row is used at least once and counted exactly once."""
    world, grantor = run(program, granule=granule, is_pipe=is_pipe)

    rows = world.all_used()
    counted = sorted(grantor.done)
    assert {(e, p) for e in range(2) for p in range(POSITIONS)} <= set(rows)
    for epoch in range(2):
        at = 0
        for _, _, lo, hi in (entry for entry in counted if entry[0] == epoch):
            assert lo == at, "counted twice, or not at all"
            at = hi
        assert at == POSITIONS


@given(program=programs(), granule=st.sampled_from([5, 13, 60]))
def test_without_a_fault_no_row_comes_twice(
    program: list[tuple[str, int, int]], granule: int
) -> None:
    """C54: rows, trims and ends add up to each row once."""
    world, _ = run(program, granule=granule, is_pipe=False)

    assert not world.has_fault
    assert len(world.all_used()) == 2 * POSITIONS
    assert len(set(world.all_used())) == 2 * POSITIONS


def run(
    program: list[tuple[str, int, int]], *, granule: int, is_pipe: bool
) -> tuple[World, Grantor]:
    unit = Unit("file", "/data/a.txt", POSITIONS, "1", {"format": "text"})
    grantor = Grantor("clicks", [unit], granule=granule, epochs=2)
    world = World(Counting(grantor), [Life("r1", is_pipe), Life("r2", is_pipe)])
    for what, which, count in program:
        world.step(what, which, count)
    world.finish()
    return world, grantor
