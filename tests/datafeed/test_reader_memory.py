"""A whole reader, buffers and all, stays within the memory that its stream has."""

import gzip
import json
import subprocess
import sys
import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

MIB = 1 << 20
MEMORY = 32 * MIB
READER = """
import json, sys, threading, time
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
                full = before == reader.buffered_bytes and before > 0
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


def test_a_row_group_three_times_as_large_as_memory(tmp_path: Path) -> None:
    for name, count in (("small", 1000), ("large", 6_000_000)):
        numbers = pa.array(range(count), pa.int64())
        table = pa.table({"a": numbers, "b": pc.multiply(numbers, 7919)})
        path = tmp_path / f"{name}.parquet"
        pq.write_table(table, path, row_group_size=count, use_dictionary=False, compression="none")

    found, rows = grown(tmp_path / "large.parquet", tmp_path / "small.parquet", "parquet")

    assert rows == 6_000_000
    assert found < MEMORY


def test_a_gz_that_grows_a_thousandfold(tmp_path: Path) -> None:
    line = b"x" * 1023 + b"\n"
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    large = tmp_path / "large.txt.gz"
    with large.open("wb") as file:
        for _ in range(200):
            file.write(packer.compress(line * 1024))
        file.write(packer.flush())
    (tmp_path / "small.txt.gz").write_bytes(gzip.compress(b"a\n"))

    found, rows = grown(large, tmp_path / "small.txt.gz", "text", "gz")

    assert rows == 200 * 1024
    assert found < MEMORY
