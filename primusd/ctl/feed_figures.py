"""How a stream's figures look: who waits for whom, what is slow or uneven, what is left out."""

from primusd.ctl.client import Json
from primusd.ctl.documents import count, mapping, mappings, text
from primusd.ctl.output import grouped, short_duration
from primusd.units import bytes_words

SOURCE_HEADER = ("SOURCE", "FILES", "DONE", "OF", "PER SECOND", "LEFT", "LAG")
READER_HEADER = (
    "READER",
    "LEASES",
    "ROWS",
    "ROWS/S",
    "BYTES/S",
    "AHEAD",
    "WAITS",
    "BLOCKED",
    "LEFT",
    "LAST ACK",
)


def told_lines(stream: Json) -> list[str]:
    """Return in sentences what is to be told of a stream."""
    unit = text(mapping(stream, "positions"), "unit")
    lines = [*_listing_lines(stream), text(stream, "waits")]
    lines += [text(one, "message") for one in mappings(stream, "notes")]
    if repeated := count(stream, "repeatedMax"):
        lines.append(f"at most {grouped(repeated)} {unit} came twice")
    if sampled := count(mapping(stream, "positions"), "leftOut"):
        lines.append(f"{grouped(sampled)} rows were left out by its filter, sample or transform")
    lines.append(_left_out(stream, unit))
    if ahead := count(stream, "bufferedBytes"):
        lines.append(f"{_bytes(ahead)} are read ahead")
    return [line for line in lines if line]


def _listing_lines(stream: Json) -> list[str]:
    """Return why a stream failed, what it waits for, and what it passed over."""
    units = mapping(stream, "units")
    lines = [f"failed: {text(stream, 'failure')}"] if text(stream, "failure") else []
    is_live = text(stream, "phase") in ("Opening", "Serving")
    for key, word in (("waitingFor", "waits"), ("missing", "passed over")):
        reasons = units.get(key) if is_live or key == "missing" else ()
        if isinstance(reasons, list):
            # Some say it themselves, and how.
            lines += [
                str(one) if str(one).startswith(word) else f"{word}: {one}" for one in reasons
            ]
    return lines + _rescan_lines(mapping(units, "rescan"), is_live=is_live)


def _rescan_lines(rescan: Json, *, is_live: bool) -> list[str]:
    """Return what looks at folders that were listed before have brought."""
    if not rescan:
        return []
    late, looks = count(rescan, "late"), count(rescan, "count")
    files = f"{grouped(late)} {'file' if late == 1 else 'files'} came late"
    word = "look" if looks == 1 else "looks"
    line = f"{files}, in {grouped(looks)} {word} at folders that were listed"
    if is_live and (next_at := text(rescan, "nextAt")):
        line += f"; the next one is at {next_at}"
    changed = rescan.get("changed")
    names = changed if isinstance(changed, list) else []
    return [line, *(f"changed since it was listed, not read again: {one}" for one in names)]


def _left_out(stream: Json, unit: str) -> str:
    reasons = mapping(stream, "leftOut")
    parts = [
        f"{grouped(count(one, 'positions'))} in {grouped(count(one, 'ranges'))} "
        f"{'range' if count(one, 'ranges') == 1 else 'ranges'} ({reason})"
        for reason in reasons
        if (one := mapping(reasons, reason))
    ]
    hint = "data NAME dead lists them"
    return f"left out, in {unit}: {', '.join(parts)}; {hint}" if parts else ""


def source_row(source: Json) -> list[object]:
    """Return the cells of a source."""
    eta_ms = count(source, "etaMs")
    return [
        text(source, "name"),
        *(grouped(source.get(key)) for key in ("units", "done", "total", "perSecond")),
        _left(eta_ms),
        grouped(source.get("lag")),
    ]


def reader_row(reader: Json) -> list[object]:
    """Return the cells of a reader."""
    ack_ms = count(reader, "oldestAckMs")
    return [
        f"{text(reader, 'replica')}/{text(reader, 'attempt')}",
        reader.get("leases"),
        grouped(reader.get("rows")),
        grouped(reader.get("perSecond")),
        _bytes(count(reader, "bytesPerSecond")),
        _bytes(count(reader, "bufferedBytes")),
        _percent(count(reader, "waitedPercent")),
        _percent(count(reader, "blockedPercent")),
        _left(count(reader, "leftMs")),
        f"{short_duration(ack_ms / 1000)} ago" if ack_ms is not None else "",
    ]


def _left(left_ms: int | None) -> str:
    return "" if left_ms is None else short_duration(left_ms / 1000)


def _percent(found: int | None) -> str:
    return "" if found is None else f"{found} %"


def _bytes(byte_count: int | None) -> str:
    return "" if byte_count is None else bytes_words(byte_count)
