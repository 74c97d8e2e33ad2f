"""The state of a stream: what was listed, what is done, who holds what. Frozen values.

Maps that grow with readers or units are kept in shards (shards.py): an event copies one shard of
each map it touches, never a whole map.
"""

from collections.abc import Mapping

from msgspec import Struct

from primusd.datafeed.ledger.listed import Scanning, Units
from primusd.datafeed.ledger.queues import Queue
from primusd.datafeed.ledger.shards import Shards, find, items, values
from primusd.datafeed.protocol import StepLimit, Steps, Unit
from primusd.job.formats import has_bytes
from primusd.job.ids import AttemptId
from primusd.job.spec import StreamSpec

STREAM_PHASES = ("Opening", "Serving", "Done", "Failed", "Closed")

OPEN_END = 1 << 62
"""The end of a unit whose size nobody knows yet."""


class Range(Struct, frozen=True, array_like=True, order=True):
    """Positions lo to hi, hi excluded."""

    lo: int
    hi: int


class DeadRange(Struct, frozen=True, array_like=True):
    """A range that is left out: struck out, in dead letters, or skipped by a person."""

    lo: int
    hi: int
    kind: str
    """`data`, `changed`, `vanished`, `forgotten`, `struckOut` or `skipped`."""
    text: str
    by: str
    head: bytes = b""
    at_ms: int = 0


class Strike(Struct, frozen=True, array_like=True):
    """A range whose holders died of their own fault with the position unmoved; leased alone."""

    lo: int
    hi: int
    readers: tuple[str, ...]
    """Attempt labels, each once."""


class UnitState(Struct, frozen=True, array_like=True):
    """What is known of one unit in one epoch: ranges that are done, leased, dead or suspected."""

    fresh: int = 0
    """All from here on waits."""
    loose: tuple[Range, ...] = ()
    """What waits again below `fresh`, sorted, disjoint, merged."""
    leased: tuple[Range, ...] = ()
    """Open leases as granted or trimmed, sorted, disjoint."""
    done: tuple[Range, ...] = ()
    """Passed for good, sorted, disjoint, merged; dead ranges that were passed over are inside."""
    dead: tuple[DeadRange, ...] = ()
    """Sorted, disjoint."""
    strikes: tuple[Strike, ...] = ()
    tired: tuple[Range, ...] = ()
    """Ranges that a reader gave up on once because the storage did not answer."""


class UnitRange(Struct, frozen=True, array_like=True):
    """A range of a unit in an epoch."""

    epoch: int
    unit: int
    lo: int
    hi: int
    left_out: int = 0
    """Of its rows, those that the sample leaves out."""


class LeaseState(Struct, frozen=True, array_like=True):
    """An open lease; it began at `lo`, so an unmoved position equals `lo`."""

    token: int
    attempt: AttemptId
    epoch: int
    unit: int
    lo: int
    hi: int
    position: int
    granted_ms: int
    trim: int = -1
    left_out: int = 0
    """Rows up to the position that the stream's sample left out."""


class ReaderState(Struct, frozen=True, array_like=True):
    """A reader: an attempt with its incarnation, and all that it holds."""

    attempt: AttemptId
    incarnation: str
    leases: tuple[LeaseState, ...] = ()
    """Oldest grant first."""
    want: int = 0
    place: int = -1
    """Number in the queue of those that want something; -1 it wants nothing."""
    rows_per_s: int = 0
    """As it reported with its last acknowledgement."""
    per_s: int = 0
    """Positions acknowledged per second, smoothed over 10 s; 0 not known yet."""
    moved_ms: int = 0
    """Journal time of its last acknowledgement, or of the grant that ended its idleness."""
    answers: tuple[tuple[int, str], ...] = ()
    """FeedAsk.id and error ("" done) of asks it still repeats."""
    has_taken: bool = False
    """Its trainer took something since it opened the stream, or since the last restore."""
    has_opened: bool = False
    """Its trainer opened the stream."""
    is_lost: bool = False
    """exactlyOnce: its group was lost, or went on without it, so it gets nothing any more."""
    is_awaited: bool = False
    """Its trainer may open the stream yet, and no step is whole before."""
    in_hand: int = 0
    """exactlyOnce: given back though its trainer may have used it; twice if the group goes on."""
    steps: Steps | None = None
    """Where trainers step together: what it can give, as promised."""
    pads: bool = False
    """Its trainer repeats its last batch for the rest of the epoch."""

    @property
    def is_missed(self) -> bool:
        """Whether no step is whole before its trainer opened the stream, and marked it."""
        return self.is_awaited and not self.has_opened and not self.is_lost


class EpochState(Struct, frozen=True, array_like=True):
    """One pass over the units.

    A unit without an entry is untouched from `next_unit` on, and finished below it.
    """

    number: int
    unit_shards: Shards[int, UnitState] = ()
    """By unit number; those not finished, and those with dead ranges."""
    next_unit: int = 0
    """All units of a lower rank, of the first track, have been handed out whole at least once."""
    reopened: tuple[int, ...] = ()
    """Units below `next_unit` in which something waits again, sorted."""
    open_count: int = 0
    """Entries of units that are not finished."""
    consumed: int = 0
    """Positions taken."""
    skipped: int = 0
    """Positions left out; one for a range that reaches to an unknown end."""
    leased: int = 0
    """Positions in open leases, neither taken nor dead, as far as their ends are known."""
    unsized: int = 0
    """Positions, counted as above, of units that finished without their size ever known."""
    unsized_units: int = 0
    turn: int = 0
    """Partitions take turns: the next one is asked from this number on."""
    cursors: tuple[int, ...] = ()
    """`next_unit` of the tracks but the first (`tracks.py`), where there are several."""
    left_out: int = 0
    """Rows that the stream's sample left out; they are taken all the same."""

    @property
    def units(self) -> Mapping[int, UnitState]:
        """All entries by unit number; a copy, for views and tests."""
        return dict(items(self.unit_shards))


class UnitFound(Struct, frozen=True, array_like=True):
    """What the first reader of a unit found inside; of a partition: where it ends by now."""

    size: int
    cuts: tuple[int, ...] = ()


class CarriedUnit(Struct, frozen=True, array_like=True):
    """What is known of a unit by its location, so that another stream can take it over."""

    location: str
    byte_count: int
    """-1 not known."""
    pin: str
    """"" not known."""
    size: int
    """Positions in it; -1 not known."""
    done: tuple[tuple[int, tuple[Range, ...]], ...] = ()
    """By epoch: what was taken; of epochs that are not whole."""
    dead: tuple[tuple[int, tuple[DeadRange, ...]], ...] = ()
    """By epoch: what was left out."""
    cuts: tuple[int, ...] = ()


class Savepoint(Struct, frozen=True, array_like=True):
    """Positions under a name; leases are kept only until somebody looks inside."""

    name: str
    phase: str
    """Marking, Sealed or Failed."""
    revision: int
    sealed_ms: int
    epochs: tuple[EpochState, ...]
    ended: tuple[EpochState, ...]
    epochs_begun: int
    consumed_before: int
    skipped_before: int
    unsized_before: int
    unsized: tuple[int, ...] = ()
    """Units it names whose size nobody knew then."""
    left_out_before: int = 0
    origin: str = "asked"
    """`asked`, `mark`, `timer`, `suspend` or `imported`."""
    step: int = -1
    """Of the marks it was made of; -1 none."""
    generation: int = 0
    """Of the stream when it was made."""
    unit_count: int = -1
    """Units listed then; those of later ones are as carried. -1 all."""
    bad_count: int = 0
    bad_positions: int = 0
    text: str = ""
    """Why it failed."""
    carried: tuple[CarriedUnit, ...] = ()
    """Of one that came from outside: its content, by location."""
    whole_epochs: int = 0
    """Of one that came from outside: epochs in which every unit is done."""
    readers: Shards[AttemptId, ReaderState] = ()
    """Who held what then: `folding.settled` gives it back. Empty: nobody, or it was given back."""
    repeated: int = -1
    """Of the stream then; -1 in those from before."""
    has_checkpoint: bool = False
    """A whole checkpoint names it."""

    @property
    def done(self) -> int:
        """Positions taken."""
        return self.consumed_before + sum(epoch.consumed for epoch in self.epochs)


class Marking(Struct, frozen=True, array_like=True):
    """exactlyOnce: a savepoint in the making, whose readers mark a step one after the other."""

    name: str
    step: int
    began_ms: int
    marked: Shards[AttemptId, tuple[UnitRange, ...]] = ()
    """Readers that have marked it, each with what it took since."""
    live_count: int = 0
    """Of them, those that have not ended."""
    taken_in: tuple[int, ...] | None = None
    """Epochs of which anybody took something since its mark; None in snapshots from before."""
    waited_ms: int = 0
    """So long the others could have marked it; a time without a daemon does not count."""
    looked_ms: int = 0
    """Journal time up to which that was counted; 0 none was."""


class StreamMoment(Struct, frozen=True, array_like=True):
    """Something that a person would tell of a stream."""

    at_ms: int
    revision: int
    reason: str
    by: str
    message: str


class Stream(Struct, frozen=True, array_like=True):
    """A stream machine."""

    job: str
    name: str
    spec: StreamSpec
    roles: tuple[str, ...]
    phase: str
    phase_since_ms: int
    units: Units = Units()
    is_listed: bool = False
    found: Shards[int, UnitFound] = ()
    """By unit number, where the listing did not tell the size."""
    known: int = 0
    """Positions in all units whose size is known: one epoch."""
    unsized_units: int = 0
    """Units whose size is not known yet."""
    epochs: tuple[EpochState, ...] = ()
    """Those that are not finished, the current one first; at most two."""
    ended: tuple[EpochState, ...] = ()
    """Finished ones that left something out, with the units where they did."""
    epochs_begun: int = 1
    consumed_before: int = 0
    """Positions taken in finished epochs."""
    skipped_before: int = 0
    unsized_before: int = 0
    """Positions of units that never showed their size, in finished epochs."""
    reader_shards: Shards[AttemptId, ReaderState] = ()
    reader_count: int = 0
    idle_count: int = 0
    """Readers that hold nothing."""
    lease_count: int = 0
    trim_count: int = 0
    """Leases that were asked to end early and have not answered."""
    hungry: Queue = Queue()
    """Readers that want something and hold nothing, in the order they came."""
    greedy: Queue = Queue()
    """Readers that hold something and want more."""
    last_token: int = 0
    generation: int = 1
    """+1 with each restore."""
    paused_by_person: bool = False
    paused_by_suspension: bool = False
    savepoints: tuple[Savepoint, ...] = ()
    bad_count: int = 0
    """Rows left out, as charged to the budget."""
    repeated: int = 0
    """Positions granted again after a holder was lost: the most that may have come twice."""
    strike_count: int = 0
    failure: str = ""
    """Why the stream fails or failed."""
    struck_due: tuple[tuple[int, int, Strike], ...] = ()
    """Epoch, unit, range: due to be struck out."""
    split_due: tuple[tuple[AttemptId, int], ...] = ()
    """Holder and token of leases that outgrew the spec's split once their unit was opened."""
    waiting_for: tuple[str, ...] = ()
    """Why listing failed last; empty when it did not."""
    listing_failures: int = 0
    """In a row."""
    next_listing_ms: int = 0
    """Journal time of the next try; 0: at once."""
    next_trim_ms: int = 0
    """Journal time at which all holders are looked through for a trim; 0 none."""
    trim_backoff_ms: int = 0
    is_trim_due: bool = False
    ended_readers: int = 0
    """How many ended; makes each end a change."""
    changed_revision: int = 0
    has_listed_files: bool = False
    """All files are listed; `is_listed` waits for the ends of topics as well."""
    windows: tuple[int, ...] = ()
    """Of a shuffled stream: the numbers of units at which those permuted together end."""
    lane_owners: tuple[AttemptId | None, ...] = ()
    """Of strict order: who reads each lane; None nobody yet, or it was given up for another."""
    left_out_before: int = 0
    """Rows that the sample left out in finished epochs."""
    lanes_free_ms: int = 0
    """Journal time from which others may take the lanes of a reader that ended; 0 at once."""
    markings: tuple[Marking, ...] = ()
    """By step."""
    marked_to: int = -1
    """Newest step of this generation whose savepoint was sealed or failed."""
    sealed: tuple[int, str] = (-1, "")
    """Newest step of this generation that was sealed, and its savepoint."""
    unsealed: tuple[int, str] = (-1, "")
    """Newest step of this generation that could not be, and why."""
    restored: str = ""
    """Savepoint that this generation began at; "" its start."""
    restored_by: str = ""
    """Label of the attempt that asked for it; "" none did."""
    must_restore: bool = False
    """exactlyOnce: the group was lost; nothing is granted before positions went back."""
    bad_positions: int = 0
    """Positions left out because they could not be read."""
    rewound: int = 0
    """Positions that were taken, and that restores took back."""
    carried: tuple[CarriedUnit, ...] = ()
    """What came from another stream, by location; where the start lies."""
    whole_epochs: int = 0
    """Epochs in which every carried unit is done."""
    carried_revision: int = 0
    """Journal revision at which `carried` last changed."""
    carried_count: int = 0
    """Positions taken that came from another stream."""
    is_carrying: bool = False
    """Waits for what the spec's `restore` or `staging` names before anything is listed."""
    next_savepoint_ms: int = 0
    """Journal time of the next one by the clock; 0 none."""
    moments: tuple[StreamMoment, ...] = ()
    """The newest."""
    opened_count: int = 0
    """Readers whose trainers have opened it, and whose group is not lost."""
    is_kept: bool = False
    """Its last positions are in the spec's `staging` folder."""

    missing: tuple[str, ...] = ()
    """Folders by time that did not come and were passed over."""
    awaited_count: int = 0
    """Readers whose trainers have not opened it and may."""
    reader_count_wanted: int = 0
    """Trainers that step together; 0 in journals from before."""
    is_stepping: bool = False
    """All of them have opened it."""
    step_limit: StepLimit | None = None
    """Where trainers step together: the batches that each may have."""
    scanning: Scanning = Scanning()
    """Where sources say `rescan`."""

    @property
    def is_paused(self) -> bool:
        """Whether nothing is granted for now."""
        return self.paused_by_person or self.paused_by_suspension

    @property
    def epochs_done(self) -> int:
        """Epochs that ended."""
        return self.epochs_begun - len(self.epochs)

    @property
    def consumed(self) -> int:
        """Positions taken in all epochs."""
        return self.consumed_before + sum(epoch.consumed for epoch in self.epochs)

    @property
    def skipped(self) -> int:
        """Positions left out in all epochs."""
        return self.skipped_before + sum(epoch.skipped for epoch in self.epochs)

    @property
    def left_out(self) -> int:
        """Rows that the sample left out in all epochs."""
        return self.left_out_before + sum(epoch.left_out for epoch in self.epochs)

    @property
    def readers(self) -> Mapping[AttemptId, ReaderState]:
        """All readers; a copy, for views and tests."""
        return dict(items(self.reader_shards))

    @property
    def leases(self) -> Mapping[int, LeaseState]:
        """All open leases by token; a copy, for views and tests."""
        return {
            lease.token: lease for reader in values(self.reader_shards) for lease in reader.leases
        }


def reader_of(stream: Stream, attempt: AttemptId) -> ReaderState | None:
    """Return a reader, None when the attempt has not opened the stream or has ended."""
    return find(stream.reader_shards, attempt.index, attempt)


def size_of(stream: Stream, number: int) -> int:
    """Return where a unit ends, -1 while nobody knows."""
    size = stream.units[number].size
    if size >= 0:
        return size
    found = find(stream.found, number, number)
    return -1 if found is None else found.size


def cuts_of(stream: Stream, number: int) -> tuple[int, ...]:
    """Return where a unit is cut cheaply; empty when that is not known, or anywhere."""
    found = find(stream.found, number, number)
    return stream.units[number].cuts if found is None else found.cuts


def can_grow(unit: Unit) -> bool:
    """Return whether a unit is a partition, which may get longer while it is read.

    Its entry in an epoch stays when all of it is done, so that what it gets more can be told.
    """
    return unit.kind == "kafka"


def word_of(unit: Unit) -> str:
    """Return what positions in a unit are: `offsets`, `bytes` or `rows`."""
    if can_grow(unit):
        return "offsets"
    return "bytes" if has_byte_positions(unit) else "rows"


def has_byte_positions(unit: Unit) -> bool:
    """Return whether positions in a unit are bytes; in all others they count records or rows."""
    return not can_grow(unit) and has_bytes(unit.options)
