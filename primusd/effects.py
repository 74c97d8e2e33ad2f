"""What is kept in motion: each command that a machine plans, for as long as it is planned.

Commands are derived from the state, so after a crash keeping the same plan is the recovery. Every
effect is idempotent per attempt and ends by proposing an event, or by its command going away.
"""

import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import assert_never

import anyio
import anyio.to_thread
import msgspec
import structlog
from anyio.abc import TaskGroup, TaskStatus

from primusd import core
from primusd.carriage import carry_positions, keep_positions
from primusd.datafeed.ledger.events import ListingFailed, UnitsListed
from primusd.datafeed.ledger.model import Stream
from primusd.datafeed.sources.files import ListingError
from primusd.datafeed.sources.listing import Piece
from primusd.engine import Anew, Engine
from primusd.errors import PrimusdError
from primusd.executor.protocol import Bootstrap
from primusd.following import LOOKS_AT_ONCE, OpenCluster, follow_topics, open_cluster
from primusd.job.commands import (
    CarryPositions,
    Command,
    DropRecord,
    FollowTopics,
    KeepPositions,
    LaunchAttempt,
    ListUnits,
    PublishPeers,
    ReleaseAttempt,
    StopAttempt,
    WakeAt,
)
from primusd.job.events import StopFailed
from primusd.job.ids import AttemptId
from primusd.job.model import find_attempt
from primusd.job.spec import Resources
from primusd.launchers.base import Launcher, LauncherEvent
from primusd.subscription import Published
from primusd.sweep import Strays, sort_listed
from primusd.timer import Sleep, Timer, sleep_ms

log = structlog.get_logger()

DELAYS_MS = (200, 400, 800, 1_600, 3_200, 5_000)
"""Between tries of one effect; each varies by the attempt's identity."""
REPEAT_MS = 30_000
"""A wish that the back end has taken, and of which nothing came, is said again."""
CALL_S = 30.0
"""One call of a launcher."""
CALLS_AT_ONCE = 64
LISTINGS_AT_ONCE = 4
LISTING_DELAYS_MS = (1_000, 2_000, 5_000, 10_000, 30_000)
"""Between two listings of a stream that still wants one."""
SWEEP_MS = 30_000
FAILURES = (PrimusdError, OSError, TimeoutError)

Key = tuple[str, ...] | tuple[str, AttemptId]


class Effects:
    """Starts what should be in motion, leaves what is, ends what should not be."""

    def __init__(
        self,
        engine: Engine,
        launchers: Mapping[str, Launcher],
        *,
        bootstrap: Callable[[AttemptId], Bootstrap],
        list_piece: Callable[[Stream], Piece],
        drop_record: Callable[[str], None],
        strays: Strays,
        sleep: Sleep = sleep_ms,
        open_cluster: OpenCluster = open_cluster,
    ) -> None:
        """Make effects that keep nothing yet.

        Args:
            engine: Whose plans are kept.
            launchers: By name.
            bootstrap: What a launcher delivers to the executor of an attempt.
            list_piece: Lists what follows the known units of a stream; blocks, so it runs
                in a thread.
            drop_record: Removes the files of a job whose record went; blocks.
            strays: Where what launchers have and nobody knows is shown.
            sleep: Waits in the time that the engine's clock measures.
            open_cluster: Returns what answers about the topics of a source.
        """
        self._engine = engine
        self._launchers = launchers
        self._bootstrap = bootstrap
        self._list_piece = list_piece
        self._drop_record = drop_record
        self._strays = strays
        self._sleep = sleep
        self._open_cluster = open_cluster
        self._timer = Timer(engine, sleep=sleep)
        self._group: TaskGroup | None = None
        self._plans: dict[str, tuple[Command, ...]] = {}
        self._running: dict[Key, tuple[Command, anyio.CancelScope]] = {}
        self._calls = anyio.CapacityLimiter(CALLS_AT_ONCE)
        self._listings = anyio.CapacityLimiter(LISTINGS_AT_ONCE)
        self._looks = anyio.CapacityLimiter(LOOKS_AT_ONCE)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Ask every launcher what it has, then keep all plans, until cancelled."""
        for launcher in self._launchers.values():
            launcher.watch(self._tell)
        async with anyio.create_task_group() as group:
            self._group = group
            for launcher in self._launchers.values():
                await self._sweep(launcher)
            self._engine.on_published.append(self._follow)
            self._engine.on_anew.append(self._begin_anew)
            try:
                self._keep_all()
                group.start_soon(self._timer.run)
                for launcher in self._launchers.values():
                    group.start_soon(self._sweep_for_ever, launcher)
                task_status.started()
                await anyio.sleep_forever()
            finally:
                self._engine.on_published.remove(self._follow)
                self._engine.on_anew.remove(self._begin_anew)

    def _tell(self, event: LauncherEvent) -> None:
        """Propose what a launcher says."""
        self._engine.tell(event.attempt.job, event, by="launcher")

    def _follow(self, published: Published) -> None:
        for machine in published.touched:
            self._keep(machine)
            if machine in published.before.jobs and machine not in published.after.jobs:
                self._start(("drop", machine), DropRecord(machine))

    def _begin_anew(self, why: Anew) -> None:
        """The world was replaced: what runs is compared with what it plans."""
        if why is not Anew.STALL:
            self._keep_all()

    def _keep_all(self) -> None:
        self._timer.clear()
        world = self._engine.world
        for machine in (*core.machines(world), *(self._plans.keys() - set(core.machines(world)))):
            self._keep(machine)

    def _keep(self, machine: str) -> None:
        """Start what the machine plans and is not in motion, end what it no longer plans."""
        self._timer.set(machine)
        plan = core.plan(self._engine.world, machine)
        before = self._plans.get(machine, ())
        if plan is before:
            return
        wanted = {key: one for one in plan if (key := key_of(one)) is not None}
        for one in before:
            key = key_of(one)
            if key is not None and key not in wanted:
                self._end(key)
        for key, command in wanted.items():
            self._start(key, command)
        if plan:
            self._plans[machine] = plan
        else:
            self._plans.pop(machine, None)

    def _start(self, key: Key, command: Command) -> None:
        running = self._running.get(key)
        if running is not None:
            if running[0] == command or isinstance(command, ListUnits):
                return
            self._end(key)
        assert self._group is not None
        scope = anyio.CancelScope()
        self._running[key] = (command, scope)
        self._group.start_soon(self._tend, key, command, scope)

    def _end(self, key: Key) -> None:
        running = self._running.pop(key, None)
        if running is not None:
            running[1].cancel()

    async def _tend(self, key: Key, command: Command, scope: anyio.CancelScope) -> None:
        with scope:
            await self._carry_out(command)
        # Another may have taken the place of one that was ended.
        if self._running.get(key, (None, None))[1] is scope:
            del self._running[key]

    async def _carry_out(self, command: Command) -> None:
        match command:
            case LaunchAttempt():
                await self._launch(command)
            case StopAttempt() | ReleaseAttempt():
                await self._end_attempt(command)
            case ListUnits():
                await self._list(command)
            case FollowTopics():
                await follow_topics(
                    self._engine, command, self._open_cluster, self._sleep, self._looks
                )
            case DropRecord():
                await anyio.to_thread.run_sync(self._drop_record, command.job)
            case CarryPositions():
                await carry_positions(self._engine, command, self._sleep)
            case KeepPositions():
                await keep_positions(self._engine, command, self._sleep)
            case WakeAt() | PublishPeers():
                # The timer reads deadlines itself; peers documents are made when they are fetched.
                pass
            case _:
                assert_never(command)

    async def _launch(self, command: LaunchAttempt) -> None:
        """Ask the launcher until the attempt is no longer Requested."""
        attempt = command.attempt
        tries = 0
        while True:
            launcher, resources = self._launcher(attempt), self._resources(attempt)
            if launcher is None:
                return
            try:
                async with self._calls:
                    with anyio.fail_after(CALL_S):
                        await launcher.launch(
                            attempt, command.node, resources, self._bootstrap(attempt)
                        )
            except FAILURES as error:
                log.warning(
                    "launch.failed", attempt=attempt.label, job=attempt.job, text=str(error)
                )
                await self._sleep(_delay_ms(attempt, tries))
                tries += 1
            else:
                await self._sleep(REPEAT_MS)

    async def _end_attempt(self, command: StopAttempt | ReleaseAttempt) -> None:
        """Ask the launcher until the attempt is gone, and give up at the deadline."""
        attempt = command.attempt
        await self._sleep_until(command.not_before_ms)
        was_delivered = False
        tries = 0
        while self._engine.at_ms() < command.deadline_ms:
            if attempt not in self._strays.ahead:
                was_delivered |= await self._call_end(command)
            left_ms = command.deadline_ms - self._engine.at_ms()
            delay_ms = DELAYS_MS[-1] if was_delivered else _delay_ms(attempt, tries)
            await self._sleep(max(0, min(left_ms, delay_ms)))
            tries += 1
        while True:
            self._engine.tell(attempt.job, StopFailed(attempt, was_delivered), by="launcher")
            await self._sleep(REPEAT_MS)

    async def _call_end(self, command: StopAttempt | ReleaseAttempt) -> bool:
        launcher = self._launcher(command.attempt)
        if launcher is None:
            return False
        end = launcher.stop if isinstance(command, StopAttempt) else launcher.release
        return await self._call(end, command.attempt, command.node)

    async def _call(
        self, end: Callable[[AttemptId, str], Awaitable[bool]], attempt: AttemptId, node: str
    ) -> bool:
        """Call `stop` or `release`; return whether the back end took it."""
        try:
            async with self._calls:
                with anyio.fail_after(CALL_S):
                    return await end(attempt, node)
        except FAILURES as error:
            log.warning("stop.failed", attempt=attempt.label, job=attempt.job, text=str(error))
            return False

    async def _list(self, command: ListUnits) -> None:
        """List a stream's sources piece by piece, as long as that is planned."""
        machine = f"{command.job}/{command.stream}"
        tries = 0
        while True:
            stream = self._engine.world.streams.get(machine)
            if stream is None:
                return
            try:
                piece = await anyio.to_thread.run_sync(
                    self._list_piece, stream, limiter=self._listings
                )
                known = len(stream.units)
                event = UnitsListed(
                    piece.units, known, piece.is_complete, piece.missing, piece.scan
                )
                await self._engine.propose(machine, event, by="source")
                if piece.units:
                    tries = 0
                    continue
            except ListingError as error:
                failed = ListingFailed(error.message, error.permanent)
                self._engine.tell(machine, failed, by="source")
            except FAILURES as error:
                log.warning("listing.failed", stream=machine, text=str(error))
            await self._sleep(LISTING_DELAYS_MS[min(tries, len(LISTING_DELAYS_MS) - 1)])
            tries += 1

    async def _sweep_for_ever(self, launcher: Launcher) -> None:
        while True:
            await self._sleep(SWEEP_MS)
            await self._sweep(launcher)

    async def _sweep(self, launcher: Launcher) -> None:
        """End what is known to be over and still there; show what is not known."""
        try:
            with anyio.fail_after(CALL_S):
                listed = await launcher.list()
        except FAILURES as error:
            log.warning("sweep.failed", launcher=launcher.name, text=str(error))
            return
        found = sort_listed(self._engine.world, listed, self._strays.ahead)
        self._strays.put(launcher.name, found.strays)
        for one in found.stop:
            if ("stop", one.attempt) not in self._running:
                await self._call(launcher.stop, one.attempt, one.node)
        for one in found.release:
            await self._call(launcher.release, one.attempt, one.node)

    async def _sleep_until(self, at_ms: int) -> None:
        while (left_ms := at_ms - self._engine.at_ms()) > 0:
            await self._sleep(left_ms)

    def _launcher(self, attempt: AttemptId) -> Launcher | None:
        job = self._engine.world.jobs.get(attempt.job)
        return self._launchers.get(job.spec.launcher) if job is not None else None

    def _resources(self, attempt: AttemptId) -> Resources:
        job = self._engine.world.jobs[attempt.job]
        resources = job.spec.roles[attempt.role].resources
        found = find_attempt(job, attempt)
        if found is None or not found.memory_bytes:
            return resources
        return msgspec.structs.replace(resources, memory_bytes=found.memory_bytes)


def key_of(command: Command) -> Key | None:
    """Return what makes a command the same one as before; None for those that are no effect."""
    match command:
        case LaunchAttempt(attempt):
            return ("launch", attempt)
        case StopAttempt(attempt):
            return ("stop", attempt)
        case ReleaseAttempt(attempt):
            return ("release", attempt)
        case ListUnits(job, stream):
            return ("list", job, stream)
        case FollowTopics(job, stream):
            return ("follow", job, stream)
        case CarryPositions(job, stream):
            return ("carry", job, stream)
        case KeepPositions(job, stream):
            return ("keep", job, stream)
        case DropRecord(job):
            return ("drop", job)
        case WakeAt() | PublishPeers():
            return None
        case _:
            assert_never(command)


def _delay_ms(attempt: AttemptId, tries: int) -> int:
    """Return the wait after a failed try: doubling, ± 25 % by the attempt's identity."""
    base_ms = DELAYS_MS[min(tries, len(DELAYS_MS) - 1)]
    digest = zlib.crc32(f"{attempt.job}/{attempt.label}/{tries}".encode())
    return base_ms * 3 // 4 + base_ms * (digest % 1_000) // 2_000
