"""Reading a job file of the original: protobuf's JSON, in either spelling of its names."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct

from primusd.compat.effects import reason

Path: TypeAlias = tuple[str | int, ...]

# A file with one of these and none of ours is the original's.
_MARKS = ("role", "inputManager", "input_manager", "runtimeConf", "runtime_conf", "maxAppAttempts")
_OURS = ("apiVersion", "roles", "kind")
_SHOWN_MAX = 60
_DIGITS = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)


class Note(Struct, frozen=True):
    """Something worth saying about a field of the original."""

    path: Path
    """As it is written in the file."""
    text: str


class Wrong(Struct, frozen=True):
    """A field of the original that cannot be read."""

    path: Path
    found: str = ""
    allowed: str | tuple[str, ...] = ""
    hint: str = ""


class Report:
    """What came up while a file was converted."""

    def __init__(self) -> None:
        self.notes: list[Note] = []
        self.refused: list[Note] = []
        self.wrong: list[Wrong] = []

    def note(self, path: Path, text: str) -> None:
        """Say something about a field, once."""
        note = Note(path, text)
        if note not in self.notes:
            self.notes.append(note)

    def refuse(self, path: Path, text: str) -> None:
        """Say that a field asks for what this build does not carry out."""
        self.refused.append(Note(path, text))

    def mistake(
        self, path: Path, *, found: object = "", allowed: str | tuple[str, ...] = "", hint: str = ""
    ) -> None:
        """Say that a field cannot be read."""
        is_message = isinstance(found, dict)
        shown = "an object" if is_message else "a list" if isinstance(found, list) else str(found)
        self.wrong.append(Wrong(path, shown[:_SHOWN_MAX], allowed, hint))


class Fields:
    """The fields of one message; null is the default, as in protobuf.

    What was never asked for is named by `report_rest`, so that nothing is dropped in silence.
    """

    def __init__(self, report: Report, value: object, path: Path, pattern: str = "") -> None:
        self.report = report
        self.path = path
        self.pattern = pattern
        self.values: Mapping[str, object] = {}
        self.names: dict[str, str] = {}
        self.taken: set[str] = set()
        if isinstance(value, dict):
            self.values = value
            self.names = {camel(name): name for name in value}
        elif value is not None:
            report.mistake(path, found=value, allowed="an object")

    def has(self, name: str) -> bool:
        """Return whether the field is there and not null."""
        return self.values.get(self.names.get(name, "")) is not None

    def at(self, name: str) -> Path:
        """Return the path of a field as it is written."""
        return (*self.path, self.names.get(name, name))

    def take(self, name: str) -> object:
        """Return a field, None where it is absent, and count it as understood."""
        self.taken.add(name)
        return self.values.get(self.names.get(name, ""))

    def message(self, name: str) -> "Fields":
        """Return a field that is a message; an absent one has no fields."""
        return Fields(self.report, self.take(name), self.at(name), self._inner(name))

    def messages(self, name: str) -> Iterator["Fields"]:
        """Yield the messages of a repeated field."""
        value = self.take(name)
        if value is None:
            return
        if not isinstance(value, list):
            self.report.mistake(self.at(name), found=value, allowed="a list of objects")
            return
        for index, one in enumerate(value):
            yield Fields(self.report, one, (*self.at(name), index), f"{self._inner(name)}.*")

    def text(self, name: str) -> str:
        """Return a text, "" where it is absent."""
        value = self.take(name)
        if value is None or isinstance(value, str):
            return value or ""
        self.report.mistake(self.at(name), found=value, allowed="a text")
        return ""

    def texts(self, name: str) -> list[str]:
        """Return a repeated text."""
        value = self.take(name)
        if value is None:
            return []
        if isinstance(value, list) and all(isinstance(one, str) for one in value):
            return list(value)
        self.report.mistake(self.at(name), found=value, allowed="a list of texts")
        return []

    def pairs(self, name: str) -> dict[str, str]:
        """Return a map of texts to texts."""
        value = self.take(name)
        if value is None:
            return {}
        if isinstance(value, dict) and all(isinstance(one, str) for one in value.values()):
            return dict(value)
        self.report.mistake(self.at(name), found=value, allowed="an object of texts")
        return {}

    def number(self, name: str) -> int:
        """Return a whole number, 0 where it is absent; protobuf's JSON admits "3" for 3."""
        value = self.take(name)
        if isinstance(value, str) and _DIGITS.fullmatch(value):
            value = int(value)
        if isinstance(value, float) and value == int(value):
            value = int(value)
        if value is None:
            return 0
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            self.report.mistake(self.at(name), found=value, allowed="a whole number, 0 or more")
            return 0
        return value

    def flag(self, name: str) -> bool:
        """Return a boolean; the original's own examples write "true" in quotes."""
        value = self.take(name)
        if value in (None, False, "false"):
            return False
        if value in (True, "true"):
            return True
        self.report.mistake(self.at(name), found=value, allowed=("true", "false"))
        return False

    def enum(self, name: str, names: Sequence[str]) -> str:
        """Return the name of an enum's value, its first where it is absent."""
        value = self.take(name)
        if value is None:
            return names[0]
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(names):
            return names[value]
        if isinstance(value, str) and value.upper() in names:
            return value.upper()
        self.report.mistake(self.at(name), found=value, allowed=tuple(names))
        return names[0]

    def report_rest(self) -> None:
        """Name each field that was not asked for, with the reason why it has no effect."""
        for name, written in self.names.items():
            value = self.values[written]
            if name not in self.taken and value is not None:
                self._report(value, (*self.path, written), self._inner(name))

    def _report(self, value: object, path: Path, pattern: str) -> None:
        if isinstance(value, dict) and value:
            for key, inner in value.items():
                self._report(inner, (*path, key), f"{pattern}.{camel(key)}")
        elif isinstance(value, list) and value:
            for index, inner in enumerate(value):
                self._report(inner, (*path, index), f"{pattern}.*")
        else:
            self.report.note(path, f"has no effect: {reason(pattern)}")

    def _inner(self, name: str) -> str:
        return f"{self.pattern}.{name}" if self.pattern else name


def is_original(root: object) -> bool:
    """Return whether a document has the keys of an original job file, and none of ours."""
    if not isinstance(root, dict) or any(key in root for key in _OURS):
        return False
    return any(key in root for key in _MARKS)


def camel(name: str) -> str:
    """Return the lowerCamelCase spelling of a field's name."""
    first, *rest = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in rest)
