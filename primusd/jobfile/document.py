"""A job file as it was written: plain values, and where in the file each of them stands."""

import re
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from msgspec import Struct

from primusd.errors import MalformedError, Problem, TooLargeError

Path: TypeAlias = tuple[str | int, ...]

FILE_BYTES_MAX = 4 << 20
DEPTH_MAX = 32
# Aliases count once per use, so that a small file cannot stand for a huge document.
VALUES_MAX = 50_000
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_@/-]+", re.ASCII)
_SURROGATE = re.compile("[\ud800-\udfff]")
_SHOWN_MAX = 60


class Place(Struct, frozen=True):
    """Where a value stands; lines and columns count from 1, 0 is not known."""

    line: int = 0
    column: int = 0
    key_line: int = 0
    key_column: int = 0
    label: str = ""
    """Stands in place of a position: `--set roles.worker.replicas`."""


class Node(Struct, frozen=True):
    """A value in a syntax tree; an alias is the same node in several places."""

    value: object = None
    """Of a scalar."""
    line: int = 0
    column: int = 0
    items: "tuple[Node, ...] | None" = None
    """Of a list."""
    entries: "tuple[Entry, ...] | None" = None
    """Of a mapping."""


class Entry(Struct, frozen=True):
    """A key and its value in a mapping."""

    key: str
    node: Node
    line: int = 0
    column: int = 0


class Document(Struct, frozen=True):
    """Plain values (dict, list, str, int, float, bool, None) with the places they came from."""

    root: object
    filename: str
    places: Mapping[Path, Place] = {}
    faults: tuple[Problem, ...] = ()
    """What was wrong with the text but did not keep it from being read: keys given twice."""
    shown: Mapping[Path, Path] = {}
    """Of a converted file: the path that its writer knows the value by."""

    def at(self, path: Path, *, of_key: bool = False) -> str:
        """Return `file:line:column` of a value, or of the nearest one around it; "" unknown."""
        while path not in self.places and path:
            path, of_key = path[:-1], False
        place = self.places.get(path, Place())
        if place.label:
            return place.label
        if of_key and place.key_line:
            return f"{self.filename}:{place.key_line}:{place.key_column}"
        return f"{self.filename}:{place.line}:{place.column}" if place.line else ""

    def name(self, path: Path) -> str:
        """Return the path as the writer of the file knows it."""
        for length in range(len(path), 0, -1):
            known = self.shown.get(path[:length])
            if known is not None:
                return show_path(known + path[length:] if length < len(path) else known)
        return show_path(path)


def show_path(path: Path) -> str:
    """Return a path as people write it: `roles.worker.ports[0]`."""
    shown = ""
    for part in path:
        if isinstance(part, int):
            shown += f"[{part}]"
        else:
            key = part if _PLAIN_KEY.fullmatch(part) else f'"{printable(part)}"'
            shown += f".{key}" if shown else key
    return shown


def show_value(value: object) -> str:
    """Return a value in a few words, for an error."""
    match value:
        case None:
            return "nothing (null)"
        case bool():
            return "true" if value else "false"
        case str():
            return printable(value[:_SHOWN_MAX]) + ("…" if len(value) > _SHOWN_MAX else "")
        case dict():
            return "a mapping"
        case list():
            return "a list"
        case int() if abs(value) >= 10**18:
            return "a number of more than 18 digits"
        case _:
            return str(value)


def printable(text: str) -> str:
    """Return the text with everything escaped that would disturb a terminal."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def assemble(node: Node, filename: str) -> Document:
    """Return the document that a syntax tree stands for.

    Raises:
        TooLargeError: More values than a job file can need; this is what an alias bomb meets.
        MalformedError: Nested too deeply.
    """
    assembly = _Assembly(filename)
    root = assembly.value(node, ())
    return Document(root, filename, assembly.places, tuple(assembly.faults))


def node_of(value: object, depth: int = 0) -> Node:
    """Return the tree of a value that was decoded elsewhere, without places.

    Raises:
        MalformedError: Something in it has no place in JSON, or it is nested too deeply.
    """
    if depth > DEPTH_MAX:
        raise MalformedError(f"nested deeper than {DEPTH_MAX} levels")
    if isinstance(value, list | Mapping) and len(value) > VALUES_MAX:
        raise TooLargeError(f"holds more than {VALUES_MAX} values; a job file is small")
    match value:
        case Mapping():
            for key in value:
                if not isinstance(key, str):
                    raise MalformedError(f"the key {show_value(key)} is not a text")
            return Node(
                entries=tuple(Entry(key, node_of(one, depth + 1)) for key, one in value.items())
            )
        case list() | tuple():
            return Node(items=tuple(node_of(one, depth + 1) for one in value))
        case None | bool() | int() | str():
            return Node(value)
        case float() if value - value == 0:
            return Node(value)
        case _:
            raise MalformedError(f"{show_value(value)} is no value that a job file can hold")


def leaves(value: object, path: Path = ()) -> Iterator[tuple[Path, object]]:
    """Yield every value that holds no other, with its path; an empty mapping is one too."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list) and value:
        for index, inner in enumerate(value):
            yield from leaves(inner, (*path, index))
    else:
        yield path, value


class _Assembly:
    """Walks a tree once, counting what it makes."""

    def __init__(self, filename: str) -> None:
        self.filename = filename
        self.places: dict[Path, Place] = {}
        self.faults: list[Problem] = []
        self.count = 0

    def value(self, node: Node, path: Path, entry: Entry | None = None) -> object:
        """Return the plain value of a node and note where it stands."""
        self.count += 1
        if self.count > VALUES_MAX:
            raise TooLargeError(
                f"{self.filename} stands for more than {VALUES_MAX} values (an alias counts at "
                "each use); a job file is small"
            )
        if len(path) > DEPTH_MAX:
            raise MalformedError(
                f"{self.filename}:{node.line} is nested deeper than {DEPTH_MAX} levels"
            )
        if node.line:
            self.places[path] = (
                Place(node.line, node.column, entry.line, entry.column)
                if entry
                else Place(node.line, node.column)
            )
        if node.entries is not None:
            return self._mapping(node.entries, path)
        if node.items is not None:
            return [self.value(inner, (*path, index)) for index, inner in enumerate(node.items)]
        return self._scalar(node, path)

    def _mapping(self, entries: tuple[Entry, ...], path: Path) -> dict[str, object]:
        values: dict[str, object] = {}
        for entry in entries:
            inner = (*path, entry.key)
            if entry.key in values:
                self._fault(
                    inner,
                    entry,
                    found=entry.key,
                    hint=f"given twice, first on line {self.places[inner].key_line}"
                    if inner in self.places
                    else "given twice",
                )
                continue
            if not _is_unicode(entry.key):
                self._fault(inner, entry, found="a key", hint="it is not valid Unicode")
                continue
            values[entry.key] = self.value(entry.node, inner, entry)
        return values

    def _scalar(self, node: Node, path: Path) -> object:
        if isinstance(node.value, str) and not _is_unicode(node.value):
            self._fault(path, Entry("", node, node.line, node.column), hint="not valid Unicode")
            return "?"
        return node.value

    def _fault(self, path: Path, entry: Entry, *, found: str = "", hint: str) -> None:
        at = f"{self.filename}:{entry.line}:{entry.column}" if entry.line else ""
        self.faults.append(Problem(show_path(path), at=at, found=printable(found), hint=hint))


def _is_unicode(text: str) -> bool:
    """Return whether the text can be written as UTF-8; half of a surrogate pair cannot."""
    return _SURROGATE.search(text) is None
