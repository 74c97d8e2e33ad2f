"""Ready batches in torch, beside the loaders of torch, Ray, HuggingFace, MosaicML and WebDataset.

Click rows of 157 bytes in batches of 1,024, and blocks of 2,048 tokens in batches of 32.

One rule for all: the clock, of time and of CPU, starts at the first batch, and behind it come many
times what anyone has read ahead by then. So start-up and imports count for nobody, and nobody is
measured on what lay ready. Ours go through all files `REPEATS` times, which is ten times what a
reader holds; Ray through twice what its object store holds.
"""

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench import click_rows, feeding
from bench.figures import Figure, unmeasured
from bench.rivals import RivalAbsentError, rival_python, rival_says
from primusd.executor.protocol import FeedPlan

REPEATS = 4
ROUNDS = 2
BATCH_ROWS = 1024
BATCH_TOKENS = 32
TOKENS = 2048
GOAL_ROWS_PER_S = 2.8e6
GOAL_RATIO = 0.45
GOAL_ALL_US = 0.40
GOAL_TRAINER_US = 0.06
# Name, environment, workers, and how much faster than it the feed is to be on rows and on tokens.
RIVALS = (
    ("torch DataLoader", "torch", "torch", (2,), 4.0, 0.0),
    ("Ray streaming_split", "ray", "ray", (2,), 6.0, 0.0),
    ("HuggingFace torch", "torch", "hf", (0,), 25.0, 0.0),
    ("WebDataset loader", "torch", "webdataset", (0, 2), 100.0, 4.0),
    ("MosaicML loader", "mosaic", "mosaic", (0, 2), 100.0, 4.0),
    ("MosaicML ds[i]", "mosaic", "mosaic-index", (0,), 0.0, 1.0),
)

FED = """
import json, os, sys, time
import torch
import primus.torch

torch.set_num_threads(1)
rows = 0
reader = (~os.getppid() << 3) | 2  # The clock of its CPU, as clock_getcpuclockid(3) makes it.
for batch in primus.torch.dataset(batch_rows=int(sys.argv[1]), layout=sys.argv[2]):
    if not rows:
        began, used, first = time.perf_counter(), time.process_time(), batch.rows
        read = time.clock_gettime(reader)
    rows += batch.rows
rows -= first
used, read = time.process_time() - used, time.clock_gettime(reader) - read
print(json.dumps([rows, time.perf_counter() - began, used, read]))
"""

LIMIT = """
import json, sys, time
import pyarrow as pa
import pyarrow.parquet as pq

pa.set_cpu_count(1)
rows, began = 0, time.perf_counter()
for path in sys.argv[2:]:
    file = pq.ParquetFile(path, pre_buffer=False)
    for group in range(file.num_row_groups):
        for batch in file.read_row_group(group, use_threads=False).to_batches(int(sys.argv[1])):
            rows += batch.num_rows
print(json.dumps([rows, time.perf_counter() - began]))
"""


class Fed(NamedTuple):
    """What one run gave."""

    rows_per_s: float
    trainer_us: float
    all_us: float


def run(*, rounds: int = ROUNDS, rows: int = click_rows.ROWS) -> list[Figure]:
    """Measure rows and tokens, each beside its rivals; a rival that is absent is named."""
    clicks = click_rows.write_parquet(feeding.DATA / f"clicks-{rows}", rows=rows)
    try:
        python = str(rival_python("torch"))
    except RivalAbsentError as error:
        return [unmeasured("click rows into torch", str(error))]
    return [*_rows(python, clicks, rounds), *_tokens(python, rounds, rows)]


def _rows(python: str, paths: list[Path], rounds: int) -> list[Figure]:
    found: list[Fed] = []

    def ours() -> float:
        found.append(_fed(python, paths * REPEATS, BATCH_ROWS, "dense"))
        return found[-1].rows_per_s

    ways = {"ours": ours, "limit": lambda: _limit(paths, BATCH_ROWS)}
    rates = feeding.rounds(ways, rounds)
    rate, limit = (statistics.median(rates[name]) for name in ("ours", "limit"))
    kept = found[1:]
    return [
        Figure(
            "click rows into torch, dense",
            rate / 1e6,
            "M rows/s",
            f"≥ {GOAL_ROWS_PER_S / 1e6:g} M rows/s, ≥ {GOAL_RATIO:.0%} of pyarrow",
            rate >= GOAL_ROWS_PER_S and rate >= GOAL_RATIO * limit,
            f"pyarrow, no tensors: {limit / 1e6:.2f} M rows/s, so {rate / limit:.0%}",
        ),
        _cost("CPU in all, click rows into torch", [one.all_us for one in kept], GOAL_ALL_US),
        _cost("CPU in the trainer", [one.trainer_us for one in kept], GOAL_TRAINER_US),
        *_beside("rows", rate, paths[0].parent),
    ]


def _cost(name: str, costs_us: list[float], goal_us: float) -> Figure:
    cost_us = statistics.median(costs_us)
    return Figure(name, cost_us, "µs/row", f"≤ {goal_us:.2f} µs/row", cost_us <= goal_us, "")


def _tokens(python: str, rounds: int, rows: int) -> list[Figure]:
    paths = write_tokens(feeding.DATA / f"tokens-{min(rows, 4_000)}", rows=min(rows, 4_000))
    ways: dict[str, Callable[[], float]] = {
        "ours": lambda: _fed(python, paths * REPEATS, BATCH_TOKENS, "numpy").rows_per_s,
        "limit": lambda: _limit(paths, BATCH_TOKENS),
    }
    rates = feeding.rounds(ways, rounds)
    rate, limit = (statistics.median(rates[name]) for name in ("ours", "limit"))
    whole = Figure(
        "blocks of 2,048 tokens into torch",
        rate / 1e3,
        "k blocks/s",
        f"≥ {GOAL_RATIO:.0%} of pyarrow",
        rate >= GOAL_RATIO * limit,
        f"pyarrow, no tensors: {limit / 1e3:.1f} k blocks/s, so {rate / limit:.0%}",
    )
    return [whole, *_beside("tokens", rate, paths[0].parent)]


def _beside(kind: str, rate: float, folder: Path) -> list[Figure]:
    figures = []
    for name, environment, program, workers, over_rows, over_tokens in RIVALS:
        goal = over_rows if kind == "rows" else over_tokens
        if not goal:
            continue
        what = f"{kind} into torch, against {name}"
        try:
            theirs = max(
                rival_says(environment, "loaders_rivals", program, kind, folder, count)[0]
                for count in workers
            )
        except RivalAbsentError as error:
            figures.append(unmeasured(what, str(error), f"≥ {goal:g} times"))
            continue
        ratio = rate / theirs
        told = f"{name}: {theirs:,.0f} {kind}/s"
        figures.append(
            Figure(what, ratio, "times faster", f"≥ {goal:g} times", ratio >= goal, told)
        )
    return figures


def _fed(python: str, paths: list[Path], batch_rows: int, layout: str) -> Fed:
    plan = FeedPlan("clicks", "socket", "arrow", {}, 0)
    command = [python, "-c", FED, str(batch_rows), layout]
    out, _ = feeding.feed(feeding.units_of(paths), plan, command)
    rows, seconds, used_s, read_s = json.loads(out)
    return Fed(rows / seconds, used_s / rows * 1e6, (used_s + read_s) / rows * 1e6)


def _limit(paths: list[Path], batch_rows: int) -> float:
    rows, seconds = feeding.said(feeding.python(LIMIT, str(batch_rows), *map(str, paths)))
    return rows / seconds


def write_tokens(folder: Path, *, files: int = 4, rows: int = 4_000) -> list[Path]:
    """Write files of blocks of tokens, 8 KiB each, as a fixed-size list in zstd."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"part-{number}.parquet" for number in range(files)]
    random = np.random.default_rng(7)
    for path in paths:
        if not path.exists():
            tokens = (random.zipf(1.2, (rows, TOKENS)) % 50_000).astype(np.int32)
            column = pa.FixedSizeListArray.from_arrays(pa.array(tokens.ravel()), TOKENS)
            partial = path.with_suffix(".partial")
            pq.write_table(
                pa.table({"tokens": column}), partial, row_group_size=1024, compression="zstd"
            )
            partial.rename(path)
    return paths
