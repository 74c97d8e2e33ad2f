"""Which type becomes which in a numpy batch, and what a null becomes (docs/feed-in-numpy.md)."""

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import primus

# Any: the stubs know no common parent of all arrays.
Array = Any

DAY = dt.date(2026, 1, 2)
NOON = dt.datetime(2026, 1, 2, 12, 0, 0)  # noqa: DTZ001 what a file without a zone has


def batches(tmp_path: Path, table: pa.Table, **options: Any) -> list[Any]:
    pq.write_table(table, tmp_path / "a.parquet")
    return list(primus.dataset(tmp_path / "a.parquet", **options))


def column(tmp_path: Path, values: Array, **options: Any) -> Any:
    (batch,) = batches(tmp_path, pa.table({"x": values}), **options)
    return batch["x"]


PLAIN = [
    (pa.array([1, -2], kind), np.array([1, -2], dtype))
    for kind, dtype in (
        (pa.int8(), "i1"),
        (pa.int16(), "i2"),
        (pa.int32(), "i4"),
        (pa.int64(), "i8"),
        (pa.float32(), "f4"),
        (pa.float64(), "f8"),
    )
] + [
    (pa.array([2**64 - 1, 0], pa.uint64()), np.array([2**64 - 1, 0], "u8")),
    (pa.array([255, 0], pa.uint8()), np.array([255, 0], "u1")),
    (pa.array([True, False]), np.array([True, False])),
    (pa.array([1.5, -2], pa.float16()), np.array([1.5, -2], "f2")),
    (pa.array([DAY, None]), np.array(["2026-01-02", "NaT"], "M8[D]")),
    (pa.array([DAY, None], pa.date64()), np.array(["2026-01-02", "NaT"], "M8[D]")),
    (pa.array([NOON, None], pa.timestamp("us")), np.array([NOON, "NaT"], "M8[us]")),
    (
        pa.array([NOON, None], pa.timestamp("ms", "Europe/Berlin")),
        np.array([NOON, "NaT"], "M8[ms]"),
    ),
    (pa.array([dt.time(0, 0, 1), None], pa.time32("ms")), np.array([1000, "NaT"], "m8[ms]")),
    (pa.array([dt.timedelta(seconds=1)], pa.duration("ns")), np.array([10**9], "m8[ns]")),
    (pa.array([1.5, None, 2], pa.float32()), np.array([1.5, np.nan, 2], "f4")),
    (
        pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2)),
        np.array([[1, 2], [3, 4]], "i4"),
    ),
]


def named(value: Any) -> str:
    return str(value.dtype if isinstance(value, np.ndarray) else value.type)


@pytest.mark.parametrize(("given", "wanted"), PLAIN, ids=named)
def test_numbers_dates_and_times_keep_their_type_and_value(
    tmp_path: Path, given: Array, wanted: Any
) -> None:
    found = column(tmp_path, given)

    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (pa.array(["a", None, "é😀", ""]), ["a", None, "é😀", ""]),
        (pa.array(["a", None], pa.large_string()), ["a", None]),
        (pa.array([b"\xff", None, b""]), [b"\xff", None, b""]),
        (pa.array([b"ab", None], pa.binary(2)), [b"ab", None]),
        (pa.array(["x", "y", "x", None]).dictionary_encode(), ["x", "y", "x", None]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_strings_and_bytes_become_objects_with_none_for_null(
    tmp_path: Path, given: Array, wanted: list[Any]
) -> None:
    found = column(tmp_path, given)

    assert found.dtype == object
    assert found.tolist() == wanted


def test_lists_become_arrays_of_their_own(tmp_path: Path) -> None:
    found = column(tmp_path, pa.array([[1, 2], [], None, [3]], pa.list_(pa.int16())))

    assert found.dtype == object
    assert found[2] is None
    assert [row.tolist() for row in found if row is not None] == [[1, 2], [], [3]]
    assert found[0].dtype == np.int16


@pytest.mark.parametrize("kind", [pa.int64(), pa.bool_()], ids=str)
def test_a_null_in_an_integer_or_boolean_is_an_error_that_names_the_column(
    tmp_path: Path, kind: pa.DataType
) -> None:
    with pytest.raises(primus.NullsError, match=r"column x has nulls \(2 in these 3 rows\)"):
        column(tmp_path, pa.array([1, None, None]).cast(kind))


def test_masked_keeps_the_type_and_masks_also_where_this_batch_has_no_null(tmp_path: Path) -> None:
    table = pa.table({"x": pa.array([1, None, 3, 4], pa.int64()), "y": [1.5, None, 2, 3]})

    first, second = batches(tmp_path, table, nulls="masked", batch_rows=2)

    assert first["x"].dtype == np.int64
    assert first["x"].tolist() == [1, None]
    assert second["x"].tolist() == [3, 4]
    assert isinstance(second["x"], np.ma.MaskedArray)
    assert not isinstance(first["y"], np.ma.MaskedArray)


def test_float_is_float64_in_every_batch(tmp_path: Path) -> None:
    table = pa.table({"x": pa.array([1, None, 3, 4], pa.int64()), "f": [True, None, False, True]})

    first, second = batches(tmp_path, table, nulls="float", batch_rows=2)

    np.testing.assert_array_equal(first["x"], [1.0, np.nan])
    np.testing.assert_array_equal(first["f"], [1.0, np.nan])
    assert second["x"].dtype == second["f"].dtype == np.float64


def test_an_integer_that_no_float_holds_is_an_error_and_not_a_rounded_number(
    tmp_path: Path,
) -> None:
    big = pa.array([2**53 + 1, None], pa.int64())

    with pytest.raises(primus.NullsError, match=r"column x has 9007199254740993, which no float"):
        column(tmp_path, big, nulls="float")
    assert column(tmp_path, big, nulls="masked").tolist() == [2**53 + 1, None]


def test_nulls_are_chosen_by_column(tmp_path: Path) -> None:
    table = pa.table({"a": pa.array([1, None]), "b": pa.array([1, 2])})

    (batch,) = batches(tmp_path, table, nulls={"a": "float"})

    assert batch["a"].dtype == np.float64
    assert batch["b"].dtype == np.int64
    with pytest.raises(primus.FeedError, match=r"names columns that the stream has not: \['c'\]"):
        batches(tmp_path, table, nulls={"c": "float"})


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (pa.array([Decimal("1.5")]), r"column x is decimal128\(2, 1\), for which numpy has no"),
        (pa.array([{"a": 1}]), r"column x is struct<a: int64>"),
        (pa.array([["a"]]), r"column x is string, for which numpy has no type"),
        (pa.array([[1, None]], pa.list_(pa.int32())), "column x has a list with a null in it"),
        (pa.array([[1, 2], None], pa.list_(pa.int32(), 2)), "column x has a row without its list"),
    ],
    ids=["decimal", "struct", "strings", "null inside", "no list"],
)
def test_what_numpy_has_no_type_for_is_refused_by_name(
    tmp_path: Path, given: Array, sentence: str
) -> None:
    with pytest.raises(primus.FeedError, match=sentence):
        column(tmp_path, given)
    (batch,) = batches(tmp_path, pa.table({"x": given}), layout="arrow")
    assert batch["x"].to_pylist() == given.to_pylist()


def test_columns_can_be_left_out(tmp_path: Path) -> None:
    table = pa.table({"a": [1], "b": [{"c": 1}]})

    (batch,) = batches(tmp_path, table, columns=["a"])

    assert list(batch) == ["a"]


def test_batches_span_row_groups_and_files_and_epochs_stay_apart(tmp_path: Path) -> None:
    for number in range(2):
        table = pa.table({"n": list(range(number * 10, number * 10 + 10)), "s": list("abcdefghij")})
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=3)

    found = list(primus.dataset(tmp_path, batch_rows=8, epochs=2))

    assert [(batch.epoch, batch.rows) for batch in found] == [
        (0, 8), (0, 8), (0, 4), (1, 8), (1, 8), (1, 4),
    ]  # fmt: skip
    for epoch in range(2):
        rows = [n for batch in found if batch.epoch == epoch for n in batch["n"].tolist()]
        assert rows == list(range(20))
    assert found[-1].receipt == 40
    assert "".join(found[0]["s"]) == "abcdefgh"


def test_a_batch_says_where_its_rows_come_from(tmp_path: Path) -> None:
    for number in range(2):
        pq.write_table(pa.table({"n": [1, 2, 3]}), tmp_path / f"{number}.parquet")

    (batch,) = primus.dataset(tmp_path)

    assert batch.spans == ((0, 0, 3), (1, 0, 3))


def test_arrow_batches_are_cut_to_the_same_rows(tmp_path: Path) -> None:
    table = pa.table({"n": list(range(10)), "s": [None, *"bcdefghij"]})

    found = batches(tmp_path, table, layout="arrow", batch_rows=4)

    assert [batch.data.num_rows for batch in found] == [4, 4, 2]
    assert pa.Table.from_batches([batch.data for batch in found]).to_pydict() == table.to_pydict()
    assert set(found[0]) == {"n", "s"}


def test_lines_of_text_are_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\r\n\xff\n\nlast")

    (batch,) = primus.dataset(tmp_path / "a.txt")

    assert batch["line"].tolist() == [b"one", b"\xff", b"", b"last"]


def test_a_folder_a_glob_a_list_and_a_relative_path_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "d").mkdir()
    for name in "ab":
        (tmp_path / "d" / f"{name}.txt").write_text(f"{name}\n")
    monkeypatch.chdir(tmp_path)

    names: list[str | list[str]] = ["d", "d/", "d/*.txt", "./d", ["d/a.txt", "d/b.txt"]]
    for one in names:
        (batch,) = primus.dataset(one)
        assert batch["line"].tolist() == [b"a", b"b"]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (None, r"this process was not started by a job .* give their path"),
        ("clicks", "no stream 'clicks': this process was not started by a job, and there is no"),
        ("no/such/*.parquet", "no/such: No such file or directory"),
    ],
)
def test_a_name_that_stands_for_nothing_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str | None, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PRIMUS_SOCKET", raising=False)

    with pytest.raises(primus.FeedError, match=sentence):
        primus.dataset(name)
