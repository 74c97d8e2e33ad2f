"""What a stream's figures mean: who waits for whom, which reader is slow, what is uneven."""

from collections.abc import Iterator, Sequence
from itertools import islice
from statistics import median

from msgspec import Struct

from primusd.datafeed.ledger.grants import does_wait
from primusd.datafeed.ledger.model import Stream
from primusd.datafeed.ledger.places import PartitionPlace
from primusd.job.ids import AttemptId
from primusd.job.spec import is_endless
from primusd.units import bytes_words
from primusd.views.feed_documents import FeedNote, SourceStatus
from primusd.views.live import Live, LiveWait

JUDGED_AFTER_MS = 10_000
"""For less than this no reader is judged."""
WAITS_PERCENT = 50
SELDOM_PERCENT = 10
SLOW_PERCENT = 30
"""Of the median: below it a reader is slow."""
SKEW_TIMES = 4
TOLD_MAX = 3
"""So many times what the others have in the middle is uneven."""
SKEW_PERCENT = 20
"""Of all: what is less matters to nobody."""
LAG_MIN = 1_000
UNITS_MAX = 10_000
"""Streams of more files are not looked through for a document: it would hold the loop up."""
NOTES_MAX = 8


class FeedFigures(Struct, frozen=True):
    """The live figures of all readers of a stream together."""

    reports: int
    """Readers that reported."""
    rows_per_s: int
    bytes_per_s: int
    buffered_bytes: int
    waited_percent: int
    """-1: for too short a time, or nobody reads."""
    blocked_percent: int


def figures_of(stream: Stream, live: Live) -> FeedFigures:
    """Return what the readers of a stream reported, added up."""
    waits = [one for _, one in _waits(stream, live)]
    judged = [one for one in waits if one.passed_ms >= JUDGED_AFTER_MS]
    buffered = [
        report.buffered_bytes
        for attempt in stream.readers
        for report in live.feeds.get(attempt, ())
        if report.stream == stream.name
    ]
    return FeedFigures(
        len(buffered),
        sum(one.rows_per_s for one in waits),
        sum(one.bytes_per_s for one in waits),
        sum(buffered),
        sum(one.waited_percent for one in judged) // len(judged) if judged else -1,
        sum(one.blocked_percent for one in judged) // len(judged) if judged else -1,
    )


def _waits(stream: Stream, live: Live) -> Iterator[tuple[AttemptId, LiveWait]]:
    for attempt in stream.readers:
        found = live.waits.get((attempt, stream.name))
        if found is not None:
            yield attempt, found


def waits_words(stream: Stream, found: FeedFigures) -> str:
    """Return in a sentence who waits for whom; "" when that is not known."""
    waited, blocked = found.waited_percent, found.blocked_percent
    if waited < 0 or stream.phase not in ("Opening", "Serving"):
        return ""
    if waited >= WAITS_PERCENT and has_caught_up(stream):
        return "trainers wait for what is new: all that there is was read"
    if waited >= WAITS_PERCENT and waited >= blocked:
        return f"trainers wait for data {waited} % of the time: reading is what limits"
    if blocked >= WAITS_PERCENT:
        return f"data waits for trainers {blocked} % of the time: they are what limits"
    if waited < SELDOM_PERCENT:
        return f"trainers wait for data {waited} % of the time only: they are what limits"
    return (
        f"neither limits: trainers wait for data {waited} % of the time, data for trainers "
        f"{blocked} %"
    )


def has_caught_up(stream: Stream) -> bool:
    """Return whether a stream without an end has nothing more for now."""
    return is_endless(stream.spec) and not stream.lease_count and not does_wait(stream)


def starved_words(stream: Stream, live: Live) -> str:
    """Return the figures of a stream whose trainers wait for data; "" when no reader told any."""
    found = figures_of(stream, live)
    if not found.reports:
        return ""
    readers = "1 reader gives" if found.reports == 1 else f"{found.reports} readers give"
    words = f"{readers} {found.rows_per_s:,} rows/s ({bytes_words(found.bytes_per_s)}/s)"
    slow = [one.message for one in slow_readers(stream, live)]
    words = f"{words}, {bytes_words(found.buffered_bytes)} are read ahead"
    return "; ".join([words, *_troubles(stream, live), *slow])


def _troubles(stream: Stream, live: Live) -> tuple[str, ...]:
    """Return what readers try again and again, each fault once."""
    found = {
        report.trouble: attempt.replica
        for attempt, _ in _waits(stream, live)
        for report in live.feeds.get(attempt, ())
        if report.stream == stream.name and report.trouble
    }
    told = islice(found.items(), TOLD_MAX)
    return tuple(f"{replica} tries again: {text}" for text, replica in told)


def slow_readers(stream: Stream, live: Live) -> tuple[FeedNote, ...]:
    """Return the readers that are much slower than the one in the middle, the slowest first."""
    rates = [
        (report.rows_per_s, attempt)
        for attempt, wait in _waits(stream, live)
        if wait.passed_ms >= JUDGED_AFTER_MS
        for report in live.feeds.get(attempt, ())
        if report.stream == stream.name and report.rows_per_s
    ]
    if len(rates) < 2:
        return ()
    # Of two the faster one is what the other could be.
    middle = int(median(rate for rate, _ in rates)) if len(rates) > 2 else max(rates)[0]
    slow = sorted(one for one in rates if one[0] * 100 < middle * SLOW_PERCENT)
    return tuple(
        FeedNote(
            reason="SlowReader",
            subject=attempt.replica,
            message=f"{attempt.replica} takes {rate:,} rows/s, the median is {middle:,}",
            numbers={"rowsPerS": rate, "medianRowsPerS": middle},
        )
        for rate, attempt in islice(slow, NOTES_MAX)
    )


def skew(
    stream: Stream, places: Sequence[PartitionPlace], sources: Sequence[SourceStatus]
) -> tuple[FeedNote, ...]:
    """Return what has far more than the others: a partition, a source, a file."""
    lags = [(one.lag, one.location) for one in places]
    found = [_uneven(lags, "of the offsets that are not read yet", least=LAG_MIN)]
    if len(stream.spec.sources) > 1:
        sizes = [(one.bytes, one.name) for one in sources if isinstance(one.bytes, int)]
        found.append(_uneven(sizes, "of the bytes"))
    if len(stream.units) <= UNITS_MAX:
        files = [
            (one.unit.byte_count, one.unit.location)
            for one in stream.units
            if one.unit.kind == "file"
        ]
        found.append(_uneven(files, "of the bytes"))
    # A source that is one file is told of once.
    return tuple({one.subject: one for one in found if one is not None}.values())


def _uneven(counts: list[tuple[int, str]], what: str, *, least: int = 1) -> FeedNote | None:
    """Return what has far more than the one in the middle of the others."""
    if len(counts) < 2:
        return None
    total = sum(count for count, _ in counts)
    most, name = max(counts)
    others = sorted(count for count, _ in counts)[:-1]
    middle = int(median(others))
    is_far = most >= least and most >= SKEW_TIMES * middle and most * 100 >= total * SKEW_PERCENT
    if not is_far:
        return None
    percent = most * 100 // total
    return FeedNote(
        reason="Skew",
        subject=name,
        message=f"{name} has {percent} % {what}: {most:,}, the others {middle:,} in the middle",
        numbers={"most": most, "median": middle, "percent": percent},
    )
