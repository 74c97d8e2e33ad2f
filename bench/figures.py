"""What a benchmark prints: a figure, its goal, and whether the goal is met."""

import math

from msgspec import Struct


class Figure(Struct, frozen=True):
    """One measured value beside the value it should reach."""

    name: str
    value: float
    unit: str
    """`ms`, `GB/s`, `rows/s`, `%`, …"""
    goal: str
    """As a person reads it: `≤ 200 ms`; "" nothing is promised."""
    met: bool
    rival: str
    """What it was measured against in the same run; "" an absolute figure."""


def unmeasured(name: str, reason: str, goal: str = "") -> Figure:
    """Return a figure that could not be measured here, which is named all the same."""
    return Figure(name, math.nan, "", goal, met=False, rival=reason)


def cells(figure: Figure) -> tuple[str, str, str, str, str]:
    """Return name, value with its unit, goal, verdict and rival, as a table row."""
    if math.isnan(figure.value):
        return (figure.name, "not measured", figure.goal, "", figure.rival)
    verdict = "" if not figure.goal else "met" if figure.met else "missed"
    return (figure.name, f"{figure.value:,.4g} {figure.unit}", figure.goal, verdict, figure.rival)
