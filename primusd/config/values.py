"""How one value of the configuration is read: its type, its bounds, what is said if it is wrong.

A rule stands in the annotation of the field it is for. `read_value` turns what TOML gave (or the
text of a flag or an environment variable) into the field's value, `show_value` turns it back.
"""

import ipaddress
import re
from collections.abc import Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import assert_never

from msgspec import Struct

from primusd.units import (
    DURATION_ALLOWED,
    SIZE_ALLOWED,
    UnitError,
    format_bytes,
    format_duration,
    parse_bytes,
    parse_duration_ms,
)

PORT_MAX = 65_535
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_PORT_RANGE = re.compile(r"([0-9]{1,5})-([0-9]{1,5})", re.ASCII)
_TEXT_MAX = 4_096


class Text(Struct, frozen=True):
    """Any text without control characters."""


class AbsolutePath(Struct, frozen=True):
    """A path from the root, or "" for none."""


class Name(Struct, frozen=True):
    """A DNS label."""


class Flag(Struct, frozen=True):
    """true or false."""


class Choice(Struct, frozen=True):
    """One of a closed list of words."""

    words: tuple[str, ...]


class Integer(Struct, frozen=True):
    """A count."""

    low: int
    high: int
    may_be_empty: bool = False
    """"" is allowed and read as None."""


class Duration(Struct, frozen=True):
    """Milliseconds, written with a unit."""

    low_ms: int
    high_ms: int
    may_be_empty: bool = False
    """"" is allowed and read as None."""


class Size(Struct, frozen=True):
    """Bytes, written with a unit."""

    low: int
    high: int
    may_be_empty: bool = False
    """"" is allowed and read as None."""
    key: str = ""
    """The key in the file; "" where it is the field's name without its unit."""


class Address(Struct, frozen=True):
    """`host:port`, or "" for none."""


class Cores(Struct, frozen=True):
    """A number of cores, kept in thousandths; "" is None."""


class Gpus(Struct, frozen=True):
    """`auto`, `none`, a number of pretended ones, or a list of uuids."""


class PortRange(Struct, frozen=True):
    """`first-last`."""


class TextTuple(Struct, frozen=True):
    """A list of texts, of a closed list of words where one is given."""

    words: tuple[str, ...] = ()
    count_min: int = 0


class TextMap(Struct, frozen=True):
    """A table of texts."""


class Quota(Struct, frozen=True):
    """A table of `cpu`, `memory` and `gpu`."""


class NotYet(Struct, frozen=True):
    """Marks a setting of which this build carries out the default only, or all but some values."""

    words: tuple[str, ...] = ()
    """The values that are refused; none: every value but the default is."""
    but: tuple[str, ...] = ()
    """What a value may begin with to be carried out all the same."""


Rule = (
    Text | AbsolutePath | Name | Flag | Choice | Integer | Duration | Size | Address | Cores | Gpus
    | PortRange | TextTuple | TextMap | Quota
)  # fmt: skip


class SettingError(ValueError):
    """One value is wrong.

    Attributes:
        allowed: What would have been right.
        hint: What to do; "" where `allowed` says it.
    """

    def __init__(self, allowed: str, *, hint: str = "") -> None:
        super().__init__(allowed)
        self.allowed = allowed
        self.hint = hint


def read_value(rule: Rule, value: object) -> object:  # noqa: C901  one arm per rule
    """Return the value for a field.

    Raises:
        SettingError: The value has another type or is out of bounds.
    """
    match rule:
        case Text():
            return _text(value)
        case AbsolutePath():
            return _absolute_path(value)
        case Name():
            return _name(value)
        case Flag():
            return _flag(value)
        case Choice(words):
            return _choice(value, words)
        case Integer():
            return _integer(value, rule)
        case Duration():
            return _duration(value, rule)
        case Size():
            return _size(value, rule)
        case Address():
            return _address(value)
        case Cores():
            return _cores(value)
        case Gpus():
            return _gpus(value)
        case PortRange():
            return _port_range(value)
        case TextTuple(words, count_min):
            return _text_tuple(value, words, count_min)
        case TextMap():
            return _text_map(value)
        case Quota():
            return _quota(value)
        case _:
            assert_never(rule)


def show_value(rule: Rule, value: object) -> object:
    """Return what has to be written in the file to get this value of a field."""
    match rule, value:
        case ((Integer() | Duration() | Size() | Cores()), None):
            return ""
        case Duration(), int():
            return format_duration(value)
        case Size(), int():
            return format_bytes(value)
        case Cores(), int():
            return value / 1000
        case PortRange(), (first, last):
            return f"{first}-{last}"
        case Quota(), Mapping():
            return _shown_quota(value)
        case _:
            return list(value) if isinstance(value, tuple) else value


def split_address(text: str) -> tuple[str, int]:
    """Return host and port of `host:port` or `[v6]:port`.

    Raises:
        SettingError: There is no port, or it is none.
    """
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    if not colon or not host or (":" in host and not bracketed):
        raise SettingError("host:port, as 127.0.0.1:8080 or [::1]:8080")
    if not (port.isascii() and port.isdigit() and int(port) <= PORT_MAX):
        raise SettingError(f"a port from 0 to {PORT_MAX}", hint="0 takes a free one")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Return whether only this host can reach a listener there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise SettingError("a text in quotes")
    if len(value) > _TEXT_MAX or any(ord(letter) < 32 or ord(letter) == 127 for letter in value):
        raise SettingError(f"at most {_TEXT_MAX} characters on one line")
    return value


def _absolute_path(value: object) -> str:
    text = _text(value)
    if text and not text.startswith("/"):
        raise SettingError("an absolute path", hint="a relative one would depend on the caller")
    return text


def _name(value: object) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise SettingError("1 to 63 of a-z, 0-9 and -, beginning and ending with a letter or digit")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise SettingError("true or false")
    return value


def _choice(value: object, words: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in words:
        raise SettingError(" | ".join(word or '""' for word in words))
    return value


def _integer(value: object, rule: Integer) -> int | None:
    if rule.may_be_empty and value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not rule.low <= value <= rule.high:
        raise SettingError(f"a whole number from {rule.low:,} to {rule.high:,}")
    return value


def _duration(value: object, rule: Duration) -> int | None:
    if rule.may_be_empty and value == "":
        return None
    try:
        duration_ms = parse_duration_ms(value)
    except UnitError as error:
        raise SettingError(DURATION_ALLOWED, hint=error.hint) from error
    if not rule.low_ms <= duration_ms <= rule.high_ms:
        raise SettingError(f"{format_duration(rule.low_ms)} to {format_duration(rule.high_ms)}")
    return duration_ms


def _size(value: object, rule: Size) -> int | None:
    if rule.may_be_empty and value == "":
        return None
    try:
        byte_count = parse_bytes(value)
    except UnitError as error:
        raise SettingError(SIZE_ALLOWED, hint=error.hint) from error
    if not rule.low <= byte_count <= rule.high:
        raise SettingError(f"{format_bytes(rule.low)} to {format_bytes(rule.high)}")
    return byte_count


def _address(value: object) -> str:
    text = _text(value)
    if text:
        split_address(text)
    return text


def _cores(value: object) -> int | None:
    if value == "":
        return None
    milli = _milli(value)
    if milli is None or not 1 <= milli <= 10_000_000:
        raise SettingError('a number of cores from 0.001 to 10000, or "" for all')
    return milli


def _milli(value: object) -> int | None:
    """Return thousandths of a number, or None where it is no number or finer than that."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        milli = Fraction(str(value)) * 1000
    except (ValueError, ZeroDivisionError):
        return None
    return milli.numerator if milli.denominator == 1 else None


def _gpus(value: object) -> str | int | tuple[str, ...]:
    match value:
        case "auto" | "none":
            return str(value)
        case int() if not isinstance(value, bool) and 0 <= value <= 64:
            return value
        case list() if value and all(isinstance(uuid, str) and uuid for uuid in value):
            if len(set(value)) == len(value):
                return tuple(str(uuid) for uuid in value)
    raise SettingError('"auto", "none", a number up to 64, or a list of different uuids')


def _port_range(value: object) -> tuple[int, int]:
    match = _PORT_RANGE.fullmatch(value) if isinstance(value, str) else None
    first, last = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1024 <= first <= last <= PORT_MAX:
        raise SettingError("first-last with 1024 ≤ first ≤ last ≤ 65535, as 20000-29999")
    return first, last


def _text_tuple(value: object, words: tuple[str, ...], count_min: int) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise SettingError("a list of texts")
    wrong = [item for item in value if words and item not in words]
    if wrong:
        raise SettingError(f"a list out of {' | '.join(words)}", hint=f"{wrong[0]!r} is none")
    if len(value) < count_min:
        raise SettingError(f"at least {count_min}")
    if len(set(value)) != len(value):
        raise SettingError("each only once")
    return tuple(str(item) for item in value)


def _text_map(value: object) -> Mapping[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise SettingError('a table of texts, as {rack = "a7"}')
    return MappingProxyType({str(key): str(text) for key, text in value.items()})


def _quota(value: object) -> Mapping[str, int]:
    if not isinstance(value, dict) or set(value) - {"cpu", "memory", "gpu"}:
        raise SettingError('a table of cpu, memory and gpu, as {cpu = 64, memory = "256Gi"}')
    quota = {}
    if "cpu" in value:
        milli = _milli(value["cpu"])
        if milli is None or milli < 0:
            raise SettingError("cpu: a number of cores, 0 or more")
        quota["cpuMilli"] = milli
    if "memory" in value:
        byte_count = _size(value["memory"], Size(0, 1 << 60))
        assert byte_count is not None
        quota["memoryBytes"] = byte_count
    if "gpu" in value:
        gpus = _integer(value["gpu"], Integer(0, 1_000_000))
        assert gpus is not None
        quota["gpu"] = gpus
    return MappingProxyType(quota)


def _shown_quota(quota: Mapping[object, object]) -> dict[str, object]:
    shown: dict[str, object] = {}
    for key, amount in quota.items():
        match key, amount:
            case "cpuMilli", int():
                shown["cpu"] = amount / 1000
            case "memoryBytes", int():
                shown["memory"] = format_bytes(amount)
            case _:
                shown[str(key)] = amount
    return shown
