"""Every format: any cuts of [0, end) give each record to exactly one side, in order, in place."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from primusd.datafeed.formats.base import RowBlock, UnitFile
from primusd.datafeed.formats.settings import Settings
from tests.datafeed.format_files import (
    PACK,
    PREFIX,
    ipc,
    jsonl,
    opened,
    prefixed,
    tfrecord,
    values_of,
)

Cuts = list[float]
CUTS = st.lists(st.floats(0, 1), max_size=6)
RECORDS = st.lists(st.binary(max_size=40), max_size=30) | st.lists(
    st.tuples(st.binary(max_size=9), st.integers(1, 20)), max_size=2
).map(lambda pairs: [record for record, count in pairs for _ in range(count)])
BLOCK = st.integers(1, 300)
quick = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


def read(unit: UnitFile, lo: int, hi: int, block_bytes: int) -> list[RowBlock]:
    """Read a range and look at the positions of its blocks, each row's included."""
    found = list(unit.rows(lo, hi, block_bytes=block_bytes))
    assert found[0].lo == lo
    assert all(a.hi == b.lo for a, b in itertools.pairwise(found))
    assert found[-1].hi == hi
    for block in found:
        places = [block.position_after(count) for count in range(1, block.row_count + 1)]
        assert places == sorted(places)
        assert all(block.lo < place <= block.hi for place in places)
    return found


def in_parts(unit: UnitFile, cuts: Cuts, block_bytes: int) -> list[Any]:
    """Return the rows of a unit, read range by range."""
    end = unit.end
    bounds = sorted({0, end, *(int(cut * end) for cut in cuts)})
    blocks: list[RowBlock] = []
    for lo, hi in itertools.pairwise(bounds):
        blocks += read(unit, lo, hi, block_bytes)
    return values_of(blocks)


def goes_on(unit: UnitFile, rows: list[Any], block_bytes: int) -> None:
    """From the position after a row exactly the rest comes; ten rows, where there are many."""
    at, step = 0, max(1, len(rows) // 10)
    for block in unit.rows(0, unit.end, block_bytes=block_bytes):
        for count in range(0, block.row_count, step):
            place = block.position_after(count)
            rest = values_of(list(unit.rows(place, unit.end, block_bytes=block_bytes)))
            assert rest == rows[at + count :]
        at += block.row_count


@pytest.fixture
def path(tmp_path: Path) -> Callable[[bytes, str], Path]:
    def write(data: bytes, name: str) -> Path:
        (tmp_path / name).write_bytes(data)
        return tmp_path / name

    return write


@quick
@given(records=RECORDS, cuts=CUTS, block_bytes=BLOCK)
def test_tfrecord(path: Any, records: list[bytes], cuts: Cuts, block_bytes: int) -> None:
    unit = opened(path(tfrecord(records), "a.tfrecord"), "tfrecord")

    assert in_parts(unit, cuts, block_bytes) == records
    goes_on(unit, records, block_bytes)


def test_tfrecord_is_found_again_from_every_byte(path: Any) -> None:
    records = [bytes(30), b"", b"\xff" * 20, bytes(range(256))]
    data = tfrecord(records)
    unit = opened(path(data, "a.tfrecord"), "tfrecord")

    for cut in range(len(data) + 1):
        found = read(unit, 0, cut, 64) + read(unit, cut, len(data), 64)
        assert values_of(found) == records


@quick
@given(records=RECORDS, cuts=CUTS, block_bytes=BLOCK, prefix=st.sampled_from(sorted(PREFIX)))
def test_records_with_their_length_in_front(
    path: Any, records: list[bytes], cuts: Cuts, block_bytes: int, prefix: str
) -> None:
    unit = opened(path(prefixed(records, prefix), "a.bin"), "records", prefix=prefix)

    assert in_parts(unit, cuts, block_bytes) == records
    goes_on(unit, records, block_bytes)


@quick
@given(
    pairs=st.lists(st.tuples(st.binary(max_size=9), st.binary(max_size=20)), max_size=20), cuts=CUTS
)
def test_M093_records_of_key_and_value_as_the_original_framed_them(
    path: Any, pairs: list[tuple[bytes, bytes]], cuts: Cuts
) -> None:
    data = b"".join(prefixed(pair, "u64le") for pair in pairs)
    unit = opened(path(data, "a.bin"), "records", prefix="u64le", fields="key,value")

    assert in_parts(unit, cuts, 100) == [{"key": key, "value": value} for key, value in pairs]


@quick
@given(count=st.integers(0, 40), size=st.integers(1, 20), cuts=CUTS, block_bytes=BLOCK)
def test_records_of_one_size(
    path: Any, count: int, size: int, cuts: Cuts, block_bytes: int
) -> None:
    records = [bytes([number]) * size for number in range(count)]
    unit = opened(path(b"".join(records), "a.bin"), "records", size=str(size))

    assert in_parts(unit, cuts, block_bytes) == records
    goes_on(unit, records, block_bytes)


@quick
@given(data=st.binary(max_size=5000), cuts=CUTS, block_bytes=BLOCK)
def test_raw_bytes(path: Any, data: bytes, cuts: Cuts, block_bytes: int) -> None:
    unit = opened(path(data, "a.bin"), "raw", chunk="64")

    assert b"".join(in_parts(unit, cuts, block_bytes)) == data


ROWS = st.lists(
    st.fixed_dictionaries({"a": st.integers(-9, 9), "b": st.text('xyzé"\\ ', max_size=5)}),
    max_size=25,
)
BLANKS = st.lists(st.sampled_from(["", "\n", "\r\n", "\n\n"]), min_size=27, max_size=27)


@quick
@given(rows=ROWS, blanks=BLANKS, cuts=CUTS, block_bytes=BLOCK)
def test_json_lines_with_blank_lines_between(
    path: Any, rows: list[dict[str, Any]], blanks: list[str], cuts: Cuts, block_bytes: int
) -> None:
    lines = [jsonl([row]) for row in rows]
    data = b"".join(blank.encode() + line for blank, line in zip(blanks, lines, strict=False))
    data += blanks[-1].encode()
    types = {"a": "int64", "b": "string"}
    unit = opened(path(data, "a.jsonl"), "jsonl", Settings(format="jsonl", types=types))

    assert in_parts(unit, cuts, block_bytes) == rows
    goes_on(unit, rows, block_bytes)


def as_csv(row: dict[str, Any], *, line_end: str = "\n") -> bytes:
    text = str(row["b"]).replace('"', '""')
    return f'{row["a"]},"{text}"{line_end}'.encode()


@quick
@given(
    rows=ROWS,
    cuts=CUTS,
    block_bytes=BLOCK,
    line_end=st.sampled_from(["\n", "\r\n"]),
    has_bom=st.booleans(),
)
def test_csv_with_a_header_in_each_file(
    path: Any,
    rows: list[dict[str, Any]],
    cuts: Cuts,
    block_bytes: int,
    line_end: str,
    *,
    has_bom: bool,
) -> None:
    head = b"\xef\xbb\xbf" * has_bom + f"a,b{line_end}".encode()
    data = head + b"".join(as_csv(row, line_end=line_end) for row in rows)
    given_types = Settings(format="csv", types={"a": "int64", "b": "string"})
    unit = opened(path(data, "a.csv"), "csv", given_types)

    assert in_parts(unit, cuts, block_bytes) == rows
    goes_on(unit, rows, block_bytes)


@quick
@given(texts=st.lists(st.text('ab"\n\r,', max_size=8), max_size=20), cuts=CUTS, block_bytes=BLOCK)
def test_csv_whose_values_have_line_ends(
    path: Any, texts: list[str], cuts: Cuts, block_bytes: int
) -> None:
    rows = [{"a": number, "b": text} for number, text in enumerate(texts)]
    data = b"a,b\n" + b"".join(as_csv(row) for row in rows)
    made = Settings(
        format="csv", options={"multiline": "true"}, types={"a": "int64", "b": "string"}
    )
    unit = opened(path(data, "a.csv"), "csv", made)

    assert in_parts(unit, cuts, block_bytes) == rows


@quick
@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    cuts=CUTS,
    block_bytes=BLOCK,
    is_stream=st.booleans(),
)
def test_arrow_ipc_with_dictionaries(
    path: Any, sizes: list[int], cuts: Cuts, block_bytes: int, *, is_stream: bool
) -> None:
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    names = pa.array(["x", "y", "z"])
    batches = []
    for start, size in zip(starts, sizes, strict=True):
        numbers = list(range(start, start + size))
        codes = pa.array([number % 3 for number in numbers], pa.int8())
        columns = [pa.array(numbers, pa.int32()), pa.DictionaryArray.from_arrays(codes, names)]
        batches.append(pa.RecordBatch.from_arrays(columns, names=["n", "name"]))
    unit = opened(path(ipc(batches, is_stream=is_stream), "a.arrow"), "arrow")

    rows = [{"n": n, "name": "xyz"[n % 3]} for n in range(sum(sizes))]
    assert unit.end == unit.row_count == len(rows)
    assert in_parts(unit, cuts, block_bytes) == rows


@quick
@given(
    rows=st.lists(st.integers(0, 100), min_size=1, max_size=60),
    group=st.integers(1, 20),
    cuts=CUTS,
    block_bytes=BLOCK,
)
def test_nested_parquet(
    path: Any, rows: list[int], group: int, cuts: Cuts, block_bytes: int
) -> None:
    found = [{"n": n, "deep": {"l": list(range(n % 4)), "s": f"s{n}"}} for n in rows]
    file = path(b"", "a.parquet")
    pq.write_table(pa.Table.from_pylist(found), file, row_group_size=group)

    assert in_parts(opened(file, "parquet"), cuts, block_bytes) == found


@quick
@given(
    records=st.lists(st.binary(max_size=30), max_size=20),
    kind=st.sampled_from(sorted(PACK)),
    cuts=CUTS,
    block_bytes=BLOCK,
)
def test_compressed_records_are_counted(
    path: Any, records: list[bytes], kind: str, cuts: Cuts, block_bytes: int
) -> None:
    data = PACK[kind](tfrecord(records))
    unit = opened(path(data, f"a.tfrecord.{kind}"), "tfrecord", compression=kind)

    assert values_of(list(unit.rows(0, unit.end, block_bytes=block_bytes))) == records
    assert (unit.end, unit.row_count, unit.cuts) == (len(records), len(records), (len(records),))
    bounds = sorted({0, unit.end, *(int(cut * unit.end) for cut in cuts)})
    found: list[RowBlock] = []
    for lo, hi in itertools.pairwise(bounds):
        found += unit.rows(lo, hi, block_bytes=block_bytes)
    assert values_of(found) == records
    assert [block.lo for block in found] == [0, *(block.hi for block in found[:-1])][: len(found)]
