"""A head that stands by keeps the world warm, and takes over with the tail alone."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field

import anyio
import pytest

from primusd.admission.events import CordonRequested, NodeSeen, UncordonRequested
from primusd.core import World
from primusd.engine import Engine, EngineSettings
from primusd.errors import DeposedError
from primusd.job.events import CancelRequested, ForgetRequested, JobSubmitted
from primusd.job.ids import make_uid
from primusd.records import ADMISSION, SCHEMA, Entry
from primusd.recovery import recover
from primusd.state.journal import MemoryFollowed, MemoryJournal
from primusd.state.snapshots import Snapshots
from primusd.testing import VirtualTime
from primusd.warm_copy import WarmCopy
from tests.scenarios.daemon_lives import small_job

pytestmark = pytest.mark.anyio

SETTINGS = EngineSettings(cluster_id="c", version="0.1.0")
GIB = 1 << 30
WAIT_S = 20


class Turns:
    """An election in which the test says whose turn it is."""

    def __init__(self) -> None:
        self.campaigns = 0
        self._given = anyio.Event()
        self._taken = anyio.Event()

    def give(self) -> None:
        self._given.set()

    def take_away(self) -> None:
        self._taken.set()

    async def campaign(self, *, last_term: int, wall_ms: int) -> int:
        self.campaigns += 1
        try:
            await self._given.wait()
        finally:
            self.campaigns -= 1
        return last_term + 1

    async def resign(self) -> None:
        self.take_away()

    def held(self) -> AbstractAsyncContextManager[None]:
        return self._held()

    @asynccontextmanager
    async def _held(self) -> AsyncIterator[None]:
        async def end() -> None:
            await self._taken.wait()
            raise DeposedError("another one's turn")

        async with anyio.create_task_group() as group:
            group.start_soon(end)
            yield
            group.cancel_scope.cancel()


@dataclass
class HeadOfTwo:
    """An engine that stands by or leads."""

    journal: MemoryJournal
    turns: Turns = field(default_factory=Turns)
    led: anyio.Event = field(default_factory=anyio.Event)

    def __post_init__(self) -> None:
        self.followed = MemoryFollowed(self.journal)
        self.told: list[bool] = []
        self.copy = WarmCopy(self.followed, self.told.append)
        self.time = VirtualTime()
        self.engine = Engine(
            self.journal, self.turns, self.time.clock, settings=SETTINGS, copy=self.copy
        )

    async def run(self) -> None:
        with suppress(BaseExceptionGroup):
            async with anyio.create_task_group() as group:
                await group.start(self.engine.run)
                self.led.set()

    async def lead(self) -> None:
        self.turns.give()
        await self.led.wait()


async def until(holds: Callable[[], object]) -> None:
    with anyio.fail_after(WAIT_S):
        while not holds():  # noqa: ASYNC110 - the copy is loaded in a thread
            await anyio.sleep(0.005)


@pytest.fixture
async def two() -> AsyncIterator[tuple[HeadOfTwo, HeadOfTwo]]:
    """The first leads, the second stands by with a copy of nothing yet."""
    journal = MemoryJournal()
    first, second = HeadOfTwo(journal), HeadOfTwo(journal)
    async with anyio.create_task_group() as group:
        for one in (first, second):
            group.start_soon(one.run)
        with anyio.fail_after(WAIT_S):
            await first.lead()
            await until(lambda: second.copy.may_lead)
            yield first, second
        group.cancel_scope.cancel()


def seen(name: str) -> NodeSeen:
    return NodeSeen(name, "local", "boot", "0", 8_000, 8 * GIB, 0, 20_000, 20_999)


async def busy(head: HeadOfTwo, *, jobs: range) -> None:
    """Submit jobs, cancel every third and forget every sixth, and let the rest be."""
    engine = head.engine
    for number in jobs:
        await engine.propose(ADMISSION, seen(f"n{number}"), by="test")
        uid = make_uid(1_000, number)
        spec = small_job(name=f"job-{number}")
        await engine.propose(uid, JobSubmitted(uid, spec, {}, "test"), by="test")
        if number % 3 == 0:
            await engine.propose(uid, CancelRequested("enough"), by="test")
        if number % 6 == 0 and engine.world.jobs[uid].is_final:
            await engine.propose(uid, ForgetRequested(), by="test")


async def snapshots_written(head: HeadOfTwo) -> None:
    await head.time.run_for(31_000)
    await head.engine.propose(ADMISSION, CordonRequested("n1"), by="test")
    await until(lambda: not head.engine._snapshots.has_due)
    await head.engine.propose(ADMISSION, UncordonRequested("n1"), by="test")


async def cold(journal: MemoryJournal) -> tuple[World, Snapshots]:
    """Return what a head comes to that loads all of it."""
    loaded = await journal.load()
    found = recover(loaded)
    return found.world, Snapshots.of(loaded, uncovered=found.uncovered, raw_jobs=found.wedged)


def known(snapshots: Snapshots) -> tuple[object, ...]:
    return (
        snapshots.last_at_ms,
        dict(snapshots._uncovered),
        dict(snapshots._keys),
        max(1, snapshots._kept_from),
    )


async def test_the_copy_is_at_each_moment_what_a_load_would_come_to(
    two: tuple[HeadOfTwo, HeadOfTwo],
) -> None:
    first, second = two
    for round_ in range(4):
        await busy(first, jobs=range(10 * round_, 10 * round_ + 10))
        for _ in range(2):
            if round_ % 2:
                await snapshots_written(first)
            world, snapshots = await cold(first.journal)

            assert second.copy.revision == first.engine.revision
            assert second.copy.world == world == first.engine.world
            assert known(second.copy._snapshots) == known(snapshots)

    assert second.copy.loads == 1


async def test_who_takes_over_replays_the_tail_alone(two: tuple[HeadOfTwo, HeadOfTwo]) -> None:
    first, second = two
    await busy(first, jobs=range(20))
    second.followed.is_held_up = True
    told = second.copy.records
    await first.engine.propose(ADMISSION, seen("late"), by="test")
    await first.engine.propose(ADMISSION, CordonRequested("late"), by="test")
    assert second.copy.records == told
    world = first.engine.world
    first.turns.take_away()

    await second.lead()

    # Two records of the tail; what the new term says of itself is its own.
    assert second.copy.records == told + 2
    assert second.copy.loads == 1
    assert second.engine.world.jobs == world.jobs
    assert second.engine.world.admission.nodes.keys() == world.admission.nodes.keys()
    assert second.engine.term > first.engine.term
    assert second.engine.revision == first.engine.revision + 1
    await busy(second, jobs=range(20, 30))
    assert second.engine.world == (await cold(second.journal))[0]


async def test_it_writes_snapshots_of_what_the_other_one_left_uncovered(
    two: tuple[HeadOfTwo, HeadOfTwo],
) -> None:
    first, second = two
    await busy(first, jobs=range(7))
    first.turns.take_away()
    await second.lead()

    await snapshots_written(second)

    loaded = await second.journal.load()
    assert set(loaded.snapshots) >= {"", *second.engine.world.jobs}
    assert recover(loaded).world == second.engine.world


async def test_a_newer_version_that_writes_keeps_it_from_leading(
    two: tuple[HeadOfTwo, HeadOfTwo],
) -> None:
    first, second = two
    await until(lambda: second.turns.campaigns == 1)
    assert second.told == [False, True]
    newer = Entry(SCHEMA + 1, first.engine.term, first.engine.revision + 1, 1, ())

    await first.journal.append(newer)

    await until(lambda: second.turns.campaigns == 0)
    # Other heads hear that it could not take over.
    assert second.told == [False, True, False]
    assert second.copy.refused is not None
    assert f"schema {SCHEMA + 1}; this primusd knows" in second.copy.refused.message
    second.turns.give()
    await anyio.wait_all_tasks_blocked()
    assert not second.led.is_set()
