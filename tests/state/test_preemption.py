"""Preemption: who is stopped for whom, how they come back, and that nobody plays ping-pong."""

import random

import pytest
from msgspec.structs import replace

from primusd.admission import events as adm
from primusd.admission.machine import settle
from primusd.admission.preemption import victims_for
from primusd.job import events as ev
from primusd.job.model import Job
from primusd.job.phases import AttemptPhase, Budget, JobPhase
from primusd.job.spec import JobSpec, Resources, Stop
from tests.state.job_driver import Cluster, ended, role, span, spec
from tests.state.test_queues import Machine, raised, seen

GPU_JOB = Resources(0, 0, 1)


def gpus(
    name: str, count: int, *, priority: int, queue: str = "batch", preemptible: bool = True
) -> JobSpec:
    worker = role("worker", count, resources=GPU_JOB, stop=Stop("TERM", 45_000))
    return spec(worker, name=name, queue=queue, priority=priority, preemptible=preemptible)


class Queue(Cluster):
    """A cluster with 8 GPUs and a queue in which higher priorities stop lower ones."""

    def __init__(self, preemption: str = "lowerPriority") -> None:
        super().__init__()
        self.say(adm.QueueSet("batch", {"gpu": 8}, preemption), machine="")

    def add(self, name: str, count: int, *, priority: int, **words: object) -> None:
        """Submit a job whose uid is its name, and let it run if it may."""
        self.submit(gpus(name, count, priority=priority, **words), uid=name)  # type: ignore[arg-type] # words of gpus
        self.bring_up(uid=name)
        self.now_ms += 60_000

    def stop(self, name: str) -> None:
        """Let everything of a job end that was told to."""
        for replica in self.names(AttemptPhase.STOPPING, uid=name):
            attempt = self.id(replica, name)
            exit_ = ended(None, 15, stop_seen="preempted")
            self.say(ev.TrainerExited(attempt, exit_), machine=name)
            self.say(ev.AttemptVanished(attempt), machine=name)

    @property
    def job(self) -> Job:
        return next(iter(self.world.jobs.values()))

    def of(self, name: str) -> Job:
        return self.world.jobs[name]

    def phases_of(self, *names: str) -> list[str]:
        return [str(self.of(name).phase) for name in names]


def test_lower_priority_is_stopped_with_its_grace_and_comes_back_with_its_age() -> None:
    cluster = Queue()
    cluster.add("low", 8, priority=10)
    submitted_ms = cluster.of("low").created_ms

    cluster.add("high", 4, priority=90)

    assert cluster.phases_of("low", "high") == ["Stopping", "Queued"]
    newest = cluster.of("low").roles["worker"].chunks[0].replicas[0].newest
    assert newest is not None
    assert newest.stop is not None
    assert (newest.stop.reason, newest.stop.grace_ms) == ("preempted", 45_000)

    cluster.stop("low")

    assert cluster.phases_of("low", "high") == ["Queued", "Starting"]
    assert cluster.world.admission.demands["low"].since_ms == submitted_ms
    cluster.check_replay()


def test_it_is_told_in_the_timelines_of_both() -> None:
    cluster = Queue()
    cluster.add("low", 8, priority=10)
    cluster.add("high", 4, priority=90)

    told = {one.reason: one.message for one in cluster.of("low").timeline}
    assert told["JobEvicted"] == (
        "stopped for high, whose priority in queue batch is 90 and its own 10; "
        "it goes on with its place in the queue"
    )
    told = {one.reason: one.message for one in cluster.of("high").timeline}
    assert told["RoomMade"] == "low is stopped to make room"


def test_no_budget_is_charged_however_often_a_job_is_preempted_C22() -> None:
    cluster = Queue()
    cluster.add("low", 8, priority=10)
    for number in range(5):
        cluster.add(f"high{number}", 8, priority=90)
        cluster.stop("low")
        cluster.bring_up(uid=f"high{number}")
        attempts = [cluster.id(f"worker-{index}", f"high{number}") for index in range(8)]
        for attempt in attempts:
            cluster.say(ev.TrainerExited(attempt, ended(0)), machine=f"high{number}")
            cluster.say(ev.AttemptVanished(attempt), machine=f"high{number}")
        cluster.bring_up(uid="low")

    low = cluster.of("low")
    assert low.phase is JobPhase.RUNNING
    assert low.roles["worker"].charges == ()
    assert low.charges == ()
    assert all(
        attempt.outcome is None or attempt.outcome.budget is Budget.NONE
        for attempt in low.roles["worker"].chunks[0].replicas[0].attempts
    )


@pytest.mark.parametrize(
    ("preemption", "low", "high"),
    [
        ("never", {"priority": 10}, {"priority": 90}),
        ("lowerPriority", {"priority": 90}, {"priority": 90}),
        ("lowerPriority", {"priority": 10, "preemptible": False}, {"priority": 90}),
        ("lowerPriority", {"priority": 10, "queue": "other"}, {"priority": 90}),
    ],
)
def test_nobody_is_stopped_who_must_not_be(
    preemption: str, low: dict[str, object], high: dict[str, object]
) -> None:
    cluster = Queue(preemption)
    cluster.add("low", 8, **low)  # type: ignore[arg-type] # words of gpus

    cluster.add("high", 4, **high)  # type: ignore[arg-type] # words of gpus

    assert cluster.phases_of("low", "high") == ["Running", "Queued"]


def test_nobody_is_stopped_when_that_makes_no_room() -> None:
    cluster = Queue()
    cluster.add("low", 2, priority=10)
    cluster.add("kept", 6, priority=90)

    cluster.add("high", 4, priority=80)

    assert cluster.phases_of("low", "kept", "high") == ["Running", "Running", "Queued"]


def test_least_is_lost_lowest_priority_first_then_the_youngest_and_no_more_than_needed() -> None:
    cluster = Queue()
    cluster.add("older", 2, priority=20)
    cluster.add("younger", 2, priority=20)
    cluster.add("middle", 2, priority=50)
    cluster.add("lowest", 2, priority=10)

    cluster.add("high", 4, priority=90)

    assert cluster.phases_of("older", "younger", "middle", "lowest") == [
        "Running", "Stopping", "Running", "Stopping",
    ]  # fmt: skip


def test_one_large_is_stopped_and_the_small_ones_below_it_are_spared() -> None:
    cluster = Queue()
    cluster.add("small", 1, priority=10)
    cluster.add("large", 6, priority=20)

    cluster.add("high", 7, priority=90)

    assert cluster.phases_of("small", "large", "high") == ["Running", "Stopping", "Queued"]


def test_no_more_are_stopped_while_room_is_being_made() -> None:
    cluster = Queue()
    cluster.add("a", 4, priority=10)
    cluster.add("b", 4, priority=20)
    cluster.add("high", 4, priority=90)
    assert cluster.phases_of("a", "b") == ["Stopping", "Running"]

    for replica in cluster.names(AttemptPhase.STOPPING, uid="a")[:2]:
        attempt = cluster.id(replica, "a")
        cluster.say(ev.TrainerExited(attempt, ended(None, 15)), machine="a")
        cluster.say(ev.AttemptVanished(attempt), machine="a")
    cluster.wait(20_000)

    assert cluster.phases_of("a", "b", "high") == ["Stopping", "Running", "Queued"]
    cluster.stop("a")
    assert cluster.phases_of("a", "b", "high") == ["Queued", "Running", "Starting"]


def test_quota_is_room_too() -> None:
    cluster = Queue()
    cluster.say(adm.QueueSet("batch", {"gpu": 4}, "lowerPriority"), machine="")
    cluster.add("low", 4, priority=10)

    cluster.add("high", 2, priority=90)

    assert cluster.phases_of("low", "high") == ["Stopping", "Queued"]
    cluster.stop("low")
    assert cluster.phases_of("low", "high") == ["Queued", "Starting"]


def test_job_is_not_stopped_twice_for_the_same_one() -> None:
    """The winner's start times out, the victim runs on meanwhile, and is left alone then."""
    cluster = Queue()
    cluster.add("low", 8, priority=10)
    cluster.submit(gpus("high", 4, priority=90), uid="high")
    cluster.stop("low")
    assert cluster.phases_of("low", "high") == ["Queued", "Starting"]

    cluster.wait(16 * 60_000)
    assert cluster.of("high").start_timeouts == 1
    for replica in cluster.names(AttemptPhase.STOPPING, uid="high"):
        cluster.say(ev.AttemptVanished(cluster.id(replica, "high")), machine="high")
    assert cluster.phases_of("low", "high") == ["Starting", "Queued"]
    cluster.bring_up(uid="low")
    cluster.wait(11 * 60_000)

    assert cluster.of("low").phase is JobPhase.RUNNING
    assert cluster.of("high").phase is JobPhase.QUEUED
    assert cluster.of("low").spared == ("high",)


def test_preempted_job_does_not_stop_the_one_it_was_stopped_for() -> None:
    cluster = Queue()
    cluster.add("low", 8, priority=10)
    cluster.add("high", 8, priority=90)
    cluster.stop("low")
    cluster.bring_up(uid="high")

    cluster.wait(3_600_000)

    assert cluster.phases_of("low", "high") == ["Queued", "Running"]


def test_only_the_first_of_all_has_others_stopped() -> None:
    """What one behind it would free went to the first, which may not stop anybody."""
    cluster = Queue()
    cluster.say(adm.QueueSet("batch", {}, "lowerPriority"), machine="")
    cluster.add("low", 8, priority=10)
    cluster.add("first", 8, priority=95, queue="other")

    cluster.add("high", 4, priority=90)

    assert cluster.phases_of("low", "first", "high") == ["Running", "Queued", "Queued"]


def test_wedged_job_is_not_chosen() -> None:
    cluster = Queue()
    cluster.add("low", 8, priority=10)
    cluster.say(adm.MachineWedged("low", "a bug"), machine="")

    cluster.add("high", 4, priority=90)

    assert cluster.phases_of("high") == ["Queued"]
    state = cluster.world.admission
    assert victims_for(state, state.demands["high"], at_ms=cluster.now_ms) == ()


def test_job_that_is_suspended_loses_the_age_it_kept() -> None:
    cluster = Queue()
    cluster.add("low", 8, priority=10)
    cluster.add("high", 8, priority=90)
    cluster.stop("low")

    cluster.say(ev.SuspendRequested(), machine="low")
    cluster.say(ev.ResumeRequested(), machine="low")

    assert cluster.world.admission.demands["low"].since_ms == cluster.now_ms


def test_settle_asks_for_nothing_when_nobody_waits() -> None:
    cluster = Queue()
    cluster.add("low", 8, priority=10)

    state = replace(cluster.world.admission)

    assert settle(state, cluster.now_ms) is None


@pytest.mark.parametrize("seed", range(30))
def test_nobody_plays_ping_pong_and_everybody_ends(seed: int) -> None:
    """Jobs come, are stopped for others, come back as a job does, and end; each pair meets once."""
    draw = random.Random(seed)
    machine = Machine(*(seen(f"n{number}", gpu=4) for number in range(3)))
    machine.tell(adm.QueueSet("default", {"gpu": 10}, "lowerPriority"))
    asked: dict[str, adm.DemandRaised] = {}
    met: set[tuple[str, str]] = set()
    for number in range(40):
        job = f"j{number:02}"
        asked[job] = raised(
            job, draw.randint(1, 3), gpu=draw.randint(1, 3), priority=draw.choice((10, 50, 90))
        )
        machine.tell(asked[job])
        give_way(machine, asked, met)
        if draw.random() < 0.5 and machine.running:
            machine.end(draw.choice(machine.running))
            give_way(machine, asked, met)
    for _ in range(200):
        if not machine.running:
            break
        machine.end(machine.running[0])
        give_way(machine, asked, met)

    assert machine.state.demands == {}
    assert met or seed, "the first seed has some"


def give_way(
    machine: Machine, asked: dict[str, adm.DemandRaised], met: set[tuple[str, str]]
) -> None:
    """Let those end that were told to, and come back with their age."""
    while True:
        stopped = [one for one in machine.state.demands.values() if one.evicted_for]
        if not stopped:
            return
        for victim in stopped:
            winner = machine.state.demands[victim.evicted_for]
            assert winner.priority > victim.priority
            pair = (victim.job, winner.job)
            assert pair not in met, "stopped twice for the same one"
            met.add(pair)
            machine.tell(*(adm.SlotFreed(victim.job, span("worker", i)) for _, i in victim.held))
            again = asked[victim.job]
            spared = (*again.spared, winner.job)
            asked[victim.job] = replace(again, since_ms=victim.since_ms, spared=spared)
            machine.tell(asked[victim.job])
