"""What many small files cost beside a few large ones with the same rows (M085); no daemon."""

import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench import feeding
from bench.figures import Figure
from primusd.datafeed.formats.opening import Opener
from primusd.datafeed.formats.settings import Settings
from primusd.datafeed.protocol import Unit

ROWS = 1_000_000
FEW, MANY = 8, 2_000
COLUMNS = 8
ROUNDS = 3
BLOCK_BYTES = 8 << 20


def run(*, rows: int = ROWS, many: int = MANY, rounds: int = ROUNDS) -> list[Figure]:
    """Measure the processor time of reading, all files one after the other, in rounds of both."""
    figures = []
    for form in ("parquet", "text"):
        files = {count: _units(form, count, rows) for count in (FEW, many)}
        ways = {str(count): lambda units=units: _read_s(units) for count, units in files.items()}
        found = {
            name: statistics.median(values) for name, values in feeding.rounds(ways, rounds).items()
        }
        few, all_s = found[str(FEW)], found[str(many)]
        figures += [
            Figure(
                f"{many:,} files beside {FEW} with the same rows, {form}",
                all_s / few,
                "times the processor time",
                "",
                met=True,
                rival=f"{few * 1e9 / rows:.0f} ns a row in {FEW} files",
            ),
            Figure(
                f"a file more, {form}",
                (all_s - few) / (many - FEW) * 1e3,
                "ms of a processor",
                "",
                met=True,
                rival=_opened(form, files[many]),
            ),
        ]
    return figures


def _read_s(units: Sequence[Unit]) -> float:
    opener = Opener(Settings())
    began = time.process_time()
    for unit in units:
        for block in opener.open(unit).rows(0, 1 << 62, block_bytes=BLOCK_BYTES):
            assert block.row_count
    return time.process_time() - began


def _opened(form: str, units: Sequence[Unit]) -> str:
    """Return what only opening a file and reading it takes, with nothing of ours."""
    began = time.process_time()
    for unit in units:
        if form == "parquet":
            pq.ParquetFile(unit.location, pre_buffer=False).read(use_threads=False)
        else:
            Path(unit.location).read_bytes()
    cost = (time.process_time() - began) / len(units)
    what = "pyarrow" if form == "parquet" else "open and read"
    return f"{what}: {cost * 1e3:.3f} ms a file"


def _units(form: str, count: int, rows: int) -> list[Unit]:
    folder = feeding.DATA / f"small-{form}-{count}-{rows}"
    if not folder.exists():
        partial = folder.with_suffix(".partial")
        partial.mkdir(parents=True, exist_ok=True)
        numbers = np.arange(rows // count)
        lines = b"".join(b"%060d\n" % number for number in numbers)
        table = pa.table({f"c{column}": numbers for column in range(COLUMNS)})
        for number in range(count):
            if form == "text":
                (partial / f"{number:05d}.txt").write_bytes(lines)
            else:
                pq.write_table(table, partial / f"{number:05d}.parquet")
        partial.rename(folder)
    return feeding.units_of(sorted(folder.iterdir()), form)
