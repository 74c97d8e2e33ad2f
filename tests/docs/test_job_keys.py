"""Of each key of a job file but those of `data` the page has a row, whose example is right."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from msgspec import Struct

from primusd.jobfile import parse
from primusd.jobfile.checking import JOB_FIELDS
from primusd.jobfile.notyet import TABLE
from primusd.jobfile.placements import FIELDS as PLACEMENT_FIELDS
from primusd.jobfile.roles import ROLE_FIELDS
from primusd.jobfile.schedules import FIELDS as SCHEDULE_FIELDS

PAGE = Path(__file__).parents[2] / "docs" / "jobspec.md"
SECTION = re.compile(r"^## ([^\n]*)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
CELL = re.compile(r"(?<!\\)\|")
CODE = re.compile(r"`([^`]*)`")
JOB, ROLE = "", "roles."
# Where the keys of a table stand: by its first cell, else by the title of its section.
PLACES = {
    "key (below `roles.NAME`)": ROLE,
    "key of `roles.*.restart`": "roles.restart.",
    "key of `budgets`": "budgets.",
    "key of `hang`": "hang.",
    "Placement": "roles.placement.",
    "Failure rules": "failure.",
}
OTHER_TABLES = ("question",)
JOB_BASE = {
    "name": "name: keys",
    "data": "data: {clicks: {sources: [{files: /a.txt}]}, views: {sources: [{files: /b.txt}]}}",
}
ROLE_BASE = {
    "command": "command: [x]",
    "replicas": "replicas: {min: 4, max: 16}",
    "ports": "ports: [main, metrics]",
    "data": "data: clicks",
}
OTHERS = (
    "ps: {command: [x]}, prepare: {command: [x]}, chief: {command: [x]}, "
    "evaluator: {command: [x], success: never}"
)
# What a key needs beside it, and what it cannot have.
WITH = {
    "drain": "success: never",
    "framing": "feed: stdin",
    "memoryMax": "memory: x1.5",
    "phaseAfter": "after: 10m",
}
WITHOUT_DATA = ("framing",)


class Row(Struct, frozen=True):
    """A key of the page."""

    place: str
    """What stands before the key: `roles.restart.`."""
    key: str
    """Its path below that."""
    example: str


def rows() -> Iterator[Row]:
    """Yield the rows of all tables of keys that are not about data."""
    for title, text in SECTION.findall(PAGE.read_text(encoding="utf-8")):
        if title.startswith(("Data", "Kafka")):
            continue
        place: str | None = None
        for line in text.splitlines():
            cells = [one.strip() for one in CELL.split(line)[1:-1]]
            if not cells or set(cells[0]) <= {"-", " "}:
                place = place if cells else None
            elif cells[0] in OTHER_TABLES:
                break
            elif place is None:
                place = PLACES.get(cells[0], PLACES.get(title, JOB))
            else:
                (example, *_) = CODE.findall(cells[-1])
                for key in CODE.findall(cells[0]):
                    is_of_role = key.startswith("roles.*.")
                    yield Row(ROLE if is_of_role else place, key.removeprefix("roles.*."), example)


ROWS = tuple(rows())


def flow(base: Mapping[str, str], key: str, text: str) -> str:
    """Return the pairs of a mapping with this one in place of that of the same key."""
    return ", ".join([*(one for name, one in base.items() if name != key), text])


def job(row: Row) -> bytes:
    """Return a job file with the example of a row where it belongs."""
    top = row.key.partition(".")[0]
    pairs = ", ".join(filter(None, [WITH.get(top), row.example]))
    of_job, of_role = dict(JOB_BASE), dict(ROLE_BASE)
    if row.place == JOB:
        of_job[top] = pairs
    elif row.place == ROLE:
        if top in WITHOUT_DATA:
            of_role["data"] = "data: views"
        of_role = {name: one for name, one in of_role.items() if name != top} | {top: pairs}
    elif row.place.startswith(ROLE):
        of_role["inner"] = f"{row.place.split('.')[1]}: {{{pairs}}}"
    elif row.place == "failure.":
        of_job["failure"] = f"failure: [{{{pairs}}}]"
    else:
        of_job["inner"] = f"{row.place.rstrip('.')}: {{{pairs}}}"
    worker = "{" + ", ".join(of_role.values()) + "}"
    of_job.setdefault("roles", f"roles: {{worker: {worker}, {OTHERS}}}")
    return ("{" + ", ".join(of_job.values()) + "}").encode()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.place}{row.key}-{row.example}")
def test_the_example_of_a_key_is_right(row: Row) -> None:
    parsed = parse(job(row))

    assert parsed.spec.roles
    assert [one for one in parsed.warnings if one.startswith(f"roles.worker.{row.key}:")] == []


def keys_at(place: str) -> set[str]:
    """Return the keys that have a row there."""
    return {row.key.partition(".")[0] for row in ROWS if row.place == place}


def test_every_key_has_a_row_and_every_row_is_of_a_key() -> None:
    not_yet = {row.field.removeprefix("roles.*.") for row in TABLE}
    told = {row.place.split(".")[0] for row in ROWS if row.place not in (JOB, ROLE)}
    below = {row.place.split(".")[1] for row in ROWS if row.place.count(".") == 2}
    schedule = {row.key.split(".")[1] for row in ROWS if row.key.startswith("schedule.")}

    assert keys_at(JOB) | told | (not_yet & set(JOB_FIELDS)) == set(JOB_FIELDS)
    assert keys_at(ROLE) | below | (not_yet & set(ROLE_FIELDS)) == set(ROLE_FIELDS)
    assert schedule == set(SCHEDULE_FIELDS)
    assert keys_at("roles.placement.") == set(PLACEMENT_FIELDS)
