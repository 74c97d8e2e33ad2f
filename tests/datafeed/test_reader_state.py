"""The reader's state: whatever is lost, revoked, trimmed or slow, no row is lost or told early."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.grantor import Grantor
from primusd.datafeed.protocol import BadRange, FeedOrders, Lease, Unit, UnitMap
from primusd.datafeed.reader_state import IDLE_S, ReaderState

TTL_S = 30.0
FILE = Unit("file", "/data/a.txt", 100, "1", {"format": "text"})
TABLE = Unit("file", "/data/a.parquet", 5_000, "1", {"format": "parquet"})


def lease(token: int = 1, lo: int = 0, hi: int = 100, **other: int) -> Lease:
    return Lease(
        other.get("epoch", 0), other.get("unit", 0), lo, hi, token,
        other.get("position", lo), other.get("trim", -1), FILE,
    )  # fmt: skip


def orders(*leases: Lease, state: str = "serve", window_rows: int = 0) -> FeedOrders:
    return FeedOrders("clicks", leases, state, window_rows)


def opened() -> ReaderState:
    state = ReaderState("clicks", memory_bytes=1 << 20)
    state.is_open = True
    return state


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


def test_want_leaves_room_for_what_is_unread_and_for_what_memory_holds() -> None:
    state = opened()
    assert state.report(buffered_bytes=0, now=0.0).want == 2

    obey(state, lease(1), lease(2, lo=100, hi=200))
    assert state.report(buffered_bytes=0, now=0.0).want == 0

    state.was_read(1, 100)
    assert state.report(buffered_bytes=0, now=0.0).want == 1
    assert state.report(buffered_bytes=600 << 10, now=0.0).want == 0

    state.is_open = False
    assert state.report(buffered_bytes=0, now=0.0).want == 0


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
BYTES_A_ROW = 3


@dataclass
class Life:
    """A reader with its trainer."""

    name: str
    is_pipe: bool
    state: ReaderState = field(default_factory=opened)
    buffer: list[tuple[int, int, int]] = field(default_factory=list)
    handed: list[tuple[int, int]] = field(default_factory=list)
    """Token and position of each row, in order."""
    taken: int = 0
    """Bytes in a pipe, else rows."""

    @property
    def unit_size(self) -> int:
        return BYTES_A_ROW if self.is_pipe else 1

    def used(self) -> list[tuple[int, int]]:
        return self.handed[: self.taken // self.unit_size]


@dataclass
class World:
    """Two readers of one file, and what happens to them."""

    grantor: Grantor
    lives: list[Life]
    clock: float = 0.0
    names: int = 2
    used: list[tuple[int, int]] = field(default_factory=list)
    """Epoch and position of rows that trainers which are gone had used."""
    epochs: dict[int, int] = field(default_factory=dict)
    has_fault: bool = False

    def read(self, life: Life, count: int) -> None:
        holding = life.state.next_to_read()
        if holding is not None:
            lo, hi = holding.read, min(holding.read + count, holding.hi)
            life.buffer.append((holding.lease.token, lo, hi))
            self.epochs[holding.lease.token] = holding.lease.epoch
            life.state.was_read(holding.lease.token, hi)

    def deliver(self, life: Life) -> None:
        if not life.buffer:
            return
        token, lo, hi = life.buffer[0]
        may = life.state.may_deliver(token, self.clock)
        if may is False:
            return
        life.buffer.pop(0)
        holding = life.state.holding(token)
        if holding is None or lo >= holding.hi:
            return
        hi = min(hi, holding.hi)
        size = life.unit_size
        life.handed += [(token, position) for position in range(lo, hi)]
        life.state.deliver(
            token,
            lo=lo,
            hi=hi,
            size=(hi - lo) * size,
            row_count=hi - lo,
            locate=lambda n: lo + n // size,
            now=self.clock,
        )

    def take(self, life: Life, count: int) -> None:
        life.taken = min(life.taken + count, len(life.handed) * life.unit_size)
        life.state.take(life.taken, now=self.clock)

    def beat(self, life: Life, *, is_answered: bool = True) -> None:
        sent_at = self.clock
        report = life.state.report(buffered_bytes=0, now=self.clock)
        used = set(life.used())
        for held in (*report.held, *report.returned):
            told = {(held.token, position) for position in range(held.lo, held.position)}
            granted = self.grantor.out.get(held.token)
            if granted is not None and granted.reader == life.name:
                assert told <= used, "told before it was taken"
        answer = self.grantor.exchange(life.name, report)
        self.clock += 0.01
        if is_answered:
            life.state.obey(answer, sent_at=sent_at, ttl_s=TTL_S)

    def replace(self, life: Life) -> None:
        self.used += [(self.epochs[token], position) for token, position in life.used()]
        self.names += 1
        self.lives[self.lives.index(life)] = Life(f"r{self.names}", life.is_pipe)

    def crash(self, life: Life) -> None:
        self.has_fault = True
        self.replace(life)
        self.grantor.lose(life.name)

    def end(self, life: Life) -> None:
        """The trainer ends; its final positions arrive with the exit record."""
        final = life.state.give_back_all()
        if life.is_pipe and life.taken % BYTES_A_ROW:
            self.has_fault = True
        for held in final:
            self.grantor.give_back(life.name, held)
        self.replace(life)
        self.grantor.lose(life.name)

    def expire(self, life: Life) -> None:
        self.has_fault = True
        self.grantor.lose(life.name)

    def trim(self, life: Life, at: int) -> None:
        for granted in self.grantor.out.values():
            if granted.reader == life.name:
                granted.trim = granted.lo + at % max(1, granted.hi - granted.lo)
                return

    def idle(self, life: Life) -> None:
        self.clock += IDLE_S + 1
        life.state.note_idle(self.clock)

    def wait(self, seconds: int) -> None:
        self.clock += seconds

    def step(self, what: str, which: int, count: int) -> None:
        life = self.lives[which % 2]
        doings: dict[str, Callable[[], None]] = {
            "read": lambda: self.read(life, 1 + count),
            "deliver": lambda: self.deliver(life),
            "take": lambda: self.take(life, count),
            "beat": lambda: self.beat(life),
            "lost answer": lambda: self.beat(life, is_answered=False),
            "crash": lambda: self.crash(life),
            "end": lambda: self.end(life),
            "expire": lambda: self.expire(life),
            "trim": lambda: self.trim(life, count),
            "time": lambda: self.wait(count),
            "idle": lambda: self.idle(life),
        }
        doings[what]()

    def finish(self) -> None:
        for _ in range(400):
            for life in self.lives:
                self.beat(life)
                self.read(life, 100)
                self.deliver(life)
                self.take(life, 100)
            if self.grantor.is_done:
                return
        raise AssertionError(f"not done: {self.grantor.out}")

    def all_used(self) -> list[tuple[int, int]]:
        rows = list(self.used)
        for life in self.lives:
            rows += [(self.epochs[token], position) for token, position in life.used()]
        return rows


STEPS = ("read", "deliver", "take", "beat", "lost answer", "trim", "end", "idle", "time")
FAULTS = ("crash", "expire")


def programs(*more: str) -> st.SearchStrategy[list[tuple[str, int, int]]]:
    usual = ("read", "deliver", "take", "beat")
    step = st.sampled_from((*usual, *usual, *STEPS, *more))
    return st.lists(st.tuples(step, st.integers(0, 1), st.integers(0, 20)), max_size=120)


@pytest.mark.parametrize("is_pipe", [False, True], ids=["rows", "bytes"])
@given(program=programs(*FAULTS), granule=st.sampled_from([5, 13, 60]))
def test_nothing_is_lost_or_told_early_whatever_happens(
    *, is_pipe: bool, program: list[tuple[str, int, int]], granule: int
) -> None:
    """C50, C53, A27: each row is used at least once and counted exactly once."""
    world = run(program, granule=granule, is_pipe=is_pipe)

    rows = world.all_used()
    counted = sorted(world.grantor.done)
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
    world = run(program, granule=granule, is_pipe=False)

    assert not world.has_fault
    assert len(world.all_used()) == 2 * POSITIONS
    assert len(set(world.all_used())) == 2 * POSITIONS


def run(program: list[tuple[str, int, int]], *, granule: int, is_pipe: bool) -> World:
    unit = Unit("file", "/data/a.txt", POSITIONS, "1", {"format": "text"})
    grantor = Grantor("clicks", [unit], granule=granule, epochs=2)
    world = World(grantor, [Life("r1", is_pipe), Life("r2", is_pipe)])
    for what, which, count in program:
        world.step(what, which, count)
    world.finish()
    return world
