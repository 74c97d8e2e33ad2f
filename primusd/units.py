"""Durations and sizes as people write them: `10m`, `1h30m`, `64Mi`, `16Gi`.

A number without a unit is never guessed at: `16` is refused with "16 what?".
"""

import re
from collections.abc import Mapping
from fractions import Fraction
from types import MappingProxyType

DURATION_UNITS_MS: Mapping[str, int] = MappingProxyType(
    {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
)
SIZE_UNITS_BYTES: Mapping[str, int] = MappingProxyType(
    {
        "Pi": 1 << 50,
        "Ti": 1 << 40,
        "Gi": 1 << 30,
        "Mi": 1 << 20,
        "Ki": 1 << 10,
        "P": 10**15,
        "T": 10**12,
        "G": 10**9,
        "M": 10**6,
        "k": 10**3,
        "B": 1,
    }
)
DURATION_ALLOWED = "a duration with a unit, as 500ms, 10s, 5m, 24h, 7d or 1h30m"
SIZE_ALLOWED = "a size with a unit, as 512B, 64Mi or 16Gi"

# Longer texts are no number that anybody means; it also bounds the work on hostile input.
_TEXT_MAX = 40
_COUNT_MAX = 2**63 - 1
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)([a-zA-Z]+)", re.ASCII)
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s?([a-zA-Z]+)", re.ASCII)
_NUMBER = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?", re.ASCII)
_NEAREST_SIZE = {"kb": "k", "mb": "M", "gb": "G", "tb": "T", "pb": "P"} | {
    f"{letter}ib": f"{letter.upper()}i" for letter in "kmgtp"
}
_NEAREST_DURATION = {
    "sec": "s",
    "secs": "s",
    "second": "s",
    "seconds": "s",
    "min": "m",
    "mins": "m",
    "minute": "m",
    "minutes": "m",
    "hour": "h",
    "hours": "h",
    "day": "d",
    "days": "d",
}


class UnitError(ValueError):
    """A duration or a size that cannot be understood.

    Attributes:
        allowed: What would have been right, for a list of errors.
        hint: The nearest right spelling, or "" where there is none.
    """

    def __init__(self, message: str, *, allowed: str, hint: str = "") -> None:
        super().__init__(message)
        self.allowed = allowed
        self.hint = hint


def parse_duration_ms(value: object) -> int:
    """Return the milliseconds that a text like `10m` or `1h30m` stands for.

    Parts of a compound stand from the largest unit to the smallest, each unit once.

    Raises:
        UnitError: Not a text, no unit, an unknown unit, negative, or not whole milliseconds.
    """
    text = _checked_text(value, allowed=DURATION_ALLOWED)
    total, end, last_unit_ms = Fraction(0), 0, _COUNT_MAX
    while match := _DURATION_PART.match(text, end):
        unit_ms = _unit(text, match[2], DURATION_UNITS_MS, _NEAREST_DURATION, DURATION_ALLOWED)
        if unit_ms >= last_unit_ms:
            raise UnitError(f"{text!r} names its units in a wrong order", allowed=DURATION_ALLOWED)
        total += Fraction(match[1]) * unit_ms
        end, last_unit_ms = match.end(), unit_ms
    if end == 0 or end != len(text):
        raise UnitError(f"{text!r} is not a duration", allowed=DURATION_ALLOWED)
    return _whole(text, total, "milliseconds", DURATION_ALLOWED)


def parse_bytes(value: object) -> int:
    """Return the bytes that a text like `64Mi` stands for.

    Raises:
        UnitError: Not a text, no unit, an unknown unit, negative, or not whole bytes.
    """
    text = _checked_text(value, allowed=SIZE_ALLOWED)
    match = _SIZE.fullmatch(text)
    if match is None:
        raise UnitError(f"{text!r} is not a size", allowed=SIZE_ALLOWED)
    unit_bytes = _unit(text, match[2], SIZE_UNITS_BYTES, _NEAREST_SIZE, SIZE_ALLOWED)
    return _whole(text, Fraction(match[1]) * unit_bytes, "bytes", SIZE_ALLOWED)


def format_duration(duration_ms: int) -> str:
    """Return the shortest spelling that `parse_duration_ms` reads back exactly; 0 is `0s`."""
    if duration_ms < 0:
        raise ValueError(f"a duration cannot be negative: {duration_ms} ms")
    parts, rest_ms = [], duration_ms
    for unit, unit_ms in DURATION_UNITS_MS.items():
        count, rest_ms = divmod(rest_ms, unit_ms)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def format_bytes(byte_count: int) -> str:
    """Return the spelling in the largest binary unit that is exact; 0 is `0B`.

    `parse_bytes` reads it back to the same number.
    """
    if byte_count < 0:
        raise ValueError(f"a size cannot be negative: {byte_count} bytes")
    for unit, unit_bytes in SIZE_UNITS_BYTES.items():
        is_binary = unit_bytes & (unit_bytes - 1) == 0
        if is_binary and byte_count and byte_count % unit_bytes == 0:
            return f"{byte_count // unit_bytes}{unit}"
    return f"{byte_count}B"


def bytes_words(byte_count: int) -> str:
    """Return a size for a sentence, cut to a tenth of its binary unit: `21.1Gi`."""
    for unit, unit_bytes in SIZE_UNITS_BYTES.items():
        is_binary = unit_bytes & (unit_bytes - 1) == 0
        if is_binary and byte_count >= unit_bytes:
            tenths = byte_count * 10 // unit_bytes
            return f"{tenths // 10}.{tenths % 10}{unit}".replace(".0", "")
    return f"{byte_count}B"


def _checked_text(value: object, *, allowed: str) -> str:
    """Return the text of a value, or say what is missing from it."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UnitError(f"{_shown(value)} has no unit that can be read", allowed=allowed)
    text = str(value).strip()
    if len(text) > _TEXT_MAX:
        raise UnitError(f"{_shown(text)} is too long", allowed=allowed)
    if _NUMBER.fullmatch(text):
        raise UnitError(f"{text} has no unit", allowed=allowed, hint=f"{text} what?")
    return text


def _unit(
    text: str,
    unit: str,
    known: Mapping[str, int],
    nearest: Mapping[str, str],
    allowed: str,
) -> int:
    """Return what one of the unit is worth, or name the nearest unit that exists."""
    if unit in known:
        return known[unit]
    other = nearest.get(unit.lower()) or next(
        (right for right in known if right.lower() == unit.lower()), ""
    )
    hint = f"did you mean {other}?" if other else f"units are {', '.join(reversed(list(known)))}"
    raise UnitError(f"{text!r} has an unknown unit {unit!r}", allowed=allowed, hint=hint)


def _whole(text: str, amount: Fraction, unit: str, allowed: str) -> int:
    """Return the amount as an integer, or refuse what is not whole or too large to store."""
    if amount.denominator != 1:
        raise UnitError(f"{text!r} is not a whole number of {unit}", allowed=allowed)
    if amount > _COUNT_MAX:
        raise UnitError(f"{text!r} is too large", allowed=allowed)
    return amount.numerator


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= _TEXT_MAX else f"{shown[:_TEXT_MAX]}…"
