"""Batches of 1,024 click rows: `primus.dataset` beside a bare pyarrow loop; and the import."""

import json
import statistics
import subprocess
import sys

from bench import click_rows, feeding
from bench.figures import Figure
from primusd.executor.protocol import FeedPlan

REPEATS = 3
IMPORT_RUNS = 9
GOAL_RATIO = 0.45
GOAL_IMPORT_MS = 30.0
GOAL_TRAINER_US = 0.06
GOAL_LOCAL_ROWS = 4e6

FED = """
import json, sys, time
import primus

rows = batches = 0
for batch in primus.dataset(batch_rows=1024, layout=sys.argv[1]):
    if not rows:
        began, used = time.perf_counter(), time.process_time()
    rows += batch.rows
rows -= 1024
print(json.dumps([rows, time.perf_counter() - began, time.process_time() - used]))
"""

BARE = """
import json, sys, time
import pyarrow.parquet as pq

rows, how = 0, sys.argv[1]
for path in sys.argv[2:]:
    file = pq.ParquetFile(path)
    if how == "iter_batches":
        found = file.iter_batches(batch_size=1024)
    else:
        groups = range(file.num_row_groups)
        found = (b for g in groups for b in file.read_row_group(g).to_batches(1024))
    for batch in found:
        columns = [column.to_numpy() for column in batch.columns]
        if not rows:
            began = time.perf_counter()
        rows += batch.num_rows
rows -= 1024
print(json.dumps([rows, time.perf_counter() - began]))
"""

LOCAL = """
import json, sys, time
import primus

rows = 0
for batch in primus.dataset(sys.argv[1:], batch_rows=1024):
    if not rows:
        began = time.perf_counter()
    rows += batch.rows
rows -= 1024
print(json.dumps([rows, time.perf_counter() - began]))
"""

IMPORT = """
import sys, time
before = set(sys.modules)
began = time.perf_counter()
import {module}
took = (time.perf_counter() - began) * 1000
roots = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print(took, *(roots - sys.stdlib_module_names - {{"primus"}}))
"""


def run(
    *,
    rounds: int = feeding.RUNS,
    rows: int = click_rows.ROWS,
    import_rounds: int = IMPORT_RUNS,
) -> list[Figure]:
    """Measure both layouts against the faster of two bare loops, all from the first batch on."""
    folder = "clicks" if rows == click_rows.ROWS else f"clicks-{rows}"
    paths = click_rows.write_parquet(feeding.DATA / folder, rows=rows)
    names = [str(path) for path in paths] * REPEATS
    bare = {how: feeding.median(lambda how=how: _bare(how, names), runs=rounds) for how in LOOPS}
    best = max(bare, key=lambda how: bare[how])
    figures = []
    for layout in ("numpy", "arrow"):
        found = [_fed(paths, layout) for _ in range(rounds + 1)][1:]
        rate = statistics.median(rate for rate, _ in found)
        cost = statistics.median(cost for _, cost in found)
        figures += [
            Figure(
                f"dataset() of 1,024 rows, {layout}",
                rate / 1e6,
                "M rows/s",
                f"≥ {GOAL_RATIO:.0%} of a bare loop",
                rate >= GOAL_RATIO * bare[best],
                f"pyarrow {best}: {bare[best] / 1e6:.2f} M rows/s, so {rate / bare[best]:.0%}",
            ),
            Figure(
                f"cost in the trainer, {layout}",
                cost * 1e6,
                "µs/row",
                f"≤ {GOAL_TRAINER_US} µs/row",
                cost * 1e6 <= GOAL_TRAINER_US,
                "",
            ),
        ]
    return [*figures, _in_process(names, bare[best], rounds), _import(import_rounds)]


LOOPS = ("iter_batches", "row groups cut")


def _bare(how: str, names: list[str]) -> float:
    rows, seconds = feeding.said(feeding.python(BARE, how, *names))
    return rows / seconds


def _fed(paths: list, layout: str) -> tuple[float, float]:
    units = feeding.units_of(paths) * REPEATS
    plan = FeedPlan("clicks", "socket", "arrow", {}, 0)
    out, _ = feeding.feed(units, plan, feeding.python(FED, layout))
    rows, seconds, used = json.loads(out)
    return rows / seconds, used / rows


def _in_process(names: list[str], bare: float, rounds: int) -> Figure:
    """Measure files read without a daemon, by the process that uses the rows."""

    def once() -> float:
        rows, seconds = feeding.said(feeding.python(LOCAL, *names))
        return rows / seconds

    rate = feeding.median(once, runs=rounds)
    return Figure(
        "dataset() of files, in this process, numpy",
        rate / 1e6,
        "M rows/s",
        f"≥ {GOAL_LOCAL_ROWS / 1e6:g} M rows/s",
        rate >= GOAL_LOCAL_ROWS,
        f"pyarrow: {bare / 1e6:.2f} M rows/s, so {rate / bare:.0%}",
    )


def _import(rounds: int) -> Figure:
    foreign: set[str] = set()

    def once(module: str) -> float:
        took, *others = subprocess.check_output(
            [sys.executable, "-c", IMPORT.format(module=module)], text=True, cwd=feeding.ROOT
        ).split()
        foreign.update(others)
        return float(took)

    found = feeding.median(lambda: once("primus.trainer"), runs=rounds)
    loaded = f"beyond the standard library: {', '.join(sorted(foreign)) or 'nothing'}"
    bare = feeding.median(lambda: once("asyncio"), runs=rounds)
    return Figure(
        "import primus",
        found,
        "ms",
        f"≤ {GOAL_IMPORT_MS:.0f} ms, standard library only",
        found <= GOAL_IMPORT_MS and not foreign,
        f"import asyncio: {bare:.0f} ms, so {found / bare:.0%}; {loaded}",
    )
