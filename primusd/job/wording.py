"""How times, replicas and positions are said in sentences for people."""

from collections.abc import Iterable

from primusd.job.formats import has_bytes, told_by_name
from primusd.job.ids import Span, replica_name
from primusd.job.spec import JobSpec, follows_topics, has_files


def duration_words(duration_ms: int) -> str:
    """Return a duration as people say it: `850 ms`, `52 s`, `3 min`, `2 h`."""
    if duration_ms < 1000:
        return f"{max(0, duration_ms)} ms"
    seconds = (duration_ms + 500) // 1000
    if seconds < 120:
        return f"{seconds} s"
    if seconds < 7200:
        return f"{seconds // 60} min"
    return f"{seconds // 3600} h"


def span_words(spans: Iterable[Span]) -> str:
    """Return spans as people read them: `worker-0 to worker-3, ps-0`."""
    found = []
    for span in spans:
        first = replica_name(span.role, span.low)
        found.append(
            first if span.low == span.high else f"{first} to {replica_name(span.role, span.high)}"
        )
    if len(found) > 8:
        return ", ".join(found[:8]) + f" and {len(found) - 8} more"
    return ", ".join(found)


def unit_words(spec: JobSpec, stream: str) -> str:
    """Return what a stream's positions are, as far as its spec tells; `positions` of any kind."""
    of_stream = spec.data[stream.partition("@")[0]]
    if follows_topics(of_stream):
        return "positions" if has_files(of_stream) else "offsets"
    files = of_stream.sources[0].files if of_stream.sources else ""
    told = told_by_name(files)
    form = of_stream.format or told.format
    if not form:
        return "positions"
    options = {"compression": told.compression, **of_stream.decoding.options, "format": form}
    return "bytes" if has_bytes(options) else "rows"


def missing_words(count: int, of: str = "") -> str:
    """Return how many folders by time were passed over."""
    folders = "1 folder" if count == 1 else f"{count} folders"
    return f"{folders}{of} did not come and {'was' if count == 1 else 'were'} passed over"


def sampled_words(count: int, spec: JobSpec, stream: str) -> str:
    """Return how many rows the sample of a stream, or its transform, left out."""
    of = spec.data.get(stream.partition("@")[0])
    if of is None or of.transform is None or not of.transform.may_drop:
        return f"{count} {'row is' if count == 1 else 'rows are'} not in the sample"
    by = "transform" if of.sample is None else "sample and transform"
    return f"{count} {'row was' if count == 1 else 'rows were'} left out by the {by}"


def left_out_words(count: int, unit: str, unsized: int) -> str:
    """Return how much was left out.

    Args:
        count: Positions, with one for each file whose end is not known.
        unit: What positions are.
        unsized: Such files.
    """
    files = f"{unsized} {'file' if unsized == 1 else 'files'} of unknown length"
    known = f"{count - unsized} {unit}"
    if not unsized:
        return known
    return f"{known} and {files}" if count > unsized else files
