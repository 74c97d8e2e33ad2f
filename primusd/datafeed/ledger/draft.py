"""A stream in the making: the changes of one event, with the counters that follow from them."""

from collections.abc import Iterable

from msgspec.structs import replace

from primusd.datafeed.ledger import carrying, tasks
from primusd.datafeed.ledger.epoch_draft import EpochDraft
from primusd.datafeed.ledger.model import (
    OPEN_END,
    CarriedUnit,
    EpochState,
    LeaseState,
    Range,
    ReaderState,
    Stream,
    UnitFound,
    UnitState,
    can_grow,
)
from primusd.datafeed.ledger.queues import QueueDraft
from primusd.datafeed.ledger.ranges import overlap, total
from primusd.datafeed.ledger.shards import ShardsDraft, items, values
from primusd.datafeed.ledger.tracks import Tracks, tracks_of
from primusd.job.ids import AttemptId


class StreamDraft:
    """A stream in the making. Reads see the changes made so far.

    Attributes:
        epochs: The epochs that are not finished, by number.
        changes: Plain fields of Stream that change.
    """

    def __init__(self, stream: Stream, at_ms: int) -> None:
        self.before = stream
        self.at_ms = at_ms
        self.units = stream.units
        self.is_listed = stream.is_listed
        self.changes: dict[str, object] = {}
        self.epochs = {epoch.number: EpochDraft(epoch) for epoch in stream.epochs}
        self.found = ShardsDraft(stream.found)
        self.known = stream.known
        self.unsized_units = stream.unsized_units
        self.readers = ShardsDraft(stream.reader_shards)
        self.reader_count = stream.reader_count
        self.idle_count = stream.idle_count
        self.lease_count = stream.lease_count
        self.trim_count = stream.trim_count
        self.opened_count = stream.opened_count
        self.awaited_count = stream.awaited_count
        self.hungry = QueueDraft(stream.hungry)
        self.greedy = QueueDraft(stream.greedy)
        self.last_token = stream.last_token
        self.bad_count = stream.bad_count
        self.repeated = stream.repeated
        self.strike_count = stream.strike_count
        self.failure = stream.failure
        self.epochs_begun = stream.epochs_begun
        self.struck_due = stream.struck_due
        self.split_due = stream.split_due
        self.windows = stream.windows
        self.lane_owners = stream.lane_owners
        self._tracks = tracks_of(stream)
        self.markings = {one.step: one for one in stream.markings}
        self.bad_positions = stream.bad_positions
        self.carried_count = stream.carried_count

    def result(self) -> Stream:
        """Return the stream with the changes."""
        return replace(
            self.before,
            units=self.units,
            is_listed=self.is_listed,
            found=self.found.result(),
            known=self.known,
            unsized_units=self.unsized_units,
            epochs=tuple(self.epochs[number].result() for number in sorted(self.epochs)),
            reader_shards=self.readers.result(),
            reader_count=self.reader_count,
            idle_count=self.idle_count,
            lease_count=self.lease_count,
            trim_count=self.trim_count,
            opened_count=self.opened_count,
            awaited_count=self.awaited_count,
            hungry=self.hungry.result(),
            greedy=self.greedy.result(),
            last_token=self.last_token,
            bad_count=self.bad_count,
            repeated=self.repeated,
            strike_count=self.strike_count,
            failure=self.failure,
            epochs_begun=self.epochs_begun,
            struck_due=self.struck_due,
            split_due=self.split_due,
            windows=self.windows,
            lane_owners=self.lane_owners,
            markings=tuple(self.markings[step] for step in sorted(self.markings)),
            bad_positions=self.bad_positions,
            carried_count=self.carried_count,
            **self.changes,
        )

    def is_same(self) -> bool:
        """Return whether nothing was changed."""
        drafts = [self.readers.is_same, self.found.is_same, not self.changes]
        drafts += [epoch.units.is_same for epoch in self.epochs.values()]
        drafts.append(tuple(self.markings.values()) == self.before.markings)
        return all(drafts) and self.failure == self.before.failure

    # Order.

    @property
    def tracks(self) -> Tracks:
        """The order of the units, those that were just listed too."""
        found = self._tracks
        if found.units is not self.units or found.is_listed is not self.is_listed:
            spec = self.before.spec
            found = self._tracks = Tracks(spec, self.units, self.windows, self.is_listed)
        return found

    def is_passed(self, epoch: EpochDraft, number: int) -> bool:
        """Return whether a unit was handed out whole at least once."""
        tracks = self.tracks
        if tracks.is_plain:
            return number < epoch.next_unit
        track = tracks.track_of(epoch.number, number)
        return tracks.rank_of(epoch.number, number) < epoch.cursor(track)

    def has_begun(self, start: int) -> bool:
        """Return whether a unit of a rank from `start` on was ever handed out, or passed over."""
        tracks = self.tracks
        for epoch in self.epochs.values():
            for track in range(tracks.count):
                rank = epoch.cursor(track)
                if rank > start:
                    return True
                number = tracks.unit_at(epoch.number, rank) if rank < tracks.end else -1
                if number >= 0 and epoch.units.find(number, number) is not None:
                    return True
        return False

    # Sizes.

    def size(self, number: int) -> int:
        """Return the positions in a unit, -1 while nobody knows."""
        size = self.units[number].size
        if size >= 0:
            return size
        found = self.found.find(number, number)
        return -1 if found is None else found.size

    def end(self, number: int) -> int:
        """Return where a unit ends, OPEN_END while nobody knows."""
        size = self.size(number)
        return OPEN_END if size < 0 else size

    def untouched(self, number: int) -> UnitState:
        """Return the state of a unit of which nothing was handed out yet."""
        return UnitState(self.units[number].first)

    def grow(self, number: int, end: int) -> None:
        """Let a partition end later than it did; what it got more waits."""
        before = self.end(number)
        assert end > before
        self.found.put(number, number, UnitFound(end))
        self.known += end - before
        for epoch in self.epochs.values():
            state = epoch.units.find(number, number)
            if self.is_passed(epoch, number):
                # Without an entry it was passed over, for there was nothing in it.
                after = state or self.untouched(number)
                self.put_unit(epoch.number, number, after, before)
            else:
                self.move_on(epoch)

    def learn(self, number: int, size: int, cuts: tuple[int, ...]) -> None:
        """Set the size of a unit that was just opened; its leases are narrowed by the caller."""
        self.found.put(number, number, UnitFound(size, cuts))
        self.known += size
        self.unsized_units -= 1
        for epoch in self.epochs.values():
            state = epoch.units.find(number, number)
            if state is not None:
                self.put_unit(epoch.number, number, tasks.clipped(state, size), OPEN_END)
            else:
                self.move_on(epoch)

    def open_epoch(self, number: int) -> EpochDraft:
        """Return an epoch, begun if it was not."""
        if number not in self.epochs:
            assert number == self.epochs_begun
            self.epochs_begun += 1
            self.begin_epoch(number)
        return self.epochs[number]

    def begin_epoch(self, number: int) -> None:
        """Add an epoch in which nothing was handed out; what was carried over is done in it."""
        self.epochs[number] = EpochDraft(EpochState(number))
        self.seed(number, 0)
        self.move_on(self.epochs[number])

    def seed(self, epoch: int, first: int) -> None:
        """Let what came from another stream be done in an epoch, in units from `first` on."""
        carried = self.before.carried
        if not carried:
            return
        found = carrying.matching(self.units, carried, first)
        for number, one in found:
            if text := carrying.changed(one, self.units[number].unit):
                if self.before.spec.on_changed == "fail" and not self.failure:
                    self.failure = text
                continue
            self._take_over(epoch, number, one)

    def _take_over(self, epoch: int, number: int, one: CarriedUnit) -> None:
        if self.size(number) < 0 and one.size >= 0:
            self.learn(number, one.size, one.cuts)
        end = self.end(number)
        whole = epoch < self.before.whole_epochs
        state = carrying.state_of(one, epoch, self.untouched(number).fresh, end, is_whole=whole)
        if state is None:
            return
        self.put_unit(epoch, number, state)
        taken = tasks.passed_count(state) - tasks.dead_count(state)
        self.epochs[epoch].consumed += taken
        self.carried_count += taken

    def end_epoch(self, number: int) -> None:
        """Take a finished epoch off the open ones, its counters added to those before."""
        epoch = self.epochs.pop(number).result()
        self._count_ended(epoch, 1)
        if any(state.dead for state in values(epoch.unit_shards)):
            self.changes["ended"] = (*self.before.ended, epoch)

    def reopen_epoch(self, epoch: EpochState) -> None:
        """Take back an epoch that ended and left something out."""
        self.epochs[epoch.number] = EpochDraft(epoch)
        self._count_ended(epoch, -1)
        self.changes["ended"] = tuple(one for one in self.before.ended if one is not epoch)
        never_seen = (n for n, state in epoch.units.items() if state.fresh == OPEN_END)
        self.catch_up(epoch, never_seen)

    def catch_up(self, epoch: EpochState, numbers: Iterable[int]) -> None:
        """Give an epoch of earlier the sizes of units that nobody had opened then."""
        for number in numbers:
            state = epoch.units.get(number)
            size = self.size(number)
            if state is not None and size >= 0:
                self.put_unit(epoch.number, number, tasks.clipped(state, size), OPEN_END)
        if self.units and can_grow(self.units[-1].unit):
            self._catch_up_grown(self.epochs[epoch.number])
        self.move_on(self.epochs[epoch.number])

    def _catch_up_grown(self, epoch: EpochDraft) -> None:
        """Let what partitions got more since an epoch of earlier wait in it."""
        for number in range(len(self.units)):
            if not can_grow(self.units[number].unit) or not self.is_passed(epoch, number):
                continue
            end = self.end(number)
            state = epoch.units.find(number, number) or self.untouched(number)
            if end > self.units[number].first:
                epoch.units.put(number, number, state)
            self._place(epoch, number, does_wait=tasks.does_wait(state, end))
        found = items(epoch.units.result())
        epoch.open_count = sum(not tasks.is_finished(one, self.end(n)) for n, one in found)

    def _count_ended(self, epoch: EpochState, sign: int) -> None:
        before = self.before
        self.changes["consumed_before"] = before.consumed_before + sign * epoch.consumed
        self.changes["skipped_before"] = before.skipped_before + sign * epoch.skipped
        self.changes["unsized_before"] = before.unsized_before + sign * epoch.unsized
        self.changes["left_out_before"] = before.left_out_before + sign * epoch.left_out

    # Readers.

    def reader(self, attempt: AttemptId) -> ReaderState | None:
        """Return a reader as changed so far."""
        return self.readers.find(attempt.index, attempt)

    def put_reader(self, reader: ReaderState) -> ReaderState:
        """Set a reader, with all counters that follow from it; return it as it was set."""
        after = self._swap_reader(reader.attempt, reader)
        assert after is not None
        return after

    def drop_reader(self, attempt: AttemptId) -> None:
        """Remove a reader that holds nothing."""
        self._swap_reader(attempt, None)

    def _swap_reader(self, attempt: AttemptId, after: ReaderState | None) -> ReaderState | None:
        before = self.reader(attempt)
        if before is None or after is None or before.leases is not after.leases:
            for reader, sign in ((before, -1), (after, 1)):
                leases = reader.leases if reader is not None else ()
                self.lease_count += sign * len(leases)
                if sign > 0 or self.trim_count:
                    self.trim_count += sign * sum([lease.trim >= 0 for lease in leases])
        if after is not None:
            return self._store_reader(before, after)
        if before is not None:
            self._count_reader(before, -1)
            self._leave(before)
        self.readers.drop(attempt.index, attempt)
        return None

    def _store_reader(self, before: ReaderState | None, after: ReaderState) -> ReaderState:
        """Set a reader whose leases are counted already."""
        if before is not None:
            self._count_reader(before, -1)
        self._count_reader(after, 1)
        after = self._queued(before, after)
        self.readers.put(after.attempt.index, after.attempt, after)
        return after

    def _count_reader(self, reader: ReaderState, sign: int) -> None:
        self.reader_count += sign
        if not reader.leases:
            self.idle_count += sign
        if reader.has_opened and not reader.is_lost:
            self.opened_count += sign
        if reader.is_missed:
            self.awaited_count += sign

    def _queued(self, before: ReaderState | None, after: ReaderState) -> ReaderState:
        """Return a reader with its place among those that want something."""
        stays = before is not None and before.want > 0 and after.want > 0
        if before is not None and stays and bool(before.leases) == bool(after.leases):
            return after if after.place == before.place else replace(after, place=before.place)
        if before is not None:
            self._leave(before)
        if after.want <= 0:
            return after if after.place < 0 else replace(after, place=-1)
        queue = self.greedy if after.leases else self.hungry
        return replace(after, place=queue.join(after.attempt))

    def _leave(self, reader: ReaderState) -> None:
        if reader.want > 0:
            (self.greedy if reader.leases else self.hungry).leave(reader.place)

    # Units.

    def unit(self, epoch: int, number: int) -> UnitState | None:
        """Return what is known of a unit in an epoch, None when it has no entry."""
        return self.epochs[epoch].units.find(number, number)

    def put_unit(
        self, epoch: int, number: int, after: UnitState, end_before: int | None = None
    ) -> None:
        """Set the state of a unit, with the counters and cursors that follow from it.

        Args:
            epoch: One that is not finished.
            number: Of the unit.
            after: Its new state.
            end_before: Where the unit ended until now; None: where it ends.
        """
        draft = self.epochs[epoch]
        end = self.end(number)
        before = draft.units.find(number, number)
        if before is not None:
            _count(draft, before, end if end_before is None else end_before, -1)
        _count(draft, after, end, 1)
        is_open, unit = not tasks.is_finished(after, end), self.units[number].unit
        if is_open or after.dead or can_grow(unit) or not self.is_passed(draft, number):
            draft.units.put(number, number, after)
        else:
            draft.units.drop(number, number)
        self._place(draft, number, does_wait=tasks.does_wait(after, end))

    def _place(self, epoch: EpochDraft, number: int, *, does_wait: bool) -> None:
        """Keep `reopened` and the cursors true after a unit changed."""
        if self.is_passed(epoch, number):
            listed = number in epoch.reopened
            if does_wait and not listed:
                epoch.reopened = tuple(sorted((*epoch.reopened, number)))
            elif listed and not does_wait:
                epoch.reopened = tuple(one for one in epoch.reopened if one != number)
        elif not does_wait:
            self.move_on(epoch)

    def move_on(self, epoch: EpochDraft) -> None:
        """Move an epoch's cursors to the next unit of each track in which something waits."""
        tracks = self.tracks
        for track in range(tracks.count):
            self._move_on(tracks, epoch, track)

    def _move_on(self, tracks: Tracks, epoch: EpochDraft, track: int) -> None:
        rank = before = epoch.cursor(track)
        while rank < tracks.end:
            number = tracks.unit_at(epoch.number, rank)
            if tracks.count == 1 or tracks.track_of(epoch.number, number) == track:
                end = self.end(number)
                state = epoch.units.find(number, number)
                is_empty = end <= self.units[number].first
                if not is_empty and (state is None or tasks.does_wait(state, end)):
                    break
                if state is not None and not state.dead and tasks.is_finished(state, end):
                    self._forget(epoch, number)
            rank += 1
        if rank != before:
            epoch.set_cursor(track, rank)

    def _forget(self, epoch: EpochDraft, number: int) -> None:
        """Drop a finished unit: behind the cursor no entry says the same."""
        if not can_grow(self.units[number].unit):
            epoch.units.drop(number, number)

    # Leases.

    def hold(self, reader: ReaderState, lease: LeaseState) -> ReaderState:
        """Give a reader a lease on a range that waits."""
        state = self.unit(lease.epoch, lease.unit)
        if state is None:
            assert not self.is_passed(self.epochs[lease.epoch], lease.unit), "the unit is done"
            state = self.untouched(lease.unit)
        self.put_unit(lease.epoch, lease.unit, tasks.held(state, Range(lease.lo, lease.hi)))
        self.count_leased(lease, 1)
        moved_ms = reader.moved_ms if reader.leases else self.at_ms
        return self._put_leases(replace(reader, moved_ms=moved_ms), (*reader.leases, lease), 1)

    def change(self, reader: ReaderState, lease: LeaseState) -> ReaderState:
        """Replace a lease of a reader by itself with other values."""
        before = next(one for one in reader.leases if one.token == lease.token)
        if before.hi != lease.hi:
            state = self.unit(lease.epoch, lease.unit)
            assert state is not None
            after = tasks.trimmed(state, Range(before.lo, before.hi), lease.hi)
            self.put_unit(lease.epoch, lease.unit, after)
        self.count_leased(before, -1)
        self.count_leased(lease, 1)
        self.trim_count += (lease.trim >= 0) - (before.trim >= 0)
        return self._put_leases(
            reader, tuple(lease if one.token == lease.token else one for one in reader.leases)
        )

    def narrow(self, reader: ReaderState, lease: LeaseState, hi: int) -> ReaderState:
        """End a lease where its unit turned out to end; the unit knows already.

        What it had left was taken off the counter before the unit knew.
        """
        narrowed = replace(lease, hi=max(hi, lease.position))
        self.count_leased(narrowed, 1)
        return self._put_leases(
            reader, tuple(narrowed if one.token == lease.token else one for one in reader.leases)
        )

    def let_go(
        self, reader: ReaderState, lease: LeaseState, position: int | None = None
    ) -> ReaderState:
        """End a lease: what was taken is done, the rest waits.

        Args:
            reader: Who holds it.
            lease: As the reader has it.
            position: Up to where it was taken; None: as the lease says.
        """
        state = self.unit(lease.epoch, lease.unit)
        assert state is not None
        taken = lease.position if position is None else position
        after = tasks.released(state, Range(lease.lo, lease.hi), taken)
        self.put_unit(lease.epoch, lease.unit, after)
        self.count_leased(lease, -1)
        self.trim_count -= lease.trim >= 0
        at = reader.leases.index(lease)
        return self._put_leases(reader, reader.leases[:at] + reader.leases[at + 1 :], -1)

    def _put_leases(
        self, reader: ReaderState, leases: tuple[LeaseState, ...], more: int = 0
    ) -> ReaderState:
        self.lease_count += more
        before = self.reader(reader.attempt)
        return self._store_reader(before, replace(reader, leases=leases))

    def count_leased(self, lease: LeaseState, sign: int) -> None:
        """Add what a lease still has to the counter of its epoch, or take it off."""
        if lease.hi == OPEN_END:
            return
        state = self.unit(lease.epoch, lease.unit)
        left = lease.hi - lease.position
        if state is not None and state.dead:
            left -= total(overlap(tasks.dead_ranges(state), lease.position, lease.hi))
        self.epochs[lease.epoch].leased += sign * left


def _count(epoch: EpochDraft, state: UnitState, end: int, sign: int) -> None:
    """Add a unit's share to the counters of its epoch, or take it off."""
    if state.dead:
        epoch.skipped += sign * tasks.dead_count(state)
    if not tasks.is_finished(state, end):
        epoch.open_count += sign
    elif end == OPEN_END:
        epoch.unsized += sign * tasks.passed_count(state)
        epoch.unsized_units += sign
