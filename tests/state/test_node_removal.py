"""A node that is gone for good is forgotten, and what ran there begins elsewhere at once."""

import pytest

from primusd.admission import events as adm
from primusd.errors import PhaseConflictError
from primusd.job import events as ev
from primusd.job.phases import Cause
from tests.state.job_driver import Cluster, budgets, role, spec


def away(*, nodes: int = 2) -> Cluster:
    """Return a cluster of whose nodes the first went away with replicas that ran there."""
    cluster = Cluster(nodes=nodes)
    cluster.run(spec(role("worker", 4, budgets=budgets(application=0))))
    cluster.say(adm.NodeWentAway("n1"), machine="")
    return cluster


def on(cluster: Cluster, node: str) -> list[str]:
    """Return the replicas whose newest attempt is on a node and lives."""
    names = [f"worker-{index}" for index in range(4)]
    return [
        name
        for name in names
        if cluster.newest(name).node == node and cluster.newest(name).outcome is None
    ]


def lose(cluster: Cluster, *names: str) -> None:
    for name in names:
        cluster.say(ev.AttemptVanished(cluster.id(name), None, "nodeLost"), by="uid:1 (ann)")


def test_what_was_lost_with_it_begins_elsewhere_at_once() -> None:
    cluster = away()
    lost = on(cluster, "n1")
    assert lost

    lose(cluster, *lost)
    cluster.say(adm.RemovalRequested("n1"), machine="")

    assert set(cluster.world.admission.nodes) == {"n2"}
    assert on(cluster, "n2") == ["worker-0", "worker-1", "worker-2", "worker-3"]
    outcome = cluster.replica(lost[0]).attempts[0].outcome
    assert outcome is not None
    assert outcome.cause is Cause.NODE_LOST
    assert len(cluster.role().charges) == 1, "a host that goes is one failure"
    cluster.bring_up()
    assert cluster.phase == "Running"
    cluster.check_replay()


def test_without_another_node_they_wait_and_begin_on_the_next_one_there_is() -> None:
    cluster = away(nodes=1)

    lose(cluster, *on(cluster, "n1"))
    cluster.say(adm.RemovalRequested("n1"), machine="")

    assert cluster.world.admission.nodes == {}
    cluster.say(cluster._seen("n1", 64), machine="")
    cluster.bring_up()
    assert cluster.phase == "Running"
    assert {cluster.newest(f"worker-{index}").number for index in range(4)} == {2}
    cluster.check_replay()


def test_a_quarantined_slot_goes_with_its_node() -> None:
    cluster = away()
    name, *_ = on(cluster, "n1")
    stuck = cluster.id(name)
    cluster.say(ev.ExecutorExpired(stuck))
    cluster.say(ev.StopFailed(stuck, was_delivered=False), by="launcher:local")
    assert cluster.quarantined() == 1
    lose(cluster, *(one for one in on(cluster, "n1") if one != name))
    assert isinstance(cluster.refusal(adm.RemovalRequested("n1"), machine=""), PhaseConflictError)

    cluster.say(ev.AttemptVanished(stuck, None, "nodeLost"))
    cluster.say(adm.RemovalRequested("n1"), machine="")

    assert cluster.quarantined() == 0
    assert set(cluster.world.admission.nodes) == {"n2"}
    cluster.check_replay()


def test_a_node_that_is_there_or_keeps_a_slot_is_not_removed() -> None:
    cluster = away()
    there = cluster.refusal(adm.RemovalRequested("n2"), machine="")
    kept = cluster.refusal(adm.RemovalRequested("n1"), machine="")

    assert isinstance(there, PhaseConflictError)
    assert isinstance(kept, PhaseConflictError)
    assert "n1 still keeps a slot for worker-" in kept.message
    assert set(cluster.world.admission.nodes) == {"n1", "n2"}


@pytest.mark.parametrize("is_draining", [False, True])
def test_one_that_comes_back_is_a_new_node(is_draining: bool) -> None:  # noqa: FBT001 - a parameter of the test
    cluster = Cluster(nodes=2)
    cluster.say(adm.CordonRequested("n1"), machine="")
    if is_draining:
        cluster.say(adm.DrainRequested("n1"), machine="")
    cluster.say(adm.NodeWentAway("n1"), machine="")
    cluster.say(adm.RemovalRequested("n1"), machine="")

    cluster.say(cluster._seen("n1", 64), machine="")

    assert cluster.world.admission.nodes["n1"].phase == "Ready"
    cluster.check_replay()
