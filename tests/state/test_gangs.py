"""Gates and starts: all or nothing, with a deadline (C06, C11), and no first start in disorder."""

import pytest

from primusd.admission.events import DemandEvicted
from primusd.job import events as ev
from primusd.job.phases import AttemptPhase
from primusd.job.scheduling import start_end_ms
from primusd.job.spec import Resources
from tests.state.job_driver import UID, Cluster, budgets, role, spec


def test_M030_no_trainer_starts_before_all_of_the_gang_hold() -> None:
    cluster = Cluster()
    cluster.submit(spec(role("chief"), role("worker", 3)))
    cluster.launch()
    cluster.register()
    cluster.hold("chief-0", "worker-0", "worker-1")

    assert cluster.phase == "Starting"
    assert cluster.names(AttemptPhase.STARTING) == []
    cluster.hold("worker-2")

    assert cluster.phase == "Running"
    assert len(cluster.names(AttemptPhase.STARTING)) == 4
    assert cluster.reasons() == ["JobSubmitted", "JobAdmitted", "GateReached", "GateOpened"]


def test_14_without_a_fault_there_is_no_second_attempt_and_no_falling_back() -> None:
    cluster = Cluster()
    cluster.run(spec(role("worker", 3), role("ps", 1, success="never")))
    for index in range(3):
        cluster.exit(f"worker-{index}")
    cluster.stop_all()

    assert cluster.phase == "Succeeded"
    assert not {"FellBelowMinimum", "StartTimedOut"} & set(cluster.reasons())
    assert cluster.replica("ps-0").last_number == 1


def test_C06_a_worker_that_fails_before_the_gate_is_counted_and_the_code_is_shown() -> None:
    cluster = Cluster()
    cluster.submit(spec(role("worker", 2, budgets=budgets(application=0))))
    cluster.launch()
    cluster.register("worker-0")

    cluster.exit("worker-0", code=3)

    assert cluster.phase == "Stopping"
    assert cluster.job.verdict is not None
    assert "code 3" in cluster.job.verdict.message


def test_C06_C30_M031_a_gang_whose_last_member_never_comes_is_released() -> None:
    cluster = Cluster()
    cluster.submit(spec(role("worker", 3)))
    cluster.launch()
    cluster.register("worker-0", "worker-1")
    cluster.hold("worker-0", "worker-1")

    cluster.wait(299_999)
    assert cluster.phase == "Starting"
    cluster.wait(1)

    assert (cluster.phase, cluster.job.then) == ("Stopping", "Queued")
    cluster.stop_all()
    assert cluster.phase == "Queued"
    assert cluster.world.admission.demands == {}, "everything was released"
    assert [one.attempt for one in cluster.job.charges] == [""]
    assert not cluster.role().charges, "charged once, to the job"
    delay_ms = cluster.job.not_before_ms - cluster.now_ms
    assert 22_500 <= delay_ms <= 37_500
    cluster.wait(delay_ms)
    assert cluster.phase == "Starting"
    assert cluster.newest("worker-2").number == 2
    cluster.bring_up()
    assert cluster.phase == "Running"
    cluster.check_replay()


def test_C30_a_gang_that_is_never_placed_is_released_after_the_placement_time() -> None:
    cluster = Cluster()
    cluster.submit(spec(role("worker", 2)))
    cluster.say(ev.AttemptWaiting(cluster.id("worker-0"), "the queue is full"))

    cluster.wait(600_000)

    assert (cluster.phase, cluster.job.then) == ("Stopping", "Queued")
    assert "was not placed in time" in cluster.told("StartTimedOut")


def test_starts_that_never_come_about_use_up_the_budget_and_fail() -> None:
    cluster = Cluster()
    cluster.submit(spec(role("worker", 2), budgets=budgets(infrastructure=2)))
    waits = []
    while not cluster.job.is_final:
        cluster.launch()
        cluster.register("worker-0")
        cluster.wait(300_000)
        for name in cluster.names(AttemptPhase.STOPPING):
            cluster.gone(name)
        if cluster.job.not_before_ms:
            waits.append(cluster.job.not_before_ms - cluster.now_ms)
            cluster.wait(waits[-1])

    assert cluster.phase == "Failed"
    assert cluster.job.verdict is not None
    assert cluster.job.verdict.reason == "PlacementTimeout"
    assert cluster.job.start_timeouts == 3
    assert waits[0] < waits[1]


def test_an_executor_that_never_says_hello_is_replaced_alone() -> None:
    cluster = Cluster()
    cluster.run(spec(role("worker", 2)))
    cluster.exit("worker-1", code=1)
    cluster.wait(15_000)
    cluster.launch()

    cluster.wait(300_000)

    stop = cluster.newest("worker-1").stop
    assert stop is not None
    assert stop.reason == "noRegistration"
    cluster.gone("worker-1")
    assert [one.budget for one in cluster.role().charges] == ["application", "infrastructure"]
    assert cluster.newest("worker-0").number == 1


def test_a_trainer_that_does_not_start_in_a_minute_is_stopped() -> None:
    cluster = Cluster()
    cluster.submit()
    cluster.launch()
    cluster.register()
    cluster.hold()

    cluster.wait(60_000)

    stop = cluster.newest("worker-0").stop
    assert stop is not None
    assert stop.reason == "startTimeout"


def test_survivors_of_a_lone_restart_run_on_and_their_gate_stays_open() -> None:
    cluster = Cluster()
    cluster.run(spec(role("worker", 3)))

    cluster.exit("worker-0", code=1)

    assert cluster.phase == "Starting"
    assert cluster.told("FellBelowMinimum") == "worker has 2 of the 3 replicas it needs"
    assert cluster.role().gate_opened
    cluster.wait(15_000)
    cluster.launch()
    cluster.register()
    revision = cluster.job.peers.revision
    cluster.hold()
    assert (cluster.phase, cluster.job.generation) == ("Running", 1)
    assert cluster.job.peers.revision == revision + 1
    assert cluster.newest("worker-1").number == 1


def test_an_elastic_role_starts_with_its_minimum_once_nothing_was_placed_for_a_while() -> None:
    cluster = Cluster()
    cluster.submit(spec(role("worker", 4, minimum=2)))
    cluster.launch("worker-0", "worker-1", "worker-2")
    cluster.register("worker-0", "worker-1")
    cluster.hold("worker-0", "worker-1")

    cluster.wait(29_999)
    assert cluster.phase == "Starting"
    cluster.wait(1)

    assert cluster.phase == "Running"
    cluster.start()
    cluster.exit("worker-0", code=1)
    assert cluster.phase == "Running", "who is on the way is present too"
    cluster.bring_up("worker-2")
    assert cluster.newest("worker-2").phase == "Running", "a late one finds the gate open"


def test_a_gang_of_named_roles_does_not_wait_for_the_others() -> None:
    cluster = Cluster()
    cluster.submit(spec(role("worker", 2), role("viewer", 1), gang_roles=("worker",)))
    cluster.launch()
    cluster.register("worker-0", "worker-1")
    cluster.hold("worker-0", "worker-1")

    assert cluster.phase == "Running"
    cluster.start()
    cluster.bring_up("viewer-0")
    assert cluster.newest("viewer-0").phase == "Running"


def test_two_gangs_on_too_few_slots_run_one_after_the_other() -> None:
    cluster = Cluster(cpu=3)
    worker = role("worker", 3, resources=Resources(1_000))
    cluster.submit(spec(worker))
    cluster.submit(spec(worker, name="second"), uid="j2")

    assert cluster.demands() == {UID: "Granted", "j2": "Waiting"}
    cluster.bring_up()
    for index in range(3):
        cluster.exit(f"worker-{index}")

    assert cluster.phase == "Succeeded"
    assert cluster.world.jobs["j2"].phase == "Starting"


def test_C11_a_job_that_waits_for_nothing_but_its_gang_has_a_deadline() -> None:
    cluster = Cluster()
    cluster.submit()

    assert start_end_ms(cluster.job) == cluster.now_ms + 900_000


@pytest.mark.parametrize("policy", ["gang", "dynamic"])
def test_a_replica_that_completes_is_no_loss(policy: str) -> None:
    cluster = Cluster()
    cluster.run(spec(role("worker", 3), policy=policy))
    assert cluster.phase == "Running"

    cluster.exit("worker-0")

    assert cluster.phase == "Running"


def test_a_job_that_is_evicted_goes_back_to_the_queue_with_its_age_and_runs_again() -> None:
    cluster = Cluster()
    cluster.run(spec(role("worker", 2)))

    cluster.say(DemandEvicted(UID, "prod came"), machine="")
    assert {one.stop.reason for one in (cluster.newest("worker-0"),) if one.stop} == {"preempted"}
    cluster.stop_all()
    cluster.bring_up()

    assert cluster.phase == "Running"
    assert not cluster.role().charges
    assert cluster.newest("worker-0").number == 2
    cluster.check_replay()


def test_suspended_and_resumed_the_job_runs_again_and_its_deadline_stood_still() -> None:
    cluster = Cluster()
    cluster.run(spec(role("worker", 2), deadline_ms=1_000_000))

    cluster.say(ev.SuspendRequested("room"))
    cluster.stop_all()
    assert cluster.phase == "Suspended"
    assert cluster.world.admission.demands == {}
    cluster.wait(5_000_000)
    assert cluster.phase == "Suspended"
    cluster.say(ev.ResumeRequested())
    cluster.bring_up()

    assert cluster.phase == "Running"
    cluster.wait(900_000)
    assert cluster.phase == "Running"
    cluster.wait(200_000)
    assert cluster.job.verdict is not None
    assert cluster.job.verdict.reason == "DeadlineExceeded"
    cluster.check_replay()


def test_scaling_down_retires_the_highest_and_scaling_up_revives_them() -> None:
    cluster = Cluster()
    cluster.run(spec(role("worker", 4, minimum=1), role("ps", 1, success="never")))

    cluster.say(ev.RoleScaled("worker", 2))
    cluster.stop_all()
    assert cluster.phases() == ["Active", "Active", "Retired", "Retired"]
    assert cluster.phase == "Running"
    assert not cluster.role().charges, "C18: an exit after our own stop is no failure"
    cluster.say(ev.RoleScaled("worker", 5))
    assert cluster.phases() == ["Active"] * 5
    cluster.bring_up()

    assert cluster.newest("worker-3").number == 2
    assert cluster.newest("worker-4").number == 1
    for index in range(5):
        cluster.exit(f"worker-{index}")
    cluster.stop_all()
    assert cluster.phase == "Succeeded"
    cluster.check_replay()


def test_an_evicted_job_of_which_only_a_part_runs_comes_back_too() -> None:
    cluster = Cluster()
    cluster.run(spec(role("worker", 2)))
    cluster.exit("worker-0", code=1)
    assert cluster.phases() == ["Delayed", "Active"]

    cluster.say(DemandEvicted(UID, "prod came"), machine="")
    cluster.stop_all()
    cluster.wait(20_000)
    cluster.bring_up()

    assert cluster.phase == "Running"
    cluster.check_replay()
