"""C52, C53, M111, M122: a group is killed in every way, and its model has each row exactly once."""

import json
import os
import signal
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.real.test_deaths import parent_of, trainer_of

ROWS = 1_200
TRAINER = """
import json, os, pathlib, time
import primus

shared = pathlib.Path("{folder}")
rank = primus.rank()
found = primus.latest_checkpoint()
feed = primus.dataset("rows", batch_rows=10)
base, model = 0, []
if found is not None:
    base = found.step
    model = json.loads((found.path / "model.json").read_text()) if rank == 0 else []
# Of this life of the group: one before may have begun at the same step.
parts = shared / f"parts-{{os.environ['PRIMUS_GENERATION']}}-{{base}}"
parts.mkdir(exist_ok=True)

def wait_for(path):
    while not path.exists():
        time.sleep(0.01)
    return json.loads(path.read_text())

def say(name):
    part = parts / f".{{name}}"
    part.write_text(json.dumps(model))
    part.rename(parts / name)

def keep(step, name):
    with primus.checkpoint(step=step, path=shared / "checkpoints") as folder:
        union = model + wait_for(parts / name)
        (folder / "model.json").write_text(json.dumps(union))

for number, batch in enumerate(feed, 1):
    model += [line.decode() for line in batch["line"]]
    time.sleep(0.02)
    if number in (5, 10, 15):
        if rank == 0:
            keep(base + number, f"{{number}}")
        else:
            say(f"{{number}}")
            feed.mark(base + number)
if rank == 0:
    keep(1_000_000, "end")
else:
    feed.mark(1_000_000)
    say("end")
"""
JOB = """
name: once
checkpoint: {{path: "{folder}/checkpoints"}}
budgets: {{application: 5, infrastructure: 5}}
roles:
  worker:
    replicas: 2
    command: [python, "{folder}/trainer.py"]
    data: rows
    restart: {{delay: 100ms}}
data:
  rows: {{sources: [{{files: "{folder}/rows.txt"}}], delivery: exactlyOnce, split: {{bytes: 256B}}}}
"""


def steps(folder: Path) -> list[int]:
    """Return the steps of the checkpoints that are whole, in the order they were written."""
    found = [
        json.loads(one.read_text())
        for one in (folder / "checkpoints").glob("step-*/primus.json")
        if one.exists()
    ]
    return [one["step"] for one in sorted(found, key=lambda one: int(one["number"]))]


def newest(head: Any) -> int:
    return max(steps(head.folder), default=0)


@pytest.fixture
def running(head: Any) -> Any:
    rows = [f"row-{number:05d}" for number in range(ROWS)]
    (head.folder / "rows.txt").write_text("".join(f"{row}\n" for row in rows))
    (head.folder / "trainer.py").write_text(textwrap.dedent(TRAINER.format(folder=head.folder)))
    head.start()
    head.submit(JOB.format(folder=head.folder))
    return head


def test_each_row_is_in_the_surviving_lineage_once(running: Any) -> None:
    """kill -9 of a trainer, of an executor, and of the daemon, each behind a checkpoint."""
    head = running
    head.until("a checkpoint is there", lambda: newest(head) >= 5 and trainer_of(head) > 0)
    os.kill(trainer_of(head), signal.SIGKILL)
    first = newest(head)
    head.until("one is there after the trainer's death", lambda: newest(head) > first + 5)
    os.kill(parent_of(trainer_of(head)), signal.SIGKILL)
    second = newest(head)
    head.until("one is there after the executor's death", lambda: newest(head) > second + 5)
    head.kill()
    head.start()

    status = head.ended("once")

    assert status["phase"] == "Succeeded", (status, head.told())
    model = json.loads(
        next((head.folder / "checkpoints").glob("step-*1000000*/model.json")).read_text()
    )
    assert sorted(model) == [f"row-{number:05d}" for number in range(ROWS)]
    proof = head.document("data", "once", "verify")
    assert proof["ok"], proof
    assert proof["repeatedMax"] == 0
    assert proof["rewound"] > 0
    assert status["generation"] == 3
