"""The `data` part of a job file."""

from msgspec.structs import replace

from primusd.job.spec import Source, Split, StreamSpec, follows_topics
from primusd.jobfile.decoding import DECODING_FIELDS, OPTION_NAMES, is_cut_by_bytes, read_decoding
from primusd.jobfile.document import Path
from primusd.jobfile.file_sources import FILE_FIELDS, read_files
from primusd.jobfile.names import check_label
from primusd.jobfile.ordering import ORDER_FIELDS, read_order, read_weight
from primusd.jobfile.promises import PROMISE_FIELDS, read_promises
from primusd.jobfile.rescans import check_rescans
from primusd.jobfile.section import Findings, Section, is_list, is_mapping
from primusd.jobfile.topics import (
    KAFKA_FIELDS,
    TIME_FORM,
    check_topics,
    is_until,
    read_kafka,
    read_out_of_range,
)
from primusd.jobfile.transforms import TRANSFORM_FIELDS, read_transform

STREAM_FIELDS = (
    "sources",
    "split",
    "epochs",
    "until",
    "window",
    "outOfRange",
    *PROMISE_FIELDS,
    *DECODING_FIELDS,
    *ORDER_FIELDS,
    *TRANSFORM_FIELDS,
)
SOURCE_FIELDS = (*FILE_FIELDS, "kafka", "weight")
SOURCES_MAX = 10_000
_OF_FORMAT = {key: f"it belongs in format: {{name: …, {key}: …}}" for key in OPTION_NAMES}
_OF_ROLE = dict.fromkeys(("feed", "framing"), "it belongs in the role that reads the stream")
_OF_KAFKA = dict.fromkeys(KAFKA_FIELDS, "it belongs in an entry of sources, below kafka")
_OF_SOURCE = dict.fromkeys(SOURCE_FIELDS, "it belongs in an entry of sources")
_OF_STREAM = dict.fromkeys(STREAM_FIELDS, "it belongs beside sources: it is of the whole stream")


def read_stream(findings: Findings, name: str, value: object, *, base_dir: str) -> StreamSpec:
    """Return a stream with its defaults; what is wrong goes to the findings.

    Args:
        findings: Where to.
        name: As in the job file.
        value: Its part of the document.
        base_dir: Relative paths are made absolute below it; "" refuses them.
    """
    path: Path = ("data", name)
    check_label(findings, path, name, of_key=True)
    elsewhere = _OF_KAFKA | _OF_SOURCE | _OF_FORMAT | _OF_ROLE
    fields = ("sources.files",)
    section = Section(findings, path, value, STREAM_FIELDS, deeper=fields, elsewhere=elsewhere)
    sources = _sources(section, base_dir)
    decoded = read_decoding(section, sources, base_dir=base_dir)
    stream = replace(
        decoded,
        name=name,
        split=_split(section, decoded),
        epochs=section.count("epochs", 1, low=1, high=1_000_000),
        window_ms=section.duration_ms("window", 10_000, zero=False),
        out_of_range=read_out_of_range(section, sources),
        transform=read_transform(section),
    )
    stream = read_promises(section, stream, base_dir=base_dir)
    _check_until(section, stream)
    written = section.raw("sources")
    has_weights = is_list(written) and any(is_mapping(one) and "weight" in one for one in written)
    ordered = read_order(section, stream, has_weights=has_weights)
    check_topics(section, ordered)
    check_rescans(section, ordered)
    return ordered


def _check_until(section: Section, stream: StreamSpec) -> None:
    if not section.has("until"):
        return
    if not is_until(section.raw("until")):
        section.wrong("until", ("end", "never", TIME_FORM))
    elif section.raw("until") != "end" and not follows_topics(stream):
        section.wrong("until", "end", "a stream without a kafka source ends with its files")


def _sources(section: Section, base_dir: str) -> tuple[Source, ...]:
    value = section.raw("sources")
    if not is_list(value) or not value or len(value) > SOURCES_MAX:
        form = f"a list of 1 to {SOURCES_MAX} sources, as [{{files: data/*.parquet}}]"
        if section.has("sources"):
            section.wrong("sources", form)
        elif section.is_mapping:
            section.findings.add(section.path, hint=f"sources is missing: {form}")
        return ()
    found = []
    for index, one in enumerate(value):
        at = (*section.at("sources"), index)
        elsewhere = _OF_KAFKA | _OF_FORMAT | _OF_ROLE | _OF_STREAM
        source = Section(section.findings, at, one, SOURCE_FIELDS, elsewhere=elsewhere)
        if (read := _source(source, section.raw("until"), base_dir)) is not None:
            found.append(read)
    return tuple(found)


def _source(source: Section, until: object, base_dir: str) -> Source | None:
    """Return a source, None with a finding where what was written is none."""
    if source.has("files") and source.has("kafka"):
        source.wrong("kafka", "files or kafka, not both", "write two sources")
    elif source.has("files"):
        return read_files(source, base_dir=base_dir, weight=read_weight(source))
    elif source.has("kafka"):
        for key in FILE_FIELDS:
            if source.has(key):
                source.wrong(key, "nothing here", "it is of files")
        kafka = read_kafka(source, until)
        return None if kafka is None else Source(kafka=kafka, weight=read_weight(source))
    elif source.is_mapping:
        hint = "files is missing: a path, a folder or a glob; or kafka, with its topics"
        source.findings.add(source.path, hint=hint)
    return None


def _split(section: Section, stream: StreamSpec) -> Split:
    if not section.has("split"):
        return Split()
    split = Section(section.findings, section.at("split"), section.raw("split"), ("rows", "bytes"))
    if split.has("rows") and split.has("bytes"):
        section.wrong("split", "rows or bytes, not both")
    if split.has("rows") and is_cut_by_bytes(stream):
        name = stream.format
        split.wrong("rows", "bytes, as 64Mi", f"{name} is cut by bytes, at the next record")
    return Split(split.count("rows", 0, low=1), split.byte_count("bytes", 0, zero=False))
