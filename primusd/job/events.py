"""Events of the job machine and its attempts: past participles, one Struct each.

A tag (the class name) is never reused and fields are only appended: old journals load for ever.
Who sends which, and where each may come, stands in the tables (`job/job_tables.py`). Their order
here: from the API, admission, streams, launchers, executors and liveness, the timer, settle.
"""

from collections.abc import Mapping

from msgspec import Struct

from primusd.executor.protocol import Exit
from primusd.job.decisions import (
    AllGone,
    AttemptBegun,
    AttemptCompleted,
    DrainEnded,
    FellBelowMinimum,
    GateOpened,
    GateReached,
    JobMachineEvent,
    JobRestarted,
    LimitNeared,
    MovesDecided,
    ReplicaRecalled,
    ReplicaRetired,
    ReplicaRevived,
    RetriesExhausted,
    RetryDecided,
    RoleRestarted,
    StartTimedOut,
    StopDecided,
    VerdictReached,
)
from primusd.job.ids import AttemptId, Span
from primusd.job.spec import JobSpec

__all__ = [
    "AllGone",
    "AttemptBegun",
    "AttemptCompleted",
    "DrainEnded",
    "FellBelowMinimum",
    "GateOpened",
    "GateReached",
    "JobRestarted",
    "LimitNeared",
    "MovesDecided",
    "ReplicaRecalled",
    "ReplicaRetired",
    "ReplicaRevived",
    "RetriesExhausted",
    "RetryDecided",
    "RoleRestarted",
    "StartTimedOut",
    "StopDecided",
    "VerdictReached",
]
# What is known by this module's name though it lies in another.


class JobSubmitted(JobMachineEvent, frozen=True):
    """A job came to be; makes the machine."""

    uid: str
    spec: JobSpec
    origins: Mapping[str, str]
    """Path to `default`, `file`, `--set`, …: where each value of the spec comes from."""
    submitted_by: str
    key: str = ""
    """Idempotency-Key; "" none."""
    spec_digest: str = ""
    after: tuple[str, ...] = ()
    """Uids of the jobs that its spec names in `after`."""


class CancelRequested(JobMachineEvent, frozen=True):
    """A person asks for the end of the job."""

    reason: str = ""


class SuspendRequested(JobMachineEvent, frozen=True):
    """A person asks for a pause."""

    reason: str = ""


class ResumeRequested(JobMachineEvent, frozen=True):
    """A person ends the pause."""

    reason: str = ""


class RestartRequested(JobMachineEvent, frozen=True):
    """A person asks that replicas start again."""

    spans: tuple[Span, ...]
    """Complete and within the spec; the API fills in all replicas when none were named."""
    reason: str = ""


class RoleScaled(JobMachineEvent, frozen=True):
    """A person changes how many replicas a role has."""

    role: str
    replicas: int


class SpecPatched(JobMachineEvent, frozen=True):
    """Mutable fields changed; the spec is stored whole."""

    spec: JobSpec
    origins: Mapping[str, str]
    changed: tuple[str, ...] = ()
    """Paths of the fields; for people."""


class VerdictRequested(JobMachineEvent, frozen=True):
    """A person decides: `as_phase` is Succeeded or Failed."""

    as_phase: str
    reason: str


class DrillRequested(JobMachineEvent, frozen=True):
    """A person asks for a fault on purpose; `preempt` is carried out here, others by an edge."""

    fault: str
    """`kill`, `pause`, `preempt` or `loseNode`."""
    spans: tuple[Span, ...] = ()
    """The replicas that it meets; none: the whole job."""
    text: str = ""
    """What is done to them, as people read it."""


class ForgetRequested(JobMachineEvent, frozen=True):
    """The record of a final job may go; a tombstone stays."""

    keep_ms: int = 2_592_000_000
    """For how long the tombstone stays: `history.keep`."""


class Place(Struct, frozen=True, array_like=True):
    """A run of replicas on one node.

    Replica `first + i` has the ports from `first_port` + i times the role's number of ports.
    """

    node: str
    role: str
    first: int
    count: int
    first_port: int
    """0: the role has no ports."""
    memory_bytes: int = 0
    """Of each; 0: as the role asks."""


class JobAdmitted(JobMachineEvent, frozen=True):
    """Slots and ports were granted; names only what is new or moved."""

    places: tuple[Place, ...]
    generation: int
    """The demand's generation that these ports belong to."""
    withdrawn: tuple[Span, ...] = ()
    """Replicas whose slot went with its node while nothing of them ran there."""


class JobRefused(JobMachineEvent, frozen=True):
    """Admission will never admit the job."""

    reason: str
    message: str


class JobEvicted(JobMachineEvent, frozen=True):
    """The job was preempted by one of higher priority."""

    message: str
    since_ms: int = 0
    """Its age in the queue, which it keeps."""
    by_job: str = ""
    """Uid of the one that gets its room."""


class RoomMade(JobMachineEvent, frozen=True):
    """Another job is stopped so that this one can start."""

    job: str
    """Uid of the other."""
    message: str


class NodeDraining(JobMachineEvent, frozen=True):
    """A node is being emptied."""

    node: str
    is_now: bool = False
    """All at once, also what has no place elsewhere yet."""
    is_over: bool = False
    """It is not any more: what has not moved yet stays."""


class SlotsStranded(JobMachineEvent, frozen=True):
    """A node does not take the job's replicas any more: what does not run there goes elsewhere."""

    node: str
    is_away: bool = False
    """It does not answer: attempts whose executors never said hello are given up too."""


class StreamFinished(JobMachineEvent, frozen=True):
    """A stream is Done."""

    stream: str
    consumed: int
    skipped: int
    unsized: int = 0
    """Units left out, in whole or from some position on, whose ends nobody knows: `skipped` has
    one for each."""
    carried: int = 0
    """Of `consumed`, what was taken before: it came with a savepoint."""
    missing: int = 0
    """Folders by time that did not come and were passed over."""
    left_out: int = 0
    """Rows that filter, sample or transform left out; of `consumed`."""


class StreamFailed(JobMachineEvent, frozen=True):
    """A stream is Failed."""

    stream: str
    message: str


class StreamReopened(JobMachineEvent, frozen=True):
    """A stream that was Done has work again."""

    stream: str


class ReaderSettled(JobMachineEvent, frozen=True):
    """A reader's end has been counted in by the stream."""

    attempt: AttemptId
    stream: str
    left: int
    """Positions (rows or bytes) that nobody has taken yet; -1 not known."""


class SavepointSealed(JobMachineEvent, frozen=True):
    """A savepoint of a stream is durable."""

    stream: str
    name: str


class GroupLeaseLost(JobMachineEvent, frozen=True):
    """exactlyOnce: a lease of a live group ran out."""

    stream: str
    attempt: AttemptId


class AttemptLaunched(JobMachineEvent, frozen=True):
    """The launcher holds a handle."""

    attempt: AttemptId
    handle: Mapping[str, str] = {}
    """What the launcher calls it: plain, versioned data."""


class AttemptWaiting(JobMachineEvent, frozen=True):
    """The launcher waits for a place."""

    attempt: AttemptId
    reason: str


class LaunchFailed(JobMachineEvent, frozen=True):
    """The launcher refuses it, or could not do it."""

    attempt: AttemptId
    text: str
    is_permanent: bool = True


class AttemptVanished(JobMachineEvent, frozen=True):
    """The launcher confirms that nothing of it is left."""

    attempt: AttemptId
    exit: Exit | None = None
    """The exit record, the best evidence there is."""
    evidence: str = ""
    """`""`, `oom`, `nodeLost`, `preempted`, `bootChanged`, `forkFailed:<text>`."""


class StopFailed(JobMachineEvent, frozen=True):
    """A stop or a release did not come true by its deadline."""

    attempt: AttemptId
    was_delivered: bool


class PreemptionNoticed(JobMachineEvent, frozen=True):
    """The back end says that it will take the place away."""

    attempt: AttemptId
    left_ms: int


class ExecutorRegistered(JobMachineEvent, frozen=True):
    """The executor said hello."""

    attempt: AttemptId
    incarnation: str
    host: str
    boot_id: str
    pid: int
    version: str


class ExecutorHolding(JobMachineEvent, frozen=True):
    """Files are there and ports are bound: it could start."""

    attempt: AttemptId
    ports: tuple[tuple[str, int], ...] = ()


class TrainerStarted(JobMachineEvent, frozen=True):
    """The trainer exists."""

    attempt: AttemptId
    pid: int
    started_ms: int
    """Wall clock of its host: evidence, never compared."""


class TrainerReady(JobMachineEvent, frozen=True):
    """The probe or the SDK says that the trainer is ready."""

    attempt: AttemptId


class TrainerHung(JobMachineEvent, frozen=True):
    """The hang rule holds, or does no more."""

    attempt: AttemptId
    evidence: str
    """"" it goes on again."""


class TrainerExited(JobMachineEvent, frozen=True):
    """The trainer ended; `exit` is the evidence."""

    attempt: AttemptId
    exit: Exit


class CheckpointNoted(JobMachineEvent, frozen=True):
    """The trainer wrote a whole checkpoint."""

    attempt: AttemptId
    path: str
    step: int
    savepoint: str = ""


class ExecutorFellSilent(JobMachineEvent, frozen=True):
    """No report for a while: suspected."""

    attempt: AttemptId


class ExecutorReturned(JobMachineEvent, frozen=True):
    """It reports again."""

    attempt: AttemptId


class ExecutorExpired(JobMachineEvent, frozen=True):
    """No report for too long: lost."""

    attempt: AttemptId


class TimePassed(JobMachineEvent, frozen=True):
    """A deadline of this machine has passed; shared by all machines."""


AttemptEvent = (
    AttemptLaunched
    | AttemptWaiting
    | LaunchFailed
    | AttemptVanished
    | StopFailed
    | PreemptionNoticed
    | ExecutorRegistered
    | ExecutorHolding
    | TrainerStarted
    | TrainerReady
    | TrainerHung
    | TrainerExited
    | ExecutorFellSilent
    | ExecutorReturned
    | ExecutorExpired
)

JobOnlyEvent = (
    JobSubmitted
    | CancelRequested
    | SuspendRequested
    | ResumeRequested
    | RestartRequested
    | RoleScaled
    | SpecPatched
    | VerdictRequested
    | DrillRequested
    | ForgetRequested
    | JobAdmitted
    | JobRefused
    | JobEvicted
    | RoomMade
    | NodeDraining
    | SlotsStranded
    | StreamFinished
    | StreamFailed
    | StreamReopened
    | ReaderSettled
    | SavepointSealed
    | GroupLeaseLost
    | CheckpointNoted
    | TimePassed
    | GateReached
    | StartTimedOut
    | FellBelowMinimum
    | MovesDecided
    | LimitNeared
    | JobRestarted
    | VerdictReached
    | DrainEnded
    | AllGone
)

DecidedEvent = (
    GateOpened
    | StopDecided
    | AttemptBegun
    | AttemptCompleted
    | RetryDecided
    | RetriesExhausted
    | ReplicaRecalled
    | ReplicaRetired
    | ReplicaRevived
    | RoleRestarted
)

JobEvent = AttemptEvent | JobOnlyEvent | DecidedEvent
