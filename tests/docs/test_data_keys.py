"""Of each key below `data` the page of job files has a row, whose example is right."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Struct

from primusd.jobfile import ParseContext, parse
from primusd.jobfile.decoding import OPTION_NAMES
from primusd.jobfile.streams import SOURCE_FIELDS, STREAM_FIELDS
from primusd.jobfile.topics import KAFKA_FIELDS, SECURITY_FIELDS

PAGE = Path(__file__).parents[2] / "docs" / "jobspec.md"
SECTION = re.compile(r"^## (Data: [^\n]*|Kafka)\n(.*?)(?=^## )", re.MULTILINE | re.DOTALL)
CELL = re.compile(r"(?<!\\)\|")
CODE = re.compile(r"`([^`]*)`")
PARQUET = "files: /data/a.parquet"
KAFKA_BASE = {"bootstrap": "bootstrap: [k1:9092]", "topic": "topic: clicks"}
# What a key needs beside it, by what it is of.
SOURCE_WITH = {
    "zone": "from: 2026-01-01, to: 2026-01-02",
    "delay": "from: 2026-01-01, to: 2026-01-02",
    "missing": "from: 2026-01-01, to: 2026-01-02",
    "from": "to: 2026-01-02",
}
STREAM_WITH = {
    "lanes": "order: strict",
    "badRows": "onBad: skipRecord",
    "badFraction": "onBad: skipRecord",
}


class Row(Struct, frozen=True):
    """A key of the page."""

    table: str
    keys: tuple[str, ...]
    example: str


def rows() -> Iterator[Row]:
    """Yield the rows of all tables in the sections about data."""
    for title, text in SECTION.findall(PAGE.read_text(encoding="utf-8")):
        table = ""
        for line in text.splitlines():
            cells = [one.strip() for one in CELL.split(line)[1:-1]]
            if not cells or set(cells[0]) <= {"-", " "}:
                table = table if cells else ""
            elif not table:
                table = f"{title}: {cells[0]}"
            else:
                example = CODE.findall(cells[-1])
                keys = tuple(CODE.findall(cells[0]))
                yield Row(table, keys, example[0] if example else "")


ROWS = tuple(rows())


def of_tables(*words: str) -> set[str]:
    """Return the first parts of the keys in tables whose names have one of the words."""
    found = [row for row in ROWS if any(word in row.table for word in words)]
    return {key.partition(".")[0] for row in found for key in row.keys}


def job(row: Row) -> bytes:
    """Return a job file with the example of a row where it belongs."""
    if row.table.startswith("Kafka"):
        source, stream = of_topics(row)
    elif "of a source" in row.table:
        source, stream = of_files(row), "format: parquet"
    else:
        source, stream = of_stream(row)
    return FILE.format(source=source, stream=stream).encode()


def of_topics(row: Row) -> tuple[str, str]:
    """Return a source and keys of a stream."""
    base, stream = list(KAFKA_BASE.values()), ""
    if row.table == "Kafka: key":
        base = [text for name, text in KAFKA_BASE.items() if name not in row.keys]
        base += also(row)
    elif "security" in row.table:
        base.append(f"security: {{{secured(row)}}}")
    else:
        stream = row.example
    return f"kafka: {{{', '.join(base)}}}", stream


def of_files(row: Row) -> str:
    """Return a source."""
    key = row.keys[0]
    if key == "files":
        return f"{row.example}, from: 2026-01-01, to: 2026-01-02"
    path = "/data/{{YYYY}}-{{MM}}-{{DD}}/a.parquet" if key in SOURCE_WITH else "/data/in"
    path = "s3://bucket/in" if key == "storage" else path
    return ", ".join(filter(None, [f'files: "{path}"', SOURCE_WITH.get(key), row.example]))


def of_stream(row: Row) -> tuple[str, str]:
    """Return a source and keys of a stream."""
    key = row.keys[0]
    if "option of" in row.table:
        return "files: /data/a", f"format: {row.example}"
    if "transform" in row.table:
        has_key = row.example.startswith("transform:")
        return PARQUET, row.example if has_key else f"transform: {row.example}"
    if key == "sources.*.weight":
        return f"{PARQUET}, {row.example}", ""
    stream = "\n    ".join(filter(None, [STREAM_WITH.get(key), row.example]))
    return "files: /data/a" if key == "format" else PARQUET, stream


def also(row: Row) -> list[str]:
    """Return the example of a key of `kafka`, and what it needs."""
    if not row.example:
        return []
    return ["group: ctr", row.example] if row.keys[0] == "mirror" else [row.example]


def secured(row: Row) -> str:
    """Return the example of a key of `security`, and what it needs."""
    whole = {
        "protocol": "protocol: SASL_SSL",
        "mechanism": "mechanism: PLAIN",
        "username": "username: ctr",
        "passwordFile": "passwordFile: /etc/password",
    }
    if row.keys[0] == "cert":
        whole["key"] = "key: /etc/primusd/key.pem"
    whole[row.keys[0]] = row.example
    return ", ".join(whole.values())


FILE = """
name: keys
roles:
  worker: {{replicas: {{min: 2, max: 2}}, command: [x], data: clicks, feed: sdk,
            restart: {{unit: role}}}}
data:
  clicks:
    sources:
      - {{{source}}}
    {stream}
"""


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.table}-{row.keys[0]}")
def test_the_example_of_a_key_is_right(row: Row) -> None:
    assert parse(job(row), context=ParseContext(base_dir="/home/ann")).spec.data


def test_every_key_has_a_row_and_every_row_is_of_a_key() -> None:
    of_kafka = {key for row in ROWS if row.table == "Kafka: key" for key in row.keys}

    assert of_tables("of a source") | {"kafka", "weight"} == set(SOURCE_FIELDS)
    assert of_tables("option of `format`") == set(OPTION_NAMES)
    assert of_tables("below `data.NAME`") == set(STREAM_FIELDS)
    assert of_kafka == set(KAFKA_FIELDS)
    assert of_tables("key of `security`") | {"password"} == set(SECURITY_FIELDS)
