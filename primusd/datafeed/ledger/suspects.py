"""What goes back with no group: ranges that killed their readers, or that a person left out.

With exactlyOnce every death leads back to a savepoint. Strikes that were forgotten there would let
the same record kill one generation after the other.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from primusd.datafeed.ledger import tasks
from primusd.datafeed.ledger.draft import StreamDraft
from primusd.datafeed.ledger.losses import bury
from primusd.datafeed.ledger.model import DeadRange, LeaseState, Range, Stream, Strike, UnitState
from primusd.datafeed.ledger.shards import items
from primusd.job.machine import At

STRUCK_OUT, SKIPPED = "struckOut", "skipped"


def suspect(draft: StreamDraft, lease: LeaseState) -> None:
    """Note where a reader died of its own fault on a lease that it had moved; it is let go.

    Read again from a savepoint, the lease would have moved each time; so what comes from that
    position on is leased alone, and who dies there next has not moved it.
    """
    state = draft.unit(lease.epoch, lease.unit) or draft.untouched(lease.unit)
    one = Range(lease.position, lease.hi)
    after = tasks.suspected(state, one, lease.attempt.label)
    draft.put_unit(lease.epoch, lease.unit, after)


def keep_suspects(before: Stream, after: Stream, at: At) -> Stream:
    """Return a stream that goes back with what its group must not forget.

    Args:
        before: As it was.
        after: At the savepoint.
        at: When.
    """
    draft = StreamDraft(after, at.at_ms)
    found = list(_suspects(before, draft))
    for epoch, unit, state in found:
        _keep(draft, epoch, unit, state)
    return draft.result() if found else after


def _suspects(before: Stream, draft: StreamDraft) -> Iterator[tuple[int, int, UnitState]]:
    """Yield the units with something to keep, in the epochs that are open at the savepoint."""
    for epoch in (*before.ended, *before.epochs):
        if epoch.number in draft.epochs:
            for unit, state in items(epoch.unit_shards):
                if state.strikes or any(_is_kept(one) for one in state.dead):
                    yield epoch.number, unit, state


def _is_kept(dead: DeadRange) -> bool:
    return dead.kind in (STRUCK_OUT, SKIPPED)


def _keep(draft: StreamDraft, epoch: int, unit: int, before: UnitState) -> None:
    state = draft.unit(epoch, unit)
    if state is None and draft.is_passed(draft.epochs[epoch], unit):
        return
    end = draft.end(unit)
    for dead in before.dead:
        clipped_dead = replace(dead, hi=min(dead.hi, end))
        if dead.kind == STRUCK_OUT:
            bury(draft, epoch, unit, clipped_dead)
        elif dead.kind == SKIPPED:
            _leave_out(draft, epoch, unit, clipped_dead)
    state = draft.unit(epoch, unit) or draft.untouched(unit)
    clipped = (Strike(one.lo, min(one.hi, end), one.readers) for one in before.strikes)
    kept = tasks.left_of_strikes(tuple(clipped), state.done)
    if kept and kept != state.strikes:
        draft.put_unit(epoch, unit, replace(state, strikes=kept))


def _leave_out(draft: StreamDraft, epoch: int, unit: int, dead: DeadRange) -> None:
    state = draft.unit(epoch, unit) or draft.untouched(unit)
    parts = tasks.alive_parts(state, Range(dead.lo, dead.hi))
    for part in parts:
        state = tasks.killed(state, replace(dead, lo=part.lo, hi=part.hi))
    if parts:
        draft.put_unit(epoch, unit, state)
