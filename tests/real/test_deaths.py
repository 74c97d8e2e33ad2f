"""C19, C51, C53, C57, M060: trainer, executor, node and daemon die in any pair; no row is lost."""

import os
import signal
import time
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

ROWS = [f"row-{number:03d}" for number in range(160)]
VICTIMS = ("trainer", "executor", "node", "daemon")
APART_S = 0.2
JOB = """
apiVersion: primus/v1
name: deaths
roles:
  worker:
    replicas: 2
    command: 'while read -r row; do echo "$row" >> {folder}/taken; sleep 0.03; done'
    data: rows
    feed: stdin
    restart: {{delay: 100ms}}
data:
  rows: {{sources: [{{files: "{folder}/rows.txt"}}], format: text, split: {{bytes: 256B}}}}
"""


def taken(head: Any) -> list[str]:
    """Return the rows that trainers have used so far, some of them twice."""
    path = head.folder / "taken"
    return path.read_text().splitlines() if path.exists() else []


def parent_of(pid: int) -> int:
    """Return the process that started another, 0 where that one is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def trainer_of(head: Any, job: str = "") -> int:
    """Return the leader of worker-0's trainer, of one job or any: its parent is the executor."""
    pids = head.trainers("worker-0", job)
    return next((pid for pid in pids if parent_of(pid) not in (*pids, 0)), 0)


def node_of(head: Any) -> int:
    """Return the node's main process: the one whose child waits to be forked from."""
    nodes = head.processes("primusd node")
    parents = [parent_of(pid) for pid in nodes]
    return next((pid for pid in nodes if pid in parents), 0)


def kill(head: Any, victim: str) -> None:
    """Kill a victim that lives."""
    if victim == "daemon":
        head.kill()
        return
    find: dict[str, Callable[[], int]] = {
        "trainer": lambda: trainer_of(head),
        "executor": lambda: parent_of(trainer_of(head)) if trainer_of(head) else 0,
        "node": lambda: node_of(head),
    }
    pid = find[victim]()
    if pid > 1:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    "victims",
    [*((one,) for one in VICTIMS), *permutations(VICTIMS, 2)],
    ids="-then-".join,
)
def test_no_death_loses_a_row(head: Any, victims: tuple[str, ...]) -> None:
    (head.folder / "rows.txt").write_text("".join(f"{row}\n" for row in ROWS))
    head.start()
    head.submit(JOB.format(folder=head.folder))
    head.until("rows are taken", lambda: len(taken(head)) > 10 and trainer_of(head) > 0)

    for victim in victims:
        kill(head, victim)
        time.sleep(APART_S)
    if "daemon" in victims:
        head.start()

    status = head.ended("deaths")
    assert status["phase"] == "Succeeded", (status, head.story())
    assert set(taken(head)) == set(ROWS)
    proof = head.document("data", "deaths", "verify")
    assert proof["ok"], proof
    assert proof["done"] == proof["listed"]
    assert len(taken(head)) - len(ROWS) <= proof["repeatedMax"], proof
    attempts = head.attempts("deaths")
    assert attempts["worker-1"] == 1
    if not {"trainer", "executor"} & set(victims):
        assert attempts["worker-0"] == 1
