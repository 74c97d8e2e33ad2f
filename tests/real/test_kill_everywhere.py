"""C38, C40, C56, M060: the daemon dies at every journal position of a small job; nobody notices."""

import sys
from pathlib import Path
from typing import Any

import pytest

SHARDS = 6
LINES = [f"row {number}" for number in range(40)]
JOB = """
apiVersion: primus/v1
name: small
roles:
  chief: {{command: "echo chief"}}
  worker: {{replicas: 2, command: [cat], data: lines, feed: stdin}}
data:
  lines: {{sources: [{{files: "{folder}/input/*"}}], format: text, split: {{bytes: 64B}}}}
"""


def one_life(head: Any, place: str, revision: int) -> bool:
    """Run the job on a daemon that dies there; return whether it came to that."""
    (head.folder / "input").mkdir()
    for part in range(2):
        text = "".join(f"{line}\n" for line in LINES[20 * part : 20 * part + 20])
        (head.folder / "input" / f"{part}.txt").write_text(text)
    program = (sys.executable, str(Path(__file__).with_name("dying_primusd.py")))
    head.start(program=(*program, place, str(revision)), is_awaited=False)
    job = JOB.format(folder=head.folder)
    has_died = not submit(head, job)
    if not has_died:
        head.until("it dies, or the job ends", lambda: is_dead(head) or is_over(head))
        has_died = is_dead(head)
    if has_died:
        head.start()
        submit(head, job)
    status = head.ended("small")
    assert status["phase"] == "Succeeded", (place, revision, status, head.story())
    assert set(head.attempts("small").values()) == {1}, (place, revision)
    said = head.ctl("logs", "small", "--role", "worker").stdout.splitlines()
    rows = sorted(line.partition(" ")[2].strip() for line in said)
    assert rows == sorted(LINES), (place, revision)
    proof = head.document("data", "small", "verify")
    assert proof["ok"], (place, revision, proof)
    assert proof["done"] == proof["listed"], (place, revision, proof)
    return has_died


def submit(head: Any, job: str) -> bool:
    """Submit under a key that makes a repeat harmless; return whether it was answered."""
    head.until("it listens, or is dead", lambda: is_dead(head) or head.socket.exists())
    done = head.ctl(
        "submit", "-", "--key", "once", stdin=job, cwd=head.folder, allowed=(0, 1, 4, 5)
    )
    if done.returncode == 0:
        return True
    assert is_dead(head) or done.returncode == 4, done.stderr
    return bool(done.returncode == 4)


def is_dead(head: Any) -> bool:
    """Return whether the daemon has ended."""
    return head.daemon.poll() is not None


def is_over(head: Any) -> bool:
    """Return whether the job is final; a daemon that dies meanwhile knows nothing."""
    said = head.ctl("get", "small", "-o", "json", allowed=(0, 1, 5)).stdout
    return any(f'"phase": "{phase}"' in said or f'"phase":"{phase}"' in said for phase in (
        "Succeeded",
        "Failed",
        "Cancelled",
    ))  # fmt: skip


@pytest.mark.timeout(600)
@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("place", ["before", "after"])
def test_daemon_may_die_at_every_journal_position_C38_C56(
    make_head: Any, place: str, shard: int
) -> None:
    revision = 1 + shard
    while True:
        with make_head() as head:
            if not one_life(head, place, revision):
                break
        revision += SHARDS
    assert revision > 10, "the job has more entries than that: it did not die where it should"
