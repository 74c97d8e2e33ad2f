"""The one loop: take what waits, step, make it durable, publish it, answer.

Nothing is shown or done before it is durable. What the journal does not hold never happened: when a
write is uncertain, the world is loaded from the journal again and never continued from memory.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from itertools import chain, repeat

import anyio
import anyio.to_thread
import structlog
from anyio.abc import TaskStatus
from msgspec import Struct

from primusd import core
from primusd.admission.events import MachineUnwedged, MachineWedged, TermBegan
from primusd.clock import Clock
from primusd.core import Answer, Ignored, Raised, Recorded, Rejected, Step, World
from primusd.errors import (
    DeposedError,
    NotFoundError,
    NotLeaderError,
    PrimusdError,
    StoreFullError,
    StoreUnavailableError,
    TooManyRequestsError,
    WedgedError,
)
from primusd.inbox import TOLD_WAITING_MAX, Inbox, Waiting
from primusd.journal_lag import JournalLag
from primusd.journal_time import JournalTime
from primusd.records import ADMISSION, Entry, Event, Proposal, encode_entry, job_of
from primusd.recovery import recover
from primusd.state.election import Election
from primusd.state.journal import Journal
from primusd.state.snapshots import Snapshots
from primusd.subscription import Published, Subscription
from primusd.warm_copy import WarmCopy

log = structlog.get_logger()

ENTRY_BYTES_MAX = 192 << 10
"""A step of several groups whose entry is larger is taken again with half of them."""
STALL_MS = 5_000
"""A loop that stood still for longer accuses nobody: silence clocks start anew."""
PULSE_S = 1.0
RELOAD_DELAYS_S = (0.2, 0.5, 1.0, 2.0, 5.0)


class Anew(StrEnum):
    """Why everything that is kept in memory about others starts anew."""

    TERM = "a term began"
    STALL = "the loop stood still"
    RELOAD = "the state was loaded again"


class EngineSettings(Struct, frozen=True):
    """What the engine takes from the configuration."""

    cluster_id: str
    version: str
    ack_linger_ms: int = 0
    snapshot_every_ms: int = 30_000


class Engine:
    """Owns the world; everything else proposes events to it and follows what it publishes.

    Attributes:
        world: The state as of `revision`, all of it durable.
        revision: Of the newest entry.
        term: Of this leadership; 0 before `run` leads.
        outage: Why nothing can be recorded now; None when all is well.
        on_published: Called in order with each change, right after it became durable.
        on_anew: Called when clocks of silence start anew, or the world was replaced as a whole.
    """

    def __init__(
        self,
        journal: Journal,
        election: Election,
        clock: Clock,
        *,
        settings: EngineSettings,
        admits: Callable[[Event], PrimusdError | None] = lambda _event: None,
        copy: WarmCopy | None = None,
    ) -> None:
        """Make an engine that does nothing yet.

        Args:
            journal: Where entries become durable.
            election: Who leads.
            clock: Of this host.
            settings: See EngineSettings.
            admits: Asked before each proposal: the error to refuse it with, None to take it.
            copy: What another head writes, kept until this one leads; None: it is loaded then.
        """
        self.world = World()
        self.revision = 0
        self.term = 0
        self.outage: PrimusdError | None = NotLeaderError("this daemon does not lead yet")
        self.on_published: list[Callable[[Published], None]] = []
        self.on_anew: list[Callable[[Anew], None]] = []
        self._journal = journal
        self._election = election
        self._clock = clock
        self._settings = settings
        self._admits = admits
        self._copy = copy
        self._inbox = Inbox()
        self._stored_term = 0
        self._time = JournalTime(clock, last_at_ms=0)
        self._lag = JournalLag(clock)
        self._snapshots = Snapshots()
        self._snapshots_due_ms = 0
        self._busy_since_ms: int | None = None
        self._wedged: dict[str, str] = {}
        self._subscriptions: list[Subscription] = []

    def at_ms(self) -> int:
        """Return journal time now."""
        return self._time.now_ms()

    def skew_ms(self) -> int:
        """Return by how much the wall clock is ahead of journal time."""
        return self._time.skew_ms()

    def journal_lag_ms(self) -> int:
        """Return how long it takes until what happens is durable; it grows while that fails."""
        return self._lag.ms()

    def busy_ms(self) -> int:
        """Return for how long the turn goes on that is being made; 0 while the loop waits."""
        since_ms = self._busy_since_ms
        return 0 if since_ms is None else self._clock.boot_ms() - since_ms

    def wedged(self, machine: str) -> str:
        """Return what is known of the bug that stopped a machine; "" when it runs."""
        return self._wedged.get(job_of(machine), "")

    async def journal_entries(self) -> tuple[Entry, ...]:
        """Return the entries that the journal holds; older ones are in the archive.

        Raises:
            StoreUnavailableError: It cannot be read.
        """
        return await self._journal.entries()

    async def propose(self, machine: str, event: Event, *, by: str) -> Recorded | Ignored:
        """Record an event, and return once it is durable and published.

        Raises:
            PrimusdError: The machine's table refuses it, it is wedged, or nothing can be recorded
                now; of a StoreUnavailableError it is not known whether it was recorded.
        """
        (answer,) = await self.propose_all((Proposal(machine, event, by),))
        match answer:
            case Rejected(error):
                raise error
            case Raised():
                raise wedged_error(answer.machine)
            case Recorded() | Ignored():
                return answer

    async def propose_all(self, proposals: Sequence[Proposal]) -> tuple[Answer, ...]:
        """Record events in one step, in their order; return an answer for each.

        Args:
            proposals: At most PROPOSALS_PER_STEP_MAX.
        """
        if not proposals:
            return ()
        waiting = Waiting(proposals)
        if self.outage is not None:
            waiting.fail(self.outage)
        else:
            self._inbox.put(waiting)
        return await waiting.wait()

    def tell(self, machine: str, event: Event, *, by: str) -> None:
        """Record an event without waiting; a refusal is logged.

        While nothing can be recorded it is dropped: whoever tells says all again once that is over.
        """
        if self.outage is not None:
            return
        try:
            self._inbox.put(_Told((Proposal(machine, event, by),)), count_max=TOLD_WAITING_MAX)
        except TooManyRequestsError as error:
            log.error("engine.fact_dropped", machine=machine, by=by, text=error.message)  # noqa: TRY400

    def subscribe(self) -> Subscription:
        """Return a bounded queue of everything that is published from now on."""
        subscription = Subscription()
        self._subscriptions.append(subscription)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Stop filling a queue."""
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Lead, recover, and turn until cancelled; `started` once the term's first entry stands.

        Raises:
            DeposedError: Another daemon wrote with a newer term: this one no longer leads.
            NewerSchemaError: A newer version wrote the store; it was not touched.
            StoreUnavailableError: The store could not be read at the start.
        """
        try:
            if self._copy is None:
                await self._live(task_status)
                return
            async with anyio.create_task_group() as group:
                group.start_soon(self._copy.run)
                await self._live(task_status)
        finally:
            self.outage = self.outage or NotLeaderError("this daemon no longer leads")
            self._inbox.fail_all(self.outage)
            for subscription in self._subscriptions:
                subscription.cut("the daemon stops")

    async def _live(self, task_status: TaskStatus[None]) -> None:
        campaigned = await self._campaign()
        async with self._election.held():
            await self._lead(campaigned)
            task_status.started()
            async with anyio.create_task_group() as group:
                group.start_soon(self._notice_stalls)
                while True:
                    await self._turn()

    async def _campaign(self) -> int:
        """Wait until this daemon leads; a store that it must not lead is refused before."""
        wall_ms = self._clock.wall_ms()
        if self._copy is not None:
            return await self._copy.campaign(self._election, wall_ms=wall_ms)
        last_term = (await self._journal.load()).term
        return await self._election.campaign(last_term=last_term, wall_ms=wall_ms)

    async def _lead(self, campaigned: int) -> None:
        raised = await self._take_over()
        # Of a store that was moved or put back the terms may be ahead of the election's.
        self.term = max(campaigned, self._stored_term + 1)
        self._time = JournalTime(self._clock, last_at_ms=self._snapshots.last_at_ms)
        self._snapshots_due_ms = self.at_ms() + self._settings.snapshot_every_ms
        began = TermBegan(self._settings.cluster_id, self._settings.version)
        events: list[Event] = [began]
        events += [MachineWedged(job, text) for job, text in raised.items()]
        # What loads again runs again; should the bug still be there it stops again.
        events += [MachineUnwedged(job) for job in self.world.admission.wedged if job not in raised]
        proposals = tuple(Proposal(ADMISSION, event, "engine") for event in events)
        self.outage = None
        await self._commit([Waiting(proposals)])
        self._tell_anew(Anew.TERM)
        log.info("engine.led", term=self.term, revision=self.revision, wedged=len(raised))

    async def _take_over(self) -> dict[str, str]:
        """Begin with the copy that was kept, else load; return what raised on replay, by job."""
        begun_ms = self._clock.boot_ms()
        found = None if self._copy is None else await self._copy.taken_over()
        if found is None:
            return await self._load()
        self.world, self.revision = found.world, found.revision
        self._stored_term, self._snapshots = found.term, found.snapshots
        self._wedged = dict(found.wedged)
        took_ms = self._clock.boot_ms() - begun_ms
        log.info("engine.took_over", revision=self.revision, records=found.tail, took_ms=took_ms)
        return dict(found.wedged)

    async def _load(self) -> dict[str, str]:
        """Replace the world by what the journal holds; return what raised on replay, by job."""
        loaded = await self._journal.load()
        recovered = recover(loaded)
        self.world, self.revision = recovered.world, loaded.revision
        self._stored_term = loaded.term
        self._snapshots = Snapshots.of(
            loaded, uncovered=recovered.uncovered, raw_jobs=recovered.wedged
        )
        self._wedged = dict(recovered.wedged)
        for job, text in recovered.wedged.items():
            log.error("engine.replay_raised", job=job, text=text)
        return dict(recovered.wedged)

    async def _notice_stalls(self) -> None:
        pulsed_ms = self._clock.boot_ms()
        while True:
            await anyio.sleep(PULSE_S)
            now_ms = self._clock.boot_ms()
            stood_ms = now_ms - pulsed_ms - int(PULSE_S * 1000)
            if stood_ms > STALL_MS:
                log.warning("engine.stood_still", stood_ms=stood_ms)
                self._tell_anew(Anew.STALL)
            pulsed_ms = now_ms

    async def _turn(self) -> None:
        """Wait for something to do and do it once."""
        try:
            if not len(self._inbox):
                with anyio.move_on_after(self._until_snapshots_s()):
                    await self._inbox.wait()
            if self._settings.ack_linger_ms and len(self._inbox) and self._inbox.only_beats():
                await anyio.sleep(self._settings.ack_linger_ms / 1000)
            groups = self._inbox.take()
            self._busy_since_ms = self._clock.boot_ms()
            if groups:
                await self._commit(groups)
            if self.at_ms() >= self._snapshots_due_ms:
                await self._write_snapshots()
        except DeposedError:
            raise
        except StoreUnavailableError as error:
            await self._reload(error)
        finally:
            self._busy_since_ms = None

    def _until_snapshots_s(self) -> float | None:
        """Return how long until snapshots are due; None while no machine has new records."""
        if not self._snapshots.has_due:
            return None
        return max(0.0, (self._snapshots_due_ms - self.at_ms()) / 1000)

    async def _write_snapshots(self) -> None:
        """Write the due snapshots, a bounded part per turn."""
        due = await anyio.to_thread.run_sync(self._snapshots.due, self.world, self.revision)
        if due.snapshots or due.keep_from:
            await self._journal.append(None, due.snapshots, due.keep_from)
        self._snapshots.written(due)
        if not self._snapshots.has_more:
            self._snapshots_due_ms = self.at_ms() + self._settings.snapshot_every_ms

    async def _commit(self, groups: list[Waiting]) -> None:
        taken: list[Waiting] = []
        try:
            groups = self._without_refused(groups)
            if not groups:
                return
            taken, step = self._step(groups)
            self._inbox.put_back(groups[len(taken) :])
            if step.entry is not None:
                self._lag.begin()
                await self._journal.append(step.entry)
                self._lag.end()
        except StoreUnavailableError as error:
            for group in taken:
                group.fail(error)
            raise
        before, self.world = self.world, step.world
        if step.entry is not None:
            self.revision = step.entry.revision
            self._snapshots.appended(step.entry)
            self._publish(Published(step.entry, before, step.world, step.touched))
        _answer(taken, step.answers)
        await self._wedge(taken, step.answers)

    def _step(self, groups: list[Waiting]) -> tuple[list[Waiting], Step]:
        """Step with as many groups as fit into one entry."""
        at_ms = self.at_ms()
        while True:
            groups, step = self._guarded_step(groups, at_ms)
            if len(groups) == 1 or step.entry is None or _fits(step.entry):
                return groups, step
            groups = groups[: len(groups) // 2]

    def _guarded_step(self, groups: list[Waiting], at_ms: int) -> tuple[list[Waiting], Step]:
        """Step; a raise that the core did not catch itself condemns the first group alone."""
        proposals = tuple(one for group in groups for one in group.proposals)
        try:
            return groups, core.step(
                self.world, proposals, at_ms=at_ms, term=self.term, revision=self.revision + 1
            )
        except Exception as error:
            # A bug in the core itself must not stop the other machines.
            log.exception("engine.step_raised", machine=proposals[0].machine)
            text = f"{type(error).__name__}: {error}"
            if len(groups) > 1:
                return self._guarded_step(groups[:1], at_ms)
            answers = tuple(Raised(one.machine, text) for one in proposals)
            return groups, Step(self.world, None, answers, ())

    def _without_refused(self, groups: list[Waiting]) -> list[Waiting]:
        """Answer the groups that cannot be recorded, and return the others."""
        kept = []
        for group in groups:
            error = next(filter(None, map(self._refusal, group.proposals)), None)
            if error is None:
                kept.append(group)
            else:
                group.fail(error)
        return kept

    def _refusal(self, proposal: Proposal) -> PrimusdError | None:
        if self.wedged(proposal.machine) and proposal.by != "engine":
            return wedged_error(job_of(proposal.machine))
        return self._admits(proposal.event)

    async def _wedge(self, groups: list[Waiting], answers: tuple[Answer, ...]) -> None:
        """Mark the jobs whose proposals raised; what these caused is undone already."""
        proposals = [one for group in groups for one in group.proposals]
        for proposal, answer in zip(proposals, answers, strict=True):
            job = job_of(proposal.machine)
            if not isinstance(answer, Raised):
                continue
            # Admission is never put out of service, for every job hangs on it: what raised there
            # is undone and refused, no more.
            if not job or job in self._wedged:
                log.error("engine.proposal_raised", machine=proposal.machine, text=answer.text)
                continue
            self._wedged[job] = answer.text
            log.error("engine.machine_wedged", job=job, machine=answer.machine, text=answer.text)
            event = MachineWedged(job, answer.text)
            await self._commit([Waiting((Proposal(ADMISSION, event, "engine"),))])

    async def _reload(self, error: StoreUnavailableError) -> None:
        """Stop acting, and go on from what the journal holds once it can be read."""
        self.outage = error
        self._inbox.fail_all(error)
        log.error("engine.store_failed", code=error.code, text=error.message)
        for delay_s in chain(RELOAD_DELAYS_S, repeat(RELOAD_DELAYS_S[-1])):
            await anyio.sleep(delay_s)
            try:
                await self._load()
            except DeposedError:
                raise
            except StoreUnavailableError as again:
                self.outage = again
                continue
            break
        self.outage = None
        if not isinstance(error, StoreFullError):
            # A store that can be read and has no room for what waits is behind until it has some.
            self._lag.end()
        for subscription in self._subscriptions:
            subscription.cut("the state was loaded again")
        log.info("engine.reloaded", revision=self.revision)
        self._tell_anew(Anew.RELOAD)

    def _publish(self, published: Published) -> None:
        for follow in self.on_published:
            try:
                follow(published)
            except Exception:
                # A follower's bug must not stop the loop that everything hangs on.
                log.exception("engine.follower_raised", revision=published.entry.revision)
        self._subscriptions = [one for one in self._subscriptions if one.push(published)]

    def _tell_anew(self, why: Anew) -> None:
        for begin in self.on_anew:
            begin(why)


class _Told(Waiting):
    """Proposals that nobody waits for: a refusal shows in the log."""

    def answer(self, answers: tuple[Answer, ...]) -> None:
        super().answer(answers)
        for proposal, answer in zip(self.proposals, answers, strict=True):
            if isinstance(answer, Rejected):
                _log_refusal(proposal, answer.error)


def _log_refusal(proposal: Proposal, error: PrimusdError) -> None:
    said = {
        "machine": proposal.machine,
        "event_name": type(proposal.event).__name__,
        "by": proposal.by,
        "text": error.message,
    }
    if isinstance(error, NotFoundError):
        # What an edge still knows of a job that was deleted is no surprise to anybody.
        log.debug("engine.told_refused", **said)
    else:
        log.warning("engine.told_refused", **said)


def wedged_error(machine: str) -> WedgedError:
    """Return the error that proposals to a wedged machine meet."""
    return WedgedError(
        f"{machine or 'admission'} stopped on a bug of primusd; its processes run on",
        hint="restart primusd to try again, and report the bug with the daemon's log",
    )


def _fits(entry: Entry) -> bool:
    return len(encode_entry(entry)) <= ENTRY_BYTES_MAX


def _answer(groups: Sequence[Waiting], answers: tuple[Answer, ...]) -> None:
    first = 0
    for group in groups:
        count = len(group.proposals)
        group.answer(answers[first : first + count])
        first += count
