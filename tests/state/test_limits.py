"""Deadline and replica hours: the warning before, the end, and what moves either."""

from typing import Any

import pytest
from msgspec.structs import replace

from primusd.api.reports import proposals
from primusd.executor.protocol import Checkpoint, Report, Trainer
from primusd.job import events as ev
from primusd.job import limits
from primusd.job.model import Attempt, Hours
from primusd.job.phases import AttemptPhase, StopReason
from tests.state.job_driver import Cluster, role, spec

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


def near(cluster: Cluster, name: str = "worker") -> dict[str, int]:
    return dict(limits.near(cluster.job, name, cluster.now_ms))


def reason_of(cluster: Cluster) -> tuple[str, str]:
    assert cluster.job.verdict is not None
    return cluster.job.verdict.as_phase, cluster.job.verdict.reason


def running(*, replicas: int = 1, **fields: Any) -> Cluster:  # fields of JobSpec
    cluster = Cluster()
    cluster.run(spec(role(replicas=replicas), **fields))
    return cluster


def test_trainers_are_warned_before_the_deadline_and_stopped_at_it() -> None:
    cluster = running(deadline_ms=HOUR_MS, deadline_warn_ms=10 * MINUTE_MS)

    cluster.wait(50 * MINUTE_MS - 1)
    assert near(cluster) == {}
    cluster.wait(1)

    assert near(cluster) == {"deadline": 10 * MINUTE_MS}
    assert cluster.told("LimitNeared") == "the deadline is 10 min away; the trainers are warned"
    assert cluster.names(AttemptPhase.RUNNING) == ["worker-0"]
    cluster.wait(4 * MINUTE_MS)
    assert near(cluster) == {"deadline": 6 * MINUTE_MS}
    cluster.wait(6 * MINUTE_MS)
    stop = cluster.newest("worker-0").stop
    assert stop is not None
    assert stop.reason is StopReason.DEADLINE
    assert near(cluster) == {}
    cluster.stop_all()
    assert reason_of(cluster) == ("Failed", "DeadlineExceeded")
    assert cluster.reasons().count("LimitNeared") == 1
    cluster.check_replay()


def test_a_deadline_without_a_warning_warns_nobody() -> None:
    cluster = running(deadline_ms=HOUR_MS)

    cluster.wait(HOUR_MS)

    assert "LimitNeared" not in cluster.reasons()
    assert cluster.phase == "Stopping"


def test_a_deadline_that_is_moved_takes_its_warning_back_and_warns_again() -> None:
    cluster = running(deadline_ms=HOUR_MS, deadline_warn_ms=10 * MINUTE_MS)
    cluster.wait(55 * MINUTE_MS)
    assert near(cluster) == {"deadline": 5 * MINUTE_MS}

    cluster.say(ev.SpecPatched(replace(cluster.job.spec, deadline_ms=2 * HOUR_MS), {}))

    assert near(cluster) == {}
    cluster.wait(60 * MINUTE_MS)
    assert near(cluster) == {"deadline": 5 * MINUTE_MS}
    assert cluster.reasons().count("LimitNeared") == 2


def test_a_limit_that_is_taken_away_takes_its_warning_with_it() -> None:
    cluster = running(deadline_ms=HOUR_MS, deadline_warn_ms=10 * MINUTE_MS)
    cluster.wait(55 * MINUTE_MS)

    cluster.say(ev.SpecPatched(replace(cluster.job.spec, deadline_ms=0), {}))

    assert near(cluster) == {}
    cluster.wait(24 * HOUR_MS)
    assert cluster.phase == "Running"


def test_a_limit_that_is_lowered_below_what_is_used_ends_the_job_at_once() -> None:
    cluster = running(max_replica_ms=10 * HOUR_MS)
    cluster.wait(2 * HOUR_MS)

    cluster.say(ev.SpecPatched(replace(cluster.job.spec, max_replica_ms=HOUR_MS), {}))

    cluster.stop_all()
    assert reason_of(cluster) == ("Failed", "ReplicaHoursUsed")


def test_replica_hours_are_those_of_all_trainers_together() -> None:
    cluster = running(replicas=4, max_replica_ms=4 * HOUR_MS)

    cluster.wait(HOUR_MS - 5 * MINUTE_MS - 1)
    assert near(cluster) == {}
    cluster.wait(1)

    assert near(cluster) == {"replicaHours": 5 * MINUTE_MS}
    cluster.wait(5 * MINUTE_MS)
    stop = cluster.newest("worker-3").stop
    assert stop is not None
    assert stop.reason is StopReason.REPLICA_HOURS
    cluster.stop_all()
    assert reason_of(cluster) == ("Failed", "ReplicaHoursUsed")
    assert cluster.job.verdict is not None
    assert cluster.job.verdict.message == "its trainers ran 4 h together, 4 h are allowed"
    cluster.check_replay()


def test_hours_are_told_as_far_as_they_differ_from_none() -> None:
    assert limits.hour_words(7_200) == "0.002 h"
    assert limits.hour_words(1_800_000) == "0.5 h"
    assert limits.hour_words(1_440_900_000) == "400.25 h"


def test_time_of_earlier_attempts_counts_and_time_between_them_does_not() -> None:
    cluster = running(max_replica_ms=HOUR_MS)
    cluster.wait(40 * MINUTE_MS)
    cluster.exit("worker-0", code=1)
    cluster.wait(5 * MINUTE_MS)
    assert limits.used_ms(cluster.job, cluster.now_ms) == 40 * MINUTE_MS

    cluster.bring_up()
    cluster.wait(20 * MINUTE_MS - 1)

    assert cluster.phase == "Running"
    cluster.wait(1)
    assert cluster.phase == "Stopping"


def test_a_pause_costs_no_replica_hours() -> None:
    cluster = running(replicas=2, max_replica_ms=2 * HOUR_MS)
    cluster.wait(30 * MINUTE_MS)
    cluster.say(ev.SuspendRequested())
    cluster.stop_all()

    cluster.wait(24 * HOUR_MS)

    assert cluster.phase == "Suspended"
    assert limits.used_ms(cluster.job, cluster.now_ms) == HOUR_MS
    cluster.say(ev.ResumeRequested())
    cluster.bring_up()
    cluster.wait(30 * MINUTE_MS)
    assert cluster.phase == "Stopping"


def test_fewer_trainers_make_the_hours_last_longer() -> None:
    cluster = running(replicas=2, max_replica_ms=2 * HOUR_MS)
    cluster.wait(30 * MINUTE_MS)

    cluster.exit("worker-1")

    cluster.wait(HOUR_MS - 1)
    assert cluster.phase == "Running"
    cluster.wait(1)
    assert reason_of(cluster) == ("Failed", "ReplicaHoursUsed")


def test_helpers_are_warned_of_the_end_of_their_drain_and_no_limit_cuts_it_short() -> None:
    cluster = Cluster()
    evaluator = role("evaluator", success="never", drain_ms=15 * MINUTE_MS)
    cluster.run(spec(role(), evaluator, deadline_ms=HOUR_MS, max_replica_ms=3 * HOUR_MS))
    cluster.wait(59 * MINUTE_MS)

    cluster.exit("worker-0")

    assert cluster.phase == "Draining"
    assert near(cluster, "evaluator") == {"drain": 15 * MINUTE_MS}
    cluster.wait(10 * MINUTE_MS)
    assert near(cluster, "evaluator") == {"drain": 5 * MINUTE_MS}
    cluster.exit("evaluator-0")
    assert cluster.phase == "Succeeded"


@pytest.mark.parametrize("share", [10, 1])
def test_a_short_allowance_is_warned_of_at_its_last_tenth(share: int) -> None:
    cluster = running(max_replica_ms=share * MINUTE_MS)

    cluster.wait(share * MINUTE_MS * 9 // 10)

    assert near(cluster) == {"replicaHours": share * MINUTE_MS // 10}


def test_an_end_whose_start_an_older_version_recorded_is_not_counted() -> None:
    before = Attempt(1, 1, AttemptPhase.RUNNING, "n1", started_ms=5)

    hours = limits.counted(Hours(), before, replace(before, ended_ms=9))

    assert hours == Hours()


def test_each_attempt_keeps_its_own_newest_checkpoint_and_the_job_the_one_that_came_last() -> None:
    cluster = running(replicas=2)
    first, second = cluster.id("worker-0"), cluster.id("worker-1")

    cluster.say(ev.CheckpointNoted(first, "/c/0", 10))
    cluster.say(ev.CheckpointNoted(second, "/c/1", 9))

    assert cluster.job.checkpoint == Checkpoint("/c/1", 9, "")
    assert cluster.newest("worker-0").checkpoint == Checkpoint("/c/0", 10, "")
    noted = [
        proposals(cluster.job, name, cluster.newest(name.replica), report(path, step))
        for name, path, step in ((first, "/c/0", 10), (second, "/c/1", 9), (second, "/c/2", 11))
    ]
    assert [len(one) for one in noted] == [0, 0, 1]
    cluster.check_replay()


def test_the_timeline_keeps_of_an_attempts_checkpoints_the_newest_only() -> None:
    cluster = running(replicas=2)
    first, second = cluster.id("worker-0"), cluster.id("worker-1")

    cluster.say(ev.CheckpointNoted(second, "/c/1", 1))
    for step in range(1, 300):
        cluster.say(ev.CheckpointNoted(first, "/c/0", step))

    told = [one for one in cluster.job.timeline if one.reason == "CheckpointNoted"]
    assert [(one.subject, one.details) for one in told] == [
        (second.label, {"step": 1}),
        (first.label, {"step": 299}),
    ]
    assert cluster.job.timeline[0].reason == "JobSubmitted"


def report(path: str, step: int) -> Report:
    trainer = Trainer(8, 0, ready=True)
    return Report(1, "running", 1, trainer, None, checkpoint=Checkpoint(path, step, ""))
