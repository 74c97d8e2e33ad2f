"""The documents about a job: Job, Replica, Event, and the lists they come in.

Field by field as in docs/api-documents.md §1 to §4 and §7. A field that is not known is absent,
which is what UNSET becomes; `null` is never sent. OpenAPI is made from these types.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, Struct, UnsetType

Json = Any  # a job file's own values, as deep as they go; msgspec has no recursive alias
Text = str | UnsetType
Number = int | UnsetType


class _Document(Struct, frozen=True, kw_only=True, rename="camel"):
    """A JSON object with keys in camel case."""


class RoleStatus(_Document, frozen=True, kw_only=True):
    """How many replicas of a role are where."""

    replicas: int
    min: int
    waiting: int
    delayed: int
    active: int
    registered: int
    running: int
    ready: int
    completed: int
    failed: int
    retired: int
    attempts: int
    """Begun so far, over all replicas."""
    success: str
    restart_unit: str


class BudgetStatus(_Document, frozen=True, kw_only=True):
    """What was charged within the budget's time, of the role that is nearest its limit."""

    used: int
    limit: int
    window_ms: int
    role: Text = UNSET
    """Absent: charged to the job as such."""


class Budgets(_Document, frozen=True, kw_only=True):
    """Both budgets."""

    application: BudgetStatus
    infrastructure: BudgetStatus


class StreamStatus(_Document, frozen=True, kw_only=True):
    """A stream, as far as its job's status shows it."""

    phase: str
    paused: bool
    epoch: int
    epochs: int
    finite: bool
    unit: str
    total: Number = UNSET
    done: int
    leased: int
    skipped: int
    dead: int
    expected: Number = UNSET
    per_second: Number = UNSET
    eta_ms: Number = UNSET
    repeated_max: int
    savepoints: int
    lag: Number = UNSET
    """Offsets of partitions that are not done yet; absent without any."""


class ProgressStatus(_Document, frozen=True, kw_only=True):
    """What the trainers say of their own progress; live."""

    step: int
    epoch: int
    at: str
    metrics: Mapping[str, float]


class Condition(_Document, frozen=True, kw_only=True):
    """A statement about the job that holds or does not."""

    type: str
    status: bool
    reason: Text = UNSET
    message: Text = UNSET
    since: Text = UNSET


class FirstCause(_Document, frozen=True, kw_only=True):
    """The end that a person should look at first."""

    attempt: str
    cause: str
    exit_code: Number = UNSET
    signal: Number = UNSET
    at: str
    last_line: str
    evidence: tuple[str, ...]
    ends: int = 1
    """Of the same trouble so far, this one counted."""


class Verdict(_Document, frozen=True, kw_only=True):
    """How the job ended, and by which rule."""

    phase: str
    reason: str
    message: str
    rule: str
    decided_by: str
    rows_read: Number = UNSET
    rows_skipped: Number = UNSET


class QueueStatus(_Document, frozen=True, kw_only=True):
    """Where in its queue the job waits."""

    name: str
    position: int
    """1 is next."""
    ahead: int


class CheckpointStatus(_Document, frozen=True, kw_only=True):
    """The newest whole checkpoint that a trainer wrote."""

    step: int
    path: str
    savepoint: Text = UNSET


class ReplicaHours(_Document, frozen=True, kw_only=True):
    """How long trainers ran together, where the job bounds it."""

    used_ms: int
    limit_ms: int


class JobStatus(_Document, frozen=True, kw_only=True):
    """What is so with a job."""

    phase: str
    since: str
    reason: Text = UNSET
    message: Text = UNSET
    then: Text = UNSET
    generation: int
    launcher: str
    spec_version_running: int
    queued_at: Text = UNSET
    admitted_at: Text = UNSET
    started_at: Text = UNSET
    ended_at: Text = UNSET
    duration_ms: Number = UNSET
    deadline_at: Text = UNSET
    queue: QueueStatus | UnsetType = UNSET
    roles: Mapping[str, RoleStatus]
    budgets: Budgets
    data: Mapping[str, StreamStatus]
    progress: ProgressStatus | UnsetType = UNSET
    checkpoint: CheckpointStatus | UnsetType = UNSET
    replica_hours: ReplicaHours | UnsetType = UNSET
    conditions: tuple[Condition, ...]
    first_cause: FirstCause | UnsetType = UNSET
    verdict: Verdict | UnsetType = UNSET


class Job(_Document, frozen=True, kw_only=True, tag_field="kind", tag="Job"):
    """A job: what was asked for and what is so. Replicas are a list of their own."""

    uid: str
    name: str
    namespace: str
    resource_version: str
    spec_version: int
    created_at: str
    labels: Mapping[str, str]
    submitted_by: str
    spec: Mapping[str, Json]
    status: JobStatus


class OutcomeStatus(_Document, frozen=True, kw_only=True):
    """How an attempt ended."""

    cause: str
    budget: Text = UNSET
    exit_code: Number = UNSET
    signal: Number = UNSET
    stop_reason: Text = UNSET
    oom_kills: int
    peak_rss_bytes: int
    evidence: tuple[str, ...]
    last_line: str
    rule: Text = UNSET
    """That decided what follows: `failure[1]`."""


class AttemptStatus(_Document, frozen=True, kw_only=True):
    """One run of a replica."""

    attempt: int
    generation: int
    phase: str
    node: Text = UNSET
    host: Text = UNSET
    ports: Mapping[str, int] | UnsetType = UNSET
    requested_at: Text = UNSET
    launched_at: Text = UNSET
    registered_at: Text = UNSET
    started_at: Text = UNSET
    ended_at: Text = UNSET
    gone_at: Text = UNSET
    ready: bool
    waiting_for: Text = UNSET
    stopping: Text = UNSET
    """Reason of the stop that is being carried out."""
    quarantined: bool | UnsetType = UNSET
    memory_bytes: Number = UNSET
    """Its limit, where that is another than its role's."""
    hang: Text = UNSET
    """Evidence that it hangs, or hung when it was stopped."""
    pid: Number = UNSET
    """Of the trainer, on its host."""
    outcome: OutcomeStatus | UnsetType = UNSET
    handle: Mapping[str, str] | UnsetType = UNSET


class ReplicaUsage(_Document, frozen=True, kw_only=True):
    """What a replica uses; live."""

    at: str
    cpu_milli: Number = UNSET
    rss_bytes: int
    net_in_bytes_per_s: Number = UNSET
    net_out_bytes_per_s: Number = UNSET
    gpus: tuple[Mapping[str, int | str], ...] = ()


class Replica(_Document, frozen=True, kw_only=True, tag_field="kind", tag="Replica"):
    """A slot of a role with its newest attempts."""

    job: str
    job_uid: str
    namespace: str
    name: str
    role: str
    index: int
    resource_version: str
    phase: str
    not_before: Text = UNSET
    attempts: tuple[AttemptStatus, ...]
    usage: ReplicaUsage | UnsetType = UNSET
    progress: ProgressStatus | UnsetType = UNSET
    leases: int
    silent_since: Text = UNSET


class Event(_Document, frozen=True, kw_only=True, tag_field="kind", tag="Event"):
    """A fact that a person would tell a colleague."""

    id: str
    resource_version: str
    at: str
    namespace: str
    job: str
    job_uid: str
    level: str
    reason: str
    subject: str
    by: str
    message: str
    cause: Text = UNSET
    details: Mapping[str, str | int]


class JobList(_Document, frozen=True, kw_only=True, tag_field="kind", tag="JobList"):
    """A page of jobs."""

    resource_version: str
    items: tuple[Job, ...]
    cursor: Text = UNSET


class ReplicaList(_Document, frozen=True, kw_only=True, tag_field="kind", tag="ReplicaList"):
    """A page of replicas."""

    resource_version: str
    items: tuple[Replica, ...]
    cursor: Text = UNSET


class EventList(_Document, frozen=True, kw_only=True, tag_field="kind", tag="EventList"):
    """A page of events."""

    resource_version: str
    items: tuple[Event, ...]
    cursor: Text = UNSET


class Plan(_Document, frozen=True, kw_only=True, tag_field="kind", tag="Plan"):
    """What a job file comes to, without submitting it."""

    spec: Mapping[str, Json]
    origins: Mapping[str, str]
    diff: tuple[Mapping[str, Json], ...]
    names: Mapping[str, Mapping[str, str]]
    environment: Mapping[str, Mapping[str, str]]
    start: tuple[str, ...]
    """Who starts when, in the order in which they start."""
    success: str
    failure: tuple[str, ...]
    would_wait: Mapping[str, Json] | UnsetType = UNSET
    warnings: tuple[str, ...]
    recommendations: tuple[str, ...]


class Deleted(_Document, frozen=True, kw_only=True, tag_field="kind", tag="Deleted"):
    """What is left to say of an object that went."""

    uid: str
    name: str
    namespace: str
    resource_version: str
