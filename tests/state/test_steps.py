"""One step of many proposals: each is taken whole or not at all, beside the others."""

from msgspec.structs import replace

from primusd import core
from primusd.job import events as ev
from primusd.job.model import find_attempt
from primusd.job.spec import Reading, Source, StreamSpec
from primusd.records import Event, Proposal
from tests.state.job_driver import UID, Cluster, role, spec


def broken_by_its_stream() -> Cluster:
    """Return a job whose registrations are refused once applied: its stream is missing."""
    cluster = Cluster()
    reader = role("worker", 2, data=(Reading("clicks"),))
    cluster.submit(spec(reader, streams=(StreamSpec("clicks", (Source("/data"),)),)))
    cluster.launch()
    cluster.world = replace(cluster.world, streams={})
    return cluster


def step(cluster: Cluster, *events: Event) -> core.Step:
    proposals = [Proposal(UID, event, "test") for event in events]
    return core.step(
        cluster.world, proposals, at_ms=cluster.now_ms, term=1, revision=cluster.revision + 1
    )


def registered(cluster: Cluster, name: str) -> ev.ExecutorRegistered:
    return ev.ExecutorRegistered(cluster.id(name), "i1", "host", "b1", 7, "0")


def test_what_was_refused_half_way_is_undone_and_what_came_before_it_stays() -> None:
    cluster = broken_by_its_stream()
    preempted = ev.PreemptionNoticed(cluster.id("worker-1"), 30_000)

    found = step(cluster, preempted, registered(cluster, "worker-0"))

    assert [type(one) for one in found.answers] == [core.Recorded, core.Rejected]
    alone = step(cluster, preempted)
    assert found.entry == alone.entry is not None
    assert found.touched == alone.touched == (UID,)
    assert found.world == alone.world


def test_what_was_refused_first_leaves_no_trace_in_what_comes_after_it() -> None:
    cluster = broken_by_its_stream()
    cancel = ev.CancelRequested("enough")

    found = step(cluster, registered(cluster, "worker-0"), cancel)

    assert [type(one) for one in found.answers] == [core.Rejected, core.Recorded]
    attempt = find_attempt(found.world.jobs[UID], cluster.id("worker-0"))
    assert attempt is not None
    assert attempt.registered_ms == 0
    assert found.world == step(cluster, cancel).world


def test_a_step_in_which_all_was_refused_changes_nothing() -> None:
    cluster = broken_by_its_stream()

    found = step(cluster, registered(cluster, "worker-0"), registered(cluster, "worker-1"))

    assert found.entry is None
    assert found.touched == ()
    assert found.world == cluster.world
