"""JSON into a syntax tree, with lines and columns, which the standard decoder does not keep."""

import json
import re
from bisect import bisect_right
from collections.abc import Callable

from primusd.errors import MalformedError, TooLargeError
from primusd.jobfile.document import DEPTH_MAX, VALUES_MAX, Entry, Node

_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_WORDS: dict[str, object] = {"true": True, "false": False, "null": None}
_WORD = re.compile("|".join(_WORDS))
_INTEGER_DIGITS_MAX = 40


def read_json(text: str, filename: str, substitute: Callable[[str], str]) -> Node:
    """Return the syntax tree of a JSON text.

    Args:
        text: One value.
        filename: For messages.
        substitute: What is done to each text.

    Raises:
        MalformedError: It is not JSON, or nested too deeply.
        TooLargeError: It holds more values than a job file can need.
    """
    scanner = _Scanner(text, filename, substitute)
    node, end = scanner.value(scanner.skip(0), 0)
    end = scanner.skip(end)
    if end != len(text):
        raise scanner.refused(end, "something follows the end of the value")
    return node


class _Scanner:
    """Reads values at offsets of a text."""

    def __init__(self, text: str, filename: str, substitute: Callable[[str], str]) -> None:
        self.text = text
        self.filename = filename
        self.substitute = substitute
        self.count = 0
        self.starts = [0, *(match.end() for match in re.finditer("\n", text))]

    def skip(self, at: int) -> int:
        """Return the offset of the next character that is no white space."""
        match = _SPACE.match(self.text, at)
        return match.end() if match else at

    def value(self, at: int, depth: int) -> tuple[Node, int]:
        """Return the value that begins at an offset, and the offset behind it."""
        if depth > DEPTH_MAX:
            raise self.refused(at, f"nested deeper than {DEPTH_MAX} levels")
        self.count += 1
        if self.count > VALUES_MAX:
            raise TooLargeError(
                f"{self.filename} holds more than {VALUES_MAX} values; a job file is small"
            )
        match self.text[at : at + 1]:
            case "{":
                return self._mapping(at, depth)
            case "[":
                return self._list(at, depth)
            case '"':
                text, end = self._string(at)
                return Node(self.substitute(text), *self.position(at)), end
            case _:
                return self._word(at)

    def position(self, at: int) -> tuple[int, int]:
        """Return line and column of an offset, from 1."""
        line = bisect_right(self.starts, at)
        return line, at - self.starts[line - 1] + 1

    def refused(self, at: int, why: str) -> MalformedError:
        """Return the error that names a place in the text."""
        line, column = self.position(min(at, len(self.text)))
        return MalformedError(f"{self.filename}:{line}:{column} is not JSON: {why}")

    def _mapping(self, at: int, depth: int) -> tuple[Node, int]:
        entries: list[Entry] = []
        end = self.skip(at + 1)
        while self.text[end : end + 1] != "}":
            if entries:
                end = self._separator(end, "}")
            if self.text[end : end + 1] != '"':
                raise self.refused(end, "a key in double quotes must stand here")
            line, column = self.position(end)
            key, end = self._string(end)
            end = self.skip(end)
            if self.text[end : end + 1] != ":":
                raise self.refused(end, "a colon must stand here")
            node, end = self.value(self.skip(end + 1), depth + 1)
            entries.append(Entry(key, node, line, column))
            end = self.skip(end)
        return Node(None, *self.position(at), entries=tuple(entries)), end + 1

    def _list(self, at: int, depth: int) -> tuple[Node, int]:
        nodes: list[Node] = []
        end = self.skip(at + 1)
        while self.text[end : end + 1] != "]":
            if nodes:
                end = self._separator(end, "]")
            node, end = self.value(end, depth + 1)
            nodes.append(node)
            end = self.skip(end)
        return Node(None, *self.position(at), items=tuple(nodes)), end + 1

    def _separator(self, at: int, closing: str) -> int:
        if self.text[at : at + 1] != ",":
            raise self.refused(at, f"a comma or {closing} must stand here")
        return self.skip(at + 1)

    def _string(self, at: int) -> tuple[str, int]:
        match = _STRING.match(self.text, at)
        why = "the text that begins here is not well-formed"
        if match is None:
            raise self.refused(at, why)
        try:
            text = json.loads(match[0])
        except ValueError as error:
            raise self.refused(at, why) from error
        return str(text), match.end()

    def _word(self, at: int) -> tuple[Node, int]:
        if match := _WORD.match(self.text, at):
            return Node(_WORDS[match[0]], *self.position(at)), match.end()
        match = _NUMBER.match(self.text, at)
        if match is None:
            raise self.refused(at, "a value must stand here")
        is_integer = match[1] is None and match[2] is None
        if len(match[0]) > _INTEGER_DIGITS_MAX:
            raise self.refused(at, f"a number of more than {_INTEGER_DIGITS_MAX} digits")
        number: int | float = int(match[0]) if is_integer else float(match[0])
        if number - number != 0:
            raise self.refused(at, "a number that is too large")
        return Node(number, *self.position(at)), match.end()
