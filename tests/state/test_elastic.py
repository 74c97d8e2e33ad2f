"""Elastic roles: from `min` to `max`, with as many as there is room for (C30, A31)."""

from typing import Any

from primusd.admission.events import NodeWentAway
from primusd.job import events as ev
from primusd.job.spec import JobSpec, Resources
from tests.state.job_driver import GIB, UID, Cluster, role, spec

THIRD = Resources(memory_bytes=20 * GIB)
"""Three of them fit on a node."""


def workers(
    count: int,
    minimum: int = 0,
    **fields: Any,  # of JobSpec
) -> JobSpec:
    """Return a job of workers of which three fit on a node."""
    return spec(role("worker", count, minimum=minimum, resources=THIRD), **fields)


def held(cluster: Cluster, uid: str = UID) -> list[int]:
    return sorted(index for _, index in cluster.world.admission.demands[uid].held)


def test_A31_a_role_gets_as_many_places_as_there_are_up_to_its_maximum() -> None:
    cluster = Cluster()

    cluster.submit(workers(5, 2))

    assert cluster.demands() == {UID: "Granted"}
    assert held(cluster) == [0, 1, 2]
    assert cluster.phases() == ["Active", "Active", "Active", "Waiting", "Waiting"]


def test_a_role_waits_for_the_places_of_its_minimum() -> None:
    cluster = Cluster()

    cluster.submit(workers(5, 4))

    assert cluster.demands() == {UID: "Waiting"}
    assert held(cluster) == []


def test_growing_takes_nothing_that_somebody_waits_for() -> None:
    cluster = Cluster()
    cluster.submit(workers(2))
    cluster.submit(workers(4, 1, name="elastic"), uid="j2")
    cluster.submit(workers(2, name="third"), uid="j3")
    assert cluster.demands() == {UID: "Granted", "j2": "Granted", "j3": "Waiting"}
    cluster.bring_up()

    cluster.exit("worker-0")

    assert held(cluster, "j2") == [0], "the room is kept for the one that waits"
    cluster.say(ev.CancelRequested(), machine="j3")
    assert held(cluster, "j2") == [0, 1]
    cluster.check_replay()


def test_C30_a_gang_that_lacks_one_of_its_maximum_runs_with_what_it_has() -> None:
    cluster = Cluster()
    cluster.submit(workers(4, 3))
    cluster.bring_up()
    assert cluster.phase == "Starting"

    cluster.wait(29_999)
    assert cluster.phase == "Starting"
    cluster.wait(1)

    assert cluster.phase == "Running"
    assert cluster.told("GateReached").startswith("3 of 4 worker are there")
    assert b'"index":2' in cluster.job.peers.inline
    assert b'"index":3' not in cluster.job.peers.inline
    cluster.start()
    cluster.wait(3_600_000)
    assert cluster.phase == "Running"


def test_C30_one_that_the_back_end_does_not_place_holds_up_nobody_and_costs_nothing() -> None:
    cluster = Cluster()
    cluster.submit(spec(role("worker", 4, minimum=3)))
    for name in ("worker-0", "worker-1", "worker-2"):
        cluster.bring_up(name)
    cluster.say(ev.AttemptWaiting(cluster.id("worker-3"), "no room"))

    cluster.wait(30_000)
    cluster.start()
    cluster.wait(24 * 3_600_000)

    assert cluster.phase == "Running"
    assert (cluster.role().charges, cluster.job.charges) == ((), ())
    assert cluster.newest("worker-3").phase == "Requested"


def test_places_that_keep_coming_do_not_put_off_the_start_for_ever() -> None:
    cluster = Cluster()
    cluster.submit(workers(12, 2))
    cluster.bring_up()

    for number in range(2, 7):
        cluster.say(cluster._seen(f"n{number}", 4), machine="")
        cluster.launch()
        cluster.wait(25_000)

    assert cluster.phase == "Running"


def test_success_of_an_elastic_role_asks_for_those_that_had_a_place() -> None:
    cluster = Cluster()
    cluster.submit(workers(5, 1))
    cluster.bring_up()
    cluster.wait(30_000)
    cluster.start()
    for index in (0, 1):
        cluster.exit(f"worker-{index}")
    assert cluster.phase == "Running"
    assert cluster.replica("worker-3").last_number == 0, "nobody joins a role that is half done"

    cluster.exit("worker-2")

    assert cluster.phase == "Succeeded"
    assert cluster.job.verdict is not None
    assert cluster.job.verdict.reason == "Completed"


def test_below_its_minimum_the_survivors_run_on_and_the_clock_runs() -> None:
    cluster = Cluster()
    cluster.submit(workers(3, 2))
    cluster.bring_up()
    cluster.wait(30_000)
    cluster.start()
    cluster.exit("worker-0", code=1)
    assert cluster.phase == "Running", "two are what it needs"

    cluster.exit("worker-1", code=1)

    assert cluster.phase == "Starting"
    assert cluster.told("FellBelowMinimum") == "worker has 1 of the 2 replicas it needs"
    assert cluster.newest("worker-2").phase == "Running"


def together(count: int, minimum: int) -> JobSpec:
    """Return workers that restart together, as those of a synchronous framework do."""
    worker = role("worker", count, minimum=minimum, resources=THIRD, unit="role")
    return spec(worker, framework="torch")


def generations(cluster: Cluster) -> list[int]:
    """Return the generation of each trainer that runs."""
    return [
        one.newest.generation
        for one in cluster.role().chunks[0].replicas
        if one.newest is not None and one.newest.phase == "Running"
    ]


def test_C70_who_comes_later_joins_in_the_next_generation_with_all_others() -> None:
    cluster = Cluster()
    cluster.submit(together(4, 2))
    cluster.bring_up()
    cluster.wait(30_000)
    cluster.start()
    cluster.say(cluster._seen("n2", 4), machine="")
    cluster.launch()
    cluster.register()
    cluster.hold()
    assert cluster.newest("worker-3").phase == "Registered", "it does not join a running collective"

    cluster.wait(60_000)

    assert cluster.told("RoleRestarted") == (
        "worker restarts whole, generation 2, worker grows from 3 to 4"
    )
    cluster.stop_all()
    cluster.bring_up()
    assert cluster.phase == "Running"
    assert generations(cluster) == [2, 2, 2, 2]
    assert not cluster.role().charges
    cluster.check_replay()


def test_C70_a_newcomer_that_fails_takes_nobody_along() -> None:
    cluster = Cluster()
    cluster.submit(together(4, 2))
    cluster.bring_up()
    cluster.wait(30_000)
    cluster.start()
    cluster.say(cluster._seen("n2", 4), machine="")
    cluster.launch()
    cluster.register()

    cluster.exit("worker-3", code=1)

    assert "RoleRestarted" not in cluster.reasons()
    assert generations(cluster) == [1, 1, 1]
    cluster.wait(15_000)
    cluster.launch()
    cluster.register()
    cluster.hold()
    cluster.wait(60_000)
    assert cluster.job.generation == 2


def test_C70_made_smaller_a_synchronous_role_meets_anew_at_once() -> None:
    cluster = Cluster()
    cluster.submit(together(3, 1))
    cluster.bring_up()
    cluster.wait(30_000)
    cluster.start()

    cluster.say(ev.RoleScaled("worker", 2))

    reasons = {name: cluster.newest(name).stop for name in ("worker-0", "worker-1", "worker-2")}
    assert [one.reason for one in reasons.values() if one] == [
        "restarting",
        "restarting",
        "scaledDown",
    ]
    cluster.stop_all()
    cluster.bring_up()
    assert (cluster.phase, generations(cluster)) == ("Running", [2, 2])
    assert not cluster.role().charges
    cluster.check_replay()


def test_C70_a_person_who_makes_it_larger_need_not_wait_for_a_quiet_time() -> None:
    cluster = Cluster()
    cluster.submit(together(3, 1))
    cluster.say(ev.RoleScaled("worker", 2))
    cluster.stop_all()
    cluster.bring_up()
    assert cluster.phase == "Running"

    cluster.say(ev.RoleScaled("worker", 3))
    cluster.launch()
    cluster.register()
    cluster.hold()

    assert cluster.job.generation == 2
    cluster.stop_all()
    cluster.bring_up()
    assert generations(cluster) == [2, 2, 2]
    cluster.check_replay()


def test_C18_made_smaller_peers_forget_who_went_and_nothing_is_charged() -> None:
    cluster = Cluster()
    cluster.run(spec(role("ps", 3, success="never"), role("worker"), policy="dynamic"))
    revision = cluster.job.peers.revision

    cluster.say(ev.RoleScaled("ps", 2))

    assert cluster.job.peers.revision == revision + 1
    assert cluster.job.peers.inline.count(b'"index":2') == 0
    cluster.exit("ps-2", code=1, stop_seen="scaledDown")
    assert cluster.phases("ps") == ["Active", "Active", "Retired"]
    assert (cluster.phase, cluster.role("ps").charges) == ("Running", ())
    cluster.exit("worker-0")
    cluster.stop_all()
    assert cluster.phase == "Succeeded"


def test_M039_five_three_five_keeps_counts_and_success_right() -> None:
    cluster = Cluster()
    cluster.run(spec(role("worker", 5)))

    cluster.say(ev.RoleScaled("worker", 3))
    cluster.stop_all()
    cluster.say(ev.RoleScaled("worker", 5))

    assert cluster.phase == "Running", "a wish for more is no loss"
    cluster.wait(60_000)
    assert cluster.phase == "Running"
    for index in range(3):
        cluster.exit(f"worker-{index}")
    assert cluster.phase == "Running"
    cluster.bring_up()
    cluster.exit("worker-3")
    cluster.exit("worker-4")
    assert cluster.phase == "Succeeded"
    cluster.check_replay()


def test_the_last_one_of_a_half_done_role_is_waited_for_with_a_deadline() -> None:
    cluster = Cluster()
    cluster.submit(workers(2, 1, policy="dynamic"))
    cluster.bring_up()
    cluster.exit("worker-0")
    assert cluster.phase == "Running"

    cluster.say(NodeWentAway("n1"), machine="")
    cluster.gone("worker-1", evidence="nodeLost")

    assert cluster.phase == "Starting"
    assert cluster.told("FellBelowMinimum") == "worker has 1 of the 2 replicas it needs"
    assert cluster.demands() == {UID: "Waiting"}, "it stands in the queue, it does not only grow"
    cluster.say(cluster._seen("n1", 64), machine="")
    cluster.bring_up()
    assert cluster.phase == "Running"
    cluster.exit("worker-1")
    assert cluster.phase == "Succeeded"
    cluster.check_replay()
