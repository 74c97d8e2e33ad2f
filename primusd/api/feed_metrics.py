"""Figures of streams and their readers in Prometheus' text form."""

from collections.abc import Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from primusd.datafeed.ledger.model import Stream
from primusd.job.model import Job
from primusd.views.live import Live
from primusd.views.streams import reader_statuses, stream_status

READERS_MAX = 1_000
"""Readers with series of their own, of all jobs together."""
_OF_STREAM = ("namespace", "job", "stream")
_STREAM = {
    "done": "Positions done in this pass.",
    "expected": "Positions of this pass; while not every file was opened, guessed.",
    "leased": "Positions that readers hold.",
    "skipped": "Positions left out by a person, in this pass.",
    "dead": "Positions left out otherwise, in this pass.",
    "lag": "Offsets of topics that are not done.",
    "per_second": "Positions acknowledged a second.",
    "eta_ms": "Until the stream is at its end, at that speed.",
    "repeated_max": "The most positions that may have come twice.",
}
_READER = {
    "per_second": "Rows a second, while it has some.",
    "bytes_per_second": "Bytes that rows take of memory.",
    "rows": "Rows that its trainer took.",
    "buffered_bytes": "Read ahead.",
    "waited_percent": "Of the time, its trainer waited for data.",
    "blocked_percent": "Of the time, it waited for its trainer.",
    "left_ms": "Until it is through with what it holds.",
}
Found = Iterable[tuple[Job, Stream]]


def stream_metrics(found: Found, live: Live, *, at_ms: int) -> Iterator[Metric]:
    """Yield the figures of streams, and of the first readers.

    Args:
        found: Streams with their jobs.
        live: What readers last reported.
        at_ms: Journal time now.
    """
    streams = {
        key: GaugeMetricFamily(f"primus_stream_{key}", text, labels=_OF_STREAM)
        for key, text in _STREAM.items()
    }
    readers = {
        key: GaugeMetricFamily(f"primus_reader_{key}", text, labels=(*_OF_STREAM, "replica"))
        for key, text in _READER.items()
    }
    left = READERS_MAX
    for job, stream in found:
        labels = (job.spec.namespace, job.spec.name, stream.name)
        _add(streams, labels, stream_status(stream))
        for reader in reader_statuses(stream, live, at_ms=at_ms)[:left]:
            _add(readers, (*labels, reader.replica), reader)
            left -= 1
    yield from streams.values()
    yield from readers.values()


def _add(families: dict[str, GaugeMetricFamily], labels: tuple[str, ...], status: object) -> None:
    for key, family in families.items():
        value = getattr(status, key)  # the closed lists above
        if isinstance(value, int):
            family.add_metric(labels, value)
