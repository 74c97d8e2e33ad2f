"""A head: take what waits, step, make it durable, publish, answer; a loop without a loop.

The step, recovery, snapshots and journal time are the daemon's own; here is only what its engine
does around them, as calls in virtual time. A head that dies is dropped where it stands.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from primusd import core
from primusd.admission.events import MachineUnwedged, TermBegan
from primusd.core import Answer, Raised, Rejected, World
from primusd.engine import Anew
from primusd.errors import DeposedError, PrimusdError, StoreUnavailableError
from primusd.inbox import PROPOSALS_PER_STEP_MAX
from primusd.journal_time import JournalTime
from primusd.records import ADMISSION, Entry, Event, Proposal
from primusd.recovery import recover
from primusd.state.journal import Loaded
from primusd.state.snapshots import Due, Snapshots
from primusd.subscription import Published
from tests.simulation.schedule import HostClock, Schedule
from tests.simulation.store import Store

CLUSTER = "c1"
LOAD_MS = 200
SNAPSHOT_EVERY_MS = 30_000
RELOAD_MS = 1_000
Answered = Callable[[Sequence[Answer]], None]
Groups = list[tuple[tuple[Proposal, ...], Answered | None]]
"""What was proposed together, and who waits for the answers."""


class Watcher(Protocol):
    """Who looks at every step of every head."""

    def stepped(self, head: "Head", before: World, step: core.Step, said: list[Proposal]) -> None:
        """Look at a step that is about to be written."""
        ...

    def written(self, before: World, entry: Entry) -> None:
        """Look at an entry that is durable."""
        ...

    def recovered(self, head: "Head", world: World, known: World) -> None:
        """Compare what recovery came to with what was in memory."""
        ...


class Head:
    """One life of a daemon.

    Attributes:
        world: As of `revision`, all of it durable.
        outage: Why nothing can be recorded now; None all is well.
        is_dead: Killed, or deposed.
    """

    def __init__(self, schedule: Schedule, store: Store, watcher: Watcher, *, skew_ms: int) -> None:
        self.world = World()
        self.revision = 0
        self.term = 0
        self.outage: PrimusdError | None = StoreUnavailableError("it does not lead yet")
        self.is_dead = False
        self.on_published: list[Callable[[Published], None]] = []
        self.on_anew: list[Callable[[Anew], None]] = []
        self.clock = HostClock(schedule)
        self.clock.skew_ms = skew_ms
        self.schedule = schedule
        self._store = store
        self._watcher = watcher
        self._inbox: deque[tuple[tuple[Proposal, ...], Answered | None]] = deque()
        self._writing: Callable[[], None] | None = None
        self._has_turn = False
        self._frozen_until_ms = 0
        self._snapshots = Snapshots()
        self._has_snapshot_turn = False
        self._time = JournalTime(self.clock, last_at_ms=0)

    # Its life.

    def later(self, delay_ms: int, call: Callable[..., None], *args: object) -> None:
        """Call later in this life; while it stands still nothing happens."""
        self.schedule.put(self.schedule.now_ms + delay_ms, self._call, (call, args))

    def _call(self, call: Callable[..., None], args: tuple[object, ...]) -> None:
        if self.is_dead:
            return
        left_ms = self._frozen_until_ms - self.schedule.now_ms
        if left_ms > 0:
            self.schedule.later(left_ms, self._call, call, args)
        else:
            call(*args)

    def freeze(self, duration_ms: int) -> None:
        """Stand still, as after SIGSTOP; a long while accuses nobody afterwards."""
        self._frozen_until_ms = self.schedule.now_ms + duration_ms
        if duration_ms > 5_000:
            self.schedule.later(duration_ms, self._call, self._thaw, ())

    def _thaw(self) -> None:
        if self.outage is None:
            self._tell_anew(Anew.STALL)

    def kill(self, *, lands: bool) -> None:
        """Die now; an entry under way lands in the store or does not."""
        if not self.is_dead and self._writing is not None and lands:
            with suppress(StoreUnavailableError):
                self._writing()
        self.is_dead = True

    @property
    def is_writing(self) -> bool:
        """Whether an entry is on its way to the store."""
        return self._writing is not None

    def start(self) -> None:
        """Lead, once the store is loaded."""
        self.later(LOAD_MS, self._lead)

    def _lead(self) -> None:
        self.term = self._store.campaign(self.clock.wall_ms())
        self._load(self._store.load())
        self._begin()

    def _begin(self) -> None:
        """Lead from the world that was loaded on."""
        self._time = JournalTime(self.clock, last_at_ms=self._snapshots.last_at_ms)
        events: list[Event] = [TermBegan(CLUSTER, "0")]
        events += [MachineUnwedged(job) for job in self.world.admission.wedged]
        self.outage = None
        group = tuple(Proposal(ADMISSION, event, "engine") for event in events)
        self._inbox.appendleft((group, lambda _answers: self._tell_anew(Anew.TERM)))
        self._turn()

    def _load(self, loaded: Loaded) -> None:
        recovered = recover(loaded)
        assert not recovered.wedged, f"a record raises on replay: {recovered.wedged}"
        self._watcher.recovered(self, recovered.world, self._store.world)
        self.world, self.revision = recovered.world, loaded.revision
        self._snapshots = Snapshots.of(loaded, uncovered=recovered.uncovered, raw_jobs=())

    def at_ms(self) -> int:
        """Return journal time now."""
        return self._time.now_ms()

    # Proposals.

    def propose(self, proposals: tuple[Proposal, ...], answered: Answered | None = None) -> None:
        """Record events in one step; the answer comes once they are durable."""
        if self.outage is not None:
            if answered is not None:
                answered([Rejected(self.outage)] * len(proposals))
            return
        self._inbox.append((proposals, answered))
        self._wish_turn()

    def tell(self, machine: str, event: Event, *, by: str) -> None:
        """Record an event without waiting."""
        self.propose((Proposal(machine, event, by),))

    def _wish_turn(self) -> None:
        if not self._has_turn and self._writing is None:
            self._has_turn = True
            self.later(0, self._turn)

    def _turn(self) -> None:
        self._has_turn = False
        if self._writing is not None or not self._inbox or self.outage is not None:
            return
        groups: Groups = []
        said: list[Proposal] = []
        while self._inbox and len(said) + len(self._inbox[0][0]) <= PROPOSALS_PER_STEP_MAX:
            group = self._inbox.popleft()
            groups.append(group)
            said += group[0]
        step = core.step(
            self.world, said, at_ms=self.at_ms(), term=self.term, revision=self.revision + 1
        )
        self._watcher.stepped(self, self.world, step, said)
        for answer in step.answers:
            assert not isinstance(answer, Raised), answer.text
        if step.entry is None:
            self._answer(groups, step.answers)
            return
        self._write(groups, step)

    def _write(self, groups: Groups, step: core.Step) -> None:
        """Make a step durable."""
        self._writing = lambda: self._store.append(self.term, step.entry, step.world)
        latency_ms = self._store.latency_ms
        self.later(latency_ms, self._written, groups, step)

    def _written(self, groups: Groups, step: core.Step) -> None:
        assert self._writing is not None
        write, self._writing = self._writing, None
        try:
            write()
        except StoreUnavailableError as error:
            self._fail(error, groups)
            return
        self._recorded(groups, step)

    def _recorded(self, groups: Groups, step: core.Step) -> None:
        """Publish a step that is durable, and answer."""
        assert step.entry is not None
        before, self.world, self.revision = self.world, step.world, step.entry.revision
        self._snapshots.appended(step.entry)
        self._watcher.written(before, step.entry)
        published = Published(step.entry, before, step.world, step.touched)
        for follow in self.on_published:
            follow(published)
        if not self._has_snapshot_turn:
            self._has_snapshot_turn = True
            self.later(SNAPSHOT_EVERY_MS, self._write_snapshots)
        self._answer(groups, step.answers)

    def _answer(self, groups: Groups, answers: Sequence[Answer]) -> None:
        first = 0
        for proposals, answered in groups:
            if answered is not None:
                answered(answers[first : first + len(proposals)])
            first += len(proposals)
        if self._inbox:
            self._wish_turn()

    def _fail(self, error: StoreUnavailableError, groups: Groups) -> None:
        """Stop acting: for good when another leads, else until the store can be read."""
        self.outage = error
        waiting = [*groups, *self._inbox]
        self._inbox.clear()
        for proposals, answered in waiting:
            if answered is not None:
                answered([Rejected(error)] * len(proposals))
        if isinstance(error, DeposedError):
            self.is_dead = True
        else:
            self.later(RELOAD_MS, self._reload)

    def _reload(self) -> None:
        loaded = self._store.load()
        if loaded.term > self.term:
            self.is_dead = True
            return
        self._go_on(loaded)

    def _go_on(self, loaded: Loaded) -> None:
        """Lead on from what is there, after it was not known what was written."""
        self._load(loaded)
        self.outage = None
        self._tell_anew(Anew.RELOAD)

    def _tell_anew(self, why: Anew) -> None:
        for begin in self.on_anew:
            begin(why)

    def _write_snapshots(self) -> None:
        self._has_snapshot_turn = False
        if self.outage is not None:
            return
        self._keep(self._snapshots.due(self.world, self.revision))

    def _keep(self, due: Due) -> None:
        """Write snapshots."""
        try:
            self._store.append(self.term, None, self.world, due.snapshots, due.keep_from)
        except StoreUnavailableError as error:
            self._fail(error, [])
            return
        self._kept(due)

    def _kept(self, due: Due) -> None:
        self._snapshots.written(due)
        if self._snapshots.has_due:
            self._has_snapshot_turn = True
            self.later(SNAPSHOT_EVERY_MS, self._write_snapshots)


def is_refused(answers: Sequence[Answer]) -> bool:
    """Return whether nothing of a group was recorded because nothing could be."""
    return any(
        isinstance(one, Rejected) and isinstance(one.error, StoreUnavailableError)
        for one in answers
    )
