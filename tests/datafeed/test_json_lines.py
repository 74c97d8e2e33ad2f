"""Rows as JSON, by columns: the same bytes as a row at a time."""

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from primusd.datafeed.formats.base import RowBlock
from primusd.datafeed.formats.encoding import json_rows, json_text, pieces_of
from primusd.gateway.bodies import body_of

NOON = dt.datetime(2026, 3, 4, 12, 0, 0, 5, dt.UTC)
COLUMNS: dict[str, Any] = {
    "whole": pa.array([1, -(2**63), 2**63 - 1]),
    "small": pa.array([1, None, 255], pa.uint8()),
    "huge": pa.array([0, 1, 2**64 - 1], pa.uint64()),
    "real": pa.array([1.0, float("nan"), -0.0]),
    "single": pa.array([0.1, float("inf"), None], pa.float32()),
    "half": pa.array([0.5, 1.0, 65504.0], pa.float16()),
    "truth": pa.array([True, False, True]),
    "maybe": pa.array([True, None, False]),
    "text": pa.array(['a"b', "back\\slash\nline\x01", "schön 🌍"]),
    "named": pa.array(["x", None, "x"]).dictionary_encode(),
    "bytes": pa.array([b"\xff\x00", None, b""]),
    "day": pa.array([dt.date(2026, 1, 2), None, dt.date(1969, 12, 31)]),
    "at": pa.array([NOON, None, NOON], pa.timestamp("us", "UTC")),
    "nanos": pa.array([1, None, 3], pa.timestamp("ns")),
    "lasts": pa.array([1, None, 3], pa.duration("ms")),
    "exact": pa.array([Decimal("1.10"), None, Decimal("-3.00")]),
    "list": pa.array([[1, 2], [], None]),
    "nested": pa.array([{"a": 1, "b": [None, "x"]}, None, {"a": None, "b": None}]),
    "none": pa.nulls(3),
    'odd "name"\n': pa.array([1, 2, 3]),
}


def by_row(batch: pa.RecordBatch) -> bytes:
    return b"".join(msgspec.json.encode(row) + b"\n" for row in json_rows(batch))


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_of_each_type_is_written_as_by_row(name: str) -> None:
    batch = pa.RecordBatch.from_arrays([COLUMNS[name], COLUMNS["whole"]], names=[name, "whole2"])

    assert json_text(batch) == by_row(batch)
    assert json_text(batch.slice(1, 1)) == by_row(batch.slice(1, 1))
    assert json_text(batch.slice(0, 0)) == b""
    assert [sorted(json.loads(line)) for line in json_text(batch).splitlines()] == [
        sorted([name, "whole2"])
    ] * 3


def test_bytes_in_a_text_that_are_no_text_are_replaced_and_the_others_stay() -> None:
    broken = pa.array([b"good", b"b\xffd"], pa.binary()).cast(pa.string(), safe=False)
    batch = pa.RecordBatch.from_arrays([broken, pa.array([1, 2])], names=["text", "n"])

    found = [json.loads(line) for line in json_text(batch).splitlines()]

    assert found == [{"text": "good", "n": 1}, {"text": "b\ufffdd", "n": 2}]


@pytest.mark.parametrize("framing", ["lines", "lines0", "len32"])
def test_every_framing_knows_where_each_record_ends(framing: str) -> None:
    batch = pa.RecordBatch.from_arrays(list(COLUMNS.values()), names=list(COLUMNS))
    (piece,) = pieces_of([RowBlock(batch, 10, 13)], framing)
    records = read(piece.data, framing)

    assert records == by_row(batch).splitlines()
    framed = [len(one) + (4 if framing == "len32" else 1) for one in records]
    assert [piece.locate(sum(framed[:count])) for count in range(4)] == [10, 11, 12, 13]
    assert piece.locate(sum(framed[:2]) - 1) == 11


def read(data: bytes, framing: str) -> list[bytes]:
    if framing != "len32":
        return data.split(b"\n" if framing == "lines" else b"\0")[:-1]
    found = []
    while data:
        size = int.from_bytes(data[:4], "little")
        found.append(data[4 : 4 + size])
        data = data[4 + size :]
    return found


def test_over_http_records_of_bytes_are_objects_and_an_empty_batch_is_empty() -> None:
    lines: Any = pa.RecordBatch.from_arrays([pa.array([b"a", b"\xfe"])], names=["line"])

    assert body_of(lines, "ndjson") == '{"line":"a"}\n{"line":"\ufffd"}\n'.encode()
    assert body_of(lines, "lines") == b"a\n\xfe\n"
    assert body_of(lines.slice(0, 0), "ndjson") == b""
