"""One cluster through several lives of its daemon, in virtual time; journal and back end stay."""

from collections.abc import Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio

from primusd.admission.events import NodeSeen
from primusd.datafeed.ledger.model import Stream
from primusd.datafeed.protocol import Unit
from primusd.datafeed.sources.listing import Piece
from primusd.effects import Effects
from primusd.engine import Engine, EngineSettings
from primusd.executor.protocol import Bootstrap
from primusd.job.events import JobSubmitted
from primusd.job.ids import AttemptId
from primusd.job.model import Job, replicas_of
from primusd.job.spec import JobSpec, RoleSpec, StreamSpec
from primusd.records import ADMISSION
from primusd.state.journal import Journal, MemoryJournal
from primusd.sweep import Strays
from primusd.testing import (
    Act,
    CrashError,
    CrashingJournal,
    FakeExecutors,
    FakeLauncher,
    SoleElection,
    VirtualTime,
    pieces_of,
)

UID = "06f3k2m9q1x7abcd"
GIB = 1 << 30


class Cluster:
    """What outlives a daemon: the journal, the back end, the executors, time."""

    def __init__(
        self,
        spec: JobSpec,
        act: Callable[[AttemptId], Act],
        *,
        journal: Journal | None = None,
        **launcher: Any,  # of FakeLauncher
    ) -> None:
        self.spec = spec
        self.time = VirtualTime()
        self.journal: Journal = journal or MemoryJournal()
        self.launcher = FakeLauncher(self.time.call_later, **launcher)
        self.list_units: Callable[[StreamSpec], list[Unit]] = lambda _spec: []
        self.list_piece: Callable[[Stream], Piece] | None = None
        """In place of `list_units`."""
        self.dropped: list[str] = []
        self.executors = FakeExecutors(self.launcher, self.time.call_later, act)
        self.strays = Strays()
        self.engine: Engine | None = None
        self.job: Job | None = None

    @asynccontextmanager
    async def daemon(self, *, dies_at: int = 0, after: bool = False) -> Any:
        """Run a daemon; it is gone at the end of the scope."""
        engine = Engine(
            CrashingJournal(self.journal, at=dies_at, after=after),
            SoleElection(),
            self.time.clock,
            settings=EngineSettings(cluster_id="c", version="0"),
        )
        effects = Effects(
            engine,
            {self.launcher.name: self.launcher},
            bootstrap=lambda attempt: Bootstrap("c", attempt, (), ""),
            list_piece=self.list_piece or pieces_of(self.list_units),
            drop_record=self.dropped.append,
            strays=self.strays,
            sleep=self.time.sleep,
        )
        self.engine = engine
        try:
            async with anyio.create_task_group() as group:
                self.executors.attach(engine)
                await group.start(engine.run)
                await group.start(effects.run)
                yield engine
                group.cancel_scope.cancel()
        finally:
            self.executors.detach()

    async def submit(self, engine: Engine) -> None:
        """Let there be a node and the job, unless they are there."""
        if "n1" not in engine.world.admission.nodes:
            seen = NodeSeen("n1", "local", "boot", "0", 64_000, 64 * GIB, 0, 20_000, 29_999)
            await engine.propose(ADMISSION, seen, by="launcher:local")
        if UID not in engine.world.jobs:
            event = JobSubmitted(UID, self.spec, {}, "test", key="k", spec_digest="d")
            await engine.propose(UID, event, by="test")

    async def run_to_the_end(self, *, dies_at: int = 0, after: bool = False) -> bool:
        """Run a daemon until the job is final; return whether it died before."""
        has_died = False
        try:
            async with self.daemon(dies_at=dies_at, after=after) as engine:
                await self.submit(engine)
                await self.time.run_until(lambda: is_final(engine) and not self.launcher.alive())
                self.job = engine.world.jobs[UID]
        except* CrashError:
            has_died = True
        return has_died


def is_final(engine: Engine) -> bool:
    """Return whether the job has ended."""
    return engine.world.jobs[UID].is_final


def attempts_of(job: Job) -> Mapping[str, int]:
    """Return how many attempts each replica had."""
    return {
        f"{role.name}-{replica.index}": replica.last_number
        for role in job.roles.values()
        for replica in replicas_of(role)
    }


def small_job(*roles: RoleSpec, **fields: Any) -> JobSpec:
    """Return a job of these roles; a chief and two workers when none are given."""
    found = roles or (RoleSpec("chief", 1, 1, "run"), RoleSpec("worker", 2, 2, "run"))
    return JobSpec(fields.pop("name", "small"), {one.name: one for one in found}, **fields)
