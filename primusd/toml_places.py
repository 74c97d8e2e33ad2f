"""Where in a TOML file each key stands, which the standard library's parser does not say."""

import re
from collections.abc import Mapping
from typing import NamedTuple

KeyPath = tuple[str | int, ...]

_PART = r"""(?:"[^"\n]*"|'[^'\n]*'|[A-Za-z0-9_-]+)"""
_KEYS = rf"{_PART}(?:\s*\.\s*{_PART})*"
_TABLE = re.compile(rf"\s*(\[\[?)\s*({_KEYS})\s*\]")
_ASSIGNMENT = re.compile(rf"\s*({_KEYS})\s*=\s*")
_ONE_PART = re.compile(_PART)
_LONG_QUOTES = ('"""', "'''")


class Place(NamedTuple):
    """Of a table header or an assignment; all count from 1."""

    line: int
    column: int
    """Of the value; 1 of a table."""
    key_column: int


def places_of(text: str) -> Mapping[KeyPath, Place]:
    """Return where what begins on a line of its own stands, in a file that parses as TOML.

    The tables of an array of tables are counted from 0. What is inside of an inline table or an
    array is not found; the key that it is the value of is.
    """
    found: dict[KeyPath, Place] = {}
    counts: dict[KeyPath, int] = {}
    table: KeyPath = ()
    open_quotes = ""
    for number, line in enumerate(text.split("\n"), 1):
        if open_quotes:
            open_quotes = "" if open_quotes in line else open_quotes
        elif header := _TABLE.match(line):
            table = _parts(header[2])
            if header[1] == "[[":
                counts[table] = counts.get(table, -1) + 1
                table = (*table, counts[table])
            found.setdefault(table, Place(number, 1, header.start(2) + 1))
        elif assignment := _ASSIGNMENT.match(line):
            place = Place(number, assignment.end() + 1, assignment.start(1) + 1)
            found.setdefault((*table, *_parts(assignment[1])), place)
            open_quotes = _left_open(line[assignment.end() :])
    return found


def _parts(keys: str) -> KeyPath:
    return tuple(part.strip("\"'") for part in _ONE_PART.findall(keys))


def _left_open(value: str) -> str:
    """Return the long quotes that a value opens without closing them on its line."""
    for quotes in _LONG_QUOTES:
        if value.startswith(quotes) and quotes not in value[3:]:
            return quotes
    return ""
