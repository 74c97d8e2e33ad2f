"""C38, C47: the daemon dies at every journal position of each flow of a job's life.

The verdict, the number of attempts and what was charged stay as in a life without a death; no
process is left, and no replica ever has two.
"""

from collections.abc import Callable, Mapping

import anyio
import pytest
from msgspec import Struct

from primusd.admission.events import QueueSet
from primusd.core import World
from primusd.engine import Engine
from primusd.job import events as ev
from primusd.job.ids import AttemptId, Span
from primusd.job.model import Job, replicas_of
from primusd.job.phases import AttemptPhase, JobPhase
from primusd.job.spec import JobSpec, Resources, Restart, RoleSpec, Success
from primusd.records import ADMISSION
from primusd.testing import Act, CrashError, FakeLauncher
from tests.scenarios.daemon_lives import UID, Cluster, attempts_of, small_job

LIVES_MAX = 400


class Step(Struct, frozen=True):
    """What a person does, and does again until it is seen to have come about."""

    when: Callable[[Job], bool]
    event: ev.JobEvent | QueueSet
    times: int = 1
    """How often the timeline tells of such an event once it has come about."""

    @property
    def machine(self) -> str:
        """Of the event."""
        if isinstance(self.event, QueueSet):
            return ADMISSION
        return RIVAL_UID if isinstance(self.event, ev.JobSubmitted) else UID

    def is_done(self, world: World) -> bool:
        """Return whether the daemon has it for sure."""
        if isinstance(self.event, QueueSet):
            return self.event.queue in world.admission.queues
        if isinstance(self.event, ev.JobSubmitted):
            return RIVAL_UID in world.jobs
        name = type(self.event).__name__
        return sum(one.reason == name for one in world.jobs[UID].timeline) >= self.times


class Flow(Struct, frozen=True):
    """A way through a job's life."""

    spec: JobSpec
    act: Callable[[AttemptId], Act]
    steps: tuple[Step, ...] = ()
    ends: JobPhase = JobPhase.SUCCEEDED


class Facts(Struct, frozen=True):
    """What must be the same with a death on the way and without."""

    phase: JobPhase
    reason: str
    attempts: Mapping[str, int]
    charged: int


def runs_5_s(_attempt: AttemptId) -> Act:
    return Act(run_ms=5_000)


def runs_for_ever(_attempt: AttemptId) -> Act:
    return Act(lives_for_ever=True)


def first_worker_crashes_once(attempt: AttemptId) -> Act:
    crashes = attempt.role == "worker" and attempt.index == 0 and attempt.attempt == 1
    return Act(run_ms=5_000, code=1 if crashes else 0)


def second_life_ends(attempt: AttemptId) -> Act:
    return Act(run_ms=5_000, lives_for_ever=attempt.attempt == 1)


def is_in(phase: JobPhase) -> Callable[[Job], bool]:
    return lambda job: job.phase is phase


def runs_alone(job: Job) -> bool:
    """Return whether the role made smaller has nobody left beyond its size."""
    role = job.roles["worker"]
    newest = [replica.newest for replica in replicas_of(role) if replica.index >= role.size]
    return all(one is None or one.phase is AttemptPhase.GONE for one in newest)


RUNS = is_in(JobPhase.RUNNING)
WORKERS = small_job(RoleSpec("worker", 4, 1, "run"))
SMALLER = Step(RUNS, ev.RoleScaled("worker", 2))
SUSPENSION = Step(RUNS, ev.SuspendRequested())
RIVAL_UID = "06f3k2m9q1x7abce"
LARGE = Resources(cpu_milli=20_000)
RIVAL = small_job(RoleSpec("worker", 3, 3, "run", resources=LARGE), name="rival", priority=90)
FLOWS = {
    "gang start": Flow(small_job(policy="gang"), runs_5_s),
    "ordered start": Flow(
        small_job(
            RoleSpec("ps", 2, 2, "run", success=Success("never")),
            RoleSpec("worker", 2, 2, "run"),
            policy="ordered",
            step=1,
        ),
        lambda attempt: Act(run_ms=5_000, lives_for_ever=attempt.role == "ps"),
    ),
    "role restart": Flow(
        small_job(RoleSpec("worker", 3, 3, "run", restart=Restart("role", 1_000))),
        first_worker_crashes_once,
    ),
    "scale up": Flow(
        WORKERS,
        lambda attempt: Act(run_ms=60_000 if attempt.index < 2 else 5_000),
        (SMALLER, Step(runs_alone, ev.RoleScaled("worker", 4), times=2)),
    ),
    "scale down": Flow(
        WORKERS,
        lambda attempt: Act(run_ms=20_000, lives_for_ever=attempt.index >= 2),
        (SMALLER,),
    ),
    "suspend": Flow(
        small_job(),
        runs_for_ever,
        (SUSPENSION, Step(is_in(JobPhase.SUSPENDED), ev.CancelRequested())),
        JobPhase.CANCELLED,
    ),
    "resume": Flow(
        small_job(),
        second_life_ends,
        (SUSPENSION, Step(is_in(JobPhase.SUSPENDED), ev.ResumeRequested())),
    ),
    "preemption": Flow(
        small_job(RoleSpec("worker", 2, 2, "run", resources=LARGE)),
        lambda attempt: Act(
            run_ms=5_000, lives_for_ever=(attempt.job, attempt.attempt) == (UID, 1)
        ),
        (
            Step(RUNS, QueueSet("default", preemption="lowerPriority")),
            Step(RUNS, ev.JobSubmitted(RIVAL_UID, RIVAL, {}, "test", key="r", spec_digest="r")),
        ),
    ),
    "restart": Flow(
        small_job(),
        second_life_ends,
        (Step(RUNS, ev.RestartRequested((Span("chief", 0, 0), Span("worker", 0, 1)))),),
    ),
    "cancel": Flow(
        small_job(), runs_for_ever, (Step(RUNS, ev.CancelRequested()),), JobPhase.CANCELLED
    ),
    "finish": Flow(
        small_job(),
        runs_for_ever,
        (Step(RUNS, ev.VerdictRequested("Succeeded", "good enough")),),
    ),
}


class OneProcess(FakeLauncher):
    """A back end that sees when a replica has two processes at once."""

    doubled: AttemptId | None = None

    def _start(self, attempt: AttemptId, node: str) -> None:
        super()._start(attempt, node)
        same = [
            one
            for one in self.alive()
            if (one.job, one.role, one.index) == (attempt.job, attempt.role, attempt.index)
        ]
        if len(same) > 1:
            self.doubled = attempt


async def live(cluster: Cluster, flow: Flow, *, dies_at: int = 0, after: bool = False) -> bool:
    """Run a daemon to the job's end, a person at its side; return whether it died before."""
    has_died = False
    try:
        async with cluster.daemon(dies_at=dies_at, after=after) as engine:
            await cluster.submit(engine)
            for step in flow.steps:
                await _do(cluster, engine, step)
            await cluster.time.run_until(
                lambda: (
                    not cluster.launcher.alive()
                    and all(job.is_final for job in engine.world.jobs.values())
                )
            )
            cluster.job = engine.world.jobs[UID]
            assert not engine.world.admission.demands, "a slot is still held"
    except* CrashError:
        has_died = True
    return has_died


async def _do(cluster: Cluster, engine: Engine, step: Step) -> None:
    def is_due() -> bool:
        return step.is_done(engine.world) or step.when(engine.world.jobs[UID])

    await cluster.time.run_until(is_due)
    if not step.is_done(engine.world):
        await engine.propose(step.machine, step.event, by="test")


def make_cluster(flow: Flow) -> tuple[Cluster, OneProcess]:
    cluster = Cluster(flow.spec, flow.act)
    launcher = OneProcess(cluster.time.call_later, delay_ms=50)
    cluster.launcher = launcher
    cluster.executors = type(cluster.executors)(launcher, cluster.time.call_later, flow.act)
    return cluster, launcher


def facts_of(cluster: Cluster) -> Facts:
    job = cluster.job
    assert job is not None
    assert job.verdict is not None
    charged = len(job.charges) + sum(len(role.charges) for role in job.roles.values())
    return Facts(job.phase, job.verdict.reason, attempts_of(job), charged)


def play(flow: Flow, *, dies_at: int = 0, after: bool = False) -> tuple[Facts, bool]:
    """Return how the job ended, and whether the daemon died on the way."""
    cluster, launcher = make_cluster(flow)
    has_died = anyio.run(lambda: live(cluster, flow, dies_at=dies_at, after=after))
    if has_died:
        assert not anyio.run(lambda: live(cluster, flow))
    assert launcher.doubled is None, (dies_at, launcher.doubled)
    assert not launcher.alive(), (dies_at, launcher.alive())
    assert max(launcher.starts.values()) == 1
    assert cluster.job is not None
    assert not [
        replica
        for role in cluster.job.roles.values()
        for replica in replicas_of(role)
        if replica.newest is not None and replica.newest.is_quarantined
    ]
    return facts_of(cluster), has_died


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("name", FLOWS)
def test_c38_c47_a_death_at_every_position_of_the_flow_changes_nothing(
    name: str, *, after: bool
) -> None:
    flow = FLOWS[name]
    undisturbed, _ = play(flow)
    assert undisturbed.phase is flow.ends

    for revision in range(1, LIVES_MAX):
        facts, has_died = play(flow, dies_at=revision, after=after)
        if not has_died:
            break
        assert (revision, facts) == (revision, undisturbed)
    assert 10 < revision < LIVES_MAX - 1
