"""Units as their streams ask for them: shuffled, sampled, in slices; positions stay exact."""

import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from primusd.datafeed import keyed
from primusd.datafeed.drawing import Drawing, described, drawing_of
from primusd.datafeed.formats.base import ReadError, RowBlock, UnitFile, open_unit
from primusd.datafeed.formats.opening import Opener
from primusd.datafeed.formats.settings import Settings
from primusd.datafeed.protocol import Unit
from primusd.datafeed.reader.drawn import drawn
from primusd.job.conditions import parse_condition
from primusd.job.spec import Sample, Shuffle, Source, StreamSpec

ROWS = 5_000


def parquet(folder: Path, rows: int = ROWS, group: int = 700) -> Unit:
    path = folder / "part.parquet"
    pq.write_table(pa.table({"n": list(range(rows))}), path, row_group_size=group)
    return _unit(path, "parquet")


def text(folder: Path, rows: int = ROWS) -> Unit:
    path = folder / "part.txt"
    chosen = random.Random(3)
    path.write_text("".join(f"{n:06d}{'x' * chosen.randint(0, 30)}\n" for n in range(rows)))
    return _unit(path, "text")


def _unit(path: Path, form: str, **options: str) -> Unit:
    found = path.stat()
    options = {"format": form, **options}
    return Unit("file", str(path), found.st_size, str(found.st_mtime_ns), options)


def opened(unit: Unit, drawing: Drawing, epoch: int = 0) -> UnitFile:
    return drawn(open_unit(unit, "", ()), unit, epoch, drawing)[0]


def values(block: RowBlock) -> list[int]:
    column: Any = block.batch.column(0).to_pylist()  # of ints, or of lines
    return [one if isinstance(one, int) else int(one[:6]) for one in column]


def read(file: UnitFile, lo: int, hi: int, block_bytes: int = 4_000) -> Iterator[int]:
    at = lo
    for block in file.rows(lo, hi, block_bytes=block_bytes):
        assert block.lo == at
        at = block.hi
        yield from values(block)
    assert at == hi


MAKERS = pytest.mark.parametrize("make", [parquet, text])
SHUFFLED = Drawing(Shuffle(seed=7, blocks=3, block_rows=256))


@MAKERS
def test_a_shuffled_unit_has_each_row_once_in_an_order_of_its_epoch_and_seed(
    make: Callable[[Path], Unit], tmp_path: Path
) -> None:
    """M081."""
    unit = make(tmp_path)
    orders = [
        list(read(file, 0, file.end))
        for file in (
            opened(unit, SHUFFLED),
            opened(unit, SHUFFLED),
            opened(unit, SHUFFLED, epoch=1),
            opened(unit, Drawing(Shuffle(seed=8, blocks=3, block_rows=256))),
        )
    ]

    assert all(sorted(order) == list(range(ROWS)) for order in orders)
    assert orders[0] == orders[1]
    assert len({tuple(order) for order in orders}) == 3


@MAKERS
def test_any_cuts_of_a_shuffled_unit_give_the_same_order_as_the_whole(
    make: Callable[[Path], Unit], tmp_path: Path
) -> None:
    unit = make(tmp_path)
    whole = opened(unit, SHUFFLED)
    expected = list(read(whole, 0, whole.end))
    chosen = random.Random(1)
    for _ in range(10):
        cuts = sorted({0, whole.end, *(chosen.randrange(whole.end) for _ in range(7))})
        file = opened(unit, SHUFFLED)

        parts = [
            one
            for lo, hi in pairwise(cuts)
            for one in read(file, lo, hi, block_bytes=chosen.choice((200, 5_000, 1 << 20)))
        ]

        assert parts == expected


@MAKERS
def test_reading_goes_on_at_the_position_after_any_row(
    make: Callable[[Path], Unit], tmp_path: Path
) -> None:
    drawing = Drawing(SHUFFLED.shuffle, Sample(300_000, 5))
    file = opened(make(tmp_path), drawing)
    expected = list(read(file, 0, file.end))
    seen = 0
    for block in file.rows(0, file.end, block_bytes=20_000):
        for count in (0, 1, block.row_count // 2, block.row_count):
            position = block.position_after(count)
            assert list(read(file, position, file.end)) == expected[seen + count :]
        seen += block.row_count


@MAKERS
def test_a_sample_is_the_same_rows_in_every_epoch_and_what_it_leaves_out_is_counted(
    make: Callable[[Path], Unit], tmp_path: Path
) -> None:
    """M083."""
    unit = make(tmp_path)
    sample = Sample(100_000, 9)
    plain, shuffled = Drawing(sample=sample), Drawing(SHUFFLED.shuffle, sample)
    taken = [
        sorted(read(file, 0, file.end))
        for file in (
            opened(unit, plain),
            opened(unit, plain, epoch=1),
            opened(unit, shuffled),
            opened(unit, shuffled, epoch=1),
        )
    ]

    assert taken[0] == taken[1] == taken[2] == taken[3]
    assert 0.08 * ROWS < len(taken[0]) < 0.12 * ROWS
    for drawing in (plain, shuffled):
        file = opened(unit, drawing)
        blocks = list(file.rows(0, file.end, block_bytes=3_000))
        left_out = sum(b.left_out(b.hi) - b.left_out(b.lo) for b in blocks if b.left_out)
        assert left_out + len(taken[0]) == ROWS


@pytest.mark.parametrize(
    "drawing",
    [
        Drawing(),
        Drawing(sample=Sample(300_000)),
        SHUFFLED,
        Drawing(SHUFFLED.shuffle, Sample(300_000)),
    ],
)
@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_C54_a_filter_before_it_counts_as_well(form: str, drawing: Drawing, tmp_path: Path) -> None:
    """In slices, samples and permuted groups: rows and left out add up."""
    unit = parquet(tmp_path)
    if form == "jsonl":
        path = tmp_path / "part.jsonl"
        path.write_text("".join(f'{{"n": {n}}}\n' for n in range(ROWS)))
        unit = _unit(path, form)
    chosen = Settings(filter=(parse_condition("n >= 2345"),))
    rows = counted = 0
    for number in range(3):
        part = _unit(Path(unit.location), unit.options["format"], slice=f"{number}/3")
        file, _ = drawn(Opener(chosen).open(part), part, 0, drawing)
        for block in file.rows(0, file.end, block_bytes=3_000):
            rows += block.row_count
            if block.left_out is not None:
                counted += block.left_out(block.hi) - block.left_out(block.lo)

    assert 0 < rows < ROWS
    assert rows + counted == ROWS


@MAKERS
def test_slices_of_a_unit_are_the_unit(make: Callable[[Path], Unit], tmp_path: Path) -> None:
    unit = make(tmp_path)
    found: list[int] = []
    for number in range(5):
        part = _unit(Path(unit.location), unit.options["format"], slice=f"{number}/5")
        file = opened(part, Drawing())
        found += read(file, 0, file.end)

    assert found == list(range(ROWS))


def test_the_rows_of_a_group_come_from_blocks_all_over_a_sorted_file(tmp_path: Path) -> None:
    file = opened(
        parquet(tmp_path, 20_000, 20_000), Drawing(Shuffle(seed=1, blocks=8, block_rows=250))
    )

    first = list(read(file, 0, 400))

    assert max(first) - min(first) > 10_000
    assert len({one // 250 for one in first}) == 8


def test_rows_that_cannot_be_read_take_the_last_places_of_their_group(tmp_path: Path) -> None:
    unit = text(tmp_path, 1_000)

    class Damaged:
        """A file of which two ranges cannot be read."""

        def __init__(self) -> None:
            self._file = open_unit(unit, "", ())
            self.end, self.cuts, self.row_count = self._file.end, self._file.cuts, -1

        def rows(self, lo: int, hi: int, *, block_bytes: int) -> Iterator[RowBlock]:
            for bad_lo, bad_hi in ((2_000, 2_100), (9_000, 9_010)):
                if lo < bad_hi and bad_lo < hi:
                    if lo < bad_lo:
                        yield from self._file.rows(lo, bad_lo, block_bytes=block_bytes)
                    at = max(lo, bad_lo)
                    raise ReadError("damaged", kind="data", lo=at, hi=bad_hi)
            yield from self._file.rows(lo, hi, block_bytes=block_bytes)

    file, _ = drawn(Damaged(), unit, 0, Drawing(Shuffle(blocks=1, block_rows=1 << 20)))  # type: ignore[arg-type]  # it goes to no pipe
    found: list[int] = []

    def read_all() -> None:
        for block in file.rows(0, file.end, block_bytes=1_000):
            found.extend(values(block))

    with pytest.raises(ReadError) as caught:
        read_all()

    assert (caught.value.lo, caught.value.hi) == (file.end - 110, file.end)
    assert len(found) == len(set(found)) > 980


def test_shuffled_lines_go_through_a_pipe_and_each_byte_count_is_a_position(
    tmp_path: Path,
) -> None:
    file = opened(text(tmp_path), SHUFFLED)
    rows = list(read(file, 0, file.end))
    lines: list[int] = []
    for piece in file.pieces(0, file.end, framing="lines"):
        found = piece.data.splitlines(keepends=True)
        middle = len(found) // 2
        rest = file.rows(
            piece.locate(sum(map(len, found[:middle])) + 3), file.end, block_bytes=1000
        )
        assert values(next(iter(rest)))[0] == int(found[middle][:6])
        lines += [int(line[:6]) for line in found]

    assert lines == rows


def test_what_a_stream_says_reaches_its_readers() -> None:
    sources = (Source("/a", weight=3), Source("/b"))
    spec = StreamSpec(
        "clicks", sources, shuffle=Shuffle(4, 2), sample=Sample(10), mixing="weighted"
    )

    assert drawing_of(described(spec)) == Drawing(Shuffle(4, 2), Sample(10), "weighted", (3, 1))
    assert drawing_of(described(StreamSpec("clicks", sources))) == Drawing()


@pytest.mark.parametrize("size", [1, 2, 3, 10, 64, 65, 1_000, 4_097])
def test_a_permutation_has_each_number_once_and_knows_its_place(size: int) -> None:
    order = keyed.Permutation(size, keyed.key_of(7, "clicks"))

    found = [order.at(place) for place in range(size)]

    assert sorted(found) == list(range(size))
    assert [order.place(number) for number in found] == list(range(size))
