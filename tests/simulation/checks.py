"""What must hold: after every step, when a trainer starts, and when all is over.

The numbers are those of docs/state-machines.md §12.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from primusd import core
from primusd.admission.events import DemandFitted
from primusd.admission.machine import PORT_REST_MS
from primusd.core import World
from primusd.datafeed.ledger import invariants as data_invariants
from primusd.job import invariants
from primusd.job.counts import REPLACE_MS_MIN
from primusd.job.events import AttemptVanished, Place
from primusd.job.ids import AttemptId
from primusd.job.model import Job, find_attempt
from primusd.job.phases import AttemptPhase, Cause, JobPhase
from primusd.records import Entry, Proposal
from tests.simulation.coverage import Cell, note_step
from tests.simulation.head import Head
from tests.simulation.schedule import EPOCH_MS
from tests.simulation.script import ETCD_DEEDS

if TYPE_CHECKING:
    from tests.simulation.cluster import Town
    from tests.simulation.executor import Executor
    from tests.simulation.host import Host

FULL_EVERY = 24
"""Steps between two checks of all that changed meanwhile and of what lies between machines."""
SAID_KEPT = 400
ENTRIES_KEPT = 60
OVER = (AttemptPhase.ENDED, AttemptPhase.GONE)
ENDING = (AttemptPhase.STOPPING, *OVER)
HEAD_DEEDS = frozenset(
    {
        "kill head",
        "kill head at an entry",
        "change leader",
        "freeze head",
        "set clock",
        "fill disk",
        "slow disk",
        "back up",
        "set store back",
        *ETCD_DEEDS,
    }
)
"""What happens to heads and their store, and must not be felt by any trainer."""


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
        self._held: World | None = None
        """The newest state of which everything was looked at."""
        self._at_step: dict[Head, Callable[[], None]] = {}
        self._resting: dict[tuple[str, int], tuple[int, str, str]] = {}
        self._last_ms = 0

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
            invariants.check(step.world, self._held)
            self._held = step.world
        if head in self._at_step:
            head.schedule.later(0, self._at_step[head])

    def _check_ports_rest(self, before: World, entry: Entry) -> None:
        """6: ports that an attempt had go to no other replica for a while."""
        for record in entry.records:
            event = record.event
            if isinstance(event, DemandFitted):
                for place in event.places:
                    self._check_place(before, event.job, place, entry.at_ms)
            elif isinstance(event, AttemptVanished):
                job = before.jobs.get(event.attempt.job)
                found = find_attempt(job, event.attempt) if job is not None else None
                if found is not None and found.phase is not AttemptPhase.GONE:
                    owner = (event.attempt.job, event.attempt.replica)
                    for _, port in found.ports:
                        self._resting[found.node, port] = (entry.at_ms + PORT_REST_MS, *owner)

    def _check_place(self, before: World, uid: str, place: Place, at_ms: int) -> None:
        count = _port_count(before, uid, place.role)
        if not place.first_port or not count:
            return
        for number in range(place.count * count):
            port = place.first_port + number
            until_ms, *owner = self._resting.get((place.node, port), (0, "", ""))
            wanted = [uid, f"{place.role}-{place.first + number // count}"]
            assert at_ms >= until_ms or owner == wanted, f"6: {place.node}:{port} rests"

    def written(self, before: World, entry: Entry) -> None:
        """Look at an entry that is durable: what another head has stepped meanwhile never was."""
        assert entry.at_ms >= self._last_ms, "journal time goes back"
        self._last_ms = entry.at_ms
        self._check_ports_rest(before, entry)

    def last_records(self) -> str:
        """Return what was recorded last, a line each."""
        return "\n".join(
            f"{entry.at_ms - EPOCH_MS:9} ms  {record.machine or '-':8} {record.by:10} "
            f"{str(record.event)[:160]}"
            for entry in self.entries
            for record in entry.records
        )

    def forget(self) -> None:
        """Expect nothing of what was before: the store is another one."""
        self._resting.clear()
        self._last_ms = 0

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
                or other.is_killed
                or other.attempt.replica != executor.attempt.replica
                or other.attempt.job != executor.attempt.job
            ):
                continue
            job = town.world.jobs.get(other.attempt.job)
            found = find_attempt(job, other.attempt) if job is not None else None
            patience_ms = REPLACE_MS_MIN - 10_000
            is_lost = (
                found is not None
                and found.phase in OVER
                and (town.head is None or town.head.at_ms() - found.ended_ms > patience_ms)
            )
            assert is_lost, (
                f"1: {executor.attempt.label} starts on {host.name} while "
                f"{other.attempt.label} trains on {other_host.name}"
            )

    def ends_by_force(self, town: "Town", executor: "Executor") -> None:
        """Only knowledge kills: what is ended is known to be over, or a person said so."""
        attempt = executor.attempt
        if not executor.is_alive or attempt in town.ended_by_people:
            return
        job = town.world.jobs.get(attempt.job)
        if job is None:
            is_known = attempt.job in town.world.admission.tombstones
        else:
            found = find_attempt(job, attempt)
            is_known = found is None or found.phase in ENDING or job.is_final
        assert is_known or self.rumours, f"{attempt.label} is ended by a head that does not know it"

    def was_silent(self, town: "Town", silent: Iterable[AttemptId]) -> None:
        """C11: who was not heard for a minute is known to be lost."""
        for attempt in silent:
            job = town.world.jobs.get(attempt.job)
            found = find_attempt(job, attempt) if job is not None else None
            if found is not None:
                assert found.phase in ENDING, f"{attempt.label} was silent and nobody noticed"

    def waits_for_a_person(self, town: "Town", job: Job) -> bool:
        """Return whether time alone need not end a job: the exceptions of invariant 12."""
        if job.phase in (JobPhase.DRAINING, JobPhase.STOPPING):
            return town.has_lost_knowledge
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
        invariants.check(town.world, self._held)
        is_calm = not town.script.deeds and town.script.weather in ("calm", "bytes")
        if is_calm:
            for job in town.world.jobs.values():
                told = {one.reason for one in job.timeline}
                assert "StartTimedOut" not in told, "14: a start timed out without a fault"
        if is_only_heads(town):
            for job in town.world.jobs.values():
                _check_nobody_noticed(job)
        if not self.rumours and not town.has_lost_knowledge:
            _check_outcomes(town)

    def nothing_left(self, town: "Town") -> None:
        """13: nothing lives; slots, ports, leases in use are 0; no timer is set, but to forget."""
        world = town.world
        lone = [key for key, stream in world.streams.items() if stream.job not in world.jobs]
        assert not lone, f"13: streams {lone} have no job any more"
        left = [executor.attempt.label for _, executor in town.executors()]
        assert not left, f"13: {left} live on when all is over"
        kept = [one.label for host in town.hosts.values() for one in host.directories]
        assert not kept, f"13: {kept} were never released"
        assert not world.admission.demands, f"13: demands {list(world.admission.demands)} are left"
        assert not world.admission.quarantined, f"13: {world.admission.quarantined} is left"
        _check_no_port_rests(town)
        for uid, job in world.jobs.items():
            assert core.plan(world, uid) == (), f"13: {uid} plans {core.plan(world, uid)}"
            assert core.deadline_ms(world, uid) == 0, f"13: {uid} has a timer"
            for name in _streams_of(world, job):
                stream = world.streams[name]
                assert not stream.lease_count, f"13: {name} has leases"
                assert not stream.readers, f"13: {name} has readers"
                assert core.plan(world, name) == (), f"13: {name} plans something"
                assert core.deadline_ms(world, name) == 0, f"13: {name} has a timer"
        timers = set(town.timers) - {""}
        assert not timers, f"13: timers of {timers} are set"
        invariants.check(world)


def _check_no_port_rests(town: "Town") -> None:
    """13: ports that attempts had are free again; a stranger's are left out for longer."""
    if any(one.executor_error.startswith("portTaken") for one in town.exits.values()):
        return
    now_ms = town.heads[-1].at_ms()
    for name, node in town.world.admission.nodes.items():
        resting = [port for port, until_ms in node.resting_ports.items() if until_ms > now_ms]
        assert not resting, f"13: ports {resting} of {name} rest still"


RESTLESS = frozenset(
    {
        "short start",
        "deadline",
        "warned",
        "replica hours",
        "bad stream",
        "restore",
        "hang",
        "too large",
        "resources",
        "all GPUs",
        "split",
        "placed",
        "near chief",
        "after",
        "poison",
    }
)
"""Features of jobs that may fail or start anew although every trainer does its work."""


def is_only_heads(town: "Town") -> bool:
    """Return whether all that befell a run befell its heads."""
    return (
        town.script.weather in ("calm", "bytes")
        and not town.has_lost_knowledge
        and all(deed.name in HEAD_DEEDS for deed in town.script.deeds)
        and all(RESTLESS.isdisjoint(job.features) for job in town.script.jobs)
    )


def _check_nobody_noticed(job: Job) -> None:
    """C38: what befalls heads changes neither verdict nor attempts, and nothing is charged."""
    assert job.phase is JobPhase.SUCCEEDED, f"C38: {job.uid} is {job.phase}: {job.verdict}"
    for role in job.roles.values():
        assert not role.charges, f"C38: {job.uid} was charged {role.charges}"
        for chunk in role.chunks:
            for replica in chunk.replicas:
                assert replica.last_number <= 1, f"C38: {role.name}-{replica.index} began again"


def _check_outcomes(town: "Town") -> None:
    """What the journal says of an end is what the executor saw."""
    for attempt, exit_ in town.exits.items():
        job = town.world.jobs.get(attempt.job)
        found = find_attempt(job, attempt) if job is not None else None
        if job is None or found is None or found.outcome is None or job.spec.failure:
            continue
        is_completed = found.outcome.cause is Cause.COMPLETED
        is_done = exit_.code == 0 and not exit_.stop_seen
        is_unseen = found.outcome.cause in (Cause.LOST, Cause.NODE_LOST, Cause.STOPPED)
        assert is_completed == is_done or (is_unseen and not is_completed), (
            f"{attempt.label} is {found.outcome.cause}, its exit was {exit_}"
        )


def _port_count(world: World, uid: str, role: str) -> int:
    job = world.jobs.get(uid)
    return len(job.spec.roles[role].ports) if job is not None and role in job.spec.roles else 0


def _streams_of(world: World, job: Job) -> list[str]:
    return [name for name in world.streams if name.startswith(f"{job.uid}/")]
