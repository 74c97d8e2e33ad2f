"""Damaged, wrong and oversized files: named with range and first bytes; what is good comes."""

import gzip
import json
import lzma
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import zstandard

from primusd.datafeed.formats.base import ReadError, RowBlock, UnitFile
from primusd.datafeed.formats.opening import Opener
from primusd.datafeed.formats.settings import Settings
from tests.datafeed.format_files import (
    PACK,
    ipc,
    opened,
    prefixed,
    tfrecord,
    unit_of,
    values_of,
)

RECORDS = [f"record {number}".encode() for number in range(20)]
MIB = 1 << 20


def read_to_fault(unit: UnitFile) -> tuple[list[Any], ReadError]:
    """Return what came before the fault, and the fault."""
    blocks: list[RowBlock] = []

    def read() -> None:
        blocks.extend(unit.rows(0, unit.end, block_bytes=100))

    with pytest.raises(ReadError) as caught:
        read()
    return values_of(blocks), caught.value


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


def test_C48_a_flipped_byte_in_a_tfrecord_is_one_bad_record(tmp_path: Path) -> None:
    data = tfrecord(RECORDS)
    size = len(tfrecord(RECORDS[:1]))
    path = tmp_path / "a.tfrecord"
    path.write_bytes(flipped(data, 3 * size + 15))
    unit = opened(path, "tfrecord")

    rows, fault = read_to_fault(unit)

    assert rows == RECORDS[:3]
    assert (fault.kind, fault.lo, fault.hi) == ("data", 3 * size, 4 * size)
    assert "CRC of a record's data" in fault.message
    assert fault.head.startswith(struct.pack("<Q", len(RECORDS[3])))
    rest = values_of(list(unit.rows(fault.hi, unit.end, block_bytes=100)))
    assert rest == RECORDS[4:]


def test_C48_a_flipped_length_costs_its_record_and_no_more(tmp_path: Path) -> None:
    data = tfrecord(RECORDS)
    size = len(tfrecord(RECORDS[:1]))
    for at in range(12):
        path = tmp_path / f"{at}.tfrecord"
        path.write_bytes(flipped(data, 3 * size + at))
        unit = opened(path, "tfrecord")

        rows, fault = read_to_fault(unit)

        assert rows == RECORDS[:3]
        assert (fault.lo, fault.hi) == (3 * size, 4 * size)
        assert values_of(list(unit.rows(fault.hi, unit.end, block_bytes=64))) == RECORDS[4:]


def test_a_tfrecord_is_checked_as_far_as_it_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(flipped(tfrecord(RECORDS), 15))

    for verify in ("header", "none"):
        unit = opened(path, "tfrecord", verify=verify)
        assert len(values_of(list(unit.rows(0, unit.end, block_bytes=100)))) == len(RECORDS)


@pytest.mark.parametrize(
    ("form", "data", "options"),
    [
        ("tfrecord", tfrecord(RECORDS), {}),
        ("records", prefixed(RECORDS, "u32le"), {"prefix": "u32le"}),
        ("records", b"".join(one.ljust(10) for one in RECORDS), {"size": "10"}),
        ("protobuf", prefixed(RECORDS, "varint"), {}),
    ],
)
def test_a_file_that_was_cut_off_gives_what_is_whole_and_names_the_rest(
    tmp_path: Path, form: str, data: bytes, options: dict[str, str]
) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(data[:-3])
    unit = opened(path, form, Settings(format=form, options=options))

    rows, fault = read_to_fault(unit)

    assert [one.strip() for one in rows] == RECORDS[:-1]
    assert fault.kind == "data"
    assert fault.hi == len(data) - 3
    assert "bytes into a record" in fault.message
    assert "a.bin" in fault.message


@pytest.mark.parametrize("kind", sorted(PACK))
def test_a_compressed_file_that_was_cut_off_gives_what_can_be_read(
    tmp_path: Path, kind: str
) -> None:
    lines = b"".join(b"%d\n" % (number * 7919) for number in range(200_000))
    path = tmp_path / f"a.txt.{kind}"
    data = PACK[kind](lines)
    path.write_bytes(data[: len(data) // 2])
    unit = opened(path, "text", compression=kind)

    rows, fault = read_to_fault(unit)

    assert rows == lines.splitlines()[: len(rows)]
    assert (fault.kind, fault.lo) == ("data", len(rows))
    assert f"cannot be decompressed as {kind} after {len(rows)} records" in fault.message
    assert fault.head == data[:64]


def test_a_gz_with_a_wrong_check_sum_is_told(tmp_path: Path) -> None:
    data = gzip.compress(b"one\ntwo\n")
    path = tmp_path / "a.txt.gz"
    path.write_bytes(flipped(data, len(data) - 7))

    _, fault = read_to_fault(opened(path, "text", compression="gz"))

    assert "cannot be decompressed as gz" in fault.message


def test_members_one_after_the_other_are_one_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"one\nt") + gzip.compress(b"wo\n"))
    unit = opened(path, "text", compression="gz")

    assert values_of(list(unit.rows(0, unit.end, block_bytes=100))) == [b"one", b"two"]


def test_a_compressed_file_goes_to_a_pipe_with_known_places(tmp_path: Path) -> None:
    """M090."""
    path = tmp_path / "a.txt.zst"
    path.write_bytes(PACK["zst"](b"one\ntwo\nthree\n"))
    unit = opened(path, "text", compression="zst")

    pieces = list(unit.pieces(1, unit.end, framing="lines"))

    assert b"".join(piece.data for piece in pieces) == b"two\nthree\n"
    assert [pieces[0].locate(count) for count in (0, 3, 4, 9, 10)] == [1, 1, 2, 2, 3]


FORMS: list[tuple[str, str, dict[str, str]]] = [
    ("parquet", "no Parquet file", {}),
    ("arrow", "no Arrow IPC file", {}),
    ("tfrecord", "CRC of a record's length", {}),
    ("text", "not compressed as gz", {"compression": "gz"}),
]


@pytest.mark.parametrize(("form", "words", "options"), FORMS)
def test_a_file_of_another_format_is_refused_with_its_first_bytes(
    tmp_path: Path, form: str, words: str, options: dict[str, str]
) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"<html>not found</html>" * 9)

    with pytest.raises(ReadError, match=words) as caught:
        list(opened(path, form, Settings(options=options)).rows(0, 100, block_bytes=100))

    assert caught.value.kind == "data"
    assert caught.value.head.startswith(b"<html>")


def test_lines_that_are_compressed_without_their_name_telling_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "part-0"
    path.write_bytes(gzip.compress(b"one\n"))

    with pytest.raises(ReadError, match="begins as a file that gz compressed") as caught:
        opened(path, "text")

    assert caught.value.head.startswith(b"\x1f\x8b")


def test_a_bad_json_line_is_told_alone_and_those_around_it_come(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"a": number}).encode() for number in range(50)]
    for bad in (b"{broken", b'{"a": 1} {"a": 2}', b"[1]", b'{"a": "text"}'):
        lines[30] = bad
        path.write_bytes(b"\n".join(lines) + b"\n")
        unit = opened(path, "jsonl", Settings(format="jsonl", types={"a": "int64"}))
        start = sum(len(line) + 1 for line in lines[:30])

        rows, fault = read_to_fault(unit)

        assert rows == list(range(30))
        assert (fault.lo, fault.hi) == (start, start + len(bad) + 1)
        assert fault.head == bad + b"\n"
        assert "in row" not in str(fault), "pyarrow counts from where it was told to begin"
        rest = values_of(list(unit.rows(fault.hi, unit.end, block_bytes=100)))
        assert rest == list(range(31, 50))


@pytest.mark.parametrize("bad", [b"1,2,3", b"x,2", b'"1,2'])
def test_a_bad_csv_row_is_told_alone_and_those_around_it_come(tmp_path: Path, bad: bytes) -> None:
    rows = [b"%d,%d" % (number, -number) for number in range(50)]
    rows[30] = bad
    path = tmp_path / "a.csv"
    path.write_bytes(b"a,b\n" + b"\n".join(rows) + b"\n")
    unit = opened(path, "csv", Settings(format="csv", types={"a": "int64"}))

    good, fault = read_to_fault(unit)

    assert [row["a"] for row in good] == list(range(30))
    assert fault.head == bad + b"\n"
    rest = values_of(list(unit.rows(fault.hi, unit.end, block_bytes=100)))
    assert [row["a"] for row in rest] == list(range(31, 50))


def test_an_arrow_file_that_was_cut_off_is_told_when_it_is_opened(tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_pydict({"n": list(range(100))})
    path = tmp_path / "a.arrow"
    path.write_bytes(ipc([batch, batch], is_stream=True)[:-300])

    with pytest.raises(ReadError, match="ends in the middle of the message at byte"):
        opened(path, "arrow")


def test_a_bad_arrow_batch_is_told_with_its_rows(tmp_path: Path) -> None:
    batches = [pa.RecordBatch.from_pydict({"s": [f"{n}-{m}" for n in range(50)]}) for m in range(3)]
    data = bytearray(ipc(batches, is_stream=True))
    at = data.index(b"0-11-12-1")
    # The offsets of the second batch's texts, which lie before them.
    data[at - 64 : at - 4] = b"\xff" * 60
    path = tmp_path / "a.arrow"
    path.write_bytes(data)
    unit = opened(path, "arrow")

    rows, fault = read_to_fault(unit)

    assert rows == [f"{n}-0" for n in range(50)]
    assert (fault.lo, fault.hi) == (50, 100)
    assert values_of(list(unit.rows(100, 150, block_bytes=100))) == [f"{n}-2" for n in range(50)]


def test_files_without_a_row_are_passed_over_or_named(tmp_path: Path) -> None:
    table = pa.table({"n": pa.array([], pa.int64())})
    pq.write_table(table, tmp_path / "a.parquet")
    unit = unit_of(tmp_path / "a.parquet", format="parquet")

    (block,) = Opener(Settings()).open(unit).rows(0, 0, block_bytes=10)
    with pytest.raises(ReadError, match=r"a\.parquet has no row; onEmpty: skip") as caught:
        Opener(Settings(on_empty="fail")).open(unit)

    assert (block.row_count, block.batch.schema.names) == (0, ["n"])
    assert (caught.value.kind, caught.value.lo, caught.value.hi) == ("data", 0, 1)


# Memory: each in a process of its own, whose peak is measured against one that reads little.

PROBE = """
import json, sys
from pathlib import Path
import pyarrow as pa
from primusd.datafeed.formats.base import ReadError
from primusd.datafeed.formats.settings import Settings
from tests.datafeed.format_files import opened
def peak():
    # Not getrusage: its figure is inherited from the process that started this one.
    text = Path("/proc/self/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0]) << 10

path, form, packed, memory = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
settings = Settings(format=form, memory_bytes=memory)
options = {"compression": packed} if packed else {}
small = Path(sys.argv[5])
for _ in opened(small, form, settings, **options).rows(0, 1 << 62, block_bytes=16 << 20):
    pass
before = peak()
rows, told = 0, ""
try:
    for block in opened(path, form, settings, **options).rows(0, 1 << 62, block_bytes=16 << 20):
        rows += block.row_count
except ReadError as error:
    told = error.message
print(json.dumps([peak() - before, rows, told]))
"""


def grown(
    path: Path, small: Path, form: str, memory: int, packed: str = ""
) -> tuple[int, int, str]:
    """Return by how many bytes a process grew over a file, the rows it read, and the fault."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, path, form, packed, str(memory), small],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    found, rows, told = json.loads(done.stdout)
    return found, rows, told


def test_a_row_group_larger_than_memory_is_read_in_pieces(tmp_path: Path) -> None:
    memory, rows = 32 * MIB, 6_000_000
    for name, count in (("small", 1000), ("large", rows)):
        numbers = pa.array(range(count), pa.int64())
        columns = {"a": numbers, "b": pc.multiply(numbers, 7919)}
        pq.write_table(
            pa.table(columns),
            tmp_path / f"{name}.parquet",
            row_group_size=count,
            use_dictionary=False,
            compression="none",
        )
    large = tmp_path / "large.parquet"
    assert pq.ParquetFile(large).metadata.row_group(0).total_byte_size > 2 * memory

    found, read, told = grown(large, tmp_path / "small.parquet", "parquet", memory)

    assert (read, told) == (rows, "")
    assert found < memory


def test_a_line_of_two_hundred_mebibytes_is_refused_within_memory(tmp_path: Path) -> None:
    memory = 32 * MIB
    large = tmp_path / "large.txt"
    with large.open("wb") as file:
        file.write(b"first\n")
        file.truncate(200 * MIB)
    (tmp_path / "small.txt").write_bytes(b"a\n")

    found, rows, told = grown(large, tmp_path / "small.txt", "text", memory)

    assert rows == 1
    assert "no record ends within 8388608 bytes, a quarter of memory" in told
    assert found < memory


@pytest.mark.parametrize("unit", [b"\0" * 1024, b"x" * 1023 + b"\n"])
def test_a_gz_bomb_stays_within_memory(tmp_path: Path, unit: bytes) -> None:
    memory, count = 32 * MIB, 300 * 1024
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    large = tmp_path / "large.txt.gz"
    with large.open("wb") as file:
        for _ in range(count // 1024):
            file.write(packer.compress(unit * 1024))
        file.write(packer.flush())
    assert large.stat().st_size < MIB
    (tmp_path / "small.txt.gz").write_bytes(gzip.compress(b"a\n"))

    found, rows, told = grown(large, tmp_path / "small.txt.gz", "text", memory, "gz")

    if unit.endswith(b"\n"):
        assert (rows, told) == (count, "")
    else:
        assert "no record ends within 8388608 bytes, a quarter of memory" in told
    assert found < memory


def test_a_record_longer_than_memory_allows_is_passed_over_whole(tmp_path: Path) -> None:
    """M098."""
    records = [b"a", b"x" * 500_000, b"b"]
    path = tmp_path / "a.bin"
    path.write_bytes(prefixed(records, "u32be"))
    small = Settings(format="records", options={"prefix": "u32be"}, memory_bytes=400_000)
    unit = opened(path, "records", small)

    rows, fault = read_to_fault(unit)

    assert rows == [b"a"]
    assert "a record of 500000 bytes" in fault.message
    assert (fault.lo, fault.hi) == (5, 5 + 4 + 500_000)
    assert values_of(list(unit.rows(fault.hi, unit.end, block_bytes=100))) == [b"b"]


def test_positions_of_a_pipe_of_records_are_rounded_down(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(tfrecord(RECORDS))
    unit = opened(path, "tfrecord")

    whole = list(unit.pieces(0, unit.end, framing="raw"))
    lines = list(unit.pieces(0, unit.end, framing="lines"))
    zeros = list(unit.pieces(0, unit.end, framing="lines0"))
    lengths = list(unit.pieces(0, unit.end, framing="len32"))

    assert b"".join(piece.data for piece in whole) == path.read_bytes()
    assert b"".join(piece.data for piece in lines) == b"".join(one + b"\n" for one in RECORDS)
    assert b"".join(piece.data for piece in zeros) == b"".join(one + b"\0" for one in RECORDS)
    assert b"".join(piece.data for piece in lengths) == prefixed(RECORDS, "u32le")
    size = len(tfrecord(RECORDS[:1]))
    assert [whole[0].locate(count) for count in (0, size - 1, size, size + 1)] == [0, 0, size, size]
    assert [lines[0].locate(count) for count in (8, 9, 10)] == [0, size, size]
    assert lengths[0].locate(len(RECORDS[0]) + 4) == size


@pytest.mark.parametrize("kind", ["xz", "zst"])
def test_what_looks_further_back_than_memory_allows_is_refused_with_what_to_set(
    tmp_path: Path, kind: str
) -> None:
    path = tmp_path / f"a.txt.{kind}"
    if kind == "xz":
        filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 64 << 20}]
        path.write_bytes(lzma.compress(b"one\n", filters=filters))
        words = "takes more than 16 MiB, half of memory; xz -9 needs memory: 160Mi"
    else:
        made = zstandard.ZstdCompressionParameters(window_log=27)
        packer = zstandard.ZstdCompressor(compression_params=made).compressobj()
        path.write_bytes(packer.compress(b"one\n") + packer.flush())
        words = (
            "with a window of 128 MiB, and half of memory may be looked back; set memory to 256Mi"
        )
    small = Settings(format="text", memory_bytes=32 * MIB)
    large = Settings(format="text", memory_bytes=512 * MIB)

    with pytest.raises(ReadError, match=words):
        list(opened(path, "text", small, compression=kind).rows(0, 9, block_bytes=100))

    assert values_of(list(opened(path, "text", large, compression=kind).rows(0, 9, block_bytes=9)))


def test_xz_streams_one_after_the_other_with_zeros_between_are_one_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.xz"
    path.write_bytes(lzma.compress(b"one\nt") + bytes(8) + lzma.compress(b"wo\n") + bytes(4))
    unit = opened(path, "text", compression="xz")

    assert values_of(list(unit.rows(0, unit.end, block_bytes=2))) == [b"one", b"two"]


def test_bad_data_before_a_bad_length_is_not_passed_on(tmp_path: Path) -> None:
    size = len(tfrecord(RECORDS[:1]))
    path = tmp_path / "a.tfrecord"
    path.write_bytes(flipped(flipped(tfrecord(RECORDS), 3 * size + 15), 4 * size))
    unit = opened(path, "tfrecord")

    rows, fault = read_to_fault(unit)

    assert rows == RECORDS[:3]
    assert (fault.lo, fault.hi) == (3 * size, 4 * size)
