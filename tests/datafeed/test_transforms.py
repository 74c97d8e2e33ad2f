"""A transform of the user's: rows in their order, each once, whatever its processes do."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from primusd.datafeed.drawing import Drawing
from primusd.datafeed.formats.base import ReadError, RowBlock
from primusd.datafeed.formats.opening import Opener
from primusd.datafeed.formats.settings import Place, Settings
from primusd.datafeed.protocol import FeedOrders, Lease
from primusd.datafeed.reader.drawn import drawn
from primusd.datafeed.reader.reader import Gap, StreamReader
from primusd.datafeed.reader.transforming import Transformer
from primusd.executor.protocol import FeedPlan
from primusd.job.spec import Sample, Shuffle, Transform
from tests.datafeed.format_files import unit_of

ROWS = 1_000
MEMORY = 8 << 20
FUNCTIONS = """
import os, signal, sys, time
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

def doubled(batch):
    print("noise on standard output")
    return pa.RecordBatch.from_pydict({"n": batch["n"], "twice": pc.multiply(batch["n"], 2)})

def told(batch, context):
    text = f"{context.parameters['word']} {context.stream} {context.epoch}"
    return batch.append_column("told", pa.array([text] * batch.num_rows))

def even(batch):
    kept = pc.equal(pc.bit_wise_and(batch["n"], 1), 0)
    return batch.filter(kept), kept

def even_places(batch):
    places = np.flatnonzero(batch["n"].to_numpy() % 2 == 0)
    return batch.take(pa.array(places)), places

def none(batch):
    return batch.slice(0, 0), np.zeros(batch.num_rows, bool)

def wrong(batch, context):
    how = context.parameters["how"]
    if how == "raise" and 137 in batch["n"].to_pylist():
        raise ValueError("row 137 is no good")
    if how == "exit" and 137 in batch["n"].to_pylist():
        os._exit(3)
    if how == "kill" and 137 in batch["n"].to_pylist():
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "memory":
        np.ones(1 << 30, np.uint8)
    if how == "fewer":
        return batch.slice(1)
    if how == "count":
        return batch, np.zeros(batch.num_rows, bool)
    if how == "places":
        return batch.slice(0, 2), [3, 1]
    if how == "type":
        return batch.to_pylist()
    if how == "large":
        return batch.append_column("x", pa.array([b"x" * 50_000] * batch.num_rows))
    if how == "columns" and 0 not in batch["n"].to_pylist():
        return batch.rename_columns(["m"])
    return batch

def no_threes(batch):
    places = [n for n, line in enumerate(batch["line"].to_pylist()) if int(line.split()[1]) % 3]
    lines = [line + b"!" for line in batch["line"].take(pa.array(places)).to_pylist()]
    return pa.RecordBatch.from_pydict({"line": pa.array(lines, pa.binary())}), places

def slow(batch):
    time.sleep(0.002)
    return batch
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("transforms")
    (found / "prep.py").write_text(FUNCTIONS)
    pq.write_table(pa.table({"n": range(ROWS)}), found / "n.parquet", row_group_size=250)
    (found / "n.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(ROWS)))
    return found


@pytest.fixture
def made(folder: Path) -> Iterator[Callable[..., Transformer]]:
    found: list[Transformer] = []

    def make(function: str, *, columns: tuple[str, ...] = (), **keys: Any) -> Transformer:
        transform = Transform(f"prep:{function}", **keys)
        place = Place(str(folder))
        found.append(Transformer(transform, "s", place, memory_bytes=MEMORY, columns=columns))
        return found[-1]

    yield make
    for one in found:
        one.close()


def read(
    transformer: Transformer, path: Path, lo: int = 0, hi: int = -1, drawing: Drawing | None = None
) -> Iterator[RowBlock]:
    """Yield the blocks of a range of a file, small ones."""
    unit = unit_of(path)
    file = Opener(Settings()).open(unit)
    if drawing is not None:
        file, _ = drawn(file, unit, 0, drawing)
    whole = transformer.unit(file, unit, 0)
    yield from whole.rows(lo, whole.end if hi < 0 else hi, block_bytes=64)


def numbers(blocks: list[RowBlock], name: str = "n") -> list[int]:
    return [int(str(n)) for block in blocks for n in block.batch.column(name).to_pylist()]


def left_out(blocks: list[RowBlock]) -> int:
    """Return how many rows blocks say that were left out of them."""
    told = ((block, block.left_out) for block in blocks)
    return sum(count(block.hi) - count(block.lo) for block, count in told if count is not None)


def test_rows_come_back_in_their_order_from_several_processes(
    folder: Path, made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("primusd.datafeed.reader.transforming.BLOCK_BYTES_MIN", 256)
    transformer = made("doubled", workers=3)

    blocks = list(read(transformer, folder / "n.parquet"))

    assert len(blocks) > 6
    assert numbers(blocks, "twice") == [2 * n for n in range(ROWS)]
    assert [block.lo for block in blocks[1:]] == [block.hi for block in blocks[:-1]]
    assert (blocks[0].lo, blocks[-1].hi) == (0, ROWS)
    assert len(transformer.pool.processes.pids()) == 3


def test_a_transform_is_told_its_parameters_and_where_rows_are_from(
    folder: Path, made: Any
) -> None:
    transformer = made("told", parameters={"word": "hello"}, columns=("told",))

    (block, *_) = read(transformer, folder / "n.parquet", 0, 10)

    assert block.batch.schema.names == ["told"]
    assert block.batch.column("told")[0].as_py() == "hello s 0"


@pytest.mark.parametrize("name", ["n.parquet", "n.jsonl"])
@pytest.mark.parametrize("function", ["even", "even_places"])
def test_C54_rows_that_a_transform_leaves_out_are_counted_and_cut_exactly(
    folder: Path, made: Any, name: str, function: str
) -> None:
    transformer = made(function, may_drop=True)
    blocks = list(read(transformer, folder / name))
    end = blocks[-1].hi

    assert numbers(blocks) == list(range(0, ROWS, 2))
    assert left_out(blocks) == ROWS // 2

    for cut in (0, 1, end // 3, end - 1):
        parts = [list(read(transformer, folder / name, *one)) for one in ((0, cut), (cut, end))]
        assert numbers([*parts[0], *parts[1]]) == list(range(0, ROWS, 2))


def test_positions_stay_exact_within_a_block_with_rows_left_out(folder: Path, made: Any) -> None:
    (block, *_) = read(made("even", may_drop=True), folder / "n.parquet", 1, 9)

    assert numbers([block]) == [2, 4, 6, 8]
    assert [block.position_after(count) for count in range(5)] == [1, 4, 6, 8, 9]
    assert block.left_out is not None
    assert block.left_out(6) - block.left_out(1) == 3  # rows 1, 3 and 5


def test_a_block_of_which_nothing_is_left_passes_its_positions(folder: Path, made: Any) -> None:
    blocks = list(read(made("none", may_drop=True), folder / "n.parquet"))

    assert numbers(blocks) == []
    assert (blocks[0].lo, blocks[-1].hi) == (0, ROWS)


def test_a_pipe_gets_what_a_transform_makes_of_lines(tmp_path: Path, made: Any) -> None:
    (tmp_path / "a.txt").write_bytes(b"".join(b"line %d\n" % n for n in range(50)))
    unit = unit_of(tmp_path / "a.txt", format="text")
    file = Opener(Settings()).open(unit)
    whole = made("no_threes", may_drop=True).unit(file, unit, 0)

    pieces = list(whole.pieces(0, file.end, framing="lines"))

    kept = [b"line %d" % n for n in range(50) if n % 3]
    assert b"".join(piece.data for piece in pieces) == b"".join(line + b"!\n" for line in kept)
    (piece,) = pieces
    # Each position is where the next kept line of the file begins.
    assert piece.locate(len(b"line 1!\n")) == len(b"line 0\nline 1\n")
    assert piece.locate(len(b"line 1!\nline 2!\n")) == len(b"line 0\nline 1\nline 2\nline 3\n")
    with pytest.raises(ReadError, match="cannot go to standard input as raw; use framing: lines"):
        list(whole.pieces(0, file.end, framing="raw"))


def test_samples_and_shuffles_come_before_the_transform(folder: Path, made: Any) -> None:
    drawing = Drawing(shuffle=Shuffle(7), sample=Sample(500_000))

    blocks = list(read(made("even", may_drop=True), folder / "n.parquet", drawing=drawing))

    found = numbers(blocks)
    assert found != sorted(found)
    assert all(n % 2 == 0 for n in found)
    assert abs(len(found) + left_out(blocks) - ROWS) <= len(
        blocks
    )  # a sample tells evenly what it left


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("raise", r"prep:wrong failed: ValueError: row 137 is no good \(prep.py:\d+\)"),
        ("exit", r"prep:wrong ended its process \(code 3\)"),
        ("kill", r"prep:wrong ended its process \(signal 9\)"),
    ],
)
def test_a_row_that_cannot_be_transformed_is_bad_and_no_other(
    folder: Path, made: Any, monkeypatch: pytest.MonkeyPatch, how: str, words: str
) -> None:
    monkeypatch.setattr("primusd.datafeed.reader.transforming.BLOCK_BYTES_MIN", 64)
    transformer = made("wrong", parameters={"how": how}, workers=2)
    blocks: list[RowBlock] = []

    with pytest.raises(ReadError, match=words) as caught:
        blocks.extend(read(transformer, folder / "n.parquet"))

    assert (caught.value.kind, caught.value.lo, caught.value.hi) == ("data", 137, 138)
    assert caught.value.head == b'{"n":137}'
    assert numbers(blocks) == list(range(137))
    assert numbers(list(read(transformer, folder / "n.parquet", 138))) == list(range(138, ROWS))


@pytest.mark.parametrize(
    ("how", "keys", "words"),
    [
        ("fewer", {}, "gave 0 rows for 1; as many rows must come back"),
        ("count", {}, "leaves rows out; say rows: mayDrop"),
        ("count", {"may_drop": True}, "gave 1 rows and said that it kept 0 of 1"),
        ("places", {"may_drop": True}, "gave places that do not ascend within the 1 rows"),
        ("type", {}, "gave a list, not a pyarrow.RecordBatch"),
        ("memory", {"memory_bytes": 256 << 20}, "failed: .*MemoryError: "),
    ],
)
def test_what_a_transform_must_not_give_is_told(
    folder: Path, made: Any, how: str, keys: dict[str, Any], words: str
) -> None:
    transformer = made("wrong", parameters={"how": how}, **keys)

    with pytest.raises(ReadError, match=words):
        list(read(transformer, folder / "n.parquet"))


def test_a_result_that_is_too_large_comes_in_parts_while_each_is_small_enough(
    folder: Path, made: Any
) -> None:
    transformer = made("wrong", parameters={"how": "large"})

    assert numbers(list(read(transformer, folder / "n.parquet", 0, 100))) == list(range(100))

    transformer.pool.bytes_max = 40_000
    with pytest.raises(
        ReadError, match=r"gave [45][0-9] KiB at once, and 39 KiB is the most; memory:"
    ):
        list(read(transformer, folder / "n.parquet"))


def test_other_columns_than_before_are_bad(folder: Path, made: Any) -> None:
    transformer = made("wrong", parameters={"how": "columns"})

    with pytest.raises(ReadError, match="gave the columns m, and n before"):
        list(read(transformer, folder / "n.parquet"))


def test_closing_ends_the_processes_of_a_transform(folder: Path, made: Any) -> None:
    transformer = made("doubled", workers=2)
    blocks = read(transformer, folder / "n.parquet")
    next(blocks)
    pids = transformer.pool.processes.pids()

    transformer.close()

    # Those at work are ended by whoever waits for them, and that is told.
    with pytest.raises(ReadError, match="closed"):
        list(blocks)
    for pid in pids:
        assert not Path(f"/proc/{pid}/cmdline").is_file() or not (
            Path(f"/proc/{pid}/cmdline").read_bytes()
        )


class Killer(threading.Thread):
    """Kills processes of a transform, one after the other, in drawn pauses."""

    def __init__(self, pids: Callable[[], tuple[int, ...]], pauses_ms: list[int]) -> None:
        super().__init__()
        self._pids = pids
        self._pauses_ms = pauses_ms
        self.is_over = threading.Event()
        self.count = 0

    def run(self) -> None:
        for pause_ms in self._pauses_ms:
            if self.is_over.wait(pause_ms / 1000):
                return
            for pid in self._pids()[:1]:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
                self.count += 1


def feed(folder: Path, function: str, **keys: Any) -> StreamReader:
    """Return a reader with one lease, over the whole file, as an executor has it."""
    transform = Transform(f"prep:{function}", **keys)
    plan = {"format": "parquet", "transform": msgspec.json.encode(transform).decode()}
    lock = threading.Condition()
    ordered = FeedPlan("s", "socket", "arrow", plan, MEMORY)
    reader = StreamReader(ordered, lock, time.monotonic, Place(str(folder)))
    lease = Lease(0, 0, 0, ROWS, 1, 0, body=unit_of(folder / "n.parquet", format="parquet"))
    with lock:
        orders = FeedOrders("s", (lease,), "serve", 0)
        reader.state.is_open = True
        reader.state.obey(orders, sent_at=time.monotonic(), ttl_s=1e6)
    return reader


def taken(reader: StreamReader) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the numbers that came out of a reader, and the gaps, once all was read."""
    found: list[int] = []
    gaps: list[tuple[int, int]] = []
    at = 0
    end = time.monotonic() + 60
    thread = threading.Thread(target=reader.read)
    thread.start()
    while at < ROWS:
        assert time.monotonic() < end
        with reader._changed:
            got = reader.next_block()
            if got is None:
                reader._changed.wait(0.1)
                continue
        _, block = got
        assert block.lo == at, "without a gap, and nothing twice"
        at = block.hi
        if isinstance(block, Gap):
            gaps.append((block.lo, block.hi))
        else:
            assert isinstance(block, RowBlock)
            found += numbers([block])
    with reader._changed:
        reader.close()
    thread.join(30)
    return found, gaps


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    workers=st.integers(1, 3),
    function=st.sampled_from(["slow", "even"]),
    pauses_ms=st.lists(st.integers(0, 60), min_size=1, max_size=6),
)
def test_each_row_comes_once_while_processes_are_killed(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    workers: int,
    function: str,
    pauses_ms: list[int],
) -> None:
    monkeypatch.setattr("primusd.datafeed.formats.budget.BLOCK_BYTES_MIN", 512)
    monkeypatch.setattr("primusd.datafeed.reader.transforming.BLOCK_BYTES_MIN", 512)
    monkeypatch.setattr("primusd.datafeed.formats.budget.BLOCK_BYTES_MAX", 512)
    reader = feed(folder, function, workers=workers, may_drop=function == "even")

    def pids() -> tuple[int, ...]:
        made = reader._transformer
        return () if made is None else made.pool.processes.pids()

    killer = Killer(pids, pauses_ms)
    killer.start()
    try:
        found, gaps = taken(reader)
    finally:
        killer.is_over.set()
        killer.join()

    assert found == list(range(0, ROWS, 2 if function == "even" else 1))
    assert gaps == []


def test_a_bad_row_is_a_gap_of_one_and_told(folder: Path) -> None:
    reader = feed(folder, "wrong", parameters={"how": "raise"})

    found, gaps = taken(reader)

    assert found == [n for n in range(ROWS) if n != 137]
    assert gaps == [(137, 138)]
    (bad,) = reader.state.report(buffered_bytes=0, now=1.0).bad
    assert (bad.lo, bad.hi, bad.kind) == (137, 138, "data")
    assert "ValueError: row 137 is no good" in bad.text
