"""Who decides, what a restart costs, and what is left: cases by number, on a whole primusd."""

import shutil
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


def outcomes(head: Any, name: str) -> dict[str, list[dict[str, Any]]]:
    """Return the outcomes of every replica's attempts, oldest first."""
    found = head.document("get", name, "--replicas")["items"]
    return {one["name"]: [each["outcome"] for each in one["attempts"]] for one in found}


def test_C01_the_evaluator_writes_its_file_after_the_chief_is_done(shared: Any) -> None:
    path = shared.folder / "evaluated"
    submit(
        shared,
        "c01",
        f"""
  chief: {{command: "true"}}
  ps: {{command: "sleep 1000", success: never, stop: {{grace: 1s}}}}
  evaluator: {{command: "sleep 0.5; echo done > {path}", success: never, drain: 30s}}
""",
    )

    status = shared.ended("c01")

    assert status["phase"] == "Succeeded"
    assert path.read_text() == "done\n"
    causes = {name: found[-1]["cause"] for name, found in outcomes(shared, "c01").items()}
    assert causes == {"chief-0": "Completed", "ps-0": "Stopped", "evaluator-0": "Completed"}


def test_C03_an_evaluator_that_goes_on_is_cut_off_with_a_warning(shared: Any) -> None:
    submit(
        shared,
        "c03",
        """
  chief: {command: "true"}
  evaluator: {command: "sleep 1000", success: never, drain: 1s, stop: {grace: 1s}}
""",
    )

    status = shared.ended("c03")

    assert status["phase"] == "Succeeded"
    warnings = [
        one["message"]
        for one in shared.document("events", "c03")["items"]
        if one["level"] == "warning"
    ]
    assert any("evaluator" in one for one in warnings), warnings


def test_C06_a_gang_member_that_never_registers_well_ends_the_job_with_its_code(
    shared: Any,
) -> None:
    submit(
        shared,
        "c06",
        """
  worker: {replicas: 2, command: "exit 3", restart: {delay: 100ms}}
""",
        "schedule: {policy: gang}\nbudgets: {application: 1}",
    )

    status = shared.ended("c06")

    assert (status["phase"], status["verdict"]["reason"]) == ("Failed", "RetriesExhausted")
    assert "code 3" in status["verdict"]["message"]
    assert status["firstCause"]["exitCode"] == 3


def test_C07_a_failure_for_good_leaves_no_process_and_no_slot(shared: Any) -> None:
    submit(
        shared,
        "c07",
        """
  worker: {replicas: 3, command: "test $PRIMUS_INDEX = 0 || sleep 4711; sleep 0.5; exit 1",
           resources: {memory: 8Mi}, stop: {grace: 1s}}
""",
        "budgets: {application: 0}",
    )

    status = shared.ended("c07")

    assert status["phase"] == "Failed"
    assert not shared.processes("sleep 4711")
    (node,) = shared.document("nodes", "list")["items"]
    assert (node["used"]["memoryBytes"], node["used"]["cpuMilli"]) == (0, 0)


@pytest.mark.parametrize(
    ("success", "phase", "reason"),
    [("all", "Failed", "Crashed"), ("{percent: 75}", "Succeeded", "PartialSuccess")],
    ids=["all", "percent"],
)
def test_C08_one_of_four_fails(shared: Any, success: str, phase: str, reason: str) -> None:
    name = f"c08-{phase.lower()}"
    submit(
        shared,
        name,
        f"""
  worker: {{replicas: 4, command: "test $PRIMUS_INDEX != 2", success: {success}}}
""",
        "budgets: {application: 0}",
    )

    status = shared.ended(name)

    assert (status["phase"], status["verdict"]["reason"]) == (phase, reason)


def test_C12_code_137_that_nobody_asked_for_is_a_crash(shared: Any) -> None:
    submit(shared, "c12", '  worker: {command: "exit 137"}', "budgets: {application: 0}")

    status = shared.ended("c12")

    assert status["phase"] == "Failed"
    assert outcomes(shared, "c12")["worker-0"][0]["cause"] == "Crashed"
    evidence = set(status["firstCause"]["evidence"])
    assert "no stop was asked" in evidence
    # The second where no memory group can be had, as in most containers.
    assert evidence & {"oom_kills 0", "nobody counts oom_kills here"}


def test_C13_one_death_of_a_role_is_charged_once_and_named(shared: Any) -> None:
    mark = shared.folder / "died"
    submit(
        shared,
        "c13",
        f"""
  worker:
    replicas: 4
    command: |
      test -e {mark} && exit 0
      test $PRIMUS_INDEX = 2 || {{ touch {mark}-not-$PRIMUS_INDEX; exec sleep 1000; }}
      until test 3 = $(ls {mark}-not-* 2>/dev/null | wc -l); do sleep 0.05; done
      touch {mark}; echo the first error line >&2; exit 7
    restart: {{unit: role, delay: 100ms}}
    stop: {{grace: 1s}}
""",
        "schedule: {policy: gang}",
    )

    status = shared.ended("c13")

    assert status["phase"] == "Succeeded"
    assert status["generation"] == 2
    assert status["budgets"]["application"]["used"] == 1
    assert status["firstCause"]["attempt"] == "worker-2/1"
    assert status["firstCause"]["lastLine"] == "the first error line"
    causes = {name: found[0]["cause"] for name, found in outcomes(shared, "c13").items()}
    assert causes.pop("worker-2") == "Crashed"
    assert set(causes.values()) == {"Stopped"}


def test_C04_C21_what_is_over_stays_over_without_its_files_and_with_a_new_daemon(
    head: Any,
) -> None:
    head.start()
    submit(
        head,
        "c04",
        """
  worker: {replicas: 2, command: "test $PRIMUS_INDEX = 0 || sleep 1000", stop: {grace: 1s}}
""",
    )
    submit(head, "c21", '  worker: {command: "exit 1"}', "budgets: {application: 0}")
    head.until("worker-0 is done", lambda: outcomes_done(head, "c04") == ["worker-0"])
    assert head.ended("c21")["phase"] == "Failed"
    head.kill()

    for folder in (*head.state.glob("jobs/*/worker-0"),):
        if not (folder.parent / "worker-1").exists() or folder.name == "worker-0":
            shutil.rmtree(folder)
    head.start()
    head.until("the node is back", lambda: "Ready" in head.ctl("nodes", "list").stdout)
    submit(head, "later", '  worker: {command: "true"}')
    head.ended("later")

    assert head.attempts("c04") == {"worker-0": 1, "worker-1": 1}
    assert head.attempts("c21") == {"worker-0": 1}
    assert (head.phase("c04"), head.phase("c21")) == ("Running", "Failed")
    head.ctl("delete", "c21")
    assert head.ctl("restart", "c21", allowed=(3,)).returncode == 3
    assert not list(head.state.glob("jobs/*/worker-0/a2"))


def outcomes_done(head: Any, name: str) -> list[str]:
    """Return the replicas that completed."""
    found = head.document("get", name, "--replicas")["items"]
    return [one["name"] for one in found if one["phase"] == "Completed"]


def test_C47_a_budget_goes_on_over_restarts_of_the_daemon(head: Any) -> None:
    go = head.folder / "go"
    head.start()
    submit(
        head,
        "c47",
        f"""
  worker:
    command: 'until test -e {go}$PRIMUS_ATTEMPT; do sleep 0.05; done; exit 5'
    restart: {{delay: 100ms}}
""",
        "budgets: {application: 2}",
    )
    for attempt in (1, 2):
        head.until(
            "it runs", lambda n=attempt: len(head.trainers("worker-0")) > 0 and running(head, n)
        )
        head.kill()
        Path(f"{go}{attempt}").touch()
        head.start()
        head.until("it was counted", lambda n=attempt: used(head) == n)

    Path(f"{go}3").touch()

    status = head.ended("c47")
    assert status["verdict"]["reason"] == "RetriesExhausted"
    assert head.attempts("c47") == {"worker-0": 3}


def running(head: Any, attempt: int) -> bool:
    """Return whether that attempt of worker-0 runs."""
    found = head.document("get", "c47", "--replicas")["items"][0]["attempts"][-1]
    return bool(found["attempt"] == attempt and found["phase"] == "Running")


def used(head: Any) -> int:
    """Return how much of the application budget is used."""
    return int(head.document("get", "c47")["status"]["budgets"]["application"]["used"])
