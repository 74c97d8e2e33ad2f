"""Jobs from file to verdict, on the real daemon, node and executors: A1, A4, A5, A14."""

from pathlib import Path
from typing import Any

import pytest

HELLO = """
apiVersion: primus/v1
name: hello
roles:
  chief: {command: "echo Hello from Chief; echo Goodbye from Chief"}
  ps: {command: "echo Hello from PS; echo Goodbye from PS"}
  worker: {command: "echo Hello from Worker; echo Goodbye from Worker"}
"""

LINES = [f"Hello from input-file-text: {i}-{j}" for i in range(4) for j in range(8)]


def write_lines(folder: Path) -> None:
    """Write the 32 lines in 4 files."""
    (folder / "input").mkdir()
    for i in range(4):
        text = "".join(line + "\n" for line in LINES[8 * i : 8 * i + 8])
        (folder / "input" / f"data-{i}.txt").write_text(text)


def log_lines(head: Any, name: str, *flags: str) -> list[str]:
    """Return the lines of a job's logs without their prefixes."""
    said = head.ctl("logs", name, *flags).stdout.splitlines()
    return [line.partition(" ")[2].strip() for line in said]


def test_A1_three_roles_greet_and_the_job_succeeds(head: Any) -> None:
    head.start()

    head.ctl("submit", "-", "--wait", stdin=HELLO)

    greetings = [line for line in log_lines(head, "hello") if line.startswith("Hello")]
    assert sorted(greetings) == ["Hello from Chief", "Hello from PS", "Hello from Worker"]
    assert set(head.attempts("hello").values()) == {1}
    prefixes = {line.split()[0] for line in head.ctl("logs", "hello").stdout.splitlines()}
    assert prefixes == {"chief-0", "ps-0", "worker-0"}


def test_A4_cancelled_job_ends_its_waiting_client_with_11(head: Any) -> None:
    head.start()
    name = head.submit(HELLO.replace("echo Goodbye from PS", "sleep 600"))
    head.until("it runs", lambda: head.phase(name) == "Running")

    head.ctl("cancel", name)

    assert head.ctl("wait", name, "--for", "ended", allowed=(11,)).returncode == 11
    assert head.phase(name) == "Cancelled"
    head.until("no trainer is left", lambda: not head.trainers("ps-0"))


def test_A5_text_comes_in_file_and_line_order_exactly_once(head: Any) -> None:
    """M070, M095, M110."""
    write_lines(head.folder)
    head.start()
    name = head.submit(f"""
apiVersion: primus/v1
name: input-file-text
roles:
  worker: {{command: [cat], data: lines, feed: stdin}}
data:
  lines: {{sources: [{{files: "{head.folder}/input/*"}}], format: text}}
""")

    assert head.ended(name)["phase"] == "Succeeded"
    assert log_lines(head, name) == LINES
    head.ctl("data", name, "verify")


def test_A14_ps_and_worker_that_never_exit_are_stopped_when_the_chief_is_done_C02(
    head: Any,
) -> None:
    head.start()
    name = head.submit("""
apiVersion: primus/v1
name: tf-ps
roles:
  chief: {command: "for i in 1 2 3 4 5; do echo Epoch $i/5; done"}
  ps: {replicas: 2, command: "sleep 1000000", success: never, stop: {grace: 1s}}
  worker: {replicas: 2, command: "sleep 1000000", success: never, stop: {grace: 1s}}
""")

    status = head.ended(name)

    assert status["phase"] == "Succeeded"
    assert log_lines(head, name, "--role", "chief") == [f"Epoch {i}/5" for i in range(1, 6)]
    causes = {
        one["name"]: one["attempts"][-1]["outcome"]["cause"]
        for one in head.document("get", name, "--replicas")["items"]
    }
    assert causes.pop("chief-0") == "Completed"
    assert set(causes.values()) == {"Stopped"}
    assert not [pid for replica in causes for pid in head.trainers(replica)]


@pytest.mark.parametrize(
    ("command", "reason", "code"),
    [("exit 3", "RetriesExhausted", 10), ("no-such-program-xyz", "StartFailed", 10)],
)
def test_failed_job_says_why_and_how(head: Any, command: str, reason: str, code: int) -> None:
    head.start()
    argv = f"[{command}]" if reason == "StartFailed" else f'"{command}"'

    done = head.ctl(
        "submit",
        "-",
        "--wait",
        stdin=f"""
apiVersion: primus/v1
name: fails
budgets: {{application: 1}}
roles:
  worker: {{command: {argv}, restart: {{delay: 100ms}}}}
""",
        allowed=(code,),
    )

    status = head.document("get", "fails")["status"]
    assert status["verdict"]["reason"] == reason, done.stderr
    assert status["firstCause"]["attempt"] == "worker-0/1"
    assert status["firstCause"]["ends"] == head.attempts("fails")["worker-0"]
