"""Batches of 8,192 click rows in TensorFlow: `primus.tf.dataset` beside the tf.data service.

From the first batch on, over far more than is read ahead by then, as in `feed_torch`.
"""

import json
import statistics
from pathlib import Path

from bench import click_rows, feeding
from bench.figures import Figure, unmeasured
from bench.rivals import RivalAbsentError, rival_python, rival_says
from primusd.executor.protocol import FeedPlan

ROUNDS = 2
REPEATS = 4
BATCH_ROWS = 8192
GOAL_ROWS_PER_S = 2.5e6
GOAL_RATIO = 6.0

FED = """
import json, os, time
os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")
import primus, primus.tf

rows = 0
feed = primus.dataset(batch_rows=8192, layout="dense")
for batch in primus.tf.dataset(feed):
    if not rows:
        began = time.perf_counter()
        first = int(batch["float32"].shape[0])
    rows += int(batch["float32"].shape[0])
print(json.dumps([rows - first, time.perf_counter() - began]))
"""


def run(*, rounds: int = ROUNDS, rows: int = click_rows.ROWS) -> list[Figure]:
    """Measure both in turn; the service reads the same rows as TFRecord, its own format."""
    paths = click_rows.write_parquet(feeding.DATA / f"clicks-{rows}", rows=rows)
    name = f"click rows into tf.data, {BATCH_ROWS:,} a batch"
    try:
        python = str(rival_python("tensorflow"))
        theirs = [_service(paths) for _ in range(2)]
    except RivalAbsentError as error:
        return [unmeasured(name, str(error), f"≥ {GOAL_ROWS_PER_S / 1e6:g} M rows/s")]
    rate = statistics.median(_fed(python, paths) for _ in range(rounds))
    service = max(theirs)
    return [
        Figure(
            name,
            rate / 1e6,
            "M rows/s",
            f"≥ {GOAL_ROWS_PER_S / 1e6:g} M rows/s, ≥ {GOAL_RATIO:g} times",
            rate >= GOAL_ROWS_PER_S and rate >= GOAL_RATIO * service,
            f"tf.data service: {service / 1e6:.2f} M rows/s, so {rate / service:.1f} times",
        )
    ]


def _service(paths: list[Path]) -> float:
    return rival_says("tensorflow", "tensorflow_rivals", paths[0].parent)[0]


def _fed(python: str, paths: list[Path]) -> float:
    plan = FeedPlan("clicks", "socket", "arrow", {}, 0)
    units = feeding.units_of(paths * REPEATS)
    out, _ = feeding.feed(units, plan, [python, "-c", FED])
    rows, seconds = json.loads(out)
    return float(rows / seconds)
