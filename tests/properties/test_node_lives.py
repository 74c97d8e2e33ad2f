"""Nodes that come, go, are emptied and left out, drawn from seeds, under jobs of every unit.

Every step keeps all invariants (`job_driver`); once the nodes are well again the job comes to run,
and at its end nothing is held.
"""

import random

import pytest

from primusd.admission import events as adm
from primusd.job import events as ev
from primusd.job.ids import Span
from primusd.job.model import replicas_of
from primusd.job.phases import AttemptPhase, JobPhase, NodePhase
from primusd.job.spec import JobSpec, Placement, Resources
from tests.state.job_driver import UID, Cluster, budgets, ended, role, spec

GIB = 1 << 30
SEEDS = 150
STEPS = 40
ROUNDS = 60
NAMES = ("n1", "n2", "n3")
LIVE = (
    AttemptPhase.REQUESTED,
    AttemptPhase.LAUNCHED,
    AttemptPhase.REGISTERED,
    AttemptPhase.STARTING,
    AttemptPhase.RUNNING,
    AttemptPhase.STOPPING,
)


def node(name: str) -> adm.NodeSeen:
    return adm.NodeSeen(name, "local", name, "0", 8_000, 8 * GIB, 0, 20_000, 20_400)


def job(chance: random.Random) -> JobSpec:
    unit = chance.choice(("replica", "role", "job"))
    core = Resources(chance.choice((0, 1_000)), GIB)
    rules = chance.choice((Placement(), Placement(max_per_node=2), Placement(near=("ps",))))
    roles = (
        role("worker", chance.randint(1, 4), unit=unit, resources=core, placement=rules),
        role(
            "ps", chance.randint(1, 2), unit=unit, resources=core, delay_ms=chance.choice((0, 50))
        ),
    )
    policy = chance.choice(("gang", "dynamic"))
    return spec(*roles, policy=policy, budgets=budgets(10_000, 10_000))


class Life:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.cluster = Cluster(nodes=0)
        for name in NAMES:
            self.admission(node(name))
        self.cluster.submit(job(self.chance))

    def admission(self, event: adm.AdmissionEvent) -> None:
        self.cluster.say(event, machine="", by="test")

    def step(self) -> None:
        name = self.chance.choice(NAMES)
        match self.chance.randrange(16):
            case 0:
                self.admission(adm.DrainRequested(name, self.chance.random() < 0.4))
            case 1:
                self.admission(adm.UncordonRequested(name))
            case 2:
                self.admission(adm.NodeWentAway(name))
            case 3:
                self.admission(node(name))
            case 4:
                self.admission(
                    adm.NodeExclusionRequested(name, 60_000, self.chance.choice(("", UID)))
                )
            case 5:
                self.admission(adm.ForgiveRequested(name))
            case 6:
                number = self.chance.randrange(1 << 30)
                self.admission(adm.NodeFaultCounted(name, "j9/worker-0/1", "Lost", f"b{number}"))
            case 7:
                self.cluster.wait(self.chance.choice((100, 6_000, 40_000)))
            case 8:
                self.ask()
            case _:
                self.attempt()

    def ask(self) -> None:
        """Let a person ask something of the job."""
        wishes: tuple[ev.JobOnlyEvent, ...] = (
            ev.SuspendRequested(),
            ev.ResumeRequested(),
            ev.RestartRequested((Span("worker", 0, 1),)),
            ev.RoleScaled("worker", self.chance.randint(1, 4)),
        )
        self.cluster.refusal(self.chance.choice(wishes))

    def attempt(self) -> None:
        """Let one attempt go on, or end."""
        found = self.cluster.names(*LIVE, AttemptPhase.ENDED)
        if not found:
            return
        name = self.chance.choice(found)
        attempt = self.cluster.id(name)
        match self.cluster.newest(name).phase:
            case AttemptPhase.REQUESTED:
                self.say(ev.AttemptLaunched(attempt, {}))
            case AttemptPhase.LAUNCHED:
                self.say(ev.ExecutorRegistered(attempt, "i", "h", "b", 1, "0"))
            case AttemptPhase.REGISTERED:
                self.say(ev.ExecutorHolding(attempt))
            case AttemptPhase.STARTING:
                self.say(ev.TrainerStarted(attempt, 7, 0))
            case AttemptPhase.RUNNING if self.chance.random() < 0.2:
                self.say(ev.TrainerExited(attempt, ended(1)))
            case AttemptPhase.STOPPING if self.chance.random() < 0.3:
                self.say(ev.StopFailed(attempt, was_delivered=self.chance.random() < 0.5))
            case AttemptPhase.STOPPING | AttemptPhase.ENDED:
                self.say(ev.AttemptVanished(attempt))
            case _:
                pass

    def say(self, event: ev.AttemptEvent) -> None:
        self.cluster.say(event, by="edge")

    def mend(self) -> None:
        """Let everything be well: all nodes ready, and each attempt go on as it should."""
        for name in NAMES:
            self.admission(node(name))
            self.admission(adm.UncordonRequested(name))
            self.admission(adm.ForgiveRequested(name))
        self.cluster.refusal(ev.ResumeRequested())
        for _ in range(ROUNDS):
            self.go_on()
            if self.cluster.phase == "Running" and not self.cluster.job.moving:
                return
        pytest.fail(f"it does not come to run: {self.cluster.reasons()[-12:]}")

    def go_on(self) -> None:
        """Let what ends be gone, what begins come up, and delays pass."""
        for one_role in self.cluster.job.roles.values():
            for replica in replicas_of(one_role):
                for one in replica.attempts:
                    if one.is_quarantined or one.phase in (
                        AttemptPhase.STOPPING,
                        AttemptPhase.ENDED,
                    ):
                        name = f"{one_role.name}-{replica.index}/{one.number}"
                        self.say(ev.AttemptVanished(self.cluster.id(name)))
        self.cluster.bring_up()
        self.cluster.wait(30_000)

    def finish(self) -> None:
        """Let every trainer complete."""
        for _ in range(ROUNDS):
            for name in self.cluster.names(AttemptPhase.RUNNING):
                self.cluster.exit(name)
            if self.cluster.job.is_final:
                return
            self.go_on()
        pytest.fail(f"it does not end: {self.cluster.reasons()[-12:]}")


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_job_outlives_what_befalls_its_nodes(seed: int) -> None:
    life = Life(seed)
    for _ in range(STEPS):
        life.step()

    life.mend()
    life.finish()

    assert life.cluster.phase == JobPhase.SUCCEEDED
    assert not any(
        one.held or one.old_slots for one in life.cluster.world.admission.demands.values()
    )
    assert {one.phase for one in life.cluster.world.admission.nodes.values()} == {NodePhase.READY}
    life.cluster.check_replay()
