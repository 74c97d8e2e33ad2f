"""A group of exactlyOnce readers that loses one of them: who pays, when it begins anew, when not.

What one trainer took is in the model of all, so all of them go back; never round in circles.
"""

from typing import Any

import pytest

from primusd.datafeed.ledger.events import ReaderEnded
from primusd.job import events as ev
from primusd.job.failover import unit_of
from primusd.job.phases import Budget
from primusd.job.spec import FailureRule, JobSpec, Reading, Source, StreamSpec
from tests.state.job_driver import Cluster, budgets, ended, role, spec

CLICKS = StreamSpec("clicks", (Source("/data/clicks"),), delivery="exactlyOnce")


def grouped(replicas: int = 2, **fields: Any) -> JobSpec:  # of JobSpec
    """Return a job of one group."""
    success = fields.pop("success", "all")
    worker = role(replicas=replicas, success=success, unit="role", data=(Reading("clicks"),))
    return spec(worker, streams=(CLICKS,), **fields)


def lose(cluster: Cluster, name: str = "worker-0") -> None:
    """Let a lease of a member that lives run out."""
    cluster.say(ev.GroupLeaseLost("clicks", cluster.id(name)), by="stream")


def back(cluster: Cluster) -> int:
    """Let a group that was stopped come to run again; return how long nothing of it could begin."""
    cluster.stop_all()
    waited_ms = max(0, cluster.role().not_before_ms - cluster.now_ms)
    cluster.wait(waited_ms)
    cluster.bring_up()
    return waited_ms


def test_a_lease_lost_by_a_living_holder_is_charged_once_and_waits_longer_each_time() -> None:
    cluster = Cluster()
    cluster.run(grouped(budgets=budgets(infrastructure=3)))
    waits = []

    for _ in range(3):
        lose(cluster)
        lose(cluster, "worker-1")  # Another stream of the same group: it begins anew already.
        waits.append(back(cluster))

    assert cluster.phase == "Running"
    charges = cluster.role().charges
    assert [one.budget for one in charges] == [Budget.INFRASTRUCTURE] * 3
    assert waits[0] == 0 < waits[1] < waits[2]
    told = [one.message for one in cluster.job.timeline if one.reason == "GroupLeaseLost"]
    assert sum("3 of 3" in one for one in told) == 1
    cluster.check_replay()


def test_a_group_that_is_lost_again_and_again_uses_its_budget_up() -> None:
    cluster = Cluster()
    cluster.run(grouped(budgets=budgets(infrastructure=1)))

    lose(cluster)
    back(cluster)
    lose(cluster)

    verdict = cluster.job.verdict
    assert verdict is not None
    assert (verdict.as_phase, verdict.reason) == ("Failed", "RetriesExhausted")
    assert "worker-0/2" in verdict.message
    assert "infrastructure budget of 1" in verdict.message
    cluster.check_replay()


def test_a_rerun_is_left_when_a_lost_group_used_the_budget_up() -> None:
    cluster = Cluster()
    cluster.run(grouped(budgets=budgets(infrastructure=0), reruns=1))

    lose(cluster)
    back(cluster)

    assert (cluster.phase, cluster.job.reruns) == ("Running", 1)
    lose(cluster)
    assert cluster.job.verdict is not None
    cluster.check_replay()


def test_the_end_of_a_member_is_charged_as_what_it_was_and_not_again_as_a_loss() -> None:
    cluster = Cluster()
    cluster.run(grouped())

    cluster.exit("worker-0", code=3)
    assert back(cluster) > 0

    assert [one.budget for one in cluster.role().charges] == [Budget.APPLICATION]
    assert cluster.role().failures == 1


@pytest.mark.parametrize("action", ["complete", "giveUp"])
def test_who_gets_no_other_try_by_a_rule_gets_none_though_its_group_begins_anew(
    action: str,
) -> None:
    rule = FailureRule(action, exit_codes=(1,), roles=("worker",))
    cluster = Cluster()
    cluster.run(grouped(success="any", failure=(rule,)))

    attempt = cluster.id("worker-0")
    cluster.exit("worker-0", code=1)
    if action == "giveUp":
        lose(cluster, f"worker-0/{attempt.attempt}")
        back(cluster)

    assert cluster.replica("worker-0").last_number == 1
    assert cluster.phases()[0] == ("Completed" if action == "complete" else "Failed")
    cluster.check_replay()


def test_a_stream_hears_of_an_end_that_a_rule_makes_a_completion_as_of_one() -> None:
    """It took such an end for a loss, and the group began anew for ever, charged to nobody."""
    cluster = Cluster()
    cluster.run(grouped(failure=(FailureRule("complete", exit_codes=(1,)),)))

    cluster.exit("worker-0", code=1)
    cluster.exit("worker-1", code=3)

    told = [one.event for entry in cluster.entries for one in entry.records]
    ends = [one for one in told if isinstance(one, ReaderEnded)]
    assert [one.has_completed for one in ends] == [True, False]


def test_who_used_a_budget_up_gets_no_other_try_though_others_make_its_role_restart() -> None:
    cluster = Cluster()
    cluster.run(grouped(3, success="any", budgets=budgets(application=0)))
    first = cluster.id("worker-0")

    # Not known to be gone yet when its group begins anew.
    cluster.say(ev.TrainerExited(first, ended(3)), by="executor")
    lose(cluster, "worker-0")
    cluster.gone("worker-0", first)
    back(cluster)

    assert cluster.phases() == ["Failed", "Active", "Active"]
    assert cluster.role().generation == 2
    cluster.check_replay()


def test_no_rule_makes_one_of_a_group_restart_alone() -> None:
    cluster = Cluster()
    cluster.run(grouped(failure=(FailureRule(unit="replica"),)))

    cluster.say(ev.TrainerExited(cluster.id("worker-0"), ended(3)), by="executor")

    assert unit_of(cluster.job, cluster.role(), cluster.newest("worker-0").outcome) == "role"
    assert cluster.role().generation == 2
    assert cluster.role().failures == 1
