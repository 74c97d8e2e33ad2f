"""What a stream says of the order of its rows: shuffle, order, lanes, mixing, sample, tail."""

from collections.abc import Sequence

from msgspec.structs import replace

from primusd.job.spec import (
    LANES,
    SHUFFLE_BLOCK_ROWS,
    SHUFFLE_BLOCKS,
    RoleSpec,
    Sample,
    Shuffle,
    Source,
    StreamSpec,
)
from primusd.jobfile.document import Path
from primusd.jobfile.section import Findings, Section

ORDER_FIELDS = ("shuffle", "order", "lanes", "mixing", "sample", "tail")
MIXINGS = ("inOrder", "roundRobin", "weighted", "priority")
WEIGHT_MAX = 1_000_000
TRACKS_MAX = 64
"""Sources that are mixed, or lanes."""
SEED_MAX = 2**53 - 1
MILLION = 1_000_000


def read_weight(source: Section) -> int:
    """Return a source's weight."""
    return source.count("weight", 1, low=1, high=WEIGHT_MAX)


def read_order(section: Section, stream: StreamSpec, *, has_weights: bool) -> StreamSpec:
    """Return a stream with what it says of the order of its rows.

    Args:
        section: The stream's.
        stream: As read so far.
        has_weights: A source says its weight.
    """
    order = section.choice("order", ("any", "unit", "strict"), "any")
    mixing = section.choice("mixing", MIXINGS, "weighted" if has_weights else "inOrder")
    if section.has("lanes") and order != "strict":
        section.findings.warn(section.at("lanes"), "has no effect without order: strict")
    if has_weights and mixing in ("inOrder", "roundRobin"):
        section.findings.warn(section.at("mixing"), f"weights have no effect with {mixing}")
    _check_mixing(section, stream.sources, mixing, order)
    return replace(
        stream,
        order=order,
        shuffle=_shuffle(section),
        mixing=mixing if len(stream.sources) > 1 else "inOrder",
        lanes=section.count("lanes", LANES, low=1, high=TRACKS_MAX),
        sample=_sample(section),
        tail=section.choice("tail", ("uneven", "drop", "pad"), "uneven"),
    )


def _check_mixing(section: Section, sources: Sequence[Source], mixing: str, order: str) -> None:
    if mixing == "inOrder":
        return
    if order == "strict":
        section.wrong(
            "mixing" if section.has("mixing") else "order",
            "order: strict or mixed sources, not both",
            "give each source a stream of its own, or shuffle them together",
        )
    if len(sources) > TRACKS_MAX:
        section.wrong("sources", f"at most {TRACKS_MAX} sources that are mixed")


def _shuffle(section: Section) -> Shuffle | None:
    value = section.raw("shuffle")
    if value is None or value is False:
        return None
    if value is True:
        return Shuffle()
    shuffle = Section(
        section.findings, section.at("shuffle"), value, ("seed", "blocks", "blockRows")
    )
    return Shuffle(
        shuffle.count("seed", 0, high=SEED_MAX),
        shuffle.count("blocks", SHUFFLE_BLOCKS, low=1, high=256),
        shuffle.count("blockRows", SHUFFLE_BLOCK_ROWS, low=1, high=1 << 20),
    )


def _sample(section: Section) -> Sample | None:
    if not section.has("sample"):
        return None
    value = section.raw("sample")
    if isinstance(value, dict):
        inner = Section(section.findings, section.at("sample"), value, ("rate", "seed"))
        return Sample(_rate(inner, "rate"), inner.count("seed", 0, high=SEED_MAX))
    return Sample(_rate(section, "sample"))


def _rate(section: Section, key: str) -> int:
    """Return a fraction in millionths."""
    value = section.raw(key)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    found = round(value * MILLION) if is_number and isinstance(value, int | float) else 0
    if not 1 <= found <= MILLION:
        section.wrong(key, "a fraction over 0 to 1, as 0.1")
        return MILLION
    return found


def check_reading(findings: Findings, path: Path, stream: StreamSpec, role: RoleSpec) -> None:
    """Note what the order of a stream's rows asks for and a role's feed cannot give.

    Args:
        findings: Where to.
        path: Of the role's data.
        stream: That the role reads.
        role: It.
    """
    _check_tail(findings, path, stream, role)
    is_piped = role.feed in ("stdin", "fifo")
    changes_rows = stream.shuffle is not None or stream.sample is not None
    if is_piped and stream.order == "strict":
        findings.add(path, found=role.feed, allowed="feed: sdk", hint="order: strict needs it")
    if is_piped and changes_rows and (stream.format != "text" or role.framing != "lines"):
        findings.add(
            path,
            found=f"feed: {role.feed} with format {stream.format or 'of the files'}",
            allowed="feed: sdk, or format: text with framing: lines",
            hint="rows that are shuffled or sampled go through a pipe as lines of text only",
        )


def _check_tail(findings: Findings, path: Path, stream: StreamSpec, role: RoleSpec) -> None:
    """Note what trainers that step together cannot have."""
    if stream.tail == "uneven":
        return
    if role.feed != "sdk":
        hint = f"stream {stream.name} has tail: {stream.tail}, which counts batches"
        findings.add(path, found=f"feed: {role.feed}", allowed="feed: sdk", hint=hint)
    if stream.order != "any":
        findings.add(
            ("data", stream.name, "tail"),
            found=f"{stream.tail} with order: {stream.order}",
            allowed="order: any",
            hint="files whose rows stay in their order are not shared at the end",
        )


def render_order(stream: StreamSpec) -> dict[str, object]:
    """Return the same as a job file says it."""
    found: dict[str, object] = {"order": stream.order}
    if stream.order == "strict":
        found["lanes"] = stream.lanes
    if (shuffle := stream.shuffle) is not None:
        found["shuffle"] = {
            "seed": shuffle.seed,
            "blocks": shuffle.blocks,
            "blockRows": shuffle.block_rows,
        }
    if stream.mixing != "inOrder":
        found["mixing"] = stream.mixing
    if (sample := stream.sample) is not None:
        found["sample"] = {"rate": sample.per_million / MILLION, "seed": sample.seed}
    if stream.tail != "uneven":
        found["tail"] = stream.tail
    return found
