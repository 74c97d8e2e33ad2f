"""The state of a job: what the journal's records add up to. Frozen values, changed by `replace`.

Replicas are kept in chunks of 100: the chunk is the unit of copying, of planning and of snapshots.
"""

from collections.abc import Iterator, Mapping

from msgspec import Struct

from primusd.executor.protocol import Checkpoint
from primusd.job.ids import AttemptId, Span
from primusd.job.phases import (
    FINAL_PHASES,
    AttemptPhase,
    Budget,
    Cause,
    JobPhase,
    ReplicaPhase,
    StopReason,
)
from primusd.job.spec import JobSpec

CHUNK_REPLICAS = 100
ATTEMPTS_KEPT = 10
TIMELINE_KEPT = 200


class Outcome(Struct, frozen=True, array_like=True):
    """How an attempt ended; decided once, from evidence."""

    cause: Cause
    budget: Budget
    """What such an end is charged to; whether it was charged stands in `RoleState.charges`."""
    exit_code: int | None = None
    signal: int | None = None
    stop_reason: StopReason | None = None
    is_permanent: bool = False
    """The job fails at once."""
    oom_kills: int = 0
    peak_rss_bytes: int = 0
    evidence: tuple[str, ...] = ()
    """What it was decided from, as people read it: `exit code 1`, `no stop was asked`."""
    last_line: str = ""
    port_taken: str = ""
    """Name of an allotted port that a stranger held."""
    at_ms: int = 0
    charged: int = 0
    """Its number among the ends charged to that budget within the time; 0 not charged."""
    is_node_fault: bool = False
    """Counts against the node."""
    matched: tuple[int, ...] = ()
    """Positions, among the patterns its executor looked for, of those that it saw."""
    rule: int = 0
    """Number of the `failure` rule that decided, from 1; 0 none did."""
    action: str = ""
    """Of that rule: `restart`, `fail`, `giveUp` or `complete`; "" none."""
    is_spent: bool = False
    """Its replica has used up what one replica may."""


class StopState(Struct, frozen=True, array_like=True):
    """A stop that is being carried out."""

    reason: StopReason
    text: str
    grace_ms: int
    decided_ms: int


class Attempt(Struct, frozen=True, array_like=True):
    """One run of one replica."""

    number: int
    generation: int
    phase: AttemptPhase
    node: str
    """Of its slot; "" where the back end places."""
    ports: tuple[tuple[str, int], ...] = ()
    """Allotted by admission; as bound once it holds."""
    requested_ms: int = 0
    launched_ms: int = 0
    registered_ms: int = 0
    started_ms: int = 0
    ended_ms: int = 0
    gone_ms: int = 0
    handle: Mapping[str, str] = {}
    waiting_for: str = ""
    """The launcher's word while it waits for a place."""
    incarnation: str = ""
    host: str = ""
    boot_id: str = ""
    executor_pid: int = 0
    trainer_pid: int = 0
    trainer_started_ms: int = 0
    """Wall clock of its host."""
    is_holding: bool = False
    is_ready: bool = False
    is_silent: bool = False
    silent_since_ms: int = 0
    preemption_ms: int = 0
    stop: StopState | None = None
    outcome: Outcome | None = None
    is_quarantined: bool = False
    settled_streams: tuple[tuple[str, int], ...] = ()
    """Streams that counted its end in, with what was left."""
    phase_since_ms: int = 0
    opened_ms: int = 0
    """When its gate opened; 0 not yet. From then on it stands in the peers document."""
    was_kill_delivered: bool = False
    """Quarantined, but nothing of it runs again: the back end took the kill."""
    memory_bytes: int = 0
    """Its limit; 0: as its role's spec says."""
    hang: str = ""
    """Evidence that it hangs; "" it does not."""
    hung_ms: int = 0
    """Since when; 0 it does not."""
    is_newcomer: bool = False
    """Begun while the members of its role ran: it joins them in the next generation."""
    checkpoint: Checkpoint | None = None
    """The newest that it said to have written; None none."""


class Replica(Struct, frozen=True, array_like=True):
    """A slot of a role."""

    index: int
    phase: ReplicaPhase = ReplicaPhase.WAITING
    attempts: tuple[Attempt, ...] = ()
    """The newest last, at most ATTEMPTS_KEPT."""
    last_number: int = 0
    """Of the newest attempt ever begun; grows for ever."""
    node: str = ""
    """Its slot; "" none."""
    first_port: int = 0
    slot_generation: int = 0
    """Of the demand that its ports were allotted for; 0 no slot."""
    not_before_ms: int = 0
    failures: int = 0
    """Consecutive, for the delay; starts anew after 10 minutes of health."""
    is_recalled: bool = False
    """A person asked for its restart, and it has not been recalled yet."""
    due_ms: int = 0
    """Journal time at which it has to be looked at; 0 none. Kept by `job/chunks.py`."""
    begin_ms: int = 0
    """Journal time from which a new attempt may begin; 0 it cannot. Kept by `job/chunks.py`."""
    marks: int = 0
    """Bit n: it is counted at position n of its chunk's counts. Kept by `job/chunks.py`."""
    memory_bytes: int = 0
    """What its slot has; 0: as its role's spec says."""
    memory_asked_bytes: int = 0
    """What it asks for after an end by want of memory; 0: as its role's spec says."""

    @property
    def newest(self) -> Attempt | None:
        """The newest attempt, None before the first."""
        return self.attempts[-1] if self.attempts else None


class Chunk(Struct, frozen=True, array_like=True):
    """At most CHUNK_REPLICAS consecutive replicas, with counts and the earliest deadline."""

    replicas: tuple[Replica, ...]
    counts: tuple[int, ...] = ()
    """Kept by `job/chunks.py`; what each position means stands there."""
    deadline_ms: int = 0
    """Earliest journal time at which one of them has to be looked at; 0 none."""
    begin_ms: int = 0
    """Earliest journal time at which one of them may begin a new attempt; 0 none can."""
    wanted: int = 0
    """Bit i: replica i of the chunk wants a slot."""


class Charge(Struct, frozen=True, array_like=True):
    """An end that was charged to a budget."""

    at_ms: int
    budget: Budget
    attempt: str
    """`worker-3/2`; "" a start that timed out."""
    boot_id: str = ""
    """Of the host on which an infrastructure end happened; "" not known, or another budget."""


class RoleState(Struct, frozen=True, array_like=True):
    """A role's replicas and what was charged to it."""

    name: str
    size: int
    """Replicas wanted: indices below it."""
    chunks: tuple[Chunk, ...]
    charges: tuple[Charge, ...] = ()
    """Within the budget's time, oldest first."""
    gate_opened: bool = False
    """In the generation in force, since the last admission."""
    not_before_ms: int = 0
    """A restart of the whole role waits until then."""
    failures: int = 0
    generation: int = 1
    """In force: attempts of an older one are stopped and recalled."""
    counts: tuple[int, ...] = ()
    """The sum of its chunks' counts."""
    deadline_ms: int = 0
    """The earliest of its chunks; 0 none."""
    begin_ms: int = 0
    """The earliest of its chunks; 0 none can begin."""
    wanted: tuple[Span, ...] = ()
    """What the demand names. A replica that wants no slot any more may stay in it until a tenth
    of them does not: a demand of 10,000 is not told anew for each completion."""
    placed_ms: int = 0
    """When admission last gave it slots."""
    minimum: int = 0
    """Replicas it cannot do without, where it was made smaller than the spec's; 0 the spec's."""
    begun_ms: int = 0
    """When attempts of it last began."""
    has_shrunk: bool = False
    """It was made smaller since its gate opened, and its members have not met anew."""
    is_growing: bool = False
    """A person made it larger since its gate opened: who comes joins at once."""


class Moment(Struct, frozen=True, array_like=True):
    """A timeline entry: an event that a person would tell a colleague."""

    revision: int
    position: int
    at_ms: int
    level: str
    reason: str
    subject: str
    by: str
    message: str
    details: Mapping[str, str | int] = {}
    cause: str = ""
    """`revision.position` of the record it follows from."""


class Verdict(Struct, frozen=True, array_like=True):
    """How the job ended, and by which rule."""

    as_phase: str
    reason: str
    message: str
    rule: str
    decided_by: str = "rules"
    numbers: Mapping[str, int] = {}
    """What decided."""
    cause: str = ""
    """The attempt that tipped the scales; "" it was none."""


class FirstCause(Struct, frozen=True, array_like=True):
    """The first end of the newest trouble: what a person should look at first."""

    attempt: str
    cause: Cause
    exit_code: int | None
    signal: int | None
    at_ms: int
    last_line: str
    evidence: tuple[str, ...]
    newest_ms: int = 0
    """When the newest end of the same trouble came; 0 of an older version: `at_ms`."""
    ends: int = 1
    """Of the same trouble so far, this one counted."""


class StreamSummary(Struct, frozen=True, array_like=True):
    """What the job knows of a stream: its consequences, nothing more."""

    is_finished: bool = False
    failure: str = ""
    consumed: int = 0
    skipped: int = 0
    left: int = -1
    """Positions that nobody had taken at the last reader's end; -1 not known."""
    unsized: int = 0
    """Units left out without knowing where they end; `skipped` has one for each."""
    missing: int = 0
    """Folders by time that did not come and were passed over."""
    left_out: int = 0
    """Rows that filter, sample or transform left out."""


class Peers(Struct, frozen=True, array_like=True):
    """The newest peers document: made when a gate opens, so it changes at no other time."""

    generation: int = 0
    """0: no gate has opened yet."""
    revision: int = 0
    """Within the generation: +1 with each opening."""
    digest: str = ""
    inline: bytes = b""
    """The document itself, when it is small."""


class Hours(Struct, frozen=True, array_like=True):
    """How long trainers ran, so that it is known at any time without looking at each."""

    spent_ms: int = 0
    """Of those that have ended."""
    running: int = 0
    """Trainers that run."""
    started_ms: int = 0
    """The sum of the times at which those started."""


class Job(Struct, frozen=True, array_like=True):
    """A job machine."""

    uid: str
    spec: JobSpec
    origins: Mapping[str, str]
    submitted_by: str
    created_ms: int
    phase: JobPhase
    phase_since_ms: int
    roles: Mapping[str, RoleState]
    streams: Mapping[str, StreamSummary]
    spec_version: int = 1
    changed_revision: int = 0
    """Journal revision of the last change: resourceVersion; set by core.step."""
    generation: int = 1
    peers: Peers = Peers()
    then: str = ""
    """Where Stopping leads: Succeeded, Failed, Cancelled, Suspended or Queued."""
    verdict: Verdict | None = None
    first_cause: FirstCause | None = None
    queued_ms: int = 0
    admitted_ms: int = 0
    """Of the newest admission; 0 not admitted."""
    first_admitted_ms: int = 0
    started_ms: int = 0
    ended_ms: int = 0
    start_clock_ms: int = 0
    """When the start clock began; 0 it stands still."""
    not_before_ms: int = 0
    """Queued after a start that timed out, or a restart of the whole job: not earlier."""
    start_timeouts: int = 0
    charges: tuple[Charge, ...] = ()
    """Charged to the job as such (placement)."""
    draining_ms: int = 0
    checkpoint: Checkpoint | None = None
    timeline: tuple[Moment, ...] = ()
    withdrawals: int = 0
    """How often the demand fell to nothing: a phase passed through in one settle does not show."""
    slots_lost: int = 0
    """How often a replica that wants a slot forgot its own: admission has to be asked again."""
    has_quarantined: bool = False
    stop_reason: StopReason | None = None
    """While Stopping: what the trainers are told."""
    stop_text: str = ""
    refused: tuple[str, str] = ("", "")
    """Reason and message of a JobRefused."""
    suspended_ms: int = 0
    """Time spent Suspended so far: the deadline stands still."""
    ports_taken: tuple[tuple[str, int, int], ...] = ()
    """(role, index, port) that a stranger held, until other ports are allotted."""
    is_restart_whole: bool = False
    """A person asked for the restart of every replica, and it has not been decided yet."""
    groups_lost: tuple[AttemptId, ...] = ()
    """exactlyOnce: holders of lost leases whose roles have not restarted yet."""
    hours: Hours = Hours()
    warned: tuple[tuple[str, int], ...] = ()
    """Limits that trainers were warned of, each with its `LimitNeared.mark`."""
    draining_nodes: Mapping[str, bool] = {}
    """Nodes that are being emptied; True: without waiting for places elsewhere."""
    moving: tuple[Span, ...] = ()
    """Replicas on the way off such a node, until they run elsewhere."""
    stranded: tuple[AttemptId, ...] = ()
    """Attempts that had not said hello when their node was given up."""
    given_up: tuple[str, ...] = ()
    """Nodes where nothing begins anew until admission gives a slot there again."""
    after: tuple[str, ...] = ()
    """Uids of the jobs that its spec names in `after`."""
    aged_ms: int = 0
    """Its age in the queue since it was preempted; 0 it never was, or left the queue by itself."""
    spared: tuple[str, ...] = ()
    """Uids of jobs that it was stopped for: it is not again for these."""

    reruns: int = 0
    """How often all roles began anew because a budget was used up."""

    @property
    def is_final(self) -> bool:
        """Whether the job has reached a phase that it never leaves."""
        return self.phase in FINAL_PHASES


def replicas_of(role: RoleState) -> Iterator[Replica]:
    """Yield a role's replicas in the order of their indices."""
    for chunk in role.chunks:
        yield from chunk.replicas


def find_replica(job: Job, role: str, index: int) -> Replica | None:
    """Return the replica, None when the job has no such role or index."""
    state = job.roles.get(role)
    if state is None or index < 0:
        return None
    number, offset = divmod(index, CHUNK_REPLICAS)
    if number >= len(state.chunks):
        return None
    replicas = state.chunks[number].replicas
    return replicas[offset] if offset < len(replicas) else None


def find_attempt(job: Job, attempt: AttemptId) -> Attempt | None:
    """Return the attempt, None when it is not known (any more)."""
    replica = find_replica(job, attempt.role, attempt.index)
    if replica is None:
        return None
    for one in reversed(replica.attempts):
        if one.number == attempt.attempt:
            return one
    return None
