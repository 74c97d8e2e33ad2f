"""How jobs end (C01 to C04, C07 to C09, C48, A1, A4, A14)."""

import pytest
from msgspec.structs import replace

from primusd import core
from primusd.admission.events import JobForgotten
from primusd.core import Ignored, Recorded, Rejected
from primusd.job import events as ev
from primusd.job.decoding import Decoding
from primusd.job.phases import AttemptPhase
from primusd.job.spec import KafkaSource, Offsets, Reading, Sample, Source, StreamSpec, TimeRange
from primusd.records import SCHEMA, Entry, Proposal, Record
from tests.state.job_driver import UID, Cluster, budgets, ended, role, span, spec

CLICKS = StreamSpec("clicks", (Source("/data/*.txt"),))


def verdict(cluster: Cluster) -> tuple[str, str]:
    found = cluster.job.verdict
    assert found is not None
    return found.as_phase, found.reason


def test_A1_three_roles_say_hello_and_the_job_succeeds() -> None:
    cluster = Cluster()
    cluster.run(spec(role("chief"), role("ps"), role("worker")))

    cluster.exit("chief-0", "ps-0", "worker-0")

    assert cluster.phase == "Succeeded"
    assert verdict(cluster) == ("Succeeded", "Completed")
    assert {one.last_number for one in (cluster.replica("chief-0"), cluster.replica("ps-0"))} == {1}
    cluster.check_replay()


def test_A4_a_kill_from_outside_ends_the_waiting_job_as_cancelled() -> None:
    cluster = Cluster()
    cluster.run(spec(role("worker", 2)))

    cluster.say(ev.CancelRequested("not needed"), by="uid:1 (ann)")
    assert cluster.phase == "Stopping"
    cluster.stop_all()

    assert cluster.phase == "Cancelled"
    assert verdict(cluster) == ("Cancelled", "CancelledByUser")
    assert cluster.job.verdict is not None
    assert cluster.job.verdict.decided_by == "uid:1 (ann)"
    assert cluster.phases() == ["Retired", "Retired"]


def test_C02_A14_helpers_that_never_exit_are_stopped_once_the_chief_is_done() -> None:
    cluster = Cluster()
    helpers = (role("ps", 2, success="never"), role("worker", 2, success="never"))
    cluster.run(spec(role("chief"), *helpers))

    cluster.exit("chief-0")

    assert cluster.phase == "Stopping"
    assert len(cluster.names(AttemptPhase.STOPPING)) == 4
    cluster.stop_all()
    assert cluster.phase == "Succeeded"
    for name in ("ps-0", "ps-1", "worker-0", "worker-1"):
        outcome = cluster.newest(name).outcome
        assert outcome is not None
        assert (outcome.cause, outcome.stop_reason) == ("Stopped", "verdict")
    assert not cluster.role("ps").charges


def test_C02_exit_0_never_restarts() -> None:
    cluster = Cluster()
    cluster.run(spec(role("chief"), role("ps", 1, success="never")))

    cluster.exit("ps-0")
    cluster.wait(3_600_000)

    assert cluster.phase == "Running"
    assert cluster.phases("ps") == ["Completed"]
    assert cluster.replica("ps-0").last_number == 1


def test_C01_an_evaluator_may_finish_its_work_after_the_verdict() -> None:
    cluster = Cluster()
    evaluator = role("evaluator", 1, success="never", drain_ms=60_000)
    cluster.run(spec(role("chief"), evaluator, role("ps", 1, success="never")))

    cluster.exit("chief-0")
    assert cluster.phase == "Draining"
    assert cluster.names(AttemptPhase.STOPPING) == ["ps-0"]
    cluster.stop_all()
    cluster.wait(5_000)
    assert cluster.newest("evaluator-0").phase == "Running"
    cluster.exit("evaluator-0")

    assert cluster.phase == "Succeeded"
    assert cluster.told("DrainEnded") == "all helpers ended by themselves"
    cluster.check_replay()


@pytest.mark.parametrize("policy", ["gang", "dynamic", "ordered"])
def test_C01_an_evaluator_that_is_slow_to_come_still_has_its_time(policy: str) -> None:
    cluster = Cluster()
    evaluator = role("evaluator", 1, success="never", drain_ms=60_000)
    of = spec(role("chief"), evaluator, policy=policy, gang_roles=("chief",))
    cluster.submit(of)
    for step in (cluster.launch, cluster.register, cluster.hold):
        step("chief-0")
    cluster.start()

    cluster.exit("chief-0")
    assert (cluster.phase, cluster.newest("evaluator-0").phase) == ("Draining", "Requested")
    cluster.bring_up()

    assert cluster.newest("evaluator-0").phase == "Running"
    cluster.exit("evaluator-0")
    assert cluster.phase == "Succeeded"
    assert cluster.told("DrainEnded") == "all helpers ended by themselves"
    cluster.check_replay()


@pytest.mark.parametrize("policy", ["dynamic", "ordered"])
@pytest.mark.parametrize("code", [0, 1])
def test_C01_an_evaluator_may_begin_when_all_others_are_done(policy: str, code: int) -> None:
    cluster = Cluster()
    waits = {"worker": "completed"}
    evaluator = role("evaluator", 1, success="never", drain_ms=60_000, depends_on=waits)
    cluster.submit(spec(role("worker", 2), evaluator, policy=policy, budgets=budgets(0)))
    cluster.bring_up()
    cluster.wait(3_600_000)
    assert cluster.names(AttemptPhase.RUNNING) == ["worker-0", "worker-1"]

    cluster.exit("worker-0", "worker-1")
    assert cluster.phase == "Draining"
    cluster.start()
    assert cluster.names(AttemptPhase.RUNNING) == ["evaluator-0"]
    cluster.exit("evaluator-0", code=code)

    assert cluster.phase == "Succeeded"
    cluster.check_replay()


def test_C03_a_drain_has_an_end_and_the_warning_names_who_was_cut_off() -> None:
    cluster = Cluster()
    cluster.run(spec(role("chief"), role("evaluator", 1, success="never", drain_ms=60_000)))
    cluster.exit("chief-0")

    cluster.wait(60_000)
    assert cluster.phase == "Stopping"
    cluster.stop_all()

    assert cluster.phase == "Succeeded"
    found = [one for one in cluster.job.timeline if one.reason == "DrainEnded"]
    assert [one.level for one in found] == ["warning"]
    assert "evaluator-0" in found[0].message


def test_a_helper_that_crashes_while_it_drains_does_not_change_the_verdict() -> None:
    cluster = Cluster()
    evaluator = role("evaluator", 1, success="never", drain_ms=60_000, budgets=budgets(0))
    cluster.run(spec(role("chief"), evaluator))
    cluster.exit("chief-0")

    cluster.exit("evaluator-0", code=1)

    assert cluster.phase == "Succeeded"


def test_a_helper_that_is_used_up_fails_the_job() -> None:
    cluster = Cluster()
    cluster.run(spec(role("chief"), role("ps", 1, success="never", budgets=budgets(0))))

    cluster.exit("ps-0", code=1)

    assert verdict(cluster) == ("Failed", "Crashed")


def test_C04_what_completed_never_runs_again_after_a_restart_of_the_daemon() -> None:
    cluster = Cluster()
    cluster.run(spec(role("worker", 2)))
    cluster.exit("worker-0")

    cluster.world = cluster.replayed()
    late = cluster.say(ev.AttemptVanished(cluster.id("worker-0")), by="launcher:local")
    cluster.wait(3_600_000)

    assert late == ""
    assert cluster.phases() == ["Completed", "Active"]
    assert cluster.replica("worker-0").last_number == 1


def test_C07_the_verdict_stops_everybody_and_is_told_when_all_are_gone() -> None:
    cluster = Cluster()
    cluster.run(spec(role("worker", 3, budgets=budgets(0)), role("ps", 2, success="never")))

    cluster.exit("worker-1", code=2)

    assert (cluster.phase, cluster.job.then) == ("Stopping", "Failed")
    stopping = cluster.names(AttemptPhase.STOPPING)
    assert len(stopping) == 4
    for name in stopping[:-1]:
        cluster.exit(name, code=None, signal=9, stop_seen="verdict")
    assert cluster.phase == "Stopping", "one of them is not known to be gone"
    cluster.stop_all()
    assert cluster.phase == "Failed"
    assert cluster.world.admission.demands == {}


def test_C07_an_attempt_that_cannot_be_ended_is_quarantined_and_the_job_still_ends() -> None:
    cluster = Cluster()
    cluster.run(spec(role("worker", 1), role("ps", 1, success="never")))
    cluster.exit("worker-0")
    cluster.wait(100_000)

    cluster.say(ev.StopFailed(cluster.id("ps-0"), was_delivered=False), by="launcher:local")

    assert cluster.phase == "Succeeded"
    assert cluster.job.has_quarantined
    assert len(cluster.world.admission.quarantined) == 1
    assert cluster.told("StopFailed") == ("ps-0 attempt 1 could not be ended; its slot stays taken")


@pytest.mark.parametrize(
    ("success", "percent", "expected"),
    [
        ("all", 100, ("Failed", "Crashed")),
        ("percent", 75, ("Succeeded", "PartialSuccess")),
        ("percent", 76, ("Failed", "Crashed")),
        ("any", 100, ("Succeeded", "PartialSuccess")),
    ],
)
def test_C08_M036_partial_success_is_asked_for_and_named(
    success: str, percent: int, expected: tuple[str, str]
) -> None:
    cluster = Cluster()
    worker = role("worker", 4, success=success, percent=percent, budgets=budgets(0))
    cluster.run(spec(worker))

    cluster.exit("worker-0", code=1)
    for index in (1, 2, 3):
        if f"worker-{index}" in cluster.names(AttemptPhase.RUNNING):
            cluster.exit(f"worker-{index}")
    cluster.stop_all()

    assert verdict(cluster) == expected
    if expected[0] == "Succeeded":
        assert cluster.job.verdict is not None
        assert "1 failed" in cluster.job.verdict.message


def test_C08_a_percentage_reached_before_the_rest_ended_is_partial_too() -> None:
    cluster = Cluster()
    cluster.run(spec(role("worker", 4, success="percent", percent=75)))

    cluster.exit("worker-0", "worker-1", "worker-3")
    cluster.stop_all()

    assert verdict(cluster) == ("Succeeded", "PartialSuccess")
    assert cluster.job.verdict is not None
    assert cluster.job.verdict.message == "3 of 4 worker completed, 75 percent was asked for"


def test_any_is_met_as_soon_as_one_completes_and_the_rest_is_stopped() -> None:
    cluster = Cluster()
    cluster.run(spec(role("worker", 3, success="any")))

    cluster.exit("worker-1")

    assert cluster.phase == "Stopping"
    cluster.stop_all()
    assert verdict(cluster) == ("Succeeded", "Completed")
    assert cluster.phases() == ["Retired", "Completed", "Retired"]


def test_C09_the_verdict_names_its_rule() -> None:
    cluster = Cluster()
    cluster.run(spec(role("chief"), role("worker", 2, success="percent", percent=50)))

    cluster.exit("chief-0", "worker-0")

    assert cluster.job.verdict is not None
    assert cluster.job.verdict.rule == "chief: all; worker: 50 percent"


def test_a_job_of_helpers_only_is_never_a_success_by_having_nothing_to_do() -> None:
    cluster = Cluster()

    cluster.run(spec(role("ps", 1, success="never")))

    assert cluster.phase == "Running"


def test_the_deadline_counts_from_the_first_admission() -> None:
    cluster = Cluster()
    cluster.run(spec(role(), deadline_ms=3_600_000))

    cluster.wait(3_599_999)
    assert cluster.phase == "Running"
    cluster.wait(1)

    stop = cluster.newest("worker-0").stop
    assert stop is not None
    assert stop.reason == "deadline"
    assert verdict(cluster) == ("Failed", "DeadlineExceeded")


def test_a_job_that_waits_for_one_that_failed_fails_too() -> None:
    cluster = Cluster(nodes=0)
    cluster.submit()

    cluster.say(ev.JobRefused("DependencyFailed", "prepare-ctr has Failed"), by="admission")

    assert cluster.phase == "Failed"
    assert verdict(cluster) == ("Failed", "DependencyFailed")


def test_of_two_verdicts_in_one_step_the_first_stands_and_the_second_is_told() -> None:
    """Two people at once: both saw a job that nobody ends yet."""
    cluster = Cluster()
    cluster.run()
    said = [
        Proposal(UID, ev.VerdictRequested(one, why), by)
        for one, why, by in (
            ("Succeeded", "good enough", "uid:1 (ann)"),
            ("Failed", "no", "uid:2 (bob)"),
            ("Succeeded", "me too", "uid:3 (cat)"),
        )
    ]

    step = core.step(cluster.world, said, at_ms=cluster.now_ms, term=1, revision=99)

    first, second, third = step.answers
    assert isinstance(first, Recorded)
    assert isinstance(second, Rejected)
    assert str(second.error).startswith(
        "train is being finished as Succeeded (uid:1 (ann): good enough): it cannot be finished as "
        "Failed as well"
    )
    assert isinstance(third, Ignored)
    job = step.world.jobs[UID]
    assert job.verdict is not None
    assert (job.then, job.verdict.decided_by) == ("Succeeded", "uid:1 (ann)")


def test_a_journal_with_two_verdicts_of_people_is_replayed_as_it_was() -> None:
    """An older primusd recorded the second one, and it counted."""
    cluster = Cluster()
    cluster.run()
    second = Record(UID, -1, "uid:2 (bob)", ev.VerdictRequested("Failed", "no"))
    cluster.say(ev.VerdictRequested("Succeeded", "good enough"), by="uid:1 (ann)")

    world = core.replay(
        cluster.world, Entry(SCHEMA, 1, cluster.revision + 1, cluster.now_ms, (second,))
    )

    job = world.jobs[UID]
    assert job.verdict is not None
    assert (job.then, job.verdict.decided_by) == ("Failed", "uid:2 (bob)")


def test_completion_before_the_stop_arrived_counts() -> None:
    cluster = Cluster()
    cluster.run(spec(role("worker", 2)))
    cluster.say(ev.CancelRequested())

    cluster.exit("worker-0", code=0)
    cluster.exit("worker-1", code=0, stop_seen="cancelled")

    assert cluster.phase == "Cancelled"
    assert cluster.phases() == ["Completed", "Retired"]


def test_C21_a_record_that_goes_leaves_a_tombstone_until_then_nothing_starts() -> None:
    cluster = Cluster()
    cluster.run(spec(role(budgets=budgets(0))))
    cluster.exit("worker-0", code=1)
    assert cluster.phase == "Failed"
    assert cluster.refusal(ev.RestartRequested(span("worker", 0))) is not None

    cluster.say(ev.ForgetRequested(1_000), by="uid:1 (ann)")

    assert UID not in cluster.world.jobs
    assert UID in cluster.world.admission.tombstones
    told = [record.event for record in cluster.entries[-1].records]
    assert told[-1] == JobForgotten(UID, 1_000)
    cluster.check_replay()


# Streams.


def with_clicks(**fields: str) -> StreamSpec:
    return StreamSpec("clicks", (Source("/data/*.txt"),), **fields)  # type: ignore[arg-type] # text


def readers(cluster: Cluster, stream: StreamSpec = CLICKS) -> None:
    cluster.run(spec(role("worker", 2, data=(Reading("clicks"),)), streams=(stream,)))


def test_every_finite_stream_has_to_be_done_too() -> None:
    cluster = Cluster()
    readers(cluster)

    cluster.exit("worker-0")
    cluster.say(ev.StreamFinished("clicks", 100, 0), by="stream")
    assert cluster.phase == "Running"
    cluster.exit("worker-1")

    assert verdict(cluster) == ("Succeeded", "Completed")
    cluster.check_replay()


def test_rows_that_nobody_is_left_to_read_fail_the_job_with_their_count() -> None:
    cluster = Cluster()
    readers(cluster)

    cluster.exit("worker-0")
    assert cluster.phase == "Running"
    cluster.exit("worker-1")

    assert verdict(cluster) == ("Failed", "DataLeft")


def test_leftover_allow_lets_the_job_succeed_and_says_so() -> None:
    cluster = Cluster()
    readers(cluster, with_clicks(leftover="allow"))

    cluster.exit("worker-0", "worker-1")

    assert verdict(cluster) == ("Succeeded", "PartialSuccess")


def test_C48_what_was_left_out_is_named_in_the_verdict() -> None:
    cluster = Cluster()
    readers(cluster)

    cluster.say(ev.StreamFinished("clicks", 97, 3), by="stream")
    cluster.exit("worker-0", "worker-1")

    assert verdict(cluster) == ("Succeeded", "PartialSuccess")
    assert cluster.job.verdict is not None
    assert "3 bytes of stream clicks" in cluster.job.verdict.message


@pytest.mark.parametrize(
    ("skipped", "unsized", "words"),
    [
        (52, 2, "50 bytes and 2 files of unknown length of stream clicks were left out"),
        (1, 1, "1 file of unknown length of stream clicks were left out"),
    ],
)
def test_C48_files_whose_length_nobody_knows_are_not_counted_as_one_row(
    skipped: int, unsized: int, words: str
) -> None:
    cluster = Cluster()
    readers(cluster)

    cluster.say(ev.StreamFinished("clicks", 97, skipped, unsized), by="stream")
    cluster.exit("worker-0", "worker-1")

    assert cluster.job.verdict is not None
    assert words in cluster.job.verdict.message
    assert words.replace(" of stream clicks", "") in cluster.told("StreamFinished")


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        (replace(CLICKS, sample=Sample(1)), "7 rows are not in the sample of stream clicks"),
        (
            replace(CLICKS, decoding=Decoding(filter=("n > 1",))),
            "7 rows were left out by the filter of stream clicks",
        ),
        (
            replace(CLICKS, decoding=Decoding(filter=("n > 1",)), sample=Sample(1)),
            "7 rows were left out by the filter and sample of stream clicks",
        ),
    ],
)
def test_C54_rows_that_the_job_asked_to_leave_out_are_named_by_what_left_them_out(
    stream: StreamSpec, words: str
) -> None:
    cluster = Cluster()
    readers(cluster, stream)

    cluster.say(ev.StreamFinished("clicks", 97, 0, left_out=7), by="stream")
    cluster.exit("worker-0", "worker-1")

    assert cluster.job.verdict is not None
    assert words in cluster.job.verdict.message
    assert words.replace(" of stream clicks", "") in cluster.told("StreamFinished")


def test_a_stream_that_failed_fails_the_job() -> None:
    cluster = Cluster()
    readers(cluster)

    cluster.say(ev.StreamFailed("clicks", "bad row in a.txt"), by="stream")

    assert verdict(cluster) == ("Failed", "DataFailed")
    assert "bad row in a.txt" in cluster.told("VerdictReached")


def test_a_stream_that_nobody_reads_takes_no_part_in_the_verdict() -> None:
    cluster = Cluster()
    cluster.run(spec(role(), streams=(CLICKS,)))

    cluster.exit("worker-0")

    assert cluster.phase == "Succeeded"


@pytest.mark.parametrize(
    "source",
    [
        Source(kafka=KafkaSource(("k1:9092",), ("clicks",))),
        Source("/data/{{YYYY}}/*.txt", span=TimeRange("2026-01-01", "now")),
    ],
    ids=["kafka", "to now"],
)
def test_a_stream_without_an_end_takes_no_part_in_the_verdict(source: Source) -> None:
    cluster = Cluster()
    readers(cluster, StreamSpec("clicks", (source,)))

    cluster.exit("worker-0")
    before = cluster.phase
    cluster.exit("worker-1")

    assert before == "Running"
    assert verdict(cluster) == ("Succeeded", "Completed")
    cluster.check_replay()


def test_topics_with_an_end_have_to_be_read_to_it() -> None:
    cluster = Cluster()
    source = KafkaSource(("k1:9092",), ("clicks",), until=Offsets("end"))
    readers(cluster, StreamSpec("clicks", (Source(kafka=source),)))

    cluster.exit("worker-0", "worker-1")

    assert verdict(cluster) == ("Failed", "DataLeft")


def test_a_reader_is_opened_when_it_registers_and_ended_with_its_last_positions() -> None:
    cluster = Cluster()
    readers(cluster)
    me = cluster.id("worker-0")
    stream = f"{UID}/clicks"
    assert (stream, "ReaderOpened") in all_told(cluster)

    cluster.say(ev.TrainerExited(me, ended(1)), by="executor")

    told = all_told(cluster)[-3:]
    assert (stream, "ReaderEnded") in told
    assert (UID, "ReaderSettled") in told
    assert cluster.newest("worker-0").settled_streams == (("clicks", -1),)


def all_told(cluster: Cluster) -> list[tuple[str, str]]:
    """Return machine and event of every record."""
    return [
        (record.machine, type(record.event).__name__)
        for entry in cluster.entries
        for record in entry.records
    ]
