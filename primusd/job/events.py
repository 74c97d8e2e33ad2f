"""Events of the job machine and its attempts: past participles, one Struct each.

A tag (the class name) is never reused and fields are only appended: old journals load for ever.
Who sends which, and where each may come, stands in the tables (`job/job_tables.py`). Their order
here: from the API, admission, streams, launchers, executors and liveness, the timer, settle.
"""

from collections.abc import Mapping

from msgspec import Struct

from primusd.executor.protocol import Exit
from primusd.job.ids import AttemptId, Span
from primusd.job.phases import Budget, Cause, StopReason
from primusd.job.spec import JobSpec


class _Event(Struct, frozen=True, array_like=True, tag=True):
    """What all events share: msgpack arrays that begin with the class name."""


class JobSubmitted(_Event, frozen=True):
    """A job came to be; makes the machine."""

    uid: str
    spec: JobSpec
    origins: Mapping[str, str]
    """Path to `default`, `file`, `--set`, …: where each value of the spec comes from."""
    submitted_by: str
    key: str = ""
    """Idempotency-Key; "" none."""
    spec_digest: str = ""


class CancelRequested(_Event, frozen=True):
    """A person asks for the end of the job."""

    reason: str = ""


class SuspendRequested(_Event, frozen=True):
    """A person asks for a pause."""

    reason: str = ""


class ResumeRequested(_Event, frozen=True):
    """A person ends the pause."""

    reason: str = ""


class RestartRequested(_Event, frozen=True):
    """A person asks that replicas start again."""

    spans: tuple[Span, ...]
    """Complete and within the spec; the API fills in all replicas when none were named."""
    reason: str = ""


class RoleScaled(_Event, frozen=True):
    """A person changes how many replicas a role has."""

    role: str
    replicas: int


class SpecPatched(_Event, frozen=True):
    """Mutable fields changed; the spec is stored whole."""

    spec: JobSpec
    origins: Mapping[str, str]


class VerdictRequested(_Event, frozen=True):
    """A person decides: `as_phase` is Succeeded or Failed."""

    as_phase: str
    reason: str


class ForgetRequested(_Event, frozen=True):
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


class JobAdmitted(_Event, frozen=True):
    """Slots and ports were granted; names only what is new or moved."""

    places: tuple[Place, ...]
    generation: int
    """The demand's generation that these ports belong to."""
    withdrawn: tuple[Span, ...] = ()
    """Replicas whose slot went with its node while nothing of them ran there."""


class JobRefused(_Event, frozen=True):
    """Admission will never admit the job."""

    reason: str
    message: str


class JobEvicted(_Event, frozen=True):
    """The job was preempted by one of higher priority."""

    message: str


class NodeDraining(_Event, frozen=True):
    """A node is being emptied."""

    node: str


class StreamFinished(_Event, frozen=True):
    """A stream is Done."""

    stream: str
    consumed: int
    skipped: int
    unsized: int = 0
    """Units left out, in whole or from some position on, whose ends nobody knows: `skipped` has
    one for each."""


class StreamFailed(_Event, frozen=True):
    """A stream is Failed."""

    stream: str
    message: str


class StreamReopened(_Event, frozen=True):
    """A stream that was Done has work again."""

    stream: str


class ReaderSettled(_Event, frozen=True):
    """A reader's end has been counted in by the stream."""

    attempt: AttemptId
    stream: str
    left: int
    """Positions (rows or bytes) that nobody has taken yet; -1 not known."""


class SavepointSealed(_Event, frozen=True):
    """A savepoint of a stream is durable."""

    stream: str
    name: str


class GroupLeaseLost(_Event, frozen=True):
    """exactlyOnce: a lease of a live group ran out."""

    stream: str
    attempt: AttemptId


class AttemptLaunched(_Event, frozen=True):
    """The launcher holds a handle."""

    attempt: AttemptId
    handle: Mapping[str, str] = {}
    """What the launcher calls it: plain, versioned data."""


class AttemptWaiting(_Event, frozen=True):
    """The launcher waits for a place."""

    attempt: AttemptId
    reason: str


class LaunchFailed(_Event, frozen=True):
    """The launcher refuses it, or could not do it."""

    attempt: AttemptId
    text: str
    is_permanent: bool = True


class AttemptVanished(_Event, frozen=True):
    """The launcher confirms that nothing of it is left."""

    attempt: AttemptId
    exit: Exit | None = None
    """The exit record, the best evidence there is."""
    evidence: str = ""
    """`""`, `oom`, `nodeLost`, `preempted`, `bootChanged`, `forkFailed:<text>`."""


class StopFailed(_Event, frozen=True):
    """A stop or a release did not come true by its deadline."""

    attempt: AttemptId
    was_delivered: bool


class PreemptionNoticed(_Event, frozen=True):
    """The back end says that it will take the place away."""

    attempt: AttemptId
    left_ms: int


class ExecutorRegistered(_Event, frozen=True):
    """The executor said hello."""

    attempt: AttemptId
    incarnation: str
    host: str
    boot_id: str
    pid: int
    version: str


class ExecutorHolding(_Event, frozen=True):
    """Files are there and ports are bound: it could start."""

    attempt: AttemptId
    ports: tuple[tuple[str, int], ...] = ()


class TrainerStarted(_Event, frozen=True):
    """The trainer exists."""

    attempt: AttemptId
    pid: int
    started_ms: int
    """Wall clock of its host: evidence, never compared."""


class TrainerReady(_Event, frozen=True):
    """The probe or the SDK says that the trainer is ready."""

    attempt: AttemptId


class TrainerHung(_Event, frozen=True):
    """The hang rule holds."""

    attempt: AttemptId
    evidence: str


class TrainerExited(_Event, frozen=True):
    """The trainer ended; `exit` is the evidence."""

    attempt: AttemptId
    exit: Exit


class CheckpointNoted(_Event, frozen=True):
    """The trainer wrote a whole checkpoint."""

    attempt: AttemptId
    path: str
    step: int
    savepoint: str = ""


class ExecutorFellSilent(_Event, frozen=True):
    """No report for a while: suspected."""

    attempt: AttemptId


class ExecutorReturned(_Event, frozen=True):
    """It reports again."""

    attempt: AttemptId


class ExecutorExpired(_Event, frozen=True):
    """No report for too long: lost."""

    attempt: AttemptId


class TimePassed(_Event, frozen=True):
    """A deadline of this machine has passed; shared by all machines."""


class GateOpened(_Event, frozen=True):
    """These replicas may start their trainers."""

    spans: tuple[Span, ...]


class StopDecided(_Event, frozen=True):
    """The newest attempts of these replicas are to be stopped."""

    spans: tuple[Span, ...]
    reason: StopReason
    text: str
    grace_ms: int
    """-1: the role's own."""


class AttemptBegun(_Event, frozen=True):
    """A new attempt of each of these replicas: their counter + 1, in the generation in force."""

    spans: tuple[Span, ...]


class AttemptCompleted(_Event, frozen=True):
    """These replicas are done."""

    spans: tuple[Span, ...]


class RetryDecided(_Event, frozen=True):
    """The replica runs again, not before a time."""

    role: str
    index: int
    not_before_ms: int
    budget: Budget
    """What was charged; NONE when it was charged with the outcome of another."""
    failures: int = 0
    """Consecutive ones of the replica, this one counted."""


class RetriesExhausted(_Event, frozen=True):
    """The replica has failed for good."""

    role: str
    index: int
    cause: Cause
    budget: Budget


class ReplicaRecalled(_Event, frozen=True):
    """These replicas run again as if they never had."""

    spans: tuple[Span, ...]


class ReplicaRetired(_Event, frozen=True):
    """These replicas are not wanted any more."""

    spans: tuple[Span, ...]


class ReplicaRevived(_Event, frozen=True):
    """These replicas are wanted again."""

    spans: tuple[Span, ...]


class RoleRestarted(_Event, frozen=True):
    """A role restarts whole after the failure of `cause`: generation + 1, its attempts recalled."""

    role: str
    cause: AttemptId
    not_before_ms: int
    budget: Budget
    failures: int = 0
    """Consecutive ones of the role, this one counted."""


class JobRestarted(_Event, frozen=True):
    """All roles restart: generation + 1. `cause` is None when a person asked."""

    cause: AttemptId | None
    not_before_ms: int
    budget: Budget
    failures: int = 0
    """Consecutive ones of the role, this one counted."""


class GateReached(_Event, frozen=True):
    """The start gate of the job is reached."""


class StartTimedOut(_Event, frozen=True):
    """The job did not start in time; everything is released."""

    message: str
    not_before_ms: int
    is_exhausted: bool
    """The infrastructure budget is used up: the verdict is PlacementTimeout."""


class FellBelowMinimum(_Event, frozen=True):
    """A role has fewer present replicas than its minimum."""

    role: str
    present: int


class VerdictReached(_Event, frozen=True):
    """The rules decided how the job ends."""

    as_phase: str
    """Succeeded or Failed."""
    reason: str
    """The closed list `verdict.reason` of docs/api-documents.md §2."""
    message: str
    rule: str
    drains: bool = False
    """A role with `success: never` has `drain`: to Draining."""
    numbers: Mapping[str, int] = {}
    """What decided, for `explain`."""
    cause: str = ""
    """The attempt that tipped the scales: `worker-3/2`; "" it was none."""


class DrainEnded(_Event, frozen=True):
    """The helpers ended, or were cut off."""

    cut_off: tuple[Span, ...]


class AllGone(_Event, frozen=True):
    """No attempt of the job is left."""


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
    | ForgetRequested
    | JobAdmitted
    | JobRefused
    | JobEvicted
    | NodeDraining
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
