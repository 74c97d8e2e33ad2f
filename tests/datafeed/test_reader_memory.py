"""A whole reader, buffers and all, stays within the memory that its stream has."""

import gzip
import json
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

MIB = 1 << 20
MEMORY = 32 * MIB
READER = """
import json, sys, threading, time
from primusd.datafeed.formats.lean import load_lean
load_lean(int(sys.argv[-1]))
from primusd.datafeed.ledger.model import OPEN_END
from primusd.datafeed.protocol import FeedOrders, Lease
from primusd.datafeed.reader.reader import StreamReader
from primusd.executor.protocol import FeedPlan
from tests.datafeed.format_files import unit_of
from pathlib import Path

def peak():
    # Not getrusage: its figure is inherited from the process that started this one.
    text = Path("/proc/self/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0]) << 10

def read(path, form, packed, memory, *, waits):
    options = {"compression": packed} if packed else {}
    said = {"format": form, "options": json.dumps(options)}
    plan = FeedPlan("s", "socket", "arrow", said, memory)
    lock = threading.Condition()
    reader = StreamReader(plan, lock, time.monotonic)
    unit = unit_of(Path(path), format=form, **options)
    lease = Lease(0, 0, 0, OPEN_END, 1, 0, body=unit)
    with lock:
        orders = FeedOrders("s", (lease,), "serve", 0)
        reader.state.is_open = True
        reader.state.obey(orders, sent_at=time.monotonic(), ttl_s=1e6)
    thread = threading.Thread(target=reader.read)
    thread.start()
    rows, full = 0, False
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with lock:
            if waits and not full:
                # Nobody takes: it reads ahead until its room is used up.
                before = reader.buffered_bytes
                lock.wait(0.2)
                full = before == reader.buffered_bytes and len(reader.turns) > 0
                continue
            found = reader.next_block()
            if found is None:
                if reader.has_nothing:
                    break
                lock.wait(0.2)
                continue
            token, block = found
            rows += getattr(block, "row_count", 0)
            holding = reader.state.holding(token)
            holding.delivered = max(holding.delivered, block.hi)
        del found, block
    with lock:
        reader.close()
    thread.join(10)
    return rows

path, small, form, packed, memory = sys.argv[1:]
read(small, form, packed, int(memory), waits=False)
before = peak()
rows = read(path, form, packed, int(memory), waits=True)
print(json.dumps([peak() - before, rows]))
"""


def grown(path: Path, small: Path, form: str, packed: str = "") -> tuple[int, int]:
    """Return by how many bytes a process grew over a file, and the rows that it got."""
    done = subprocess.run(
        [sys.executable, "-c", READER, path, small, form, packed, str(MEMORY)],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    found, rows = json.loads(done.stdout)
    return found, rows


def group_file(path: Path, columns: int, mib: int, compression: str) -> int:
    """Write a file of one row group of so much, decompressed; return its rows.

    Compressed it is small: its numbers change slowly.
    """
    rows = mib * MIB // 8 // columns
    numbers = np.arange(rows)
    column = pa.array(numbers if compression == "none" else numbers // 1000)
    table = pa.table([column] * columns, names=[f"c{number}" for number in range(columns)])
    # Any: its stubs take names of codecs only as literals.
    options: dict[str, Any] = {"use_dictionary": False, "compression": compression}
    options["row_group_size"] = rows
    pq.write_table(table, path, **options)
    return rows


LARGE_MIB = 2048
GROUPS = [
    ("4 columns, plain", 4, 96, "none"),
    ("40 columns, plain", 40, 96, "none"),
    ("40 columns, small pages", 40, 192, "snappy"),
    ("40 columns, smallest pages", 40, 192, "zstd"),
    ("2 GiB, 4 columns", 4, LARGE_MIB, "snappy"),
    ("2 GiB, 40 columns", 40, LARGE_MIB, "snappy"),
    ("2 GiB, 40 columns, plain", 40, LARGE_MIB, "none"),
]


@pytest.mark.parametrize(
    ("columns", "mib", "compression"),
    [
        pytest.param(*shape, id=name, marks=[pytest.mark.soak] if shape[1] == LARGE_MIB else [])
        for name, *shape in GROUPS
    ],
)
def test_a_row_group_many_times_as_large_as_memory(
    tmp_path: Path, columns: int, mib: int, compression: str
) -> None:
    """What is held of each column counts: its open page, its buffer, and what compressed it is."""
    large, small = tmp_path / "large.parquet", tmp_path / "small.parquet"
    count = group_file(large, columns, mib, compression)
    group_file(small, columns, 1, compression)

    found, rows = grown(large, small, "parquet")

    assert rows == count
    assert found < MEMORY


def test_dictionaries_lists_and_texts_are_within_memory_too(tmp_path: Path) -> None:
    texts = pa.array([f"{number:050d}" for number in range(20_000)])
    places = np.arange(2_000_000) * 7919 % 20_000
    values = pa.array(np.arange(16_000_000) % 1000)
    lists = pa.ListArray.from_arrays(pa.array(range(0, 16_000_001, 8), pa.int32()), values)
    table = pa.table(
        {"d": pa.DictionaryArray.from_arrays(places, texts), "s": texts.take(places), "l": lists}
    )
    path = tmp_path / "large.parquet"
    pq.write_table(table, path, row_group_size=len(table), dictionary_pagesize_limit=8 * MIB)
    pq.write_table(table.slice(0, 10), tmp_path / "small.parquet")

    found, rows = grown(path, tmp_path / "small.parquet", "parquet")

    assert rows == 2_000_000
    assert found < MEMORY


@pytest.mark.parametrize("line", [b"a\n", b"x" * (6 * MIB) + b"\n"], ids=["short", "long"])
@pytest.mark.parametrize("packed", ["", "gz"])
def test_lines_of_any_length_that_may_be(tmp_path: Path, line: bytes, packed: str) -> None:
    """Of short ones the places take more than the bytes; a long one is there more than once."""
    count = max(12, 4_000_000 // len(line))
    data = line * count
    (tmp_path / "large").write_bytes(gzip.compress(data, 1) if packed else data)
    (tmp_path / "small").write_bytes(gzip.compress(b"a\n") if packed else b"a\n")

    found, rows = grown(tmp_path / "large", tmp_path / "small", "text", packed)

    assert rows == count
    assert found < MEMORY


@pytest.mark.parametrize("mib", [200, pytest.param(1024, marks=pytest.mark.soak)])
@pytest.mark.parametrize("packed", ["none", "gz"])
def test_a_file_that_is_one_line_is_refused_with_what_a_line_may_have(
    tmp_path: Path, mib: int, packed: str
) -> None:
    path = tmp_path / "one.txt"
    if packed == "gz":
        packer = zlib.compressobj(1, zlib.DEFLATED, 31)
        with path.open("wb") as file:
            for _ in range(mib):
                file.write(packer.compress(b"x" * MIB))
            file.write(packer.flush())
    else:
        # A hole: as long, and nothing on the disk.
        with path.open("wb") as file:
            file.truncate(mib * MIB)
    script = """
import resource, sys
sys.path.insert(0, "")
from pathlib import Path
from primusd.datafeed.formats.base import ReadError
from tests.datafeed.format_files import opened
from primusd.datafeed.formats.settings import Settings
path, packed = sys.argv[1:]
settings = Settings(format="text", options={"compression": packed}, memory_bytes=32 << 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    list(opened(Path(path), "text", settings).rows(0, 1 << 40, block_bytes=2 << 20))
except ReadError as error:
    print(error.kind, error.message)
assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 << 10
"""
    command = [sys.executable, "-c", script, str(path), packed]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)

    assert done.stdout.startswith("data ")
    assert "no record ends within 8388608 bytes, a quarter of memory" in done.stdout


@pytest.mark.parametrize("mib", [200, pytest.param(4096, marks=pytest.mark.soak)])
def test_a_gz_that_grows_a_thousandfold(tmp_path: Path, mib: int) -> None:
    line = b"x" * 1023 + b"\n"
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    large = tmp_path / "large.txt.gz"
    with large.open("wb") as file:
        for _ in range(mib):
            file.write(packer.compress(line * 1024))
        file.write(packer.flush())
    (tmp_path / "small.txt.gz").write_bytes(gzip.compress(b"a\n"))

    found, rows = grown(large, tmp_path / "small.txt.gz", "text", "gz")

    assert rows == mib * 1024
    assert found < MEMORY
