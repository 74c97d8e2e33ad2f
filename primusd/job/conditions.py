"""Conditions on rows, as `filter` has them: `label == 1`, `country in [de, fr]`. Pure."""

import re
from typing import TypeAlias

from msgspec import Struct

from primusd.errors import PrimusdError

Value: TypeAlias = bool | int | float | str
COMPARISONS = ("==", "!=", "<=", ">=", "<", ">")
OF_TEXTS = ("contains", "not contains", "starts with", "ends with")
FORM = (
    'column == value (or != < <= > >=), "column in [a, b]", "column not in [a, b]", '
    '"column is null", "column is not null", "column contains a" (or not contains, starts with, '
    "ends with)"
)

_NAME = r'(?P<name>[^\W\d][\w.]*|"[^"]+")'
_COMPARED = re.compile(rf"\s*{_NAME}\s*(?P<op>==|!=|<=|>=|<|>)\s*(?P<value>.+?)\s*")
_LISTED = re.compile(rf"\s*{_NAME}\s+(?P<op>not\s+in|in)\s*\[(?P<value>.*)\]\s*", re.DOTALL)
_TEXTUAL = re.compile(
    rf"\s*{_NAME}\s+(?P<op>(?:not\s+)?contains|(?:starts|ends)\s+with)\s+(?P<value>.+?)\s*",
    re.DOTALL,
)
_NULL = re.compile(rf"\s*{_NAME}\s+is\s+(?P<op>not\s+null|null)\s*")
_ITEM = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|'[^']*'|[^,\s"'\[\]][^,"'\[\]]*?)\s*(?:,|$)""")
_NUMBER = re.compile(r"[+-]?(\d+|(\d+\.\d*|\.\d+|\d+)([eE][+-]?\d+)?)", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d+", re.ASCII)


class ConditionError(PrimusdError):
    """A condition that cannot be read."""

    code = "BadCondition"


class Condition(Struct, frozen=True):
    """What a row must be to be read."""

    column: str
    op: str
    """One of COMPARISONS or OF_TEXTS, `in`, `not in`, `is null`, `is not null`."""
    values: tuple[Value, ...] = ()


def parse_condition(text: str) -> Condition:
    """Return a condition.

    Raises:
        ConditionError: It is none.
    """
    if match := _LISTED.fullmatch(text):
        op = " ".join(match["op"].split())
        return Condition(_name(match["name"]), op, _values(match["value"], text))
    if match := _NULL.fullmatch(text):
        return Condition(_name(match["name"]), f"is {' '.join(match['op'].split())}")
    if match := _TEXTUAL.fullmatch(text):
        op = " ".join(match["op"].split())
        return Condition(_name(match["name"]), op, (_text(match["value"]),))
    if match := _COMPARED.fullmatch(text):
        values = _values(match["value"], text)
        if len(values) == 1:
            return Condition(_name(match["name"]), match["op"], values)
    raise ConditionError(f"{text!r} is no condition", hint=FORM)


def _name(text: str) -> str:
    return text[1:-1] if text.startswith('"') else text


def _values(text: str, whole: str) -> tuple[Value, ...]:
    found: list[Value] = []
    at = 0
    while at < len(text):
        match = _ITEM.match(text, at)
        if match is None:
            raise ConditionError(f"{whole!r} is no condition: {text[at:]!r} is no value", hint=FORM)
        found.append(_value(match[1]))
        at = match.end()
    if not found:
        raise ConditionError(f"{whole!r} names no value", hint=FORM)
    return tuple(found)


def _text(text: str) -> str:
    """Return a value as text, in quotes or not."""
    if len(text) > 1 and text[0] == text[-1] == "'":
        return text[1:-1]
    if len(text) > 1 and text[0] == text[-1] == '"':
        return re.sub(r"\\(.)", r"\1", text[1:-1])
    return text


def _value(text: str) -> Value:
    if text[0] in "'\"":
        return _text(text)
    if text in {"true", "false"}:
        return text == "true"
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text
