"""Journal time: with the boot clock, slowly towards the wall clock, never back."""

import pytest

from primusd.clock import ManualClock
from primusd.journal_time import JournalTime


def test_a_term_begins_at_the_wall_clock_or_just_after_the_last_entry() -> None:
    clock = ManualClock(1_000_000)

    assert JournalTime(clock, last_at_ms=5).now_ms() == 1_000_000
    assert JournalTime(clock, last_at_ms=2_000_000).now_ms() == 2_000_001


def test_it_advances_with_the_boot_clock() -> None:
    clock = ManualClock(1_000_000)
    time = JournalTime(clock, last_at_ms=0)
    clock.advance(12_345)

    assert time.now_ms() == 1_012_345


@pytest.mark.parametrize("jump_ms", [3_600_000, -3_600_000])
def test_a_jump_of_the_wall_clock_moves_nothing_but_a_millisecond_a_second(jump_ms: int) -> None:
    clock = ManualClock(10_000_000)
    time = JournalTime(clock, last_at_ms=0)
    clock.now_ms += jump_ms

    assert time.now_ms() == 10_000_000
    assert time.skew_ms() == jump_ms

    before = time.now_ms()
    for _ in range(100):
        clock.advance(100)
        after = time.now_ms()
        assert after > before
        before = after
    assert before - 10_000_000 == 10_000 + (10 if jump_ms > 0 else -10)


def test_it_never_goes_back_and_reaches_the_wall_clock_in_the_end() -> None:
    clock = ManualClock(10_000_000)
    time = JournalTime(clock, last_at_ms=0)
    clock.now_ms -= 500

    last = time.now_ms()
    for _ in range(600):
        clock.advance(1_000)
        now = time.now_ms()
        assert now > last
        last = now

    assert last == clock.now_ms
    assert time.skew_ms() == 0


def test_a_start_after_the_clock_went_back_continues_behind_the_last_entry() -> None:
    clock = ManualClock(1_000)
    time = JournalTime(clock, last_at_ms=1_000_000)
    first = time.now_ms()
    clock.advance(10_000)

    assert first == 1_000_001
    assert time.now_ms() == 1_010_001 - 10
