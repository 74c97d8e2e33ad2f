"""A pause and its end: what stops, what is kept, what stands still (C18, C63)."""

import pytest

from primusd.datafeed.ledger.model import Stream
from primusd.errors import PhaseConflictError
from primusd.job import events as ev
from primusd.job.limits import deadline_at_ms
from primusd.job.phases import AttemptPhase, Cause, StopReason
from primusd.job.spec import JobSpec, Reading, Resources, Source, StreamSpec
from tests.state.job_driver import Cluster, budgets, role, spec

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


def suspended(of: JobSpec | None = None) -> Cluster:
    """Return a cluster whose job ran and is Suspended."""
    cluster = Cluster()
    cluster.run(of or spec(role(replicas=2)))
    cluster.say(ev.SuspendRequested("the host is needed"))
    cluster.stop_all()
    assert cluster.phase == "Suspended"
    return cluster


def stream_of(cluster: Cluster) -> Stream:
    return cluster.world.streams["j1/clicks"]


def reading() -> JobSpec:
    clicks = StreamSpec("clicks", (Source("/data/*"),))
    return spec(role(data=(Reading("clicks"),)), streams=(clicks,))


def test_a_pause_stops_the_trainers_with_its_reason_and_frees_every_slot() -> None:
    cluster = Cluster()
    cluster.run(spec(role(replicas=2)))

    cluster.say(ev.SuspendRequested("the host is needed"))

    assert (cluster.phase, cluster.job.then) == ("Stopping", "Suspended")
    stop = cluster.newest("worker-0").stop
    assert stop is not None
    assert (stop.reason, stop.grace_ms) == (StopReason.SUSPENDED, 30_000)
    assert "the host is needed" in cluster.told("StopDecided")
    cluster.stop_all()
    assert cluster.phase == "Suspended"
    assert cluster.demands() == {}
    assert cluster.replica("worker-0").node == ""
    cluster.check_replay()


def test_c18_what_a_pause_ended_is_charged_to_nobody() -> None:
    cluster = Cluster()
    cluster.run(spec(role(replicas=2), budgets=budgets(0, 0)))
    cluster.say(ev.SuspendRequested())

    cluster.exit("worker-0", code=1, stop_seen="suspended")
    cluster.exit("worker-1", code=None, signal=9, stop_seen="suspended")

    assert cluster.phase == "Suspended"
    outcome = cluster.newest("worker-0").outcome
    assert outcome is not None
    assert (outcome.cause, outcome.exit_code, outcome.charged) == (Cause.STOPPED, 1, 0)


def test_the_end_of_a_pause_goes_to_the_queue_and_runs_again_under_new_numbers() -> None:
    cluster = suspended()
    cluster.wait(HOUR_MS)

    cluster.say(ev.ResumeRequested())
    cluster.bring_up()

    assert cluster.phase == "Running"
    assert cluster.told("JobAdmitted").endswith("n1")
    assert cluster.job.queued_ms == cluster.now_ms
    assert cluster.id("worker-0").attempt == 2
    cluster.exit("worker-0", "worker-1")
    assert cluster.phase == "Succeeded"
    cluster.check_replay()


def test_what_completed_before_a_pause_stays_completed() -> None:
    cluster = Cluster()
    cluster.run(spec(role(replicas=2)))
    cluster.exit("worker-0")
    cluster.say(ev.SuspendRequested())
    cluster.stop_all()

    cluster.say(ev.ResumeRequested())
    cluster.bring_up()

    assert cluster.phases() == ["Completed", "Active"]
    cluster.exit("worker-1")
    assert cluster.phase == "Succeeded"


def test_a_resumed_job_waits_behind_who_came_meanwhile() -> None:
    cluster = Cluster(cpu=1)
    cluster.run(spec(role(resources=Resources(1000))))
    cluster.say(ev.SuspendRequested())
    cluster.stop_all()
    cluster.submit(spec(role(resources=Resources(1000)), name="other"), uid="j2")
    assert cluster.world.jobs["j2"].phase == "Starting"

    cluster.say(ev.ResumeRequested())

    assert cluster.phase == "Queued"
    cluster.say(ev.CancelRequested(), machine="j2")
    cluster.say(ev.AttemptVanished(cluster.id("worker-0", "j2")), machine="j2")
    assert cluster.phase == "Starting"


def test_data_rests_during_a_pause_and_goes_on_after_it() -> None:
    cluster = suspended(reading())

    assert stream_of(cluster).is_paused
    cluster.say(ev.ResumeRequested())

    assert not stream_of(cluster).is_paused


def test_the_deadline_stands_still_during_a_pause() -> None:
    cluster = suspended(spec(deadline_ms=HOUR_MS))
    before_ms = deadline_at_ms(cluster.job)

    cluster.wait(10 * HOUR_MS)
    assert cluster.phase == "Suspended"
    cluster.say(ev.ResumeRequested())

    assert deadline_at_ms(cluster.job) == before_ms + 10 * HOUR_MS
    cluster.bring_up()
    cluster.wait(2 * HOUR_MS)
    cluster.stop_all()
    assert cluster.job.verdict is not None
    assert cluster.job.verdict.reason == "DeadlineExceeded"


def test_asking_twice_is_no_error() -> None:
    cluster = Cluster()
    cluster.run()

    for _ in range(2):
        assert cluster.refusal(ev.SuspendRequested()) is None
    cluster.stop_all()
    assert cluster.say(ev.SuspendRequested()) == "already so"
    for _ in range(2):
        assert cluster.refusal(ev.ResumeRequested()) is None

    assert cluster.phase == "Starting"


def test_a_job_in_the_queue_and_one_that_starts_can_be_paused() -> None:
    queued, starting = Cluster(nodes=0), Cluster()
    queued.submit()
    starting.submit()
    starting.launch()

    queued.say(ev.SuspendRequested())
    starting.say(ev.SuspendRequested())
    for attempt in starting.names(AttemptPhase.STOPPING):
        starting.gone(attempt)

    assert (queued.phase, starting.phase) == ("Suspended", "Suspended")


def test_a_resume_while_it_stops_takes_the_pause_back() -> None:
    cluster = Cluster()
    cluster.run()
    cluster.say(ev.SuspendRequested())

    cluster.say(ev.ResumeRequested())

    assert cluster.job.then == "Queued"
    cluster.stop_all()
    assert cluster.phase == "Starting"


@pytest.mark.parametrize("event", [ev.SuspendRequested(), ev.ResumeRequested()])
def test_a_job_with_a_verdict_is_neither_paused_nor_resumed(event: ev.JobEvent) -> None:
    cluster = Cluster()
    cluster.run()
    cluster.say(ev.CancelRequested())

    assert isinstance(cluster.refusal(event), PhaseConflictError)
    cluster.stop_all()
    assert isinstance(cluster.refusal(event), PhaseConflictError)


def test_a_paused_job_can_be_cancelled_finished_and_changed() -> None:
    cancelled, finished = suspended(), suspended()

    cancelled.say(ev.CancelRequested())
    finished.say(ev.SpecPatched(spec(role(replicas=2), priority=90), {}))
    finished.say(ev.VerdictRequested("Succeeded", "good enough"))

    assert cancelled.phase == "Cancelled"
    assert (finished.phase, finished.job.spec.priority) == ("Succeeded", 90)
