"""Events of a stream's ledger (docs/state-machines.md §8 to §10)."""

from msgspec import Struct

from primusd.datafeed.ledger.listed import ChangedFile
from primusd.datafeed.ledger.model import CarriedUnit
from primusd.datafeed.protocol import FeedReport, Held, Mark, Unit
from primusd.job.ids import AttemptId
from primusd.job.spec import StreamSpec


class _Event(Struct, frozen=True, array_like=True, tag=True):
    """What all events share: msgpack arrays that begin with the class name."""


class StreamDeclared(_Event, frozen=True):
    """A consequence of JobSubmitted: makes the machine."""

    job: str
    stream: str
    """Name of the machine: `clicks`, or `clicks@evaluator` for a pass of its own."""
    spec: StreamSpec
    roles: tuple[str, ...]
    reader_count: int = 0
    """Trainers that read it; 0 in journals from before."""


class Scan(Struct, frozen=True, array_like=True):
    """What a look at folders that were listed before came to."""

    has_ended: bool
    """It looked at all of them; `units` are the last that came late, until the next one."""
    is_at_end: bool = False
    """Nothing else is to be listed before the next one."""
    changed: tuple[ChangedFile, ...] = ()
    """Files that are known, and not what they were."""


class UnitsListed(_Event, frozen=True):
    """A listing's next units, in order."""

    units: tuple[Unit, ...]
    first: int
    """Number of the first of them; what is known already is left out."""
    is_complete: bool
    missing: tuple[str, ...] = ()
    """Folders by time that did not come and were passed over, told until units move `first`."""
    scan: Scan | None = None
    """Where sources say `rescan`; None: the listing goes on, behind what is known."""


class ListingFailed(_Event, frozen=True):
    """The sources could not be listed."""

    text: str
    is_permanent: bool


class TopicsFollowed(_Event, frozen=True):
    """Partitions that were found, and how far all of them reach by now."""

    units: tuple[Unit, ...]
    """Found since the last time."""
    firsts: tuple[int, ...]
    """Where each of `units` begins to be read."""
    ends: tuple[tuple[int, int], ...]
    """Number of a partition and where it ends, of those that are longer than they were; those of
    `units` are numbered behind all units."""
    first: int
    """Number of the first of `units`; with fewer units known than that it is out of place."""
    is_complete: bool
    """No partition comes any more, and none gets longer."""


class ReaderOpened(_Event, frozen=True):
    """An attempt that reads this stream registered."""

    attempt: AttemptId
    incarnation: str
    is_awaited: bool = False
    """No step is whole before its trainer has opened the stream; False in journals from before."""


class ReaderEnded(_Event, frozen=True):
    """It ended; `positions` come from its exit record."""

    attempt: AttemptId
    positions: tuple[Held, ...]
    has_completed: bool
    was_own_fault: bool
    """The end is charged to the application budget."""
    marks: tuple[tuple[str, Mark], ...] = ()
    """That no report of its had told; of all its streams, each by name."""


class BeatReceived(_Event, frozen=True):
    """A reader's report about this stream."""

    attempt: AttemptId
    incarnation: str
    report: FeedReport


class LeaseExpired(_Event, frozen=True):
    """A holder was silent for the lease time."""

    attempt: AttemptId
    tokens: tuple[int, ...]
    """Empty: all it holds."""


class TaskSkipRequested(_Event, frozen=True):
    """A person leaves a range out."""

    epoch: int
    unit: int
    lo: int
    reason: str


class TaskRetryRequested(_Event, frozen=True):
    """A person takes a range in again."""

    epoch: int
    unit: int
    lo: int


class PauseRequested(_Event, frozen=True):
    """Nothing is granted for now."""

    for_suspension: bool = False


class ResumeRequested(_Event, frozen=True, tag="StreamResumeRequested"):
    """Grants go on."""

    for_suspension: bool = False


class SavepointRequested(_Event, frozen=True):
    """Positions are to be kept under a name."""

    name: str


class CheckpointKept(_Event, frozen=True):
    """A trainer wrote a whole checkpoint that names one of these positions."""

    name: str


class SavepointDropped(_Event, frozen=True):
    """A savepoint is not needed any more."""

    name: str


class RestoreRequested(_Event, frozen=True):
    """Positions go back to a savepoint."""

    name: str


class SavepointImported(_Event, frozen=True):
    """Positions from outside are to be kept under a name."""

    name: str
    units: tuple[CarriedUnit, ...]
    whole_epochs: int = 0
    """Epochs in which every unit is done."""


class PositionsCarried(_Event, frozen=True):
    """What the spec's `restore` or `staging` names: where the stream starts."""

    units: tuple[CarriedUnit, ...]
    """The next of them."""
    first: int
    """Number of the first of them; what is known already is left out."""
    is_complete: bool
    whole_epochs: int = 0
    source: str = ""
    """Where they come from, as people read it; "" there was nothing."""


class CarryingFailed(_Event, frozen=True):
    """It could not be read."""

    text: str
    is_permanent: bool
    is_waiting: bool = False
    """Another job still holds it: that is no failure, and is looked at again at once."""


class PositionsKept(_Event, frozen=True):
    """The last positions of a closed stream are in its `staging` folder, or cannot be."""

    text: str = ""
    """Why they are not; "" they are."""


class StreamClosed(_Event, frozen=True):
    """The job is final."""


# From settle.


class Grant(Struct, frozen=True, array_like=True):
    """A range given to a reader."""

    epoch: int
    unit: int
    lo: int
    hi: int
    token: int
    attempt: AttemptId


class Granted(_Event, frozen=True):
    """Ranges were leased to readers."""

    grants: tuple[Grant, ...]


class Trim(Struct, frozen=True, array_like=True):
    """A holder is asked to end a lease at the first cut from `at` on; -1: it no longer need."""

    attempt: AttemptId
    token: int
    at: int


class TrimAsked(_Event, frozen=True):
    """Holders are asked to end earlier."""

    trims: tuple[Trim, ...]


class StruckOut(_Event, frozen=True):
    """A range whose readers died on it is left out."""

    epoch: int
    unit: int
    lo: int
    hi: int
    text: str


class EpochEnded(_Event, frozen=True):
    """A pass is complete: every position is consumed or skipped."""

    epoch: int
    consumed: int
    skipped: int


class StreamEnded(_Event, frozen=True):
    """The stream is Done: all listed, all tasks Done or Dead within the budget."""


class StreamBroken(_Event, frozen=True):
    """The stream is Failed."""

    text: str


class MarkingTimedOut(_Event, frozen=True):
    """A savepoint was not sealed in time."""

    name: str
    is_at_end: bool = False
    """All was taken: who has not marked the step gets no rows to come to it with."""


class TailReached(_Event, frozen=True):
    """Trainers that step together (`tail`): an epoch has no more rows for some, or for all."""

    epoch: int
    limit: int
    """Batches that each of them has of it; -1 not known yet, others still read."""
    padding: tuple[AttemptId, ...] = ()
    """Readers whose trainers repeat their last batch from here on."""


StreamEvent = (
    StreamDeclared
    | UnitsListed
    | ListingFailed
    | TopicsFollowed
    | ReaderOpened
    | ReaderEnded
    | BeatReceived
    | LeaseExpired
    | TaskSkipRequested
    | TaskRetryRequested
    | PauseRequested
    | ResumeRequested
    | SavepointRequested
    | CheckpointKept
    | SavepointDropped
    | RestoreRequested
    | SavepointImported
    | PositionsCarried
    | CarryingFailed
    | PositionsKept
    | StreamClosed
    | Granted
    | TrimAsked
    | StruckOut
    | EpochEnded
    | StreamEnded
    | StreamBroken
    | MarkingTimedOut
    | TailReached
)
