"""What a reader should do: a pure view of the stream (docs/protocol.md §8)."""

from primusd.datafeed.ledger.model import ReaderState, Stream, reader_of
from primusd.datafeed.ledger.tails import step_orders
from primusd.datafeed.ledger.tracks import Tracks, cursors_of, tracks_of
from primusd.datafeed.protocol import FeedOrders, Lease
from primusd.job.ids import AttemptId

SAVEPOINTS_TOLD = 8
WAIT_MS = 1_000
PAUSED_WAIT_MS = 5_000
"""For readers without a connection of their own, on which changed orders would be pushed."""


def feed_orders(stream: Stream, attempt: AttemptId, incarnation: str) -> FeedOrders:
    """Return all that should be so with the stream at a reader.

    An older incarnation, or one that has not opened the stream, holds nothing and waits.
    """
    reader = reader_of(stream, attempt)
    if reader is None or reader.incarnation != incarnation:
        has_ended = stream.phase == "Done" and not stream.must_restore
        state = "end" if has_ended else "wait"
        return FeedOrders(stream.name, (), state, 0, wait_ms=WAIT_MS)
    state, wait_ms = _state(stream, reader)
    return FeedOrders(
        stream.name,
        _leases(stream, reader),
        state,
        reader.rows_per_s * stream.spec.window_ms // 1000,
        wait_ms,
        sealed=stream.sealed,
        answers=reader.answers,
        tracks=_tracks(tracks_of(stream), stream, reader),
        lanes=stream.lane_owners.count(attempt) if stream.lane_owners else 0,
        unsealed=stream.unsealed,
        marked=_marked(stream),
        steps=step_orders(stream, reader),
    )


def _marked(stream: Stream) -> tuple[tuple[int, str], ...]:
    """Return the last steps that were sealed: a trainer may wait for one that is not the newest."""
    if stream.spec.delivery != "exactlyOnce":
        return ()
    return tuple(
        (one.step, one.name)
        for one in stream.savepoints[-SAVEPOINTS_TOLD:]
        if one.origin == "mark" and one.generation == stream.generation
    )


def _tracks(tracks: Tracks, stream: Stream, reader: ReaderState) -> tuple[int, ...]:
    """Return the sources, or lanes of the reader, from which more may come in this epoch."""
    if tracks.count == 1 or not stream.epochs:
        return ()
    epoch = stream.epochs[0]
    again = {tracks.track_of(epoch.number, number) for number in epoch.reopened}
    cursors = cursors_of(epoch)
    return tuple(
        track
        for track in range(tracks.count)
        if (track in again or track >= len(cursors) or cursors[track] < tracks.end)
        and (not tracks.is_strict or stream.lane_owners[track : track + 1] == (reader.attempt,))
    )


def _leases(stream: Stream, reader: ReaderState) -> tuple[Lease, ...]:
    """Return all leases; each with its unit until the reader has shown that it has it."""
    tracks = tracks_of(stream)
    return tuple(
        Lease(
            lease.epoch,
            lease.unit,
            lease.lo,
            lease.hi,
            lease.token,
            lease.position,
            lease.trim,
            stream.units[lease.unit].unit if lease.position == lease.lo else None,
            0 if tracks.is_plain else tracks.track_of(lease.epoch, lease.unit),
        )
        for lease in reader.leases
    )


def _state(stream: Stream, reader: ReaderState) -> tuple[str, int]:
    if stream.phase == "Done" and not stream.must_restore:
        return "end", 0
    if stream.phase != "Serving":
        return "wait", WAIT_MS
    if stream.is_paused:
        return "paused", PAUSED_WAIT_MS
    if reader.is_lost:
        return "wait", WAIT_MS
    return ("serve", 0) if reader.leases else ("wait", WAIT_MS)
