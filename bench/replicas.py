"""16 Python replicas started and ready, beside Ray's actors and submitit's local jobs.

Each stands for a while before each round, so that it has what it makes ahead for later starts: the
node its spare executors (one of them for each replica, as it is by default on a host with 16 GiB),
Ray the worker processes of its pool (one for each core, as it is by default). The Python of each of
our replicas starts within the time that is measured; an actor that Ray takes from its pool has its
own already. submitit has nothing of the kind.
"""

import subprocess
import sys
import time
from pathlib import Path

from bench.figures import Figure
from bench.head import Head, running
from bench.rivals import rival_python

REPLICAS = 16
ROUNDS = 3
STAND_S = 10.0
"""A node forks spares 5 s after the last start, ten a second."""
OVER_RAY, OVER_SUBMITIT = 5.0, 3.0
RIVALS = Path(__file__).parent / "replicas_rivals.py"
RIVAL_S = 300.0
LOOK_EVERY_S = 0.03
"""Asking without a pause would take half of the processor from what is measured."""
TRAINER = "import time, primus; primus.ready(); time.sleep(600)"


def run() -> list[Figure]:
    """Return how much sooner a job's replicas are ready than each rival's, Python's start in."""
    python = rival_python("replicas")
    with running() as head:
        _replicas(head, 0)
        ours_s = min(_stood(head, number + 1) for number in range(ROUNDS))
    return [
        _figure(name, ours_s, _rival(python, name), goal)
        for name, goal in (("ray", OVER_RAY), ("submitit", OVER_SUBMITIT))
    ]


def _figure(name: str, ours_s: float, rival_s: float, goal: float) -> Figure:
    ratio = rival_s / ours_s
    return Figure(
        f"{REPLICAS} Python replicas ready, against {name}",
        ratio,
        "times faster",
        f"≥ {goal:g} times",
        ratio >= goal,
        f"primusd {ours_s:.2f} s, {name} {rival_s:.2f} s",
    )


def _stood(head: Head, number: int) -> float:
    time.sleep(STAND_S)
    return _replicas(head, number)


def _replicas(head: Head, number: int) -> float:
    """Return the seconds from `primusctl submit` until every replica has said that it is ready."""
    name = f"ready-{number}"
    job = head.folder.parent / f"{name}.yaml"
    job.write_text(
        f"name: {name}\n"
        "roles:\n"
        "  worker:\n"
        f"    replicas: {REPLICAS}\n"
        f"    command: [{sys.executable}, -c, '{TRAINER}']\n"
        "    ready: sdk\n"
        "    stop: {grace: 1s}\n"
    )
    began = time.monotonic()
    head.ctl("submit", str(job))
    end = began + RIVAL_S
    while _ready(head, name) < REPLICAS:
        if time.monotonic() > end:
            raise TimeoutError(f"{name}: not {REPLICAS} ready within {RIVAL_S} s")
        time.sleep(LOOK_EVERY_S)
    took_s = time.monotonic() - began
    head.ctl("finish", name, "--as", "Succeeded", "--reason", "measured")
    head.ctl("wait", name, "--for", "ended")
    return took_s


def _ready(head: Head, name: str) -> int:
    document = head.client().call("GET", f"/api/v1/namespaces/default/jobs/{name}")
    ready: int = document["status"]["roles"]["worker"]["ready"]
    return ready


def _rival(python: Path, name: str) -> float:
    """Return the best of its rounds, as its own program prints it."""
    done = subprocess.run(
        [python, RIVALS, name, str(REPLICAS), str(ROUNDS), str(STAND_S)],
        capture_output=True,
        text=True,
        check=True,
        timeout=RIVAL_S,
    )
    return float(done.stdout.split()[-1])
