"""Whatever happens again and again uses up a budget, and ends (C10, M031, M050 to M052).

With the defaults of a file that says nothing of budgets; the verdict names budget and cause.
"""

import json
from collections.abc import Callable

import pytest

from primusd.job import events as ev
from primusd.job.phases import AttemptPhase
from primusd.job.spec import Budgets, Hang, JobSpec
from primusd.jobfile import parse
from tests.state.job_driver import Cluster, budgets, role, spec

NAME = "worker-0"
APPLICATION, INFRASTRUCTURE = Budgets().application, Budgets().infrastructure


def exits(code: int | None = None, *, error: str = "", oom_kills: int = 0) -> Callable[..., None]:
    """Return what lets a trainer that runs end so."""

    def end(cluster: Cluster) -> None:
        cluster.bring_up()
        cluster.exit(NAME, code=code, error=error, oom_kills=oom_kills)

    return end


def vanishes(evidence: str = "") -> Callable[..., None]:
    """Return what lets an attempt go without a record, with what the launcher knows of it."""

    def end(cluster: Cluster) -> None:
        cluster.bring_up()
        cluster.gone(NAME, evidence=evidence)

    return end


def falls_silent(cluster: Cluster) -> None:
    cluster.bring_up()
    cluster.say(ev.ExecutorExpired(cluster.id(NAME)))
    cluster.gone(NAME)


def finds_its_port_taken(cluster: Cluster) -> None:
    cluster.launch()
    cluster.register()
    cluster.exit(NAME, code=None, error="portTaken:main")


def cannot_be_launched_now(cluster: Cluster) -> None:
    cluster.say(ev.LaunchFailed(cluster.id(NAME), "too busy", is_permanent=False))
    cluster.gone(NAME)


def hangs(cluster: Cluster) -> None:
    cluster.bring_up()
    cluster.say(ev.TrainerHung(cluster.id(NAME), "no progress for 30 min"))
    cluster.stop_all()


def never_says_hello(cluster: Cluster) -> None:
    cluster.launch()
    cluster.wait(300_000)
    cluster.stop_all()


def never_starts_its_trainer(cluster: Cluster) -> None:
    cluster.launch()
    cluster.register()
    cluster.hold()
    cluster.wait(60_000)
    cluster.stop_all()


@pytest.mark.parametrize(
    ("end", "cause", "budget"),
    [
        (exits(1), "Crashed", "application"),
        (exits(137), "Crashed", "application"),
        (exits(137, oom_kills=1), "OutOfMemory", "application"),
        (hangs, "Stopped", "application"),
        (vanishes(), "Lost", "infrastructure"),
        (falls_silent, "Lost", "infrastructure"),
        (vanishes("nodeLost"), "NodeLost", "infrastructure"),
        (vanishes("bootChanged"), "NodeLost", "infrastructure"),
        (vanishes("preempted"), "Preempted", "infrastructure"),
        (exits(error="disk:no space left"), "ExecutorFailed", "infrastructure"),
        (finds_its_port_taken, "ExecutorFailed", "infrastructure"),
        (cannot_be_launched_now, "ExecutorFailed", "infrastructure"),
        (never_says_hello, "Stopped", "infrastructure"),
        (never_starts_its_trainer, "Stopped", "infrastructure"),
    ],
)
def test_C10_whatever_comes_again_each_time_uses_up_its_budget(
    end: Callable[[Cluster], None], cause: str, budget: str
) -> None:
    cluster = Cluster()
    cluster.submit(spec(role(budgets=None), policy="dynamic", hang=Hang(1_800_000, "restart")))
    limit = APPLICATION if budget == "application" else INFRASTRUCTURE

    ends = 0
    while not cluster.job.is_final:
        ends += 1
        assert ends <= limit + 1, "it goes on without end"
        end(cluster)
        cluster.wait(400_000)

    assert ends == cluster.replica(NAME).last_number == limit + 1
    verdict = cluster.job.verdict
    assert verdict is not None
    assert (verdict.as_phase, verdict.reason) == ("Failed", "RetriesExhausted")
    assert f"cause {cause}" in verdict.message
    assert f"{budget} budget of {limit}" in verdict.message
    assert verdict.numbers["budgetUsed"] == limit + 1
    cluster.check_replay()


def test_M052_ends_of_all_replicas_add_up_in_the_budget_of_their_role_and_of_no_other() -> None:
    cluster = Cluster()
    workers = role("worker", 4, budgets=budgets(application=3))
    cluster.run(spec(role("ps", 2, success="never", budgets=budgets(application=3)), workers))

    for name in ("ps-0", "ps-1", "worker-0", "worker-1", "worker-2"):
        cluster.exit(name, code=1)
    assert cluster.phase != "Stopping"
    cluster.exit("worker-3", code=1)

    assert cluster.job.verdict is not None
    assert "worker-3 crashed" in cluster.job.verdict.message
    assert "application budget of 3" in cluster.job.verdict.message


def test_M031_the_words_of_a_start_that_timed_out_name_who_was_missing() -> None:
    cluster = Cluster()
    cluster.submit(spec(role("ps"), role("worker", 3), policy="gang"))
    cluster.launch()
    cluster.register("ps-0", "worker-0")
    cluster.hold("ps-0", "worker-0")

    cluster.wait(300_000)

    assert "worker-1, worker-2 are not there" in cluster.told("StartTimedOut")


def test_M031_without_a_budget_a_gang_that_lacks_one_fails_at_its_first_deadline() -> None:
    cluster = Cluster()
    cluster.submit(spec(role("worker", 2), policy="gang", budgets=budgets(infrastructure=0)))
    cluster.launch()
    cluster.register("worker-0")
    cluster.hold("worker-0")

    cluster.wait(300_000)
    for name in cluster.names(AttemptPhase.STOPPING):
        cluster.gone(name)

    assert cluster.phase == "Failed"
    assert cluster.job.verdict is not None
    assert cluster.job.verdict.reason == "PlacementTimeout"
    assert "worker-1" in cluster.job.verdict.message
    assert cluster.demands() == {}
    cluster.check_replay()


# Job files of the original.


def original(policy: dict[str, object], *, count: int, percent: int, attempts: int = 1) -> JobSpec:
    """Return what an original file with one role of workers asks for."""
    worker = {
        "roleName": "worker",
        "num": count,
        "command": "true",
        "successPercent": percent,
        "failover": {"commonFailoverPolicy": policy},
    }
    file = {"name": "x", "maxAppAttempts": attempts, "role": [worker]}
    return parse(json.dumps(file).encode()).spec


@pytest.mark.parametrize(
    ("policy", "attempts", "code", "ends"),
    [
        ({"maxFailureTimes": 3}, 1, 1, 3),
        ({"maxFailureTimes": 1}, 1, 1, 1),
        ({"maxFailureTimes": 0}, 1, 1, 1),
        ({"maxFailureTimes": 3, "restartType": "NEVER"}, 1, 1, 1),
        ({"maxFailureTimes": 3, "restartType": "ALWAYS"}, 1, 0, 3),
        ({"maxFailureTimes": 3, "restartType": "ALWAYS"}, 1, 1, 3),
        ({"maxFailureTimes": 3, "maxFailurePolicy": "FAIL_ATTEMPT"}, 2, 1, 6),
        ({"maxFailureTimes": 1, "maxFailurePolicy": "FAIL_ATTEMPT"}, 3, 1, 3),
        ({"maxFailureTimes": 3, "maxFailurePolicy": "FAIL_APP"}, 3, 1, 3),
    ],
)
def test_M050_M051_M057_an_original_fails_with_the_end_that_trips_there(
    policy: dict[str, object], attempts: int, code: int, ends: int
) -> None:
    cluster = Cluster()
    cluster.submit(original(policy, count=2, percent=100, attempts=attempts))

    seen = 0
    while not cluster.job.is_final:
        assert seen < ends, "it goes on beyond that"
        cluster.bring_up()
        cluster.exit(NAME, code=code)
        seen += 1
        cluster.stop_all()
        cluster.wait(400_000)

    assert (cluster.phase, seen) == ("Failed", ends)
    cluster.check_replay()


@pytest.mark.parametrize("kind", ["ON_FAILURE", "NEVER"])
def test_M050_an_end_with_code_0_is_not_started_again(kind: str) -> None:
    cluster = Cluster()
    cluster.run(original({"maxFailureTimes": 3, "restartType": kind}, count=2, percent=100))

    cluster.exit(NAME)
    cluster.wait(3_600_000)
    assert cluster.phases() == ["Completed", "Active"]
    cluster.exit("worker-1")

    assert cluster.phase == "Succeeded"


@pytest.mark.parametrize(("times", "tries"), [(0, 1), (1, 1), (3, 3)])
def test_M051_of_an_original_with_NONE_each_replica_has_its_own_count(
    times: int, tries: int
) -> None:
    policy: dict[str, object] = {"maxFailureTimes": times, "maxFailurePolicy": "NONE"}
    cluster = Cluster()
    cluster.submit(original(policy, count=4, percent=50))

    def crash(name: str, count: int) -> None:
        for _ in range(count):
            cluster.bring_up()
            cluster.exit(name, code=1)
            cluster.wait(400_000)

    for name in ("worker-0", "worker-1"):
        crash(name, tries)
    assert cluster.phases() == ["Failed", "Failed", "Active", "Active"]
    for name in ("worker-2", "worker-3"):
        crash(name, tries - 1)
    cluster.bring_up()
    cluster.exit("worker-2", "worker-3")

    assert cluster.phase == "Succeeded"
    assert cluster.job.verdict is not None
    assert cluster.job.verdict.reason == "PartialSuccess"
    cluster.check_replay()
