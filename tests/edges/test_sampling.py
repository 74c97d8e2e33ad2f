"""The daemon looks at its invariants now and then, and says which does not hold."""

import anyio
from msgspec.structs import replace

from primusd.engine import Engine
from primusd.job.phases import JobPhase
from primusd.sampling import broken_invariant
from primusd.testing import Act
from tests.scenarios.daemon_lives import UID, Cluster, small_job


def test_a_state_that_holds_says_nothing_and_one_that_does_not_names_the_invariant() -> None:
    cluster = Cluster(small_job(), lambda _attempt: Act(lives_for_ever=True))

    async def main() -> None:
        async with cluster.daemon() as engine:
            await play(cluster, engine)

    anyio.run(main)


async def play(cluster: Cluster, engine: Engine) -> None:
    await cluster.submit(engine)
    await cluster.time.run_until(lambda: len(cluster.executors.runs) == 3)
    world = engine.world
    assert broken_invariant(world) == ""

    ended = replace(world.jobs[UID], phase=JobPhase.SUCCEEDED)
    assert "3" in broken_invariant(replace(world, jobs={UID: ended}))
