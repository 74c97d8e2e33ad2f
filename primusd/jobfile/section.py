"""Reading the fields of a mapping: what is wrong with each goes to one list."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeGuard

from primusd.errors import Problem
from primusd.jobfile.document import Document, Path, printable, show_path, show_value
from primusd.jobfile.reading import unset_variable
from primusd.units import UnitError, parse_bytes, parse_duration_ms

_COUNT_MAX = 2**53 - 1
_SHORT_MIN = 3


class Findings:
    """Everything that is wrong or worth saying about a document, in the order of its lines."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.redirects: dict[Path, Path] = {}
        self.warnings: list[str] = []
        self._problems: dict[tuple[str, str, str], tuple[tuple[int, int], Problem]] = {}

    def add(
        self,
        path: Path,
        *,
        found: str = "",
        allowed: str | tuple[str, ...] = "",
        hint: str = "",
        of_key: bool = False,
    ) -> None:
        """Note a problem once, at the place where its writer wrote it."""
        path = self.written(path)
        problem = Problem(
            self.document.name(path),
            at=self.document.at(path, of_key=of_key),
            found=printable(found),
            allowed=_printable(allowed),
            hint=printable(hint),
        )
        place = self.document.places.get(path)
        order = (place.line, place.column) if place else (0, 0)
        self._problems.setdefault((problem.path, problem.found, problem.hint), (order, problem))

    def warn(self, path: Path, text: str) -> None:
        """Note something that is no error, with its path."""
        path = self.written(path)
        warning = f"{self.document.name(path)}: {printable(text)}"
        if warning not in self.warnings:
            self.warnings.append(warning)

    def written(self, path: Path) -> Path:
        """Return where a value was written: in `defaults`, when a role took it from there."""
        for length in range(len(path), 0, -1):
            source = self.redirects.get(path[:length])
            if source is not None:
                return source + path[length:]
        return path

    @property
    def problems(self) -> tuple[Problem, ...]:
        """All problems, the first line's first."""
        found = sorted(self._problems.values(), key=lambda pair: pair[0])
        return tuple(problem for _, problem in found)


NOWHERE: Mapping[str, str] = {}


class Section:
    """The fields of one mapping of a document; every wrong one is noted and reads as default."""

    def __init__(
        self,
        findings: Findings,
        path: Path,
        value: object,
        known: Sequence[str],
        *,
        deeper: Sequence[str] = (),
        elsewhere: Mapping[str, str] = NOWHERE,
    ) -> None:
        self.findings = findings
        self.path = path
        self.fields: dict[str, object] = {}
        self.is_mapping = is_mapping(value)
        if is_mapping(value):
            self.fields = value
            self._note_unknown(known, deeper, elsewhere)
        else:
            findings.add(path, found=show_value(value), allowed=f"a mapping of {', '.join(known)}")

    def has(self, key: str) -> bool:
        """Return whether the field was written."""
        return key in self.fields

    def raw(self, key: str) -> object:
        """Return the field as it was written, None where it was not."""
        return self.fields.get(key)

    def at(self, key: str) -> Path:
        """Return the path of a field."""
        return (*self.path, key)

    def wrong(self, key: str, allowed: str | tuple[str, ...], hint: str = "") -> None:
        """Note that the field has a value it may not have."""
        self.findings.add(
            self.at(key), found=show_value(self.fields.get(key)), allowed=allowed, hint=hint
        )

    def text(self, key: str, default: str = "", *, may_be_empty: bool = False) -> str:
        """Return a text without a NUL; `${VAR}` without a value is noted."""
        if not self.has(key):
            return default
        value = self.fields[key]
        if not isinstance(value, str):
            self.wrong(key, "a text", quote_hint(value))
            return default
        if not value and not may_be_empty:
            self.wrong(key, "a text that is not empty")
        return value if check_text(self.findings, self.at(key), value) else default

    def choice(self, key: str, names: Sequence[str], default: str) -> str:
        """Return one of the names."""
        if not self.has(key):
            return default
        value = self.fields[key]
        if isinstance(value, str) and value in names:
            return value
        hint = nearest(value, names) if isinstance(value, str) else ""
        self.wrong(key, tuple(names), hint)
        return default

    def count(self, key: str, default: int, *, low: int = 0, high: int = _COUNT_MAX) -> int:
        """Return a whole number within bounds."""
        if not self.has(key):
            return default
        value = self.fields[key]
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            upper = f" to {high}" if high < _COUNT_MAX else " or more"
            self.wrong(key, f"a whole number, {low}{upper}")
            return default
        return value

    def duration_ms(self, key: str, default: int, *, low_ms: int = 0, zero: bool = True) -> int:
        """Return the milliseconds of a duration with a unit."""
        return self._amount(key, default, parse_duration_ms, low_ms if zero else max(1, low_ms))

    def byte_count(self, key: str, default: int, *, zero: bool = True) -> int:
        """Return the bytes of a size with a unit."""
        return self._amount(key, default, parse_bytes, 0 if zero else 1)

    def flag(self, key: str, *, default: bool) -> bool:
        """Return true or false."""
        value = self.fields.get(key, default)
        if not isinstance(value, bool):
            self.wrong(key, ("true", "false"))
            return default
        return value

    def texts(self, key: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Return a list of texts that are not empty and not given twice."""
        if not self.has(key):
            return default
        value = self.fields[key]
        if not isinstance(value, list):
            self.wrong(key, "a list of texts")
            return default
        found: list[str] = []
        for index, one in enumerate(value):
            path = (*self.at(key), index)
            if not isinstance(one, str) or not one:
                self.findings.add(
                    path, found=show_value(one), allowed="a text", hint=quote_hint(one)
                )
            elif one in found:
                self.findings.add(path, found=show_value(one), hint="given twice")
            elif check_text(self.findings, path, one):
                found.append(one)
        return tuple(found)

    def _amount(self, key: str, default: int, parse: Callable[[object], int], low: int) -> int:
        if not self.has(key):
            return default
        try:
            amount = parse(self.fields[key])
        except UnitError as error:
            self.wrong(key, error.allowed, error.hint)
            return default
        if amount < low:
            self.wrong(key, "more than nothing" if low == 1 else f"at least {low}")
            return default
        return amount

    def _note_unknown(
        self, known: Sequence[str], deeper: Sequence[str], elsewhere: Mapping[str, str]
    ) -> None:
        for key in self.fields:
            if key not in known:
                self.findings.add(
                    (*self.path, key),
                    found=show_path((key,)),
                    allowed=tuple(known),
                    hint=elsewhere.get(key)
                    or nearest(key, [*known, *deeper])
                    or "there is no such field",
                    of_key=True,
                )


def is_mapping(value: object) -> TypeGuard[dict[str, object]]:
    """Return whether the value is a mapping; the readers admit text keys only."""
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[object]]:
    """Return whether the value is a list."""
    return isinstance(value, list)


def check_text(
    findings: Findings, path: Path, value: str, *, may_have_variables: bool = False
) -> bool:
    """Return whether a text can be used, or note why not."""
    if "\0" in value:
        findings.add(path, found=show_value(value), hint="a NUL character cannot be passed on")
        return False
    name = "" if may_have_variables else unset_variable(value)
    if name:
        findings.add(
            path,
            found=show_value(value),
            hint=f"${{{name}}} has no value; give it with --set {name}=…",
        )
        return False
    return True


def nearest(word: str, names: Iterable[str]) -> str:
    """Return `did you mean …?` with the name that is most like the word, "" when none is."""
    folded: dict[str, str] = {}
    for name in names:
        # A nested field is found by its own name too: memroy is near resources.memory.
        folded.setdefault(name.rpartition(".")[2].lower(), name)
    simple = word.replace("_", "").replace("-", "").lower()
    from difflib import get_close_matches  # noqa: PLC0415 - only for what is wrong

    close = get_close_matches(simple, folded, n=1, cutoff=0.6)
    if not close and len(simple) >= _SHORT_MIN:
        # What people cut short, as infra.
        close = [one for one in folded if one.startswith(simple)]
    return f"did you mean {folded[close[0]]}?" if len(close) == 1 else ""


def _printable(allowed: str | tuple[str, ...]) -> str | tuple[str, ...]:
    """Return what is allowed so that a terminal can show it: names come from the file too."""
    if isinstance(allowed, str):
        return printable(allowed)
    return tuple(printable(one) for one in allowed)


def quote_hint(value: object) -> str:
    """Return how a number or a boolean is written as a text."""
    is_scalar = isinstance(value, int | float)
    return f'write "{show_value(value)}"' if is_scalar else ""
