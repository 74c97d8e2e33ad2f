"""Times as documents and people have them."""

from datetime import UTC, datetime

from msgspec import UNSET, UnsetType

from primusd.units import DURATION_UNITS_MS


def rfc3339(at_ms: int) -> str:
    """Return a time as documents have it: `2026-01-02T03:04:05.006Z`."""
    seconds, milliseconds = divmod(at_ms, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{milliseconds:03d}Z"


def known_time(at_ms: int) -> str | UnsetType:
    """Return a time, or nothing for the 0 that stands for `not yet`."""
    return rfc3339(at_ms) if at_ms else UNSET


def said_duration(duration_ms: int) -> str:
    """Return a duration in its two largest units, as a person says it: `1 h 5 min`."""
    if duration_ms < 1000:
        return f"{max(0, duration_ms)} ms"
    words = {"d": "d", "h": "h", "m": "min", "s": "s"}
    parts, rest_ms = [], duration_ms
    for unit, word in words.items():
        count, rest_ms = divmod(rest_ms, DURATION_UNITS_MS[unit])
        if count:
            parts.append(f"{count} {word}")
        elif parts:
            break
    return " ".join(parts[:2])
