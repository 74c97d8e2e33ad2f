"""`--set`: fields in place of the file's, and values for its `${VAR}`."""

import copy
import re
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from primusd.errors import MalformedError, Problem, SpecError
from primusd.jobfile.checking import JOB_FIELDS
from primusd.jobfile.document import Document, Path, Place, assemble, leaves, show_path
from primusd.jobfile.yamltext import read_yaml

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_PART = re.compile(r"\"([^\"]+)\"|([^.\"\[\]]+)|\[([0-9]+)\]")
_TEXT_MAX = 64 << 10
_INDEX_DIGITS_MAX = 5


class Assignment(Struct, frozen=True):
    """A field and the value it gets."""

    path: Path
    value: object
    label: str
    """`--set` and the path as it was typed."""


def read_sets(sets: Sequence[str]) -> tuple[tuple[Assignment, ...], dict[str, str]]:
    """Return assignments to fields, and texts of variables.

    A key with a dot or a top-level field's name is a field; any other is a variable.

    Raises:
        SpecError: One of them is not `key=value`, or its value is not YAML.
    """
    assignments: list[Assignment] = []
    variables: dict[str, str] = {}
    problems: list[Problem] = []
    for text in sets:
        key, equals, value = text.partition("=")
        path = _path(key)
        if not equals or not path or len(text) > _TEXT_MAX:
            problems.append(
                Problem("", at=f"--set {text[:40]}", allowed="path=value, as name=hello")
            )
        elif len(path) == 1 and path[0] not in JOB_FIELDS and _NAME.fullmatch(key):
            variables[key] = value
        else:
            try:
                node = read_yaml(value, f"--set {key}", str)
                parsed = assemble(node, f"--set {key}").root
            except MalformedError as error:
                problems.append(Problem(key, at=f"--set {key}", hint=error.message))
            else:
                assignments.append(Assignment(path, parsed, f"--set {key}"))
    if problems:
        raise SpecError(problems[0].sentence(), errors=tuple(problems))
    return tuple(assignments), variables


def assign(document: Document, assignments: Sequence[Assignment]) -> Document:
    """Return the document with fields set; mappings that lack are made.

    Raises:
        SpecError: A path leads through something that is no mapping or list.
    """
    if not assignments:
        return document
    root = copy.deepcopy(document.root)
    places = dict(document.places)
    for one in assignments:
        if not _set(root, one):
            raise SpecError(
                f"{one.label}: {show_path(one.path)} leads through a value that has no fields",
                errors=(Problem(show_path(one.path), at=one.label),),
            )
        size = len(one.path)
        places = {path: place for path, place in places.items() if path[:size] != one.path}
        for path, _ in leaves(one.value, one.path):
            places[path] = Place(label=one.label)
        places[one.path] = Place(label=one.label)
    return msgspec.structs.replace(document, root=root, places=places)


def _path(key: str) -> Path:
    """Return the parts of `roles.worker.ports[0]`; empty when it is not such a text."""
    parts: list[str | int] = []
    at = 0
    while at < len(key):
        match = _PART.match(key, at)
        if match is None:
            return ()
        parts.append(int(match[3]) if match[3] else match[1] or match[2])
        at = match.end()
        if key[at : at + 1] == "." and at + 1 < len(key):
            at += 1
        elif at < len(key) and key[at] != "[":
            return ()
    return tuple(parts)


def _set(root: object, one: Assignment) -> bool:
    """Set one field below the root; return whether its path could be followed."""
    target = root
    for here in one.path[:-1]:
        if isinstance(target, dict) and isinstance(here, str):
            target = target.setdefault(here, {})
        elif isinstance(target, list) and (index := _index(here, target)) is not None:
            target = target[index]
        else:
            return False
    last = one.path[-1]
    if isinstance(target, dict) and isinstance(last, str):
        target[last] = one.value
        return True
    if isinstance(target, list) and (index := _index(last, target)) is not None:
        target[index] = one.value
        return True
    return False


def _index(part: str | int, items: list[object]) -> int | None:
    """Return the index that a part of a path means in a list, None when it has no such item."""
    text = str(part)
    is_index = text.isascii() and text.isdecimal() and len(text) <= _INDEX_DIGITS_MAX
    return int(text) if is_index and int(text) < len(items) else None
