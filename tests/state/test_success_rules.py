"""What counts as a success, a failure, and neither (M035 to M038, M045)."""

import pytest

from primusd.datafeed.ledger.events import BeatReceived, UnitsListed
from primusd.datafeed.ledger.machine import feed_orders
from primusd.datafeed.ledger.model import Stream
from primusd.datafeed.protocol import FeedReport, Unit
from primusd.errors import SpecError
from primusd.job import events as ev
from primusd.job.phases import AttemptPhase
from primusd.job.spec import JobSpec, Reading, Source, StreamSpec
from primusd.jobfile import parse
from primusd.views.jobs import job_document
from tests.state.job_driver import UID, Cluster, budgets, role, spec

STARTED = (AttemptPhase.STARTING, AttemptPhase.RUNNING)


def test_M035_without_a_policy_each_replica_starts_at_once() -> None:
    cluster = Cluster()
    cluster.submit(
        parse(b"name: x\nroles: {ps: {command: a}, worker: {replicas: 2, command: b}}").spec
    )
    cluster.launch()
    cluster.register()

    cluster.hold("worker-1")

    assert cluster.names(*STARTED) == ["worker-1"]


@pytest.mark.parametrize(
    ("replicas", "percent", "needed"),
    [(1, 1, 1), (3, 33, 1), (3, 34, 2), (4, 75, 3), (7, 1, 1), (10, 91, 10), (10, 90, 9)],
)
def test_M036_a_percentage_asks_for_its_share_rounded_up(
    replicas: int, percent: int, needed: int
) -> None:
    cluster = Cluster()
    cluster.run(spec(role("worker", replicas, success="percent", percent=percent)))

    for index in range(needed):
        assert cluster.phase == "Running"
        cluster.exit(f"worker-{index}")

    cluster.stop_all()
    assert cluster.phase == "Succeeded"


def test_M036_every_role_has_to_have_what_it_asks() -> None:
    cluster = Cluster()
    cluster.run(spec(role("chief"), role("worker", 4, success="percent", percent=50)))

    cluster.exit("worker-0", "worker-1", "worker-2", "worker-3")
    assert cluster.phase == "Running"
    cluster.exit("chief-0")

    assert cluster.phase == "Succeeded"


@pytest.mark.parametrize(
    ("code", "signal", "oom_kills", "reason"),
    [(None, 9, 0, "Crashed"), (137, None, 0, "Crashed"), (137, None, 1, "OutOfMemory"),
     (None, 9, 1, "OutOfMemory"), (143, None, 0, "Crashed"), (None, 15, 0, "Crashed")],
)  # fmt: skip
def test_M037_a_kill_that_is_not_ours_is_a_failure(
    code: int | None, signal: int | None, oom_kills: int, reason: str
) -> None:
    cluster = Cluster()
    cluster.run(spec(role(budgets=budgets(application=0))))

    cluster.exit("worker-0", code=code, signal=signal, oom_kills=oom_kills)

    assert cluster.job.verdict is not None
    assert (cluster.phase, cluster.job.verdict.reason) == ("Failed", reason)


def test_M037_our_own_kill_is_neither_a_success_nor_a_failure() -> None:
    cluster = Cluster()
    none_may = budgets(application=0, infrastructure=0)
    cluster.run(spec(role("worker", 3, budgets=none_may), policy="dynamic"))

    cluster.say(ev.RoleScaled("worker", 2))
    cluster.exit("worker-2", code=None, signal=9, stop_seen="scaledDown")

    shown = job_document(cluster.job, cluster.world, at_ms=cluster.now_ms).status.roles["worker"]
    assert (shown.completed, shown.failed) == (0, 0)
    assert cluster.phase == "Running"
    cluster.exit("worker-0")
    assert cluster.phase == "Running", "one of the two that are left goes on"
    cluster.exit("worker-1")
    assert cluster.job.verdict is not None
    assert cluster.job.verdict.numbers["completed"] == 2


def test_M038_when_all_have_ended_without_enough_successes_the_job_failed_with_code_and_words() -> (
    None
):
    cluster = Cluster()
    worker = role("worker", 4, success="percent", percent=75, budgets=budgets(application=0))
    cluster.run(spec(worker))

    cluster.exit("worker-0", "worker-1")
    cluster.exit("worker-2", code=7)
    assert cluster.phase == "Running"
    cluster.exit("worker-3", code=7)

    assert cluster.phase == "Failed"
    assert cluster.job.verdict is not None
    assert "worker-3 crashed with code 7" in cluster.job.verdict.message
    assert "worker needs 3 of 4 to complete" in cluster.job.verdict.message


def test_M038_a_job_that_nobody_could_make_succeed_is_refused() -> None:
    with pytest.raises(SpecError) as caught:
        parse(b"name: x\nroles: {ps: {command: a, success: never}}")

    assert [one.path for one in caught.value.errors] == ["roles"]


# An evaluator that reads data of its own.


def evaluated(leftover: str, *, drain_ms: int = 0) -> JobSpec:
    evaluator = role("evaluator", success="never", data=(Reading("held-out"),), drain_ms=drain_ms)
    held_out = StreamSpec("held-out", (Source("/data/*"),), leftover=leftover)
    return spec(role("chief"), evaluator, streams=(held_out,), policy="dynamic")


def stream_of(cluster: Cluster) -> Stream:
    return cluster.world.streams[f"{UID}/held-out"]


@pytest.mark.parametrize("drain_ms", [0, 60_000])
def test_M045_rows_that_only_a_helper_reads_hold_up_no_success_where_they_may_be_left(
    drain_ms: int,
) -> None:
    cluster = Cluster()
    cluster.run(evaluated("allow", drain_ms=drain_ms))
    assert stream_of(cluster).readers

    cluster.exit("chief-0")

    assert cluster.phase == ("Draining" if drain_ms else "Stopping")
    cluster.wait(drain_ms)
    cluster.stop_all()
    assert cluster.phase == "Succeeded"
    assert cluster.job.verdict is not None
    assert cluster.job.verdict.reason == "PartialSuccess"
    assert "stream held-out was not read to its end" in cluster.job.verdict.message
    cluster.check_replay()


def test_M045_by_default_every_row_is_read_before_the_job_succeeds() -> None:
    cluster = Cluster()
    cluster.run(evaluated("fail"))

    cluster.exit("chief-0")
    assert cluster.phase == "Running"
    cluster.say(ev.StreamFinished("held-out", 100, 0), by="stream")
    cluster.stop_all()

    assert cluster.phase == "Succeeded"


def test_M045_what_an_evaluator_had_begun_is_free_when_it_ends() -> None:
    cluster = Cluster()
    cluster.run(evaluated("fail"))
    me, stream = cluster.id("evaluator-0"), f"{UID}/held-out"
    file = Unit("file", "/data/part.txt", 1_000, "1", {"format": "text"})
    cluster.say(UnitsListed((file,), 0, is_complete=True), machine=stream)
    cluster.say(BeatReceived(me, "i1", FeedReport("held-out", (), 1)), machine=stream)
    assert stream_of(cluster).lease_count == 1

    cluster.exit("evaluator-0", code=1)

    assert stream_of(cluster).lease_count == 0
    cluster.wait(400_000)
    cluster.bring_up()
    cluster.say(
        BeatReceived(cluster.id("evaluator-0"), "i1", FeedReport("held-out", (), 1)), machine=stream
    )
    (lease,) = feed_orders(stream_of(cluster), cluster.id("evaluator-0"), "i1").leases
    assert (lease.lo, lease.position) == (0, 0)
