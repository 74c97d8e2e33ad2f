"""On which line of a TOML file each key stands; the standard library's parser does not say."""

import re
from collections.abc import Mapping

KeyPath = tuple[str, ...]

_PART = r"""(?:"[^"\n]*"|'[^'\n]*'|[A-Za-z0-9_-]+)"""
_KEYS = rf"{_PART}(?:\s*\.\s*{_PART})*"
_TABLE = re.compile(rf"\s*\[\[?\s*({_KEYS})\s*\]")
_ASSIGNMENT = re.compile(rf"\s*({_KEYS})\s*=\s*(.*)")
_ONE_PART = re.compile(_PART)
_LONG_QUOTES = ('"""', "'''")


def key_lines(text: str) -> Mapping[KeyPath, int]:
    """Return the line, from 1, of each table header and assignment of a file that parses as TOML.

    Keys of an inline table are not found; their table is.
    """
    found: dict[KeyPath, int] = {}
    table: KeyPath = ()
    open_quotes = ""
    for number, line in enumerate(text.splitlines(), 1):
        if open_quotes:
            open_quotes = "" if open_quotes in line else open_quotes
        elif header := _TABLE.match(line):
            table = _parts(header[1])
            found.setdefault(table, number)
        elif assignment := _ASSIGNMENT.match(line):
            found.setdefault(table + _parts(assignment[1]), number)
            open_quotes = _left_open(assignment[2])
    return found


def _parts(keys: str) -> KeyPath:
    return tuple(part.strip("\"'") for part in _ONE_PART.findall(keys))


def _left_open(value: str) -> str:
    """Return the long quotes that a value opens without closing them on its line."""
    for quotes in _LONG_QUOTES:
        if value.startswith(quotes) and quotes not in value[3:]:
            return quotes
    return ""
