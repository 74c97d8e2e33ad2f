"""The daemon dies at every journal position, before and after the commit; nobody notices."""

from functools import partial

import anyio
import pytest

from primusd.engine import Engine
from primusd.job.ids import AttemptId
from primusd.job.phases import JobPhase
from primusd.job.spec import Budgets, Restart, RoleSpec
from primusd.state.journal import MemoryJournal
from primusd.testing import Act
from tests.scenarios.daemon_lives import UID, Cluster, attempts_of, is_final, small_job


def succeeds(_attempt: AttemptId) -> Act:
    return Act(run_ms=5_000)


def first_worker_fails_twice(attempt: AttemptId) -> Act:
    fails = attempt.role == "worker" and attempt.index == 0 and attempt.attempt < 3
    return Act(run_ms=5_000, code=1 if fails else 0)


FLAKY = small_job(
    RoleSpec("chief", 1, 1, "run"),
    RoleSpec("worker", 2, 2, "run", restart=Restart("replica", 1_000)),
)


def has_charges(engine: Engine, count: int) -> bool:
    return len(engine.world.jobs[UID].roles["worker"].charges) >= count


def has_run(cluster: Cluster, attempt: AttemptId) -> bool:
    return attempt in cluster.executors.runs


def last_revision(cluster: Cluster) -> int:
    assert cluster.engine is not None
    return cluster.engine.revision


def positions(*, spec_is_flaky: bool) -> int:
    cluster = (
        Cluster(FLAKY, first_worker_fails_twice)
        if spec_is_flaky
        else Cluster(small_job(), succeeds)
    )
    anyio.run(cluster.run_to_the_end)
    return last_revision(cluster)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_c38_a_death_at_every_position_changes_neither_verdict_nor_attempts(*, after: bool) -> None:
    count = positions(spec_is_flaky=False)
    assert count > 10
    for revision in range(1, count + 1):
        cluster = Cluster(small_job(), succeeds)

        async def play(cluster: Cluster = cluster, revision: int = revision) -> None:
            assert await cluster.run_to_the_end(dies_at=revision, after=after)
            assert not await cluster.run_to_the_end()

        anyio.run(play)

        job = cluster.job
        assert job is not None
        assert (revision, job.phase) == (revision, JobPhase.SUCCEEDED)
        assert attempts_of(job) == {"chief-0": 1, "worker-0": 1, "worker-1": 1}
        assert sorted(cluster.executors.runs) == sorted(set(cluster.executors.runs))
        assert max(cluster.launcher.starts.values()) == 1


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_c47_budgets_go_on_over_a_death_at_every_position(*, after: bool) -> None:
    count = positions(spec_is_flaky=True)
    for revision in range(1, count + 1):
        cluster = Cluster(FLAKY, first_worker_fails_twice)

        async def play(cluster: Cluster = cluster, revision: int = revision) -> None:
            await cluster.run_to_the_end(dies_at=revision, after=after)
            await cluster.run_to_the_end()

        anyio.run(play)

        job = cluster.job
        assert job is not None
        assert (revision, job.phase) == (revision, JobPhase.SUCCEEDED)
        assert attempts_of(job) == {"chief-0": 1, "worker-0": 3, "worker-1": 1}
        assert len(job.roles["worker"].charges) == 2
        assert max(cluster.launcher.starts.values()) == 1


def test_c47_a_budget_is_not_filled_up_by_starting_the_daemon_between_failures() -> None:
    spec = small_job(
        RoleSpec(
            "worker", 1, 1, "run", restart=Restart("replica", 1_000), budgets=Budgets(application=3)
        )
    )
    cluster = Cluster(spec, lambda _attempt: Act(run_ms=2_000, code=1))

    async def play() -> None:
        for failures in range(1, 4):
            async with cluster.daemon() as engine:
                await cluster.submit(engine)
                await cluster.time.run_until(partial(has_charges, engine, failures))
        await cluster.run_to_the_end()

    anyio.run(play)

    assert cluster.job is not None
    assert cluster.job.verdict is not None
    assert (cluster.job.phase, cluster.job.verdict.reason) == (
        JobPhase.FAILED,
        "RetriesExhausted",
    )
    assert attempts_of(cluster.job) == {"worker-0": 4}


@pytest.mark.parametrize("seed", range(8))
def test_a_slow_repeating_disordered_back_end_leads_to_the_same_end(seed: int) -> None:
    cluster = Cluster(FLAKY, first_worker_fails_twice, delay_ms=700, repeats=3, shuffle_seed=seed)

    async def play() -> None:
        count = 10 + seed * 3
        await cluster.run_to_the_end(dies_at=count, after=bool(seed % 2))
        await cluster.run_to_the_end()

    anyio.run(play)

    assert cluster.job is not None
    assert cluster.job.phase == JobPhase.SUCCEEDED
    assert attempts_of(cluster.job) == {"chief-0": 1, "worker-0": 3, "worker-1": 1}
    assert max(cluster.launcher.starts.values()) == 1


def test_c22_preemptions_use_up_no_budget_of_the_application() -> None:
    spec = small_job(
        RoleSpec(
            "worker",
            1,
            1,
            "run",
            restart=Restart("replica", 1_000),
            budgets=Budgets(application=1, infrastructure=20),
        )
    )
    cluster = Cluster(spec, lambda attempt: Act(lives_for_ever=attempt.attempt <= 5))

    async def play() -> None:
        async with cluster.daemon() as engine:
            await cluster.submit(engine)
            for number in range(1, 6):
                attempt = AttemptId(UID, "worker", 0, number)
                await cluster.time.run_until(partial(has_run, cluster, attempt))
                cluster.launcher.finish(attempt, None, "preempted")
            await cluster.time.run_until(lambda: is_final(engine))
            cluster.job = engine.world.jobs[UID]

    anyio.run(play)

    assert cluster.job is not None
    assert cluster.job.phase == JobPhase.SUCCEEDED
    charges = [charge.budget.value for charge in cluster.job.roles["worker"].charges]
    assert charges == ["infrastructure"] * 5


def test_a_daemon_on_an_empty_store_ends_no_process_and_shows_it() -> None:
    cluster = Cluster(small_job(), lambda _attempt: Act(lives_for_ever=True))

    async def play() -> None:
        async with cluster.daemon() as engine:
            await cluster.submit(engine)
            await cluster.time.run_until(lambda: len(cluster.executors.runs) == 3)
        alive = cluster.launcher.alive()
        assert len(alive) == 3

        cluster.journal = MemoryJournal()
        async with cluster.daemon():
            await cluster.time.run_for(3_600_000)
            assert cluster.launcher.alive() == alive
            assert {one.listed.attempt for one in cluster.strays.all()} == set(alive)

    anyio.run(play)
