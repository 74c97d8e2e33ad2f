"""Records on standard input in every framing, as programs of other languages read them."""

import json
import struct
import sys
from pathlib import Path

import anyio
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.grantor import Grantor
from tests.edges.fed_trainer import fed, stdin_plan, units_of

IN_HEX = (sys.executable, "-c", "import sys; print(sys.stdin.buffer.read().hex())")

READ_ARROW = """
import sys
import pyarrow as pa

stream = pa.ipc.open_stream(sys.stdin.buffer)
for batch in stream:
    for row in batch.to_pylist():
        print(row["n"], row["name"], row["kind"])
"""


def feed(grantor: Grantor, framing: str, *command: str) -> str:
    async def main() -> str:
        async with fed(grantor, stdin_plan(framing)) as one:
            return await one.finish(one.start(list(command)))

    return anyio.run(main)


def split(framing: str, data: bytes) -> list[bytes]:
    if framing == "lines0":
        assert data.endswith(b"\0")
        return data[:-1].split(b"\0")
    records = []
    while data:
        (length,) = struct.unpack_from("<I", data)
        records.append(data[4 : 4 + length])
        data = data[4 + length :]
    return records


@pytest.mark.parametrize("framing", ["lines0", "len32"])
def test_lines_come_whole_in_a_framing_that_tells_where_each_ends(
    tmp_path: Path, framing: str
) -> None:
    lines = ["one", "", "two words", "x" * 70_000, "no end"]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    grantor = Grantor("rows", units_of(tmp_path), granule=16, epochs=2)

    out = feed(grantor, framing, *IN_HEX)

    found = [record.decode() for record in split(framing, bytes.fromhex(out.strip()))]
    assert found == lines * 2
    assert grantor.is_done


def test_rows_come_as_json_in_a_framing(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1, 2], "name": ["a\nb", None]}), tmp_path / "a.parquet")
    grantor = Grantor("rows", units_of(tmp_path))

    out = feed(grantor, "lines0", *IN_HEX)

    found = [json.loads(record) for record in split("lines0", bytes.fromhex(out.strip()))]
    assert found == [{"n": 1, "name": "a\nb"}, {"n": 2, "name": None}]


def test_rows_of_many_leases_and_files_are_one_arrow_stream(tmp_path: Path) -> None:
    """One schema, before the first row that is delivered; dictionaries come as their values."""
    for part in range(3):
        numbers = list(range(part * 100, part * 100 + 100))
        kinds = pa.array([f"k{n % (part + 2)}" for n in numbers]).dictionary_encode()
        table = pa.table({"n": numbers, "name": [str(n) for n in numbers], "kind": kinds})
        pq.write_table(table, tmp_path / f"{part}.parquet", row_group_size=30)
    grantor = Grantor("rows", units_of(tmp_path), granule=17, epochs=2)

    out = feed(grantor, "arrow-stream", sys.executable, "-c", READ_ARROW)

    expected = [f"{n} {n} k{n % (n // 100 + 2)}" for n in range(300)] * 2
    assert out.splitlines() == expected
    assert grantor.is_done


def test_c53_a_reader_of_arrow_that_is_killed_has_taken_whole_batches_only(tmp_path: Path) -> None:
    table = pa.table({"n": list(range(60_000)), "name": ["x" * 50] * 60_000, "kind": [""] * 60_000})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=5_000)
    grantor = Grantor("rows", units_of(tmp_path))
    head = "import sys; sys.stdin.buffer.read(2_500_000); import os; os.kill(os.getpid(), 9)"

    async def main() -> str:
        async with fed(grantor, stdin_plan("arrow-stream"), name="a") as first:
            killed = first.start([sys.executable, "-c", head])
            await anyio.to_thread.run_sync(killed.communicate)
            first.end(killed)
        async with fed(grantor, stdin_plan("arrow-stream"), name="b") as second:
            return await second.finish(second.start([sys.executable, "-c", READ_ARROW]))

    numbers = [int(line.split()[0]) for line in anyio.run(main).splitlines()]

    assert numbers == list(range(numbers[0], 60_000))
    assert 0 < numbers[0] < 60_000 * 2_500_000 // 4_000_000
    assert grantor.is_done
