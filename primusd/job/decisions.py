"""What `settle` decides of a job: internal events, recorded like all others and never decided anew.

Past participles, one Struct each; the rules of `job/events.py` hold for them too.
"""

from collections.abc import Mapping

from msgspec import Struct

from primusd.job.ids import AttemptId, Span
from primusd.job.phases import Budget, Cause, StopReason


class JobMachineEvent(Struct, frozen=True, array_like=True, tag=True):
    """What all events share: msgpack arrays that begin with the class name."""


class GateOpened(JobMachineEvent, frozen=True):
    """These replicas may start their trainers."""

    spans: tuple[Span, ...]
    why: str = ""
    """What the gate waited for, and came; "" in older journals."""


class StopDecided(JobMachineEvent, frozen=True):
    """The newest attempts of these replicas are to be stopped."""

    spans: tuple[Span, ...]
    reason: StopReason
    text: str
    grace_ms: int
    """-1: the role's own."""


class AttemptBegun(JobMachineEvent, frozen=True):
    """A new attempt of each of these replicas: their counter + 1, in the generation in force."""

    spans: tuple[Span, ...]


class AttemptCompleted(JobMachineEvent, frozen=True):
    """These replicas are done."""

    spans: tuple[Span, ...]


class RetryDecided(JobMachineEvent, frozen=True):
    """The replica runs again, not before a time."""

    role: str
    index: int
    not_before_ms: int
    budget: Budget
    """What was charged; NONE when it was charged with the outcome of another."""
    failures: int = 0
    """Consecutive ones of the replica, this one counted."""
    memory_bytes: int = 0
    """What the next attempt asks for; 0 the same as before."""


class RetriesExhausted(JobMachineEvent, frozen=True):
    """The replica has failed for good."""

    role: str
    index: int
    cause: Cause
    budget: Budget


class ReplicaRecalled(JobMachineEvent, frozen=True):
    """These replicas run again as if they never had."""

    spans: tuple[Span, ...]


class ReplicaRetired(JobMachineEvent, frozen=True):
    """These replicas are not wanted any more."""

    spans: tuple[Span, ...]


class ReplicaRevived(JobMachineEvent, frozen=True):
    """These replicas are wanted again."""

    spans: tuple[Span, ...]


class RoleRestarted(JobMachineEvent, frozen=True):
    """A role restarts whole after the failure of `cause`: generation + 1, its attempts recalled."""

    role: str
    cause: AttemptId | None
    not_before_ms: int
    budget: Budget
    failures: int = 0
    """Consecutive ones of the role, this one counted."""
    memory_bytes: int = 0
    """What the next attempts of that role ask for; 0 the same as before."""
    why: str = ""
    """In place of a failure: the members of the role changed."""


class JobRestarted(JobMachineEvent, frozen=True):
    """All roles restart: generation + 1. `cause` is None when a person asked."""

    cause: AttemptId | None
    not_before_ms: int
    budget: Budget
    failures: int = 0
    """Consecutive ones of the role, this one counted."""
    memory_bytes: int = 0
    """What the next attempts of that role ask for; 0 the same as before."""
    why: str = ""
    """In place of a failure: the members of the role changed."""
    is_rerun: bool = False
    """A budget was used up: charges are forgotten, and who had failed runs again."""


class GateReached(JobMachineEvent, frozen=True):
    """The start gate of the job is reached."""

    why: str = ""
    """Who is there; "" in older journals."""


class StartTimedOut(JobMachineEvent, frozen=True):
    """The job did not start in time; everything is released."""

    message: str
    not_before_ms: int
    is_exhausted: bool
    """The infrastructure budget is used up: the verdict is PlacementTimeout."""


class FellBelowMinimum(JobMachineEvent, frozen=True):
    """A role has fewer present replicas than its minimum."""

    role: str
    present: int


class MovesDecided(JobMachineEvent, frozen=True):
    """These replicas are on the way off a node that is being emptied: all that are now."""

    spans: tuple[Span, ...]


class LimitNeared(JobMachineEvent, frozen=True):
    """Trainers are warned of a limit before it is reached."""

    limit: str
    """`deadline` or `replicaHours`."""
    mark: int
    """What was warned of: journal time of the deadline, or milliseconds of all trainers."""
    left_ms: int
    """At the rate of then."""


class VerdictReached(JobMachineEvent, frozen=True):
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


class DrainEnded(JobMachineEvent, frozen=True):
    """The helpers ended, or were cut off."""

    cut_off: tuple[Span, ...]


class AllGone(JobMachineEvent, frozen=True):
    """No attempt of the job is left."""
