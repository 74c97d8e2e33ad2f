"""The Stream document (docs/api-documents.md §5)."""

from itertools import islice

from msgspec import UNSET, UnsetType

from primusd.core import World
from primusd.datafeed.ledger.accounts import Positions, positions, tasks
from primusd.datafeed.ledger.carrying import carried_units, whole_epochs
from primusd.datafeed.ledger.model import OPEN_END, ReaderState, Savepoint, Stream
from primusd.datafeed.ledger.places import PartitionPlace, partition_places
from primusd.datafeed.ledger.ranges import measure
from primusd.datafeed.ledger.rescans import every_ms
from primusd.datafeed.protocol import FeedReport
from primusd.job.ids import AttemptId
from primusd.job.spec import JobSpec, follows_topics, has_files, is_endless
from primusd.job.wording import leaving_out
from primusd.views import feed_documents as documents
from primusd.views import feed_findings, feed_sources
from primusd.views.credentials import credential_notes
from primusd.views.documents import StreamStatus
from primusd.views.live import NOTHING_LIVE, Live, LivePartition
from primusd.views.tasks import dead_document
from primusd.views.times import known_time

DEAD_SHOWN_MAX = 100
PARTITIONS_SHOWN_MAX = 1_000
MISSING_SHOWN = 100
CHANGED_SHOWN = 100
ENDED_PHASES = frozenset({"Done", "Failed", "Closed"})


def stream_document(
    stream: Stream,
    world: World,
    live: Live = NOTHING_LIVE,
    *,
    at_ms: int,
    is_watched: bool = False,
) -> documents.Stream | None:
    """Return the document of a stream; None when its job is gone.

    Args:
        stream: One of `world.streams`.
        world: Its jobs are read.
        live: What the edges know.
        at_ms: Journal time now.
        is_watched: It is made for each change, so that no file is looked at for it.
    """
    job = world.jobs.get(stream.job)
    if job is None:
        return None
    places = positions(stream)
    per_second, eta_ms = _speed(stream, places)
    figures = feed_findings.figures_of(stream, live)
    partitions = tuple(partition_places(stream)) if follows_topics(stream.spec) else ()
    sources = UNSET if is_watched else feed_sources.source_statuses(stream, partitions)
    notes = _reader_notes(stream, live, at_ms)
    notes += () if is_watched else feed_findings.skew(stream, partitions, sources or ())
    return documents.Stream(
        job=job.spec.name,
        job_uid=job.uid,
        namespace=job.spec.namespace,
        name=stream.name,
        resource_version=str(stream.changed_revision),
        phase=stream.phase,
        paused=stream.is_paused,
        delivery=stream.spec.delivery,
        epoch=places.epoch,
        epochs=stream.spec.epochs,
        finite=not is_endless(stream.spec),
        units=units_status(stream),
        positions=_positions(stream, places),
        readers=reader_statuses(stream, live, at_ms=at_ms),
        dead_tasks=tuple(
            dead_document(one) for one in islice(tasks(stream, "dead"), DEAD_SHOWN_MAX)
        ),
        savepoints=tuple(_savepoint(one) for one in stream.savepoints),
        repeated_max=stream.repeated,
        strikes=stream.strike_count,
        failure=stream.failure or UNSET,
        per_second=per_second,
        eta_ms=eta_ms,
        lag=_lag(stream),
        partitions=_partitions(stream, partitions, live),
        bytes_per_second=figures.bytes_per_s or UNSET,
        buffered_bytes=figures.buffered_bytes or UNSET,
        waits=feed_findings.waits_words(stream, figures) or UNSET,
        notes=notes or UNSET,
        sources=sources,
        left_out=feed_sources.left_out(stream),
    )


def _reader_notes(stream: Stream, live: Live, at_ms: int) -> tuple[documents.FeedNote, ...]:
    of_credentials = credential_notes(stream, live, at_ms=at_ms)
    return of_credentials + feed_findings.slow_readers(stream, live)


def stream_status(stream: Stream) -> StreamStatus:
    """Return what the status of the stream's job shows of it."""
    places = positions(stream)
    per_second, eta_ms = _speed(stream, places)
    return StreamStatus(
        phase=stream.phase,
        paused=stream.is_paused,
        epoch=places.epoch,
        epochs=stream.spec.epochs,
        finite=not is_endless(stream.spec),
        unit=places.unit,
        total=_known(places.total),
        done=places.done,
        leased=places.leased,
        skipped=places.skipped,
        dead=places.dead,
        expected=_known(places.expected),
        per_second=per_second,
        eta_ms=eta_ms,
        repeated_max=stream.repeated,
        savepoints=len(stream.savepoints),
        lag=_lag(stream),
    )


def units_status(stream: Stream) -> documents.UnitsStatus:
    """Return what is known of the files and partitions of a stream."""
    return documents.UnitsStatus(
        listed=len(stream.units),
        complete=stream.is_listed,
        waiting_for=stream.waiting_for,
        missing=stream.missing[-MISSING_SHOWN:],
        rescan=_rescan(stream),
    )


def _rescan(stream: Stream) -> documents.RescanStatus | UnsetType:
    """Return how folders that were listed are looked at again; absent where they are not."""
    if not every_ms(stream.spec):
        return UNSET
    scanning = stream.scanning
    return documents.RescanStatus(
        count=scanning.count,
        late=scanning.late_count,
        last_at=known_time(scanning.last_ms),
        next_at=known_time(scanning.next_ms),
        changed=tuple(
            stream.units[one.unit].unit.location for one in scanning.changed[:CHANGED_SHOWN]
        ),
    )


def _positions(stream: Stream, places: Positions) -> documents.PositionsStatus:
    return documents.PositionsStatus(
        unit=places.unit,
        total=_known(places.total),
        done=places.done,
        leased=places.leased,
        waiting=_known(places.waiting),
        skipped=places.skipped,
        dead=places.dead,
        expected=_known(places.expected),
        left_out=stream.left_out if leaving_out(stream.spec) else UNSET,
    )


def _lag(stream: Stream) -> int | UnsetType:
    if not follows_topics(stream.spec):
        return UNSET
    if has_files(stream.spec):
        return sum(place.lag for place in partition_places(stream))
    # Of partitions alone the counters say the same, at no cost for each of them.
    passed = sum(one.consumed + one.skipped for one in stream.epochs[:1])
    return max(0, stream.known - passed) if stream.epochs else 0


def _partitions(
    stream: Stream, places: tuple[PartitionPlace, ...], live: Live
) -> tuple[documents.PartitionStatus, ...] | UnsetType:
    if not follows_topics(stream.spec):
        return UNSET
    machine = f"{stream.job}/{stream.name}"
    found = []
    for place in places[:PARTITIONS_SHOWN_MAX]:
        rate = live.partitions.get((machine, place.unit), LivePartition())
        found.append(
            documents.PartitionStatus(
                location=place.location,
                first=place.first,
                position=place.low,
                end=place.end,
                lag=place.lag,
                produced_per_second=_known(rate.produced_per_s),
                read_per_second=_known(rate.read_per_s),
            )
        )
    return tuple(found)


def _known(count: int) -> int | UnsetType:
    return count if count >= 0 else UNSET


def _speed(stream: Stream, places: Positions) -> tuple[int | UnsetType, int | UnsetType]:
    """Return positions a second over all readers, and the time left at that speed."""
    if stream.phase in ENDED_PHASES:
        return UNSET, UNSET
    # Acknowledged positions, unlike the readers' rows, are in the unit of the total.
    speed = sum(one.per_s for one in stream.readers.values())
    if not speed:
        return UNSET, UNSET
    if places.expected < 0:
        return speed, UNSET
    epochs_left = stream.spec.epochs - 1 - places.epoch
    passed = places.done + places.skipped + places.dead
    left = places.expected - passed + epochs_left * places.expected
    return speed, max(0, left) * 1000 // speed


def _report(stream: Stream, attempt: AttemptId, live: Live) -> FeedReport | None:
    reports = live.feeds.get(attempt, ())
    return next((one for one in reports if one.stream == stream.name), None)


def reader_statuses(
    stream: Stream, live: Live, *, at_ms: int
) -> tuple[documents.ReaderStatus, ...]:
    """Return all that read a stream."""
    found = []
    for attempt, reader in sorted(stream.readers.items()):
        report = _report(stream, attempt, live)
        wait = live.waits.get((attempt, stream.name))
        found.append(
            documents.ReaderStatus(
                replica=attempt.replica,
                attempt=attempt.attempt,
                leases=len(reader.leases),
                per_second=report.rows_per_s if report is not None else UNSET,
                oldest_ack_ms=max(0, at_ms - reader.moved_ms) if reader.moved_ms else UNSET,
                waited_percent=wait.waited_percent if wait is not None else UNSET,
                blocked_percent=wait.blocked_percent if wait is not None else UNSET,
                trouble=(report.trouble or UNSET) if report is not None else UNSET,
                rows=report.rows if report is not None else UNSET,
                bytes_per_second=wait.bytes_per_s if wait is not None else UNSET,
                buffered_bytes=report.buffered_bytes if report is not None else UNSET,
                left_ms=_left_ms(reader),
            )
        )
    return tuple(found)


def _left_ms(reader: ReaderState) -> int | UnsetType:
    """Return how long a reader needs for what it holds, as far as that is known."""
    left = sum(one.hi - one.position for one in reader.leases if one.hi != OPEN_END)
    return left * 1000 // reader.per_s if reader.per_s and reader.leases else UNSET


def _savepoint(savepoint: Savepoint) -> documents.SavepointStatus:
    return documents.SavepointStatus(
        name=savepoint.name,
        phase=savepoint.phase,
        revision=str(savepoint.revision),
        sealed_at=known_time(savepoint.sealed_ms),
        done=savepoint.done,
        origin=savepoint.origin,
        step=_known(savepoint.step),
    )


def savepoint_document(stream: Stream, savepoint: Savepoint, spec: JobSpec) -> documents.Savepoint:
    """Return the document of a savepoint."""
    epoch = savepoint.epochs[0].number if savepoint.epochs else whole_epochs(savepoint) - 1
    is_whole = epoch < whole_epochs(savepoint)
    units = carried_units(stream, savepoint)
    taken = [sum(one.hi - one.lo for one in dict(unit.done).get(epoch, ())) for unit in units]
    left_out = [sum(measure(o.lo, o.hi) for o in dict(u.dead).get(epoch, ())) for u in units]
    full = [
        is_whole or (unit.size >= 0 and done + dead >= unit.size)
        for unit, done, dead in zip(units, taken, left_out, strict=True)
    ]
    return documents.Savepoint(
        job=spec.name,
        stream=stream.name,
        name=savepoint.name,
        phase=savepoint.phase,
        origin=savepoint.origin,
        revision=str(savepoint.revision),
        sealed_at=known_time(savepoint.sealed_ms),
        step=_known(savepoint.step),
        generation=savepoint.generation,
        epochs_done=whole_epochs(savepoint),
        done=savepoint.done,
        skipped=savepoint.skipped_before + sum(one.skipped for one in savepoint.epochs),
        units_done=sum(full),
        units_open=sum(not one for one in full),
    )


def stream_history(stream: Stream, spec: JobSpec) -> documents.StreamHistory:
    """Return what happened to a stream."""
    return documents.StreamHistory(
        job=spec.name,
        stream=stream.name,
        items=tuple(
            documents.StreamMoment(
                at=known_time(one.at_ms),
                revision=str(one.revision),
                reason=one.reason,
                by=one.by,
                message=one.message,
            )
            for one in stream.moments
        ),
    )
