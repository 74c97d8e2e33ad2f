"""Folders by time: the moments between two ends, and what a template says for each. Pure.

A moment is an hour, a day, a month or a year of a zone's own clock: the hour that a change to
summer time leaves out is none, the one that comes twice in autumn is one, and lasts two.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from msgspec import Struct

STEPS = ("year", "month", "day", "hour")
"""Coarsest first."""
_WORDS = {"YYYY": "%Y", "MM": "%m", "DD": "%d", "HH": "%H"}
_STEP_OF_WORD = {"YYYY": "year", "MM": "month", "DD": "day", "HH": "hour"}
_LABELS = {"year": "%Y", "month": "%Y-%m", "day": "%Y-%m-%d", "hour": "%Y-%m-%dT%H"}
_FORMS = {
    "year": re.compile(r"\d{4}", re.ASCII),
    "month": re.compile(r"\d{4}-\d\d", re.ASCII),
    "day": re.compile(r"\d{4}-\d\d-\d\d", re.ASCII),
    "hour": re.compile(r"\d{4}-\d\d-\d\dT\d\d", re.ASCII),
}
_TEMPLATE = re.compile(r"\{\{\s*([^{}]*?)\s*\}\}")


class Moment(Struct, frozen=True):
    """One hour, day, month or year."""

    label: str
    """`2026-01-01T05`; sorts as time goes."""
    local: datetime
    """Its first second on the zone's clock, without the zone."""
    ends_ms: int
    """When it is over, in milliseconds since the Unix epoch."""


def words_of(template: str) -> tuple[str, ...]:
    """Return what stands between double braces."""
    return tuple(_TEMPLATE.findall(template))


def unknown_words(template: str) -> tuple[str, ...]:
    """Return what stands between double braces and is none of `YYYY`, `MM`, `DD`, `HH`."""
    return tuple(word for word in words_of(template) if word not in _WORDS)


def step_of(template: str) -> str:
    """Return the finest step that a template names, "" when it names none.

    A step needs those above it: a template with `HH` and without `DD` names none.
    """
    found = {_STEP_OF_WORD[word] for word in words_of(template) if word in _WORDS}
    for count in range(len(STEPS), 0, -1):
        if found == set(STEPS[:count]):
            return STEPS[count - 1]
    return ""


def filled(template: str, moment: Moment) -> str:
    """Return the template with the moment in it."""
    return _TEMPLATE.sub(lambda match: moment.local.strftime(_WORDS[match[1]]), template)


def step_of_label(label: str) -> str:
    """Return which step a label is of; "" when it is none, or no such day is."""
    for step, form in _FORMS.items():
        if form.fullmatch(label):
            try:
                datetime.strptime(label, _LABELS[step])  # noqa: DTZ007 a zone's own clock
            except ValueError:
                return ""
            return step
    return ""


def moments(first: str, last: str, step: str, zone: str) -> Iterator[Moment]:
    """Yield the moments between two ends, both included, as time goes.

    Args:
        first: A label of this step, or of a coarser one: from its first moment on.
        last: Likewise, up to its last moment; `now`: without an end.
        step: Of `STEPS`.
        zone: Of the IANA database.
    """
    at = _start(first)
    end = datetime.max if last == "now" else _after(_start(last), step_of_label(last))  # noqa: DTZ901
    place = ZoneInfo(zone)
    while at < end:
        following = _after(at, step)
        last_second = following - timedelta(seconds=1)
        # Where a clock leaps by half an hour, a part of that hour is there.
        if step != "hour" or _is_on_clock(at, place) or _is_on_clock(last_second, place):
            # The second time that an ambiguous hour comes is when it is over.
            over = last_second.replace(tzinfo=place, fold=1).astimezone(UTC) + timedelta(seconds=1)
            yield Moment(at.strftime(_LABELS[step]), at, int(over.timestamp() * 1000))
        at = following


def coarse(label: str, step: str) -> str:
    """Return which moment of a coarser step a label lies in."""
    return label[: {"year": 4, "month": 7, "day": 10, "hour": 13}[step]]


def coarse_after(moment: Moment, delay_ms: int, step: str) -> str:
    """Return which moment of a coarser step is so much later than another one begins."""
    if not delay_ms:
        return coarse(moment.label, step)
    later = moment.local + timedelta(milliseconds=delay_ms)
    return later.strftime(_LABELS[step])


def _start(label: str) -> datetime:
    return datetime.strptime(label, _LABELS[step_of_label(label)])  # noqa: DTZ007 as above


def _after(at: datetime, step: str) -> datetime:
    match step:
        case "year":
            return at.replace(year=at.year + 1)
        case "month":
            return at.replace(year=at.year + at.month // 12, month=at.month % 12 + 1)
        case "day":
            return at + timedelta(days=1)
        case _:
            return at + timedelta(hours=1)


def _is_on_clock(local: datetime, place: ZoneInfo) -> bool:
    there = local.replace(tzinfo=place)
    return there.astimezone(UTC).astimezone(place).replace(tzinfo=None) == local
