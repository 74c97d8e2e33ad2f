"""Who starts when, with real processes: in order, one by one, as they come, and with fewer."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.real.conftest import making


@pytest.fixture(scope="module")
def shared() -> Iterator[Any]:
    """One head for the jobs that leave the daemon alone."""
    with making() as head:
        head.start()
        yield head


def submit(head: Any, name: str, roles: str, rest: str = "") -> str:
    """Submit a job of these roles."""
    found: str = head.submit(f"apiVersion: primus/v1\nname: {name}\n{rest}\nroles:\n{roles}")
    return found


def told(head: Any, name: str, reason: str) -> list[str]:
    """Return the messages of the timeline entries with this reason."""
    items = head.document("events", name)["items"]
    return [one["message"] for one in items if one["reason"] == reason]


def test_C35_a_launcher_finds_every_worker_answering_at_its_first_try(shared: Any) -> None:
    listen = (
        "import os, socket, time; time.sleep(0.6); s = socket.socket(); "
        "s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); "
        "s.bind(('', int(os.environ['PRIMUS_PORT']))); s.listen(); time.sleep(600)"
    )
    connect = (
        "import json, os, socket; peers = json.load(open(os.environ['PRIMUS_PEERS_FILE'])); "
        "[socket.create_connection((one['host'], one['ports']['main']), 5) "
        "for one in peers['roles']['worker']]; print('reached', len(peers['roles']['worker']))"
    )
    submit(
        shared,
        "c35",
        f"""
  launcher: {{command: [python3, -c, {json.dumps(connect)}], dependsOn: {{worker: ready}}}}
  worker: {{replicas: 2, command: [python3, -c, {json.dumps(listen)}], ready: {{port: main}},
           success: never, stop: {{grace: 1s}}}}
""",
        "budgets: {application: 0}",
    )

    status = shared.ended("c35")

    assert status["phase"] == "Succeeded", status
    assert shared.attempts("c35") == {"launcher-0": 1, "worker-0": 1, "worker-1": 1}
    assert "reached 2" in shared.ctl("logs", "c35", "--role", "launcher").stdout
    assert any(one.endswith(": worker is ready") for one in told(shared, "c35", "GateOpened"))


def test_C29_a_gang_of_two_roles_starts_one_after_the_other_is_ready(shared: Any) -> None:
    mark = shared.folder / "ps-is-ready"
    submit(
        shared,
        "c29",
        f"""
  ps: {{command: "sleep 0.5; touch {mark} ready; sleep 600", ready: {{file: ready}},
       success: never, stop: {{grace: 1s}}}}
  worker: {{command: "test -e {mark}", dependsOn: {{ps: ready}}}}
""",
        "schedule: {policy: gang}\nbudgets: {application: 0}",
    )

    assert shared.ended("c29")["phase"] == "Succeeded"


def test_C29_a_circle_is_refused_with_its_path(shared: Any) -> None:
    text = """apiVersion: primus/v1
name: circle
roles:
  a: {command: x, dependsOn: {b: started}}
  b: {command: x, dependsOn: {c: ready}}
  c: {command: x, dependsOn: {a: completed}}
"""

    refused = shared.ctl("submit", "-", stdin=text, allowed=(2,))

    assert "a waits for b waits for c waits for a" in refused.stderr


def test_one_by_one_each_writes_before_the_next_begins(shared: Any) -> None:
    path = shared.folder / "order"
    line = f"echo begin $PRIMUS_INDEX >> {path}; sleep 0.1; echo end $PRIMUS_INDEX >> {path}"
    submit(
        shared,
        "steps",
        f"""
  worker: {{replicas: 3, command: "{line}"}}
""",
        "schedule: {policy: ordered, gate: completed, step: 1}",
    )

    assert shared.ended("steps")["phase"] == "Succeeded"
    assert path.read_text().split() == [
        word for index in "012" for part in ("begin", "end") for word in (part, index)
    ]


def test_M039_a_role_grows_and_shrinks_while_it_runs(shared: Any) -> None:
    size = "echo $PRIMUS_INDEX of $PRIMUS_REPLICAS; trap 'exit 1' TERM; sleep 600 & wait"
    submit(
        shared,
        "scaled",
        f"""
  worker: {{replicas: {{min: 1, max: 4}}, command: "{size}", stop: {{grace: 2s}}}}
  chief: {{command: "while test ! -e {shared.folder}/done; do sleep 0.1; done"}}
""",
        "budgets: {application: 0}",
    )
    shared.until("all four run", lambda: running(shared, "scaled") == 5)

    shared.ctl("scale", "scaled", "worker=2")
    shared.until("two are left", lambda: running(shared, "scaled") == 3)

    assert shared.phase("scaled") == "Running", "an exit with 1 after our stop is no failure (C18)"
    shared.ctl("scale", "scaled", "worker=3")
    shared.until("three run", lambda: running(shared, "scaled") == 4)
    shared.until(
        "the newest knows how many there are",
        lambda: "2 of 3" in shared.ctl("logs", "scaled", "--role", "worker").stdout,
    )
    shared.ctl("cancel", "scaled")
    shared.ended("scaled")


def running(head: Any, name: str) -> int:
    """Return how many replicas of a job run."""
    roles = head.document("get", name)["status"]["roles"]
    return sum(one["running"] for one in roles.values())


def test_C70_a_role_that_restarts_whole_shrinks_and_grows_in_generations(shared: Any) -> None:
    path = shared.folder / "members"
    tell = f"echo $PRIMUS_INDEX in $PRIMUS_GENERATION of $PRIMUS_REPLICAS >> {path}"
    submit(
        shared,
        "members",
        f"""
  worker: {{replicas: {{min: 1, max: 3}}, command: "{tell}; exec sleep 600",
           restart: {{unit: role}}, stop: {{grace: 2s}}}}
""",
        "schedule: {policy: gang}\nbudgets: {application: 0, infrastructure: 0}",
    )
    shared.until("three run", lambda: lines_of(path) >= members(1, 3))

    shared.ctl("scale", "members", "worker=2")
    shared.until("two meet anew", lambda: lines_of(path) >= members(2, 2))
    shared.ctl("scale", "members", "worker=3")
    shared.until("three meet anew", lambda: lines_of(path) >= members(3, 3))

    assert lines_of(path) == members(1, 3) | members(2, 2) | members(3, 3)
    whole = told(shared, "members", "RoleRestarted")
    assert [one.rpartition("worker ")[2] for one in whole] == [
        "is made smaller, to 2",
        "grows from 2 to 3",
    ]
    shared.ctl("cancel", "members")
    assert shared.ended("members")["phase"] == "Cancelled"


def members(generation: int, size: int) -> set[str]:
    """Return what the members of a generation write."""
    return {f"{index} in {generation} of {size}" for index in range(size)}


def lines_of(path: Path) -> set[str]:
    """Return the lines of a file, none where it is not there yet."""
    return set(path.read_text().splitlines()) if path.exists() else set()
