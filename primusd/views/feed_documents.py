"""The documents about data: Stream, its tasks, and the proof (docs/api-documents.md §5)."""

from collections.abc import Mapping

from msgspec import UNSET, Struct, UnsetType

from primusd.views.documents import Number, Text


class _Document(Struct, frozen=True, kw_only=True, rename="camel"):
    """A JSON object with keys in camel case."""


class RescanStatus(_Document, frozen=True, kw_only=True):
    """How folders that were listed are looked at again (`rescan`)."""

    count: int
    """Looks that came to their end."""
    late: int
    """Files that they brought."""
    last_at: Text = UNSET
    next_at: Text = UNSET
    """Absent while one is under way, and once none follows."""
    changed: tuple[str, ...] = ()
    """Files that are not what they were when they were listed, the first 100."""


class UnitsStatus(_Document, frozen=True, kw_only=True):
    """Files and partitions of a stream."""

    listed: int
    complete: bool
    waiting_for: tuple[str, ...]
    missing: tuple[str, ...] = ()
    """Folders by time that did not come and were passed over, the newest 100."""
    rescan: RescanStatus | UnsetType = UNSET
    """Absent where no source says it."""


class PositionsStatus(_Document, frozen=True, kw_only=True):
    """Where the rows or bytes of this epoch are."""

    unit: str
    """`rows`, `bytes`, `offsets`; `positions` where they differ."""
    total: Number = UNSET
    """Absent while not every unit has been opened."""
    done: int
    leased: int
    waiting: Number = UNSET
    skipped: int
    dead: int
    expected: Number = UNSET
    """The total; while not every unit has been opened, guessed from the units' bytes."""
    left_out: Number = UNSET
    """Rows of all epochs that filter, sample, transform left out; they count as done, where any."""


class SourceStatus(_Document, frozen=True, kw_only=True):
    """A source of a stream, in this epoch."""

    source: int
    """From 0, as the job file lists them."""
    name: str
    """Its files, or its topics."""
    units: int
    """Files and partitions listed."""
    bytes: Number = UNSET
    """Of its files."""
    done: int
    """Positions done or left out."""
    total: Number = UNSET
    """Absent while not every unit has been opened."""
    per_second: Number = UNSET
    """Of those who read it now."""
    eta_ms: Number = UNSET
    lag: Number = UNSET
    """Of its partitions; absent without any."""


class LeftOut(_Document, frozen=True, kw_only=True):
    """What is left out for one reason."""

    ranges: int
    positions: int


class FeedNote(_Document, frozen=True, kw_only=True):
    """Something that keeps a stream from being read as fast as it could, or soon will."""

    reason: str
    """`CredentialExpires`, `CredentialExpired`, `SlowReader` or `Skew`."""
    subject: str
    """A replica, a source, a file or a partition."""
    message: str
    numbers: Mapping[str, int]


class ReaderStatus(_Document, frozen=True, kw_only=True):
    """An attempt that reads."""

    replica: str
    attempt: int
    leases: int
    per_second: Number = UNSET
    oldest_ack_ms: Number = UNSET
    waited_percent: Number = UNSET
    """Of the time between its last two reports: the trainer waited for data."""
    blocked_percent: Number = UNSET
    trouble: Text = UNSET
    """Why it reads nothing now, though it tries again: what the storage says."""
    rows: Number = UNSET
    """That its trainer took, in all."""
    bytes_per_second: Number = UNSET
    """That rows take of memory, over the last half minute."""
    buffered_bytes: Number = UNSET
    """Read ahead."""
    left_ms: Number = UNSET
    """Until it is through with what it holds, at its speed."""


class DeadTask(_Document, frozen=True, kw_only=True):
    """A range that is left out."""

    epoch: int
    unit: int
    location: str
    lo: int
    hi: Number = UNSET
    """Absent: to an end that nobody knows."""
    fault: str
    """`data`, `changed`, `vanished`, `lost`, `struckOut` or `skipped`."""
    text: str
    by: str
    head: Text = UNSET
    """First bytes, in hexadecimal digits."""
    at: Text = UNSET


class PartitionStatus(_Document, frozen=True, kw_only=True):
    """A partition of a topic, in offsets."""

    location: str
    """`topic/partition`."""
    first: int
    """Where the stream began in it."""
    position: int
    """All below is done or left out."""
    end: int
    """Where it ends, as far as it may be read by now."""
    lag: int
    """Offsets up to the end that are not done."""
    produced_per_second: Number = UNSET
    read_per_second: Number = UNSET


class SavepointStatus(_Document, frozen=True, kw_only=True):
    """Positions under a name."""

    name: str
    phase: str
    revision: str
    sealed_at: Text = UNSET
    done: int
    origin: str = "asked"
    """`asked`, `mark`, `timer`, `suspend` or `imported`."""
    step: Number = UNSET


class Savepoint(_Document, frozen=True, kw_only=True, tag_field="kind", tag="StreamSavepoint"):
    """Positions under a name."""

    job: str
    stream: str
    name: str
    phase: str
    origin: str
    """`asked`, `mark`, `timer`, `suspend` or `imported`."""
    revision: str
    sealed_at: Text = UNSET
    step: Number = UNSET
    """Of the trainers that marked it."""
    generation: int
    epochs_done: int
    done: int
    """Positions taken."""
    skipped: int
    """Positions left out."""
    units_done: int
    """Files that were read to their end, in the pass it is in."""
    units_open: int
    """Files of which a part was read."""


class SavepointList(_Document, frozen=True, kw_only=True, tag_field="kind", tag="SavepointList"):
    """All savepoints of a stream, the oldest first."""

    resource_version: str
    items: tuple[Savepoint, ...]


class StreamMoment(_Document, frozen=True, kw_only=True):
    """Something that happened to a stream."""

    at: Text = UNSET
    revision: str
    reason: str
    by: str
    message: str


class StreamHistory(_Document, frozen=True, kw_only=True, tag_field="kind", tag="StreamHistory"):
    """What happened to a stream: the newest 200, the oldest first."""

    job: str
    stream: str
    items: tuple[StreamMoment, ...]


class Stream(_Document, frozen=True, kw_only=True, tag_field="kind", tag="Stream"):
    """A stream of a job."""

    job: str
    job_uid: str
    namespace: str
    name: str
    resource_version: str
    phase: str
    paused: bool
    delivery: str
    epoch: int
    epochs: int
    finite: bool
    units: UnitsStatus
    positions: PositionsStatus
    readers: tuple[ReaderStatus, ...]
    dead_tasks: tuple[DeadTask, ...]
    """The first 100."""
    savepoints: tuple[SavepointStatus, ...]
    repeated_max: int
    """Most positions that may have come twice."""
    strikes: int
    failure: Text = UNSET
    per_second: Number = UNSET
    eta_ms: Number = UNSET
    lag: Number = UNSET
    """Of all partitions together; absent without any."""
    partitions: tuple[PartitionStatus, ...] | UnsetType = UNSET
    """The first 1,000; absent without any."""
    bytes_per_second: Number = UNSET
    """That rows take of memory, over all readers."""
    buffered_bytes: Number = UNSET
    """Read ahead, over all readers."""
    waits: Text = UNSET
    """Who waits for whom, trainers for data or data for trainers: a sentence."""
    notes: tuple[FeedNote, ...] | UnsetType = UNSET
    """Slow readers and, but in watches, skew; absent without any."""
    sources: tuple[SourceStatus, ...] | UnsetType = UNSET
    """Where there are several; absent with more than 10,000 files, and in watches."""
    left_out: Mapping[str, LeftOut] | UnsetType = UNSET
    """By reason, as `fault` of a dead task; absent when nothing is."""


class StreamList(_Document, frozen=True, kw_only=True, tag_field="kind", tag="StreamList"):
    """All streams of a job."""

    resource_version: str
    items: tuple[Stream, ...]
    cursor: Text = UNSET


class Task(_Document, frozen=True, kw_only=True, tag_field="kind", tag="Task"):
    """A range of a unit that is not finished, or is left out."""

    phase: str
    """`leased`, `waiting` or `dead`."""
    epoch: int
    unit: int
    location: str
    lo: int
    hi: Number = UNSET
    """Absent: to the end of a unit that nobody has opened yet."""
    position: Number = UNSET
    replica: Text = UNSET
    token: Number = UNSET
    fault: Text = UNSET
    text: Text = UNSET
    by: Text = UNSET
    """Who read it, or left it out."""
    head: Text = UNSET
    """First bytes, in hexadecimal digits."""


class TaskList(_Document, frozen=True, kw_only=True, tag_field="kind", tag="TaskList"):
    """A page of tasks."""

    resource_version: str
    items: tuple[Task, ...]
    cursor: Text = UNSET


class Flaw(_Document, frozen=True, kw_only=True):
    """A range that the ledger cannot account for, or accounts for twice."""

    epoch: int
    unit: int
    location: str
    lo: int
    hi: int


class Verification(_Document, frozen=True, kw_only=True, tag_field="kind", tag="Verification"):
    """Whether every position is accounted for exactly once, and none is left once it is over."""

    ok: bool
    stream: str
    unit: str
    epochs: int
    listed: Number = UNSET
    """Positions of all epochs together; absent while not all units were opened."""
    done: int
    leased: int
    waiting: Number = UNSET
    skipped: int
    dead: int
    repeated_max: int
    rewound: int = 0
    """Positions that were taken, and that restores took back: they came again on purpose."""
    carried: int = 0
    """Of those done, the ones that came from another job with a savepoint."""
    left_out: Mapping[str, int] = {}
    """Ranges that are skipped or dead, counted by why."""
    gaps: tuple[Flaw, ...]
    overlaps: tuple[Flaw, ...]
    complete: bool
    """Whether nothing is left to do."""
    text: Text = UNSET
    """What does not add up though every range is there."""


class VerificationList(
    _Document, frozen=True, kw_only=True, tag_field="kind", tag="VerificationList"
):
    """One verification per stream."""

    ok: bool
    items: tuple[Verification, ...]
