"""A storage that takes 20 ms a request: Parquet by planned ranges, reading on by many threads."""

import io
import statistics
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.figures import Figure
from primusd.datafeed.formats.parquet import ParquetUnit
from primusd.datafeed.formats.settings import Settings
from primusd.datafeed.protocol import Unit
from primusd.datafeed.storage.base import Entry, Handle
from primusd.datafeed.storage.pool import Pool
from primusd.datafeed.storage.remote import RemoteFile

READ_S = 0.020
COLUMNS = 40
ROWS = 400_000
GROUP_ROWS = 26_000
"""Of 40 doubles: 8 MiB."""
LINEAR_BYTES = 128 << 20
THREADS = (1, 2, 4, 8, 16)
ROUNDS = 3
GOAL_RATIO = 20


class Far:
    """Bytes in memory, a sleep before each read."""

    reads_by_name = False

    def __init__(self, data: bytes) -> None:
        self.data = data

    def entries(self, folder: str, is_wanted: Callable[[str], bool]) -> list[Entry]:
        return []

    def find(self, location: str) -> Entry:
        return Entry(location, byte_count=len(self.data), pin="1")

    def open(self, location: str) -> Handle:
        return self

    def read(self, offset: int, count: int) -> bytes:
        time.sleep(READ_S)
        return self.data[offset : offset + count]


class SlowFile(io.BytesIO):
    """What pyarrow drives by itself: each read is a request."""

    def read(self, size: int | None = -1) -> bytes:
        time.sleep(READ_S)
        return super().read(size)


def run() -> list[Figure]:
    """Measure rows of a wide table and bytes of one long file."""
    data = _table()
    unit = Unit("file", "bench://x/a.parquet", len(data), "1", {"format": "parquet"})
    ours = statistics.median(ROWS / _timed(lambda: _read(unit, data)) for _ in range(ROUNDS))
    plain = statistics.median(ROWS / _timed(lambda: _by_pyarrow(data)) for _ in range(2))
    figures = [
        Figure(
            f"Parquet of {COLUMNS} columns at 20 ms a read",
            ours,
            "rows/s",
            f"≥ {GOAL_RATIO} times of pyarrow without pre_buffer",
            ours >= GOAL_RATIO * plain,
            f"pyarrow, pre_buffer=False: {plain:,.0f} rows/s, so {ours / plain:.0f} times",
        )
    ]
    text = np.random.default_rng(1).bytes(LINEAR_BYTES)
    rates = {count: _linear(text, count) for count in THREADS}
    figures += [
        Figure(
            f"reading on at 20 ms a read, {count} threads",
            rate,
            "MiB/s",
            f"≥ {0.3 * count:g} times of 1 thread" if count > 1 else "",
            rate >= 0.3 * count * rates[1],
            f"1 thread: {rates[1]:.0f} MiB/s, so {rate / rates[1]:.1f} times",
        )
        for count, rate in rates.items()
    ]
    return figures


def _table() -> bytes:
    numbers = np.random.default_rng(7).random(ROWS)
    table = pa.table({f"c{index}": numbers + index for index in range(COLUMNS)})
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=GROUP_ROWS, compression="none", use_dictionary=False)
    return sink.getvalue()


def _read(unit: Unit, data: bytes) -> None:
    settings = Settings("parquet")
    file = RemoteFile(unit, Far(data), ahead_bytes=settings.memory_bytes // 2)
    opened = ParquetUnit(unit, file, settings)
    rows = sum(block.row_count for block in opened.rows(0, opened.end, block_bytes=4 << 20))
    assert rows == ROWS


def _by_pyarrow(data: bytes) -> None:
    parquet = pq.ParquetFile(pa.PythonFile(SlowFile(data), mode="r"), pre_buffer=False)
    assert sum(batch.num_rows for batch in parquet.iter_batches(65_536)) == ROWS


def _linear(data: bytes, thread_count: int) -> float:
    """Return MiB/s of one file read from its beginning to its end."""
    unit = Unit("file", "bench://x/a.txt", len(data), "1", {})

    def read() -> None:
        file = RemoteFile(unit, Far(data), ahead_bytes=LINEAR_BYTES, pool=Pool(thread_count))
        for at in range(0, len(data), 1 << 20):
            file.pread(at, 1 << 20)

    return statistics.median(LINEAR_BYTES / (1 << 20) / _timed(read) for _ in range(2))


def _timed(call: Callable[[], None]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin
