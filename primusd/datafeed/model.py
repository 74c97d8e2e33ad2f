"""The state of a stream: what was listed, what is done, who holds what. Frozen values."""

from collections.abc import Mapping

from msgspec import Struct

from primusd.datafeed.protocol import Unit
from primusd.job.ids import AttemptId
from primusd.job.spec import StreamSpec

STREAM_PHASES = ("Opening", "Serving", "Done", "Failed", "Closed")


class Range(Struct, frozen=True, array_like=True, order=True):
    """Positions lo to hi, hi excluded."""

    lo: int
    hi: int


class DeadRange(Struct, frozen=True, array_like=True):
    """A range that is left out: struck out, in dead letters, or skipped by a person."""

    lo: int
    hi: int
    kind: str
    """`data`, `changed`, `vanished`, `struckOut` or `skipped`."""
    text: str
    by: str
    head: bytes = b""
    at_ms: int = 0


class Strike(Struct, frozen=True, array_like=True):
    """A holder that died of its own fault with the position unmoved."""

    lo: int
    hi: int
    readers: tuple[str, ...]
    """Attempt labels, each once."""


class UnitState(Struct, frozen=True, array_like=True):
    """What is known of one unit in one epoch: finished ranges, strikes, dead ranges."""

    below: int = 0
    """Everything below is finished."""
    done: tuple[Range, ...] = ()
    """Finished ranges above `below`, sorted, disjoint."""
    dead: tuple[DeadRange, ...] = ()
    strikes: tuple[Strike, ...] = ()


class LeaseState(Struct, frozen=True, array_like=True):
    """An open lease."""

    token: int
    attempt: AttemptId
    epoch: int
    unit: int
    lo: int
    hi: int
    position: int
    granted_position: int
    """Where it began: a strike needs it unmoved."""
    granted_ms: int
    trim: int = -1


class ReaderState(Struct, frozen=True, array_like=True):
    """A reader: an attempt with its incarnation."""

    attempt: AttemptId
    incarnation: str
    want: int = 0
    rows_per_s: int = 0
    moved_ms: int = 0
    """Journal time of its last acknowledgement."""


class EpochState(Struct, frozen=True, array_like=True):
    """One pass over the units; a unit without an entry is untouched."""

    number: int
    units: Mapping[int, UnitState] = {}
    first_open: int = 0
    """All units below are finished in this epoch."""


class UnitEntry(Struct, frozen=True, array_like=True):
    """A pinned unit with what its first reader found inside."""

    unit: Unit
    size: int
    """Positions in it: bytes, or rows once they are known; -1 not yet."""
    cuts: tuple[int, ...] = ()


class Savepoint(Struct, frozen=True, array_like=True):
    """Positions under a name."""

    name: str
    phase: str
    """Marking, Sealed or Failed."""
    revision: int
    sealed_ms: int
    epochs: tuple[EpochState, ...]
    done: int


class Stream(Struct, frozen=True, array_like=True):
    """A stream machine."""

    job: str
    name: str
    spec: StreamSpec
    roles: tuple[str, ...]
    phase: str
    phase_since_ms: int
    units: tuple[UnitEntry, ...] = ()
    is_listed: bool = False
    epochs: tuple[EpochState, ...] = ()
    """Those that are not finished, the current one first."""
    epochs_done: int = 0
    leases: Mapping[int, LeaseState] = {}
    """By token."""
    last_token: int = 0
    readers: Mapping[AttemptId, ReaderState] = {}
    paused_by_person: bool = False
    paused_by_suspension: bool = False
    savepoints: tuple[Savepoint, ...] = ()
    consumed: int = 0
    """Positions taken in finished epochs and in this one."""
    skipped: int = 0
    dead_count: int = 0
    repeated: int = 0
    """Positions granted again after a holder was lost: the most that may have come twice."""
    failure: str = ""
    waiting_for: tuple[str, ...] = ()
    """What listing waits for, or why it failed last."""
    next_listing_ms: int = 0
    changed_revision: int = 0

    @property
    def is_paused(self) -> bool:
        """Whether nothing is granted for now."""
        return self.paused_by_person or self.paused_by_suspension
