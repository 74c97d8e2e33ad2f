"""By how much a reader grows over what is far larger than its memory, beside pyarrow reading it."""

import zlib
from collections.abc import Iterator
from pathlib import Path

from bench import feeding
from bench.figures import Figure
from tests.datafeed.test_reader_memory import READER, group_file

MEMORY_BYTES = 128 << 20
"""As every stream has it that says nothing."""
GROUP_MIB = 2048
BOMB_MIB = 4096
MIB = 1 << 20
GROUPS = ((4, "none"), (40, "none"), (40, "snappy"), (400, "zstd"))
"""Columns, and how they are compressed; 400 need more than the usual memory."""
WIDE_MEMORY_BYTES = 256 << 20

PYARROW = """
import json, sys
import pyarrow.parquet as pq
from pathlib import Path

def peak():
    text = Path("/proc/self/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0]) << 10

def read(path):
    return sum(batch.num_rows for batch in pq.ParquetFile(path).iter_batches(65_536))

read(sys.argv[2])
before = peak()
rows = read(sys.argv[1])
print(json.dumps([peak() - before, rows]))
"""


def run(*, group_mib: int = GROUP_MIB, bomb_mib: int = BOMB_MIB) -> list[Figure]:
    """Measure by how much a process grows, read ahead as far as it may be."""
    folder = feeding.DATA / "memory"
    folder.mkdir(parents=True, exist_ok=True)
    return [*_groups(folder, group_mib), _line(folder, group_mib // 2), _bomb(folder, bomb_mib)]


def _groups(folder: Path, mib: int) -> Iterator[Figure]:
    for columns, compression in GROUPS:
        memory = MEMORY_BYTES if columns < 100 else WIDE_MEMORY_BYTES
        large = folder / f"large-{columns}.parquet"
        small = folder / f"small-{columns}.parquet"
        rows = group_file(large, columns, mib, compression)
        group_file(small, columns, 1, compression)
        ours, found = feeding.said(_reader(large, small, "parquet", "", memory))
        assert found == rows
        theirs, _ = feeding.said(feeding.python(PYARROW, str(large), str(small)))
        what = f"row group of {mib:,} MiB, {columns} columns, {compression}"
        rival = f"pyarrow iter_batches: {theirs / MIB:,.0f} MiB"
        yield _figure(what, ours, memory, rival)
        large.unlink()


def _line(folder: Path, mib: int) -> Figure:
    """Measure a text that is one line, which is refused, with a line behind it."""
    large, small = folder / "line.txt", folder / "small.txt"
    with large.open("wb") as file:
        # A hole: as long, and nothing on the disk.
        file.truncate(mib * MIB)
        file.seek(0, 2)
        file.write(b"\n")
    small.write_bytes(b"a\n" * 10)
    ours, found = feeding.said(_reader(large, small, "text", "", MEMORY_BYTES))
    is_refused = mib * MIB > MEMORY_BYTES // 4
    assert found == (not is_refused)
    name = f"a line of {mib:,} MiB{', refused' if is_refused else ''}"
    return _figure(name, ours, MEMORY_BYTES, "")


def _bomb(folder: Path, mib: int) -> Figure:
    large, small = folder / "bomb.txt.gz", folder / "small.txt.gz"
    for path, count in ((large, mib), (small, 1)):
        packer = zlib.compressobj(9, zlib.DEFLATED, 31)
        with path.open("wb") as file:
            for _ in range(count):
                file.write(packer.compress((b"x" * 1023 + b"\n") * 1024))
            file.write(packer.flush())
    ours, found = feeding.said(_reader(large, small, "text", "gz", MEMORY_BYTES))
    assert found == mib * 1024
    name = f"gz of {large.stat().st_size / MIB:.0f} MiB that grows to {mib:,}"
    return _figure(name, ours, MEMORY_BYTES, "")


def _reader(large: Path, small: Path, form: str, packed: str, memory: int) -> list[str]:
    return feeding.python(READER, str(large), str(small), form, packed, str(memory))


def _figure(what: str, grown: float, memory: int, rival: str) -> Figure:
    goal = f"≤ {memory // MIB} MiB, as its stream says"
    return Figure(f"memory over {what}", grown / MIB, "MiB", goal, grown <= memory, rival)
