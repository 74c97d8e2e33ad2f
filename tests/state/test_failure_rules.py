"""The `failure` rules: which end meets which, and what follows (C10, C12, C22, M050, M053)."""

from typing import Any

import pytest
from msgspec.structs import replace

from primusd.job import events as ev
from primusd.job.model import Outcome
from primusd.job.phases import Budget, Cause, StopReason
from primusd.job.restarts import why_restarted
from primusd.job.rules import (
    CAUSES,
    cause_name,
    endless_rule,
    judge,
    log_patterns,
    matched_rules,
)
from primusd.job.spec import FailureRule, JobSpec, Resources
from tests.state.job_driver import Cluster, budgets, ended, role, spec

GIB = 1 << 30
CRASH = Outcome(Cause.CRASHED, Budget.APPLICATION, exit_code=3)


def ruled(*rules: FailureRule, **fields: Any) -> JobSpec:  # of JobSpec
    return spec(role("worker", 2), role("ps", 1, success="never"), failure=rules, **fields)


def rule_that_holds(outcome: Outcome, *rules: FailureRule, of: str = "worker") -> int:
    """Return the number of the rule that an end meets, 0 none."""
    return judge(ruled(*rules), of, outcome).rule


def exits(cluster: Cluster, name: str, code: int | None, **more: Any) -> None:
    """Let a trainer exit, with the positions of the patterns its executor saw."""
    matched = more.pop("matched", ())
    attempt = cluster.id(name)
    record = replace(ended(code, **more), matched=matched)
    cluster.say(ev.TrainerExited(attempt, record), by="executor")
    cluster.gone(name, attempt)


def test_the_first_rule_that_holds_decides() -> None:
    three, any_code = FailureRule("fail", exit_codes=(3, 4)), FailureRule("giveUp")

    assert rule_that_holds(CRASH, three, any_code) == 1
    assert rule_that_holds(replace(CRASH, exit_code=5), three, any_code) == 2
    assert rule_that_holds(replace(CRASH, exit_code=5), three) == 0


def test_all_conditions_of_a_rule_have_to_hold() -> None:
    rule = FailureRule(causes=("crashed",), exit_codes=(3,), roles=("worker",), log_match="Xid")

    assert rule_that_holds(CRASH, rule) == 0
    assert rule_that_holds(replace(CRASH, matched=(0,)), rule) == 1
    assert rule_that_holds(replace(CRASH, matched=(0,)), rule, of="ps") == 0
    assert rule_that_holds(replace(CRASH, matched=(0,), exit_code=4), rule) == 0


def test_a_signal_is_no_code_and_a_code_no_signal() -> None:
    killed = Outcome(Cause.CRASHED, Budget.APPLICATION, signal=9)

    assert rule_that_holds(killed, FailureRule(exit_codes=(9, 137))) == 0
    assert rule_that_holds(killed, FailureRule(signals=(9,))) == 1
    assert rule_that_holds(replace(CRASH, exit_code=9), FailureRule(signals=(9,))) == 0


def test_C18_what_we_stopped_meets_no_rule_unless_its_stop_is_a_failure() -> None:
    anything = FailureRule("fail")

    for reason in StopReason:
        budget = Budget.APPLICATION if reason is StopReason.HUNG else Budget.NONE
        stopped = Outcome(Cause.STOPPED, budget, exit_code=1, stop_reason=reason)
        assert rule_that_holds(stopped, anything) == (reason is StopReason.HUNG), reason


def test_code_0_meets_only_rules_that_name_it() -> None:
    done = Outcome(Cause.COMPLETED, Budget.NONE, exit_code=0, matched=(0,))

    assert rule_that_holds(done, FailureRule("fail", log_match="nan")) == 0
    assert rule_that_holds(done, FailureRule("fail")) == 0
    assert rule_that_holds(done, FailureRule("fail", log_match="nan", exit_codes=(0,))) == 1
    assert rule_that_holds(done, FailureRule(causes=("completed",))) == 1


def test_a_role_is_endless_where_its_clean_ends_begin_anew_and_nobody_pays() -> None:
    again = FailureRule("restart", exit_codes=(0,), budget="none")
    never = FailureRule("giveUp", causes=("completed",), roles=("ps",))

    assert endless_rule(ruled(FailureRule(budget="none"), again), "worker") == 2
    assert endless_rule(ruled(never, again), "ps") == 0
    assert endless_rule(ruled(replace(again, budget="application")), "worker") == 0
    assert endless_rule(ruled(replace(again, log_match="more to do")), "worker") == 0


def test_every_cause_has_a_name_that_a_rule_may_give() -> None:
    for cause in Cause:
        outcome = Outcome(cause, Budget.INFRASTRUCTURE, stop_reason=StopReason.HUNG)
        assert cause_name(outcome) in CAUSES


def test_patterns_go_to_the_roles_they_are_for_and_come_back_as_rules() -> None:
    job = ruled(
        FailureRule(exit_codes=(1,)),
        FailureRule(log_match="a", roles=("ps",)),
        FailureRule(log_match="b"),
    )

    assert log_patterns(job, "worker") == ("b",)
    assert log_patterns(job, "ps") == ("a", "b")
    assert matched_rules(job, "worker", (0,)) == (2,)
    assert matched_rules(job, "ps", (0, 1, 7)) == (1, 2)


def test_M053_a_code_that_is_charged_to_nobody_is_tried_for_ever_and_later_each_time() -> None:
    cluster = Cluster()
    rule = FailureRule(exit_codes=(75,), budget="none")
    cluster.submit(spec(role(), failure=(rule,), budgets=budgets(application=1)))

    waits = []
    for _ in range(8):
        cluster.bring_up()
        assert cluster.phase == "Running"
        cluster.exit("worker-0", code=75)
        assert cluster.replica("worker-0").phase == "Delayed"
        waits.append(cluster.replica("worker-0").not_before_ms - cluster.now_ms)
        cluster.wait(400_000)

    assert cluster.role().charges == ()
    assert waits[3] > waits[1] > waits[0] > 0
    cluster.bring_up()
    for _ in range(2):
        cluster.exit("worker-0", code=1)
        cluster.wait(400_000)
        cluster.bring_up()
    assert cluster.phase == "Failed"
    cluster.check_replay()


def test_fail_ends_the_job_at_once_and_the_verdict_names_the_rule() -> None:
    cluster = Cluster()
    cluster.run(
        spec(
            role("worker", 4, success="any"),
            failure=(FailureRule(signals=(11,)), FailureRule("fail", exit_codes=(3, 4))),
        )
    )

    exits(cluster, "worker-2", 3)
    cluster.stop_all()

    verdict = cluster.job.verdict
    assert verdict is not None
    assert (cluster.phase, verdict.reason, verdict.rule) == ("Failed", "FailureRule", "failure[1]")
    assert "worker-2 crashed with code 3" in verdict.message
    assert "exit code 3 or 4" in verdict.message
    assert "by failure[1]" in cluster.told("AttemptEnded")
    cluster.check_replay()


def test_give_up_fails_the_replica_and_the_job_only_when_its_role_cannot_do_without() -> None:
    cluster = Cluster()
    rule = FailureRule("giveUp", exit_codes=(3,))
    cluster.run(spec(role("worker", 4, success="percent", percent=75), failure=(rule,)))

    cluster.exit("worker-0", code=3)
    assert cluster.phase == "Running"
    assert cluster.phases() == ["Failed", "Active", "Active", "Active"]
    cluster.exit("worker-1", code=3)
    cluster.stop_all()

    assert cluster.phase == "Failed"
    assert cluster.job.verdict is not None
    assert cluster.job.verdict.reason == "FailureRule"
    assert "no other try by failure[0]" in cluster.job.verdict.message
    cluster.check_replay()


def test_complete_counts_as_done_and_the_verdict_says_how_many() -> None:
    cluster = Cluster()
    cluster.run(spec(role("worker", 2), failure=(FailureRule("complete", exit_codes=(42,)),)))

    cluster.exit("worker-0", code=42)
    assert cluster.phases() == ["Completed", "Active"]
    assert cluster.role().charges == ()
    cluster.exit("worker-1")

    assert cluster.phase == "Succeeded"
    assert cluster.job.verdict is not None
    assert cluster.job.verdict.reason == "PartialSuccess"
    assert "1 of 2 worker count as completed by failure[0]" in cluster.job.verdict.message
    cluster.check_replay()


def test_M050_a_rule_starts_again_what_had_completed() -> None:
    cluster = Cluster()
    cluster.submit(spec(role(budgets=budgets(application=2)), failure=(_always(),)))

    for _ in range(3):
        cluster.bring_up()
        cluster.exit("worker-0", code=0)
        cluster.wait(400_000)

    assert cluster.replica("worker-0").last_number == 3
    assert cluster.phase == "Failed"
    assert cluster.job.verdict is not None
    assert cluster.job.verdict.reason == "RetriesExhausted"


def _always() -> FailureRule:
    return FailureRule(causes=("completed",), budget="application")


def test_a_rule_overrules_a_permanent_cause() -> None:
    cluster = Cluster()
    cluster.run(spec(role(), failure=(FailureRule(causes=("startFailed",)),)))

    cluster.exit("worker-0", code=127)
    assert cluster.phase == "Starting"
    assert [one.budget for one in cluster.role().charges] == [Budget.APPLICATION]
    cluster.wait(20_000)
    cluster.bring_up()

    assert cluster.phase == "Running"


def test_a_rule_may_charge_the_other_budget() -> None:
    cluster = Cluster()
    rule = FailureRule(log_match="ECC", budget="infrastructure")
    cluster.run(spec(role(budgets=budgets(application=0)), failure=(rule,)))

    exits(cluster, "worker-0", 1, matched=(0,))

    assert [one.budget for one in cluster.role().charges] == [Budget.INFRASTRUCTURE]
    assert cluster.phase != "Failed"


def test_M055_a_rule_names_what_restarts() -> None:
    cluster = Cluster()
    rules = (
        FailureRule(exit_codes=(1,), unit="role"),
        FailureRule(exit_codes=(2,), unit="job"),
    )
    cluster.run(spec(role("worker", 3), role("ps", 1, success="never"), failure=rules))

    exits(cluster, "worker-0", 9)
    assert cluster.job.generation == 1
    exits(cluster, "worker-1", 1)
    cluster.stop_all()
    assert (cluster.job.generation, cluster.role("ps").generation) == (2, 1)
    cluster.wait(400_000)
    cluster.bring_up()
    assert cluster.phase == "Running"
    exits(cluster, "worker-2", 2)
    cluster.stop_all()

    assert (cluster.job.generation, cluster.role("ps").generation) == (3, 3)
    cluster.check_replay()


@pytest.mark.parametrize("delay_ms", [0, 60_000, 600_000])
def test_a_rule_says_how_long_to_wait(delay_ms: int) -> None:
    cluster = Cluster()
    rule = FailureRule(causes=("crashed", "nodeLost"), delay_ms=delay_ms)
    cluster.run(spec(role("worker", 2), failure=(rule,)))
    ended_ms = cluster.now_ms

    cluster.exit("worker-0", code=1)
    cluster.gone("worker-1", evidence="nodeLost")
    cluster.wait(1_000_000)

    for name in ("worker-0", "worker-1"):
        waited_ms = cluster.newest(name).requested_ms - ended_ms
        assert delay_ms * 3 // 4 <= waited_ms <= delay_ms * 5 // 4


def test_C22_a_rule_for_all_failures_of_a_role_also_meets_a_lost_node() -> None:
    """The way to end a job when a parameter server dies."""
    cluster = Cluster()
    cluster.run(ruled(FailureRule("fail", roles=("ps",))))

    cluster.gone("ps-0", evidence="nodeLost")
    cluster.stop_all()

    assert cluster.phase == "Failed"
    assert cluster.job.verdict is not None
    assert "ps-0 was lost with its node" in cluster.job.verdict.message


def test_ends_of_a_generation_that_is_over_meet_no_rule() -> None:
    cluster = Cluster()
    cluster.run(spec(role("worker", 2, unit="role"), failure=(FailureRule(exit_codes=(1,)),)))

    cluster.say(
        ev.TrainerExited(cluster.id("worker-0"), ended(1)),
        ev.TrainerExited(cluster.id("worker-1"), ended(1)),
    )

    outcomes = [cluster.newest(f"worker-{index}").outcome for index in range(2)]
    assert [one.rule for one in outcomes if one is not None] == [1, 0]
    assert len(cluster.role().charges) == 1


def test_C12_a_kill_at_the_limit_is_want_of_memory_only_where_nobody_counts() -> None:
    for kills, peak, cause in (
        (-1, GIB, Cause.OUT_OF_MEMORY),
        (-1, GIB // 2, Cause.CRASHED),
        (0, GIB, Cause.CRASHED),
        (1, GIB // 2, Cause.OUT_OF_MEMORY),
    ):
        cluster = Cluster()
        cluster.run(spec(role(resources=Resources(memory_bytes=GIB))))
        record = replace(ended(None, 9, oom_kills=kills), peak_rss_bytes=peak)
        cluster.say(ev.TrainerExited(cluster.id("worker-0"), record))

        outcome = cluster.newest("worker-0").outcome
        assert outcome is not None
        assert outcome.cause is cause, (kills, peak)
        assert outcome.oom_kills >= 0


# Budgets beyond those of a role.


def test_M051_a_bound_for_one_replica_trips_though_the_role_has_tries_left() -> None:
    for limit, attempts in ((0, 1), (1, 2), (3, 4)):
        cluster = Cluster()
        own = replace(budgets(application=100), replica=limit)
        cluster.submit(spec(role("worker", 4, budgets=own)))

        while not cluster.job.is_final:
            cluster.bring_up()
            cluster.exit("worker-2", code=1)
            cluster.stop_all()
            cluster.wait(400_000)

        assert cluster.replica("worker-2").last_number == attempts
        assert cluster.job.verdict is not None
        assert f"one replica may end so {limit} times" in cluster.job.verdict.message
        cluster.check_replay()


def test_M051_ends_of_several_replicas_do_not_add_up_to_the_bound_of_one() -> None:
    cluster = Cluster()
    own = replace(budgets(application=100), replica=1)
    cluster.run(spec(role("worker", 4, budgets=own)))

    for index in range(4):
        cluster.exit(f"worker-{index}", code=1)
    cluster.wait(400_000)
    cluster.bring_up()

    assert cluster.phase == "Running"


def test_M057_the_whole_job_begins_anew_when_a_budget_is_used_up() -> None:
    cluster = Cluster()
    roles = (role("worker", 2, budgets=budgets(application=1)), role("ps", 1, success="never"))
    cluster.submit(spec(*roles, reruns=2))
    ends = 0

    while not cluster.job.is_final:
        cluster.bring_up()
        assert cluster.phase == "Running"
        cluster.exit("worker-0", code=1)
        ends += 1
        cluster.stop_all()
        cluster.wait(400_000)

    assert ends == 6
    assert cluster.job.reruns == 2
    assert cluster.newest("ps-0").number == 3
    assert cluster.job.verdict is not None
    assert cluster.job.verdict.reason == "RetriesExhausted"
    assert "rerun 2 of 2" in cluster.told("JobRestarted")
    said = [one.message for one in why_restarted(cluster.job)]
    assert "1 of 1 of the application budget; attempt 2 began" in said[0]
    assert "which used up the application budget of 1; all roles begin anew" in said[1]
    cluster.check_replay()


def test_M057_what_had_failed_or_completed_runs_again_with_the_job() -> None:
    cluster = Cluster()
    one_may = role("worker", 3, success="percent", percent=66, budgets=budgets(application=0))
    cluster.run(spec(one_may, reruns=1))
    cluster.exit("worker-0")
    cluster.exit("worker-1", code=1)
    assert cluster.phases() == ["Completed", "Failed", "Active"]

    cluster.exit("worker-2", code=1)
    cluster.wait(400_000)
    cluster.bring_up()

    assert cluster.phase == "Running"
    assert cluster.phases() == ["Active"] * 3
    assert cluster.role().charges == ()
    cluster.exit("worker-0", "worker-1", "worker-2")
    assert cluster.phase == "Succeeded"
    cluster.check_replay()


def test_a_rule_that_fails_the_job_leaves_no_rerun() -> None:
    cluster = Cluster()
    cluster.run(spec(role(), reruns=5, failure=(FailureRule("fail", exit_codes=(3,)),)))

    cluster.exit("worker-0", code=3)

    assert cluster.phase == "Failed"
    assert cluster.job.reruns == 0
