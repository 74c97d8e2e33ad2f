"""What readers and the daemon say about data, inside reports and orders (docs/protocol.md §8)."""

from collections.abc import Mapping

from msgspec import Struct


class Unit(Struct, frozen=True, array_like=True):
    """A pinned file or partition: all that a reader needs to read a range of it."""

    kind: str
    """`file` or `kafka`."""
    location: str
    """URL or absolute path; `topic/partition` for Kafka."""
    byte_count: int
    pin: str
    """`mtime_ns` or an etag; "" none."""
    options: Mapping[str, str] = {}
    """Reader settings: `format`, `columns` (comma separated), `compression`."""


class Held(Struct, frozen=True, array_like=True):
    """A lease as its reader sees it."""

    stream: str
    epoch: int
    unit: int
    lo: int
    token: int
    position: int
    """Taken by the trainer; equal to `hi` means done."""
    hi: int
    """As the reader understands it; lower than granted means trimmed."""
    delivered: int = -1
    """Handed to the trainer: of a lease given back, what lies from `position` to here may have
    been used all the same, and comes twice. -1 nothing is said.
    """
    left_out: int = 0
    """Rows from `lo` to `position` that the stream's sample left out."""


class Mark(Struct, frozen=True, array_like=True):
    """exactlyOnce: the reader's positions at a step of the trainer."""

    step: int
    positions: tuple[Held, ...]


class FeedAsk(Struct, frozen=True, array_like=True):
    """A savepoint or a restore that the trainer asks for; repeated until answered."""

    id: int
    kind: str
    """`savepoint` or `restore`."""
    name: str


class BadRange(Struct, frozen=True, array_like=True):
    """A range that could not be read; repeated until `Orders.report` covers it."""

    held: Held
    lo: int
    hi: int
    kind: str
    """`transient`, `expired` (a credential is no longer good), `data`, `changed` or `vanished`."""
    text: str
    head: bytes = b""
    """The first 64 bytes."""


class Credential(Struct, frozen=True, array_like=True):
    """What a reader shows a storage, and how long that is good for; never the secret itself."""

    name: str
    """Of what kind, whose, and where it is from."""
    issued_ms: int
    """Milliseconds since the Unix epoch, as the storage's cluster has them; 0 not known."""
    expires_ms: int
    """Likewise; 0 not known."""
    remedy: str
    """What replaces it."""


class UnitMap(Struct, frozen=True, array_like=True):
    """Inner cuts of a unit, known once it was opened."""

    unit: int
    cuts: tuple[int, ...]
    """Positions where a range may be cut (row groups); the last one is the end of the unit."""
    rows: int
    """-1 unknown."""


class Steps(Struct, frozen=True, array_like=True):
    """How many batches a reader can give, for trainers that step together (`tail`)."""

    epoch: int
    """That they are of."""
    ready: int
    """Whole batches of it that were handed over or are in hand."""
    rows: int
    """Rows in hand that fill no batch."""
    is_dry: bool
    """Nothing of what it holds is left to read."""
    is_full: bool
    """Some is, and there is no room for it before its trainer takes more."""
    seen: int
    """Highest token that it knows."""
    has_ended: bool = False
    """Its trainer was told how the epoch ends."""
    offer: tuple[int, int, int] = (0, 0, 0)
    """Token and place from which it could give up a lease to who has less, and how many positions
    that is; 0 nothing."""
    kept: int = 0
    """Token of a lease that it was asked to end earlier, and of which it needs all by now."""


class StepLimit(Struct, frozen=True, array_like=True):
    """How many batches of an epoch each trainer may have by now; the same for all of them."""

    epoch: int
    limit: int
    is_final: bool = False
    """There are no more in this epoch."""
    pads: bool = False
    """This reader gets no more rows: up to the limit its trainer repeats its last batch."""


class FeedReport(Struct, frozen=True, array_like=True):
    """All that is so with one stream at one reader."""

    stream: str
    held: tuple[Held, ...]
    """All of them, every time."""
    want: int
    """Further leases it could start now."""
    returned: tuple[Held, ...] = ()
    """Given back at `position`; repeated until the answer's list lacks them."""
    bad: tuple[BadRange, ...] = ()
    mapped: tuple[UnitMap, ...] = ()
    marks: tuple[Mark, ...] = ()
    asks: tuple[FeedAsk, ...] = ()
    rows_per_s: int = 0
    buffered_bytes: int = 0
    waited_ms: int = 0
    """The trainer waited for data, since the last report."""
    blocked_ms: int = 0
    """The reader waited for the trainer."""
    trouble: str = ""
    """Why reading does not go on now, though it is tried again; "" it does."""
    rows: int = 0
    """The trainer took so many in all."""
    bytes_read: int = 0
    """What all rows that were read took of memory."""
    steps: Steps | None = None
    """Where trainers step together; None before this one opened the stream."""
    credentials: tuple[Credential, ...] = ()
    """That it shows its storages, as far as it is known when they end."""


class Lease(Struct, frozen=True, array_like=True):
    """A range that a reader may read, under a token."""

    epoch: int
    unit: int
    lo: int
    hi: int
    token: int
    position: int
    trim: int = -1
    """Please end at the first cut at or above this."""
    body: Unit | None = None
    """Unless the report already held it."""
    track: int = 0
    """The source that it is of, where sources are mixed; the lane, in strict order."""


class FeedOrders(Struct, frozen=True, array_like=True):
    """All that should be so with one stream at one reader."""

    stream: str
    leases: tuple[Lease, ...]
    """All it holds; what is missing is revoked."""
    state: str
    """`serve`, `wait`, `paused` or `end`."""
    window_rows: int
    """Most rows taken but not acknowledged; 0 no limit known yet."""
    wait_ms: int = 0
    sealed: tuple[int, str] = (-1, "")
    """Newest sealed step of this generation, and its savepoint."""
    answers: tuple[tuple[int, str], ...] = ()
    """`FeedAsk.id`, error ("" done)."""
    tracks: tuple[int, ...] = ()
    """Sources, or lanes of this reader, from which more may come in this epoch."""
    lanes: int = 0
    """Lanes that this reader serves, those at their end too; 0 the order is not strict."""
    unsealed: tuple[int, str] = (-1, "")
    """Newest marked step of this generation that has no savepoint, and why."""
    marked: tuple[tuple[int, str], ...] = ()
    """The last steps of this generation that were sealed, oldest first, and their savepoints: of
    those up to the newest of `sealed` and `unsealed` the others were not.
    """
    steps: StepLimit | None = None
    """Where trainers step together."""
