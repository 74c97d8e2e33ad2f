"""Processes, ports and logs: cases by number, on a whole primusd."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from primusd.ctl.client import Client
from tests.real.conftest import BIN, FINAL, WAIT_S, making
from tests.real.test_deaths import kill, parent_of, trainer_of

NASTY = (
    "two words",
    "it's",
    'say "hi"',
    "$HOME",
    "`id`",
    "a;b",
    "new\nline",
    "中文",
    "שלום",
    "*?[x]",
    "back\\slash",
    "-n",
)


@pytest.fixture(scope="module")
def shared() -> Iterator[Any]:
    """One head for the jobs that leave the daemon alone."""
    with making() as head:
        head.start()
        yield head


def submit(head: Any, name: str, roles: str, rest: str = "") -> None:
    """Submit a job of these roles."""
    head.submit(f"apiVersion: primus/v1\nname: {name}\n{rest}\nroles:\n{roles}")


def newest(head: Any, name: str, replica: str = "worker-0") -> dict[str, Any]:
    """Return the newest attempt of a replica."""
    found = head.document("get", name, "--replicas")["items"]
    attempt: dict[str, Any] = next(one for one in found if one["name"] == replica)["attempts"][-1]
    return attempt


def runs(head: Any, name: str) -> bool:
    """Return whether the job runs and worker-0 is started."""
    return bool(head.phase(name) == "Running" and newest(head, name)["phase"] == "Running")


def test_C17_a_pause_below_the_limit_changes_nothing(shared: Any) -> None:
    go = shared.folder / "go-c17"
    submit(shared, "c17", f"  worker: {{command: 'until test -e {go}; do sleep 0.05; done'}}")
    shared.until("it runs", lambda: runs(shared, "c17"))
    paused = [trainer_of(shared, "c17"), parent_of(trainer_of(shared, "c17"))]

    for pid in paused:
        os.kill(pid, signal.SIGSTOP)
    head_answers = shared.ctl("get", "c17")
    for pid in paused:
        os.kill(pid, signal.SIGCONT)
    go.touch()

    assert "Running" in head_answers.stdout
    assert shared.ended("c17")["phase"] == "Succeeded"
    assert shared.attempts("c17") == {"worker-0": 1}


@pytest.mark.soak
def test_C17_a_pause_beyond_the_limit_is_one_restart_and_the_frozen_one_is_ended(head: Any) -> None:
    go = head.folder / "go"
    head.start()
    submit(
        head,
        "c17",
        f"  worker: {{command: 'until test -e {go}; do sleep 0.05; done', stop: {{grace: 1s}}}}",
        "budgets: {application: 0}",
    )
    head.until("it runs", lambda: runs(head, "c17"))
    frozen = [trainer_of(head, "c17"), parent_of(trainer_of(head, "c17"))]

    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    head.until("another runs", lambda: newest(head, "c17")["attempt"] == 2 and runs(head, "c17"))
    alive = [pid for pid in frozen if Path(f"/proc/{pid}").exists()]
    go.touch()

    status = head.ended("c17")
    assert alive == []
    assert status["phase"] == "Succeeded"
    assert status["budgets"]["infrastructure"]["used"] == 1
    assert status["firstCause"]["cause"] == "Lost"
    assert head.attempts("c17") == {"worker-0": 2}


def test_C19_an_end_that_nobody_saw_is_lost_and_tried_again(head: Any) -> None:
    head.start()
    submit(
        head,
        "c19",
        """
  worker: {command: "test $PRIMUS_ATTEMPT = 2 || sleep 1000", restart: {delay: 100ms}}
""",
        "budgets: {application: 0}",
    )
    head.until("it runs", lambda: runs(head, "c19") and trainer_of(head) > 0)

    kill(head, "executor")

    status = head.ended("c19")
    found = head.document("get", "c19", "--replicas")["items"][0]["attempts"]
    assert [one["outcome"]["cause"] for one in found] == ["Lost", "Completed"]
    assert status["phase"] == "Succeeded"
    assert status["budgets"]["application"]["used"] == 0
    assert status["budgets"]["infrastructure"]["used"] == 1


def test_C57_a_tree_outlives_the_daemon_is_adopted_and_goes_whole(head: Any) -> None:
    head.start()
    submit(
        head,
        "c57",
        """
  worker:
    command: "(setsid sh -c 'sleep 4712; true' &); sleep 4712; true"
    stop: {grace: 1s}
""",
    )
    head.until(
        "its tree is there", lambda: names(head, "sleep 4712") == ["sh", "sh", *2 * ["sleep"]]
    )
    before = set(head.processes("sleep 4712"))

    head.kill()
    head.start()

    assert set(head.processes("sleep 4712")) == before
    assert head.attempts("c57") == {"worker-0": 1}
    head.ctl("cancel", "c57")
    assert head.ended("c57")["phase"] == "Cancelled"
    assert not head.processes("sleep 4712")


def names(head: Any, word: str) -> list[str]:
    """Return the programs of the processes with a word in their command line, sorted."""
    return sorted(Path(line.split()[0]).name for line in head.processes(word).values())


def test_C59_replicas_that_fork_and_leave_have_no_children_left(shared: Any) -> None:
    submit(
        shared,
        "c59",
        """
  worker: {replicas: 32, command: "(setsid sleep 4713 &); sleep 4713 & true"}
""",
    )

    assert shared.ended("c59")["phase"] == "Succeeded"
    assert set(shared.attempts("c59").values()) == {1}
    assert not shared.processes("sleep 4713")


def test_C62_who_ignores_the_signal_is_dead_after_its_grace(shared: Any) -> None:
    submit(
        shared,
        "c62",
        """
  worker: {command: "trap '' TERM; echo deaf; while true; do sleep 0.05; done", stop: {grace: 1s}}
""",
    )
    shared.until("it ignores it", lambda: "deaf" in shared.ctl("logs", "c62").stdout)

    shared.ctl("set", "c62", "deadline=1s")
    status = shared.ended("c62")

    assert (status["phase"], status["verdict"]["reason"]) == ("Failed", "DeadlineExceeded")
    outcome = newest(shared, "c62")["outcome"]
    assert (outcome["cause"], outcome["signal"]) == ("Stopped", signal.SIGKILL)
    assert outcome["stopReason"] == "deadline"
    assert shared.ctl("wait", "c62", "--for", "ended", allowed=(12,)).returncode == 12


def test_C64_twenty_jobs_at_once_bind_their_ports(head: Any) -> None:
    program = (
        "import os, socket, time; s = socket.socket();"
        "s.bind(('', int(os.environ['PRIMUS_PORT']))); s.listen(); time.sleep(0.5)"
    )
    names = [f"c64-{number}" for number in range(20)]
    head.start()
    client = Client(f"unix:{head.socket}", token="")

    for name in names:
        roles = {"worker": {"replicas": 2, "command": [sys.executable, "-ISc", program]}}
        client.call(
            "POST",
            "/api/v1/namespaces/default/jobs",
            body={"apiVersion": "primus/v1", "name": name, "roles": roles},
        )

    def jobs() -> list[Any]:
        found: Any = client.get("/api/v1/namespaces/default/jobs")  # JSON, as it comes
        return list(found["items"])

    head.until("all are over", lambda: all(one["status"]["phase"] in FINAL for one in jobs()))
    assert len(jobs()) == len(names)
    for job in jobs():
        assert job["status"]["phase"] == "Succeeded"
        assert job["status"]["budgets"]["infrastructure"]["used"] == 0
        assert job["status"]["generation"] == 1


def test_C65_a_stolen_port_is_a_new_generation_at_no_cost_of_the_application(head: Any) -> None:
    head.start()
    settings = (head.folder / "ports.toml").read_text()
    first = int(settings.partition('ports = "')[2].partition("-")[0])
    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        thief.bind(("", first))
        thief.listen()

        submit(
            head,
            "c65",
            '  worker: {replicas: 2, command: "true", restart: {unit: role}}',
            "schedule: {policy: gang}\nbudgets: {application: 0}",
        )
        status = head.ended("c65")

    assert status["phase"] == "Succeeded", status
    assert status["generation"] == 2
    assert status["budgets"]["application"]["used"] == 0
    assert newest(head, "c65")["ports"]["main"] != first


def test_C72_C73_C75_logs_of_every_attempt_follow_to_the_end(shared: Any) -> None:
    submit(
        shared,
        "c72",
        """
  worker:
    command: |
      i=0; while [ $i -lt 500 ]; do echo run $PRIMUS_ATTEMPT $i; i=$((i+1)); done
      printf '\\377\\360\\237'; sleep 0.1; printf '\\246\\206 end\\n'
      test $PRIMUS_ATTEMPT = 4
    restart: {delay: 50ms}
""",
        "budgets: {application: 5}",
    )

    followed = shared.ctl("logs", "c72", "-f")

    lines = [line.partition(" ")[2].strip() for line in followed.stdout.splitlines()]
    expected = [f"run {attempt} {i}" for attempt in range(1, 5) for i in range(500)]
    assert [line for line in lines if line.startswith("run")] == expected
    assert lines.count("\ufffd\U0001f986 end") == 4
    for attempt in range(1, 5):
        kept = shared.ctl("logs", "c72", "--attempt", str(attempt)).stdout.splitlines()
        assert len(kept) == 501
        assert f"run {attempt} 499" in kept[-2]


def following(head: Any, *words: str) -> Any:
    """Start primusctl with pipes; Any, since Popen does not know that they are there."""
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([BIN / "primusctl", *words], env=head.environment, **pipes)


def test_C73_followers_go_on_over_a_death_and_a_stop_of_the_daemon(head: Any) -> None:
    go = head.folder / "go"
    head.start()
    submit(
        head,
        "c73",
        f"""
  worker:
    command: 'for i in 1 2 3; do echo line $i; until test -e {go}$i; do sleep 0.05; done; done'
""",
    )
    head.until("it runs", lambda: runs(head, "c73"))
    logs = following(head, "logs", "c73", "-f")
    tail = following(head, "logs", "c73", "-f", "--tail", "1")
    events = following(head, "events", "c73", "-f")
    assert [one.stdout.readline() for one in (logs, tail)] == ["worker-0  line 1\n"] * 2
    assert events.stdout.readline()

    for number, ending in ((1, head.kill), (2, head.stop)):
        ending()
        Path(f"{go}{number}").touch()
        head.start()
    Path(f"{go}3").touch()

    said = [one.communicate(timeout=WAIT_S) for one in (logs, tail, events)]
    rest = "worker-0  line 2\nworker-0  line 3\n"
    assert [out for out, _ in said[:2]] == [rest] * 2, said
    assert "c73 ended after" in said[2][0].splitlines()[-1]
    assert [one.returncode for one in (logs, tail, events)] == [0, 0, 0]


def test_C76_nasty_texts_pass_from_the_file_to_the_trainer_and_back(shared: Any) -> None:
    folder = shared.folder / " ".join(one for one in NASTY if "\n" not in one)
    folder.mkdir()
    program = (
        "import os, sys; path = os.environ['WHERE']; open(path + '/seen', 'w').write("
        "'|'.join(sys.argv[1:]) + os.environ['NASTY']); sys.exit(os.environ['NASTY'])"
    )
    client = Client(f"unix:{shared.socket}", token="")
    client.call(
        "POST",
        "/api/v1/namespaces/default/jobs",
        body={
            "apiVersion": "primus/v1",
            "name": "c76",
            "budgets": {"application": 0},
            "roles": {
                "worker": {
                    "command": [sys.executable, "-c", program, *NASTY],
                    "env": {"NASTY": "|".join(NASTY), "WHERE": str(folder)},
                    "workdir": str(folder),
                }
            },
        },
    )

    status = shared.ended("c76")

    assert (folder / "seen").read_text() == "|".join((*NASTY, "")).rstrip("|") + "|".join(NASTY)
    assert newest(shared, "c76")["outcome"]["lastLine"] == NASTY_LAST
    assert status["firstCause"]["exitCode"] == 1


NASTY_LAST = "|".join(NASTY).rpartition("\n")[2]


def test_C79_an_old_watcher_hears_of_the_end_and_nothing_of_the_namesake(shared: Any) -> None:
    submit(shared, "c79", '  worker: {command: "true"}')
    shared.ended("c79")
    old = shared.document("get", "c79")["uid"]

    shared.ctl("delete", "c79")
    submit(shared, "c79", '  worker: {command: "true"}')
    shared.ended("c79")

    new = shared.document("get", "c79")["uid"]
    assert new != old
    assert shared.ctl("get", old, allowed=(3,)).returncode == 3
    (first, *_) = shared.document("events", "c79")["items"]
    assert first["jobUid"] == new
