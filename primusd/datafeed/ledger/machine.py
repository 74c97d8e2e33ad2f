"""The ledger of a stream: every position done, leased, waiting or dead. A machine (job/machine.py).

What a reader (one attempt with one incarnation) and the ledger agree on, beside protocol §8:

- **Positions** are bytes for plain text (`Unit.options["format"]` is `text` and `compression` is
  absent or ""), where any byte may be a cut: a task owns the lines that *start* in [lo, hi). For
  everything else (Parquet, compressed text) they are rows, and the size of a unit is not known
  before somebody opened it: its lease is then [lo, `OPEN_END`) and means "to the end of the unit".
- **`mapped`** is sent by whoever opened a unit whose size it was not told (`Lease.hi` is
  `OPEN_END`), once, and again until `Orders.report` covers it, in the same report as, or earlier
  than, a `Held.hi` other than `OPEN_END` for that unit. `rows` ≥ 0 is the size, else the last of
  `cuts` is. The ledger narrows every lease of the unit to the size at once. Where the number of
  rows is known only at the end (a compressed text), it is sent at the end. A second map of a unit
  changes nothing. Without a map a lease that ends at `OPEN_END` is never done.
- **`Held`** must repeat epoch, unit, lo and token of the lease. `hi` is what the reader goes by:
  min of its own and the lease's. Lower than the lease's: trimmed, with or without having been
  asked (its own consent is enough: a reader whose trainer stands still may cut off what it has
  not delivered). `hi` never rises again, and is never below what was delivered. `position` is what
  the trainer took. `position == hi` is done: keep it in `held` until the leases lack its token.
- **`Lease.trim`** ≥ 0: please end at max(trim, delivered so far), and say so with a lower `hi`;
  if all up to `hi` was delivered, say nothing, it will be done soon. `trim` lies on a cut where a
  useful one is known, else anywhere: any row of a Parquet file (its row group is decoded twice).
- **`want`** counts leases that could be started now beyond those in `leases` and `held`; leases
  that were granted and are not in `held` yet are subtracted here. At most 64 are given per report.
  A reader of small files asks for as many as keep it busy for two beats.
- **`returned`**: each is counted at its `position` and waits again from there; it need not be in
  `held` as well. On the trainer's end return all, and put the same into `Exit.positions`.
- **`bad`**: a range [lo, hi) of a held lease that cannot be read; kinds `data`, `changed`,
  `vanished`: the reader goes on behind it, as if the range had been taken (`hi` may be the lease's:
  the rest cannot be read). Whether that fails the stream or goes on the list is decided here
  (`onBad`). A lease whose rest is dead is over, whether or not its position was told. Kind
  `transient`: the reader gave up at `lo` and stops there: the lease ends at `lo` and the rest waits
  for somebody else; the second time the rest counts as `data`.
- **Epochs**: leases of the next epoch may come while some of this one are still held by others;
  a reader reads its leases in order of (epoch, unit, lo), of partitions by token, a batch never
  crosses an epoch, and a range that comes back from a lost reader may be of the older epoch.
- **`FeedOrders`**: `serve`; `wait` (nothing for this reader now: all it may do is wait); `paused`
  (hand out nothing more, keep the leases); `end` only when the stream is Done. `Lease.body` is
  there until the lease's position has moved. `window_rows` 0: no limit known yet.
"""

from msgspec.structs import replace

from primusd.datafeed.ledger import (
    beats,
    grants,
    listing,
    losses,
    marking,
    rescans,
    savepoints,
    tails,
)
from primusd.datafeed.ledger import clocks as stream_clocks
from primusd.datafeed.ledger.accounts import (
    TASK_PHASES,
    Flaw,
    Positions,
    TaskRange,
    Verified,
    positions,
    tasks,
    verify,
)
from primusd.datafeed.ledger.draft import StreamDraft
from primusd.datafeed.ledger.events import (
    BeatReceived,
    CarryingFailed,
    CheckpointKept,
    EpochEnded,
    Granted,
    LeaseExpired,
    ListingFailed,
    MarkingTimedOut,
    PauseRequested,
    PositionsCarried,
    PositionsKept,
    ReaderEnded,
    ReaderOpened,
    RestoreRequested,
    ResumeRequested,
    SavepointDropped,
    SavepointImported,
    SavepointRequested,
    StreamBroken,
    StreamClosed,
    StreamDeclared,
    StreamEnded,
    StreamEvent,
    StruckOut,
    TailReached,
    TaskRetryRequested,
    TaskSkipRequested,
    TopicsFollowed,
    TrimAsked,
    UnitsListed,
)
from primusd.datafeed.ledger.listing import fail_listing, follow_topics, list_units, needs_listing
from primusd.datafeed.ledger.model import EpochState, Stream
from primusd.datafeed.ledger.moments import with_moments
from primusd.datafeed.ledger.orders import feed_orders
from primusd.datafeed.ledger.tables import STREAM, STREAM_DECIDED
from primusd.errors import ConflictError, PhaseConflictError
from primusd.job.commands import (
    CarryPositions,
    Command,
    FollowTopics,
    KeepPositions,
    ListUnits,
)
from primusd.job.events import (
    GroupLeaseLost,
    ReaderSettled,
    SavepointSealed,
    StreamFailed,
    StreamFinished,
    StreamReopened,
    TimePassed,
)
from primusd.job.machine import IGNORE_REASONS, At, Ignore, Proposed
from primusd.job.spec import has_files
from primusd.job.tables import ignored_reason, is_refused

__all__ = [
    "TASK_PHASES",
    "Flaw",
    "Positions",
    "TaskRange",
    "Verified",
    "apply",
    "consequences",
    "deadline_ms",
    "feed_orders",
    "plan",
    "positions",
    "positions_left",
    "settle",
    "tasks",
    "verify",
]

LIVE_PHASES = ("Opening", "Serving")


def apply(state: Stream | None, event: StreamEvent | TimePassed, at: At) -> Stream | Ignore:
    """Return the stream after an event; `Ignore` when it changes nothing.

    Raises:
        PhaseConflictError: The table refuses the event in this phase.
        NotFoundError: There is no task, or no savepoint, of that name.
    """
    name = type(event).__name__
    if state is None:
        if not isinstance(event, StreamDeclared):
            raise _refused(name, "", "the stream was never declared")
        return _declared(event, at)
    table = STREAM if name in STREAM.rows else STREAM_DECIDED
    cell = table.cell(name, state.phase)
    if is_refused(cell):
        raise _refused(name, state.phase, state.name)
    reason = ignored_reason(cell)
    if reason is not None:
        return Ignore(reason)
    after = _apply(state, event, at)
    if isinstance(after, Ignore):
        return after
    if state.phase == after.phase == "Done" and after.epochs_done < after.spec.epochs:
        after = replace(after, phase="Serving", phase_since_ms=at.at_ms)
    after = tails.counted(stream_clocks.timed(after, at.at_ms), event)
    return with_moments(state, stream_clocks.watched(state, after, event, at.at_ms), event, at)


def settle(state: Stream, at_ms: int) -> StreamEvent | None:
    """Return the next internal event that is due, None when none is."""
    if state.phase == "Done":
        return _overdue(state)
    if state.phase not in LIVE_PHASES:
        return None
    if state.failure:
        return StreamBroken(state.failure)
    if state.phase == "Opening":
        return None
    if state.struck_due:
        epoch, unit, one = state.struck_due[0]
        readers = ", ".join(one.readers)
        return StruckOut(epoch, unit, one.lo, one.hi, f"{readers} died on it")
    ended = _overdue(state) or _ended(state)
    if ended is not None:
        return ended
    granted = grants.decide_grants(state, at_ms)
    if granted is not None:
        return granted
    if state.spec.tail != "uneven":
        return tails.decide(state)
    # Lanes may wait for their reader while another has none.
    is_tail = state.spec.order == "strict" or not grants.does_wait(state)
    return grants.decide_trims(state, at_ms) if is_tail else None


def consequences(
    before: Stream | None, after: Stream | None, event: StreamEvent | TimePassed
) -> tuple[Proposed, ...]:
    """Return what the job has to hear; the end of a reader last, after what it brought about."""
    if before is None or after is None:
        return ()
    found: list[Proposed] = []
    if before.phase != after.phase:
        match after.phase:
            case "Done":
                finished = StreamFinished(
                    after.name,
                    after.consumed,
                    after.skipped,
                    after.unsized_units * max(1, after.spec.epochs),
                    after.carried_count,
                    len(after.missing),
                    after.left_out,
                )
                found.append(Proposed(after.job, finished))
            case "Failed":
                found.append(Proposed(after.job, StreamFailed(after.name, after.failure)))
            case "Serving" if before.phase == "Done":
                found.append(Proposed(after.job, StreamReopened(after.name)))
            case _:
                pass
    if after.savepoints is not before.savepoints:
        known = {one.name for one in before.savepoints}
        found += [
            Proposed(after.job, SavepointSealed(after.name, one.name))
            for one in after.savepoints
            if one.origin != "timer" and one.name not in known
        ]
    if after.must_restore and not before.must_restore and before.opened_count:
        assert isinstance(event, ReaderEnded | ReaderOpened | LeaseExpired)
        found.append(Proposed(after.job, GroupLeaseLost(after.name, event.attempt)))
    if isinstance(event, ReaderEnded):
        settled = ReaderSettled(event.attempt, after.name, positions_left(after))
        found.append(Proposed(after.job, settled))
    return tuple(found)


def plan(state: Stream) -> tuple[Command, ...]:
    """Return what must be in motion: listing, as far ahead as needed; files before topics."""
    if state.phase == "Closed":
        needs_keeping = bool(state.spec.staging) and not state.is_kept
        return (KeepPositions(state.job, state.name),) if needs_keeping else ()
    if state.phase not in LIVE_PHASES or state.is_listed or state.is_paused:
        return ()
    if state.next_listing_ms:
        return ()
    if state.is_carrying:
        return (CarryPositions(state.job, state.name),)
    if state.has_listed_files or not has_files(state.spec):
        return (FollowTopics(state.job, state.name),)
    return (ListUnits(state.job, state.name, len(state.units)),) if needs_listing(state) else ()


def deadline_ms(state: Stream) -> int:
    """Return the journal time at which TimePassed has something to do; 0 none."""
    look_ms = marking.next_look_ms(state)
    if state.phase not in LIVE_PHASES or state.is_paused:
        return look_ms if state.phase == "Done" else 0
    times = (
        state.next_listing_ms,
        state.scanning.next_ms,
        state.next_trim_ms,
        state.next_savepoint_ms,
        state.lanes_free_ms,
        look_ms,
    )
    return min((one for one in times if one), default=0)


def positions_left(state: Stream) -> int:
    """Return how many positions nobody has taken yet, in all epochs; -1 not known."""
    if state.phase == "Done":
        return 0
    if state.unsized_units or not state.is_listed:
        return -1
    return max(0, state.known * max(1, state.spec.epochs) - state.consumed - state.skipped)


def _declared(event: StreamDeclared, at: At) -> Stream:
    return Stream(
        event.job,
        event.stream,
        event.spec,
        event.roles,
        "Opening",
        at.at_ms,
        epochs=(EpochState(0),),
        is_carrying=event.spec.restore is not None or bool(event.spec.staging),
        reader_count_wanted=event.reader_count,
    )


def _apply(state: Stream, event: StreamEvent | TimePassed, at: At) -> Stream | Ignore:
    match event:
        case BeatReceived():
            return beats.beat(state, event, at)
        case ReaderOpened():
            return beats.open_reader(state, event, at.at_ms)
        case ReaderEnded():
            return beats.end_reader(state, event, at)
        case LeaseExpired():
            return beats.expire(state, event, at.at_ms)
        case UnitsListed():
            return list_units(state, event, at.at_ms)
        case TopicsFollowed():
            return follow_topics(state, event, at.at_ms)
        case ListingFailed():
            return fail_listing(state, event, at.at_ms)
        case TimePassed():
            return _time_passed(state, at)
        case StreamClosed():
            return _in_phase(_without_readers(state), "Closed", at.at_ms)
        case _:
            return _apply_asked(state, event, at)


def _apply_asked(state: Stream, event: StreamEvent, at: At) -> Stream | Ignore:
    """Return the stream after what a person or a job asked for."""
    match event:
        case TaskSkipRequested():
            draft = StreamDraft(state, at.at_ms)
            is_new = losses.skip(draft, event, at.by)
            return draft.result() if is_new else Ignore(IGNORE_REASONS["s"])
        case TaskRetryRequested():
            draft = StreamDraft(state, at.at_ms)
            if not losses.retry(draft, event):
                return Ignore(IGNORE_REASONS["s"])
            return _in_phase(draft.result(), "Serving", at.at_ms)
        case PauseRequested() | ResumeRequested():
            return _pause(state, event, at)
        case RestoreRequested():
            _check_restore(state)
            return savepoints.restore(state, event.name, at)
        case _:
            return _apply_savepoint(state, event, at)


def _apply_savepoint(state: Stream, event: StreamEvent, at: At) -> Stream | Ignore:
    match event:
        case SavepointRequested():
            return savepoints.request(state, event.name, at)
        case SavepointDropped():
            return savepoints.drop(state, event.name)
        case CheckpointKept():
            return savepoints.keep_for_checkpoint(state, event.name)
        case SavepointImported():
            return savepoints.take_in(state, event, at)
        case PositionsCarried():
            return savepoints.carry(state, event, at)
        case CarryingFailed():
            return listing.fail_carrying(state, event, at.at_ms)
        case PositionsKept():
            return Ignore(IGNORE_REASONS["r"]) if state.is_kept else replace(state, is_kept=True)
        case MarkingTimedOut():
            draft = StreamDraft(state, at.at_ms)
            if event.is_at_end:
                marking.end_all(draft)
            else:
                marking.time_out(draft, next(m for m in state.markings if m.name == event.name))
            return savepoints.seal_marked(draft.result(), at)
        case _:
            return _apply_decided(state, event, at)


def _apply_decided(state: Stream, event: StreamEvent, at: At) -> Stream | Ignore:
    draft = StreamDraft(state, at.at_ms)
    match event:
        case Granted(given):
            for grant in given:
                grants.grant_lease(draft, grant)
        case TrimAsked():
            grants.ask_trims(draft, event)
        case StruckOut():
            losses.strike_out(draft, event)
        case TailReached():
            tails.reach(draft, event)
        case EpochEnded(number):
            draft.end_epoch(number)
            if not draft.epochs and draft.epochs_begun < state.spec.epochs:
                draft.open_epoch(draft.epochs_begun)
        case StreamEnded():
            # Journals from before have it after the close of a stream without rows.
            return state if state.phase == "Closed" else _in_phase(state, "Done", at.at_ms)
        case StreamBroken(text):
            return _in_phase(replace(state, failure=text), "Failed", at.at_ms)
        case _:
            raise AssertionError(f"no rule for {event}")
    return draft.result()


def _check_restore(state: Stream) -> None:
    """Refuse what would part a model from its rows.

    Raises:
        ConflictError: With exactlyOnce only trainers go back, together with their models.
    """
    if state.spec.delivery == "exactlyOnce":
        raise ConflictError(
            f"stream {state.name} is exactlyOnce: its trainers go back with their checkpoints",
            hint="to begin elsewhere, submit a job with restore: JOB/SAVEPOINT",
        )


def _in_phase(state: Stream | Ignore, phase: str, at_ms: int) -> Stream | Ignore:
    if isinstance(state, Ignore) or state.phase == phase:
        return state
    return replace(state, phase=phase, phase_since_ms=at_ms)


def _pause(state: Stream, event: PauseRequested | ResumeRequested, at: At) -> Stream | Ignore:
    is_paused = isinstance(event, PauseRequested)
    if event.for_suspension:
        after = replace(state, paused_by_suspension=is_paused)
    else:
        after = replace(state, paused_by_person=is_paused)
    if after == state:
        return Ignore(IGNORE_REASONS["a"])
    if is_paused and event.for_suspension:
        # Everybody has stopped, so it is exact.
        return savepoints.save_by_itself(after, "suspend", at)
    return after


def _without_readers(state: Stream) -> Stream:
    draft = StreamDraft(state, 0)
    for reader in state.readers.values():
        kept = reader
        for lease in reader.leases:
            kept = draft.let_go(kept, lease)
        draft.drop_reader(reader.attempt)
    return draft.result()


def _time_passed(state: Stream, at: At) -> Stream | Ignore:
    after, at_ms = state, at.at_ms
    if state.next_savepoint_ms and at_ms >= state.next_savepoint_ms:
        after = savepoints.save_by_itself(after, "timer", at)
        after = replace(after, next_savepoint_ms=at_ms + state.spec.savepoint_every_ms)
    if state.next_listing_ms and at_ms >= state.next_listing_ms:
        after = replace(after, next_listing_ms=0)
    if (scanning := rescans.begun(state.scanning, at_ms)) is not state.scanning:
        after = replace(after, scanning=scanning, next_listing_ms=0)
    if state.lanes_free_ms and at_ms >= state.lanes_free_ms:
        after = replace(after, lanes_free_ms=0)
    if state.next_trim_ms and at_ms >= state.next_trim_ms:
        backoff_ms = min(2 * state.trim_backoff_ms, stream_clocks.TRIM_EVERY_MAX_MS)
        after = replace(
            after, is_trim_due=True, next_trim_ms=at_ms + backoff_ms, trim_backoff_ms=backoff_ms
        )
    markings = marking.looked(state, at_ms)
    if markings != state.markings:
        after = replace(after, markings=markings)
    return Ignore(IGNORE_REASONS["a"]) if after is state else after


def _ended(state: Stream) -> EpochEnded | StreamEnded | StreamBroken | MarkingTimedOut | None:
    """Return the end of the oldest epoch, or of the stream, if it has come.

    While a savepoint is in the making what was taken since may have to be given back; trainers
    that go on with other rows, and mark on, hold nothing up.
    """
    if not state.is_listed:
        return None
    if not state.epochs or (state.known == 0 and state.unsized_units == 0):
        text = losses.over_fraction(state, state.bad_positions, is_final=True)
        return StreamBroken(text) if text else StreamEnded()
    epoch = state.epochs[0]
    if not grants.is_taken(state, epoch) or tails.holds_open(state):
        return None
    if marking.holds_open(state, epoch.number):
        is_all = state.epochs_begun == state.spec.epochs
        is_all = is_all and all(grants.is_taken(state, one) for one in state.epochs)
        return MarkingTimedOut(state.markings[0].name, is_at_end=True) if is_all else None
    passed = epoch.consumed + epoch.skipped
    listed = state.known + epoch.unsized
    if passed != listed or state.unsized_units != epoch.unsized_units:
        return StreamBroken(
            f"epoch {epoch.number} does not add up: {listed} positions were listed, "
            f"{epoch.consumed} taken and {epoch.skipped} left out"
        )
    return EpochEnded(epoch.number, epoch.consumed, epoch.skipped)


def _overdue(state: Stream) -> MarkingTimedOut | None:
    late = marking.overdue(state)
    return None if late is None else MarkingTimedOut(late.name)


def _refused(event: str, phase: str, stream: str) -> PhaseConflictError:
    return PhaseConflictError(
        f"{event} has no place while stream {stream} is {phase or 'unknown'}",
        phase=phase,
        event=event,
    )
