"""TOML into a syntax tree; the standard decoder keeps no places, so lines are found beside it."""

import tomllib
from collections.abc import Callable, Mapping
from datetime import date, datetime, time

from primusd.errors import MalformedError
from primusd.jobfile.document import Entry, Node, Path, node_of
from primusd.toml_places import KeyPath, Place, places_of

_NOWHERE = Place(0, 0, 0)


def read_toml(text: str, filename: str, substitute: Callable[[str], str]) -> Node:
    """Return the syntax tree of a TOML text; places are those of headers and of keys on a line.

    Raises:
        MalformedError: It is not TOML.
    """
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"{filename} is not TOML: {error}") from error
    return _placed(node_of(_plain(values)), (), places_of(text), substitute)


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


def _placed(
    node: Node,
    path: Path,
    places: Mapping[KeyPath, Place],
    substitute: Callable[[str], str],
) -> Node:
    """Return the tree with what is known of lines, and with variables filled in."""
    line, column, _ = places.get(path, _NOWHERE)
    if node.entries is not None:
        entries = []
        for entry in node.entries:
            inner = (*path, entry.key)
            key_line, _, key_column = places.get(inner, _NOWHERE)
            placed = _placed(entry.node, inner, places, substitute)
            entries.append(Entry(entry.key, placed, key_line, key_column))
        return Node(None, line, column, entries=tuple(entries))
    if node.items is not None:
        items = (_placed(one, (*path, at), places, substitute) for at, one in enumerate(node.items))
        return Node(None, line, column, items=tuple(items))
    value = substitute(node.value) if isinstance(node.value, str) else node.value
    return Node(value, line, column)
