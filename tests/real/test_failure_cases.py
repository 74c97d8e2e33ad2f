"""Rules for failures, want of memory and hangs on a whole primusd: cases by number."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from primusd.executor.cgroup import find_trees
from tests.real.conftest import making

MIB = 1 << 20
TREES = find_trees("auto")
needs_memory_group = pytest.mark.skipif(
    TREES.memory_v1 is None and not (TREES.unified and (TREES.unified / "memory.max").exists()),
    reason="no control group with a memory limit can be had here",
)


@pytest.fixture(scope="module")
def shared() -> Iterator[Any]:
    """One head for the jobs that leave the daemon alone."""
    with making() as head:
        head.start()
        yield head


def submit(head: Any, name: str, program: str, worker: str = "", rest: str = "") -> None:
    """Submit a job whose only worker runs a program of Python."""
    folder = Path(head.folder / name)
    folder.mkdir()
    (folder / "train.py").write_text(program, encoding="utf-8")
    command = f"[{sys.executable}, {folder / 'train.py'}]"
    head.submit(
        f"name: {name}\n{rest}\n"
        f"roles: {{worker: {{command: {command}, restart: {{delay: 1ms}}, {worker}}}}}\n"
    )


def attempts(head: Any, name: str) -> list[dict[str, Any]]:
    """Return the attempts of the worker, oldest first."""
    found: list[dict[str, Any]] = head.document("get", name, "--replicas")["items"][0]["attempts"]
    return found


def messages(head: Any, name: str, reason: str) -> list[str]:
    """Return what the events of a reason say."""
    events = head.document("events", name)["items"]
    return [one["message"] for one in events if one["reason"] == reason]


HOG = """
held = []
while True:
    held.append(b"x" * (1 << 20))
"""


@needs_memory_group
def test_C10_C23_want_of_memory_grows_to_its_ceiling_and_then_fails_with_the_peak(
    shared: Any,
) -> None:
    submit(
        shared,
        "c10",
        HOG,
        "resources: {memory: 64Mi}",
        "budgets: {application: 2}\n"
        "failure: [{cause: outOfMemory, memory: x1.5, memoryMax: 128Mi}]",
    )

    status = shared.ended("c10")

    found = attempts(shared, "c10")
    assert [one.get("memoryBytes", 64 * MIB) // MIB for one in found] == [64, 96, 128]
    outcomes = [one["outcome"] for one in found]
    assert [one["cause"] for one in outcomes] == ["OutOfMemory"] * 3
    assert all(one["oomKills"] >= 1 and one["signal"] == 9 for one in outcomes)
    peaks = [one["peakRssBytes"] // MIB for one in outcomes]
    # Pages that it shares with others are in its peak, and in no limit.
    assert 48 < peaks[0] < 80 < peaks[1] < 112 < peaks[2] < 144
    assert [one["rule"] for one in outcomes] == ["failure[0]"] * 3
    assert (status["phase"], status["verdict"]["reason"]) == ("Failed", "RetriesExhausted")
    assert "ran out of memory at a peak of" in status["verdict"]["message"]


def test_a_line_in_the_log_fails_the_job_and_the_verdict_names_the_rule(shared: Any) -> None:
    submit(
        shared,
        "xid",
        "import sys\nprint('NVRM: Xid 79, GPU has fallen off the bus', file=sys.stderr)\nexit(1)",
        rest='failure: [{logMatch: "Xid [0-9]+", exitCode: 1, action: fail}]',
    )

    status = shared.ended("xid")

    assert (status["phase"], status["verdict"]["reason"]) == ("Failed", "FailureRule")
    assert status["verdict"]["rule"] == "failure[0]"
    assert len(attempts(shared, "xid")) == 1


def test_M053_a_code_that_is_charged_to_nobody_is_tried_again(shared: Any) -> None:
    submit(
        shared,
        "again",
        "import os\nexit(75 if int(os.environ['PRIMUS_ATTEMPT']) < 4 else 0)",
        rest="budgets: {application: 0}\nfailure: [{exitCode: 75, budget: none}]",
    )

    status = shared.ended("again")

    assert status["phase"] == "Succeeded"
    assert len(attempts(shared, "again")) == 4
    assert status["budgets"]["application"]["used"] == 0


STUCK = """
import os
import threading
import time
import primus

def wait_for_a_peer_that_is_gone():
    threading.Event().wait()

for step in range(1, 4):
    primus.report(step=step)
    time.sleep(0.06)
if os.environ["PRIMUS_ATTEMPT"] == "1":
    wait_for_a_peer_that_is_gone()
"""


def test_C26_a_trainer_that_stops_stepping_leaves_its_stacks_and_is_started_again(
    shared: Any,
) -> None:
    submit(shared, "c26", STUCK, rest="hang: {after: 1s, action: restart}")

    status = shared.ended("c26")

    assert status["phase"] == "Succeeded"
    first, second = attempts(shared, "c26")
    assert (first["outcome"]["cause"], first["outcome"]["stopReason"]) == ("Stopped", "hung")
    assert first["outcome"]["budget"] == "application"
    assert "its last step was 3" in first["hang"]
    assert second["outcome"]["cause"] == "Completed"
    assert "no progress for" in messages(shared, "c26", "TrainerHung")[0]
    log = shared.ctl("logs", "c26", "--attempt", "1").stdout
    assert "what its threads do" in log
    assert "wait_for_a_peer_that_is_gone" in log


SLOW = """
import os
import time
import primus

primus.report(step=1)
path = os.environ["EVALUATED"]
with primus.phase("evaluation"):
    end = time.monotonic() + 3
    while time.monotonic() < end:
        time.sleep(0.1)
open(path, "w").close()
primus.report(step=2)
"""


def test_C25_an_evaluation_in_a_phase_of_its_own_is_no_hang(shared: Any) -> None:
    path = shared.folder / "evaluated"
    submit(
        shared,
        "c25",
        SLOW,
        f"env: {{EVALUATED: {path}}}",
        "hang: {after: 1s, action: restart}",
    )

    status = shared.ended("c25")

    assert status["phase"] == "Succeeded"
    assert len(attempts(shared, "c25")) == 1
    assert messages(shared, "c25", "TrainerHung") == []
    assert path.exists()


RECOVERING = """
import os
import time
import primus

step = 1
primus.report(step=step)
while not os.path.exists(os.environ["GO"]):
    time.sleep(0.05)
while not os.path.exists(os.environ["GO"] + "2"):
    step += 1
    primus.report(step=step)
    time.sleep(0.05)
"""


def test_C25_by_default_a_hang_is_only_told_and_progress_lifts_it(shared: Any) -> None:
    go = shared.folder / "go"
    submit(shared, "told", RECOVERING, f"env: {{GO: {go}}}", "hang: {after: 1s}")

    def is_hanging() -> bool:
        conditions = shared.document("get", "told")["status"]["conditions"]
        return bool(next(one for one in conditions if one["type"] == "Hanging")["status"])

    shared.until("it is told to hang", is_hanging)
    go.touch()
    shared.until("it goes on", lambda: not is_hanging())
    (shared.folder / "go2").touch()
    status = shared.ended("told")

    assert status["phase"] == "Succeeded"
    assert len(attempts(shared, "told")) == 1
    assert messages(shared, "told", "TrainerWentOn")


READS_AND_HANGS = """
import os
import sys
import threading

for number, _ in enumerate(sys.stdin.buffer):
    if number == 1000 and os.environ["PRIMUS_ATTEMPT"] == "1":
        threading.Event().wait()
"""


def test_C26_rows_taken_are_progress_where_nobody_reports(shared: Any) -> None:
    rows = shared.folder / "rows.txt"
    rows.write_text("".join(f"row {number:090}\n" for number in range(20_000)), encoding="utf-8")
    submit(
        shared,
        "fed",
        READS_AND_HANGS,
        "data: lines, feed: stdin",
        f"hang: {{after: 1s, action: restart}}\n"
        f"data: {{lines: {{sources: [{{files: {rows}}}], format: text}}}}",
    )

    status = shared.ended("fed")

    assert status["phase"] == "Succeeded", status
    first, _ = attempts(shared, "fed")
    assert first["outcome"]["stopReason"] == "hung"
    assert "it reported no step" in first["hang"]
