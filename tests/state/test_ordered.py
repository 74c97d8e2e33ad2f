"""Who waits for whom: ordered roles, steps, and `dependsOn` under every policy (C29, C35)."""

import pytest

from primusd.job import events as ev
from primusd.job.phases import AttemptPhase
from primusd.job.scheduling import start_end_ms
from primusd.job.spec import JobSpec, Ready
from tests.state.job_driver import Cluster, role, spec

STARTED = (AttemptPhase.STARTING, AttemptPhase.RUNNING)
PROBE = Ready("port", "main")


def pair(gate: str, **fields: object) -> JobSpec:
    """Return ps, then two workers, in the order of the file."""
    return spec(
        role("ps", 1, success="never" if gate != "completed" else "all", ready=PROBE),
        role("worker", 2),
        policy="ordered",
        gate=gate,
        **fields,  # type: ignore[arg-type] # of JobSpec
    )


def submitted(of: JobSpec) -> Cluster:
    """Return a cluster whose job has all of its executors, and nothing that waits for them."""
    cluster = Cluster()
    cluster.submit(of)
    cluster.launch()
    cluster.register()
    cluster.hold()
    return cluster


def ready(cluster: Cluster, *names: str) -> None:
    for name in names:
        cluster.say(ev.TrainerReady(cluster.id(name)))


def test_places_come_first_and_processes_second() -> None:
    cluster = Cluster()

    cluster.submit(pair("ready"))

    assert cluster.names(AttemptPhase.REQUESTED) == ["ps-0", "worker-0", "worker-1"]


@pytest.mark.parametrize("gate", ["started", "ready", "completed"])
def test_M034_the_next_role_starts_when_the_one_before_has_come_so_far(gate: str) -> None:
    cluster = submitted(pair(gate))
    assert cluster.names(*STARTED) == ["ps-0"]

    cluster.start()
    assert cluster.names(*STARTED) == (
        ["ps-0", "worker-0", "worker-1"] if gate == "started" else ["ps-0"]
    )
    ready(cluster, "ps-0")
    assert len(cluster.names(*STARTED)) == (1 if gate == "completed" else 3)
    if gate == "completed":
        assert cluster.phase == "Starting"
        cluster.exit("ps-0")

    assert cluster.names(*STARTED)[-2:] == ["worker-0", "worker-1"]
    assert cluster.phase == "Running"
    words = {"started": "has started", "ready": "is ready", "completed": "has completed"}
    assert cluster.told("GateOpened").endswith(f": ps {words[gate]}")
    cluster.check_replay()


def test_roles_without_an_order_of_their_own_follow_the_file_and_the_others_follow_them() -> None:
    cluster = submitted(
        spec(
            role("first"),
            role("beside", depends_on={"last": "started"}),
            role("last"),
            policy="ordered",
            gate="started",
        )
    )

    assert cluster.names(*STARTED) == ["first-0"]
    cluster.start()
    assert cluster.names(*STARTED) == ["first-0", "last-0"]
    cluster.start()
    assert cluster.names(*STARTED) == ["first-0", "beside-0", "last-0"]


def test_one_by_one_each_waits_until_the_one_before_is_ready() -> None:
    cluster = submitted(spec(role("worker", 3, ready=PROBE), policy="ordered", step=1))
    for index in range(3):
        assert cluster.names(*STARTED) == [f"worker-{one}" for one in range(index + 1)]
        cluster.start()
        assert len(cluster.names(*STARTED)) == index + 1
        ready(cluster, f"worker-{index}")

    assert cluster.phase == "Running"
    assert cluster.told("GateOpened") == (
        "worker-2 may start, generation 1: those of worker before are ready"
    )


def test_a_step_of_two_lets_two_go_at_a_time() -> None:
    cluster = submitted(spec(role("worker", 5, ready=PROBE), policy="ordered", step=2))
    cluster.start()
    assert cluster.names(*STARTED) == ["worker-0", "worker-1"]

    ready(cluster, "worker-1")

    assert cluster.names(*STARTED) == ["worker-0", "worker-1", "worker-2"]


def test_a_step_waits_for_the_one_that_failed_before_the_next_goes() -> None:
    cluster = submitted(spec(role("worker", 2), policy="ordered", step=1))
    cluster.exit("worker-0", code=1)
    assert cluster.names(*STARTED) == []

    cluster.wait(15_000)
    cluster.bring_up("worker-0")

    assert cluster.names(*STARTED) == ["worker-0", "worker-1"]


def test_one_after_the_other_to_its_end() -> None:
    cluster = submitted(spec(role("worker", 3), policy="ordered", gate="completed", step=1))
    cluster.start()
    cluster.wait(24 * 3_600_000)
    assert cluster.names(*STARTED) == ["worker-0"]

    cluster.exit("worker-0")

    assert cluster.names(*STARTED) == ["worker-1"]
    cluster.start()
    cluster.exit("worker-1")
    assert cluster.phase == "Running"
    cluster.start()
    cluster.exit("worker-2")
    assert cluster.phase == "Succeeded"


def test_the_start_clock_stands_still_while_a_role_only_waits_for_a_completion() -> None:
    cluster = submitted(pair("completed"))
    cluster.start()
    cluster.wait(90 * 60_000)
    assert cluster.phase == "Starting"
    assert "StartTimedOut" not in cluster.reasons()

    cluster.exit("ps-0", code=1)
    cluster.wait(60_000)

    assert cluster.phase == "Starting", "the clock begins anew, it does not go on"
    assert start_end_ms(cluster.job) >= cluster.now_ms + 800_000
    cluster.launch("ps-0")
    cluster.wait(25 * 60_000)
    assert "ps-0 is not there" in cluster.told("StartTimedOut")
    cluster.check_replay()


def test_the_clock_runs_while_executors_of_the_next_role_are_not_there() -> None:
    cluster = Cluster()
    cluster.submit(pair("completed"))
    cluster.bring_up("ps-0")

    cluster.wait(15 * 60_000)

    assert (cluster.phase, cluster.job.then) == ("Stopping", "Queued")


def test_a_role_that_is_never_ready_ends_the_start_and_is_named() -> None:
    cluster = submitted(pair("ready"))
    cluster.start()

    cluster.wait(900_000)

    assert (cluster.phase, cluster.job.then) == ("Stopping", "Queued")
    assert "worker waits for ps to be ready" in cluster.told("StartTimedOut")


def test_each_role_has_the_whole_time_for_its_own_start() -> None:
    cluster = submitted(
        spec(
            role("a", ready=PROBE), role("b", ready=PROBE), role("c", ready=PROBE), policy="ordered"
        )
    )
    for name in ("a-0", "b-0"):
        cluster.start()
        cluster.wait(800_000)
        ready(cluster, name)

    assert cluster.phase == "Running"


def test_C29_a_gang_with_an_order_holds_all_places_and_starts_one_role_after_the_other() -> None:
    cluster = Cluster()
    cluster.submit(spec(role("ps", 2, ready=PROBE), role("worker", depends_on={"ps": "ready"})))
    cluster.launch()
    cluster.register()
    cluster.hold("ps-0", "ps-1")
    assert cluster.names(*STARTED) == [], "the gang is not there"

    cluster.hold("worker-0")

    assert cluster.names(*STARTED) == ["ps-0", "ps-1"]
    document = cluster.job.peers.inline
    assert b'"worker"' in document, "who starts later has its address already"
    cluster.start()
    ready(cluster, "ps-0", "ps-1")
    assert cluster.names(*STARTED) == ["ps-0", "ps-1", "worker-0"]
    assert cluster.phase == "Running"
    cluster.check_replay()


def test_a_gang_waits_for_a_role_that_is_not_of_it_to_complete() -> None:
    cluster = submitted(
        spec(
            role("prepare"),
            role("worker", 2, depends_on={"prepare": "completed"}),
            gang_roles=("worker",),
        )
    )
    cluster.start()
    cluster.wait(5 * 3_600_000)
    assert (cluster.phase, cluster.names(*STARTED)) == ("Starting", ["prepare-0"])

    cluster.exit("prepare-0")

    assert cluster.names(*STARTED) == ["worker-0", "worker-1"]
    assert cluster.phase == "Running"


def test_C35_a_launcher_role_starts_when_the_workers_answer_and_finds_them_all() -> None:
    cluster = submitted(
        spec(
            role("launcher", depends_on={"worker": "ready"}),
            role("worker", 2, success="never", ready=PROBE),
            policy="dynamic",
        )
    )
    cluster.start()
    ready(cluster, "worker-0")
    assert cluster.names(*STARTED) == ["worker-0", "worker-1"]

    ready(cluster, "worker-1")

    assert cluster.names(*STARTED) == ["launcher-0", "worker-0", "worker-1"]
    assert cluster.job.peers.inline.count(b'"host":') == 3


def test_a_role_that_restarts_whole_waits_for_nothing_that_has_come_already() -> None:
    cluster = submitted(
        spec(role("ps", success="never"), role("worker", 2, unit="role"), policy="ordered")
    )
    cluster.start()
    cluster.start()
    assert cluster.phase == "Running"

    cluster.exit("worker-0", code=1)
    cluster.stop_all()
    cluster.wait(20_000)
    cluster.bring_up()

    assert cluster.phase == "Running"
    assert cluster.newest("worker-1").generation == 2
    assert cluster.newest("ps-0").number == 1
    cluster.check_replay()
