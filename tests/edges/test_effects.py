"""What is kept in motion: started when planned, ended when not, repeated until it is so."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from primusd.core import World
from primusd.datafeed.ledger.listing import AHEAD_UNITS
from primusd.datafeed.protocol import Unit
from primusd.datafeed.sources.files import ListingError
from primusd.datafeed.sources.listing import PIECE_UNITS, Listings
from primusd.engine import Engine
from primusd.executor.protocol import Bootstrap
from primusd.job.events import AttemptVanished, CancelRequested, ForgetRequested, RetryDecided
from primusd.job.ids import AttemptId
from primusd.job.model import Attempt, find_attempt
from primusd.job.phases import AttemptPhase, JobPhase
from primusd.job.spec import (
    JobSpec,
    Reading,
    Resources,
    Restart,
    RoleSpec,
    Source,
    Stop,
    StreamSpec,
)
from primusd.launchers.base import Listed
from primusd.records import ADMISSION
from primusd.sweep import is_over, sort_listed
from primusd.testing import Act, FakeLauncher
from tests.scenarios.daemon_lives import UID, Cluster, small_job

WORKER = AttemptId(UID, "worker", 0, 1)
Work = Callable[[Engine], Awaitable[None]]


def lives_for_ever(_attempt: AttemptId) -> Act:
    return Act(lives_for_ever=True)


def one_worker(**fields: Any) -> JobSpec:
    stop = Stop(grace_ms=5_000)
    role = RoleSpec("worker", 1, 1, "run", stop=stop, restart=Restart("replica", 1_000), **fields)
    return small_job(role)


def play(cluster: Cluster, work: Work) -> None:
    async def main() -> None:
        async with cluster.daemon() as engine:
            await cluster.submit(engine)
            await work(engine)

    anyio.run(main)


def newest(engine: Engine, attempt: AttemptId = WORKER) -> Attempt:
    found = find_attempt(engine.world.jobs[attempt.job], attempt)
    assert found is not None
    return found


class Refusing(FakeLauncher):
    """A back end that fails so many calls."""

    failures = 0
    stop_calls = 0

    async def launch(
        self, attempt: AttemptId, node: str, resources: Resources, bootstrap: Bootstrap
    ) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError("the back end does not answer")
        await super().launch(attempt, node, resources, bootstrap)

    async def stop(self, attempt: AttemptId, node: str) -> bool:
        self.stop_calls += 1
        return False

    async def release(self, attempt: AttemptId, node: str) -> bool:
        return False


def refusing(cluster: Cluster) -> Refusing:
    made = Refusing(cluster.time.call_later)
    cluster.launcher = made
    cluster.executors._launcher = made
    return made


def test_a_launch_is_asked_again_until_the_back_end_takes_it() -> None:
    cluster = Cluster(one_worker(), lives_for_ever)
    launcher = refusing(cluster)
    launcher.failures = 5

    async def work(_engine: Engine) -> None:
        await cluster.time.run_until(lambda: WORKER in cluster.executors.runs, within_ms=30_000)

    play(cluster, work)

    assert launcher.starts == {WORKER: 1}


def test_a_job_cancelled_before_its_launch_was_taken_starts_nothing() -> None:
    cluster = Cluster(one_worker(), lives_for_ever, delay_ms=60_000)

    async def work(engine: Engine) -> None:
        await cluster.time.run_for(1_000)
        await engine.propose(UID, CancelRequested(), by="test")
        await cluster.time.run_until(lambda: engine.world.jobs[UID].is_final)
        await cluster.time.run_for(600_000)

    play(cluster, work)

    assert cluster.launcher.starts == {}
    assert cluster.executors.runs == []


def test_a_trainer_that_does_not_heed_its_stop_is_ended_by_the_launcher() -> None:
    cluster = Cluster(one_worker(), lambda _attempt: Act(lives_for_ever=True, heeds_stop=False))

    async def work(engine: Engine) -> None:
        await cluster.time.run_until(lambda: WORKER in cluster.executors.runs)
        began_ms = engine.at_ms()
        await engine.propose(UID, CancelRequested(), by="test")
        await cluster.time.run_until(lambda: engine.world.jobs[UID].is_final)

        # Grace of 5 s, then 10 s in which the executor should have done it.
        assert 15_000 <= engine.at_ms() - began_ms <= 17_000
        outcome = newest(engine).outcome
        assert outcome is not None
        assert outcome.signal == 9

    play(cluster, work)
    assert cluster.launcher.alive() == ()


def test_a_back_end_that_takes_no_stop_is_told_at_the_deadline() -> None:
    cluster = Cluster(one_worker(), lambda _attempt: Act(lives_for_ever=True, heeds_stop=False))
    launcher = refusing(cluster)

    async def work(engine: Engine) -> None:
        await cluster.time.run_until(lambda: WORKER in cluster.executors.runs)
        began_ms = engine.at_ms()
        await engine.propose(UID, CancelRequested(), by="test")
        await cluster.time.run_until(lambda: newest(engine).phase is AttemptPhase.GONE)

        assert newest(engine).is_quarantined
        assert 44_000 <= engine.at_ms() - began_ms <= 47_000

    play(cluster, work)
    assert launcher.stop_calls > 3


def reading_job() -> JobSpec:
    stream = StreamSpec("clicks", (Source("/data/*"),), format="text")
    role = RoleSpec("worker", 1, 1, "run", data=(Reading("clicks"),))
    return small_job(role, data={"clicks": stream})


STREAM = f"{UID}/clicks"


def test_a_listing_is_told_in_parts_and_rests_once_it_is_complete() -> None:
    cluster = Cluster(reading_job(), lives_for_ever)
    count = PIECE_UNITS + 5
    calls: list[str] = []

    def listing(spec: StreamSpec) -> list[Unit]:
        calls.append(spec.name)
        return [Unit("file", f"/data/{number:06}", 100, "1") for number in range(count)]

    cluster.list_units = listing

    async def work(engine: Engine) -> None:
        await real_time(lambda: engine.world.streams[STREAM].is_listed)
        assert len(engine.world.streams[STREAM].units) == count
        await cluster.time.run_for(600_000)

    play(cluster, work)
    assert calls == ["clicks", "clicks"]


def test_a_listing_goes_no_further_than_readers_need() -> None:
    cluster = Cluster(reading_job(), lives_for_ever)
    listing = [Unit("file", f"/data/{number:06}", 100, "1") for number in range(50_000)]
    cluster.list_units = lambda _spec: listing

    async def work(engine: Engine) -> None:
        await real_time(lambda: len(engine.world.streams[STREAM].units) >= AHEAD_UNITS)
        await cluster.time.run_for(600_000)
        assert len(engine.world.streams[STREAM].units) <= AHEAD_UNITS + PIECE_UNITS
        assert not engine.world.streams[STREAM].is_listed

    play(cluster, work)


def test_m077_files_that_come_late_are_listed_when_a_look_is_due(tmp_path: Path) -> None:
    stream = StreamSpec("clicks", (Source(f"{tmp_path}/*.txt", rescan_ms=600_000),), format="text")
    role = RoleSpec("worker", 1, 1, "run", data=(Reading("clicks"),))
    cluster = Cluster(small_job(role, data={"clicks": stream}), lives_for_ever)
    cluster.list_piece = Listings().piece
    (tmp_path / "a.txt").write_text("row\n")

    async def work(engine: Engine) -> None:
        await real_time(lambda: bool(engine.world.streams[STREAM].scanning.ended_ms))
        (tmp_path / "b.txt").write_text("row\n")
        await cluster.time.run_for(590_000)
        assert len(engine.world.streams[STREAM].units) == 1
        await cluster.time.run_for(20_000)
        await real_time(lambda: engine.world.streams[STREAM].scanning.count == 1)
        assert len(engine.world.streams[STREAM].units) == 2
        await cluster.time.run_for(1_200_000)
        await real_time(lambda: engine.world.streams[STREAM].scanning.count > 1)
        assert len(engine.world.streams[STREAM].units) == 2

    play(cluster, work)


def test_a_listing_that_fails_for_a_while_is_tried_again() -> None:
    cluster = Cluster(reading_job(), lives_for_ever)
    failures = [ListingError("the share is away", permanent=False)] * 2

    def listing(_spec: StreamSpec) -> list[Unit]:
        if failures:
            raise failures.pop()
        return [Unit("file", "/data/a", 100, "1")]

    cluster.list_units = listing

    async def work(engine: Engine) -> None:
        for _ in range(200):
            await cluster.time.run_for(1_000)
            await anyio.sleep(0.005)
            if engine.world.streams[STREAM].is_listed:
                break
        assert engine.world.streams[STREAM].is_listed

    play(cluster, work)


def test_a_source_that_is_not_there_fails_the_job_with_its_sentence() -> None:
    cluster = Cluster(reading_job(), lives_for_ever)

    def listing(_spec: StreamSpec) -> list[Unit]:
        raise ListingError("data source /data/*: no such file or directory")

    cluster.list_units = listing

    async def work(engine: Engine) -> None:
        await real_time(lambda: engine.world.streams[STREAM].phase == "Failed")
        await cluster.time.run_until(lambda: engine.world.jobs[UID].is_final)
        verdict = engine.world.jobs[UID].verdict
        assert verdict is not None
        assert (verdict.reason, "no such file" in verdict.message) == ("DataFailed", True)

    play(cluster, work)


async def real_time(holds: Callable[[], bool]) -> None:
    """Wait in real time: listings run in a thread."""
    with anyio.fail_after(10):
        while not holds():  # noqa: ASYNC110 - a thread tells nobody here.
            await anyio.sleep(0.005)


def test_c21_what_a_launcher_has_of_a_job_that_is_over_is_ended_and_the_unknown_is_shown() -> None:
    cluster = Cluster(one_worker(), lambda _attempt: Act(run_ms=100))
    old, unknown = WORKER, AttemptId("06f3k2m9q1x7zzzz", "worker", 0, 1)

    async def work(engine: Engine) -> None:
        await cluster.time.run_until(lambda: engine.world.jobs[UID].is_final)
        await cluster.time.run_for(60_000)
        # A back end that finds traces again: of a job that is over, and of one nobody knows.
        back_end = cluster.launcher
        back_end._cancelled.clear()
        for attempt in (old, unknown):
            back_end._start(attempt, "n1")
        await cluster.time.run_for(120_000)

        assert back_end.alive() == (unknown,)
        assert [one.listed.attempt for one in cluster.strays.all()] == [unknown]
        assert engine.world.jobs[UID].phase is JobPhase.SUCCEEDED

    play(cluster, work)


def test_the_files_of_a_record_that_went_are_dropped() -> None:
    cluster = Cluster(one_worker(), lambda _attempt: Act(run_ms=100))

    async def work(engine: Engine) -> None:
        await cluster.time.run_until(lambda: engine.world.jobs[UID].is_final)
        assert cluster.dropped == []
        await engine.propose(UID, ForgetRequested(), by="test")
        await real_time(lambda: cluster.dropped == [UID])
        assert UID in engine.world.admission.tombstones

    play(cluster, work)


def test_a_tombstone_ends_what_is_left_of_a_forgotten_job() -> None:
    cluster = Cluster(one_worker(), lambda _attempt: Act(run_ms=100))

    async def work(engine: Engine) -> None:
        await cluster.time.run_until(lambda: engine.world.jobs[UID].is_final)
        await engine.propose(UID, ForgetRequested(), by="test")
        assert is_over(engine.world, WORKER) is True
        assert is_over(engine.world, AttemptId("06f3k2m9q1x7zzzz", "worker", 0, 1)) is None

    play(cluster, work)


def test_an_attempt_that_the_store_never_began_is_a_stray() -> None:
    cluster = Cluster(one_worker(), lives_for_ever)

    async def work(engine: Engine) -> None:
        await cluster.time.run_until(lambda: WORKER in cluster.executors.runs)
        newer = AttemptId(UID, "worker", 0, 2)
        found = sort_listed(
            engine.world, (Listed(newer, "n1", is_alive=True), Listed(WORKER, "n1", is_alive=True))
        )
        assert (found.stop, found.release) == ((), ())
        assert [one.attempt for one in found.strays] == [newer]

    play(cluster, work)


def test_an_executor_that_is_ahead_of_the_store_is_not_ended_by_it() -> None:
    """Its number was given out again: the attempt that this store knows is another one."""
    cluster = Cluster(one_worker(), lambda _attempt: Act(lives_for_ever=True, heeds_stop=False))

    async def work(engine: Engine) -> None:
        await cluster.time.run_until(lambda: WORKER in cluster.executors.runs)
        cluster.strays.turn_away(WORKER)
        await engine.propose(UID, CancelRequested(), by="test")
        await cluster.time.run_until(lambda: newest(engine).phase is AttemptPhase.GONE)

        assert newest(engine).is_quarantined
        assert cluster.launcher.alive() == (WORKER,)
        found = sort_listed(
            engine.world, (Listed(WORKER, "n1", is_alive=True),), cluster.strays.ahead
        )
        assert (found.stop, [one.attempt for one in found.strays]) == ((), [WORKER])

    play(cluster, work)


def test_an_empty_world_knows_nothing_to_end() -> None:
    found = sort_listed(World(), (Listed(WORKER, "n1", is_alive=True),))

    assert (found.stop, found.release, len(found.strays)) == ((), (), 1)


@pytest.mark.parametrize("failing_ms", [2_000, 30_000])
def test_time_passes_for_each_machine_at_its_deadline_and_not_in_between(failing_ms: int) -> None:
    """A retry's delay is a deadline: its end is told once, unless it was over when it was known."""
    cluster = Cluster(
        one_worker(), lambda attempt: Act(run_ms=failing_ms, code=int(attempt.attempt == 1))
    )
    told = 0
    at_ms: dict[type[object], int] = {}

    async def work(engine: Engine) -> None:
        nonlocal told

        def count(published: Any) -> None:
            nonlocal told
            for record in published.entry.records:
                told += record.by == "timer"
                at_ms.setdefault(type(record.event), published.entry.at_ms)

        engine.on_published.append(count)
        await cluster.time.run_until(lambda: engine.world.jobs[UID].is_final)

    play(cluster, work)
    was_over = at_ms[RetryDecided] == at_ms[AttemptVanished]
    assert 1 - was_over <= told < 20
    assert ADMISSION == ""
