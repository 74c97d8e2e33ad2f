"""Elastic roles: from `min` to `max`, with as many as there is room for (C30, A31)."""

from typing import Any

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
