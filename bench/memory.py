"""What a reader holds of a row group far larger than its memory, beside pyarrow reading it."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench import feeding
from bench.figures import Figure
from tests.datafeed.test_reader_memory import READER

MEMORY_BYTES = 64 << 20
ROWS = 48_000_000
MIB = 1 << 20

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


def run(*, rows: int = ROWS) -> list[Figure]:
    """Measure by how much a process grows over one row group, read ahead as far as it may be."""
    folder = feeding.DATA / "memory"
    large, small = _write(folder, rows), _write(folder, 1_000)
    ours, found = feeding.said(
        feeding.python(READER, str(large), str(small), "parquet", "", str(MEMORY_BYTES))
    )
    assert found == rows
    theirs, _ = feeding.said(feeding.python(PYARROW, str(large), str(small)))
    size = large.stat().st_size
    return [
        Figure(
            f"memory over a row group of {size // MIB:,} MiB",
            ours / MIB,
            "MiB",
            f"≤ {MEMORY_BYTES // MIB} MiB, as its stream says",
            ours <= MEMORY_BYTES,
            f"pyarrow iter_batches: {theirs / MIB:,.0f} MiB",
        )
    ]


def _write(folder: Path, rows: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{rows}.parquet"
    if not path.exists():
        numbers = np.arange(rows, dtype=np.int64)
        table = pa.table({"a": numbers, "b": numbers * 7919})
        partial = path.with_suffix(".partial")
        options = {"use_dictionary": False, "compression": "none", "row_group_size": rows}
        pq.write_table(table, partial, **options)
        partial.rename(path)
    return path
