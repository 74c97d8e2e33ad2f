"""How times, replicas and positions are said in sentences for people."""

from collections.abc import Iterable

from primusd.job.formats import has_bytes, told_by_name
from primusd.job.ids import Span, replica_name
from primusd.job.spec import JobSpec, StreamSpec, follows_topics, has_files


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


def leaving_out(spec: StreamSpec) -> tuple[str, ...]:
    """Return the keys of a stream that may leave rows out, and count them."""
    found = {
        "filter": bool(spec.decoding.filter),
        "sample": spec.sample is not None,
        "transform": spec.transform is not None and spec.transform.may_drop,
    }
    return tuple(key for key, may_leave in found.items() if may_leave)


def sampled_words(count: int, spec: JobSpec, stream: str) -> str:
    """Return how many rows the filter of a stream, its sample, or its transform left out."""
    of = spec.data.get(stream.partition("@")[0])
    by = () if of is None else leaving_out(of)
    if by in ((), ("sample",)):
        return f"{count} {'row is' if count == 1 else 'rows are'} not in the sample"
    keys = ", ".join(by[:-1]) + f" and {by[-1]}" if len(by) > 1 else by[0]
    return f"{count} {'row was' if count == 1 else 'rows were'} left out by the {keys}"


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
