"""Queues: quota, who reserves, who may pass, what is computed and never counted; `after`."""

import random

import pytest
from msgspec.structs import replace

from primusd import carriage
from primusd.admission import events as ev
from primusd.admission import machine as admission
from primusd.admission.model import Admission
from primusd.admission.usage import book_anew, book_of
from primusd.admission.waits import Survey, Wait, why_waits
from primusd.datafeed.ledger.events import PositionsKept
from primusd.job import events as ev_job
from primusd.job.events import JobAdmitted, JobRefused, TimePassed
from primusd.job.ids import Span
from primusd.job.machine import At, Ignore, Proposed
from primusd.job.phases import AttemptPhase, DemandPhase
from primusd.job.spec import Reading, Source, StreamSpec
from tests.state.job_driver import Cluster, role, spec

GIB = 1 << 30
MINUTE_MS = 60_000


def at(now_ms: int) -> At:
    return At(at_ms=now_ms, revision=1, position=0, by="test")


def seen(name: str = "n1", *, cpu: int = 8, memory: int = 64, gpu: int = 8) -> ev.NodeSeen:
    return ev.NodeSeen(name, "local", "b1", "0.1.0", cpu * 1000, memory * GIB, gpu, 20_000, 29_999)


def raised(
    job: str,
    count: int = 1,
    *,
    cpu: int = 0,
    gpu: int = 0,
    memory: int = 0,
    queue: str = "default",
    priority: int = 50,
    minutes: int = 0,
) -> ev.DemandRaised:
    want = ev.RoleDemand(
        "worker", (Span("worker", 0, count - 1),), cpu * 1000, memory * GIB, gpu, 0
    )
    return ev.DemandRaised(job, 1, queue, priority, (want,), runs_for_ms=minutes * MINUTE_MS)


class Machine:
    """Admission, driven as core.step does."""

    def __init__(self, *events: ev.AdmissionEvent) -> None:
        self.state = Admission()
        self.now_ms = 1_000
        self.told: list[Proposed] = []
        self.is_proved = True
        self.tell(*events)

    def tell(self, *events: ev.AdmissionEvent | TimePassed) -> None:
        for event in events:
            before = self.state
            after = admission.apply(before, event, at(self.now_ms))
            if isinstance(after, Ignore):
                continue
            self.state = after
            while (decided := admission.settle(self.state, self.now_ms)) is not None:
                settled = admission.apply(self.state, decided, at(self.now_ms))
                assert isinstance(settled, Admission)
                self.state = settled
            self.told += admission.consequences(before, self.state, event)
            if self.is_proved:
                assert book_of(self.state.demands) == book_anew(self.state.demands)
            self.now_ms += 1

    def end(self, job: str) -> None:
        """Let a job give back all that it holds."""
        held = self.state.demands[job].held
        self.tell(ev.DemandWithdrawn(job, tuple(Span(role, i, i) for role, i in held)))
        self.tell(*(ev.SlotFreed(job, (Span(role, i, i),)) for role, i in held))

    @property
    def running(self) -> list[str]:
        return sorted(job for job, one in self.state.demands.items() if one.held)

    def why(self, job: str) -> Wait:
        found = why_waits(Survey(self.state, at_ms=self.now_ms), self.state.demands[job])
        assert found is not None
        return found


def noted(job: str, *after: str) -> ev.JobNoted:
    return ev.JobNoted(job, "default", f"name-{job}", "", "", after)


# Who reserves, and who may pass.


def test_first_in_the_queue_is_not_passed_by_one_that_takes_what_it_waits_for_C83() -> None:
    machine = Machine(seen(), raised("a", gpu=6), raised("b", gpu=4), raised("c", gpu=1))

    assert machine.running == ["a"]
    assert machine.why("c").reason == "WaitingForQueue"
    assert machine.why("c").firsts == ("b",)

    machine.end("a")

    assert machine.running == ["b", "c"]


def test_one_passes_that_takes_nothing_that_the_first_waits_for() -> None:
    machine = Machine(seen(cpu=8), raised("a", gpu=6), raised("b", gpu=4, cpu=1))

    machine.tell(raised("c", cpu=7))
    assert machine.running == ["a", "c"], "7 of 8 cores, and the first needs one"

    machine.tell(raised("d", cpu=1))
    assert machine.running == ["a", "c"], "the last core is what the first needs"


def test_what_waits_on_one_node_is_not_taken_there_and_may_be_elsewhere() -> None:
    machine = Machine(seen("n1", gpu=8), seen("n2", gpu=2, cpu=64))
    machine.tell(raised("a", gpu=8, cpu=8), raised("b", gpu=8, cpu=8), raised("c", cpu=8))

    assert machine.running == ["a", "c"]
    assert {slot.node for slot in machine.state.demands["c"].held.values()} == {"n2"}


def test_higher_priority_reserves_before_an_older_job() -> None:
    machine = Machine(seen(), raised("a", gpu=8), raised("old", gpu=2))
    machine.tell(raised("urgent", gpu=8, priority=90))

    machine.end("a")

    assert machine.running == ["urgent"]


def test_one_that_ends_before_the_first_can_start_goes_ahead() -> None:
    machine = Machine(seen(), raised("a", gpu=6, minutes=60), raised("b", gpu=8))

    machine.tell(raised("long", gpu=1, minutes=90), raised("short", gpu=1, minutes=30))

    assert machine.running == ["a", "short"]
    waits = machine.why("b")
    assert waits.starts_by == "a"
    assert 59 * MINUTE_MS < waits.numbers["startsInMs"] <= 60 * MINUTE_MS


def test_nobody_goes_ahead_of_a_first_whose_start_no_deadline_tells() -> None:
    machine = Machine(seen(), raised("a", gpu=6), raised("b", gpu=8))

    machine.tell(raised("short", gpu=1, minutes=1))

    assert machine.running == ["a"]
    assert machine.why("b").starts_ms == 0


def test_deadline_counts_from_the_admission_and_the_promise_holds_as_time_goes_by() -> None:
    machine = Machine(seen(), raised("a", gpu=6, minutes=60), raised("b", gpu=8))
    machine.now_ms += 40 * MINUTE_MS

    machine.tell(raised("short", gpu=1, minutes=30))

    assert machine.running == ["a"], "20 minutes are left, it might run for 30"
    machine.tell(raised("shorter", gpu=1, minutes=10))
    assert machine.running == ["a", "shorter"]


def test_start_waits_for_a_node_that_holds_it_not_for_enough_in_all() -> None:
    machine = Machine(seen("n1", gpu=4), seen("n2", gpu=4))
    machine.tell(raised("a", gpu=2, minutes=20), raised("b", gpu=2, minutes=40))
    machine.tell(raised("c", gpu=4))

    assert {slot.node for job in "ab" for slot in machine.state.demands[job].held.values()} == {
        "n1",
        "n2",
    }
    assert machine.why("c").starts_by == "a"


def test_job_that_never_fits_reserves_nothing() -> None:
    machine = Machine(seen(gpu=4), raised("a", gpu=8), raised("b", gpu=4))

    assert machine.running == ["b"]
    assert machine.why("a").reason == "WaitingForNode"


def test_several_queues_share_the_nodes_and_the_first_of_all_reserves() -> None:
    machine = Machine(seen(), raised("a", gpu=6), raised("b", gpu=4, queue="batch"))

    machine.tell(raised("c", gpu=1, queue="other"))

    assert machine.running == ["a"]
    assert machine.why("c").firsts == ("b",)


def test_a_wedged_job_reserves_nothing() -> None:
    machine = Machine(seen(), raised("a", gpu=6), raised("b", gpu=4))

    machine.tell(ev.MachineWedged("b", "a bug"), raised("c", gpu=2))

    assert machine.running == ["a", "c"]


def test_job_that_restarts_on_a_cordoned_node_gets_its_new_ports_there() -> None:
    machine = Machine(seen(), replace(raised("a", gpu=8), roles=(with_port(),)))
    machine.tell(ev.CordonRequested("n1"), raised("b", gpu=1))

    again = replace(raised("a", gpu=8), roles=(with_port(),), generation=2)
    machine.tell(replace(again, busy=(Span("worker", 0, 0),)))

    slot = machine.state.demands["a"].held["worker", 0]
    assert (slot.generation, slot.first_port) == (2, 20_001)


def with_port() -> ev.RoleDemand:
    return ev.RoleDemand("worker", (Span("worker", 0, 0),), 0, 0, 8, 1)


# Quota.


def test_jobs_of_a_queue_never_use_more_than_its_quota() -> None:
    machine = Machine(seen(), ev.QueueSet("batch", {"gpu": 4}))
    machine.tell(raised("a", gpu=3, queue="batch"), raised("b", gpu=2, queue="batch"))

    assert machine.running == ["a"]
    waits = machine.why("b")
    assert waits.reason == "WaitingForQuota"
    assert waits.message == "needs 2 GPUs, queue batch uses 3 of 4"
    assert waits.numbers == {"gpusNeeded": 2, "gpusUsed": 3, "gpusLimit": 4, "jobsAhead": 0}

    machine.end("a")
    assert machine.running == ["b"]


def test_one_that_waits_for_quota_holds_up_its_queue_and_no_other() -> None:
    machine = Machine(seen(), ev.QueueSet("batch", {"gpu": 4}))
    machine.tell(raised("a", gpu=3, queue="batch"), raised("b", gpu=2, queue="batch"))

    machine.tell(raised("c", gpu=1, queue="batch"), raised("d", gpu=2), raised("e", queue="batch"))

    assert machine.running == ["a", "d", "e"]
    assert machine.why("c").reason == "WaitingForQueue"


def test_quota_is_passed_by_one_that_ends_in_time() -> None:
    machine = Machine(seen(), ev.QueueSet("batch", {"gpu": 4}))
    machine.tell(raised("a", gpu=3, queue="batch", minutes=60))
    machine.tell(raised("b", gpu=4, queue="batch"))

    machine.tell(raised("c", gpu=1, queue="batch", minutes=30))

    assert machine.running == ["a", "c"]
    assert machine.why("b").starts_by == "a"


def test_more_than_the_quota_never_starts_and_delays_nobody() -> None:
    machine = Machine(seen(), ev.QueueSet("batch", {"gpu": 4, "memoryBytes": GIB}))
    machine.tell(raised("a", gpu=5, queue="batch"), raised("b", gpu=4, queue="batch"))

    assert machine.running == ["b"]
    waits = machine.why("a")
    assert waits.reason == "WaitingForQuota"
    assert "5 GPUs, queue batch may use 4 in all" in waits.message


def test_raised_quota_starts_what_waits() -> None:
    machine = Machine(seen(), ev.QueueSet("batch", {"gpu": 1}), raised("a", gpu=2, queue="batch"))
    assert machine.running == []

    machine.tell(ev.QueueSet("batch", {"gpu": 2}))

    assert machine.running == ["a"]


def test_what_a_person_set_is_not_changed_by_the_file() -> None:
    machine = Machine(ev.QueueDeclared("batch", {"gpu": 1}, "lowerPriority"))
    assert machine.state.queues["batch"].preemption == "lowerPriority"

    machine.tell(ev.QueueSet("batch", {"gpu": 2}), ev.QueueDeclared("batch", {"gpu": 3}))

    assert machine.state.queues["batch"].quota == {"gpu": 2}
    assert machine.state.queues["batch"].is_set


@pytest.mark.parametrize("lives", [1_000, pytest.param(10_000, marks=pytest.mark.soak)])
def test_usage_of_queues_and_nodes_is_what_slots_take_over_many_lives_C32(lives: int) -> None:
    """C32: usage is made from the demands and is nothing at the end, whatever came between."""
    draw = random.Random(32)
    machine = Machine(*(seen(f"n{number}", cpu=16) for number in range(4)))
    machine.tell(ev.QueueSet("batch", {"gpu": 12, "cpuMilli": 20_000}))
    for number in range(lives):
        job = f"j{number:05}"
        queue = draw.choice(("default", "batch"))
        machine.tell(
            raised(job, draw.randint(1, 3), cpu=draw.randint(0, 2), gpu=draw.randint(0, 2),
                   queue=queue, priority=draw.choice((10, 50)), minutes=draw.choice((0, 5)))
        )  # fmt: skip
        machine.is_proved = number % 50 == 0
        used = book_of(machine.state.demands).by_queue.get("batch")
        assert used is None or (used.gpu <= 12 and used.cpu_milli <= 20_000)
        live = list(machine.state.demands)
        while len(live) > 12:
            machine.end(live.pop(draw.randrange(len(live))))
    for job in list(machine.state.demands):
        machine.end(job)

    assert machine.state.demands == {}
    assert book_of(machine.state.demands) == book_anew({})


@pytest.mark.parametrize("seed", range(20))
def test_pruned_look_decides_as_one_that_looks_at_everybody(seed: int) -> None:
    """What settle skips as hopeless is exactly what a look at all of them holds back."""
    draw = random.Random(seed)
    machine = Machine(*(seen(f"n{number}", cpu=8, memory=16, gpu=4) for number in range(3)))
    machine.tell(ev.QueueSet("batch", {"gpu": 6}))
    for number in range(60):
        machine.tell(
            raised(
                f"j{number:02}",
                draw.randint(1, 4),
                cpu=draw.choice((0, 1, 4)),
                gpu=draw.choice((0, 0, 1, 2)),
                memory=draw.choice((0, 2)),
                queue=draw.choice(("default", "batch")),
                priority=draw.choice((10, 50)),
                minutes=draw.choice((0, 0, 10, 100)),
            )
        )
        if draw.random() < 0.3 and machine.running:
            machine.end(draw.choice(machine.running))
        survey = Survey(machine.state, at_ms=machine.now_ms)
        waiting = [one.job for one in admission.in_order(machine.state)]
        starts = [job for job in waiting if survey.outcome(job).turn == "starts"]  # type: ignore[union-attr] # all wait
        assert starts == []


# Moving.


def test_moved_job_comes_first() -> None:
    machine = Machine(seen(), raised("a", gpu=8), raised("b", gpu=8), raised("c", gpu=8))

    machine.tell(ev.DemandMoved("c", 50, machine.state.demands["b"].since_ms - 1))
    machine.end("a")

    assert machine.running == ["c"]


# Jobs that wait for other jobs: F08.


def test_job_waits_until_those_it_names_have_succeeded() -> None:
    machine = Machine(seen(), noted("a"), noted("b"), noted("c", "a", "b"), raised("c", gpu=1))

    assert machine.running == []
    waits = machine.why("c")
    assert (waits.reason, waits.waits_for) == ("WaitingForJob", ("a", "b"))
    assert waits.message == "waits until name-a, name-b have Succeeded"

    machine.tell(ev.JobEnded("a", "Succeeded"))
    assert machine.why("c").message == "waits until name-b has Succeeded"
    machine.tell(ev.JobEnded("b", "Succeeded"))

    assert machine.running == ["c"]


def test_job_that_has_succeeded_already_counts() -> None:
    machine = Machine(seen(), noted("a"), ev.JobEnded("a", "Succeeded"), noted("c", "a"))

    machine.tell(raised("c", gpu=1))

    assert machine.running == ["c"]


def test_one_that_waits_for_a_job_delays_nobody_and_has_no_place() -> None:
    machine = Machine(seen(), noted("a"), noted("c", "a"), raised("c", gpu=8))

    machine.tell(raised("d", gpu=8))

    assert machine.running == ["d"]
    assert Survey(machine.state, at_ms=machine.now_ms).ahead("c") is None


@pytest.mark.parametrize("phase", ["Failed", "Cancelled"])
def test_whole_row_is_refused_when_the_first_does_not_succeed(phase: str) -> None:
    machine = Machine(seen(), noted("a"), noted("b", "a"), noted("c", "b"), noted("d", "c"))
    machine.tell(raised("b", gpu=1), raised("c", gpu=1))
    machine.told.clear()

    machine.tell(ev.JobEnded("a", phase))

    refused = [(one.machine, one.event) for one in machine.told]
    assert [job for job, _ in refused] == ["b", "c", "d"]
    assert refused[0][1] == JobRefused(
        "DependencyFailed", f"name-a, which it waits for, ended {phase}"
    )
    assert machine.running == [], "it is not let in before it has heard of it"


def test_end_of_the_one_that_waits_forgets_what_it_waited_for() -> None:
    machine = Machine(seen(), noted("a"), noted("b", "a"))

    machine.tell(ev.JobEnded("b", "Cancelled"))

    assert machine.state.after == {}
    machine.told.clear()
    machine.tell(ev.JobEnded("a", "Failed"))
    assert machine.told == []


# Jobs whose streams go on from positions that another leaves: `staging`.


def staged(job: str, *stages: str, after: tuple[str, ...] = ()) -> ev.JobNoted:
    return ev.JobNoted(job, "default", f"name-{job}", "", "", after, stages)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed", "Cancelled"])
def test_who_goes_on_from_positions_waits_without_slots_until_they_are_left(phase: str) -> None:
    """The older one needs all that there is: in its slots the younger would wait for ever."""
    machine = Machine(seen(), staged("a", "/s/rows"), staged("b", "/s/rows", "/s/more"))

    machine.tell(raised("b", gpu=8))
    machine.tell(staged("c", "/s/other"), raised("a", gpu=8))

    assert machine.running == ["a"]
    assert machine.why("b").message == (
        "waits until name-a is over: it goes on from positions left there"
    )
    machine.told.clear()
    machine.end("a")
    machine.tell(ev.JobEnded("a", phase))
    assert machine.running == ["b"]
    assert not [one for one in machine.told if isinstance(one.event, JobRefused)]
    assert (machine.state.after, machine.state.over_first) == ({}, {})


def test_of_a_job_that_is_named_as_well_a_success_is_asked() -> None:
    machine = Machine(seen(), staged("a", "/s/rows"), staged("b", "/s/rows", after=("a",)))
    machine.tell(raised("b", gpu=1))

    machine.tell(ev.JobEnded("a", "Failed"))

    assert machine.running == []
    assert [one.machine for one in machine.told if isinstance(one.event, JobRefused)] == ["b"]


def test_folders_of_a_job_that_is_over_are_free() -> None:
    machine = Machine(seen(), staged("a", "/s/rows"), staged("b", "/s/rows"))
    machine.tell(ev.JobEnded("b", "Cancelled"), ev.JobEnded("a", "Succeeded"))

    machine.tell(staged("c", "/s/rows"), raised("c", gpu=1))

    assert machine.running == ["c"]
    assert machine.state.stages == {"c": ("/s/rows",)}


@pytest.mark.parametrize(("first", "second"), [("a", "b"), ("b", "a")])
def test_positions_are_waited_for_in_the_order_of_submits_whatever_the_clock_said(
    first: str, second: str
) -> None:
    """A clock that was set back gives a later job the smaller uid."""
    rows = StreamSpec("rows", (Source("/data"),), staging="/s")
    reading = spec(role(data=(Reading("rows"),)), streams=(rows,))
    cluster = Cluster()
    for uid in (first, second):
        cluster.submit(replace(reading, name=uid), uid=uid)

    def holder(of: str) -> str:
        return carriage._holder(cluster.world, cluster.world.streams[f"{of}/rows"])

    assert (holder(first), holder(second)) == ("", f"job {first}")
    assert cluster.names(AttemptPhase.REQUESTED, uid=second) == []
    cluster.say(ev_job.CancelRequested(), machine=first)
    attempt = cluster.id("worker-0", first)
    cluster.say(ev_job.AttemptVanished(attempt), machine=first)
    assert cluster.names(AttemptPhase.REQUESTED, uid=second) == ["worker-0"]
    assert holder(second) == f"job {first}", "it is over, and its positions are not there yet"
    cluster.say(PositionsKept(), machine=f"{first}/rows")
    assert holder(second) == ""


def test_job_that_failed_since_the_request_was_read_is_refused_in_the_step() -> None:
    cluster = Cluster()
    cluster.submit(spec(name="first"), uid="a")
    cluster.say(ev_job.CancelRequested(), machine="a")
    cluster.say(ev_job.AttemptVanished(cluster.id("worker-0", "a")), machine="a")

    for after, said in (("a", "first, which it names in after, ended Cancelled"), ("x", "x")):
        submitted = ev_job.JobSubmitted("b", spec(name="second"), {}, "ann", after=(after,))
        refusal = cluster.refusal(submitted, machine="b")
        assert refusal is not None
        assert said in refusal.message
    assert "b" not in cluster.world.jobs


def test_journal_from_before_queues_is_read_as_it_was() -> None:
    old = replace(raised("a", gpu=1), since_ms=0, spared=())
    machine = Machine(seen(), ev.JobEnded("gone"), old)

    assert [type(one.event) for one in machine.told] == [JobAdmitted]
    assert machine.state.demands["a"].phase is DemandPhase.GRANTED
