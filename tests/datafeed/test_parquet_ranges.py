"""Parquet: any range of rows, groups that are not asked for left alone, faults told with rows."""

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from primusd.datafeed.formats.base import ReadError, open_unit
from primusd.datafeed.protocol import Unit


def unit_of(path: Path) -> Unit:
    found = path.stat()
    return Unit("file", str(path), found.st_size, str(found.st_mtime_ns), {"format": "parquet"})


def write(path: Path, row_count: int, group_rows: int) -> Unit:
    table = pa.table({"n": list(range(row_count)), "name": [f"row {n}" for n in range(row_count)]})
    pq.write_table(table, path, row_group_size=group_rows, use_dictionary=False)
    return unit_of(path)


def numbers(unit: Unit, lo: int, hi: int, block_bytes: int = 1 << 20) -> list[int]:
    opened = open_unit(unit, "", ("n",))
    found: list[Any] = []  # what a column holds is not known to its type
    at = lo
    for block in opened.rows(lo, hi, block_bytes=block_bytes):
        assert block.lo == at
        at = block.hi
        found += block.batch.column(0).to_pylist()
    assert at == hi
    return found


@given(
    row_count=st.integers(1, 40),
    group_rows=st.integers(1, 17),
    bounds=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    block_bytes=st.integers(1, 500),
)
def test_any_range_of_rows_is_read_exactly(
    tmp_path_factory: pytest.TempPathFactory,
    row_count: int,
    group_rows: int,
    bounds: tuple[float, float],
    block_bytes: int,
) -> None:
    unit = write(tmp_path_factory.mktemp("any") / "a.parquet", row_count, group_rows)
    lo, hi = sorted(int(bound * row_count) for bound in bounds)

    assert numbers(unit, lo, hi, block_bytes) == list(range(lo, hi))


def test_cuts_are_the_ends_of_the_row_groups(tmp_path: Path) -> None:
    opened = open_unit(write(tmp_path / "a.parquet", 25, 10), "", ())

    assert opened.cuts == (10, 20, 25)
    assert opened.end == opened.row_count == 25


def test_a_file_without_rows_has_an_end(tmp_path: Path) -> None:
    opened = open_unit(write(tmp_path / "a.parquet", 0, 10), "", ())

    assert opened.cuts == (0,)
    (block,) = opened.rows(0, 0, block_bytes=100)
    assert block.row_count == 0
    assert block.batch.schema.names == ["n", "name"]


def test_only_the_asked_columns_are_read(tmp_path: Path) -> None:
    unit = write(tmp_path / "a.parquet", 3, 3)

    (block,) = open_unit(unit, "", ("name",)).rows(0, 3, block_bytes=1000)

    assert block.batch.schema.names == ["name"]


def test_a_column_that_is_missing_is_named_with_the_nearest(tmp_path: Path) -> None:
    unit = write(tmp_path / "a.parquet", 3, 3)

    with pytest.raises(ReadError, match=r"has no column nmae; .* did you mean name\?") as caught:
        open_unit(unit, "", ("nmae",))

    assert caught.value.kind == "data"


def test_a_file_that_is_no_parquet_is_told_with_its_first_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"label,user\n1,2\n" * 10)

    with pytest.raises(ReadError, match="is no Parquet file") as caught:
        open_unit(unit_of(path), "", ())

    assert caught.value.kind == "data"
    assert caught.value.head.startswith(b"label,user")


def test_a_bad_row_group_is_told_with_its_rows_and_those_before_it_come(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    unit = write(path, 30, 10)
    second = pq.ParquetFile(path).metadata.row_group(1).column(0)
    with path.open("r+b") as file:
        file.seek(second.data_page_offset)
        file.write(b"\xff" * second.total_compressed_size)
    os.utime(path, ns=(1, int(unit.pin)))

    found: list[object] = []

    def read() -> None:
        for block in open_unit(unit, "", ("n",)).rows(5, 30, block_bytes=1 << 20):
            found.extend(block.batch.column(0).to_pylist())

    with pytest.raises(ReadError, match="bad in row group 1") as caught:
        read()

    assert found == [5, 6, 7, 8, 9]
    assert (caught.value.kind, caught.value.lo, caught.value.hi) == ("data", 10, 20)


def test_a_file_written_over_while_it_is_read_is_changed_not_bad(tmp_path: Path) -> None:
    unit = write(tmp_path / "a.parquet", 100, 50)
    blocks = open_unit(unit, "", ()).rows(0, 100, block_bytes=1 << 20)
    next(blocks)

    (tmp_path / "a.parquet").write_bytes(b"\xff" * 9_999)

    with pytest.raises(ReadError, match="changed since it was listed") as caught:
        list(blocks)
    assert caught.value.kind == "changed"


def test_rows_go_to_a_pipe_as_json_lines_with_known_boundaries(tmp_path: Path) -> None:
    unit = write(tmp_path / "a.parquet", 5, 2)

    pieces = list(open_unit(unit, "", ()).pieces(1, 5, framing="lines"))

    lines = b"".join(piece.data for piece in pieces).splitlines(keepends=True)
    assert [json.loads(line) for line in lines] == [
        {"n": n, "name": f"row {n}"} for n in range(1, 5)
    ]
    whole = pieces[1]
    assert (whole.lo, whole.hi) == (2, 4)
    first = len(lines[1])
    assert [whole.locate(n) for n in (0, first - 1, first, first + 1)] == [2, 2, 3, 3]
    assert whole.locate(whole.byte_count) == 4


def test_values_that_json_lacks_are_written_as_documented(tmp_path: Path) -> None:
    table = pa.table(
        {
            "x": pa.array([float("nan"), None, 1.5]),
            "b": pa.array([b"\xff\x00", None, b""], pa.binary()),
            "t": pa.array([0, None, 86_400_000], pa.timestamp("ms")),
            "s": ["é", 'quo"te', "new\nline"],
            "d": pa.array([1500, None, 0], pa.duration("ms")),
            "u": pa.array([1, None, 0], pa.timestamp("ns")),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")

    pieces = open_unit(unit_of(tmp_path / "a.parquet"), "", ()).pieces(0, 3, framing="lines")

    rows = [json.loads(line) for piece in pieces for line in piece.data.splitlines()]
    assert rows == [
        {
            "x": None,
            "b": "/wA=",
            "t": "1970-01-01T00:00:00",
            "s": "é",
            "d": 1.5,
            "u": "1970-01-01T00:00:00.000000001",
        },
        {"x": None, "b": None, "t": None, "s": 'quo"te', "d": None, "u": None},
        {
            "x": 1.5,
            "b": "",
            "t": "1970-01-02T00:00:00",
            "s": "new\nline",
            "d": 0,
            "u": "1970-01-01T00:00:00.000000000",
        },
    ]


def test_raw_bytes_of_parquet_are_refused_with_what_to_use(tmp_path: Path) -> None:
    unit = write(tmp_path / "a.parquet", 5, 2)

    with pytest.raises(ReadError, match="use framing: lines"):
        next(open_unit(unit, "", ()).pieces(0, 5, framing="raw"))
