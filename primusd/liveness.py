"""The liveness edge: who was silent for how long. Its memory starts anew whenever we were away.

Pulses are not journaled; what silence leads to is: ExecutorFellSilent after max(10 s, 3 beats),
ExecutorExpired after max(30 s, 6 beats). The return is told by the report that ends the silence.
"""

from collections import OrderedDict

import anyio

from primusd.clock import Clock
from primusd.engine import Anew, Engine
from primusd.job.events import ExecutorExpired, ExecutorFellSilent
from primusd.job.ids import AttemptId
from primusd.job.model import Attempt, Job, find_attempt, replicas_of
from primusd.job.phases import AttemptPhase

LOOK_EVERY_S = 0.5
BEAT_MS_MIN = 1_000
SILENT_MS_MIN = 10_000
SILENT_BEATS = 3
LOST_MS_MIN = 30_000
LOST_BEATS = 6
REPEAT_MS = 5_000
"""What was told and is not so yet is told again."""

LIVE_PHASES = frozenset(
    {
        AttemptPhase.REGISTERED,
        AttemptPhase.STARTING,
        AttemptPhase.RUNNING,
        AttemptPhase.STOPPING,
    }
)


def beat_ms(executor_count: int) -> int:
    """Return the pulse to ask for: one second, or what keeps reports at 2,000 a second."""
    return max(BEAT_MS_MIN, executor_count // 2)


def silent_ms(beat: int) -> int:
    """Return after how long without a report an executor is called silent."""
    return max(SILENT_MS_MIN, SILENT_BEATS * beat)


def lost_ms(beat: int) -> int:
    """Return after how long it is lost; leases last as long."""
    return max(LOST_MS_MIN, LOST_BEATS * beat)


def is_watched(attempt: Attempt) -> bool:
    """Return whether an attempt has an executor that should be heard."""
    return attempt.phase in LIVE_PHASES and attempt.incarnation != ""


class Liveness:
    """When each executor was last heard."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._heard: OrderedDict[AttemptId, int] = OrderedDict()
        """The longest silent first."""
        self._told: dict[AttemptId, int] = {}
        engine.on_anew.append(self.begin_anew)

    @property
    def beat_ms(self) -> int:
        """The pulse to ask for now."""
        return beat_ms(len(self._heard))

    def begin_anew(self, why: Anew) -> None:
        """Start every clock anew: who was away accuses nobody."""
        now_ms = self._clock.boot_ms()
        self._told.clear()
        if why is Anew.STALL:
            for attempt in self._heard:
                self._heard[attempt] = now_ms
            return
        self._heard = OrderedDict(
            (attempt, now_ms)
            for job in self._engine.world.jobs.values()
            for attempt in _watched_of(job)
        )

    def heard(self, attempt: AttemptId) -> None:
        """Note a sign of life."""
        self._heard[attempt] = self._clock.boot_ms()
        self._heard.move_to_end(attempt)
        self._told.pop(attempt, None)

    async def run(self) -> None:
        """Look for silence until cancelled."""
        while True:
            await anyio.sleep(LOOK_EVERY_S)
            self.look()

    def look(self) -> None:
        """Propose what silence has come to."""
        now_ms = self._clock.boot_ms()
        beat = self.beat_ms
        gone: list[AttemptId] = []
        for attempt, heard_ms in self._heard.items():
            quiet_ms = now_ms - heard_ms
            if quiet_ms < silent_ms(beat):
                break
            job = self._engine.world.jobs.get(attempt.job)
            found = find_attempt(job, attempt) if job is not None else None
            if found is None or not is_watched(found):
                gone.append(attempt)
            elif now_ms - self._told.get(attempt, -REPEAT_MS) >= REPEAT_MS:
                self._tell(attempt, found, now_ms, is_lost=quiet_ms >= lost_ms(beat))
        for attempt in gone:
            del self._heard[attempt]
            self._told.pop(attempt, None)

    def _tell(self, attempt: AttemptId, found: Attempt, now_ms: int, *, is_lost: bool) -> None:
        if is_lost:
            self._engine.tell(attempt.job, ExecutorExpired(attempt), by="liveness")
        elif not found.is_silent:
            self._engine.tell(attempt.job, ExecutorFellSilent(attempt), by="liveness")
        else:
            return
        self._told[attempt] = now_ms


def _watched_of(job: Job) -> list[AttemptId]:
    return [
        AttemptId(job.uid, role.name, replica.index, attempt.number)
        for role in job.roles.values()
        for replica in replicas_of(role)
        for attempt in replica.attempts
        if is_watched(attempt)
    ]
