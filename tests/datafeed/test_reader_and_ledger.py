"""The real reader against the real ledger: rows used, rows counted, and an end that comes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from primusd.datafeed.ledger import machine as ledger
from primusd.datafeed.ledger.events import BeatReceived, LeaseExpired, ReaderEnded, ReaderOpened
from primusd.datafeed.protocol import BadRange, FeedOrders, FeedReport, Held
from primusd.datafeed.reader.state import ReaderState
from primusd.job.ids import AttemptId
from tests.datafeed.ledger_driver import (
    START_MS,
    Driver,
    attempt_id,
    rows_unit,
    stream_spec,
    text_unit,
)
from tests.datafeed.reader_world import FAULTS, Life, World, opened, programs

POSITIONS = 60


class Ledger:
    """The ledger as a reader meets it through the daemon."""

    def __init__(self, driver: Driver, cuts: tuple[int, ...] = ()) -> None:
        self.driver = driver
        self.cuts = cuts
        self.open: set[AttemptId] = set()

    def __repr__(self) -> str:
        return repr(self.driver.now)

    @property
    def is_done(self) -> bool:
        return self.driver.now.phase == "Done"

    def attempt(self, reader: str) -> AttemptId:
        attempt = attempt_id(int(reader[1:]))
        if attempt not in self.open:
            self.open.add(attempt)
            self.driver.propose(ReaderOpened(attempt, "a"))
        return attempt

    def exchange(self, reader: str, report: FeedReport, *, at_s: float) -> FeedOrders:
        self.driver.wait(max(0, START_MS + int(at_s * 1000) - self.driver.at_ms))
        attempt = self.attempt(reader)
        self.driver.propose(BeatReceived(attempt, "a", report))
        return ledger.feed_orders(self.driver.now, attempt, "a")

    def end(self, reader: str, final: tuple[Held, ...]) -> None:
        self.driver.propose(ReaderEnded(self.attempt(reader), final, False, False))  # noqa: FBT003

    def crash(self, reader: str) -> None:
        self.end(reader, ())

    def expire(self, reader: str) -> None:
        self.driver.propose(LeaseExpired(self.attempt(reader), ()))

    def ask_trim(self, reader: str, at: int) -> None:
        """It asks by itself, when time has passed."""
        del reader
        self.driver.wait(at * 500)

    def holds(self, reader: str, token: int) -> bool:
        lease = self.driver.now.leases.get(token)
        return lease is not None and lease.attempt == self.attempt(reader)


def run(
    program: list[tuple[str, int, int]], *, is_pipe: bool, is_sized: bool, split: int
) -> tuple[World, Driver]:
    driver = Driver(stream_spec(epochs=2, split={"byte_count" if is_sized else "rows": split}))
    driver.list_all([text_unit(POSITIONS) if is_sized else rows_unit()])
    cuts = () if is_sized else (20, 40, POSITIONS)
    world = World(Ledger(driver, cuts), [Life("r1", is_pipe), Life("r2", is_pipe)])
    for what, which, count in program:
        world.step(what, which, count)
    world.finish()
    return world, driver


WAYS = [(False, True), (True, True), (False, False)]


@pytest.mark.parametrize(("is_pipe", "is_sized"), WAYS, ids=["rows", "bytes", "unknown size"])
@given(program=programs(*FAULTS), split=st.sampled_from([5, 13, 60]))
def test_whatever_happens_each_row_is_used_and_counted_once(
    *, is_pipe: bool, is_sized: bool, program: list[tuple[str, int, int]], split: int
) -> None:
    """C49 to C51, C53: nothing is lost, and the ledger's sums come out."""
    world, driver = run(program, is_pipe=is_pipe, is_sized=is_sized, split=split)

    assert {(e, p) for e in range(2) for p in range(POSITIONS)} <= set(world.all_used())
    assert driver.now.consumed == 2 * POSITIONS
    assert driver.now.skipped == 0
    assert driver.replay() == driver.now


@given(program=programs(), split=st.sampled_from([5, 13, 60]))
def test_without_a_fault_no_row_comes_twice(
    program: list[tuple[str, int, int]], split: int
) -> None:
    world, _ = run(program, is_pipe=False, is_sized=False, split=split)

    assert not world.has_fault
    assert len(world.all_used()) == len(set(world.all_used())) == 2 * POSITIONS


def beat(driver: Driver, state: ReaderState, now: float) -> FeedOrders:
    report = state.report(buffered_bytes=0, now=now)
    driver.propose(BeatReceived(attempt_id(1), "a", report))
    answer = ledger.feed_orders(driver.now, attempt_id(1), "a")
    state.obey(answer, sent_at=now + 0.1, ttl_s=30)
    return answer


def pass_over(state: ReaderState, lo: int, hi: int) -> None:
    """What the reading thread and the delivery do with a range that cannot be read."""
    token = next(iter(state.report(buffered_bytes=0, now=0.0).held)).token
    state.was_read(token, hi)
    state.deliver(token, lo=lo, hi=hi, size=0, row_count=0, locate=lambda _: hi, now=1.0)


@pytest.mark.parametrize("kind", ["data", "changed", "vanished"])
def test_a_file_that_cannot_be_read_is_left_out_and_the_stream_ends(kind: str) -> None:
    driver = Driver(stream_spec(on_bad="deadLetter", bad_rows=-1))
    driver.list_all([rows_unit()])
    driver.open(1)
    state = opened()
    beat(driver, state, 0.0)
    (held,) = state.report(buffered_bytes=0, now=0.5).held

    state.was_bad(BadRange(held, held.lo, held.hi, kind, "cannot be read"))
    pass_over(state, held.lo, held.hi)
    for second in range(1, 5):
        beat(driver, state, float(second))

    assert driver.now.phase == "Done"
    assert driver.now.bad_count > 0


def test_a_storage_that_does_not_answer_twice_is_left_out_and_the_stream_ends() -> None:
    driver = Driver(stream_spec(on_bad="deadLetter", bad_rows=-1))
    driver.list_all([text_unit(60)])
    driver.open(1)
    state = opened()
    for second in range(12):
        beat(driver, state, float(second))
        holding = state.next_to_read()
        if holding is None:
            continue
        if holding.left_out_to > holding.read:
            pass_over(state, holding.read, holding.left_out_to)
        else:
            held = holding.held("clicks")
            state.was_bad(BadRange(held, holding.read, holding.hi, "transient", "no answer"))

    assert driver.now.phase == "Done"
    assert driver.now.skipped == 60
