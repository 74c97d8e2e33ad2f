"""What must hold: after every step, when a trainer starts, and when all is over.

The numbers are those of docs/state-machines.md §12.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from primusd import core
from primusd.core import World
from primusd.datafeed import invariants as data_invariants
from primusd.job import invariants
from primusd.job.model import Job, find_attempt
from primusd.job.phases import AttemptPhase, JobPhase
from primusd.records import Entry, Proposal
from tests.simulation.coverage import Cell, note_step
from tests.simulation.head import Head
from tests.simulation.schedule import EPOCH_MS

if TYPE_CHECKING:
    from tests.simulation.cluster import Town
    from tests.simulation.executor import Executor
    from tests.simulation.host import Host

FULL_EVERY = 24
"""Steps between two checks of everything; in between what a step changed is looked at."""
SAID_KEPT = 400
ENTRIES_KEPT = 60
OVER = (AttemptPhase.ENDED, AttemptPhase.GONE)


class Checks:
    """Looks at every step of a run.

    Attributes:
        said: What was proposed lately, so that it can be said again.
        entries: The newest, for whoever has to find out what went wrong.
        rumours: How often an edge told what is not so.
        reached: Cells of tables that were reached, as far as they are seen here.
    """

    def __init__(self, reached: set[Cell] | None = None) -> None:
        self.reached: set[Cell] = set() if reached is None else reached
        self.said: deque[Proposal] = deque(maxlen=SAID_KEPT)
        self.entries: deque[Entry] = deque(maxlen=ENTRIES_KEPT)
        self.rumours = 0
        self.steps = 0
        self._at_step: dict[Head, Callable[[], None]] = {}

    def at_step(self, head: Head, call: Callable[[], None]) -> None:
        """Call right after each step of a head, while its entry is being written."""
        self._at_step[head] = call

    def stepped(self, head: Head, before: World, step: core.Step, said: list[Proposal]) -> None:
        """Look at a step that is about to be written."""
        self.steps += 1
        self.said.extend(said)
        if step.entry is not None:
            self.entries.append(step.entry)
            note_step(self.reached, before, step.entry)
        invariants.check_step(before, step.world, step.touched)
        for machine in step.touched:
            stream = step.world.streams.get(machine) if "/" in machine else None
            if stream is not None and self.steps % 4 == 0:
                broken = data_invariants.broken(stream, before.streams.get(machine))
                assert not broken, f"7 to 9: {broken}"
        if self.steps % FULL_EVERY == 0:
            invariants.check(step.world)
        if head in self._at_step:
            head.schedule.later(0, self._at_step[head])

    def last_records(self) -> str:
        """Return what was recorded last, a line each."""
        return "\n".join(
            f"{entry.at_ms - EPOCH_MS:9} ms  {record.machine or '-':8} {record.by:10} "
            f"{str(record.event)[:160]}"
            for entry in self.entries
            for record in entry.records
        )

    def recovered(self, head: Head, world: World, known: World) -> None:
        """11: snapshots and entries lead to what was in memory."""
        assert world == known, f"11: recovery in term {head.term} leads elsewhere"

    def trainer_started(self, town: "Town", host: "Host", executor: "Executor") -> None:
        """1: no replica has a second trainer, but where nobody can know of the first."""
        assert executor.trainers == 1, f"{executor.attempt.label} started its trainer twice"
        if town.has_lost_knowledge:
            return
        for other_host, other in town.executors():
            if (
                other is executor
                or not other.has_trainer
                or other.attempt.replica != executor.attempt.replica
                or other.attempt.job != executor.attempt.job
            ):
                continue
            job = town.world.jobs.get(other.attempt.job)
            found = find_attempt(job, other.attempt) if job is not None else None
            is_lost = found is not None and found.phase in OVER
            assert is_lost, (
                f"1: {executor.attempt.label} starts on {host.name} while "
                f"{other.attempt.label} trains on {other_host.name}"
            )

    def waits_for_a_person(self, town: "Town", job: Job) -> bool:
        """Return whether time alone need not end a job: the exceptions of invariant 12."""
        if job.phase is JobPhase.SUSPENDED:
            return True
        if job.phase is JobPhase.QUEUED or job.uid in town.world.admission.demands:
            demand = town.world.admission.demands.get(job.uid)
            if demand is not None and demand.phase == "Waiting":
                return True
        if any(town.world.streams[one].is_paused for one in _streams_of(town.world, job)):
            return True
        return (
            any(
                executor.attempt.job == job.uid and executor.never_ends
                for _, executor in town.executors()
            )
            or town.has_lost_knowledge
        )

    def all_over(self, town: "Town") -> None:
        """Look when every job is final."""
        invariants.check(town.world)
        is_calm = not town.script.deeds and town.script.weather in ("calm", "bytes")
        if is_calm:
            for job in town.world.jobs.values():
                told = {one.reason for one in job.timeline}
                assert "StartTimedOut" not in told, "14: a start timed out without a fault"

    def nothing_left(self, town: "Town") -> None:
        """13: nothing lives, nothing is held, and no timer is set, but to forget."""
        world = town.world
        left = [executor.attempt.label for _, executor in town.executors()]
        assert not left, f"13: {left} live on when all is over"
        kept = [one.label for host in town.hosts.values() for one in host.directories]
        assert not kept, f"13: {kept} were never released"
        assert not world.admission.demands, f"13: demands {list(world.admission.demands)} are left"
        assert not world.admission.quarantined, f"13: {world.admission.quarantined} is left"
        for uid, job in world.jobs.items():
            assert core.plan(world, uid) == (), f"13: {uid} plans {core.plan(world, uid)}"
            assert core.deadline_ms(world, uid) == 0, f"13: {uid} has a timer"
            for name in _streams_of(world, job):
                stream = world.streams[name]
                assert not stream.lease_count, f"13: {name} has leases"
                assert core.plan(world, name) == (), f"13: {name} plans something"
                assert core.deadline_ms(world, name) == 0, f"13: {name} has a timer"
        timers = set(town.timers) - {""}
        assert not timers, f"13: timers of {timers} are set"
        invariants.check(world)


def _streams_of(world: World, job: Job) -> list[str]:
    return [name for name in world.streams if name.startswith(f"{job.uid}/")]
