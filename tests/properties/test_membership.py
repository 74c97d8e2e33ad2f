"""C70: whoever comes and goes, members of a synchronous role end up in one generation, running.

Nodes come, people scale, trainers crash, executors are slow, from a seed; then it is calm. A
failure names its seed.
"""

import random

import msgspec
import pytest

from primusd.job import events as ev
from primusd.job.phases import AttemptPhase, JobPhase
from primusd.job.spec import Resources
from tests.state.job_driver import GIB, Cluster, budgets, role, spec

SEEDS = 1_000
STEPS = 14
CALM_ROUNDS = 40
WIDEST = 8
THIRD = Resources(memory_bytes=20 * GIB)
"""Three of them fit on a node."""


class Storm:
    """A job of one elastic role whose members keep changing."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.cluster = Cluster(checked_every=8)
        self.nodes = 1
        self.cluster.submit(
            spec(
                role("worker", WIDEST, minimum=1, resources=THIRD, unit="role", delay_ms=1_000),
                framework="torch",
                budgets=budgets(application=1_000, infrastructure=1_000),
            )
        )

    def blow(self) -> None:
        """Let something happen."""
        rnd, cluster = self.random, self.cluster
        match rnd.randrange(8):
            case 0 if self.nodes < 3:
                self.nodes += 1
                cluster.say(cluster._seen(f"n{self.nodes}", 8), machine="")
            case 1:
                cluster.say(ev.RoleScaled("worker", rnd.randint(1, WIDEST)))
            case 2 if running := cluster.names(AttemptPhase.RUNNING):
                cluster.exit(rnd.choice(running), code=1)
            case 3:
                cluster.stop_all()
            case 4:
                cluster.wait(rnd.choice((1_000, 20_000, 61_000)))
            case _:
                self.work(rnd.random())

    def work(self, share: float) -> None:
        """Let executors get on, each as fast as it is."""
        cluster = self.cluster
        steps = (
            (AttemptPhase.REQUESTED, cluster.launch),
            (AttemptPhase.LAUNCHED, cluster.register),
            (AttemptPhase.REGISTERED, cluster.hold),
            (AttemptPhase.STARTING, cluster.start),
        )
        for phase, step in steps:
            chosen = [one for one in cluster.names(phase) if self.random.random() < share]
            if chosen:
                step(*chosen)

    def calm_down(self) -> None:
        """Let everybody do what is asked of them, and time pass."""
        for _ in range(CALM_ROUNDS):
            self.cluster.stop_all()
            self.work(1)
            if self.is_settled():
                return
            self.cluster.wait(30_000)
        told = [f"{one.at_ms} {one.reason}: {one.message}" for one in self.cluster.job.timeline]
        raise AssertionError("it does not settle:\n" + "\n".join(told[-12:]))

    def is_settled(self) -> bool:
        """Return whether all who have a place run, in the generation in force, and are peers."""
        cluster = self.cluster
        running = cluster.names(AttemptPhase.RUNNING)
        placed = len(cluster.world.admission.demands[cluster.job.uid].held)
        if cluster.job.phase is not JobPhase.RUNNING or len(running) != placed:
            return False
        generations = {cluster.newest(name).generation for name in running}
        peers = msgspec.json.decode(cluster.job.peers.inline)
        named = [f"worker-{one['index']}" for one in peers["roles"]["worker"]]
        return generations == {cluster.job.generation} and named == running


@pytest.mark.parametrize("first", range(0, SEEDS, 250))
def test_C70_members_who_come_and_go_end_up_together(first: int) -> None:
    for seed in range(first, first + 250):
        storm = Storm(seed)
        try:
            for _ in range(STEPS):
                storm.blow()
            storm.calm_down()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        if seed % 50 == 0:
            storm.cluster.check_replay()
