"""M061: what people changed while jobs ran is as it was once the records are read again."""

from msgspec.structs import replace

from primusd.admission import events as adm
from primusd.datafeed.ledger import events as data
from primusd.job import events as ev
from primusd.job.phases import NodePhase
from primusd.job.spec import Reading, Source, StreamSpec
from tests.state.job_driver import UID, Cluster, role, spec

HOUR_MS = 3_600_000
CLICKS = StreamSpec("clicks", (Source("/data/*"),))


def begun_anew(cluster: Cluster) -> None:
    """Let another daemon read the records."""
    cluster.check_replay()
    cluster.world = cluster.replayed()


def test_M061_size_and_spec_of_a_job_survive() -> None:
    cluster = Cluster()
    cluster.run(spec(role("worker", 5), deadline_ms=HOUR_MS))
    cluster.say(ev.RoleScaled("worker", 3))
    cluster.stop_all()
    changed = replace(cluster.job.spec, priority=90, deadline_ms=2 * HOUR_MS)
    cluster.say(ev.SpecPatched(changed, {}))

    begun_anew(cluster)

    assert cluster.role().size == 3
    assert cluster.phases() == ["Active"] * 3 + ["Retired"] * 2
    assert (cluster.job.spec.priority, cluster.job.spec.deadline_ms) == (90, 2 * HOUR_MS)
    cluster.wait(HOUR_MS)
    assert cluster.phase == "Running", "the deadline that was moved counts"
    cluster.exit("worker-0", "worker-1", "worker-2")
    assert cluster.phase == "Succeeded"


def test_M061_a_pause_of_a_job_and_of_its_stream_survives() -> None:
    cluster = Cluster()
    cluster.run(spec(role(data=(Reading("clicks"),)), streams=(CLICKS,)))
    cluster.say(data.PauseRequested(), machine=f"{UID}/clicks")
    cluster.say(ev.SuspendRequested("the host is needed"))
    cluster.stop_all()

    begun_anew(cluster)
    cluster.wait(24 * HOUR_MS)

    assert cluster.phase == "Suspended"
    cluster.say(ev.ResumeRequested())
    assert cluster.phase == "Starting"
    assert cluster.world.streams[f"{UID}/clicks"].is_paused, "a person paused it too"


def test_M061_nodes_that_are_left_out_and_queues_that_were_set_survive() -> None:
    cluster = Cluster(nodes=4)
    told: tuple[adm.AdmissionEvent, ...] = (
        adm.CordonRequested("n1"),
        adm.NodeExclusionRequested("n2", HOUR_MS, "", "a fan is loud"),
        adm.NodeExclusionRequested("n3", HOUR_MS, UID),
        adm.QueueSet("night", {"gpu": 4}, "lowerPriority"),
    )
    for event in told:
        cluster.say(event, machine="")

    begun_anew(cluster)

    cluster.submit(spec(role("worker", 2)))
    assert {cluster.newest(f"worker-{index}").node for index in (0, 1)} == {"n4"}
    queue = cluster.world.admission.queues["night"]
    assert (queue.quota, queue.preemption) == ({"gpu": 4}, "lowerPriority")
    cluster.wait(HOUR_MS)
    phases = {name: node.phase for name, node in cluster.world.admission.nodes.items()}
    assert phases["n1"] is NodePhase.CORDONED
    assert phases["n2"] is NodePhase.READY
    assert cluster.world.admission.nodes["n3"].shunned == {}
