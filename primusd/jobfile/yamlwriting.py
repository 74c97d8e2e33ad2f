"""Plain values as YAML text that reads back the same under YAML 1.2 and 1.1."""

import re

from primusd.jobfile.scalars import resolve

# Anything else is quoted; in particular whatever YAML 1.1 takes for a boolean, a time or a number.
_PLAIN = re.compile(r"[A-Za-z/_][A-Za-z0-9_./@+-]*", re.ASCII)
_WORDS_1_1 = frozenset(("y", "n", "yes", "no", "on", "off"))
_UNIT = re.compile(r"[0-9]+[A-Za-z]+(?:[0-9]+[A-Za-z]+)*", re.ASCII)
_EXPONENT = re.compile(r"[0-9]+[eE][0-9]+", re.ASCII)


def write_yaml(value: object) -> str:
    """Return a document of mappings, lists and scalars as YAML, one entry a line."""
    return "\n".join(_lines(value, 0)) + "\n"


def _lines(value: object, depth: int) -> list[str]:
    """Return the lines of a value that stands on lines of its own."""
    indent = "  " * depth
    if isinstance(value, dict) and value:
        lines = []
        for key, inner in value.items():
            lines += _entry(f"{indent}{_text(key)}:", inner, depth)
        return lines
    if isinstance(value, list) and value and not _is_flat(value):
        lines = []
        for inner in value:
            nested = _lines(inner, depth + 1)
            lines += [f"{indent}- {nested[0].lstrip(' ')}", *nested[1:]]
        return lines
    return [f"{indent}{_inline(value)}"]


def _entry(head: str, value: object, depth: int) -> list[str]:
    if isinstance(value, str) and _is_block(value):
        mark = "|" if value.endswith("\n") else "|-"
        indent = "  " * (depth + 1)
        body = value.removesuffix("\n").split("\n")
        return [f"{head} {mark}", *(f"{indent}{line}" if line else "" for line in body)]
    is_nested = isinstance(value, dict) or (isinstance(value, list) and not _is_flat(value))
    if is_nested and value:
        return [head, *_lines(value, depth + 1)]
    return [f"{head} {_inline(value)}"]


def _inline(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return _text(value)
        case list():
            return f"[{', '.join(_inline(inner) for inner in value)}]"
        case dict():
            inner = ", ".join(f"{_text(key)}: {_inline(one)}" for key, one in value.items())
            return f"{{{inner}}}"
        case _:
            return str(value)


def _is_flat(values: list[object]) -> bool:
    """Return whether a list holds scalars only, so that it fits between brackets."""
    return not any(isinstance(value, dict | list) for value in values)


def _is_block(text: str) -> bool:
    """Return whether a text of several lines may be written as it is, below its key."""
    body = text.removesuffix("\n")
    return (
        "\n" in body
        and body[0] not in " \n\t"
        and not body.endswith("\n")
        and all(line == "" or line.isprintable() for line in body.split("\n"))
    )


def _text(text: str) -> str:
    is_plain = _PLAIN.fullmatch(text) and text.lower() not in _WORDS_1_1 and resolve(text) == text
    is_amount = _UNIT.fullmatch(text) and not _EXPONENT.fullmatch(text)
    return text if is_plain or is_amount else quoted(text)


def quoted(text: str) -> str:
    """Return a text in double quotes with escapes that YAML and JSON share or YAML knows."""
    return '"' + "".join(_escaped(character) for character in text) + '"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if character == "\n":
        return "\\n"
    if character == "\t":
        return "\\t"
    if character.isprintable():
        return character
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
