"""A replica that was cut off comes back beside its replacement, and changes nothing: C41, M058."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from primusd.executor.protocol import Leave, Orders, Refused
from primusd.job.events import AttemptVanished, ExecutorExpired
from primusd.job.ids import AttemptId
from primusd.job.phases import AttemptPhase
from primusd.keys import job_key
from tests.edges.daemon_side import (
    SECRET,
    Daemon,
    Voice,
    executor_voice,
    make_exit,
    make_hello,
    make_report,
    serving_daemon,
    voice,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    async with serving_daemon(tmp_path) as served:
        await served.add_node()
        yield served


async def replaced(daemon: Daemon, old: AttemptId) -> AttemptId:
    """Let a replica that runs be given up, and another begin in its place."""
    await daemon.engine.propose(old.job, ExecutorExpired(old), by="liveness")
    await daemon.engine.propose(old.job, AttemptVanished(old), by="launcher:local")
    new = replace(old, attempt=old.attempt + 1)
    assert daemon.attempt(new).phase is AttemptPhase.REQUESTED
    return new


async def runs(voice: Voice) -> None:
    await voice.report("holding")
    await voice.report("running", is_started=True)


async def test_c41_the_older_one_is_told_to_leave_on_the_connection_it_still_has(
    daemon: Daemon,
) -> None:
    old = AttemptId(await daemon.submit(), "worker", 0, 1)
    async with executor_voice(daemon, old) as executor:
        await runs(executor)
        new = await replaced(daemon, old)
        before = daemon.job(old.job)

        await executor.say(make_report(99, "running", is_started=True))
        answer = await executor.hear()
        while isinstance(answer, Orders) and answer.report != 99:
            answer = await executor.hear()

    assert isinstance(answer, Refused) or (isinstance(answer, Orders) and answer.run == Leave())
    assert daemon.job(old.job) == before
    assert daemon.attempt(new).phase is AttemptPhase.REQUESTED


async def test_c41_the_older_one_is_refused_when_it_dials_anew(daemon: Daemon) -> None:
    old = AttemptId(await daemon.submit(), "worker", 0, 1)
    async with executor_voice(daemon, old) as executor:
        await runs(executor)
    new = await replaced(daemon, old)
    before = daemon.job(old.job)

    async with voice(daemon, key=job_key(SECRET, old.job)) as again:
        refused = await again.ask(make_hello(old))

    assert isinstance(refused, Refused)
    assert refused.code == "superseded"
    assert refused.text == "worker-0/2 took its place"
    assert daemon.job(old.job) == before
    async with executor_voice(daemon, new) as successor:
        await runs(successor)
    assert daemon.attempt(new).phase is AttemptPhase.RUNNING


async def test_m058_the_end_of_the_older_one_is_not_the_end_of_its_successor(
    daemon: Daemon,
) -> None:
    old = AttemptId(await daemon.submit(), "worker", 0, 1)
    async with executor_voice(daemon, old) as executor:
        await runs(executor)
        new = await replaced(daemon, old)
        async with executor_voice(daemon, new) as successor:
            await runs(successor)
            charges = daemon.job(old.job).roles["worker"].charges

            await executor.say(make_report(99, "ended", is_started=True, exit_=make_exit(1)))
            answer = await executor.hear()
            while isinstance(answer, Orders) and answer.report != 99:
                answer = await executor.hear()

            await successor.report("running", is_started=True)
            assert daemon.attempt(new).phase is AttemptPhase.RUNNING
            assert daemon.job(old.job).roles["worker"].charges == charges


async def test_c16_a_successor_is_not_silent_because_its_predecessor_was(daemon: Daemon) -> None:
    old = AttemptId(await daemon.submit(), "worker", 0, 1)
    async with executor_voice(daemon, old) as executor:
        await runs(executor)
    daemon.clock.advance(30_000)
    daemon.liveness.look()
    await daemon.until(lambda: daemon.attempt(old).outcome)
    await daemon.engine.propose(old.job, AttemptVanished(old), by="launcher:local")
    new = replace(old, attempt=2)

    async with executor_voice(daemon, new) as successor:
        await runs(successor)
        daemon.clock.advance(9_999)
        daemon.liveness.look()
        await successor.report("running", is_started=True)
        daemon.clock.advance(9_999)
        daemon.liveness.look()
        await successor.report("running", is_started=True)

    assert not daemon.attempt(new).is_silent
    assert daemon.attempt(new).phase is AttemptPhase.RUNNING
    assert len(daemon.job(old.job).roles["worker"].charges) == 1
