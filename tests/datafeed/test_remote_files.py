"""A file over a network: read ahead within a bound, many requests at once, failures told apart."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from primusd.datafeed.protocol import Credential, Unit
from primusd.datafeed.storage.base import Entry, Handle, ReadError, StorageError
from primusd.datafeed.storage.pool import Pool
from primusd.datafeed.storage.remote import GAP_BYTES, PIECE_BYTES, TRIES, RemoteFile, merged

MIB = 1 << 20


class Far:
    """A storage of one file, whose requests can be held back, counted and failed."""

    def __init__(self, data: bytes, *, reads_by_name: bool = False) -> None:
        self.data = data
        self.pin = "1"
        self.is_there = True
        self.reads_by_name = reads_by_name
        self.reads: list[tuple[int, int]] = []
        self.failures: list[StorageError] = []
        self.held = threading.Event()
        self.held.set()
        self.waiting = 0
        self.many_wait = threading.Event()
        self._lock = threading.Lock()

    def unit(self) -> Unit:
        return Unit("file", "far://x/a", len(self.data), self.pin, {})

    def entries(self, folder: str, is_wanted: Callable[[str], bool]) -> list[Entry]:
        raise AssertionError(folder)

    def find(self, location: str) -> Entry | None:
        return Entry(location, byte_count=len(self.data), pin=self.pin) if self.is_there else None

    def write(self, location: str, data: bytes) -> None:
        raise AssertionError(location)

    def upload(self, location: str, file: Path) -> None:
        raise AssertionError(location)

    def remove(self, location: str) -> None:
        raise AssertionError(location)

    def credential(self) -> Credential | None:
        return None

    def open(self, location: str) -> Handle:
        return self

    def read(self, offset: int, count: int) -> bytes:
        with self._lock:
            self.reads.append((offset, count))
            self.waiting += 1
            if self.waiting >= 4:
                self.many_wait.set()
            failure = self.failures.pop() if self.failures else None
        assert self.held.wait(10)
        with self._lock:
            self.waiting -= 1
        if failure is not None:
            raise failure
        return self.data[offset : offset + count]


@pytest.fixture
def data() -> bytes:
    return bytes(range(256)) * (MIB // 256) * 40


def brief(text: str = "503") -> StorageError:
    return StorageError(text, kind="transient")


def kind_of(call: Callable[[], object]) -> str:
    with pytest.raises(ReadError) as caught:
        call()
    return caught.value.kind


def test_reading_on_fetches_ahead_and_never_more_than_the_bound(data: bytes) -> None:
    far = Far(data)
    file = RemoteFile(far.unit(), far, ahead_bytes=16 * MIB)
    file.pread(0, MIB)
    far.held.clear()
    done = threading.Thread(target=lambda: file.pread(MIB, 100), daemon=True)

    done.start()
    assert far.many_wait.wait(10)
    held_bytes = file.held_bytes
    far.held.set()
    done.join(10)

    assert held_bytes == 16 * MIB
    found = b"".join(file.pread(at, MIB) for at in range(2 * MIB, 40 * MIB, MIB))
    assert found == data[2 * MIB :]
    assert file.held_bytes <= 16 * MIB
    # Each byte is asked for about once.
    assert sum(count for _, count in far.reads) <= len(data) + 2 * MIB


def test_ranges_that_are_told_come_merged_in_pieces_and_at_once(data: bytes) -> None:
    far = Far(data)
    file = RemoteFile(far.unit(), far)
    far.held.clear()

    file.prefetch([(30 * MIB, MIB), (10, 10), (30, 100), (MIB, 9 * MIB)])
    assert far.many_wait.wait(10)
    far.held.set()

    assert file.pread(30 * MIB + 5, 10) == data[30 * MIB + 5 : 30 * MIB + 15]
    assert file.pread(2 * MIB, 8 * MIB) == data[2 * MIB : 10 * MIB]
    assert file.pread(12, 60) == data[12:72]
    assert sorted(far.reads) == [
        *((10, 120), (MIB, 4 * MIB), (5 * MIB, 4 * MIB), (9 * MIB, MIB), (30 * MIB, MIB))
    ]


def test_what_is_told_again_is_not_fetched_again(data: bytes) -> None:
    far = Far(data)
    file = RemoteFile(far.unit(), far)

    file.prefetch([(0, 6 * MIB)])
    file.prefetch([(0, 6 * MIB), (8 * MIB, MIB)])
    file.prefetch([(2 * MIB, 3 * MIB), (20 * MIB, MIB)])

    assert file.pread(2 * MIB, 3 * MIB) == data[2 * MIB : 5 * MIB]
    assert file.pread(20 * MIB, MIB) == data[20 * MIB : 21 * MIB]
    assert len(far.reads) == len(set(far.reads))
    assert (0, 4 * MIB) in far.reads


def test_ranges_near_each_other_are_one() -> None:
    assert merged([(100, 10), (0, 5), (110, 1)], 200) == [(0, 111)]
    assert merged([(0, 5), (5 + GAP_BYTES, 5), (11 + 2 * GAP_BYTES, 9)], 1 << 30) == [
        *((0, 10 + GAP_BYTES), (11 + 2 * GAP_BYTES, 20 + 2 * GAP_BYTES))
    ]
    assert merged([(50, 100), (200, 10)], 100) == [(50, 100)]
    assert PIECE_BYTES > GAP_BYTES


def test_what_fails_briefly_is_tried_again_at_once_and_then_told(data: bytes) -> None:
    far = Far(data)
    file = RemoteFile(far.unit(), far)

    far.failures = [brief()] * (TRIES - 1)
    assert file.pread(7, 9) == data[7:16]
    far.failures = [brief("no DataNode has it")] * TRIES
    with pytest.raises(ReadError, match="no DataNode has it") as caught:
        file.pread(20 * MIB, 9)
    assert caught.value.kind == "transient"
    assert file.pread(20 * MIB, 9) == data[20 * MIB : 20 * MIB + 9]


def test_what_is_denied_is_tried_once(data: bytes) -> None:
    far = Far(data)
    file = RemoteFile(far.unit(), far)
    far.failures = [StorageError("access denied", kind="data")]

    assert kind_of(lambda: file.pread(0, 1)) == "data"
    assert len(far.reads) == 1


def changes() -> Iterator[tuple[str, Callable[[Far], None], str]]:
    def shorter(far: Far) -> None:
        far.data = far.data[: 10 * MIB]

    def replaced(far: Far) -> None:
        far.pin = "2"

    def deleted(far: Far) -> None:
        far.is_there = False

    yield "shorter", shorter, "changed"
    yield "replaced", replaced, "changed"
    yield "deleted", deleted, "vanished"


@pytest.mark.parametrize(("name", "change", "kind"), list(changes()))
def test_a_file_that_is_another_one_by_now_is_named_when_it_is_opened_or_read(
    data: bytes, name: str, change: Callable[[Far], None], kind: str
) -> None:
    far = Far(data, reads_by_name=True)
    unit = far.unit()
    file = RemoteFile(unit, far)
    change(far)

    assert kind_of(lambda: file.pread(20 * MIB, 10)) == kind
    assert kind_of(lambda: RemoteFile(unit, far)) == kind
    file._checked_s = -100.0
    assert kind_of(file.check) == kind


def test_a_read_that_fails_because_the_file_changed_says_so(data: bytes) -> None:
    """Blocks of a file that was replaced are gone after a while: that is no trouble to wait for."""
    far = Far(data)
    file = RemoteFile(far.unit(), far)
    far.failures = [brief("all DataNodes failed")] * TRIES
    far.pin = "2"

    assert kind_of(lambda: file.pread(0, 10)) == "changed"


def test_parquet_reads_what_was_told_without_further_requests() -> None:
    table = pa.table({"a": range(300_000), "b": [float(n) for n in range(300_000)]})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="none", use_dictionary=False)
    far = Far(sink.getvalue().to_pybytes())
    file = RemoteFile(far.unit(), far)
    parquet = pq.ParquetFile(file.arrow(), pre_buffer=True)
    chunk = parquet.metadata.row_group(0).column(1)
    before = len(far.reads)

    file.prefetch([(chunk.data_page_offset, chunk.total_compressed_size)])
    found = parquet.read_row_group(0, columns=["b"])

    assert found.column("b").to_pylist() == table.column("b").to_pylist()
    assert len(far.reads) - before == 1


def test_a_pool_has_no_more_threads_than_it_may() -> None:
    pool = Pool(3)
    gate, started = threading.Event(), threading.Semaphore(0)
    seen: set[int] = set()

    def work() -> int:
        seen.add(threading.get_ident())
        started.release()
        assert gate.wait(10)
        return 1

    futures = [pool.submit(work) for _ in range(9)]
    for _ in range(3):
        assert started.acquire(timeout=10)
    gate.set()

    assert sum(future.result(10) for future in futures) == 9
    assert len(seen) == 3
