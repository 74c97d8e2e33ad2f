"""TOML into a syntax tree; the standard decoder keeps no places, so lines are found beside it."""

import re
import tomllib
from collections.abc import Callable
from datetime import date, datetime, time

from primusd.errors import MalformedError
from primusd.jobfile.document import Entry, Node, Path, node_of

_KEY = r"""(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')"""
_DOTTED = rf"{_KEY}(?:\s*\.\s*{_KEY})*"
_HEADER = re.compile(rf"\s*(\[\[?)\s*({_DOTTED})\s*\]")
_PAIR = re.compile(rf"(\s*)({_DOTTED})(\s*=\s*)")
_PART = re.compile(_KEY)


def read_toml(text: str, filename: str, substitute: Callable[[str], str]) -> Node:
    """Return the syntax tree of a TOML text; places are those of headers and of keys on a line.

    Raises:
        MalformedError: It is not TOML.
    """
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"{filename} is not TOML: {error}") from error
    return _placed(node_of(_plain(values)), (), _places(text), substitute)


def _plain(value: object) -> object:
    """Return the value with dates as texts, as the other spellings have them."""
    match value:
        case dict():
            return {key: _plain(inner) for key, inner in value.items()}
        case list():
            return [_plain(inner) for inner in value]
        case datetime() | date() | time():
            return value.isoformat()
        case _:
            return value


def _places(text: str) -> dict[Path, tuple[int, int, int]]:
    """Return line, column and column of the key of what begins on a line of its own."""
    places: dict[Path, tuple[int, int, int]] = {}
    table: Path = ()
    counts: dict[Path, int] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if header := _HEADER.match(line):
            table = _path(header[2])
            if header[1] == "[[":
                counts[table] = counts.get(table, -1) + 1
                table = (*table, counts[table])
            places.setdefault(table, (number, 1, header.start(2) + 1))
        elif pair := _PAIR.match(line):
            path = (*table, *_path(pair[2]))
            places.setdefault(path, (number, pair.end() + 1, pair.start(2) + 1))
    return places


def _path(dotted: str) -> Path:
    return tuple(part.strip("\"'") for part in _PART.findall(dotted))


def _placed(
    node: Node,
    path: Path,
    places: dict[Path, tuple[int, int, int]],
    substitute: Callable[[str], str],
) -> Node:
    """Return the tree with what is known of lines, and with variables filled in."""
    line, column, _ = places.get(path, (0, 0, 0))
    if node.entries is not None:
        entries = []
        for entry in node.entries:
            inner = (*path, entry.key)
            key_line, _, key_column = places.get(inner, (0, 0, 0))
            placed = _placed(entry.node, inner, places, substitute)
            entries.append(Entry(entry.key, placed, key_line, key_column))
        return Node(None, line, column, entries=tuple(entries))
    if node.items is not None:
        items = (_placed(one, (*path, at), places, substitute) for at, one in enumerate(node.items))
        return Node(None, line, column, items=tuple(items))
    value = substitute(node.value) if isinstance(node.value, str) else node.value
    return Node(value, line, column)
