"""How often files that were listed are looked at again, for those that come late."""

from primusd.job.spec import Source, StreamSpec, follows_topics, has_end
from primusd.jobfile.section import Section, is_mapping
from primusd.units import format_duration

EVERY_MS_MIN = 10_000
EVERY_MS_MAX = 86_400_000
FOR_MS = 86_400_000
"""Of folders by time; a stream with all hours of a year would look at all of them."""
FOR_MS_MAX = 3_660 * 86_400_000
EVERY_FORM = (
    f"a duration from {format_duration(EVERY_MS_MIN)} to {format_duration(EVERY_MS_MAX)}, as 10m, "
    "or {every: 10m, for: 2d}"
)


def read_rescan(section: Section, *, is_timed: bool) -> tuple[int, int]:
    """Return how often a source is looked at again, and for how long; 0 never, and without end."""
    if not section.has("rescan"):
        return 0, 0
    if not is_mapping(section.raw("rescan")):
        every_ms = _every_ms(section, "rescan")
        return every_ms, FOR_MS if is_timed and every_ms else 0
    inner = Section(section.findings, section.at("rescan"), section.raw("rescan"), ("every", "for"))
    if not inner.has("every"):
        inner.findings.add(inner.path, hint=f"every is missing: {EVERY_FORM}")
        return 0, 0
    every_ms = _every_ms(inner, "every")
    if not inner.has("for"):
        return every_ms, FOR_MS if is_timed else 0
    for_ms = inner.duration_ms("for", FOR_MS)
    if every_ms and not every_ms <= for_ms <= FOR_MS_MAX:
        allowed = f"{format_duration(every_ms)} (every) to {format_duration(FOR_MS_MAX)}"
        inner.wrong("for", allowed)
    return every_ms, for_ms


def _every_ms(section: Section, key: str) -> int:
    found = section.duration_ms(key, EVERY_MS_MIN)
    if not EVERY_MS_MIN <= found <= EVERY_MS_MAX:
        section.wrong(key, EVERY_FORM)
        return 0
    return found


def render_rescan(source: Source) -> object:
    """Return what a job file says of it."""
    every = format_duration(source.rescan_ms)
    if not source.rescan_for_ms:
        return every
    return {"every": every, "for": format_duration(source.rescan_for_ms)}


def check_rescans(section: Section, stream: StreamSpec) -> None:
    """Note streams in which files that come late have no place."""
    for index, source in enumerate(stream.sources):
        if not source.rescan_ms:
            continue
        path = (*section.at("sources"), index, "rescan")
        if follows_topics(stream):
            hint = "topics are read behind all files: write two streams"
            section.findings.add(path, allowed="nothing here", hint=hint)
        elif stream.order == "strict":
            hint = "order: strict deals all files to its lanes before the first row"
            section.findings.add(path, allowed="nothing here", hint=hint)
        elif stream.epochs > 1 and not has_end(source):
            hint = "the next pass begins when all is listed; for: 6h says when that is"
            section.findings.add(path, allowed="{every, for}, with epochs", hint=hint)
