"""What people do to a job that runs, and what its trainers hear of it, on a whole primusd."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.real.conftest import making
from tests.real.test_deaths import trainer_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "checkpoint" / "checkpoint.yaml"
STEPS = 'roles.worker.command=[python3, train.py, "2000"]'

READS_ITS_REASON = """
import signal, sys, time
import primus

def told(number, frame):
    stop = primus.stopping()
    print("stopped:", stop.reason, stop.seconds_left > 1, flush=True)
    sys.exit(1)

signal.signal(signal.SIGTERM, told)
print("runs", flush=True)
while True:
    time.sleep(0.05)
"""

IS_WARNED = """
import signal, time
import primus

signals = []
signal.signal(signal.SIGTERM, lambda number, frame: None)
signal.signal(signal.SIGUSR1, lambda number, frame: signals.append(number))
print("runs", flush=True)
while primus.warned() is None or not signals:
    time.sleep(0.02)
warned = primus.warned()
print("warned:", warned.reason, 3_000 < warned.seconds_left <= 3_600, primus.stopping(), flush=True)
with primus.checkpoint(step=7) as folder:
    (folder / "model").write_text("m")
while primus.stopping() is None:
    time.sleep(0.02)
print("stopped:", primus.stopping().reason, flush=True)
"""

READS_SLOWLY_AT_FIRST = """
import os, time
import primus

for batch in primus.dataset(batch_rows=10):
    time.sleep(0.1 if os.environ["PRIMUS_ATTEMPT"] == "1" else 0)
"""


@pytest.fixture(scope="module")
def shared() -> Iterator[Any]:
    """One head for jobs that leave the daemon alone."""
    with making() as head:
        head.start()
        yield head


def submit(head: Any, name: str, program: str, rest: str = "", role: str = "") -> None:
    (head.folder / f"{name}.py").write_text(program)
    head.submit(
        f"apiVersion: primus/v1\nname: {name}\nfiles: [{name}.py]\n{rest}\n"
        f"roles: {{worker: {{command: [python3, {name}.py]{role}}}}}\n"
    )


def says(head: Any, name: str, words: str) -> bool:
    return words in head.ctl("logs", name).stdout


def test_c63_suspend_restart_and_cancel_reach_the_trainer_with_their_own_reasons(
    shared: Any,
) -> None:
    submit(shared, "reasons", READS_ITS_REASON, role=", restart: {delay: 1ms}")
    shared.until("the trainer runs", lambda: says(shared, "reasons", "runs"))

    shared.ctl("suspend", "reasons", "--wait", "--timeout", "60s")
    assert says(shared, "reasons", "stopped: suspended True")
    assert trainers(shared, "reasons", "worker-0") == []
    shared.ctl("resume", "reasons", "--wait", "--timeout", "60s")
    shared.until("it runs again", lambda: shared.ctl("logs", "reasons").stdout.count("runs") == 2)

    shared.ctl("restart", "reasons", "--role", "worker", "--wait", "--timeout", "60s")
    assert says(shared, "reasons", "stopped: restarting True")
    shared.until("it runs anew", lambda: shared.ctl("logs", "reasons").stdout.count("runs") == 3)
    shared.ctl("cancel", "reasons", "--wait", allowed=(0, 11))

    assert says(shared, "reasons", "stopped: cancelled True")
    status = shared.document("get", "reasons")["status"]
    assert status["phase"] == "Cancelled"
    assert status["budgets"]["application"]["used"] == 0


def trainers(head: Any, name: str, replica: str) -> list[int]:
    return [
        pid
        for pid in head.trainers(replica, name)
        if "executor" not in head.processes().get(pid, "")
    ]


def test_c63_a_deadline_warns_by_signal_and_word_and_the_checkpoint_is_shown(shared: Any) -> None:
    submit(shared, "warned", IS_WARNED)
    shared.until("it expects a signal", lambda: says(shared, "warned", "runs"))

    shared.ctl("set", "warned", "deadline={after: 1h, warn: 3599s, signal: USR1}")
    shared.until("there is a checkpoint", lambda: "checkpoint" in status_of(shared, "warned"))
    shared.ctl("set", "warned", "deadline=1s")
    status = shared.ended("warned")

    assert says(shared, "warned", "warned: deadline True None")
    assert says(shared, "warned", "stopped: deadline")
    assert status["verdict"]["reason"] == "DeadlineExceeded"
    assert status["checkpoint"]["step"] == 7
    assert (Path(status["checkpoint"]["path"]) / "model").read_text() == "m"
    told = [one["reason"] for one in shared.document("events", "warned")["items"]]
    assert told.count("LimitNeared") == 1
    assert "CheckpointNoted" in told


def test_c63_the_hours_of_all_trainers_end_a_job_with_a_word_of_their_own(shared: Any) -> None:
    submit(shared, "hours", READS_ITS_REASON, role=", replicas: 2")
    shared.until("both run", lambda: shared.ctl("logs", "hours").stdout.count("runs") == 2)

    shared.ctl("set", "hours", "maxReplicaHours=0.0001")
    status = shared.ended("hours")

    assert (status["phase"], status["verdict"]["reason"]) == ("Failed", "ReplicaHoursUsed")
    assert shared.ctl("logs", "hours").stdout.count("stopped: replicaHours True") == 2
    assert shared.ctl("wait", "hours", "--for", "ended", allowed=(12,)).returncode == 12


def test_data_rests_while_a_job_is_suspended_and_no_row_is_lost(shared: Any) -> None:
    rows = shared.folder / "rows.txt"
    rows.write_text("".join(f"row {number}\n" for number in range(3_000)))
    data = f"data: {{rows: {{sources: [{{files: {rows}}}], format: text, window: 100ms}}}}"
    submit(shared, "paused", READS_SLOWLY_AT_FIRST, data, ", data: rows")
    shared.until("rows are read", lambda: done(shared) > 0)

    shared.ctl("suspend", "paused", "--wait", "--timeout", "60s")
    stream = shared.document("get", "paused")["status"]["data"]["rows"]
    assert stream["paused"]
    assert stream["leased"] == 0
    assert 0 < stream["done"] < stream["total"]
    shared.ctl("resume", "paused")

    assert shared.ended("paused")["phase"] == "Succeeded"
    shared.ctl("data", "paused", "verify")
    replica = shared.document("get", "paused", "--replicas")["items"][0]
    assert len(replica["attempts"]) == 2


def done(head: Any) -> int:
    data = head.document("get", "paused")["status"]["data"]
    found: int = data.get("rows", {}).get("done", 0)
    return found


def test_c18_m039_replicas_come_and_go_and_those_that_go_fail_nothing(shared: Any) -> None:
    role = ", replicas: {min: 1, max: 4}, success: any, budgets: {application: 0}"
    submit(shared, "sizes", READS_ITS_REASON, "schedule: {policy: dynamic}", role)
    shared.until("four run", lambda: shared.ctl("logs", "sizes").stdout.count("runs") == 4)

    shared.ctl("scale", "sizes", "worker=2", "--wait", "--timeout", "60s")
    shared.until(
        "two said why", lambda: shared.ctl("logs", "sizes").stdout.count("scaledDown") == 2
    )
    shared.ctl("scale", "sizes", "worker=3", "--wait", "--timeout", "60s")
    refused = shared.ctl("scale", "sizes", "worker=5", allowed=(2,))

    assert "may be 1 to 4" in refused.stderr
    status = shared.document("get", "sizes")["status"]
    assert (status["phase"], status["roles"]["worker"]["running"]) == ("Running", 3)
    assert shared.attempts("sizes") == {"worker-0": 1, "worker-1": 1, "worker-2": 2, "worker-3": 1}
    shared.ctl("finish", "sizes", "--as", "succeeded", "--reason", "enough", "--wait")


def test_the_example_goes_on_from_its_checkpoint_after_a_kill(shared: Any) -> None:
    shared.ctl("submit", str(EXAMPLE), "--set", STEPS)
    shared.until("there is a checkpoint", lambda: "checkpoint" in status_of(shared, "line"))
    trainer = trainer_of(shared, "line")
    assert trainer, "it was over before it was killed"
    os.kill(trainer, signal.SIGKILL)

    status = shared.ended("line")

    assert status["phase"] == "Succeeded"
    assert shared.attempts("line") == {"worker-0": 2}
    said = shared.ctl("logs", "line", "--attempt", "2").stdout
    after = int(said.split("goes on after step ")[1].split()[0])
    assert after >= 100
    assert after % 100 == 0
    assert status["checkpoint"]["step"] == 2_000
    kept = Path(status["checkpoint"]["path"]).parent.glob("step-*")
    assert len(list(kept)) == 2


def test_c63_the_example_writes_a_checkpoint_in_the_grace_of_a_stop(shared: Any) -> None:
    """It sets no handler: asking `primus.stopping()` is enough to outlive the signal."""
    shared.ctl("submit", str(EXAMPLE), "--name", "grace", "--set", STEPS)
    shared.until("there is a checkpoint", lambda: "checkpoint" in status_of(shared, "grace"))

    shared.ctl("suspend", "grace", "--wait", "--timeout", "60s")
    said = shared.ctl("logs", "grace").stdout
    shared.ctl("resume", "grace")

    assert ": suspended" in said
    stopped_after = said.split("stops after step ")[1].split(":")[0]
    assert shared.ended("grace")["phase"] == "Succeeded"
    assert f"goes on after step {stopped_after}\n" in shared.ctl("logs", "grace").stdout


def status_of(head: Any, name: str) -> dict[str, Any]:
    found: dict[str, Any] = head.document("get", name)["status"]
    return found
