"""Each starts as it comes: the policy `dynamic`, and minima that a file gives (M032, M033)."""

from primusd.job.phases import AttemptPhase
from primusd.job.spec import Ready
from tests.state.job_driver import Cluster, role, spec

STARTED = (AttemptPhase.STARTING, AttemptPhase.RUNNING)


def test_M032_each_replica_starts_as_soon_as_it_is_there() -> None:
    cluster = Cluster()
    cluster.submit(spec(role("worker", 3), role("viewer", success="never"), policy="dynamic"))
    cluster.launch()
    cluster.register()

    cluster.hold("worker-1")
    assert cluster.names(*STARTED) == ["worker-1"]
    assert cluster.told("GateOpened").endswith(": 1 of 3 worker is there")
    cluster.hold("viewer-0", "worker-0")

    assert cluster.names(*STARTED) == ["worker-0", "worker-1", "viewer-0"]
    assert cluster.phase == "Starting"
    cluster.hold("worker-2")
    cluster.start()
    assert cluster.phase == "Running"
    assert "FellBelowMinimum" not in cluster.reasons()
    cluster.check_replay()


def test_M033_none_starts_before_the_minimum_is_there_and_late_ones_start_at_once() -> None:
    cluster = Cluster()
    cluster.submit(spec(role("worker", 4, minimum=2), policy="dynamic"))
    cluster.launch()
    cluster.register()
    cluster.hold("worker-3")
    assert cluster.names(*STARTED) == []

    cluster.hold("worker-0")

    assert cluster.names(*STARTED) == ["worker-0", "worker-3"]
    cluster.start()
    assert cluster.phase == "Running"
    cluster.hold("worker-2")
    assert cluster.names(*STARTED) == ["worker-0", "worker-2", "worker-3"]


def test_a_minimum_of_all_holds_the_role_together() -> None:
    cluster = Cluster()
    cluster.submit(spec(role("worker", 3, has_minimum=True), role("other", 1), policy="dynamic"))
    cluster.launch()
    cluster.register()
    cluster.hold("worker-0", "worker-1", "other-0")

    assert cluster.names(*STARTED) == ["other-0"]
    cluster.hold("worker-2")

    assert len(cluster.names(*STARTED)) == 4


def test_who_holds_longer_than_the_ready_time_for_the_others_is_not_stopped() -> None:
    cluster = Cluster()
    cluster.submit(spec(role("worker", 3, minimum=2), policy="dynamic"))
    cluster.launch()
    cluster.register("worker-0")
    cluster.hold("worker-0")

    cluster.wait(400_000)

    assert cluster.newest("worker-0").phase == "Registered"
    cluster.wait(500_000)
    assert (cluster.phase, cluster.job.then) == ("Stopping", "Queued"), "the start clock does it"


def test_roles_that_wait_for_each_other_do_so_under_dynamic_too() -> None:
    cluster = Cluster()
    cluster.submit(
        spec(
            role("worker", 2),
            role("evaluator", success="never", depends_on={"worker": "started"}),
            policy="dynamic",
        )
    )
    cluster.launch()
    cluster.register()
    cluster.hold("evaluator-0", "worker-0")
    cluster.start()
    assert cluster.names(*STARTED) == ["worker-0"]

    cluster.hold("worker-1")
    cluster.start()

    assert cluster.names(*STARTED) == ["worker-0", "worker-1", "evaluator-0"]
    cluster.start()
    assert cluster.phase == "Running"


def test_a_helper_that_waits_for_a_running_role_to_be_ready_has_no_deadline_of_its_own() -> None:
    cluster = Cluster()
    cluster.submit(
        spec(
            role("worker", 1, ready=Ready("sdk")),
            role("viewer", success="never", depends_on={"worker": "ready"}),
            gang_roles=("worker",),
        )
    )
    cluster.launch()
    cluster.register()
    cluster.hold()
    cluster.start()
    assert cluster.phase == "Running"

    cluster.wait(3_600_000)

    assert cluster.newest("viewer-0").phase == "Registered"
    cluster.exit("worker-0")
    cluster.stop_all()
    assert cluster.phase == "Succeeded"
