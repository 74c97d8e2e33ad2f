"""A cluster moves to etcd and back while its trainers run on, and is restored from a backup."""

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.conftest import Head
from tests.real.printed_rows import JOB
from tests.services.etcd import Etcd, running_etcd

ROWS = 500


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    with running_etcd(tmp_path) as made:
        yield made


def submit(head: Head) -> None:
    folder = head.folder / "input"
    folder.mkdir()
    rows = [f"row {number}\n" for number in range(ROWS)]
    (folder / "a").write_text("".join(rows[: ROWS // 2]))
    (folder / "b").write_text("".join(rows[ROWS // 2 :]))
    head.submit(JOB.format(folder=head.folder))


def printed(head: Head) -> int:
    logs = head.state.glob("jobs/*/*/a*/stdout.log")
    return sum(log.read_text().count("row") for log in logs)


def trainers(head: Head) -> set[int]:
    return head.shells("while read")


def check_end(head: Head) -> None:
    """The job ends well, each row was printed once, by the first attempt of its replica."""
    status = head.ended("rows")
    assert status["phase"] == "Succeeded", f"{status}\n{head.story()}"
    assert head.attempts("rows") == {"worker-0": 1, "worker-1": 1}
    said = head.ctl("logs", "rows").stdout.splitlines()
    rows = Counter(line.partition(" ")[2].strip() for line in said)
    assert rows == Counter(f"row {number}" for number in range(ROWS)), head.story()
    proof = head.document("data", "rows", "verify")
    assert proof["ok"], proof


def store(head: Head, *words: str, allowed: tuple[int, ...] = (0,)) -> str:
    """Run `primusctl store` for this head's state directory."""
    return head.ctl("store", *words, "--state-dir", str(head.state), allowed=allowed).stdout


@pytest.mark.timeout(240)
def test_a_cluster_moves_to_etcd_and_back_while_its_trainers_run_on(head: Head, etcd: Etcd) -> None:
    head.start()
    submit(head)
    head.until("some rows are done", lambda: printed(head) > 20)
    head.until("both trainers run", lambda: len(trainers(head)) == 2)
    before = trainers(head)
    running = head.ctl(
        "store", "move", "--to", etcd.url, "--state-dir", str(head.state), allowed=(4,)
    )
    assert "trainers run on" in running.stderr

    assert head.stop() == 0
    said = store(head, "move", "--to", etcd.url)
    assert said.startswith("moved 1 job at revision ")
    head.start("--store", etcd.url)
    head.until("it leads", lambda: head.ctl("list", allowed=(0, 1, 5)).returncode == 0)

    found = head.document("store")
    assert (found["store"], found["servers"][0]["version"][:3]) == ("etcd", "3.4")
    rows = printed(head)
    head.until("rows go on", lambda: printed(head) > rows + 20)
    assert trainers(head) == before

    # And back: without a word of orderly stopping, which a head that crashed had no time for.
    head.kill()
    said = store(head, "move", "--to", "embedded", "--from", etcd.url)
    assert "from etcd at" in said
    head.start()
    head.until("it leads", lambda: head.document("store")["store"] == "embedded")
    assert trainers(head) <= before
    check_end(head)

    # No head takes up what was left in etcd.
    head.stop()
    other = head.folder / "other"
    head.start(
        "--store", etcd.url, "--run-dir", str(other), "--state-dir", str(other), is_awaited=False
    )
    assert head.daemon is not None
    assert head.daemon.wait(timeout=60) == 2
    assert "was moved from etcd to" in head.told()


@pytest.mark.timeout(240)
def test_a_backup_of_a_running_daemon_is_restored_after_its_store_was_lost(head: Head) -> None:
    head.start()
    name = head.submit("name: hello\nroles: {worker: {command: [sleep, '500']}}\n")
    head.until("it runs", lambda: head.phase(name) == "Running")
    before = head.trainers("worker-0")
    backup = head.folder / "a.backup"

    head.ctl("store", "backup", str(backup))

    first, second = backup.read_bytes().split(b"\n")[:2]
    assert first == b"primusd-backup 1"
    assert json.loads(second)["store"] == "embedded"
    # All that the daemon keeps is lost; what its executors keep is not.
    head.kill()
    for lost in ("journal.db", "journal.db-wal", "secret", "cluster.json"):
        (head.state / lost).unlink(missing_ok=True)
    shutil.rmtree(head.state / "archive", ignore_errors=True)

    assert store(head, "restore", str(backup)).startswith("restored 1 job at revision ")

    head.start()
    head.until("it is taken up", lambda: "1/1" in head.ctl("list").stdout)
    assert head.phase(name) == "Running"
    assert head.attempts(name) == {"worker-0": 1}
    assert head.trainers("worker-0") == before
    head.ctl("cancel", name)
    head.until("the trainer ended", lambda: not head.trainers("worker-0"))
