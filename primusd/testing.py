"""Fakes that behave: time moved by hand, a journal that crashes, a launcher, executors.

They stand on the same ports as the real ones, so a test drives the daemon's own engine and effects
through crashes, lateness and repetition, in virtual time.
"""

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext

import anyio
from anyio.lowlevel import checkpoint
from msgspec import Struct

from primusd.clock import ManualClock
from primusd.datafeed.ledger.model import Stream
from primusd.datafeed.protocol import Unit
from primusd.datafeed.sources.listing import PIECE_UNITS, Piece
from primusd.engine import Anew, Engine
from primusd.executor.protocol import Bootstrap, Exit
from primusd.job.events import (
    AttemptLaunched,
    AttemptVanished,
    ExecutorHolding,
    ExecutorRegistered,
    LaunchFailed,
    PreemptionNoticed,
    TrainerExited,
    TrainerReady,
    TrainerStarted,
)
from primusd.job.ids import AttemptId
from primusd.job.model import Attempt, find_attempt, find_replica
from primusd.job.phases import AttemptPhase
from primusd.job.spec import Resources, StreamSpec
from primusd.launchers.base import LauncherEvent, Listed
from primusd.records import Entry, Event
from primusd.state.election import embedded_term
from primusd.state.journal import Journal, Loaded, Snapshot
from primusd.subscription import Published

SETTLE_ROUNDS = 60
"""A proposal takes about 10 turns of the loop from `tell` to what follows from it."""

Later = Callable[[int, Callable[[], None]], None]
"""Calls something after so many milliseconds."""


class CrashError(BaseException):
    """The daemon dies here; not an error, so that nothing catches it."""


class VirtualTime:
    """A clock, and all that waits for it; moved only when every task waits.

    Attributes:
        clock: What the engine reads.
    """

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.clock = ManualClock(now_ms)
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = itertools.count()

    def call_later(self, delay_ms: int, call: Callable[[], None]) -> None:
        """Call once the clock has moved so far."""
        due_ms = self.clock.since_boot_ms + max(0, delay_ms)
        heapq.heappush(self._heap, (due_ms, next(self._sequence), call))

    async def sleep(self, duration_ms: int) -> None:
        """Sleep until the clock has moved so far."""
        if duration_ms <= 0:
            await checkpoint()
            return
        woken = anyio.Event()
        self.call_later(duration_ms, woken.set)
        await woken.wait()

    async def run_until(self, holds: Callable[[], bool], *, within_ms: int = 86_400_000) -> None:
        """Move the clock from wish to wish until something holds.

        Raises:
            TimeoutError: It does not hold within that virtual time, or nothing would ever change.
        """
        end_ms = self.clock.since_boot_ms + within_ms
        while True:
            await settle()
            if holds():
                return
            if not self._heap or self._heap[0][0] > end_ms:
                raise TimeoutError(f"it did not come about within {within_ms} ms")
            self._move_to_next()

    async def run_for(self, duration_ms: int) -> None:
        """Move the clock by so much, through every wish on the way."""
        end_ms = self.clock.since_boot_ms + duration_ms
        while True:
            await settle()
            if not self._heap or self._heap[0][0] > end_ms:
                self.clock.advance(end_ms - self.clock.since_boot_ms)
                return
            self._move_to_next()

    def forget_waiting(self) -> None:
        """Drop what waits: the process that waited is dead."""
        self._heap.clear()

    def _move_to_next(self) -> None:
        due_ms, _, call = heapq.heappop(self._heap)
        self.clock.advance(max(0, due_ms - self.clock.since_boot_ms))
        call()


async def settle() -> None:
    """Let every task go on until it waits for time: nothing here waits for a file or a socket."""
    for _ in range(SETTLE_ROUNDS):
        await checkpoint()


class SoleElection:
    """Leads at once."""

    async def campaign(self, *, last_term: int, wall_ms: int) -> int:
        """Return the next term."""
        return embedded_term(last_term=last_term, wall_ms=wall_ms)

    async def resign(self) -> None:
        """Do nothing: nobody else is there."""

    def held(self) -> AbstractAsyncContextManager[None]:
        """Return a scope that nothing cancels."""
        return nullcontext()


class CrashingJournal:
    """A journal in front of another, at which the daemon dies at one revision.

    Args:
        inner: Keeps what was committed before the death.
        at: Revision of the entry; 0 never.
        after: Die when it is committed and before anybody is told, else before the commit.
    """

    def __init__(self, inner: Journal, *, at: int, after: bool) -> None:
        self._inner = inner
        self._at = at
        self._after = after

    async def load(self) -> Loaded:
        """Return what the other holds."""
        return await self._inner.load()

    async def entries(self) -> tuple[Entry, ...]:
        """Return the entries that the other holds."""
        return await self._inner.entries()

    async def append(
        self, entry: Entry | None, snapshots: tuple[Snapshot, ...] = (), keep_from: int = 0
    ) -> None:
        """Append to the other, or die."""
        is_it = entry is not None and entry.revision == self._at
        if is_it and not self._after:
            raise CrashError
        await self._inner.append(entry, snapshots, keep_from)
        if is_it:
            raise CrashError

    async def replace(self, loaded: Loaded) -> None:
        """Let the other hold this alone."""
        await self._inner.replace(loaded)

    async def close(self) -> None:
        """Close the other."""
        await self._inner.close()


class _Process:
    """An attempt's executor as the back end knows it."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.is_alive = True
        self.exit: Exit | None = None
        self.evidence = ""


class FakeLauncher:
    """A back end in memory that outlives daemons: slow, repeating and out of order on request.

    Attributes:
        name: `local` unless said otherwise.
        launches: How often `launch` was called for each attempt.
        starts: How many processes came of it; more than 1 is a broken launcher.
    """

    def __init__(
        self,
        later: Later,
        *,
        name: str = "local",
        delay_ms: int = 0,
        repeats: int = 1,
        shuffle_seed: int | None = None,
    ) -> None:
        """Make a back end without any process.

        Args:
            later: Of the time that it lives in.
            name: By which jobs name it.
            delay_ms: From a wish to what comes of it.
            repeats: How often each fact is told.
            shuffle_seed: Facts are late by up to 100 ms each, so that they overtake one another.
        """
        self.name = name
        self.launches: dict[AttemptId, int] = {}
        self.starts: dict[AttemptId, int] = {}
        self._later = later
        self._delay_ms = delay_ms
        self._repeats = repeats
        self._random = None if shuffle_seed is None else random.Random(shuffle_seed)  # noqa: S311
        self._processes: dict[AttemptId, _Process] = {}
        self._cancelled: set[AttemptId] = set()
        self._refused: dict[str, str] = {}
        self._sink: Callable[[LauncherEvent], None] = lambda _event: None

    async def launch(
        self, attempt: AttemptId, node: str, resources: Resources, bootstrap: Bootstrap
    ) -> None:
        """Start the attempt's process after the delay, once however often it is asked."""
        assert bootstrap.attempt == attempt
        self.launches[attempt] = self.launches.get(attempt, 0) + 1
        if attempt.role in self._refused:
            self._tell(LaunchFailed(attempt, self._refused[attempt.role]))
            return
        if attempt in self._processes or attempt in self._cancelled:
            return
        self._later(self._delay_ms, lambda: self._start(attempt, node))

    async def stop(self, attempt: AttemptId, node: str) -> bool:
        """End the process, or see to it that it never starts."""
        self._cancelled.add(attempt)
        self._later(self._delay_ms, lambda: self._kill(attempt, is_released=False))
        return True

    async def release(self, attempt: AttemptId, node: str) -> bool:
        """End the process and forget it."""
        self._cancelled.add(attempt)
        self._later(self._delay_ms, lambda: self._kill(attempt, is_released=True))
        return True

    async def list(self) -> tuple[Listed, ...]:
        """Return every attempt of which there is a trace."""
        return tuple(
            Listed(attempt, one.node, one.is_alive) for attempt, one in self._processes.items()
        )

    def watch(self, sink: Callable[[LauncherEvent], None]) -> None:
        """Tell the sink from now on what happens; first, once more, what is so."""
        self._sink = sink
        for attempt in self._processes:
            self._tell_state(attempt)

    # What a test does to it.

    def is_alive(self, attempt: AttemptId) -> bool:
        """Return whether the attempt's process lives."""
        return attempt in self._processes and self._processes[attempt].is_alive

    def alive(self) -> tuple[AttemptId, ...]:
        """Return every attempt whose process lives."""
        return tuple(attempt for attempt, one in self._processes.items() if one.is_alive)

    def finish(self, attempt: AttemptId, exit_record: Exit | None, evidence: str = "") -> None:
        """Let a process end by itself, or be taken by the back end: `preempted`, `nodeLost`."""
        process = self._processes.get(attempt)
        if process is not None and process.is_alive:
            process.is_alive = False
            process.exit, process.evidence = exit_record, evidence
            self._tell_state(attempt)

    def announce_preemption(self, attempt: AttemptId, left_ms: int) -> None:
        """Tell that the back end will take a process."""
        self._tell(PreemptionNoticed(attempt, left_ms))

    def refuse(self, role: str, text: str) -> None:
        """Refuse every launch of a role from now on."""
        self._refused[role] = text

    def _start(self, attempt: AttemptId, node: str) -> None:
        if attempt not in self._processes and attempt not in self._cancelled:
            self._processes[attempt] = _Process(node)
            self.starts[attempt] = self.starts.get(attempt, 0) + 1
            self._tell_state(attempt)

    def _kill(self, attempt: AttemptId, *, is_released: bool) -> None:
        process = self._processes.get(attempt)
        if process is not None and process.is_alive:
            process.is_alive = False
            process.exit = process.exit or exited(signal=9)
        exit_record = process.exit if process is not None else None
        evidence = process.evidence if process is not None else ""
        if is_released:
            self._processes.pop(attempt, None)
        self._tell(AttemptVanished(attempt, exit_record, evidence))

    def _tell_state(self, attempt: AttemptId) -> None:
        process = self._processes[attempt]
        self._tell(AttemptLaunched(attempt, {"node": process.node}))
        if not process.is_alive:
            self._tell(AttemptVanished(attempt, process.exit, process.evidence))

    def _tell(self, event: LauncherEvent) -> None:
        for _ in range(self._repeats):
            late_ms = 0 if self._random is None else self._random.randrange(100)
            self._later(late_ms, lambda: self._sink(event))


class Act(Struct, frozen=True):
    """What a trainer does once it is started."""

    run_ms: int = 1_000
    code: int | None = 0
    signal: int | None = None
    heeds_stop: bool = True
    """It ends with code 0 when it is told to stop; else it goes on to its own end."""
    lives_for_ever: bool = False


class _Executor:
    """What is so beside one trainer."""

    def __init__(self, attempt: AttemptId) -> None:
        self.attempt = attempt
        self.has_started = False
        self.exit: Exit | None = None
        self.stop_seen = ""


class FakeExecutors:
    """The executors of a fake launcher's processes: each tells all that is so until it is counted.

    Attributes:
        runs: Trainers started, in order; one that runs twice is a broken fence.
    """

    def __init__(
        self, launcher: FakeLauncher, later: Later, act: Callable[[AttemptId], Act]
    ) -> None:
        """Make executors that no daemon hears yet.

        Args:
            launcher: Whose processes they are.
            later: Of the time that they live in.
            act: What the trainer of an attempt does.
        """
        self.runs: list[AttemptId] = []
        self._launcher = launcher
        self._later = later
        self._act = act
        self._executors: dict[AttemptId, _Executor] = {}
        self._engine: Engine | None = None

    def attach(self, engine: Engine) -> None:
        """Dial a daemon; those of a dead one before are hung up."""
        self._engine = engine
        engine.on_published.append(self._follow)
        engine.on_anew.append(self._begin_anew)

    def detach(self) -> None:
        """Lose the daemon; trainers go on."""
        self._engine = None

    def _follow(self, _published: Published) -> None:
        self._later(0, self._report_all)

    def _begin_anew(self, _why: Anew) -> None:
        self._later(0, self._report_all)

    def _report_all(self) -> None:
        for attempt in self._launcher.alive():
            self._report(attempt)

    def _report(self, attempt: AttemptId) -> None:
        """Tell what is so and not known yet, and do what is ordered."""
        engine = self._engine
        if engine is None or engine.outage is not None:
            return
        job = engine.world.jobs.get(attempt.job)
        replica = find_replica(job, attempt.role, attempt.index) if job is not None else None
        if job is None or replica is None:
            return
        if replica.last_number > attempt.attempt:
            self._launcher.finish(attempt, exited(stop_seen="superseded"))
            return
        known = find_attempt(job, attempt)
        if known is not None:
            executor = self._executors.setdefault(attempt, _Executor(attempt))
            for event in self._news(executor, known):
                engine.tell(attempt.job, event, by="executor")

    def _news(self, executor: _Executor, known: Attempt) -> tuple[Event, ...]:
        attempt = executor.attempt
        told: tuple[Event, ...] = ()
        match known.phase:
            case AttemptPhase.REQUESTED | AttemptPhase.LAUNCHED:
                return (ExecutorRegistered(attempt, "0" * 16, known.node, "boot", 1, "0"),)
            case AttemptPhase.REGISTERED:
                return () if known.is_holding else (ExecutorHolding(attempt, known.ports),)
            case AttemptPhase.STARTING:
                self._start(executor)
                told = (TrainerStarted(attempt, 2, 0), TrainerReady(attempt))
            case AttemptPhase.RUNNING:
                pass
            case AttemptPhase.STOPPING:
                self._stop(executor, known)
            case AttemptPhase.ENDED | AttemptPhase.GONE:
                self._launcher.finish(attempt, executor.exit)
                return ()
        return told if executor.exit is None else (*told, TrainerExited(attempt, executor.exit))

    def _start(self, executor: _Executor) -> None:
        if executor.has_started:
            return
        executor.has_started = True
        self.runs.append(executor.attempt)
        act = self._act(executor.attempt)
        if not act.lives_for_ever:
            self._later(act.run_ms, lambda: self._end(executor, act))

    def _stop(self, executor: _Executor, known: Attempt) -> None:
        executor.stop_seen = known.stop.reason.value if known.stop is not None else ""
        act = self._act(executor.attempt)
        if executor.exit is None and (act.heeds_stop or not executor.has_started):
            executor.exit = exited(0, stop_seen=executor.stop_seen)

    def _end(self, executor: _Executor, act: Act) -> None:
        if executor.exit is None and self._launcher.is_alive(executor.attempt):
            executor.exit = exited(act.code, act.signal, stop_seen=executor.stop_seen)
            self._report(executor.attempt)


def exited(code: int | None = None, signal: int | None = None, *, stop_seen: str = "") -> Exit:
    """Return an exit record."""
    return Exit(
        code=code,
        signal=signal,
        start_errno=None,
        executor_error="",
        oom_kills=0,
        peak_rss_bytes=0,
        started_ms=0,
        ended_ms=0,
        stop_seen=stop_seen,
        matched=(),
        last_lines="",
        positions=(),
    )


def pieces_of(
    list_units: Callable[[StreamSpec], Sequence[Unit]],
) -> Callable[[Stream], Piece]:
    """Return a listing, piece by piece, of all that a function lists at once.

    What is known is told apart by location: a new file may stand between those told before.
    """

    def piece(stream: Stream) -> Piece:
        told = Counter(entry.unit.location for entry in stream.units)
        fresh = []
        for unit in list_units(stream.spec):
            if told[unit.location]:
                told[unit.location] -= 1
            else:
                fresh.append(unit)
        return Piece(tuple(fresh[:PIECE_UNITS]), len(fresh) <= PIECE_UNITS)

    return piece
