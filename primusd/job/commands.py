"""Commands: what `plan` may ask for, kept in motion until it is not planned any more."""

from msgspec import Struct

from primusd.job.ids import AttemptId


class LaunchAttempt(Struct, frozen=True, tag=True):
    """Start the executor of an attempt on its node; idempotent."""

    attempt: AttemptId
    node: str


class StopAttempt(Struct, frozen=True, tag=True):
    """End all of an attempt now: its executor did not within grace + 10 s."""

    attempt: AttemptId
    node: str
    not_before_ms: int
    """Journal time before which the executor still has its chance."""
    deadline_ms: int
    """Journal time at which the effect says StopFailed."""


class ReleaseAttempt(Struct, frozen=True, tag=True):
    """The end is recorded: let go of what is left of it."""

    attempt: AttemptId
    node: str
    not_before_ms: int
    deadline_ms: int


class ListUnits(Struct, frozen=True, tag=True):
    """List a stream's sources."""

    job: str
    stream: str
    listed: int
    """Units known already."""


class FollowTopics(Struct, frozen=True, tag=True):
    """Look for partitions of a stream's topics, and how far they reach."""

    job: str
    stream: str


class CarryPositions(Struct, frozen=True, tag=True):
    """Read the positions that a stream starts at: its spec's `restore` or `staging`."""

    job: str
    stream: str


class KeepPositions(Struct, frozen=True, tag=True):
    """Write the last positions of a closed stream to its spec's `staging` folder."""

    job: str
    stream: str


class WakeAt(Struct, frozen=True, tag=True):
    """Propose TimePassed to the machine at this journal time."""

    machine: str
    at_ms: int


class PublishPeers(Struct, frozen=True, tag=True):
    """Make the peers document of a generation, so that executors can fetch it."""

    job: str
    generation: int
    revision: int


class DropRecord(Struct, frozen=True, tag=True):
    """Remove logs, blobs and archive rows of a job whose record goes."""

    job: str


Command = (
    LaunchAttempt
    | StopAttempt
    | ReleaseAttempt
    | ListUnits
    | FollowTopics
    | CarryPositions
    | KeepPositions
    | WakeAt
    | PublishPeers
    | DropRecord
)
