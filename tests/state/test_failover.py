"""Restarts: who, when, and at whose cost.

C10, C13, C16, C17, C22, C47, C65; M052 (budgets of a role), M054 (back-off and its reset), M055
(what restarts together), M061 (what survives a restart of the daemon).
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from primusd.job import events as ev
from primusd.job.budgets import jittered, retry_delay_ms
from primusd.job.ids import AttemptId
from primusd.job.job import deadline_ms
from primusd.job.phases import AttemptPhase, Budget, Cause
from primusd.job.spec import Restart
from primusd.views.queue import queue_of
from primusd.views.waiting import why
from tests.state.job_driver import UID, Cluster, budgets, ended, role, span, spec


def crash_until_final(cluster: Cluster, name: str, **end: Any) -> int:  # of an exit record
    """Let a replica crash each time it runs; return the number of its attempts."""
    while not cluster.job.is_final:
        cluster.bring_up()
        assert cluster.phase == "Running", cluster.phase
        cluster.exit(name, **end)
        cluster.stop_all()
        if not cluster.job.is_final:
            cluster.wait(400_000)
    return cluster.replica(name).last_number


def test_C10_out_of_memory_stops_at_the_budget_and_the_verdict_names_both() -> None:
    cluster = Cluster()
    cluster.submit(spec(role("worker", 2)))

    attempts = crash_until_final(cluster, "worker-0", code=137, oom_kills=1)

    assert attempts == 4
    verdict = cluster.job.verdict
    assert verdict is not None
    assert (verdict.as_phase, verdict.reason) == ("Failed", "RetriesExhausted")
    assert "OutOfMemory" in verdict.message
    assert "application budget of 3" in verdict.message
    cluster.check_replay()


def test_without_a_budget_the_verdict_is_the_cause_itself() -> None:
    cluster = Cluster()
    cluster.run(spec(role(budgets=budgets(application=0))))

    cluster.exit("worker-0", code=3)

    assert cluster.job.verdict is not None
    assert cluster.job.verdict.reason == "Crashed"
    assert "code 3" in cluster.job.verdict.message


def test_C13_one_failure_a_generation_is_charged_and_the_rest_are_collateral() -> None:
    cluster = Cluster()
    cluster.run(spec(role("worker", 8, unit="role")))

    cluster.exit("worker-3", code=1, lines="ValueError: label out of range")
    cluster.stop_all()

    assert cluster.job.generation == 2
    charges = cluster.role().charges
    assert [(one.budget, one.attempt) for one in charges] == [(Budget.APPLICATION, "worker-3/1")]
    assert cluster.job.first_cause is not None
    assert cluster.job.first_cause.attempt == "worker-3/1"
    assert cluster.job.first_cause.last_line == "ValueError: label out of range"
    others = {
        outcome.stop_reason
        for index in (0, 1, 2, 4, 5, 6, 7)
        if (outcome := cluster.newest(f"worker-{index}").outcome) is not None
    }
    assert others == {"restarting"}
    cluster.wait(20_000)
    cluster.bring_up()
    assert cluster.phase == "Running"
    assert {cluster.newest(f"worker-{index}").generation for index in range(8)} == {2}
    assert {cluster.newest(f"worker-{index}").number for index in range(8)} == {2}
    cluster.check_replay()


def test_a_crash_that_comes_before_the_stop_reaches_it_is_collateral_too() -> None:
    cluster = Cluster()
    cluster.run(spec(role("worker", 2, unit="role")))

    cluster.say(
        ev.TrainerExited(cluster.id("worker-0"), ended(1)),
        ev.TrainerExited(cluster.id("worker-1"), ended(1)),
    )

    assert len(cluster.role().charges) == 1


def test_a_role_that_restarts_whole_takes_new_ports_and_leaves_the_others_alone() -> None:
    cluster = Cluster()
    cluster.run(spec(role("worker", 2, unit="role"), role("ps", 1, success="never")))
    old = cluster.newest("worker-0").ports
    ps = cluster.newest("ps-0")

    cluster.exit("worker-0", code=1)
    cluster.stop_all()
    cluster.wait(20_000)
    cluster.bring_up()

    assert cluster.phase == "Running"
    assert cluster.newest("worker-0").ports != old
    assert cluster.newest("ps-0") == ps
    assert cluster.world.admission.demands[UID].held["ps", 0].first_port == dict(ps.ports)["main"]
    assert cluster.job.peers.generation == 2


def test_replicas_that_had_completed_run_again_with_their_role() -> None:
    cluster = Cluster()
    cluster.run(spec(role("worker", 2, unit="role")))
    cluster.exit("worker-0")
    assert cluster.phases() == ["Completed", "Active"]

    cluster.exit("worker-1", code=1)
    cluster.wait(20_000)
    cluster.bring_up()

    assert cluster.phase == "Running"
    assert cluster.newest("worker-0").number == 2
    cluster.exit("worker-0", "worker-1")
    assert cluster.phase == "Succeeded"


def test_after_a_first_completion_a_synchronous_role_restarts_whole() -> None:
    cluster = Cluster()
    cluster.run(spec(role("worker", 2, unit="replica"), framework="torch"))

    cluster.exit("worker-1", code=1)
    cluster.wait(20_000)
    cluster.bring_up()
    assert cluster.job.generation == 1, "nobody had completed: a lone restart"
    cluster.exit("worker-0")
    cluster.exit("worker-1", code=1)
    cluster.wait(40_000)
    cluster.bring_up()

    assert cluster.job.generation == 2
    assert cluster.newest("worker-0").number == 2


def test_unit_job_restarts_every_role() -> None:
    cluster = Cluster()
    cluster.run(spec(role("worker", 2, unit="job"), role("ps", 1, success="never")))

    cluster.exit("worker-0", code=1)
    cluster.stop_all()
    cluster.wait(20_000)
    cluster.bring_up()

    assert cluster.phase == "Running"
    assert (cluster.newest("ps-0").number, cluster.newest("ps-0").generation) == (2, 2)
    assert "JobRestarted" in cluster.reasons()
    cluster.check_replay()


def test_none_of_a_role_begins_before_its_delay_and_the_start_clock_counts_from_there() -> None:
    restart = Restart("role", 300_000, 300_000)
    worker = role("worker", 2)
    cluster = Cluster()
    cluster.run(spec(type(worker)("worker", 2, 2, "train", restart=restart)))

    cluster.exit("worker-0", code=1)
    cluster.stop_all()
    not_before_ms = cluster.role().not_before_ms
    cluster.wait(not_before_ms - cluster.now_ms - 1)

    assert cluster.names(AttemptPhase.REQUESTED) == []
    assert cluster.job.start_clock_ms == not_before_ms
    cluster.wait(1)
    assert cluster.newest("worker-1").number == 2
    cluster.wait(290_000)
    assert cluster.phase == "Starting"


def test_C16_delays_double_and_one_loss_uses_exactly_one_retry() -> None:
    cluster = Cluster()
    cluster.run()

    cluster.say(ev.ExecutorFellSilent(cluster.id("worker-0")))
    cluster.say(ev.ExecutorExpired(cluster.id("worker-0")))
    cluster.gone("worker-0")

    assert [one.budget for one in cluster.role().charges] == [Budget.INFRASTRUCTURE]
    assert cluster.newest("worker-0").number == 2
    assert not cluster.newest("worker-0").is_silent, "liveness belongs to an attempt"
    delays = []
    for _ in range(3):
        cluster.bring_up()
        ended_ms = cluster.now_ms
        cluster.exit("worker-0", code=1)
        if cluster.job.is_final:
            break
        delays.append(cluster.replica("worker-0").not_before_ms - ended_ms)
        cluster.wait(400_000)
    assert all(later >= 1.2 * earlier for earlier, later in pairwise(delays)), delays
    assert 7_500 <= delays[0] <= 25_000


def test_C17_silence_alone_ends_nothing_and_what_comes_back_goes_on() -> None:
    cluster = Cluster()
    cluster.run()

    cluster.say(ev.ExecutorFellSilent(cluster.id("worker-0")))
    assert cluster.newest("worker-0").is_silent
    cluster.wait(20_000)
    cluster.say(ev.ExecutorReturned(cluster.id("worker-0")))

    assert cluster.phase == "Running"
    assert cluster.newest("worker-0").number == 1
    assert not cluster.role().charges
    assert cluster.reasons()[-2:] == ["ExecutorFellSilent", "ExecutorReturned"]


def test_C22_five_preemptions_leave_the_application_budget_alone() -> None:
    cluster = Cluster()
    cluster.run(spec(role(budgets=None), budgets=budgets(application=1)))

    for _ in range(5):
        cluster.gone("worker-0", evidence="preempted")
        cluster.wait(400_000)
        cluster.bring_up()

    assert cluster.phase == "Running"
    used = [one.budget for one in cluster.role().charges]
    assert used == [Budget.INFRASTRUCTURE] * 5
    outcome = cluster.replica("worker-0").attempts[-2].outcome
    assert outcome is not None
    assert (outcome.cause, outcome.charged) == (Cause.PREEMPTED, 5)
    assert cluster.told("AttemptEnded").endswith("(infrastructure 5 of 20); again in 2 min")


def test_C22_a_host_that_dies_is_one_failure_however_many_it_takes_along() -> None:
    cluster = Cluster()
    cluster.run(spec(role(replicas=30, budgets=None)))

    for index in range(30):
        cluster.gone(f"worker-{index}")

    assert len(cluster.role().charges) == 1
    assert cluster.job.verdict is None
    assert cluster.phases() == ["Active"] * 30
    cluster.check_replay()


@pytest.mark.parametrize(
    "end",
    [
        {"evidence": "preempted"},
        {"evidence": "nodeLost"},
        {"exit": ended(None, error="disk:no space left")},
        {"exit": ended(None, error="files:cannot be fetched")},
    ],
)
def test_C22_what_a_host_does_to_its_replicas_is_charged_once(end: dict[str, Any]) -> None:
    cluster = Cluster()
    cluster.run(spec(role(replicas=8, budgets=None)))

    for index in range(8):
        cluster.gone(f"worker-{index}", **end)

    assert len(cluster.role().charges) == 1
    cluster.check_replay()


def test_one_replica_that_is_lost_again_and_again_is_charged_each_time() -> None:
    cluster = Cluster()
    cluster.run(spec(role(replicas=2, budgets=None), budgets=budgets(infrastructure=2)))

    for _ in range(3):
        cluster.gone("worker-0")
        cluster.wait(30_000)
        cluster.bring_up()

    assert len(cluster.role().charges) == 3
    assert cluster.job.verdict is not None
    assert cluster.job.verdict.reason == "RetriesExhausted"


def test_a_preemption_that_was_announced_is_answered_with_the_time_left_as_grace() -> None:
    cluster = Cluster()
    cluster.run()

    cluster.say(ev.PreemptionNoticed(cluster.id("worker-0"), 5_000))

    stop = cluster.newest("worker-0").stop
    assert stop is not None
    assert (stop.reason, stop.grace_ms) == ("preempted", 5_000)
    cluster.stop_all()
    assert [one.budget for one in cluster.role().charges] == [Budget.INFRASTRUCTURE]


def test_C47_the_budget_goes_on_over_a_restart_of_the_daemon() -> None:
    cluster = Cluster()
    cluster.submit()
    for _ in range(3):
        cluster.bring_up()
        cluster.exit("worker-0", code=1)
        cluster.wait(400_000)
        cluster.world = cluster.replayed()
    cluster.bring_up()

    cluster.exit("worker-0", code=1)

    assert cluster.phase == "Failed"
    assert cluster.replica("worker-0").last_number == 4


def test_charges_are_forgotten_after_the_window() -> None:
    cluster = Cluster()
    cluster.submit()
    for _ in range(6):
        cluster.bring_up()
        cluster.exit("worker-0", code=1)
        cluster.wait(43_200_000)

    assert not cluster.job.is_final
    assert len(cluster.role().charges) <= 3


def test_ten_minutes_of_health_make_the_next_failure_the_first_one_again() -> None:
    cluster = Cluster()
    cluster.submit(spec(role(budgets=budgets(application=9))))
    for _ in range(4):
        cluster.bring_up()
        cluster.exit("worker-0", code=1)
        cluster.wait(300_000)
    assert cluster.replica("worker-0").failures == 4

    cluster.bring_up()
    cluster.wait(600_000)
    cluster.exit("worker-0", code=1)

    assert cluster.replica("worker-0").failures == 1


def test_jitter_is_a_quarter_and_the_same_each_time() -> None:
    found = {jittered(10_000, f"j1/worker-{index}/1") for index in range(500)}

    assert min(found) >= 7_500
    assert max(found) <= 12_500
    assert len(found) > 200
    assert jittered(10_000, "a") == jittered(10_000, "a")


def test_delays_double_to_their_bound_and_the_first_infrastructure_restart_is_at_once() -> None:
    restart = Restart(delay_ms=10_000, delay_max_ms=300_000)

    assert retry_delay_ms(restart, Budget.INFRASTRUCTURE, 1, "x") == 0
    assert retry_delay_ms(restart, Budget.INFRASTRUCTURE, 2, "x") > 0
    assert retry_delay_ms(restart, Budget.APPLICATION, 1, "x") > 0
    assert retry_delay_ms(restart, Budget.APPLICATION, 40, "x") <= 375_000


def test_C65_a_stolen_port_is_a_new_generation_and_not_the_applications_fault() -> None:
    cluster = Cluster()
    cluster.submit(spec(role("worker", 2)))
    cluster.launch()
    cluster.register()
    stolen = dict(cluster.newest("worker-0").ports)["main"]

    cluster.exit("worker-0", code=None, error="portTaken:main")

    assert cluster.job.generation == 2
    assert [one.budget for one in cluster.role().charges] == [Budget.INFRASTRUCTURE]
    assert cluster.newest("worker-0").number == 2
    assert dict(cluster.newest("worker-0").ports)["main"] != stolen
    assert cluster.job.ports_taken == ()
    cluster.bring_up()
    assert cluster.phase == "Running"
    assert cluster.newest("worker-1").number == 1, "the others were not disturbed"
    assert stolen in cluster.world.admission.nodes["n1"].resting_ports
    cluster.check_replay()


def test_C65_a_stranger_on_a_row_of_ports_is_one_failure() -> None:
    cluster = Cluster()
    cluster.submit(spec(role(replicas=25, budgets=None)))
    cluster.launch()
    cluster.register()

    for index in range(25):
        cluster.exit(f"worker-{index}/1", code=None, error="portTaken:main")

    assert [one.attempt for one in cluster.role().charges] == ["worker-0/1"]
    assert cluster.job.verdict is None
    cluster.check_replay()


def test_C65_in_a_role_that_restarts_whole_all_of_it_gets_other_ports() -> None:
    cluster = Cluster()
    cluster.submit(spec(role("worker", 2, unit="role")))
    cluster.launch()
    cluster.register()
    before = {dict(cluster.newest(f"worker-{index}").ports)["main"] for index in range(2)}

    cluster.exit("worker-0", code=None, error="portTaken:main")
    cluster.stop_all()
    cluster.bring_up()

    after = {dict(cluster.newest(f"worker-{index}").ports)["main"] for index in range(2)}
    assert not before & after
    assert (cluster.phase, cluster.job.generation) == ("Running", 2)


@pytest.mark.parametrize(("code", "attempts"), [(0, 1), (1, 2)])
def test_lost_is_provisional_until_the_replica_moves(code: int, attempts: int) -> None:
    cluster = Cluster()
    cluster.run(spec(role("worker", 2)))
    cluster.say(ev.ExecutorExpired(cluster.id("worker-0")))
    assert [one.budget for one in cluster.role().charges] == [Budget.INFRASTRUCTURE]

    cluster.wait(30_000)
    cluster.gone("worker-0", exit=ended(code))

    assert cluster.replica("worker-0").last_number == attempts
    outcome = cluster.replica("worker-0").attempts[0].outcome
    assert outcome is not None
    assert outcome.cause == ("Completed" if code == 0 else "Crashed")
    charged = [one.budget for one in cluster.role().charges]
    assert charged == ([] if code == 0 else [Budget.APPLICATION])
    cluster.check_replay()


def test_F13_who_was_stopped_because_it_had_been_given_up_stays_lost() -> None:
    cluster = Cluster()
    cluster.run(spec(role("worker", 2)))
    cluster.say(ev.ExecutorExpired(cluster.id("worker-0")))

    cluster.wait(10_000)
    cluster.gone("worker-0", exit=ended(None, 9, stop_seen="superseded"))

    assert cluster.newest("worker-0").number == 2
    outcome = cluster.replica("worker-0").attempts[0].outcome
    assert outcome is not None
    assert outcome.cause is Cause.LOST
    assert outcome.evidence[0] == "its executor fell silent"
    assert [one.budget for one in cluster.role().charges] == [Budget.INFRASTRUCTURE]
    assert cluster.job.first_cause is not None
    assert cluster.job.first_cause.cause is Cause.LOST
    cluster.check_replay()


def test_a_lost_replica_is_replaced_only_after_replace_after() -> None:
    cluster = Cluster()
    cluster.run()
    lost = cluster.id("worker-0")
    cluster.say(ev.ExecutorExpired(lost))

    cluster.wait(60_000)
    cluster.say(ev.StopFailed(lost, was_delivered=False), by="launcher:local")
    waiting = why(
        cluster.job, cluster.world, queue_of(cluster.world.admission), at_ms=cluster.now_ms
    )
    assert waiting is not None
    assert waiting.message == (
        "1 replica waits (worker-0) until it is known that nothing of the attempt before runs on "
        "n1, for at most 4 min"
    )
    cluster.wait(239_999)
    assert cluster.phases() == ["Active"], "nobody knows whether it still runs"
    cluster.wait(1)

    assert cluster.newest("worker-0").number == 2
    cluster.bring_up()
    cluster.gone("worker-0", lost, exit=ended(0))
    old = cluster.replica("worker-0").attempts[0].outcome
    assert old is not None
    assert old.cause is Cause.LOST, "the replica has moved: too late to decide otherwise"
    cluster.check_replay()


def test_a_lost_attempt_that_is_replaced_early_leaves_its_slot_to_its_quarantine() -> None:
    cluster = Cluster()
    cluster.run(spec(replace_after_ms=10_000))
    lost = cluster.id("worker-0")
    port = dict(cluster.newest("worker-0").ports)["main"]
    cluster.say(ev.ExecutorExpired(lost))
    cluster.wait(60_000)
    assert cluster.phases() == ["Active"]
    cluster.say(ev.StopFailed(lost, was_delivered=False))

    cluster.wait(5_000)

    assert cluster.newest("worker-0").number == 2
    assert dict(cluster.newest("worker-0").ports)["main"] != port
    assert cluster.quarantined() == 1


def test_replace_after_never_waits_for_the_launcher() -> None:
    cluster = Cluster()
    cluster.run(spec(replace_after_ms=-1))
    lost = cluster.id("worker-0")
    cluster.say(ev.ExecutorExpired(lost))
    cluster.wait(60_000)
    cluster.say(ev.StopFailed(lost, was_delivered=False))

    cluster.wait(800_000)

    assert cluster.phases() == ["Active"]


def test_a_quarantined_attempt_whose_kill_was_taken_is_replaced_at_once_elsewhere() -> None:
    cluster = Cluster()
    cluster.run()
    stuck = cluster.id("worker-0")
    port = dict(cluster.newest("worker-0").ports)["main"]
    cluster.say(ev.TrainerExited(stuck, ended(1)))
    cluster.wait(60_000)

    cluster.say(ev.StopFailed(stuck, was_delivered=True), by="launcher:local")

    assert cluster.quarantined() == 1
    assert cluster.newest("worker-0").number == 2
    assert dict(cluster.newest("worker-0").ports)["main"] != port
    cluster.bring_up()
    cluster.gone("worker-0", stuck)
    assert cluster.quarantined() == 0
    assert cluster.told("QuarantineLifted")
    cluster.check_replay()


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (lambda one: ev.LaunchFailed(one, "no such image ctr:7"), "LaunchFailed"),
        (lambda one: ev.AttemptVanished(one, ended(127)), "StartFailed"),
    ],
)
def test_a_permanent_cause_fails_the_job_at_once(
    event: Callable[[AttemptId], ev.AttemptEvent], reason: str
) -> None:
    cluster = Cluster()
    cluster.submit(spec(role("worker", 2), role("ps", 1, success="never")))

    cluster.say(event(cluster.id("ps-0")))

    assert cluster.phase == "Stopping"
    verdict = cluster.job.verdict
    assert verdict is not None
    assert (verdict.as_phase, verdict.reason) == ("Failed", reason)


def test_a_launcher_that_is_only_busy_is_asked_again() -> None:
    cluster = Cluster()
    cluster.submit()

    cluster.say(ev.LaunchFailed(cluster.id("worker-0"), "too busy", is_permanent=False))
    cluster.gone("worker-0")

    assert cluster.newest("worker-0").number == 2


def test_four_ends_in_one_step_are_numbered_so_that_only_the_last_is_too_many() -> None:
    cluster = Cluster()
    cluster.run(spec(role("worker", 4, success="any")))
    ids = [cluster.id(f"worker-{index}") for index in range(4)]

    cluster.say(*(ev.TrainerExited(one, ended(1)) for one in ids))
    for index, one in enumerate(ids):
        cluster.gone(f"worker-{index}", one)

    assert cluster.phases() == ["Delayed", "Delayed", "Delayed", "Failed"]


def test_a_person_restarts_one_replica_and_nobody_is_charged() -> None:
    cluster = Cluster()
    cluster.run(spec(role("worker", 2)))

    cluster.say(ev.RestartRequested(span("worker", 1)), by="uid:1 (ann)")
    stop = cluster.newest("worker-1").stop
    assert stop is not None
    assert stop.reason == "restarting"
    cluster.stop_all()

    assert cluster.newest("worker-1").number == 2
    assert cluster.newest("worker-0").number == 1
    assert cluster.job.generation == 1
    assert not cluster.role().charges
    cluster.bring_up()
    assert cluster.phase == "Running"


def test_a_person_restarts_all_and_it_is_a_new_generation() -> None:
    cluster = Cluster()
    cluster.run(spec(role("worker", 2)))

    cluster.say(ev.RestartRequested(span("worker", 0, 1)), by="uid:1 (ann)")
    cluster.stop_all()
    cluster.bring_up()

    assert cluster.job.generation == 2
    assert (cluster.phase, cluster.newest("worker-0").number) == ("Running", 2)


def test_a_person_restarts_what_had_completed() -> None:
    cluster = Cluster()
    cluster.run(spec(role("worker", 2)))
    cluster.exit("worker-0")

    cluster.say(ev.RestartRequested(span("worker", 0)))
    cluster.bring_up()

    assert cluster.newest("worker-0").number == 2
    assert cluster.phase == "Running"


def test_a_node_hears_of_its_faults_and_not_of_the_applications() -> None:
    cluster = Cluster(nodes=4)
    cluster.run(spec(role("worker", 2)))
    node = cluster.newest("worker-0").node

    cluster.exit("worker-0", code=1)
    assert cluster.world.admission.nodes[node].faults == ()
    cluster.gone("worker-1")

    node = cluster.replica("worker-1").attempts[0].node
    assert [one.cause for one in cluster.world.admission.nodes[node].faults] == ["Lost"]


def test_only_ten_attempts_are_kept_and_numbers_grow_for_ever() -> None:
    cluster = Cluster()
    cluster.submit(spec(role(budgets=budgets(application=30))))

    for _ in range(14):
        cluster.bring_up()
        cluster.exit("worker-0", code=1)
        cluster.wait(400_000)

    assert [one.number for one in cluster.replica("worker-0").attempts] == list(range(6, 16))
    late = cluster.say(ev.AttemptVanished(cluster.id("worker-0/2")))
    assert late == "late, all is over"
    assert deadline_ms(cluster.job) > cluster.now_ms
