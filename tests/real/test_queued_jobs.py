"""Queues on real processes: quota, preemption by checkpoint and stop, a job after another."""

import signal
from pathlib import Path
from typing import Any

import pytest

SETTINGS = """
[queues.batch]
quota = {cpu = 1}
preemption = "lowerPriority"
"""
# Ends with what it was told when it is stopped, and at once when it was here before.
LOW = """
name: low
queue: batch
priority: 10
roles:
  worker:
    resources: {cpu: 1}
    stop: {grace: 20s}
    command: |
      test -f saved && exit 0
      trap 'cp "$PRIMUS_STOP_FILE" saved; exit 0' TERM
      touch ready
      while true; do sleep 0.05; done
"""
HIGH = """
name: high
queue: batch
priority: 90
roles:
  worker: {command: [sleep, "0.3"], resources: {cpu: 1}}
"""


@pytest.fixture
def queued(head: Any) -> Any:
    settings = Path(head.environment["PRIMUSD_CONFIG"])
    settings.write_text(settings.read_text() + SETTINGS)
    head.start()
    return head


def test_preempted_job_saves_its_work_makes_room_and_ends_where_it_left_off_C63(
    queued: Any,
) -> None:
    head = queued
    head.submit(LOW)
    head.until(
        "the trainer is ready", lambda: bool(list(head.state.glob("jobs/*/worker-0/work/ready")))
    )

    head.submit(HIGH)

    assert head.ended("high")["phase"] == "Succeeded"
    low = head.ended("low")
    assert low["phase"] == "Succeeded"
    (saved,) = head.state.glob("jobs/*/worker-0/work/saved")
    assert '"preempted"' in saved.read_text()
    assert head.attempts("low") == {"worker-0": 2}
    assert low["budgets"]["infrastructure"]["used"] == 0
    assert low["budgets"]["application"]["used"] == 0
    told = {one["reason"]: one["message"] for one in head.document("events", "low")["items"]}
    assert "stopped for high" in told["JobEvicted"]


def test_queue_that_was_set_stays_so_over_a_restart_and_the_file_gives_the_rest_M061(
    queued: Any,
) -> None:
    head = queued
    head.ctl("queue", "set", "night", "quota.cpu=3", "state=closed")
    assert "state" in head.document("queue", "list", "batch")
    head.kill()

    head.start()

    shown = {one["name"]: one for one in head.document("queue", "list")["items"]}
    assert (shown["night"]["state"], shown["night"]["origin"]) == ("closed", "set")
    assert shown["batch"]["quota"] == {"cpuMilli": 1000}
    assert (shown["batch"]["origin"], shown["batch"]["preemption"]) == ("file", "lowerPriority")
    settings = Path(head.environment["PRIMUSD_CONFIG"])
    settings.write_text(settings.read_text().replace("{cpu = 1}", "{cpu = 2}"))
    head.daemon.send_signal(signal.SIGHUP)

    def quota() -> object:
        return head.document("queue", "list", "batch")["quota"]

    head.until("the file's new quota counts", lambda: quota() == {"cpuMilli": 2000})


def test_job_starts_after_the_one_it_names_and_over_a_dead_daemon_F08(queued: Any) -> None:
    head = queued
    head.submit("name: first\nroles: {worker: {command: 'until test -f go; do sleep 0.05; done'}}")
    head.submit("name: second\nafter: [first]\nroles: {worker: {command: ['true']}}")
    head.until("first runs", lambda: head.phase("first") == "Running")
    assert head.document("get", "second")["status"]["reason"] == "WaitingForJob"
    head.kill()
    (work,) = head.state.glob("jobs/*/worker-0/work")
    (work / "go").touch()

    head.start()

    assert head.ended("second")["phase"] == "Succeeded"
    first, second = (head.document("get", name)["status"] for name in ("first", "second"))
    assert first["endedAt"] <= second["admittedAt"]
