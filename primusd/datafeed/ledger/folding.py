"""What is held, given back: the state of epochs as if every lease ended where it is now. Pure.

A savepoint keeps epochs and readers as they are, which costs nothing however many leases are open;
what it says is worked out once somebody restores it or looks inside.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from primusd.datafeed.ledger import tasks
from primusd.datafeed.ledger.model import (
    EpochState,
    LeaseState,
    Range,
    ReaderState,
    Savepoint,
    Stream,
    UnitState,
)
from primusd.datafeed.ledger.ranges import subtract, union
from primusd.datafeed.ledger.shards import Shards, ShardsDraft, values
from primusd.datafeed.ledger.tracks import Tracks, is_passed, tracks_of
from primusd.job.ids import AttemptId

Held = Mapping[tuple[int, int], list[LeaseState]]


def folded_epochs(
    tracks: Tracks, epochs: tuple[EpochState, ...], readers: Shards[AttemptId, ReaderState]
) -> tuple[EpochState, ...]:
    """Return epochs as if every lease of the readers were given back.

    Args:
        tracks: The order of the stream's units.
        epochs: Those that are open.
        readers: With their leases, of the same moment.
    """
    held: dict[tuple[int, int], list[LeaseState]] = {}
    for reader in values(readers):
        for lease in reader.leases:
            held.setdefault((lease.epoch, lease.unit), []).append(lease)
    return tuple(_folded(tracks, epoch, held) for epoch in epochs) if held else epochs


def settled(stream: Stream, savepoint: Savepoint) -> Savepoint:
    """Return a savepoint with what was held when it was made given back."""
    if not savepoint.readers:
        return savepoint
    epochs = folded_epochs(tracks_of(stream), savepoint.epochs, savepoint.readers)
    return replace(savepoint, epochs=epochs, readers=())


def _folded(tracks: Tracks, epoch: EpochState, held: Held) -> EpochState:
    units = ShardsDraft(epoch.unit_shards)
    reopened = set(epoch.reopened)
    for (number, unit), leases in held.items():
        if number != epoch.number:
            continue
        state = units.find(unit, unit)
        assert state is not None, "a unit that is held has a state"
        units.put(unit, unit, _given_back(state, leases))
        if is_passed(tracks, epoch, unit):
            reopened.add(unit)
    return replace(epoch, unit_shards=units.result(), reopened=tuple(sorted(reopened)), leased=0)


def _given_back(state: UnitState, leases: list[LeaseState]) -> UnitState:
    """Return a unit's state without leases: done up to their positions, waiting from there."""
    if state.strikes or state.tired or len(leases) == 1:
        for lease in leases:
            state = tasks.released(state, Range(lease.lo, lease.hi), lease.position)
        return state
    moved = [Range(one.lo, one.position) for one in leases if one.position > one.lo]
    done = union((*state.done, *moved)) if moved else state.done
    rest = union([Range(one.position, one.hi) for one in leases])
    dead = tasks.dead_ranges(state)
    loose = union((*state.loose, *(subtract(rest, dead) if dead else rest)))
    fresh = state.fresh
    if loose and loose[-1].hi == fresh:
        loose, fresh = loose[:-1], loose[-1].lo
    return replace(state, leased=(), done=done, loose=loose, fresh=fresh)
