"""Makes a failing script short: what it does not need is left out, as long as it still fails.

Source: Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from msgspec.structs import replace

from tests.simulation.script import Script

TRIES_MAX = 400
ItemT = TypeVar("ItemT")


def shrunk(script: Script, why_broken: Callable[[Script], str]) -> Script:
    """Return the shortest script found that is broken in the same way, by its first word."""
    wanted = _kind(why_broken(script))
    tries = 0
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for smaller in _smaller(script):
            tries += 1
            if tries > TRIES_MAX:
                return script
            if _kind(why_broken(smaller)) == wanted:
                script, is_smaller = smaller, True
                break
    return script


def _kind(text: str) -> str:
    """Return what two failures have in common that are one: how their text begins."""
    return text[:26]


def _smaller(script: Script) -> Iterator[Script]:
    for deeds in _parts(script.deeds):
        yield replace(script, deeds=deeds)
    for jobs in _parts(script.jobs):
        if jobs:
            yield replace(script, jobs=jobs)
    for position, job in enumerate(script.jobs):
        for features in _parts(job.features):
            changed = replace(job, features=features)
            yield replace(
                script, jobs=(*script.jobs[:position], changed, *script.jobs[position + 1 :])
            )
    for weather in ("calm", "windy", "rough"):
        if weather == script.weather:
            break
        yield replace(script, weather=weather)
    if script.hosts > 1:
        yield replace(script, hosts=script.hosts - 1)


def _parts(items: Sequence[ItemT]) -> Iterator[tuple[ItemT, ...]]:
    """Yield the items without a half, a quarter, … a single one of them."""
    size = len(items)
    while size:
        size = (size + 1) // 2 if size > 1 else 0
        for first in range(0, len(items), max(1, size)):
            yield (*items[:first], *items[first + max(1, size) :])
        if size <= 1:
            return
