"""A transform of the user's in whole jobs: shipped with the job, killed, and counted."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.real.conftest import making

ROWS = 600
PREP = """
import os, time
import pyarrow as pa
import pyarrow.compute as pc

def even(batch, context):
    with open(context.parameters["pids"], "a") as file:
        print(os.getpid(), file=file)
    time.sleep(0.05)
    kept = pc.equal(pc.bit_wise_and(batch["n"], 1), 0)
    rows = batch.filter(kept)
    return pa.RecordBatch.from_pydict({"half": pc.divide(rows["n"], 2)}), kept

def picky(batch):
    if pc.any(pc.equal(batch["n"], 137)).as_py():
        raise ValueError("137 is no number for me")
    return batch
"""
TRAINER = """
import os, primus
with open(os.environ["OUT"] + "/" + os.environ["PRIMUS_REPLICA"], "a") as out:
    for batch in primus.dataset(batch_rows=16):
        (column,) = batch
        print(*batch[column].tolist(), file=out)
"""


@pytest.fixture(scope="module")
def shared() -> Iterator[Any]:
    with making() as head:
        head.start()
        yield head


def submitted(head: Any, name: str, stream: str) -> str:
    """Submit a job with two workers that read ROWS numbers; return its name."""
    folder = head.folder / name
    (folder / "in").mkdir(parents=True)
    (folder / "out").mkdir()
    for part in range(4):
        numbers = list(range(part * ROWS // 4, (part + 1) * ROWS // 4))
        pq.write_table(pa.table({"n": numbers}), folder / f"in/{part}.parquet", row_group_size=10)
    (folder / "prep.py").write_text(PREP)
    (folder / "trainer.py").write_text(TRAINER)
    return str(
        head.submit(f"""
name: {name}
files: [{name}/prep.py, {name}/trainer.py]
roles:
  worker:
    replicas: 2
    command: [{sys.executable}, {name}/trainer.py]
    env: {{OUT: {folder}/out}}
    data: rows
data:
  rows:
    sources: [{{files: {folder}/in}}]
    split: {{rows: 10}}
    {stream}
""")
    )


def taken(head: Any, name: str) -> list[int]:
    folder = Path(head.folder / name / "out")
    return sorted(int(word) for path in folder.iterdir() for word in path.read_text().split())


class Killer(threading.Thread):
    """Kills the first processes that tell of themselves in a file."""

    def __init__(self, file: Path, count: int) -> None:
        super().__init__(daemon=True)
        self._file = file
        self._left = count
        self.is_over = threading.Event()
        self.killed: set[int] = set()

    def run(self) -> None:
        while self._left and not self.is_over.wait(0.02):
            words = self._file.read_text().split() if self._file.exists() else []
            for pid in {int(word) for word in words} - self.killed:
                self.killed.add(pid)
                self._left -= 1
                os.kill(pid, signal.SIGKILL)
                if not self._left:
                    return


def test_a_shipped_transform_gives_each_row_once_though_its_processes_are_killed(
    shared: Any,
) -> None:
    """C54: what it leaves out is counted."""
    pids = shared.folder / "pids"
    killer = Killer(pids, 3)
    killer.start()
    name = submitted(
        shared,
        "halves",
        f'transform: {{function: "halves.prep:even", rows: mayDrop, parameters: {{pids: {pids}}}}}',
    )

    status = shared.ended(name)
    killer.is_over.set()
    killer.join()

    assert status["verdict"]["reason"] == "PartialSuccess"
    told = f"{ROWS // 2} rows were left out by the transform of stream rows"
    assert told in status["verdict"]["message"]
    assert taken(shared, name) == list(range(ROWS // 2))
    assert len(killer.killed) == 3
    proof = shared.document("data", name, "verify")
    assert (proof["ok"], proof["done"], proof["repeatedMax"]) == (True, ROWS, 0)
    (stream,) = shared.document("data", name)["items"]
    assert stream["positions"]["leftOut"] == ROWS // 2


def test_a_row_that_a_transform_fails_on_is_a_dead_letter_with_its_traceback(shared: Any) -> None:
    name = submitted(shared, "picky", 'transform: "picky.prep:picky"\n    onBad: deadLetter')

    status = shared.ended(name)

    assert status["phase"] == "Succeeded", status["verdict"]
    assert taken(shared, name) == [n for n in range(ROWS) if n != 137]
    (dead,) = shared.document("data", name, "dead")["items"]
    assert (dead["lo"], dead["hi"], dead["fault"]) == (137, 138, "data")
    assert "ValueError: 137 is no number for me (prep.py:" in dead["text"]
    (stream,) = shared.document("data", name)["items"]
    assert stream["leftOut"] == {"data": {"ranges": 1, "positions": 1}}
