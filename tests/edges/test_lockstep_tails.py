"""`tail: drop | pad`: trainers that wait for each other at each step end at the same one.

Real readers, real trainers, the real ledger; in place of an all-reduce a process waits at each step
for all others, and is told when one of them is gone: then it would hang for ever.
"""

import gzip
import socket
import threading
from collections import Counter
from itertools import pairwise
from pathlib import Path

import anyio
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from primusd.datafeed.protocol import Unit
from primusd.job.spec import Sample, Shuffle, Source, StreamSpec
from tests.edges.fed_trainer import WAIT_S, fed, units_of
from tests.edges.ledger_grantor import LedgerGrantor

STEP = """
    import socket, sys, time
    import primus

    others = socket.socket(socket.AF_UNIX)
    others.connect(sys.argv[2])
    for batch in primus.dataset(batch_rows=int(sys.argv[1])):
        others.sendall(b"s")
        if others.recv(1) != b"g":
            print("alone", flush=True)
            break
        column = batch["n"] if "n" in batch else batch["line"]
        print(batch.epoch, int(batch.is_pad), *[int(one) for one in column.tolist()], flush=True)
        time.sleep(float(sys.argv[3]))
"""


class Reducer:
    """Lets trainers go on once all of them are at the step."""

    def __init__(self, path: Path, count: int) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(count)
        self._listener.settimeout(WAIT_S)
        self._count = count
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        links = [self._listener.accept()[0] for _ in range(self._count)]
        for link in links:
            link.settimeout(WAIT_S)
        while all(link.recv(1) for link in links):
            for link in links:
                link.sendall(b"g")
        for link in links:
            link.close()

    def close(self) -> None:
        self._thread.join(WAIT_S)
        self._listener.close()
        assert not self._thread.is_alive()


async def train(
    grantor: LedgerGrantor, folder: Path, workers: int, batch_rows: int, slowness: float
) -> list[list[tuple[int, ...]]]:
    """Return the batches of each worker: epoch, whether it is a pad, rows."""
    found: dict[int, str] = {}
    reducer = Reducer(folder / "reduce", workers)

    async def life(index: int) -> None:
        async with fed(grantor, grantor.plan(), name=f"worker-{index}") as one:
            pause = str(slowness if index else 0.0)
            script = one.start_script(STEP, str(batch_rows), str(folder / "reduce"), pause)
            found[index] = await one.finish(script)

    async with anyio.create_task_group() as tasks:
        for index in range(workers):
            tasks.start_soon(life, index)
    reducer.close()
    return [
        [tuple(map(int, line.split())) for line in found[index].splitlines()]
        for index in range(workers)
    ]


def parquet(folder: Path, sizes: list[int], group: int = 100) -> list[Unit]:
    folder.mkdir()
    first = 0
    for number, rows in enumerate(sizes):
        table = pa.table({"n": list(range(first, first + rows))})
        pq.write_table(table, folder / f"part-{number:02}.parquet", row_group_size=group)
        first += rows
    return units_of(folder)


def text(folder: Path, sizes: list[int], suffix: str = "txt") -> list[Unit]:
    folder.mkdir()
    first = 0
    for number, rows in enumerate(sizes):
        body = b"".join(b"%d\n" % one for one in range(first, first + rows))
        path = folder / f"part-{number:02}.{suffix}"
        path.write_bytes(gzip.compress(body) if suffix.endswith("gz") else body)
        first += rows
    return units_of(folder)


def spec(tail: str, **more: object) -> StreamSpec:
    return StreamSpec("clicks", (Source("/d"),), tail=tail, **more)  # type: ignore[arg-type] # each of its own kind


def steps_of(batches: list[list[tuple[int, ...]]]) -> list[Counter[int]]:
    """Return the number of steps of each worker by epoch."""
    return [Counter(epoch for epoch, *_ in worker) for worker in batches]


def rows_of(batches: list[list[tuple[int, ...]]]) -> Counter[tuple[int, int]]:
    """Return how often each row of each epoch was given, pads left out."""
    return Counter(
        (epoch, row) for worker in batches for epoch, is_pad, *rows in worker if not is_pad
        for row in rows
    )  # fmt: skip


CASES = [(2, [1000]), (3, [1, 700, 3, 299]), (3, [613, 7]), (2, [5])]


@pytest.mark.parametrize(("workers", "sizes"), CASES, ids=str)
def test_with_drop_all_have_as_many_full_batches_and_the_rest_is_counted(
    tmp_path: Path, workers: int, sizes: list[int]
) -> None:
    """C54."""
    grantor = LedgerGrantor(spec("drop", epochs=2), parquet(tmp_path / "d", sizes), workers)

    batches = anyio.run(train, grantor, tmp_path, workers, 32, 0.0)

    assert grantor.is_done
    steps = steps_of(batches)
    assert all(one == steps[0] for one in steps)
    assert all(len(rows) == 32 for worker in batches for _, _, *rows in worker)
    given = rows_of(batches)
    assert set(given.values()) <= {1}
    left = 2 * sum(sizes) - given.total()
    assert grantor.driver.now.skipped == left
    assert grantor.driver.now.consumed == given.total()
    assert left <= 2 * workers * 2 * 32
    assert grantor.driver.now.bad_count == 0
    assert grantor.driver.replay() == grantor.driver.now


@pytest.mark.parametrize(("workers", "sizes"), CASES[1:3], ids=str)
def test_with_pad_all_rows_are_given_once_and_who_has_none_left_repeats(
    tmp_path: Path, workers: int, sizes: list[int]
) -> None:
    grantor = LedgerGrantor(spec("pad", epochs=2), parquet(tmp_path / "d", sizes), workers)

    batches = anyio.run(train, grantor, tmp_path, workers, 32, 0.0)

    assert grantor.is_done
    steps = steps_of(batches)
    assert all(one == steps[0] for one in steps)
    given = rows_of(batches)
    assert given == Counter((epoch, row) for epoch in range(2) for row in range(sum(sizes)))
    assert grantor.driver.now.consumed == 2 * sum(sizes)
    assert grantor.driver.now.skipped == 0
    for worker in batches:
        for (_, _, *before), (_, is_pad, *rows) in pairwise(worker):
            assert not is_pad or rows == before
    # Two batches at most are anybody's more than another's.
    pads = sum(is_pad for worker in batches for _, is_pad, *_ in worker)
    assert pads <= 2 * 3 * (workers - 1)


WAYS = {
    "text, drop": ("drop", {}, "txt"),
    "text, pad": ("pad", {}, "txt"),
    "compressed, drop": ("drop", {}, "txt.gz"),
    "compressed, pad": ("pad", {}, "txt.gz"),
    "shuffled and sampled, drop": (
        "drop",
        {"shuffle": Shuffle(seed=3, blocks=4, block_rows=50), "sample": Sample(500_000)},
        "parquet",
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_slow_trainer_sets_the_pace_in_every_format(tmp_path: Path, way: str) -> None:
    tail, more, suffix = WAYS[way]
    sizes = [900, 40]
    folder = tmp_path / "d"
    units = parquet(folder, sizes) if suffix == "parquet" else text(folder, sizes, suffix)
    grantor = LedgerGrantor(spec(tail, **more), units, 2)

    batches = anyio.run(train, grantor, tmp_path, 2, 32, 0.002)

    assert grantor.is_done
    first, second = steps_of(batches)
    assert first == second
    given = rows_of(batches)
    assert set(given.values()) == {1}
    stream = grantor.driver.now
    if tail == "pad":
        assert given.total() == sum(sizes)
        assert stream.skipped == 0
    else:
        left = sum(sizes) - given.total() - stream.left_out
        # What is left was not sampled yet: at most as many as make two batches for each.
        assert 0 <= left <= 2 * 2 * 32 * (2 if "sample" in more else 1)
    assert grantor.driver.replay() == stream
