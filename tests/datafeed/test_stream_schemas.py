"""Columns of a stream: chosen, nested, typed, filtered; and files whose columns are others."""

import itertools
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from primusd.datafeed.formats.base import ReadError, RowBlock
from primusd.datafeed.formats.opening import Opener
from primusd.datafeed.formats.parquet_groups import GroupReader
from primusd.datafeed.formats.settings import Settings, settings_of
from primusd.job.conditions import ConditionError, parse_condition
from primusd.job.decoding import Decoding
from primusd.job.formats import plan_of
from primusd.job.spec import StreamSpec
from tests.datafeed.format_files import ipc, jsonl, unit_of


def written(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    pq.write_table(pa.table(columns), path, **options)
    return path


def rows_of(opener: Opener, path: Path) -> list[dict[str, Any]]:
    form = {".parquet": "parquet", ".jsonl": "jsonl", ".csv": "csv", ".arrow": "arrow"}[path.suffix]
    unit = opener.open(unit_of(path, format=form))
    found: list[dict[str, Any]] = []
    for block in unit.rows(0, unit.end, block_bytes=1 << 20):
        found += block.batch.to_pylist()
    return found


def opener_of(**keys: Any) -> Opener:
    return Opener(Settings(**keys))


@pytest.fixture
def first(tmp_path: Path) -> Path:
    return written(tmp_path / "0.parquet", {"n": pa.array([1, 2], pa.int64()), "s": ["a", "b"]})


OTHERS: dict[str, tuple[dict[str, Any], str, list[dict[str, Any]]]] = {
    "missing": (
        {"n": pa.array([3], pa.int64())},
        "column s of the files before is missing",
        [{"n": 3, "s": None}],
    ),
    "added": (
        {"n": pa.array([3], pa.int64()), "s": ["c"], "x": [1]},
        "column x is not in the files before",
        [{"n": 3, "s": "c"}],
    ),
    "retyped": (
        {"n": ["3", "no"], "s": ["c", "d"]},
        "column n is string here and was int64 in the files before",
        [{"n": 3, "s": "c"}, {"n": None, "s": "d"}],
    ),
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_file_with_other_columns_fails_is_filled_with_nulls_or_left_out(
    tmp_path: Path, first: Path, what: str
) -> None:
    columns, words, with_nulls = OTHERS[what]
    other = written(tmp_path / "1.parquet", columns)

    for policy, kind in (("fail", "data"), ("skip", "schema")):
        opener = opener_of(on_schema=policy)
        assert len(rows_of(opener, first)) == 2
        with pytest.raises(ReadError) as caught:
            rows_of(opener, other)
        assert caught.value.message.startswith(f"{other}: {words}")
        assert caught.value.message.endswith(f"; onSchema is {policy}")
        assert caught.value.kind == kind
        assert len(rows_of(opener, first)) == 2

    opener = opener_of(on_schema="null")
    rows_of(opener, first)
    assert rows_of(opener, other) == with_nulls


def test_the_order_of_columns_and_their_layout_make_no_other_schema(
    tmp_path: Path, first: Path
) -> None:
    other = written(
        tmp_path / "1.parquet",
        {"s": pa.array(["c"], pa.large_string()), "n": pa.array([3], pa.int64())},
    )
    third = written(
        tmp_path / "2.parquet",
        {"s": pa.array(["d"]).dictionary_encode(), "n": pa.array([4], pa.int64())},
    )
    opener = opener_of()

    rows_of(opener, first)

    assert rows_of(opener, other) == [{"n": 3, "s": "c"}]
    assert rows_of(opener, third) == [{"n": 4, "s": "d"}]


def test_a_column_without_a_value_is_of_any_type(tmp_path: Path) -> None:
    for name, text in (("0", "n,s\n1,a\n"), ("1", "n,s\n2,\n")):
        (tmp_path / f"{name}.csv").write_text(text)
    opener = opener_of()

    rows_of(opener, tmp_path / "0.csv")

    assert rows_of(opener, tmp_path / "1.csv") == [{"n": 2, "s": None}]


def test_columns_that_are_not_asked_for_are_no_matter(tmp_path: Path, first: Path) -> None:
    other = written(tmp_path / "1.parquet", {"n": pa.array([3], pa.int64()), "x": [1]})
    opener = opener_of(columns=("n",))

    assert rows_of(opener, first) == [{"n": 1}, {"n": 2}]
    assert rows_of(opener, other) == [{"n": 3}]


def test_a_missing_column_of_known_type_is_null_also_in_the_first_file(
    tmp_path: Path, first: Path
) -> None:
    del tmp_path
    keys: dict[str, Any] = {"columns": ("new", "n"), "on_schema": "null"}

    with pytest.raises(ReadError, match=r"has no column new; say its type, types: \{new: …\}"):
        rows_of(opener_of(**keys), first)
    found = rows_of(opener_of(**keys, types={"new": "float64"}), first)

    assert found == [{"new": None, "n": 1}, {"new": None, "n": 2}]


def test_types_are_cast_and_what_cannot_be_is_told(tmp_path: Path, first: Path) -> None:
    del tmp_path
    unit = opener_of(types={"n": "int8"}).open(unit_of(first, format="parquet"))
    (block,) = unit.rows(0, 2, block_bytes=1 << 20)
    assert block.batch.schema.field("n").type == pa.int8()

    with pytest.raises(ReadError, match="column s is string and cannot be int64"):
        rows_of(opener_of(types={"s": "int64"}), first)
    assert rows_of(opener_of(types={"s": "int64"}, on_schema="null"), first)[0] == {
        "n": 1,
        "s": None,
    }


@pytest.mark.parametrize("form", ["parquet", "arrow", "jsonl"])
def test_a_field_inside_a_column_is_named_by_its_path(tmp_path: Path, form: str) -> None:
    rows: list[dict[str, Any]] = [
        {"user": {"id": 7, "home": {"zip": "a"}}, "n": 1},
        {"user": None, "n": 2},
    ]
    path = tmp_path / f"a.{form}"
    table = pa.Table.from_pylist(rows)
    if form == "parquet":
        pq.write_table(table, path)
    elif form == "arrow":
        path.write_bytes(ipc(table.to_batches(), is_stream=False))
    else:
        path.write_bytes(jsonl(rows))

    found = rows_of(opener_of(columns=("user.home.zip", "n", "user.id")), path)

    assert found == [
        {"user.home.zip": "a", "n": 1, "user.id": 7},
        {"user.home.zip": None, "n": 2, "user.id": None},
    ]


def test_a_json_column_that_comes_late_is_told_or_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    early = jsonl([{"a": 1, "pad": "x" * 1000}] * 1100)
    path.write_bytes(early + b'{"a": 2, "pad": "", "late": true}\n')

    with pytest.raises(ReadError, match="unexpected field") as caught:
        rows_of(opener_of(), path)
    found = rows_of(opener_of(columns=("a",)), path)

    assert caught.value.lo == len(early)
    assert found[-1] == {"a": 2}


def test_csv_columns_are_chosen_and_typed(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"day;n;s\n2026-01-01;1;x\n2026-01-02;;y\n")
    keys: dict[str, Any] = {"options": {"delimiter": ";"}, "types": {"n": "float32"}}

    found = rows_of(opener_of(columns=("n", "day"), **keys), path)

    assert [str(row["day"]) for row in found] == ["2026-01-01", "2026-01-02"]
    assert [row["n"] for row in found] == [1.0, None]
    assert list(found[0]) == ["n", "day"]


# Conditions.


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("n == 3", [3]),
        ("n != 3", [0, 1, 2, 4, 5]),
        ("n >= 4", [4, 5]),
        ("n in [1, 5, 77]", [1, 5]),
        ("n not in [1, 5]", [0, 2, 3, 4]),
        ("s == b", [1, 4]),
        ("s is null", [2, 5]),
        ("s is not null", [0, 1, 3, 4]),
        ("s != a", [1, 4]),
        ("d < 2026-01-03", [0, 1]),
        ('"deep.x" > 1.5', [2, 3, 4, 5]),
        ("ok == true", [0, 2, 4]),
    ],
)
def test_conditions_choose_rows_in_their_places(tmp_path: Path, text: str, rows: list[int]) -> None:
    numbers = list(range(6))
    columns = {
        "n": numbers,
        "s": pa.array(["a", "b", None, "a", "b", None]).dictionary_encode(),
        "d": pa.array([f"2026-01-0{n + 1}" for n in numbers]).cast(pa.date32()),
        "deep": [{"x": float(n)} for n in numbers],
        "ok": [n % 2 == 0 for n in numbers],
    }
    path = written(tmp_path / "a.parquet", columns, row_group_size=2)
    made = Settings(filter=(parse_condition(text),))
    unit = Opener(made).open(unit_of(path, format="parquet"))

    blocks = list(unit.rows(0, 6, block_bytes=1 << 20))

    assert [row["n"] for block in blocks for row in block.batch.to_pylist()] == rows
    assert (blocks[0].lo, blocks[-1].hi) == (0, 6)
    assert all(a.hi == b.lo for a, b in itertools.pairwise(blocks))
    assert left_out(blocks) == 6 - len(rows)


def left_out(blocks: list[RowBlock]) -> int:
    """Return how many rows blocks count as left out."""
    counted = ((block, block.left_out) for block in blocks)
    return sum(told(one.hi) - told(one.lo) for one, told in counted if told is not None)


@pytest.mark.parametrize("form", ["parquet", "jsonl", "csv"])
@pytest.mark.parametrize("cut", [0, 7, 45])
def test_C54_what_a_filter_leaves_out_is_counted_wherever_it_is_cut(
    tmp_path: Path, form: str, cut: int
) -> None:
    path = tmp_path / f"a.{form}"
    if form == "csv":
        path.write_text("".join(f"{n}\n" for n in ("n", *range(100))))
    elif form == "jsonl":
        path.write_bytes(jsonl([{"n": n} for n in range(100)]))
    else:
        written(path, {"n": list(range(100))}, row_group_size=10)
    unit = opener_of(filter=(parse_condition("n >= 85"),)).open(unit_of(path, format=form))

    blocks = [
        *unit.rows(0, cut, block_bytes=90),
        *unit.rows(cut, unit.end, block_bytes=90),
    ]

    assert sum(block.row_count for block in blocks) == 15
    assert left_out(blocks) == 85


@pytest.mark.parametrize("has_statistics", [True, False])
def test_C54_row_groups_that_are_not_read_count_as_if_they_were(
    tmp_path: Path, *, has_statistics: bool
) -> None:
    path = written(
        tmp_path / "a.parquet",
        {"n": list(range(100))},
        row_group_size=10,
        write_statistics=has_statistics,
    )
    unit = opener_of(filter=(parse_condition("n > 42"),)).open(unit_of(path, format="parquet"))

    blocks = list(unit.rows(5, 95, block_bytes=1 << 20))

    has_empty = [block.lo for block in blocks if not block.row_count]
    assert len(has_empty) == 4
    assert left_out(blocks) == 38
    assert sum(block.row_count for block in blocks) == 52
    # The same when it ends within a group that was not read, and piece by piece for a pipe.
    assert left_out(list(unit.rows(3, 17, block_bytes=1 << 20))) == 14
    pieces = list(unit.pieces(5, 95, framing="lines"))
    counted = [(piece, piece.left_out) for piece in pieces]
    assert sum(told(one.hi) - told(one.lo) for one, told in counted if told is not None) == 38


quick = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@quick
@given(
    values=st.lists(st.integers(0, 9), min_size=1, max_size=40),
    low=st.integers(0, 9),
    lo=st.integers(0, 40),
    form=st.sampled_from(["parquet", "jsonl"]),
)
def test_from_any_position_the_same_rows_are_chosen(
    tmp_path: Path, values: list[int], low: int, lo: int, form: str
) -> None:
    path = tmp_path / f"a.{form}"
    rows = [{"v": value, "n": number} for number, value in enumerate(values)]
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=7)
    else:
        path.write_bytes(jsonl(rows))
    made = Settings(filter=(parse_condition(f"v >= {low}"),), columns=("n",))
    unit = Opener(made).open(unit_of(path, format=form))
    wanted = [row["n"] for row in rows if row["v"] >= low]

    def numbers(blocks: list[RowBlock]) -> list[int]:
        return [row["n"] for block in blocks for row in block.batch.to_pylist()]

    whole = list(unit.rows(0, unit.end, block_bytes=50))
    cut = min(lo, unit.end)
    assert numbers(whole) == wanted
    parts = [*unit.rows(0, cut, block_bytes=50), *unit.rows(cut, unit.end, block_bytes=50)]
    assert numbers(parts) == wanted
    for block in whole:
        for count in range(block.row_count + 1):
            rest = list(unit.rows(block.position_after(count), unit.end, block_bytes=50))
            taken = len(numbers([one for one in whole if one.hi <= block.lo])) + count
            assert numbers(rest) == wanted[taken:]
        for limit in range(block.lo, block.hi + 1):
            kept = numbers([block.up_to(limit)]) + numbers(
                list(unit.rows(max(limit, block.lo), block.hi, block_bytes=50))
            )
            assert kept == numbers([block])


def test_row_groups_that_cannot_match_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "a.parquet", {"n": list(range(100))}, row_group_size=10)
    read: list[int] = []
    real = GroupReader.batches

    def noted(reader: GroupReader, group: int, block_bytes: int) -> Any:
        read.append(group)
        return real(reader, group, block_bytes)

    monkeypatch.setattr(GroupReader, "batches", noted)
    for text, groups in (("n == 42", [4]), ("n >= 85", [8, 9]), ("n in [3, 77]", [0, 7])):
        read.clear()
        made = Settings(filter=(parse_condition(text),))
        unit = Opener(made).open(unit_of(path, format="parquet"))
        list(unit.rows(0, 100, block_bytes=1 << 20))
        assert read == groups


@pytest.mark.parametrize("has_statistics", [True, False])
def test_conditions_compare_in_the_type_that_the_job_file_gives(
    tmp_path: Path, *, has_statistics: bool
) -> None:
    """As text 9 comes after 10, for rows and for the statistics of their row group."""
    texts = [str(n) for n in range(8, 13)]
    path = written(tmp_path / "a.parquet", {"n": texts}, write_statistics=has_statistics)

    found = rows_of(opener_of(types={"n": "int64"}, filter=(parse_condition("n > 9"),)), path)

    assert found == [{"n": 10}, {"n": 11}, {"n": 12}]
    with pytest.raises(ReadError, match=r"column n is string and cannot be date32"):
        rows_of(opener_of(types={"n": "date32"}, filter=(parse_condition("n > 9"),)), path)


def test_conditions_compare_in_the_type_of_the_first_file_where_others_may_differ(
    tmp_path: Path,
) -> None:
    first = written(tmp_path / "a.parquet", {"n": [8, 9, 10]})
    second = written(tmp_path / "b.parquet", {"n": ["8", "10", "many", "9"]})
    opener = opener_of(on_schema="null", filter=(parse_condition("n > 9"),))

    assert rows_of(opener, first) == [{"n": 10}]
    assert rows_of(opener, second) == [{"n": 10}]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("s contains b", ["abc", "b 404"]),
        ("s not contains b", ["", "xyz 404"]),
        ("s starts with 'b 4'", ["b 404"]),
        ("s ends with 404", ["b 404", "xyz 404"]),
        ('s contains "\\""', []),
    ],
)
@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.dictionary(pa.int8(), pa.string())])
def test_conditions_on_texts_look_into_them_and_a_null_meets_none(
    tmp_path: Path, text: str, kept: list[str], kind: Any
) -> None:
    values = pa.array(["abc", None, "", "b 404", "xyz 404"]).cast(kind)
    path = written(tmp_path / "a.parquet", {"s": values})

    found = rows_of(opener_of(filter=(parse_condition(text),)), path)

    texts = [one["s"].decode() if isinstance(one["s"], bytes) else one["s"] for one in found]
    assert texts == kept


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("n contains 1", "filter: column n is int64, which cannot be contains '1'"),
        ("gone == 1", "filter: there is no column gone; there are n"),
        ("n == many", "filter: column n is int64, which cannot be == 'many'"),
    ],
)
def test_a_condition_that_does_not_fit_names_its_column(
    tmp_path: Path, text: str, words: str
) -> None:
    path = written(tmp_path / "a.parquet", {"n": [1]})
    opener = opener_of(filter=(parse_condition(text),))

    with pytest.raises(ReadError, match=words):
        rows_of(opener, path)


@pytest.mark.parametrize("text", ["", "n", "n =", "n == ", "n in []", "n in [a", "== 1", "n ~ 1"])
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(ConditionError, match=r"is no condition|names no value"):
        parse_condition(text)


def test_settings_come_through_a_plan_as_they_were_written() -> None:
    decoding = Decoding(
        {"delimiter": ";"}, {"n": "int8"}, ("n == 1", "s in [a, b]"), "null", "fail", 1 << 27
    )
    stream = StreamSpec("s", (), format="csv", columns=("n", "s"), decoding=decoding)

    found = settings_of(plan_of(stream), memory_bytes=decoding.memory_bytes)

    assert found == Settings(
        "csv",
        ("n", "s"),
        {"delimiter": ";"},
        {"n": "int8"},
        tuple(map(parse_condition, decoding.filter)),
        "null",
        "fail",
        1 << 27,
    )


def test_shaped_rows_go_to_a_pipe_as_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"n,s\n1,a\n2,b\n3,c\n")
    made = Settings(filter=(parse_condition("n != 2"),), columns=("s", "n"))
    unit = Opener(made).open(unit_of(path, format="csv"))

    (piece,) = unit.pieces(0, unit.end, framing="lines")

    assert [json.loads(line) for line in piece.data.splitlines()] == [
        {"s": "a", "n": 1},
        {"s": "c", "n": 3},
    ]
    assert [piece.locate(count) for count in (0, len(piece.data) // 2)] == [0, 12]
    plain = Opener(Settings()).open(unit_of(path, format="csv"))
    (span,) = plain.pieces(0, plain.end, framing="lines")
    assert (span.offset, span.span_bytes) == (4, 12)
