"""Topics of Kafka as a source: where their partitions begin and end, and how they are reached."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime

from primusd.job.spec import (
    KafkaSecurity,
    KafkaSource,
    Offsets,
    Source,
    StreamSpec,
    follows_topics,
)
from primusd.jobfile.document import show_value
from primusd.jobfile.file_sources import render_files
from primusd.jobfile.section import Section, is_mapping

KAFKA_FIELDS = (
    "bootstrap",
    "topic",
    "topics",
    "start",
    "until",
    "group",
    "mirror",
    "isolation",
    "security",
)
SECURITY_FIELDS = (
    "protocol",
    "mechanism",
    "username",
    "password",
    "passwordFile",
    "ca",
    "cert",
    "key",
)
FILE_FIELDS = ("passwordFile", "ca", "cert", "key")
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
VALUE_FORMATS = ("text", "jsonl", "protobuf")
"""How the value of a record may be decoded."""
BROKERS_MAX = 100
TOPICS_MAX = 1_000
PARTITION_MAX = 99_999
OFFSET_MAX = 2**62
TIME_MS_MIN = 10**11
TIME_FORM = "a time with its zone, as 2026-01-01T00:00:00Z"
_BROKER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}", re.ASCII)
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)


def read_kafka(source: Section, until: object) -> KafkaSource | None:
    """Return the topics of a source, None where what was written is no source at all.

    Args:
        source: An entry of `sources` that has `kafka`.
        until: The stream's `until`, which holds where the source has none; None: it has none.
    """
    kafka = Section(source.findings, source.at("kafka"), source.raw("kafka"), KAFKA_FIELDS)
    if not kafka.is_mapping:
        return None
    start = _start(kafka)
    group = kafka.text("group")
    if start.kind == "committed" and not group:
        kafka.wrong("start", "earliest, or committed with a group", "group is missing")
    if kafka.has("mirror") and not group:
        kafka.wrong("mirror", "a group to commit for", "group is missing")
    return KafkaSource(
        bootstrap=_bootstrap(kafka),
        topics=_topics(kafka),
        start=start,
        until=_until(kafka, until),
        group=group,
        is_mirrored=kafka.flag("mirror", default=True),
        isolation=kafka.choice("isolation", ("committed", "uncommitted"), "committed"),
        security=_security(kafka),
    )


def read_out_of_range(section: Section, sources: tuple[Source, ...]) -> str:
    """Return what follows when offsets are gone before they were read."""
    found = section.choice("outOfRange", ("fail", "earliest"), "fail")
    if section.has("outOfRange") and all(one.kafka is None for one in sources):
        section.findings.warn(section.at("outOfRange"), "has no effect without a kafka source")
    return found


def check_topics(section: Section, stream: StreamSpec) -> None:
    """Note what a stream asks for that topics have no way to give."""
    if not follows_topics(stream):
        return
    sources = [source.kafka for source in stream.sources if source.kafka is not None]
    named = [(one.bootstrap, topic) for one in sources for topic in one.topics]
    twice = next(
        (topic for place, (_, topic) in enumerate(named) if named[place] in named[:place]), ""
    )
    if twice:
        section.wrong("sources", "each topic once", f"topic {twice} is named twice")
    if stream.format and stream.format not in VALUE_FORMATS:
        section.wrong(
            "format",
            VALUE_FORMATS,
            "of records of Kafka it decodes the values; without it a row is the record: "
            "key, value, offset, timestamp, partition",
        )
    if any(one.span is not None and one.span.last == "now" for one in stream.sources):
        hint = "files to: now never end, and topics are read behind files: write two streams"
        section.wrong("sources", "files with an end beside kafka", hint)
    if stream.split.byte_count:
        section.wrong("split", "rows, as {rows: 65536}", "partitions are cut by offsets")
    if stream.epochs > 1 and any(one.until.kind != "end" for one in sources):
        section.wrong("epochs", "1", "what grows while it is read is read once; or say until: end")
    for key, asked in (
        ("shuffle", stream.shuffle is not None),
        ("order", stream.order == "strict"),
    ):
        if asked:
            hint = "partitions grow while they are read, so no order can be kept for all of them"
            section.wrong(key, "streams of files", hint)


def render_source(source: Source) -> dict[str, object]:
    """Return what `read_kafka` reads, or the files."""
    kafka = source.kafka
    if kafka is None:
        return render_files(source)
    found: dict[str, object] = {
        "bootstrap": list(kafka.bootstrap),
        "topics": list(kafka.topics),
        "start": _rendered(kafka.start),
        "until": _rendered(kafka.until),
    }
    if kafka.group:
        found |= {"group": kafka.group, "mirror": kafka.is_mirrored}
    found["isolation"] = kafka.isolation
    security = kafka.security
    written = {
        "protocol": security.protocol,
        "mechanism": security.mechanism,
        "username": security.username,
        "passwordFile": security.password_file,
        "ca": security.ca_file,
        "cert": security.cert_file,
        "key": security.key_file,
    }
    if security != KafkaSecurity():
        found["security"] = {key: text for key, text in written.items() if text}
    return {"kafka": found}


def _bootstrap(kafka: Section) -> tuple[str, ...]:
    form = "a list of host:port, as [k1:9092, k2:9092]"
    value = kafka.raw("bootstrap")
    found = (value,) if isinstance(value, str) and value else kafka.texts("bootstrap")
    if not kafka.has("bootstrap"):
        kafka.findings.add(kafka.path, hint=f"bootstrap is missing: {form}")
    elif not found or len(found) > BROKERS_MAX or not all(map(_BROKER.fullmatch, found)):
        kafka.wrong("bootstrap", form)
    return found


def _topics(kafka: Section) -> tuple[str, ...]:
    if kafka.has("topic") == kafka.has("topics"):
        hint = "topic or topics, one of them: topic: clicks"
        kafka.findings.add(kafka.path, hint=hint)
        return ()
    key = "topic" if kafka.has("topic") else "topics"
    found = kafka.texts("topics") if key == "topics" else tuple(filter(None, [kafka.text("topic")]))
    bad = [one for one in found if not _TOPIC.fullmatch(one) or one in {".", ".."}]
    if bad or len(found) > TOPICS_MAX or (key == "topics" and not found):
        kafka.wrong(key, "names of 1 to 249 letters, digits, dots, _ and -")
    return found


def _start(kafka: Section) -> Offsets:
    if not kafka.has("start"):
        return Offsets("earliest")
    words = ("earliest", "latest", "committed")
    return _offsets(kafka, "start", kafka.raw("start"), words) or Offsets("earliest")


def _until(kafka: Section, of_stream: object) -> Offsets:
    words = ("end", "never")
    if kafka.has("until"):
        return _offsets(kafka, "until", kafka.raw("until"), words) or Offsets("never")
    if of_stream in words:
        return Offsets(str(of_stream))
    at_ms = _time_ms(of_stream)
    return Offsets("never") if at_ms is None else Offsets("time", at_ms)


def is_until(value: object) -> bool:
    """Return whether a value may be a stream's `until`."""
    return value in {"end", "never"} or _time_ms(value) is not None


def _offsets(kafka: Section, key: str, value: object, words: tuple[str, ...]) -> Offsets | None:
    allowed = (*words, TIME_FORM, "{offset: 1000}", "{offsets: {0: 1000, 1: 2000}}")
    if isinstance(value, str) and value in words:
        return Offsets(value)
    if is_mapping(value):
        return _numbers(kafka, key, value)
    at_ms = _time_ms(value)
    if at_ms is None:
        kafka.wrong(key, allowed)
        return None
    return Offsets("time", at_ms)


def _numbers(kafka: Section, key: str, value: Mapping[str, object]) -> Offsets | None:
    written = Section(kafka.findings, kafka.at(key), value, ("offset", "offsets"))
    if written.has("offset") == written.has("offsets"):
        kafka.wrong(key, "offset or offsets, one of them")
        return None
    if written.has("offset"):
        return Offsets("offset", offset=written.count("offset", 0, high=OFFSET_MAX))
    found: dict[int, int] = {}
    offsets = written.raw("offsets")
    form = "a mapping of partitions to offsets, as {0: 1000, 1: 2000}"
    if not is_mapping(offsets) or not offsets:
        written.wrong("offsets", form)
        return None
    for partition, offset in offsets.items():
        is_number = str(partition).isdecimal() and int(partition) <= PARTITION_MAX
        if is_number and type(offset) is int and 0 <= offset <= OFFSET_MAX:
            found[int(partition)] = offset
        else:
            path = (*written.at("offsets"), partition)
            written.findings.add(path, found=show_value(offset), allowed=form)
    return Offsets("offset", offsets=found)


def _time_ms(value: object) -> int | None:
    """Return the milliseconds of a time; None: it is none, or has no zone."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if TIME_MS_MIN <= value <= OFFSET_MAX else None
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    if moment.tzinfo is None:
        return None
    return round(moment.timestamp() * 1000)


def _rendered(offsets: Offsets) -> object:
    match offsets.kind:
        case "time":
            moment = datetime.fromtimestamp(offsets.at_ms / 1000, UTC)
            return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        case "offset" if offsets.offset >= 0:
            return {"offset": offsets.offset}
        case "offset":
            return {"offsets": {str(one): at for one, at in offsets.offsets.items()}}
        case _:
            return offsets.kind


def _security(kafka: Section) -> KafkaSecurity:
    if not kafka.has("security"):
        return KafkaSecurity()
    written = Section(kafka.findings, kafka.at("security"), kafka.raw("security"), SECURITY_FIELDS)
    if written.has("password"):
        kafka.findings.add(
            written.at("password"),
            allowed="passwordFile: /etc/primusd/kafka-password",
            hint="a password would be kept and shown with the job; write it into a file that the "
            "daemon and every host that reads can open",
        )
    protocol = written.choice("protocol", PROTOCOLS, "PLAINTEXT")
    has_sasl, has_tls = protocol.startswith("SASL"), protocol.endswith("SSL")
    needed = ("mechanism", "username", "passwordFile")
    for key in needed:
        if has_sasl and not written.has(key) and not written.has("password"):
            kafka.findings.add(written.path, hint=f"{key} is missing: {protocol} needs a user")
        elif written.has(key) and not has_sasl:
            written.wrong(key, "SASL_PLAINTEXT or SASL_SSL as protocol")
    for key in ("ca", "cert", "key"):
        if written.has(key) and not has_tls:
            written.wrong(key, "SSL or SASL_SSL as protocol")
    files = {key: written.text(key) for key in FILE_FIELDS}
    for key, path in files.items():
        if path and not path.startswith("/"):
            written.wrong(key, "an absolute path", "it is read by the daemon and by every reader")
    return KafkaSecurity(
        protocol=protocol,
        mechanism=written.choice("mechanism", MECHANISMS, "") if written.has("mechanism") else "",
        username=written.text("username"),
        password_file=files["passwordFile"],
        ca_file=files["ca"],
        cert_file=files["cert"],
        key_file=files["key"],
    )
