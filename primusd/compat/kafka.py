"""The kafkaConfig of an original job file: its topics as sources of a stream."""

from primusd.compat.original import Fields, Path

_START_UP = ("GROUP_OFFSETS", "EARLIEST", "LATEST", "TIMESTAMP")
_STARTS = {"EARLIEST": "earliest", "LATEST": "latest"}
_NEEDED = {
    "bootstrap.servers": "bootstrap",
    "security.protocol": "protocol",
    "sasl.mechanism": "mechanism",
}
_SECRET = ("sasl.jaas.config", "ssl.keystore", "ssl.truststore", "ssl.key")


def kafka_framing(kafka: Fields) -> str:
    """Return how values go to standard input: as lines, or one after the other."""
    return "raw" if kafka.enum("kafkaMessageType", ("JSON", "PB")) == "PB" else "lines"


def kafka_sources(kafka: Fields) -> list[tuple[dict[str, object], Path]]:
    """Return the topics as sources, each with the path it stands at."""
    return [(_source(topic), topic.path) for topic in kafka.messages("topics")]


def _source(topic: Fields) -> dict[str, object]:
    config = topic.pairs("config")
    mode = topic.enum("kafkaStartUpMode", _START_UP)
    at_ms, group = topic.number("startUpTimestamp"), topic.text("consumerGroup")
    servers = config.get("bootstrap.servers", "").split(",")
    source: dict[str, object] = {
        "bootstrap": [server.strip() for server in servers if server.strip()],
        "topic": topic.text("topic"),
        "start": _start(topic, mode, at_ms, has_group=bool(group)),
    }
    if group:
        source["group"] = group
    _note_config(topic, config)
    topic.report_rest()
    return source


def _start(topic: Fields, mode: str, at_ms: int, *, has_group: bool) -> object:
    if mode == "TIMESTAMP":
        return at_ms
    if mode in _STARTS:
        return _STARTS[mode]
    if has_group:
        topic.report.note(
            topic.at("kafkaStartUpMode"),
            "partitions for which the group has committed nothing begin at the earliest offset",
        )
        return "committed"
    topic.report.note(
        topic.at("consumerGroup"), "is missing, so partitions begin at the earliest offset"
    )
    return "earliest"


def _note_config(topic: Fields, config: dict[str, str]) -> None:
    """Say of each setting of the Java client what becomes of it."""
    path = topic.at("config")
    for key, value in config.items():
        if key.startswith(_SECRET) or (key == "security.protocol" and value != "PLAINTEXT"):
            topic.report.refuse(
                (*path, key),
                "users and certificates are said in kafka.security of primusd's own form: "
                "passwordFile and ca are paths",
            )
        elif key not in _NEEDED:
            topic.report.note(
                (*path, key),
                "has no effect: offsets are those of the ledger, and fetches primusd's",
            )
