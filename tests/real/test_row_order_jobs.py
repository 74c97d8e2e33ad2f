"""Orders of rows in whole jobs: what a job file says reaches trainers, and the verdict counts."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.real.conftest import making

TRAINER = """
import os, primus
with open(os.environ["OUT"] + "/" + os.environ["PRIMUS_REPLICA"], "w") as out:
    for batch in primus.dataset(batch_rows=int(os.environ["ROWS"])):
        print(batch.epoch, *batch["id"].tolist(), file=out)
"""


@pytest.fixture(scope="module")
def shared() -> Iterator[Any]:
    """One head for all jobs of this module."""
    with making() as head:
        head.start()
        yield head


def written(head: Any, sources: list[int]) -> list[Path]:
    """Return a folder for each count of rows; the same ones for the same counts."""
    folders = [Path(head.folder / f"rows-{number}-{rows}") for number, rows in enumerate(sources)]
    for number, folder in enumerate(folders):
        if not folder.exists():
            folder.mkdir()
            first = sum(sources[:number])
            table = pa.table({"id": list(range(first, first + sources[number]))})
            pq.write_table(table, folder / "part.parquet", row_group_size=50)
    return folders


def run(head: Any, name: str, sources: list[int], stream: str, *, workers: int = 1) -> Any:
    """Run a job over one folder for each count of rows; return its status and all batches."""
    folder = Path(head.folder / name)
    (folder / "out").mkdir(parents=True)
    (folder / "trainer.py").write_text(TRAINER)
    files = ", ".join(f'{{files: "{one}"}}' for one in written(head, sources))
    job = head.submit(f"""
apiVersion: primus/v1
name: {name}
schedule: {{policy: gang}}
roles:
  worker:
    replicas: {workers}
    command: [{sys.executable}, {folder}/trainer.py]
    env: {{OUT: "{folder}/out", ROWS: "{64 // workers}"}}
    data: rows
data:
  rows: {{sources: [{files}], {stream}}}
""")
    status = head.ended(job)
    assert status["phase"] == "Succeeded", status
    assert head.document("data", job, "verify")["ok"]
    texts = [path.read_text() for path in sorted((folder / "out").iterdir())]
    return status, [[list(map(int, line.split())) for line in one.splitlines()] for one in texts]


def test_two_workers_get_the_rows_of_each_step_that_one_gets(shared: Any) -> None:
    """M082: in each of three passes."""
    stream = "order: strict, lanes: 4, shuffle: {seed: 3}, epochs: 3"
    _, (alone,) = run(shared, "strict-1", [400], stream)
    _, pair = run(shared, "strict-2", [400], stream, workers=2)

    together = [set[int]() for _ in alone]
    for batches in pair:
        for number, (_, *rows) in enumerate(batches):
            together[number] |= set(rows)

    assert together == [set(rows) for _, *rows in alone]
    for one in range(3):
        assert sorted(row for epoch, *rows in alone if epoch == one for row in rows) == [
            *range(400)
        ]


def test_C54_a_sample_of_shuffled_and_mixed_sources_is_counted_in_the_verdict(shared: Any) -> None:
    status, (batches,) = run(
        shared, "sampled", [300, 100], "mixing: roundRobin, shuffle: true, sample: 0.5"
    )

    rows = [row for _, *found in batches for row in found]
    assert len(set(rows)) == len(rows)
    assert 120 < len(rows) < 280
    assert rows[:20] != sorted(rows[:20])
    assert f"{400 - len(rows)} rows are not in the sample of stream rows" in str(status["verdict"])
    assert {row >= 300 for row in rows[:64]} == {False, True}


def test_workers_that_step_together_end_at_the_same_step_and_the_rest_is_counted(
    shared: Any,
) -> None:
    """C54: `tail: drop`, through the daemon; the verdict says how much was left out."""
    status, workers = run(shared, "tail-drop", [333, 4], "tail: drop", workers=2)

    assert len(workers[0]) == len(workers[1]) > 0
    rows = sorted(row for batches in workers for _, *batch in batches for row in batch)
    assert len(rows) == len(set(rows))
    assert status["verdict"]["rowsSkipped"] == 337 - len(rows), status["verdict"]


DYING = """
import os, primus
first = os.environ["PRIMUS_ATTEMPT"] == "1" and os.environ["PRIMUS_REPLICA"].endswith("1")
name = os.environ["OUT"] + "/" + os.environ["PRIMUS_REPLICA"]
with open(name, "w") as out:
    for number, batch in enumerate(primus.dataset(batch_rows=16)):
        if first and number == 3:
            os._exit(1)
        print(batch.epoch, int(batch.is_pad), *batch["id"].tolist(), file=out, flush=True)
"""


def test_a_group_that_steps_together_restarts_together_and_ends_at_the_same_step(
    shared: Any,
) -> None:
    """`tail: pad`: who goes on is the whole group, from its first step again."""
    folder = Path(shared.folder / "tail-pad")
    (folder / "out").mkdir(parents=True)
    (folder / "trainer.py").write_text(DYING)
    (data,) = written(shared, [500])
    job = shared.submit(f"""
apiVersion: primus/v1
name: tail-pad
schedule: {{policy: gang}}
roles:
  worker:
    replicas: 2
    command: [{sys.executable}, {folder}/trainer.py]
    env: {{OUT: "{folder}/out"}}
    restart: {{delay: 0s}}
    data: rows
data:
  rows: {{sources: [{{files: "{data}"}}], tail: pad, epochs: 2}}
""")
    status = shared.ended(job)

    assert status["phase"] == "Succeeded", status
    assert shared.document("data", job, "verify")["ok"]
    texts = [path.read_text() for path in sorted((folder / "out").iterdir())]
    one, other = ([list(map(int, line.split())) for line in text.splitlines()] for text in texts)
    assert [epoch for epoch, *_ in one] == [epoch for epoch, *_ in other]
    last = [row for epoch, is_pad, *rows in (*one, *other) if epoch and not is_pad for row in rows]
    assert sorted(last) == list(range(500))
