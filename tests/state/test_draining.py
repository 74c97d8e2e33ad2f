"""Nodes that are emptied, that went away, or that are left out: who moves, when, at whose cost."""

from primusd.admission import events as adm
from primusd.job import events as ev
from primusd.job.commands import StopAttempt
from primusd.job.duties import plan_of
from primusd.job.phases import AttemptPhase, Cause, NodePhase, StopReason
from primusd.job.spec import Resources
from tests.state.job_driver import UID, Cluster, budgets, role, spec

GIB = 1 << 30
CORE = Resources(1_000, GIB)


def on(cluster: Cluster, node: str) -> list[str]:
    """Return the replicas whose newest attempt is on a node and not over."""
    return [
        name
        for name in cluster.names(*AttemptPhase)
        if cluster.newest(name).node == node
        and cluster.newest(name).phase not in (AttemptPhase.ENDED, AttemptPhase.GONE)
    ]


def admission(cluster: Cluster, *events: adm.AdmissionEvent) -> None:
    for event in events:
        cluster.say(event, machine="", by="uid:1 (ann)")


def node(name: str, cpu: int = 4) -> adm.NodeSeen:
    return adm.NodeSeen(name, "local", name, "0", cpu * 1000, cpu * GIB, 0, 20_000, 29_999)


def cluster_of(*nodes: adm.NodeSeen) -> Cluster:
    cluster = Cluster(nodes=0)
    admission(cluster, *nodes)
    return cluster


def stop_and_come_up(cluster: Cluster) -> list[str]:
    """Let those that are told to stop do so, and their successors come up; return their names."""
    stopping = cluster.names(AttemptPhase.STOPPING)
    cluster.stop_all()
    cluster.bring_up()
    return stopping


def test_one_replica_of_a_role_moves_at_a_time_and_none_is_charged_C22() -> None:
    cluster = cluster_of(node("n1", 2), node("n2", 2))
    cluster.run(
        spec(role("worker", 4, resources=CORE), budgets=budgets(application=0, infrastructure=0))
    )
    moving = on(cluster, "n1")
    admission(cluster, node("n3", 4), adm.DrainRequested("n1"))
    assert len(moving) == 2

    first = stop_and_come_up(cluster)
    second = stop_and_come_up(cluster)

    assert [*first, *second] == moving
    assert [cluster.newest(name).node for name in moving] == ["n3", "n3"]
    assert on(cluster, "n1") == []
    outcome = cluster.replica(moving[0]).attempts[0].outcome
    assert outcome is not None
    assert (outcome.cause, outcome.stop_reason) == (Cause.STOPPED, StopReason.DRAINED)
    assert cluster.role().charges == ()
    assert cluster.job.moving == ()
    assert cluster.world.admission.nodes["n1"].phase is NodePhase.CORDONED
    assert cluster.world.admission.nodes["n1"].faults == ()
    assert cluster.phase == "Running"
    cluster.check_replay()


def test_next_one_waits_until_the_one_before_runs_again() -> None:
    cluster = cluster_of(node("n1"), node("n2"))
    cluster.run(spec(role("worker", 4, resources=CORE)))
    admission(cluster, adm.DrainRequested("n1"))

    cluster.stop_all()
    assert cluster.names(AttemptPhase.STOPPING) == []
    cluster.launch()
    cluster.register()
    cluster.hold()
    assert cluster.names(AttemptPhase.STOPPING) == []
    cluster.start()

    assert len(cluster.names(AttemptPhase.STOPPING)) == 1


def test_slot_on_the_old_node_stays_taken_until_its_attempt_is_gone() -> None:
    cluster = cluster_of(node("n1", 1), node("n2", 1))
    cluster.run(spec(role("worker", 1, resources=CORE)))
    old = cluster.newest("worker-0").node
    admission(cluster, adm.DrainRequested(old), adm.UncordonRequested(old))
    assert cluster.names(AttemptPhase.STOPPING) == ["worker-0"]
    cluster.submit(spec(role("other", 1, resources=CORE), name="b"), uid="j2")
    assert cluster.demands()["j2"] == "Waiting"

    cluster.stop_all()

    assert cluster.demands()["j2"] == "Granted"
    assert cluster.newest("worker-0").node != old
    cluster.check_replay()


def test_what_finds_no_other_place_runs_on_until_there_is_one() -> None:
    cluster = cluster_of(node("n1", 2), node("n2", 1))
    cluster.run(spec(role("worker", 3, resources=CORE)))

    admission(cluster, adm.DrainRequested("n1"))
    cluster.wait(3_600_000)
    assert cluster.names(AttemptPhase.RUNNING) == ["worker-0", "worker-1", "worker-2"]
    assert cluster.demands()[UID] == "Waiting"

    admission(cluster, node("n3", 1))

    assert len(stop_and_come_up(cluster)) == 1
    cluster.wait(3_600_000)
    assert len(on(cluster, "n1")) == 1
    assert cluster.phase == "Running"


def test_who_runs_is_not_squeezed_onto_fewer_cores_than_it_asks_for() -> None:
    """CPU is compressible for a job that could never run else, not for a drain."""
    cluster = cluster_of(node("n1", 1), node("n2", 1))
    cluster.run(spec(role("worker", 2, resources=Resources(1_000))))

    admission(cluster, adm.DrainRequested("n1"))

    assert cluster.names(AttemptPhase.STOPPING) == []


def test_role_that_restarts_whole_does_so_once_for_all_that_move() -> None:
    cluster = cluster_of(node("n1", 2), node("n2", 2))
    cluster.run(spec(role("worker", 4, unit="role", resources=CORE), framework="torch"))
    moving = on(cluster, "n1")

    admission(cluster, adm.DrainRequested("n1"))
    assert cluster.names(AttemptPhase.STOPPING) == [], "one of the two alone would do no good"
    admission(cluster, node("n3", 1))
    assert cluster.names(AttemptPhase.STOPPING) == []
    admission(cluster, node("n3", 2))
    stopping = {name: cluster.newest(name).stop for name in cluster.names(AttemptPhase.STOPPING)}
    stop_and_come_up(cluster)

    assert len(stopping) == 4
    for name, stop in stopping.items():
        assert stop is not None
        assert stop.reason == ("drained" if name in moving else "restarting")
    assert cluster.job.generation == 2
    assert [cluster.newest(name).node for name in moving] == ["n3", "n3"]
    assert {cluster.replica(f"worker-{index}").last_number for index in range(4)} == {2}
    assert cluster.role().charges == ()
    assert cluster.phase == "Running"
    cluster.check_replay()


def test_job_that_restarts_whole_does_so_once_for_all_its_roles() -> None:
    cluster = cluster_of(node("n1", 4))
    roles = (
        role("ps", 2, unit="job", resources=CORE),
        role("worker", 2, unit="job", resources=CORE),
    )
    cluster.run(spec(*roles))
    admission(cluster, node("n2", 4), adm.DrainRequested("n1"))

    stop_and_come_up(cluster)

    assert cluster.job.generation == 2
    assert on(cluster, "n1") == []
    assert cluster.phase == "Running"


def test_job_that_restarts_whole_waits_until_all_its_roles_have_another_place() -> None:
    cluster = cluster_of(node("n1", 4))
    roles = (
        role("ps", 2, unit="job", resources=CORE),
        role("worker", 2, unit="job", resources=CORE),
    )
    cluster.run(spec(*roles))

    admission(cluster, adm.DrainRequested("n1"), node("n2", 2))
    assert cluster.world.admission.demands[UID].held["ps", 0].node == "n2"
    assert cluster.names(AttemptPhase.STOPPING) == []
    admission(cluster, node("n3", 2))

    assert len(cluster.names(AttemptPhase.STOPPING)) == 4
    stop_and_come_up(cluster)
    assert (cluster.job.generation, cluster.phase) == (2, "Running")
    assert on(cluster, "n1") == []
    cluster.check_replay()


def test_now_waits_neither_for_places_nor_for_turns() -> None:
    cluster = cluster_of(node("n1", 2), node("n2", 1))
    cluster.run(spec(role("worker", 3, resources=CORE)))
    moving = on(cluster, "n1")
    assert len(moving) == 2

    admission(cluster, adm.DrainRequested("n1", is_now=True))
    assert cluster.names(AttemptPhase.STOPPING) == moving
    cluster.stop_all()
    assert on(cluster, "n1") == []
    admission(cluster, node("n3", 2))
    cluster.bring_up()

    assert [cluster.newest(name).node for name in moving] == ["n3", "n3"]
    assert cluster.role().charges == ()


def test_drain_that_is_taken_back_leaves_who_has_not_moved() -> None:
    cluster = cluster_of(node("n1", 2), node("n2", 1))
    cluster.run(spec(role("worker", 3, resources=CORE)))
    admission(cluster, adm.DrainRequested("n1"), adm.UncordonRequested("n1"))

    admission(cluster, node("n3", 4))

    assert cluster.names(AttemptPhase.STOPPING) == []
    assert cluster.demands()[UID] == "Granted"
    assert (cluster.job.draining_nodes, cluster.job.moving) == ({}, ())
    cluster.check_replay()


def test_drain_that_is_taken_back_after_all_moved_does_not_come_back_with_the_next_slot() -> None:
    cluster = cluster_of(node("n1", 1), node("n2", 1))
    cluster.run(spec(role("worker", 1, resources=CORE)))
    first = cluster.newest("worker-0").node
    admission(cluster, adm.DrainRequested(first))
    stop_and_come_up(cluster)
    second = cluster.newest("worker-0").node
    admission(cluster, adm.UncordonRequested(first), adm.DrainRequested(second))
    stop_and_come_up(cluster)

    assert cluster.newest("worker-0").node == first
    assert cluster.names(AttemptPhase.STOPPING) == []


def test_replica_that_waits_out_a_delay_begins_elsewhere() -> None:
    cluster = cluster_of(node("n1", 1), node("n2", 1))
    cluster.run(spec(role("worker", 1, resources=CORE)))
    old = cluster.newest("worker-0").node
    cluster.exit("worker-0", code=1)
    assert cluster.phases() == ["Delayed"]

    admission(cluster, adm.DrainRequested(old))
    cluster.wait(20_000)

    assert cluster.newest("worker-0").number == 2
    assert cluster.newest("worker-0").node != old
    cluster.check_replay()


def test_replica_that_fails_while_it_waits_for_a_place_does_not_begin_on_the_old_node() -> None:
    cluster = cluster_of(node("n1", 1))
    cluster.run(spec(role("worker", 1, resources=CORE)))
    admission(cluster, adm.DrainRequested("n1"))
    cluster.exit("worker-0", code=1)
    cluster.wait(60_000)
    assert cluster.newest("worker-0").number == 1

    admission(cluster, node("n2", 1))

    assert cluster.newest("worker-0").node == "n2"


def test_job_that_has_its_verdict_is_left_to_end() -> None:
    cluster = cluster_of(node("n1", 4), node("n2", 4))
    roles = role("worker", 1, resources=CORE), role("eval", 1, success="never", drain_ms=60_000)
    cluster.run(spec(*roles))
    place = cluster.newest("eval-0").node
    cluster.exit("worker-0")
    assert cluster.phase == "Draining"

    admission(cluster, adm.DrainRequested(place))
    assert cluster.names(AttemptPhase.STOPPING) == []
    cluster.exit("eval-0")

    assert cluster.phase == "Succeeded"


def test_replicas_placed_on_a_host_that_has_just_died_begin_elsewhere_when_it_is_away() -> None:
    """The order never got there; nobody waits for placeTimeout, readyTimeout and replaceAfter."""
    cluster = cluster_of(node("n1", 2), node("n2", 4))
    cluster.submit(spec(role("worker", 4, resources=CORE)))
    lost = on(cluster, "n1")
    assert len(lost) == 2
    cluster.bring_up(*(name for name in cluster.names(AttemptPhase.REQUESTED) if name not in lost))

    cluster.wait(30_000)
    admission(cluster, adm.NodeWentAway("n1"))
    assert cluster.names(AttemptPhase.STOPPING) == lost
    stops = [one for one in plan_of(cluster.job) if isinstance(one, StopAttempt)]
    assert {one.deadline_ms - cluster.now_ms for one in stops} == {5_000}
    cluster.wait(5_000)
    for name in lost:
        attempt = cluster.newest(name)
        assert attempt.stop is not None
        cluster.say(ev.StopFailed(cluster.id(name), was_delivered=False), by="launcher")
    cluster.bring_up()

    assert [cluster.newest(name).node for name in lost] == ["n2", "n2"]
    assert cluster.phase == "Running"
    assert cluster.role().charges == ()
    assert cluster.quarantined() == 2, "the node may have got the order after all"
    assert cluster.told("StopFailed").endswith("its slot stays taken until n1 answers")
    cluster.check_replay()


def test_what_ran_on_a_node_that_is_away_is_not_ended_by_that() -> None:
    cluster = cluster_of(node("n1", 2), node("n2", 2))
    cluster.run(spec(role("worker", 4, resources=CORE)))

    admission(cluster, adm.NodeWentAway("n1"))

    assert len(cluster.names(AttemptPhase.RUNNING)) == 4


def test_replica_that_waits_out_a_delay_leaves_a_node_that_went_away() -> None:
    cluster = cluster_of(node("n1", 1), node("n2", 1))
    cluster.run(spec(role("worker", 1, resources=CORE)))
    old = cluster.newest("worker-0").node
    cluster.exit("worker-0", code=1)

    admission(cluster, adm.NodeWentAway(old))
    cluster.wait(20_000)

    assert cluster.newest("worker-0").node != old


def test_never_registered_attempt_that_cannot_be_stopped_is_replaced_at_once() -> None:
    """Its executor never said hello, so no trainer of it ever ran, and none will: it is refused."""
    cluster = cluster_of(node("n1", 1), node("n2", 1))
    cluster.submit(spec(role("worker", 1, resources=CORE)))
    old = cluster.newest("worker-0").node
    admission(cluster, adm.NodeWentAway(old))
    cluster.say(ev.StopFailed(cluster.id("worker-0"), was_delivered=False), by="launcher")

    assert cluster.newest("worker-0").number == 2
    late = cluster.id("worker-0/1")
    assert cluster.say(ev.ExecutorRegistered(late, "i", "h", "b", 1, "0")) == "told to leave"


def test_job_kept_off_a_node_goes_elsewhere_and_others_do_not_notice() -> None:
    """What a `failure` rule's `excludeNode` asks for."""
    cluster = cluster_of(node("n1", 1), node("n2", 1))
    cluster.run(spec(role("worker", 1, resources=CORE)))
    old = cluster.newest("worker-0").node
    admission(cluster, adm.NodeExclusionRequested(old, 3_600_000, UID, "Xid 79"))
    assert cluster.names(AttemptPhase.RUNNING) == ["worker-0"]

    cluster.exit("worker-0", code=1)
    cluster.wait(20_000)
    cluster.submit(spec(role("other", 1, resources=CORE), name="b"), uid="j2")

    assert cluster.newest("worker-0").node != old
    assert cluster.world.admission.nodes[old].phase is NodePhase.READY
    assert cluster.demands()["j2"] == "Granted"
    cluster.wait(3_600_000)
    assert cluster.world.admission.nodes[old].shunned == {}
    cluster.check_replay()


def test_rule_keeps_a_job_off_half_of_the_nodes_at_most_C71() -> None:
    cluster = cluster_of(node("n1"), node("n2"), node("n3"))
    cluster.run(spec(role("worker", 1, resources=CORE)))

    for name in ("n1", "n2", "n3"):
        admission(cluster, adm.NodeExclusionRequested(name, 3_600_000, UID))

    shunned = [name for name, one in cluster.world.admission.nodes.items() if one.shunned]
    assert shunned == ["n1"]


def test_node_a_person_leaves_out_comes_back_by_itself_or_forgiven_M043_C71() -> None:
    cluster = cluster_of(node("n1"), node("n2"))
    admission(cluster, adm.NodeExclusionRequested("n1", 60_000, "", "a fan is being mended"))
    left_out = cluster.world.admission.nodes["n1"]
    cluster.wait(60_000)
    back = cluster.world.admission.nodes["n1"]
    assert (left_out.phase, left_out.excluded_text) == (NodePhase.EXCLUDED, "a fan is being mended")
    assert back.phase is NodePhase.READY

    admission(cluster, adm.NodeExclusionRequested("n1", 60_000), adm.ForgiveRequested("n1"))

    assert cluster.world.admission.nodes["n1"].phase is NodePhase.READY


def test_replica_whose_node_is_excluded_after_faults_begins_elsewhere_C71() -> None:
    cluster = cluster_of(node("n1", 1), node("n2", 1), node("n3", 1))
    cluster.run(spec(role("worker", 1, resources=CORE)))
    old = cluster.newest("worker-0").node
    for number in range(2):
        fault = adm.NodeFaultCounted(old, f"j9/worker-0/{number}", "Lost", f"boot{number}")
        admission(cluster, fault)
    assert cluster.world.admission.nodes[old].phase is NodePhase.EXCLUDED
    assert cluster.names(AttemptPhase.RUNNING) == ["worker-0"]

    cluster.exit("worker-0", code=1)
    cluster.wait(20_000)

    assert cluster.newest("worker-0").node != old


def test_nobody_is_stopped_or_held_up_for_a_replica_that_only_has_to_move() -> None:
    cluster = cluster_of(node("n1", 1), node("n2", 2))
    admission(cluster, adm.QueueDeclared("default", preemption="lowerPriority"))
    cluster.run(spec(role("worker", 1, resources=CORE), priority=90))
    place = cluster.newest("worker-0").node
    size = 2 if place == "n1" else 1
    low = spec(role("low", size, resources=CORE), name="low", priority=10)
    cluster.submit(low, uid="j2")
    assert cluster.demands()["j2"] == "Granted"

    admission(cluster, adm.DrainRequested(place))
    assert cluster.demands() == {UID: "Waiting", "j2": "Granted"}
    cluster.submit(spec(role("tiny", 1), name="tiny", priority=10), uid="j3")

    assert cluster.demands()["j3"] == "Granted"
    assert cluster.names(AttemptPhase.RUNNING) == ["worker-0"]
