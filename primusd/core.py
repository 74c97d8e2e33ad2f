"""One step for the whole daemon: pure, so that the simulator drives the same function.

For each proposal in order: apply its event to its machine, settle that machine, apply the
consequences for other machines (first caused, first applied, at most 8 deep). All records of a
step are one journal entry. Source: docs/state-machines.md §1.
"""

import traceback
from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType, ModuleType

from msgspec import Struct
from msgspec.structs import replace

from primusd.admission import machine as admission
from primusd.admission.model import Admission
from primusd.datafeed.ledger import machine as ledger
from primusd.datafeed.ledger.model import Stream
from primusd.errors import (
    ConflictError,
    KeyReusedError,
    NameTakenError,
    NotFoundError,
    PrimusdError,
    WedgedError,
)
from primusd.job import job
from primusd.job.commands import Command
from primusd.job.events import JobSubmitted, VerdictRequested
from primusd.job.machine import At, Ignore, Proposed
from primusd.job.model import Job
from primusd.job.phases import JobPhase
from primusd.job.requests import repeats_verdict
from primusd.records import ADMISSION, SCHEMA, Entry, Event, Proposal, Record, job_of
from primusd.shelves import Shelves, shelved

CONSEQUENCE_DEPTH_MAX = 8
SETTLES_MAX = 10_000
"""A machine that settles more often in one go never would: our bug."""

Machine = Admission | Job | Stream


class World(Struct, frozen=True):
    """Every machine there is."""

    admission: Admission = Admission()
    jobs: Mapping[str, Job] = Shelves()
    streams: Mapping[str, Stream] = Shelves()
    """By machine key: `<uid>/<stream>`."""


class Recorded(Struct, frozen=True):
    """The proposal was recorded; `revision` is that of its entry once it is durable."""

    revision: int


class Ignored(Struct, frozen=True):
    """The table says that it changes nothing, with the reason."""

    reason: str


class Rejected(Struct, frozen=True):
    """Refused: answered to the proposer; a bug when one of our edges sent it."""

    error: PrimusdError


class Raised(Struct, frozen=True):
    """`apply` or `settle` raised: our bug; the machine is to be wedged."""

    machine: str
    text: str


Answer = Recorded | Ignored | Rejected | Raised


class Step(Struct, frozen=True):
    """What a step came to."""

    world: World
    entry: Entry | None
    """None: nothing is to be recorded."""
    answers: tuple[Answer, ...]
    """One per proposal, in order."""
    touched: tuple[str, ...]
    """Machines whose value changed."""


class ReplayError(PrimusdError):
    """A record of the journal cannot be applied: our bug, or a damaged store.

    Attributes:
        machine: The machine that it happened to.
    """

    code = "Wedged"

    def __init__(self, message: str, *, machine: str) -> None:
        super().__init__(message)
        self.machine = machine


def step(
    world: World, proposals: Sequence[Proposal], *, at_ms: int, term: int, revision: int
) -> Step:
    """Return what the proposals come to.

    Args:
        world: Every machine as of the entry before.
        proposals: In the order they came.
        at_ms: Journal time, not below that of the entry before.
        term: Of this leadership.
        revision: Of the entry to be made: the last one + 1.
    """
    draft = _Draft(world, at_ms=at_ms, term=term, revision=revision)
    answers: list[Answer] = []
    for proposal in proposals:
        mark = draft.mark()
        try:
            answers.append(draft.take(proposal))
        except PrimusdError as error:
            draft.go_back(mark)
            answers.append(Rejected(error))
        except Exception:  # noqa: BLE001 - a bug of ours wedges one machine, the others go on
            draft.go_back(mark)
            answers.append(Raised(job_of(proposal.machine), traceback.format_exc(limit=-8)))
    records = tuple(draft.records)
    entry = Entry(SCHEMA, term, revision, at_ms, records) if records else None
    return Step(draft.world(), entry, tuple(answers), tuple(draft.touched))


def replay(
    world: World,
    entry: Entry,
    *,
    skip: frozenset[str] = frozenset(),
    covers: Mapping[str, int] = MappingProxyType({}),
) -> World:
    """Return the world after an entry: its records are applied, nothing is derived again.

    Args:
        world: As of the entry before.
        entry: From the journal.
        skip: Jobs whose records are left alone, since one of them could not be applied.
        covers: Machine to the revision that its snapshot holds already.

    Raises:
        ReplayError: A record could not be applied; it names the machine.
    """
    draft = _Draft(world, at_ms=entry.at_ms, term=entry.term, revision=entry.revision)
    for position, record in enumerate(entry.records):
        uid = job_of(record.machine)
        if (uid and uid in skip) or covers.get(record.machine, 0) >= entry.revision:
            continue
        try:
            draft.apply_record(record, position)
        except Exception as error:  # a bug of ours, or damage; the engine wedges that job only
            raise ReplayError(
                f"entry {entry.revision} record {position} cannot be applied to machine "
                f"{record.machine or 'admission'}: {type(error).__name__}: {error}",
                machine=record.machine,
            ) from error
    return draft.world()


def plan(world: World, machine: str) -> tuple[Command, ...]:
    """Return what must be in motion for a machine; nothing for one that is gone."""
    state = find(world, machine)
    if state is None or job_of(machine) in world.admission.wedged:
        return ()
    commands: tuple[Command, ...] = _module(machine).plan(state)
    return commands


def deadline_ms(world: World, machine: str) -> int:
    """Return the journal time at which the machine wants TimePassed; 0 none."""
    state = find(world, machine)
    if state is None or job_of(machine) in world.admission.wedged:
        return 0
    at_ms: int = _module(machine).deadline_ms(state)
    return at_ms


def find(world: World, machine: str) -> Machine | None:
    """Return a machine's value, None when there is none."""
    if machine == ADMISSION:
        return world.admission
    return world.streams.get(machine) if "/" in machine else world.jobs.get(machine)


def machines(world: World) -> tuple[str, ...]:
    """Return the keys of all machines, admission first."""
    return (ADMISSION, *world.jobs, *world.streams)


def _module(machine: str) -> ModuleType:
    """Return the module with a machine's five functions."""
    if machine == ADMISSION:
        return admission
    return ledger if "/" in machine else job


class _Draft:
    """A step in the making: the machines it changed so far, and the records."""

    def __init__(self, world: World, *, at_ms: int, term: int, revision: int) -> None:
        self._world = world
        self._found: dict[str, Machine | None] = {}
        """Machines that were looked at, as they were before the step."""
        self._changed: dict[str, Machine | None] = {}
        self._since_mark: dict[str, tuple[Machine | None, bool]] = {}
        """Machine to its value at the mark, and whether it was changed before."""
        self._at_ms = at_ms
        self._term = term
        self._revision = revision
        self.records: list[Record] = []

    @property
    def touched(self) -> tuple[str, ...]:
        """Machines whose value changed."""
        return tuple(self._changed)

    def mark(self) -> int:
        """Return where the draft stands, for `go_back`; an earlier mark is no longer good."""
        self._since_mark = {}
        return len(self.records)

    def go_back(self, mark: int) -> None:
        """Forget all that was done since the mark."""
        for machine, (state, was_changed) in self._since_mark.items():
            if was_changed:
                self._changed[machine] = state
            else:
                del self._changed[machine]
        self._since_mark = {}
        del self.records[mark:]

    def world(self) -> World:
        """Return the world with the changes."""
        if not self._changed:
            return self._world
        admission = self._world.admission
        jobs, streams = shelved(self._world.jobs), shelved(self._world.streams)
        for machine, state in self._changed.items():
            match state:
                case Admission():
                    admission = state
                case Job():
                    jobs = jobs.with_value(machine, state)
                case Stream():
                    streams = streams.with_value(machine, state)
                case None if "/" in machine:
                    streams = streams.with_value(machine, None)
                case None:
                    jobs = jobs.with_value(machine, None)
        return World(admission, jobs, streams)

    def take(self, proposal: Proposal) -> Answer:
        """Apply a proposal with all that follows from it; raises what refuses it."""
        if is_repeat := self._check(proposal):
            return Ignored(is_repeat)
        before = len(self.records)
        queue: deque[tuple[Proposed, str, int, int]] = deque()
        queue.append((Proposed(proposal.machine, proposal.event), proposal.by, -1, 0))
        while queue:
            proposed, by, cause, depth = queue.popleft()
            assert depth <= CONSEQUENCE_DEPTH_MAX, f"consequences {depth} deep: {proposed}"
            if cause >= 0 and job_of(proposed.machine) in self._admission().wedged:
                continue
            answer = self._apply(proposed, by=by, cause=cause)
            if isinstance(answer, Ignore):
                if cause < 0:
                    return Ignored(answer.reason)
                continue
            position, found = answer
            queue.extend((one, _who(proposed.machine), position, depth + 1) for one in found)
        return Recorded(self._revision) if len(self.records) > before else Ignored("already so")

    def apply_record(self, record: Record, position: int) -> None:
        """Apply one record as it was; for replay."""
        state = self._find(record.machine)
        at = At(self._at_ms, self._revision, position, record.by, record.cause, self._term)
        after = _module(record.machine).apply(state, record.event, at)
        assert not isinstance(after, Ignore), f"a recorded event is ignored: {record}"
        self._store(record.machine, state, after)

    def _apply(
        self, proposed: Proposed, *, by: str, cause: int
    ) -> Ignore | tuple[int, tuple[Proposed, ...]]:
        """Apply an event, settle its machine, and return the consequences with their cause."""
        machine = proposed.machine
        module = _module(machine)
        before = self._find(machine)
        position = len(self.records)
        outcome = self._apply_one(machine, proposed.event, by=by, cause=cause)
        if isinstance(outcome, Ignore):
            return outcome
        internal: Event | None = None
        for _ in range(SETTLES_MAX):
            state = self._changed[machine]
            internal = None if state is None else module.settle(state, self._at_ms)
            if internal is None:
                break
            decided = self._apply_one(machine, internal, by="settle", cause=position)
            assert not isinstance(decided, Ignore), f"settle decided what is ignored: {internal}"
        else:
            raise AssertionError(f"machine {machine} does not settle: {internal}")
        return position, module.consequences(before, self._find(machine), proposed.event)

    def _apply_one(self, machine: str, event: Event, *, by: str, cause: int) -> Ignore | None:
        """Apply one event and record it."""
        state = self._find(machine)
        at = At(self._at_ms, self._revision, len(self.records), by, cause, self._term)
        after = _module(machine).apply(state, event, at)
        if isinstance(after, Ignore):
            return after
        self._store(machine, state, after)
        self.records.append(Record(machine, cause, by, event))
        return None

    def _store(self, machine: str, before: Machine | None, after: Machine | None) -> None:
        # Of several records of one step the first has put the revision there.
        if after is not None and after is not before and after.changed_revision != self._revision:
            after = replace(after, changed_revision=self._revision)
        if machine not in self._since_mark:
            self._since_mark[machine] = (self._changed.get(machine), machine in self._changed)
        self._changed[machine] = after
        if after is None and isinstance(before, Job):
            # The record of a job takes those of its streams along.
            for stream in before.streams:
                self._store(f"{machine}/{stream}", None, None)

    def _find(self, machine: str) -> Machine | None:
        if machine in self._changed:
            return self._changed[machine]
        if machine not in self._found:
            self._found[machine] = find(self._world, machine)
        return self._found[machine]

    def _admission(self) -> Admission:
        state = self._find(ADMISSION)
        assert isinstance(state, Admission)
        return state

    def _check(self, proposal: Proposal) -> str:
        """Refuse what no machine can judge for itself, or what it did not refuse in older journals.

        Returns:
            Why nothing changes, "" it may.

        Raises:
            WedgedError: The machine stopped on a bug of ours.
            NotFoundError: There is no such machine.
            NameTakenError: A live job has the name.
            KeyReusedError: The idempotency key belongs to another spec, or to this one already.
            ConflictError: A job that has to succeed before has ended otherwise, or is gone.
            PhaseConflictError: A person ends the job with another verdict already.
        """
        known = self._admission()
        uid = job_of(proposal.machine)
        if uid in known.wedged and not _is_engines(proposal):
            raise WedgedError(
                f"{proposal.machine or 'admission'} stopped on a bug of ours; its processes run on",
                hint="primusctl describe shows what is known; please report it",
            )
        if isinstance(proposal.event, JobSubmitted):
            check_new_job(known, proposal.event)
            self._check_after(proposal.event)
        elif self._find(proposal.machine) is None:
            raise NotFoundError(
                f"there is no {'stream' if '/' in proposal.machine else 'job'} {proposal.machine}"
            )
        elif isinstance(proposal.event, VerdictRequested):
            found = self._find(proposal.machine)
            assert isinstance(found, Job)
            return "already so" if repeats_verdict(found, proposal.event) else ""
        return ""

    def _check_after(self, event: JobSubmitted) -> None:
        for uid in event.after:
            job = self._find(uid)
            if not isinstance(job, Job):
                raise ConflictError(f"job {uid}, which it names in after, is not there any more")
            if job.is_final and job.phase is not JobPhase.SUCCEEDED:
                raise ConflictError(
                    f"{job.spec.name}, which it names in after, ended {job.phase}",
                    hint="it has to end Succeeded; submit it again first",
                )


def _is_engines(proposal: Proposal) -> bool:
    """Return whether the engine itself speaks, which a wedged machine does not stop."""
    return proposal.by == "engine"


def check_new_job(known: Admission, event: JobSubmitted) -> None:
    """Refuse a job whose idempotency key or name is in use.

    Raises:
        KeyReusedError: The key has made a job already.
        NameTakenError: A job of its name lives.
    """
    key = (event.spec.namespace, event.key)
    use = known.keys.get(key) if event.key else None
    if use is not None:
        raise KeyReusedError(
            f"the idempotency key {event.key} was used for job {use.job}"
            + ("" if use.spec_digest == event.spec_digest else ", with another spec"),
            hint="take a new key for a new job",
        )
    taken = known.names.get((event.spec.namespace, event.spec.name))
    if taken is not None:
        raise NameTakenError(
            f"a job named {event.spec.name} lives in namespace {event.spec.namespace} ({taken})",
            hint=f"choose another name, or cancel it: primusctl cancel {event.spec.name}",
        )


def _who(machine: str) -> str:
    """Return the word for a machine as the source of a consequence."""
    if machine == ADMISSION:
        return "admission"
    return "stream" if "/" in machine else "job"
