"""C57: a daemon on an empty, an older or a foreign state kills no trainer: only knowledge kills."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.real.conftest import with_kill

SLEEPER = """
apiVersion: primus/v1
name: sleeper
roles:
  worker: {command: "sleep 1000 & wait", stop: {grace: 1s}}
"""
STORE = ("journal.db", "journal.db-wal", "journal.db-shm")
IDENTITY = ("cluster.json", "secret")


def move(names: tuple[str, ...], source: Path, target: Path) -> None:
    """Move those of the files that are there."""
    target.mkdir(exist_ok=True)
    for name in names:
        if (source / name).exists():
            shutil.move(source / name, target / name)


def copy(names: tuple[str, ...], source: Path, target: Path) -> None:
    """Copy those of the files that are there."""
    target.mkdir(exist_ok=True)
    for name in names:
        if (source / name).exists():
            shutil.copy2(source / name, target / name)


@pytest.mark.parametrize("state", ["empty", "older", "foreign"])
def test_a_daemon_that_does_not_know_a_trainer_leaves_it_alone(head: Any, state: str) -> None:
    true, kept = head.folder / "true", head.folder / "kept"
    names = (*STORE, *IDENTITY) if state == "foreign" else STORE
    head.start()
    head.until("there is a node", lambda: "Ready" in head.ctl("nodes", "list").stdout)
    head.kill()
    copy(STORE, head.state, kept)
    head.start()
    name = head.submit(SLEEPER)
    head.until("it runs", lambda: head.phase(name) == "Running")
    head.until("it sleeps", lambda: len(head.trainers("worker-0")) == 2)
    before = head.trainers("worker-0")
    log = next(head.state.glob("jobs/*/worker-0/a1/executor.log"))
    head.kill()

    move(names, head.state, true)
    if state == "older":
        copy(STORE, kept, head.state)
    head.start()

    head.until("the executor was turned away", lambda: "refused" in log.read_text())
    if state != "foreign":
        head.until("it is a stray", lambda: "worker-0" in head.ctl("strays", "list").stdout)
    assert head.trainers("worker-0") == before
    assert head.ctl("get", name, allowed=(3,)).returncode == 3

    head.kill()
    move(names, head.state, head.folder / "wrong")
    move(names, true, head.state)
    head.start()

    assert head.phase(name) == "Running"
    assert head.attempts(name) == {"worker-0": 1}
    assert head.trainers("worker-0") == before
    head.ctl("cancel", name)
    head.until("the trainer ended", lambda: not head.trainers("worker-0"))


@pytest.mark.timeout(240)
def test_a_trainer_that_is_ahead_of_an_older_store_lives_until_it_is_adopted(head: Any) -> None:
    """The older store gives its number out again: the trainer that has it is not that attempt."""
    kept = head.folder / "kept"
    head.start()
    name = head.submit(SLEEPER.replace("stop:", "restart: {delay: 100ms}, stop:"))
    head.until("it runs", lambda: bool(head.trainers("worker-0")))
    head.until("the job runs", lambda: head.phase(name) == "Running")
    head.kill()
    copy(STORE, head.state, kept)
    head.start()
    for pid in head.trainers("worker-0"):
        with_kill(pid)
    head.until("attempt 2 runs", lambda: any(head.state.glob("jobs/*/worker-0/a2/stdout.log")))
    head.until("its trainer is there", lambda: len(head.trainers("worker-0")) > 1)
    before = head.trainers("worker-0")
    head.kill()

    move(STORE, head.state, head.folder / "newer")
    copy(STORE, kept, head.state)
    head.start()

    head.until("it is a stray", lambda: "worker-0" in head.ctl("strays", "list").stdout)
    head.until("its number was begun again", lambda: head.attempts(name) == {"worker-0": 2})
    stray = head.document("strays", "list")["items"][0]["id"]
    head.ctl("strays", "adopt", stray)
    head.until("it was taken in", lambda: head.phase(name) == "Running", within_s=150)
    assert head.trainers("worker-0") == before
    assert head.ctl("strays", "list", "-o", "name").stdout.strip() == ""
