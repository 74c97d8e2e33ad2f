"""F21: faults on purpose at real trainers, and what the drill says of their recovery."""

import json
import sys
from pathlib import Path
from typing import Any

from tests.real.second_node import Second, first_name, placed, started

TRAINER = """
import os, sys, time
from pathlib import Path

import primus
from primus.trainer import say

folder, resumes = Path(sys.argv[1]), sys.argv[2] == "resumes"
saved = folder / os.environ["PRIMUS_REPLICA"]
step = int(saved.read_text()) if resumes and saved.exists() else 0
# So slow that it is seen below its checkpoint, however busy the host is.
pace_s = 0.01 if resumes or os.environ["PRIMUS_ATTEMPT"] == "1" else 0.3
while not (folder / "go").exists():
    step += 1
    time.sleep(pace_s)
    primus.report(step=step)
    if step % 50 == 0:
        saved.write_text(str(step))
        say({"op": "checkpoint", "path": str(saved), "step": step})
"""


def submit(head: Any, name: str, word: str, rest: str = "", role: str = "") -> Path:
    """Submit a job of trainers that make steps until a file is there; return its folder."""
    folder: Path = head.folder / name
    folder.mkdir()
    (folder / "train.py").write_text(TRAINER)
    command = json.dumps([sys.executable, str(folder / "train.py"), str(folder), word])
    head.submit(
        f"apiVersion: primus/v1\nname: {name}\n{rest}\nroles:\n"
        f"  worker: {{replicas: 2, command: {command}, restart: {{delay: 100ms}}{role}}}\n"
    )
    head.until("both run and one wrote a checkpoint", lambda: has_checkpoint(head, name))
    return folder


def has_checkpoint(head: Any, name: str) -> bool:
    reasons = {one["reason"] for one in events(head, name)}
    steps = [
        one.get("progress", {}).get("step", 0)
        for one in head.document("get", name, "--replicas")["items"]
    ]
    return "CheckpointNoted" in reasons and min(steps) > 50


def events(head: Any, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = head.document("events", name)["items"]
    return found


def drilled(head: Any, name: str, *words: str, code: int = 0) -> dict[str, Any]:
    """Run a drill and return its report; an executor that dials anew just then is waited for."""
    said: list[str] = []

    def is_done() -> bool:
        command = ("drill", name, *words, "--timeout", "60s", "-o", "json")
        done = head.ctl(*command, allowed=(code, 3))
        said.append(done.stdout)
        assert done.returncode == code or "not connected" in done.stderr, done.stderr
        return bool(done.returncode == code)

    head.until("it is drilled", is_done)
    report: dict[str, Any] = json.loads(said[-1])
    return report


def test_F21_a_trainer_that_resumes_is_told_from_one_that_starts_over(head: Any) -> None:
    head.start()
    good, bad = submit(head, "good", "resumes"), submit(head, "bad", "forgets")

    resumed = drilled(head, "good", "--kill", "worker:1", "--after", "100ms")
    forgot = drilled(head, "bad", "--kill", "worker:1", code=1)

    assert resumed["verdict"] == "Resumed"
    assert resumed["firstStep"] >= resumed["checkpointStep"] > 0
    assert 0 <= resumed["outMs"] <= resumed["lostMs"] < 30_000
    assert resumed["stepsAgain"] <= 150
    assert (forgot["verdict"], forgot["replicas"]) == ("StartedOver", ["worker-1"])
    assert forgot["stepsAgain"] > 0
    assert head.attempts("good") == head.attempts("bad") == {"worker-0": 1, "worker-1": 2}
    (event,) = [one for one in events(head, "good") if one["reason"] == "DrillRequested"]
    assert event["by"].startswith("uid:")
    assert event["message"] == "a drill was asked for: SIGKILL to worker-1"
    explained = head.document("explain", "good")["items"]
    assert ("Crashed", "worker-1") in {(one["reason"], one.get("subject")) for one in explained}
    for folder in (good, bad):
        (folder / "go").touch()
    assert head.ended("good")["phase"] == "Succeeded"
    refused = head.ctl("drill", "good", "--kill", "worker:0", allowed=(4,))
    assert "good is Succeeded: it cannot be drilled" in refused.stderr


def test_F21_a_pause_and_a_preemption_are_outlived(head: Any) -> None:
    head.start()
    submit(head, "pauses", "resumes")

    paused = drilled(head, "pauses", "--pause", "worker:0", "--for", "1500ms")
    attempts = head.attempts("pauses")
    preempted = drilled(head, "pauses", "--preempt")

    assert (paused["verdict"], paused["restarted"]) == ("Recovered", False)
    assert paused["outMs"] >= 1_000
    assert attempts == {"worker-0": 1, "worker-1": 1}
    assert (preempted["verdict"], preempted["restarted"]) == ("Resumed", True)
    assert head.attempts("pauses") == {"worker-0": 2, "worker-1": 2}
    outcomes = [
        one["attempts"][0]["outcome"]["stopReason"]
        for one in head.document("get", "pauses", "--replicas")["items"]
    ]
    assert outcomes == ["preempted", "preempted"]
    reasons = {one["reason"] for one in head.document("explain", "pauses")["items"]}
    assert "Evicted" in reasons


def test_F21_a_lost_node_needs_a_yes_and_costs_infrastructure_only(head: Any) -> None:
    head.start()
    submit(head, "loses", "resumes")

    refused = head.ctl("drill", "loses", "--lose-node", allowed=(2,))
    lost = drilled(head, "loses", "--lose-node", "--yes")

    assert "--yes if it is meant" in refused.stderr
    assert lost["verdict"] == "Resumed"
    assert sorted(lost["replicas"]) == ["worker-0", "worker-1"]
    items = head.document("get", "loses", "--replicas")["items"]
    assert {one["attempts"][0]["outcome"]["cause"] for one in items} == {"Lost"}
    budgets = head.document("get", "loses")["status"]["budgets"]
    assert budgets["application"]["used"] == 0
    assert budgets["infrastructure"]["used"] > 0


def test_F21_of_two_nodes_the_lost_one_takes_only_what_ran_there(head: Any, second: Second) -> None:
    started(head, second)
    submit(head, "spread", "resumes", role=", placement: {maxPerNode: 1}")
    (on_b,) = [replica for replica, node in placed(head, "spread").items() if node == "b"]
    (other,) = {"worker-0", "worker-1"} - {on_b}
    head.until("its checkpoint is known", lambda: has_noted(head, "spread", on_b))

    lost = drilled(head, "spread", "--lose-node", "b", "--yes")
    head.until("its checkpoint is known", lambda: has_noted(head, "spread", on_b, 2))
    killed = drilled(head, "spread", "--kill", on_b)

    assert (lost["verdict"], lost["replicas"]) == ("Resumed", [on_b])
    assert (killed["verdict"], killed["replicas"]) == ("Resumed", [on_b])
    assert head.attempts("spread") == {on_b: 3, other: 1}
    assert set(placed(head, "spread").values()) == {"b", first_name(head)}
    assert [one["cause"] for one in second.document()["faults"]] == ["Lost"]
    budgets = head.document("get", "spread")["status"]["budgets"]
    assert [budgets[name]["used"] for name in ("application", "infrastructure")] == [1, 1]


def has_noted(head: Any, name: str, replica: str, attempt: int = 1) -> bool:
    """Return whether a checkpoint of that attempt is known."""
    notes = [one["subject"] for one in events(head, name) if one["reason"] == "CheckpointNoted"]
    return f"{replica}/{attempt}" in notes


def test_F21_a_job_that_does_not_come_back_in_time_is_said_so(head: Any) -> None:
    head.start()
    submit(head, "slow", "resumes", role=", stop: {grace: 1s}", rest="budgets: {application: 0}")

    failed = drilled(head, "slow", "--kill", "worker:0", code=10)

    assert failed["verdict"] == "JobEnded"
    assert head.ended("slow")["verdict"]["reason"] == "Crashed"


READER = """
import sys, time
from pathlib import Path

import primus

for batch in primus.dataset(batch_rows=10):
    time.sleep(0.02)
    Path(sys.argv[1], "began").touch()
"""


def test_F21_rows_that_may_come_twice_are_counted_and_none_is_lost(head: Any) -> None:
    head.start()
    folder: Path = head.folder / "rows"
    folder.mkdir()
    (folder / "read.py").write_text(READER)
    (folder / "rows.txt").write_text("".join(f"row {number}\n" for number in range(2_000)))
    command = json.dumps([sys.executable, str(folder / "read.py"), str(folder)])
    head.submit(
        "apiVersion: primus/v1\nname: rows\nroles:\n"
        f"  worker: {{command: {command}, data: lines, restart: {{delay: 100ms}}}}\n"
        f"data:\n  lines: {{sources: [{{files: {folder}/rows.txt}}]}}\n"
    )
    head.until("it reads", (folder / "began").exists)

    report = drilled(head, "rows", "--kill", "worker:0")

    assert report["verdict"] == "Recovered"
    assert set(report["repeated"]) == {"lines"}
    assert head.ended("rows")["phase"] == "Succeeded"
    head.ctl("data", "rows", "verify")
    told = head.document("get", "rows")["status"]["data"]["lines"]["repeatedMax"]
    assert report["repeated"]["lines"] == told > 0
