"""C27: two gangs that do not fit together run one after the other, whatever happens on the way."""

import random

import pytest

from primusd.job import events as ev
from primusd.job.ids import AttemptId
from primusd.job.model import replicas_of
from primusd.job.phases import AttemptPhase, DemandPhase
from primusd.job.spec import Resources
from tests.state.job_driver import GIB, UID, Cluster, budgets, ended, role, spec

SEEDS = 1_000
STEPS_MAX = 400
QUARTER = Resources(memory_bytes=16 * GIB)
"""Four of them fit on the one node there is."""
JOBS = (UID, "j2")


class Rivals:
    """Two jobs of three workers each, on four slots."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.cluster = Cluster(checked_every=16)
        self.runs: list[str] = []
        for uid in self.random.sample(JOBS, 2):
            worker = role("worker", 3, resources=QUARTER, delay_ms=1_000)
            job = spec(
                worker,
                name=uid,
                priority=self.random.choice((50, 50, 60)),
                policy=self.random.choice(("gang", "dynamic", "ordered")),
                budgets=budgets(application=100, infrastructure=100),
            )
            self.cluster.submit(job, uid=uid)

    def play(self) -> None:
        """Play to the end of both; at no time two of them hold a part."""
        for _ in range(STEPS_MAX):
            alive = [uid for uid in JOBS if not self.cluster.world.jobs[uid].is_final]
            if not alive:
                return
            self.step(self.random.choice(alive))
            self.check()
        raise AssertionError("they do not end")

    def check(self) -> None:
        """Who holds slots holds all of its gang's, and only one job does."""
        demands = self.cluster.world.admission.demands.values()
        held = {one.job: len(one.held) for one in demands if one.held}
        partial = [one.job for one in demands if one.phase is DemandPhase.WAITING and one.held]
        assert partial == [], f"{partial} hold a part and wait for the rest"
        assert sum(held.values()) <= 4, held
        for uid in held:
            if uid not in self.runs:
                self.runs.append(uid)

    def step(self, uid: str) -> None:
        """Let something happen to one attempt of a job, or let time pass."""
        cluster = self.cluster
        attempts = [
            (AttemptId(uid, "worker", one.index, one.last_number), one.newest)
            for one in replicas_of(cluster.world.jobs[uid].roles["worker"])
            if one.newest is not None and one.newest.phase is not AttemptPhase.GONE
        ]
        if not attempts or self.random.random() < 0.1:
            cluster.wait(self.random.choice((1_000, 40_000)))
            return
        name, attempt = self.random.choice(attempts)
        match attempt.phase:
            case AttemptPhase.REQUESTED:
                cluster.say(ev.AttemptLaunched(name), machine=uid)
            case AttemptPhase.LAUNCHED:
                registered = ev.ExecutorRegistered(name, "i", "h", "b1", 1, "0")
                cluster.say(registered, machine=uid)
            case AttemptPhase.REGISTERED if not attempt.is_holding:
                cluster.say(ev.ExecutorHolding(name), machine=uid)
            case AttemptPhase.STARTING:
                cluster.say(ev.TrainerStarted(name, 7, 0), machine=uid)
            case AttemptPhase.RUNNING | AttemptPhase.STOPPING:
                code = 1 if self.random.random() < 0.2 else 0
                cluster.say(ev.TrainerExited(name, ended(code)), machine=uid)
            case AttemptPhase.ENDED:
                cluster.say(ev.AttemptVanished(name), machine=uid)
            case _:
                pass


@pytest.mark.parametrize("first", range(0, SEEDS, 250))
def test_C27_two_gangs_on_four_slots_run_one_after_the_other(first: int) -> None:
    for seed in range(first, first + 250):
        rivals = Rivals(seed)
        try:
            rivals.play()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error

        assert sorted(rivals.runs) == sorted(JOBS), f"seed {seed}"
        assert {str(one.phase) for one in rivals.cluster.world.jobs.values()} == {"Succeeded"}
        if seed % 100 == 0:
            rivals.cluster.check_replay()
