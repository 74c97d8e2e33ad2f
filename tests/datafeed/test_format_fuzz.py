"""Whatever bytes a file has: rows come, or a ReadError; nothing else, and never without end."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from primusd.datafeed.formats.base import ReadError
from primusd.datafeed.formats.settings import Settings
from tests.datafeed.format_files import PACK, ipc, jsonl, opened, prefixed, tfrecord, values_of

RECORDS = [f"record number {number}".encode() * (number % 5) for number in range(40)]
ROWS = [{"n": number, "s": f"row {number}", "l": [number]} for number in range(40)]
MEMORY = 8 << 20


def parquet() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(ROWS), sink, row_group_size=10)
    return sink.getvalue().to_pybytes()


def arrow() -> list[pa.RecordBatch]:
    return pa.Table.from_pylist(ROWS).to_batches(max_chunksize=10)


CSV = b"n,s\n" + b"".join(b'%d,"row %d"\n' % (number, number) for number in range(40))
FILES: dict[str, tuple[str, bytes, dict[str, str]]] = {
    "text": ("text", b"\n".join(RECORDS), {}),
    "jsonl": ("jsonl", jsonl(ROWS), {}),
    "csv": ("csv", CSV, {}),
    "csv multiline": ("csv", CSV, {"multiline": "true"}),
    "tfrecord": ("tfrecord", tfrecord(RECORDS), {}),
    "tfrecord unchecked": ("tfrecord", tfrecord(RECORDS), {"verify": "none"}),
    "u32le": ("records", prefixed(RECORDS, "u32le"), {"prefix": "u32le"}),
    "varint": ("protobuf", prefixed(RECORDS, "varint"), {}),
    "pairs": ("records", prefixed(RECORDS, "u64le"), {"prefix": "u64le", "fields": "k,v"}),
    "fixed": ("records", b"".join(RECORDS), {"size": "7"}),
    "parquet": ("parquet", parquet(), {}),
    "arrow file": ("arrow", ipc(arrow(), is_stream=False), {}),
    "arrow stream": ("arrow", ipc(arrow(), is_stream=True), {}),
    **{
        f"text {kind}": ("text", pack(b"\n".join(RECORDS)), {"compression": kind})
        for kind, pack in PACK.items()
    },
}
Change = tuple[float, int]


@pytest.fixture(scope="module")
def write(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bytes], Path]:
    folder = tmp_path_factory.mktemp("fuzz")
    numbers = itertools.count()

    def make(data: bytes) -> Path:
        path = folder / str(next(numbers))
        path.write_bytes(data)
        return path

    return make


def read(path: Path, form: str, options: dict[str, str]) -> tuple[list[Any], list[ReadError]]:
    """Read a file as a reader does: behind a fault whose end is told it goes on."""
    faults: list[ReadError] = []
    rows: list[Any] = []
    try:
        unit = opened(path, form, Settings(form, options=options, memory_bytes=MEMORY), **options)
    except ReadError as error:
        return [], [error]
    at = 0
    for _ in range(200):
        try:
            for block in unit.rows(at, unit.end, block_bytes=200):
                assert block.lo >= at
                at = block.hi
                rows += values_of([block])
        except ReadError as error:
            faults.append(error)
            if error.hi <= at:
                break
            at = error.hi
        else:
            break
    return rows, faults


@pytest.mark.parametrize("name", FILES)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.lists(st.tuples(st.floats(0, 1), st.integers(1, 255)), max_size=3),
    end=st.floats(0, 1) | st.just(1.0),
)
def test_damaged_files_give_rows_or_faults_with_their_place(
    write: Any, name: str, changes: list[Change], end: float
) -> None:
    form, whole, options = FILES[name]
    data = bytearray(whole[: int(len(whole) * end)])
    for place, mask in changes:
        if data:
            data[min(int(place * len(data)), len(data) - 1)] ^= mask
    path = write(bytes(data) or b"\n")

    rows, faults = read(path, form, options)

    assert all(fault.kind == "data" and str(path) in fault.message for fault in faults)
    if bytes(data) == whole and not faults and form == "tfrecord":
        assert rows == RECORDS
    if form == "tfrecord" and "verify" not in options:
        # What is checked comes as it was written, or not at all.
        assert all(row in RECORDS for row in rows)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.binary(min_size=1, max_size=300),
    name=st.sampled_from(sorted(FILES)),
)
def test_any_bytes_at_all_are_read_or_refused(write: Any, data: bytes, name: str) -> None:
    form, _, options = FILES[name]

    rows, faults = read(write(data), form, options)

    assert json.dumps([str(row)[:10] for row in rows]) or faults
