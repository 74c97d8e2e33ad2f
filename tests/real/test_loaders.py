"""Streams in the loops that people write: torch's loaders, Accelerate, Lightning, tf.data.

Each runs in the environment of its framework, which `tests/environments/build.py` makes once.
"""

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.real.test_frameworks import BUILD_WITHIN_S, END_WITHIN_S, python

pytestmark = pytest.mark.timeout(BUILD_WITHIN_S + 200)
ROWS = 1_000

TORCH = """
import json
import lightning
import primus, primus.torch
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader


def rows(stream, loop=lambda dataset: dataset):
    found = []
    dataset = primus.torch.dataset(stream, batch_rows=64)
    for epoch in range(2):
        found += [int(n) for batch in loop(dataset) for n in batch["n"]]
    assert not list(dataset)
    return sorted(found)


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.seen = []

    def training_step(self, batch, number):
        self.seen += [int(n) for n in batch["n"]]
        return self.layer(batch["x"]).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


def fitted():
    model = Model()
    stacks = {"x": ["a", "b"]}
    dataset = primus.torch.dataset("lightning", batch_rows=64, layout="dense", stacks=stacks)
    lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    ).fit(model, DataLoader(dataset, batch_size=None))
    return sorted(model.seen)


print(json.dumps({
    "plain": rows("plain"),
    "loader": rows("loader", lambda one: DataLoader(one, batch_size=None)),
    "stateful": rows("stateful", lambda one: StatefulDataLoader(one, batch_size=None)),
    "accelerate": rows(
        "accelerate", lambda one: Accelerator(cpu=True).prepare(DataLoader(one, batch_size=None))
    ),
    "lightning": fitted(),
}))
"""

RESUMED = """
import json, os, sys
import primus, primus.torch
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

KEPT = "{folder}/loader.pt"
loader = StatefulDataLoader(primus.torch.dataset("rows", batch_rows=64), batch_size=None)
model = []
if os.path.exists(KEPT):
    kept = torch.load(KEPT)
    loader.load_state_dict(kept["loader"])
    model = kept["model"]
taken, lives = 0, int(os.environ["PRIMUS_ATTEMPT"])
for epoch in range(2):
    for batch in loader:
        model += [int(n) for n in batch["n"]]
        taken += 1
        if taken == 4 * lives + 1:
            torch.save({{"model": model, "loader": loader.state_dict()}}, KEPT)
        if taken == 4 * lives + 4 and lives < 4:
            # Three batches that are in no checkpoint.
            os._exit(1)
loader.dataset.feed.mark()
print(json.dumps({{"model": sorted(model), "lives": lives}}))
"""
RESUMED_JOB = """
name: resumed
budgets: {{application: 5}}
roles:
  worker:
    command: [{python}, "{folder}/resumed.py"]
    data: rows
    restart: {{delay: 50ms}}
data:
  rows: {{sources: [{{files: "{folder}/rows-*.parquet"}}], epochs: 2, delivery: exactlyOnce}}
"""

TENSORFLOW = """
import json
import primus, primus.tf
import tensorflow as tf

seen = []


class Model(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.layer = tf.keras.layers.Dense(1)

    def call(self, x):
        return self.layer(x)


numbers = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1)


def pair(batch):
    n = tf.squeeze(batch["n"], -1) if batch["n"].shape.rank == 2 else batch["n"]
    before = numbers.lookup(n)
    with tf.control_dependencies([numbers.insert(n, tf.maximum(before, 0) + 1)]):
        return tf.identity(batch["x"]), tf.cast(n, tf.float32)


stacks = {"x": ["a", "b"]}
fit = primus.tf.dataset("fit", batch_rows=64, layout="dense", stacks=stacks).map(pair)
model = Model()
model.compile(optimizer="sgd", loss="mse")
model.fit(fit, epochs=2, verbose=0)
keys, counts = numbers.export()

feed = primus.dataset("receipts", batch_rows=64, manual=True)
taken = []
dataset = primus.tf.dataset(feed).prefetch(2)
for epoch in range(2):
    for batch, receipt in dataset:
        taken += [int(n) for n in batch["n"]]
        feed.commit(int(receipt))
assert not list(dataset)
print(json.dumps({
    "fit": sorted(int(n) for n in keys for _ in range(2)),
    "counts": sorted(set(counts.numpy().tolist())),
    "receipts": sorted(taken),
}))
"""


def submit(head: Any, name: str, program: str, streams: list[str], interpreter: str) -> None:
    """Submit a job whose trainer reads each stream to its end, in two epochs."""
    write_rows(head)
    (head.folder / f"{name}.py").write_text(program)
    stream = {"sources": [{"files": str(head.folder / "rows-*.parquet")}], "epochs": 2}
    head.start()
    head.submit(
        json.dumps(
            {
                "apiVersion": "primus/v1",
                "name": name,
                "files": [f"{name}.py"],
                "data": dict.fromkeys(streams, stream),
                "roles": {"worker": {"command": [interpreter, f"{name}.py"], "data": streams}},
            }
        )
    )


def write_rows(head: Any) -> None:
    """Write the rows as two files."""
    numbers = pa.array(range(ROWS), pa.int64())
    halves = pa.array([n / 2 for n in range(ROWS)], pa.float32())
    table = pa.table({"n": numbers, "a": halves, "b": halves})
    for part in range(2):
        half = table.slice(part * ROWS // 2, ROWS // 2)
        pq.write_table(half, head.folder / f"rows-{part}.parquet", row_group_size=100)


def printed(head: Any, name: str) -> dict[str, list[int]]:
    """Return what the trainer said at its end, once all its rows are proved to be used."""
    head.until(
        "it ends", lambda: head.phase(name) in ("Succeeded", "Failed"), within_s=END_WITHIN_S
    )
    said = head.ctl("logs", name).stdout
    assert head.phase(name) == "Succeeded", said
    head.ctl("data", name, "verify")
    line = next(one for one in said.splitlines() if '{"' in one)
    found: dict[str, list[int]] = json.loads(line[line.index("{") :])
    return found


def test_every_row_of_two_epochs_comes_once_through_the_loaders_of_torch(head: Any) -> None:
    """M104."""
    streams = ["plain", "loader", "stateful", "accelerate", "lightning"]
    submit(head, "loaders", TORCH, streams, python("torch"))

    found = printed(head, "loaders")

    twice = sorted([*range(ROWS), *range(ROWS)])
    assert found == dict.fromkeys(streams, twice)


def test_the_state_of_torchs_loader_goes_back_with_its_model_after_each_crash(head: Any) -> None:
    """C52, M104: saved and loaded by torch; what came after it is in no model, and comes again."""
    interpreter = python("torch")
    write_rows(head)
    (head.folder / "resumed.py").write_text(RESUMED.format(folder=head.folder))
    head.start()
    head.submit(RESUMED_JOB.format(folder=head.folder, python=interpreter))

    found = printed(head, "resumed")

    assert found == {"model": sorted([*range(ROWS), *range(ROWS)]), "lives": 4}


def test_every_row_of_two_epochs_comes_once_through_tf_data(head: Any) -> None:
    """M104."""
    submit(head, "tfdata", TENSORFLOW, ["fit", "receipts"], python("tensorflow"))

    found = printed(head, "tfdata")

    twice = sorted([*range(ROWS), *range(ROWS)])
    assert found["receipts"] == twice
    assert found["counts"] == [2]
    assert found["fit"] == twice
