"""When a stream has something to do by itself: trims while readers wait, savepoints in time."""

from msgspec.structs import replace

from primusd.datafeed.ledger import grants
from primusd.datafeed.ledger.events import StreamEvent
from primusd.datafeed.ledger.model import Stream
from primusd.job.events import TimePassed

TRIM_EVERY_MS = 2_000
TRIM_EVERY_MAX_MS = 60_000
"""While readers wait and nobody has much left, holders are looked through ever more seldom."""


def timed(state: Stream, at_ms: int) -> Stream:
    """Return the stream with the clock of its savepoints begun once it serves."""
    every_ms = state.spec.savepoint_every_ms
    if state.phase != "Serving":
        return replace(state, next_savepoint_ms=0) if state.next_savepoint_ms else state
    if not every_ms or state.next_savepoint_ms:
        return state
    return replace(state, next_savepoint_ms=at_ms + every_ms)


def watched(before: Stream, after: Stream, event: StreamEvent | TimePassed, at_ms: int) -> Stream:
    """Return the stream with the timer for trims set while readers wait and nothing else does."""
    is_due = after.is_trim_due and isinstance(event, TimePassed)
    wanting = after.hungry.count + after.greedy.count
    is_tail = after.phase == "Serving" and wanting > 0 and after.lease_count > 0
    is_tail = is_tail and not grants.does_wait(after)
    has_joined = (before.hungry.drawn, before.greedy.drawn) != (
        after.hungry.drawn,
        after.greedy.drawn,
    )
    if is_tail and (not before.next_trim_ms or has_joined):
        next_ms, backoff_ms = at_ms + TRIM_EVERY_MS, TRIM_EVERY_MS
    elif is_tail:
        next_ms, backoff_ms = after.next_trim_ms, after.trim_backoff_ms
    else:
        next_ms, backoff_ms = 0, 0
    now = (after.is_trim_due, after.next_trim_ms, after.trim_backoff_ms)
    if now == (is_due, next_ms, backoff_ms):
        return after
    return replace(after, is_trim_due=is_due, next_trim_ms=next_ms, trim_backoff_ms=backoff_ms)
