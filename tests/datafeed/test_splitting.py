"""Where ranges are cut, and the arithmetic of ranges against sets of positions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from primusd.datafeed.ledger import ranges, splitting
from primusd.datafeed.ledger.listed import UnitEntry
from primusd.datafeed.ledger.model import OPEN_END, Range
from primusd.datafeed.ledger.splitting import BYTES_MIN, ROWS_MIN, Share
from primusd.datafeed.protocol import Unit
from primusd.job.spec import Split
from tests.datafeed.ledger_driver import rows_unit, text_unit

GIB = 1 << 30


def cut(
    unit: Unit,
    one: Range,
    *,
    size: int,
    cuts: tuple[int, ...] = (),
    split: Split = Split(),  # noqa: B008 - a frozen value.
    per_s: int = 0,
    remaining: int = GIB,
    readers: int = 4,
) -> int:
    return splitting.cut(
        UnitEntry(unit, size),
        one,
        size=size,
        cuts=cuts,
        has_bytes=unit.options["format"] == "text",
        split=split,
        share=Share(per_s, remaining, readers),
    )


def test_a_grant_is_ten_seconds_of_its_readers_work() -> None:
    assert cut(text_unit(GIB), Range(0, GIB), size=GIB, per_s=1_000_000) == 10_000_000


def test_a_grant_is_at_most_a_fair_share_of_what_is_left_so_that_the_tail_shrinks() -> None:
    share = 80 << 20

    assert cut(text_unit(GIB), Range(0, GIB), size=GIB, per_s=GIB, remaining=8 * share) == share


def test_a_grant_has_four_mebibytes_or_a_row_group_at_least() -> None:
    groups = (100_000, 200_000, 300_000)

    assert cut(text_unit(GIB), Range(0, GIB), size=GIB, per_s=1) == BYTES_MIN
    assert cut(rows_unit(), Range(0, 300_000), size=300_000, cuts=groups, per_s=1) == 100_000
    assert cut(rows_unit(), Range(0, 300_000), size=300_000, per_s=1) == ROWS_MIN


def test_a_lone_reader_gets_all_that_is_left_of_a_unit() -> None:
    assert cut(text_unit(GIB), Range(5, GIB), size=GIB, per_s=1, readers=1) == GIB


def test_what_nobody_has_opened_is_granted_to_its_end() -> None:
    assert cut(rows_unit(), Range(0, OPEN_END), size=-1, per_s=1) == OPEN_END


def test_a_small_rest_goes_with_the_grant_before_it() -> None:
    size = BYTES_MIN + BYTES_MIN // 10

    assert cut(text_unit(size), Range(0, size), size=size, per_s=1, remaining=size) == size


@pytest.mark.parametrize(
    ("unit", "split", "hi"),
    [
        (text_unit(1000), Split(byte_count=64), 64),
        (rows_unit(), Split(rows=64), 64),
        (rows_unit(10_000), Split(byte_count=1_000), 250),  # A tenth of the file, at a row group.
    ],
)
def test_the_specs_split_wins_over_the_rate(unit: Unit, split: Split, hi: int) -> None:
    cuts = () if unit.options["format"] == "text" else (250, 500, 750, 1000)

    assert cut(unit, Range(0, 1000), size=1000, cuts=cuts, split=split, per_s=GIB) == hi


def middle(
    *,
    position: int = 0,
    hi: int = 1000,
    per_s: int = 0,
    other: int = 0,
    cuts: tuple[int, ...] = (),
    rest_ms: int = -1,
) -> int:
    return splitting.middle(
        position, hi, per_s=per_s, other_per_s=other, cuts=cuts, rest_ms=rest_ms
    )


def test_a_trim_lets_both_finish_together() -> None:
    assert middle(per_s=300, other=100, rest_ms=3_333) == 750
    assert middle() == 500


def test_a_trim_is_at_a_row_group_and_cuts_one_only_where_much_is_left() -> None:
    assert middle(cuts=(400, 1000), rest_ms=5_000) == 400
    assert middle(cuts=(20, 1000), rest_ms=5_000) == 20
    assert middle(cuts=(20, 1000), rest_ms=60_000) == 500
    assert middle(cuts=(1000,), rest_ms=5_000) == -1
    assert middle(cuts=(1000,), rest_ms=60_000) == 500
    assert middle(cuts=(1000,)) == 500


def test_nothing_can_be_cut_from_one_position() -> None:
    assert middle(position=9, hi=10) == -1


SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=6)


def made(spans: list[tuple[int, int]]) -> tuple[Range, ...]:
    return ranges.union(Range(min(one), max(one)) for one in spans)


def positions(found: tuple[Range, ...]) -> set[int]:
    covered = [position for one in found for position in range(one.lo, one.hi)]
    assert len(covered) == len(set(covered)), "not disjoint"
    assert list(found) == sorted(found), "not sorted"
    return set(covered)


@given(SPANS, SPANS)
def test_ranges_are_sets_of_positions(
    left: list[tuple[int, int]], right: list[tuple[int, int]]
) -> None:
    one, other = made(left), made(right)

    assert positions(ranges.union((*one, *other))) == positions(one) | positions(other)
    assert positions(ranges.subtract(one, other)) == positions(one) - positions(other)
    assert positions(ranges.overlap(one, 7, 19)) == positions(one) & set(range(7, 19))
    assert ranges.total(one) == len(positions(one))


@given(SPANS, st.integers(0, 30), st.integers(0, 30))
def test_a_range_is_added_merged_and_taken_out_again(
    spans: list[tuple[int, int]], a: int, b: int
) -> None:
    before, one = made(spans), Range(min(a, b), max(a, b))

    after = ranges.add(before, one)

    assert after == ranges.union((*before, one))
    if one.lo < one.hi:
        rest = ranges.take(after, one)
        assert positions(rest) == positions(after) - set(range(one.lo, one.hi))


@given(st.sets(st.integers(0, 20)), st.integers(0, 20))
def test_a_range_is_inserted_and_removed_by_its_beginning(starts: set[int], at: int) -> None:
    before = tuple(Range(3 * lo, 3 * lo + 2) for lo in sorted(starts - {at}))
    one = Range(3 * at, 3 * at + 2)

    after = ranges.insert(before, one)

    assert list(after) == sorted((*before, one))
    assert ranges.remove(after, one) == before
