"""What a job file may say and this build does not carry out: refused, never ignored."""

from collections.abc import Callable, Iterator

from msgspec import Struct

from primusd.jobfile.document import Path, show_value
from primusd.jobfile.section import Findings, is_list, is_mapping


class NotYet(Struct, frozen=True):
    """A row of the table: where, for which values, and what people are told."""

    field: str
    """Pattern of a path; `*` stands for any one key or index."""
    values: str
    """The values refused, in words; "" any."""
    sentence: str
    holds: Callable[[object], bool] = bool
    """Whether a value is one of these."""


def _always(_: object) -> bool:
    return True


def _one_of(*names: str) -> Callable[[object], bool]:
    return lambda value: value in names


TABLE: tuple[NotYet, ...] = (
    NotYet(
        "launcher",
        "kubernetes, yarn",
        "this build has the local launcher only",
        _one_of("kubernetes", "yarn"),
    ),
    NotYet("roles.*.image", "", "the local launcher runs no images", _always),
    NotYet("roles.*.secrets", "", "this build keeps no secrets yet", _always),
    NotYet("runAs", "", "trainers run as the user of the node", _always),
    NotYet("tune", "any setting", "this build does not tune yet"),
)


def note_not_yet(findings: Findings, root: object) -> bool:
    """Note each part of a document that a row of the table refuses; return whether any did.

    Args:
        findings: Where to.
        root: The job file's values, with `defaults` merged into its roles.
    """
    found = False
    for row in TABLE:
        for path, value in _matches(root, tuple(row.field.split(".")), ()):
            if row.holds(value):
                findings.add(path, found=show_value(value), hint=row.sentence)
                found = True
    return found


def not_yet_page() -> str:
    """Return the page for `docs/` that lists the table; a test compares it."""
    lines = [
        "# Not yet",
        "",
        "What a job file may say by [its schema](jobspec.md) and this build does not carry out. "
        "A submit that asks for any of it",
        "is refused with code `NotYet` and the sentence given here; nothing of it is ignored. "
        "Made from `primusd/jobfile/notyet.py`",
        "by `pytest tests/docs/test_not_yet_page.py --rewrite`.",
        "",
        "| field | refused | the sentence |",
        "| --- | --- | --- |",
    ]
    lines += [
        f"| `{row.field}` | {row.values or 'whatever it says'} | {row.sentence} |" for row in TABLE
    ]
    return "\n".join(lines) + "\n"


def _matches(value: object, pattern: tuple[str, ...], path: Path) -> Iterator[tuple[Path, object]]:
    """Yield each value whose path has the pattern."""
    if not pattern:
        yield path, value
        return
    first, rest = pattern[0], pattern[1:]
    if is_mapping(value):
        for key in value if first == "*" else ([first] if first in value else []):
            yield from _matches(value[key], rest, (*path, key))
    elif is_list(value) and first == "*":
        for index, inner in enumerate(value):
            yield from _matches(inner, rest, (*path, index))
