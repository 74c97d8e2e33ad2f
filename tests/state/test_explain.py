"""C36, F01, F13: every reason of the closed lists is told, with its numbers, by what decides.

A test that shows a reason is marked with it; the last test walks the lists and finds the ones that
nobody shows.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from primusd.admission.events import MachineWedged, QueueSet
from primusd.datafeed.ledger.events import ListingFailed, PauseRequested, Scan, UnitsListed
from primusd.job import events as ev
from primusd.job.ids import Span
from primusd.job.model import StopState
from primusd.job.outcome import Evidence, decide
from primusd.job.phases import JobPhase, StopReason
from primusd.job.reasons import QUESTIONS, WHY_ENDING, WHY_RESTARTED, WHY_VERDICT, WHY_WAITING
from primusd.job.restarts import TOLD_MAX, reason_of
from primusd.job.spec import FailureRule, JobSpec, Reading, Resources, Source, StreamSpec
from primusd.views.explaining import explanations
from primusd.views.explanation_documents import Estimate, Explanation
from primusd.views.queue import queue_of
from primusd.views.waiting import why
from tests.state.job_driver import UID, Cluster, budgets, ended, role, spec

CLICKS = StreamSpec("clicks", (Source("/data/clicks/*.txt"),))
ANOTHER = "j0"
THIRD = "j2"


def explained(cluster: Cluster, uid: str = UID) -> tuple[Explanation, ...]:
    world = cluster.world
    queue = queue_of(world.admission)
    return explanations(world.jobs[uid], world, queue, at_ms=cluster.now_ms)


def answer(cluster: Cluster, question: str, reason: str, uid: str = UID) -> Explanation:
    """Return the answer with this reason; it has all that an answer has to have."""
    found = explained(cluster, uid)
    (one, *_) = [one for one in found if (one.question, one.reason) == (question, reason)]
    assert reason in QUESTIONS[question]
    assert one.answer
    timeline = {
        f"{moment.revision}.{moment.position}" for moment in cluster.world.jobs[uid].timeline
    }
    assert set(one.because) <= timeline
    return one


def gpus(
    count: int, replicas: int = 1, *, name: str = "train", deadline_ms: int = 0, minimum: int = 0
) -> JobSpec:
    resources = role().resources.__class__(1000, 1 << 30, count)
    return spec(
        role("worker", replicas, minimum=minimum, resources=resources),
        name=name,
        deadline_ms=deadline_ms,
    )


# Why it waits.


def test_WaitingForSlots_says_how_much_is_needed_and_free_who_makes_room_and_what_would_fit() -> (
    None
):
    cluster = Cluster(cpu=640)
    cluster.submit(gpus(6, name="mnist", deadline_ms=3_600_000), uid=ANOTHER)
    cluster.bring_up(uid=ANOTHER)
    cluster.wait(600_000)

    cluster.submit(gpus(1, 4))

    found = answer(cluster, WHY_WAITING, "WaitingForSlots")
    assert (found.numbers["gpusNeeded"], found.numbers["gpusFree"]) == (4, 2)
    assert found.answer.startswith("needs at once 4 GPUs, 2 free")
    assert found.would_fit == ("with worker 2 instead of 4", "on n1 when mnist ends")
    assert isinstance(found.estimate, Estimate)
    assert (found.estimate.in_ms, found.estimate.source, found.estimate.error_ms) == (
        3_000_000, "deadline of mnist", 0,
    )  # fmt: skip
    assert found.because == (f"{cluster.revision}.0",)


def test_F01_what_would_fit_is_less_than_an_elastic_role_needs_at_least() -> None:
    cluster = Cluster(cpu=640)
    cluster.submit(gpus(6, name="mnist"), uid=ANOTHER)
    cluster.bring_up(uid=ANOTHER)

    cluster.submit(gpus(1, 6, minimum=4))
    cluster.submit(gpus(1, 4, name="third", minimum=1), uid=THIRD)

    found = answer(cluster, WHY_WAITING, "WaitingForSlots")
    assert found.would_fit == ("with worker 2 instead of 4",)
    # There is room for one of these: it waits for its turn, and no other size would help.
    assert answer(cluster, WHY_WAITING, "WaitingForQueue", THIRD).would_fit is UNSET


def test_F01_an_estimate_rests_on_the_runs_of_the_same_name_before() -> None:
    cluster = Cluster(cpu=640)
    for minutes, uid in ((10, "h1"), (20, "h2"), (12, "h3")):
        cluster.submit(gpus(6, name="mnist"), uid=uid)
        cluster.bring_up(uid=uid)
        cluster.wait(minutes * 60_000)
        attempt = cluster.id("worker-0", uid)
        cluster.say(ev.TrainerExited(attempt, ended(0)), machine=uid)
        cluster.say(ev.AttemptVanished(attempt), machine=uid)
        cluster.wait(120_000)
    cluster.submit(gpus(6, name="mnist"), uid=ANOTHER)
    cluster.bring_up(uid=ANOTHER)
    cluster.wait(120_000)

    cluster.submit(gpus(4))

    estimate = answer(cluster, WHY_WAITING, "WaitingForSlots").estimate
    assert isinstance(estimate, Estimate)
    assert (estimate.in_ms, estimate.source) == (600_000, "history of mnist, 3 runs")
    assert estimate.error_ms == 300_000


def test_WaitingForQueue_says_how_many_come_first() -> None:
    cluster = Cluster(cpu=640)
    cluster.submit(gpus(6, name="a"), uid=ANOTHER)
    cluster.submit(gpus(4, name="b"), uid=UID)
    cluster.submit(gpus(2, name="c"), uid=THIRD)

    found = answer(cluster, WHY_WAITING, "WaitingForQueue", THIRD)

    assert found.numbers["jobsAhead"] == 1
    assert "1 job is ahead" in found.answer


def test_WaitingForNode_says_why_none_will_do() -> None:
    cluster = Cluster(nodes=0)
    cluster.submit()

    found = answer(cluster, WHY_WAITING, "WaitingForNode")

    assert (found.answer, found.numbers) == ("no node is known yet", {"nodesReady": 0})


def test_WaitingForPlacement_names_who_is_not_placed() -> None:
    cluster = Cluster()
    cluster.submit(spec(role("worker", 2)))

    found = answer(cluster, WHY_WAITING, "WaitingForPlacement")

    assert found.numbers["replicas"] == 2
    assert "worker-0, worker-1" in found.answer


def test_WaitingForRegistration_names_who_said_no_hello() -> None:
    cluster = Cluster()
    cluster.submit(spec(role("worker", 2)))
    cluster.launch()
    cluster.register("worker-0")

    found = answer(cluster, WHY_WAITING, "WaitingForRegistration")

    assert found.numbers["replicas"] == 1
    assert "worker-1" in found.answer


def test_WaitingForReady_names_who_fetches_files() -> None:
    cluster = Cluster()
    cluster.submit(spec(role("worker", 2)))
    cluster.launch()
    cluster.register()

    found = answer(cluster, WHY_WAITING, "WaitingForReady")

    assert found.numbers["replicas"] == 2


def test_WaitingForQuota_says_how_much_the_queue_may_use() -> None:
    cluster = Cluster(cpu=640)
    cluster.say(QueueSet("default", {"gpu": 6}), machine="")
    cluster.submit(gpus(5, name="a", deadline_ms=600_000), uid=ANOTHER)
    cluster.submit(gpus(2, name="b"))

    found = answer(cluster, WHY_WAITING, "WaitingForQuota")

    assert (found.numbers["gpusNeeded"], found.numbers["gpusUsed"]) == (2, 5)
    assert found.numbers["gpusLimit"] == 6
    assert isinstance(found.estimate, Estimate)
    assert (found.estimate.in_ms, found.estimate.source) == (600_000, "deadline of a")


def test_WaitingForJob_names_the_jobs_of_after() -> None:
    cluster = Cluster()
    cluster.submit(spec(name="prepare"), uid=ANOTHER)
    event = ev.JobSubmitted(UID, spec(after=("prepare",)), {}, "uid:1 (ann)", after=(ANOTHER,))
    cluster.say(event)

    found = answer(cluster, WHY_WAITING, "WaitingForJob")

    assert found.answer == "waits until prepare has Succeeded"
    assert found.numbers == {"jobs": 1}


def test_WaitingForRole_names_the_role_and_how_far_it_has_to_come() -> None:
    cluster = Cluster()
    cluster.submit(spec(role("ps", success="never"), role("worker", 2), policy="ordered"))
    cluster.launch()
    cluster.register()
    cluster.hold()

    found = answer(cluster, WHY_WAITING, "WaitingForRole")

    assert found.answer == "worker waits for ps to be ready"
    assert found.numbers == {"roles": 1, "replicas": 2}


def test_WaitingForRole_says_when_an_elastic_gang_starts_without_the_rest() -> None:
    cluster = Cluster(cpu=640)
    cluster.submit(gpus(4, 3, minimum=2))
    cluster.bring_up()
    cluster.wait(10_000)

    found = answer(cluster, WHY_WAITING, "WaitingForRole")

    assert found.answer == "2 of 3 are there; it starts with them in 20 s"
    assert found.numbers == {"replicas": 2, "missing": 1, "inMs": 20_000}


def test_WaitingForImage_is_the_word_of_the_launcher() -> None:
    cluster = Cluster()
    cluster.submit()
    cluster.say(ev.AttemptWaiting(cluster.id("worker-0"), "image ctr:7 is pulled"))

    found = answer(cluster, WHY_WAITING, "WaitingForImage")

    assert found.answer.endswith("image ctr:7 is pulled")


def test_RetryDelayed_says_when_and_after_what() -> None:
    cluster = Cluster()
    cluster.run(spec(role(delay_ms=60_000)))
    cluster.exit("worker-0", code=1)

    found = answer(cluster, WHY_WAITING, "RetryDelayed")

    assert isinstance(found.estimate, Estimate)
    assert found.numbers["inMs"] == found.estimate.in_ms > 0
    assert "attempt 1 crashed with code 1" in found.answer
    assert "RetryDecided" in {
        one.reason
        for one in cluster.job.timeline
        if f"{one.revision}.{one.position}" in found.because
    }


def timed_out() -> Cluster:
    cluster = Cluster()
    cluster.submit()
    cluster.wait(cluster.job.spec.place_timeout_ms)
    cluster.gone("worker-0")
    return cluster


def test_StartBackoff_says_how_often_and_for_how_long() -> None:
    cluster = timed_out()

    found = answer(cluster, WHY_WAITING, "StartBackoff")

    assert (found.numbers["startTimeouts"], found.numbers["inMs"] > 0) == (1, True)


def test_Paused_names_the_streams() -> None:
    cluster = Cluster()
    cluster.run(spec(role(data=(Reading("clicks"),)), streams=(CLICKS,)))
    cluster.say(PauseRequested(), machine=f"{UID}/clicks")

    found = answer(cluster, WHY_WAITING, "Paused")

    assert (found.answer, found.numbers) == ("data is paused: clicks", {"streams": 1})


def test_WaitingForData_names_the_stream_its_fault_and_the_next_try() -> None:
    cluster = Cluster()
    cluster.run(spec(role(data=(Reading("clicks"),)), streams=(CLICKS,)))
    machine = f"{UID}/clicks"
    cluster.say(ListingFailed("hdfs://nn: no route", is_permanent=False), machine=machine)

    found = answer(cluster, WHY_WAITING, "WaitingForData")

    assert found.answer.startswith("stream clicks: hdfs://nn: no route; next try in ")
    assert (found.numbers["tries"], found.numbers["inMs"] > 0) == (1, True)


def test_WaitingForData_says_when_late_files_are_looked_for() -> None:
    """M077."""
    source = Source("/data", rescan_ms=600_000)
    cluster = Cluster()
    cluster.run(
        spec(role(data=(Reading("clicks"),)), streams=(replace(CLICKS, sources=(source,)),))
    )
    scan = Scan(has_ended=False, is_at_end=True)
    cluster.say(UnitsListed((), 0, is_complete=False, scan=scan), machine=f"{UID}/clicks")

    found = answer(cluster, WHY_WAITING, "WaitingForData")

    said = "stream clicks: all files were read; late ones are looked for in 10 min"
    assert (found.answer, found.numbers) == (said, {"inMs": 600_000, "streams": 1})


# Why it is not over.


def test_Suspended_says_who_asked() -> None:
    cluster = Cluster()
    cluster.submit()
    cluster.gone("worker-0")
    cluster.say(ev.SuspendRequested(), by="uid:7 (bob)")
    while cluster.job.phase is not JobPhase.SUSPENDED:
        cluster.stop_all()
        cluster.wait(60_000)

    found = answer(cluster, WHY_ENDING, "Suspended")

    assert "by uid:7 (bob)" in found.answer


def test_AttemptsEnding_says_how_many_and_how_much_grace_is_left() -> None:
    cluster = Cluster()
    cluster.run(spec(role("worker", 2)))
    cluster.say(ev.CancelRequested("enough"))

    found = answer(cluster, WHY_ENDING, "AttemptsEnding")

    assert found.numbers["attempts"] == 2
    assert found.numbers["graceLeftMs"] == 30_000
    assert found.answer == "2 attempts have to end first, then it is Cancelled"


def test_HelpersDraining_says_for_how_long() -> None:
    cluster = Cluster()
    cluster.run(spec(role(), role("ps", success="never", drain_ms=60_000)))
    cluster.exit("worker-0")

    found = answer(cluster, WHY_ENDING, "HelpersDraining")

    assert (found.numbers["leftMs"], found.numbers["attempts"]) == (60_000, 1)


def test_Wedged_says_that_it_is_our_bug() -> None:
    cluster = Cluster()
    cluster.run()
    cluster.say(MachineWedged(UID, "KeyError"), machine="", by="engine")

    assert answer(cluster, WHY_ENDING, "Wedged").numbers == {"attempts": 1}


# Why it restarted.


@pytest.mark.parametrize(
    ("reason", "evidence"),
    [
        ("Crashed", Evidence(ended(1))),
        ("OutOfMemory", Evidence(ended(None, 9, oom_kills=1))),
        ("NodeLost", Evidence(word="nodeLost")),
        ("Preempted", Evidence(word="preempted")),
        ("Lost", Evidence(has_expired=True)),
        ("StartFailed", Evidence(ended(None, errno=2))),
        ("LaunchFailed", Evidence(launch_error="no image", is_launch_error_permanent=True)),
        ("ExecutorFailed", Evidence(word="forkFailed:no room")),
        ("PortTaken", Evidence(ended(None, error="portTaken:main"))),
    ],
)
def test_an_end_by_itself_is_a_reason_with_its_budget(reason: str, evidence: Evidence) -> None:
    assert reason_of(decide(evidence, at_ms=1)) == reason


@pytest.mark.parametrize(
    ("reason", "stop"),
    [
        ("Hung", StopReason.HUNG),
        ("NoRegistration", StopReason.NO_REGISTRATION),
        ("StartTimeout", StopReason.START_TIMEOUT),
        ("NotPlaced", StopReason.PLACEMENT),
        ("Drained", StopReason.DRAINED),
        ("NodeGivenUp", StopReason.NODE_GIVEN_UP),
        ("Preempted", StopReason.PREEMPTED),
    ],
)
def test_a_stop_that_is_charged_is_a_reason(reason: str, stop: StopReason) -> None:
    evidence = Evidence(ended(None, 15, stop_seen=str(stop)), StopState(stop, "", 0, 0))

    assert reason_of(decide(evidence, at_ms=1)) == reason


def test_a_restart_tells_the_first_cause_first_with_budget_and_delay() -> None:
    cluster = Cluster()
    cluster.run(spec(role("worker", 4, unit="role")))
    cluster.wait(52_000)
    cluster.exit("worker-3", code=1, lines="ValueError: label out of range")
    cluster.stop_all()
    cluster.wait(20_000)

    (found,) = [one for one in explained(cluster) if one.question == WHY_RESTARTED]

    assert (found.reason, found.subject) == ("Crashed", "worker-3")
    assert (found.numbers["budgetUsed"], found.numbers["budgetLimit"]) == (1, 3)
    assert found.numbers["ranMs"] == 52_000
    assert found.numbers["delayMs"] > 0
    assert "ValueError: label out of range" in found.answer
    assert "1 of 3 of the application budget; worker begins anew whole" in found.answer
    assert len(found.because) == 1


def test_of_many_ends_the_first_is_kept_and_the_newest() -> None:
    cluster = Cluster()
    cluster.run(spec(role("worker", 20, budgets=budgets(application=100))))
    for index in range(20):
        cluster.exit(f"worker-{index}", code=1)

    found = [one for one in explained(cluster) if one.question == WHY_RESTARTED]

    assert len(found) == TOLD_MAX
    assert (found[0].subject, found[-1].subject) == ("worker-0", "worker-19")


def decided(event: ev.JobEvent, reason: str, **more: str) -> Explanation:
    cluster = Cluster()
    cluster.run()
    cluster.say(event, by=more.get("by", "uid:7 (bob)"))
    return answer(cluster, WHY_RESTARTED, reason)


def test_RestartRequested_says_by_whom() -> None:
    event = ev.RestartRequested((Span("worker", 0, 0),), "new data")

    assert "(by uid:7 (bob))" in decided(event, "RestartRequested").answer


def test_Evicted_says_by_what() -> None:
    assert "for a better one" in decided(ev.JobEvicted("for a better one"), "Evicted").answer


def test_CompletedAgain_names_the_rule() -> None:
    cluster = Cluster()
    rule = FailureRule(causes=("completed",), budget="none", delay_ms=1_000)
    cluster.run(spec(role(), failure=(rule,)))
    cluster.exit("worker-0")
    cluster.wait(10_000)
    cluster.bring_up()

    found = answer(cluster, WHY_RESTARTED, "CompletedAgain")

    assert "worker-0 attempt 1 completed" in found.answer
    assert ", by failure[0]; attempt 2 began" in found.answer


def test_C23_a_restart_with_more_memory_says_how_much() -> None:
    cluster = Cluster()
    cluster.run(spec(role(resources=Resources(memory_bytes=8 << 30))))
    cluster.exit("worker-0", code=None, signal=9, oom_kills=1)
    cluster.wait(20_000)
    cluster.bring_up()

    found = answer(cluster, WHY_RESTARTED, "OutOfMemory")

    assert found.numbers["memoryBytes"] == 12 << 30
    assert found.answer.endswith("later, with 12Gi")


def test_C71_an_end_whose_rule_keeps_the_job_off_a_node_says_so_with_the_node() -> None:
    cluster = Cluster()
    rule = FailureRule(exit_codes=(9,), exclude_node_ms=3_600_000, delay_ms=1_000)
    cluster.run(spec(role(), failure=(rule,)))
    cluster.exit("worker-0", code=9)
    cluster.wait(10_000)
    cluster.bring_up()

    found = answer(cluster, WHY_RESTARTED, "Crashed")
    told = [one.message for one in cluster.job.timeline if "crashed" in one.message]

    assert ", by failure[0], off n1 for 1h; attempt 2 began" in found.answer
    assert told[0].endswith("; again in 1 s, off n1 for 1h")


def test_StartTimedOut_says_what_did_not_come() -> None:
    assert "was not placed in time" in answer(timed_out(), WHY_RESTARTED, "StartTimedOut").answer


def test_Resumed_says_that_a_pause_ended() -> None:
    cluster = Cluster()
    cluster.run()
    cluster.say(ev.SuspendRequested())
    cluster.stop_all()
    cluster.say(ev.ResumeRequested(), by="uid:7 (bob)")

    assert "the pause was ended" in answer(cluster, WHY_RESTARTED, "Resumed").answer


def test_LeaseLost_names_the_holder() -> None:
    cluster = Cluster()
    stream = replace(CLICKS, delivery="exactlyOnce")
    cluster.run(spec(role(data=(Reading("clicks"),), unit="role"), streams=(stream,)))
    cluster.say(ev.GroupLeaseLost("clicks", cluster.id("worker-0")), by="stream")

    assert "worker-0/1" in answer(cluster, WHY_RESTARTED, "LeaseLost").answer


# Why this verdict.


def failed_by_data() -> Cluster:
    cluster = Cluster()
    cluster.run(spec(role(data=(Reading("clicks"),)), streams=(CLICKS,)))
    cluster.say(ev.StreamFailed("clicks", "row 3 is bad"), by="stream")
    return cluster


def left_data() -> Cluster:
    cluster = Cluster()
    cluster.run(spec(role(data=(Reading("clicks"),)), streams=(CLICKS,)))
    cluster.exit("worker-0")
    return cluster


def over_deadline() -> Cluster:
    cluster = Cluster()
    cluster.run(spec(deadline_ms=60_000))
    cluster.wait(60_000)
    return cluster


def over_hours() -> Cluster:
    cluster = Cluster()
    cluster.run(spec(role("worker", 2), max_replica_ms=60_000))
    cluster.wait(30_000)
    return cluster


def crashed(application: int, *, oom_kills: int = 0) -> Cluster:
    cluster = Cluster()
    cluster.run(spec(role(budgets=budgets(application=application), delay_ms=1_000)))
    for _ in range(application):
        cluster.exit("worker-0", code=1, oom_kills=oom_kills)
        cluster.wait(20_000)
        cluster.bring_up()
    cluster.exit("worker-0", code=1, oom_kills=oom_kills)
    return cluster


def not_startable() -> Cluster:
    cluster = Cluster()
    cluster.run()
    cluster.exit("worker-0", code=None, errno=2)
    return cluster


def refused_launch() -> Cluster:
    cluster = Cluster()
    cluster.submit()
    cluster.say(ev.LaunchFailed(cluster.id("worker-0"), "no such image"))
    cluster.gone("worker-0")
    return cluster


def refused() -> Cluster:
    cluster = Cluster(nodes=0)
    cluster.submit()
    cluster.say(ev.JobRefused("DependencyFailed", "job a has Failed"), by="admission")
    return cluster


def never_placed() -> Cluster:
    cluster = Cluster()
    cluster.submit(spec(budgets=budgets(infrastructure=0)))
    cluster.wait(cluster.job.spec.place_timeout_ms)
    return cluster


def completed() -> Cluster:
    cluster = Cluster()
    cluster.run()
    cluster.exit("worker-0")
    return cluster


def partly() -> Cluster:
    cluster = Cluster()
    cluster.run(spec(role("worker", 2, success="percent", percent=50)))
    cluster.exit("worker-0")
    return cluster


def asked(event: ev.JobEvent) -> Callable[[], Cluster]:
    def make() -> Cluster:
        cluster = Cluster()
        cluster.run()
        cluster.say(event, by="uid:7 (bob)")
        return cluster

    return make


def failed_by_rule() -> Cluster:
    cluster = Cluster()
    rule = FailureRule("fail", exit_codes=(3,))
    cluster.run(spec(role(), failure=(rule,)))
    cluster.exit("worker-0", code=3)
    return cluster


VERDICT_CASES: dict[str, tuple[Callable[[], Cluster], dict[str, int]]] = {
    "Completed": (completed, {"completed": 1, "needed": 1, "replicas": 1}),
    "PartialSuccess": (partly, {"completed": 1, "needed": 1, "replicas": 2}),
    "RetriesExhausted": (
        lambda: crashed(2),
        {"failed": 1, "replicas": 1, "needed": 1, "budgetUsed": 3, "budgetLimit": 2},
    ),
    "Crashed": (
        lambda: crashed(0),
        {"failed": 1, "replicas": 1, "needed": 1, "budgetUsed": 1, "budgetLimit": 0},
    ),
    "OutOfMemory": (
        lambda: crashed(0, oom_kills=1),
        {"failed": 1, "replicas": 1, "needed": 1, "budgetUsed": 1, "budgetLimit": 0},
    ),
    "StartFailed": (not_startable, {"attempt": 1}),
    "LaunchFailed": (refused_launch, {"attempt": 1}),
    "DependencyFailed": (refused, {}),
    "FailureRule": (failed_by_rule, {"attempt": 1, "rule": 0}),
    "DataFailed": (failed_by_data, {"consumed": 0, "skipped": 0}),
    "DataLeft": (left_data, {}),
    "DeadlineExceeded": (over_deadline, {"deadlineMs": 60_000, "suspendedMs": 0}),
    "ReplicaHoursUsed": (over_hours, {"usedMs": 60_000, "limitMs": 60_000}),
    "PlacementTimeout": (never_placed, {"startTimeouts": 1, "budgetLimit": 0}),
    "CancelledByUser": (asked(ev.CancelRequested("enough")), {}),
    "DecidedByUser": (asked(ev.VerdictRequested("Succeeded", "good enough")), {}),
}


@pytest.mark.parametrize("reason", VERDICT_CASES)
def test_a_verdict_is_told_with_the_numbers_that_decided_it(reason: str) -> None:
    make, numbers = VERDICT_CASES[reason]
    cluster = make()

    found = answer(cluster, WHY_VERDICT, reason)

    assert cluster.job.verdict is not None
    assert found.numbers == numbers
    assert cluster.job.verdict.message in found.answer
    assert len(found.because) == 1


def test_F13_a_verdict_names_what_it_began_with() -> None:
    cluster = crashed(2)

    assert (
        "it began with worker-0/1 (Crashed)"
        in answer(cluster, WHY_VERDICT, "RetriesExhausted").answer
    )


# The lists.


def shown() -> Iterator[str]:
    """Yield the words of this file: a reason that is shown is named."""
    text = Path(__file__).read_text(encoding="utf-8").partition("# The lists.")[0]
    yield from re.findall(r"[A-Z][A-Za-z]+", text.replace("_", " "))


@pytest.mark.parametrize("question", QUESTIONS)
def test_C36_each_reason_of_a_list_has_a_test(question: str) -> None:
    untested = QUESTIONS[question].keys() - set(shown())

    assert untested == set()


def test_a_job_that_runs_and_never_restarted_has_nothing_to_explain() -> None:
    cluster = Cluster()
    cluster.run()

    assert explained(cluster) == ()


def test_C36_no_reason_is_empty_while_a_job_is_pending() -> None:
    cluster = Cluster(nodes=2)
    cluster.submit(spec(role("worker", 3, minimum=2, unit="role"), role("ps", success="never")))
    steps: tuple[Callable[[], None], ...] = (
        lambda: cluster.launch("worker-0"), cluster.launch, lambda: cluster.register("worker-1"),
        cluster.register, lambda: cluster.hold("worker-0", "ps-0"), cluster.hold,
        lambda: cluster.start("worker-0"), lambda: cluster.exit("worker-0", code=1),
        cluster.stop_all, lambda: cluster.wait(30_000), cluster.bring_up,
    )  # fmt: skip
    for step in steps:
        if cluster.job.phase in (JobPhase.QUEUED, JobPhase.STARTING):
            found = why(
                cluster.job, cluster.world, queue_of(cluster.world.admission), at_ms=cluster.now_ms
            )
            assert found is not None
            assert found.reason in QUESTIONS[WHY_WAITING]
            assert found.message
            assert found.numbers
        step()


def test_an_end_that_only_followed_another_is_no_reason() -> None:
    cluster = Cluster()
    cluster.run(spec(role("worker", 2)))
    cluster.say(ev.SuspendRequested(), by="uid:7 (bob)")
    cluster.exit("worker-0", code=1)
    cluster.stop_all()
    cluster.say(ev.ResumeRequested(), by="uid:7 (bob)")
    cluster.bring_up()

    found = [one.reason for one in explained(cluster) if one.question == WHY_RESTARTED]

    assert found == ["Resumed"]
