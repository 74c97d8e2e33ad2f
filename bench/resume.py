"""How soon rows flow again: a trainer killed in the middle, and a savepoint in another job."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from bench import click_rows, feeding
from bench.figures import Figure
from bench.head import Head, running

FILES = 4
PAUSE_S = 0.03
WAIT_S = 60.0
SEEN_BATCHES = 40
GOAL_KILLED_S = 2.0
GOAL_RESTORED_S = 1.0
RESTORED_AT = (1, 3)
"""Replicas of the jobs that begin at the savepoint of one with two."""

TRAINER = """
import os, sys, time
import primus
out, pause_s = open(sys.argv[1], "a", buffering=1), float(sys.argv[2])
began = time.time()
for batch in primus.dataset(batch_rows=1024):
    now = time.time()
    print(os.getpid(), began, now, batch.rows, file=out)
    time.sleep(pause_s)
"""


class Line(Struct, frozen=True):
    """A batch that a trainer took."""

    pid: int
    began: float
    at: float
    rows: int


def run(*, rows: int = click_rows.ROWS) -> list[Figure]:
    """Measure both with a real daemon, executors and trainers."""
    data = click_rows.write_parquet(feeding.DATA / f"clicks-{rows}", rows=rows)[0].parent
    with running() as head:
        return [_killed(head, data, rows * FILES), _restored(head, data)]


def _killed(head: Head, data: Path, rows: int) -> Figure:
    told = _submit(head, "killed", data, replicas=2, pause_s=PAUSE_S)
    _until(lambda: len({one.pid for one in told()}) > 1 and len(told()) > SEEN_BATCHES)
    known = {one.pid for one in told()}
    killed_at = time.time()
    os.kill(next(iter(known)), signal.SIGKILL)
    _until(lambda: {one.pid for one in told()} - known)
    again_s = min(one.at for one in told() if one.pid not in known) - killed_at
    head.ctl("wait", "killed", "--for", "ended", "--timeout", f"{WAIT_S:.0f}s")
    proof = json.loads(head.ctl("data", "killed", "verify", "-o", "json"))
    assert proof["ok"], proof
    assert proof["done"] == rows, proof
    return Figure(
        "a trainer killed: until its successor has rows",
        again_s,
        "s",
        f"≤ {GOAL_KILLED_S:g} s, none lost",
        again_s <= GOAL_KILLED_S,
        f"the start of its Python in it; at the end {rows:,} rows counted, each once",
    )


def _restored(head: Head, data: Path) -> Figure:
    told = _submit(head, "kept", data, replicas=2, pause_s=PAUSE_S)
    _until(lambda: len(told()) > SEEN_BATCHES)
    head.ctl("data", "kept", "savepoint", "create", "half")
    head.ctl("finish", "kept", "--as", "Succeeded", "--reason", "measured")
    head.ctl("wait", "kept", "--for", "ended")
    worst_s = 0.0
    for replicas in RESTORED_AT:
        name = f"restored-{replicas}"
        told = _submit(head, name, data, replicas=replicas, pause_s=PAUSE_S, restore="kept/half")
        _until(lambda told=told, count=replicas: len({one.pid for one in told()}) == count)
        first: dict[int, Line] = {}
        for one in told():
            first.setdefault(one.pid, one)
        worst_s = max(worst_s, *(one.at - one.began for one in first.values()))
        head.ctl("finish", name, "--as", "Succeeded", "--reason", "measured")
    return Figure(
        "from a savepoint: until the first batch",
        worst_s,
        "s",
        f"≤ {GOAL_RESTORED_S:g} s",
        worst_s <= GOAL_RESTORED_S,
        f"in the middle of {FILES} files, made by 2 trainers, for "
        f"{' and '.join(map(str, RESTORED_AT))}; the slowest of them",
    )


def _submit(
    head: Head, name: str, data: Path, *, replicas: int, pause_s: float, restore: str = ""
) -> Callable[[], list[Line]]:
    """Submit a job that reads, and return what looks up the batches that it has taken."""
    out = head.folder.parent / f"{name}.log"
    script = head.folder.parent / "trainer.py"
    script.write_text(TRAINER)
    files = ", ".join(f'{{files: "{data}/part-00{number}.parquet"}}' for number in range(FILES))
    job = head.folder.parent / f"{name}.yaml"
    job.write_text(
        f"name: {name}\n"
        "roles:\n"
        "  worker:\n"
        f"    replicas: {replicas}\n"
        f"    command: [{sys.executable}, {script}, {out}, '{pause_s}']\n"
        "    data: rows\n"
        "    restart: {delay: 0s}\n"
        "    stop: {grace: 1s}\n"
        "data:\n"
        f"  rows: {{sources: [{files}], leftover: allow}}\n"
    )
    head.ctl("submit", str(job), *(("--restore", restore) if restore else ()))

    def told() -> list[Line]:
        text = out.read_text() if out.exists() else ""
        whole = [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [Line(int(pid), float(b), float(at), int(n)) for pid, b, at, n in whole]

    return told


def _until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + WAIT_S
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"it did not come about within {WAIT_S:.0f} s")
        time.sleep(0.02)
