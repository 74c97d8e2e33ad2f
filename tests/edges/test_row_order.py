"""The order of rows with real readers, trainers and ledger: strict, shuffled, mixed, sampled."""

import signal
from collections import Counter
from itertools import accumulate, groupby
from pathlib import Path

import anyio
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from primusd.datafeed.protocol import Unit
from primusd.job.decoding import Decoding
from primusd.job.formats import plan_of
from primusd.job.spec import Sample, Shuffle, Source, StreamSpec
from tests.edges.fed_trainer import fed, units_of
from tests.edges.ledger_grantor import LedgerGrantor

GLOBAL_ROWS = 64
FILES, ROWS = 3, 500

PRINT = """
    import sys, time
    import primus

    for batch in primus.dataset(batch_rows=int(sys.argv[1])):
        column = batch["n"] if "n" in batch else batch["line"]
        print(batch.epoch, *[int(one) for one in column.tolist()], flush=True)
        time.sleep(float(sys.argv[2]))
"""


def parquet(folder: Path, files: int = FILES, rows: int = ROWS, first: int = 0) -> list[Unit]:
    folder.mkdir(exist_ok=True)
    for number in range(files):
        begin = first + number * rows
        table = pa.table({"n": list(range(begin, begin + rows))})
        pq.write_table(table, folder / f"part-{number}.parquet", row_group_size=120)
    return units_of(folder)


def batches_of(text: str) -> list[tuple[int, ...]]:
    return [tuple(map(int, line.split())) for line in text.splitlines()]


async def train(
    grantor: LedgerGrantor, workers: int, batch_rows: int, killed: int = -1
) -> list[list[tuple[int, ...]]]:
    """Return the batches of each worker; one may be killed in the middle and begin again."""
    found: dict[int, str] = {}

    async def life(index: int) -> None:
        name = f"worker-{index}"
        text = ""
        if index == killed:
            async with fed(grantor, grantor.plan(), name=name) as one:
                process = one.start_script(PRINT, str(batch_rows), "0.01")
                assert process.stdout is not None
                for _ in range(5):
                    line = await anyio.to_thread.run_sync(process.stdout.readline)
                    text += line.decode()
                process.send_signal(signal.SIGKILL)
                # Not `communicate`, which forgets what was read ahead.
                text += process.stdout.read().decode()
                process.communicate()
                one.end(process)
            grantor.open(name)
            text = text[: text.rfind("\n") + 1]
        async with fed(grantor, grantor.plan(), name=name) as one:
            text += await one.finish(one.start_script(PRINT, str(batch_rows), "0"))
        found[index] = text

    async with anyio.create_task_group() as tasks:
        for index in range(workers):
            tasks.start_soon(life, index)
    return [batches_of(found[index]) for index in range(workers)]


def steps_of(workers: list[list[tuple[int, ...]]]) -> dict[tuple[int, int], set[int]]:
    """Return the rows of each step of each epoch, of all workers together."""
    steps: dict[tuple[int, int], set[int]] = {}
    for batches in workers:
        count = Counter[int]()
        # What came twice after a kill counts once.
        for epoch, *rows in dict.fromkeys(batches):
            steps.setdefault((epoch, count[epoch]), set()).update(rows)
            count[epoch] += 1
    return steps


def strict(units: list[Unit], workers: int) -> LedgerGrantor:
    spec = StreamSpec(
        "clicks", (Source("/d"),), order="strict", lanes=8, shuffle=Shuffle(seed=5), epochs=2
    )
    return LedgerGrantor(spec, units, workers)


def test_rows_come_in_one_order_on_one_two_and_four_workers_also_after_a_kill(
    tmp_path: Path,
) -> None:
    units = parquet(tmp_path / "d")
    found = {}
    for workers, killed in ((1, -1), (2, -1), (4, -1), (2, 1), (4, 0)):
        grantor = strict(units, workers)

        batches = anyio.run(train, grantor, workers, GLOBAL_ROWS // workers, killed)

        assert grantor.is_done
        found[workers, killed] = steps_of(batches)

    expected = found[1, -1]
    assert all(steps == expected for steps in found.values())
    assert sum(map(len, expected.values())) == 2 * FILES * ROWS
    assert {len(expected[epoch, n]) for epoch in range(2) for n in range(20)} == {GLOBAL_ROWS}


@pytest.mark.parametrize("shuffle", [None, Shuffle(seed=5)], ids=["plain", "shuffled"])
def test_three_passes_in_strict_order_are_each_whole_and_alike_on_any_number_of_workers(
    tmp_path: Path, shuffle: Shuffle | None
) -> None:
    """M081, M082: not shuffled each pass has the same steps; shuffled each has others."""
    units = parquet(tmp_path / "d")
    spec = StreamSpec("clicks", (Source("/d"),), order="strict", lanes=8, shuffle=shuffle, epochs=3)
    found = []
    for workers, killed in ((1, -1), (4, -1), (2, 0)):
        grantor = LedgerGrantor(spec, units, workers)

        batches = anyio.run(train, grantor, workers, GLOBAL_ROWS // workers, killed)

        assert grantor.is_done
        for one in batches:
            epochs = [epoch for epoch, *_ in one]
            assert epochs == sorted(epochs)
        found.append(steps_of(batches))

    alone, *others = found
    assert all(steps == alone for steps in others)
    passes = [[rows for (epoch, _), rows in alone.items() if epoch == one] for one in range(3)]
    assert all(set().union(*rows) == set(range(FILES * ROWS)) for rows in passes)
    assert all(sum(map(len, rows)) == FILES * ROWS for rows in passes)
    assert (passes[0] == passes[1] == passes[2]) is (shuffle is None)
    assert (passes[1] != passes[2]) is (shuffle is not None)


def test_sources_are_mixed_by_their_weights(tmp_path: Path) -> None:
    """M080."""
    units = [
        replace(unit, options={**unit.options, "source": str(source)})
        for source in range(2)
        for unit in parquet(tmp_path / str(source), 2, 600, first=source * 10_000)
    ]
    sources = (Source(str(tmp_path / "0"), weight=3), Source(str(tmp_path / "1")))
    grantor = LedgerGrantor(StreamSpec("clicks", sources, mixing="weighted"), units)

    (batches,) = anyio.run(train, grantor, 1, 100)

    taken = list(accumulate(sum(row < 10_000 for row in batch[1:]) for batch in batches))
    # A turn is 75 rows of the first, or 25 of the other; what is left at the end is the other's.
    assert all(abs(count - 75 * (number + 1)) <= 75 for number, count in enumerate(taken[:15]))
    assert taken[-1] == 1_200
    assert sum(len(batch) - 1 for batch in batches) == 2_400


def lines_of_sources(folder: Path, count: int, rows: int) -> list[Unit]:
    """Write one file a source, whose lines begin with its number and have all lengths."""
    units = []
    for source in range(count):
        path = folder / f"{source}.txt"
        path.write_text("".join(f"{source}-{n}-{'x' * (n * 37 % 5_000)}\n" for n in range(rows)))
        units += [replace(one, options={**one.options, "source": str(source)})
                  for one in units_of(path)]  # fmt: skip
    return units


@pytest.mark.parametrize(
    ("mixing", "runs"),
    [("inOrder", ["0", "1", "2"]), ("priority", ["2", "1", "0"]), ("roundRobin", [*"012"] * 4)],
)
def test_m080_m100_lines_of_three_sources_take_turns_in_a_pipe_and_stay_whole(
    tmp_path: Path, mixing: str, runs: list[str]
) -> None:
    """Each source has a range of its own under way: the third one waits for no other's end."""
    units = lines_of_sources(tmp_path, 3, 1_500)
    sources = tuple(Source(str(tmp_path / f"{n}.txt"), weight=1 + n) for n in range(3))
    grantor = LedgerGrantor(StreamSpec("clicks", sources, mixing=mixing), units)

    async def main() -> str:
        async with fed(grantor, grantor.plan("stdin", "lines"), name="worker-0") as one:
            return await one.finish(one.start(["cat"]))

    lines = anyio.run(main).splitlines()

    written = [line for unit in units for line in Path(unit.location).read_text().splitlines()]
    assert sorted(lines) == sorted(written)
    turns = [source for source, _ in groupby(line[0] for line in lines)]
    assert turns[: len(runs)] == runs
    assert grantor.is_done


@pytest.mark.parametrize("is_sampled", [False, True])
def test_small_files_are_shuffled_with_each_other_and_what_is_left_out_is_counted(
    tmp_path: Path, *, is_sampled: bool
) -> None:
    """M081, M083, C54: taken and left out add up."""
    units = parquet(tmp_path / "d", 12, 100)
    spec = StreamSpec(
        "clicks",
        (Source("/d"),),
        shuffle=Shuffle(seed=3, blocks=6),
        sample=Sample(250_000) if is_sampled else None,
    )
    grantor = LedgerGrantor(spec, units)

    (batches,) = anyio.run(train, grantor, 1, 60)

    rows = [row for batch in batches for row in batch[1:]]
    assert len(set(rows)) == len(rows)
    assert len(rows) + grantor.driver.now.left_out == 1_200
    assert grantor.driver.now.consumed == 1_200
    if not is_sampled:
        assert len({row // 100 for row in batches[3][1:]}) >= 4


@pytest.mark.parametrize("delivery", ["socket", "stdin"])
def test_C54_what_a_filter_leaves_out_is_counted_on_either_way(
    tmp_path: Path, delivery: str
) -> None:
    """A row group that is not read counts like one of which each row was looked at."""
    units = parquet(tmp_path / "d", 2, 500)
    chosen = Decoding(filter=("n >= 250", "n != 700"))
    spec = StreamSpec("clicks", (Source("/d"),), decoding=chosen)
    grantor = LedgerGrantor(spec, units)
    plan = grantor.plan() if delivery == "socket" else grantor.plan("stdin", "lines")
    plan = replace(plan, format=plan_of(spec))

    async def main() -> str:
        async with fed(grantor, plan, name="worker-0") as one:
            if delivery == "stdin":
                return await one.finish(one.start(["cat"]))
            return await one.finish(one.start_script(PRINT, "60", "0"))

    text = anyio.run(main)

    if delivery == "stdin":
        assert len(text.splitlines()) == 749
    else:
        assert sum(len(batch) - 1 for batch in batches_of(text)) == 749
    assert grantor.driver.now.left_out == 251
    assert grantor.driver.now.consumed == 1_000


@pytest.mark.parametrize("delivery", ["socket", "stdin"])
def test_C54_lines_of_a_text_are_picked_and_the_others_counted(
    tmp_path: Path, delivery: str
) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"{n}\n" for n in range(2_000)))
    chosen = Decoding(filter=("line ends with 7", "line not contains 9"))
    spec = StreamSpec("clicks", (Source(str(path)),), "text", decoding=chosen)
    grantor = LedgerGrantor(spec, units_of(path))
    plan = grantor.plan() if delivery == "socket" else grantor.plan("stdin", "lines")
    plan = replace(plan, format=plan_of(spec))

    async def main() -> str:
        async with fed(grantor, plan, name="worker-0") as one:
            if delivery == "stdin":
                return await one.finish(one.start(["cat"]))
            return await one.finish(one.start_script(PRINT, "60", "0"))

    text = anyio.run(main)

    picked = [n for n in range(2_000) if n % 10 == 7 and "9" not in str(n)]
    if delivery == "stdin":
        assert [int(line) for line in text.splitlines()] == picked
    else:
        assert [n for _, *batch in batches_of(text) for n in batch] == picked
    assert grantor.driver.now.left_out == 2_000 - len(picked)
    assert grantor.driver.now.phase == "Done"


def test_shuffled_lines_go_to_standard_input(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"{n}\n" for n in range(2_000)))
    spec = StreamSpec("clicks", (Source(str(path)),), shuffle=Shuffle(block_rows=2))
    grantor = LedgerGrantor(spec, units_of(path))

    async def main() -> str:
        plan = grantor.plan("stdin", "lines")
        async with fed(grantor, plan, name="worker-0") as one:
            return await one.finish(one.start(["cat"]))

    rows = list(map(int, anyio.run(main).split()))

    assert sorted(rows) == list(range(2_000))
    assert rows[:100] != list(range(100))
    assert grantor.is_done


def test_a_batch_that_is_no_multiple_of_the_lanes_is_refused_in_words(tmp_path: Path) -> None:
    grantor = strict(parquet(tmp_path / "d"), 1)
    script = """
        import primus
        try:
            next(primus.dataset(batch_rows=100))
        except primus.FeedError as error:
            print(error)
    """

    async def main() -> str:
        async with fed(grantor, grantor.plan(), name="worker-0") as one:
            return await one.finish(one.start_script(script))

    assert "batch_rows must be a multiple of 8; it is 100" in anyio.run(main)
