"""What a seed plays: jobs with their features, deeds of people and faults, each at its time.

A script is a value: printed it replays, and what is left out of it changes nothing else, so that a
failing one can be made short. All that a run draws beside it comes from names (`seed/job/feature`,
`seed/attempt`), not from one stream of numbers.
"""

import random

from msgspec import Struct

from tests.simulation.features import FEATURES
from tests.simulation.wire import WEATHERS

ETCD_SHARE = 1 / 20
"""Of the seeds: those whose heads elect a leader in etcd."""
ETCD_DEEDS = ("stop etcd member", "kill etcd member", "cut etcd off", "let another lead")
DEEDS_MS = 240_000
"""Deeds happen within this time; then all is calm and everything has to come to its end."""


class PlannedJob(Struct, frozen=True):
    """A job to be submitted."""

    number: int
    arrives_ms: int = 0
    features: tuple[str, ...] = ()


class Deed(Struct, frozen=True):
    """Something that a person or fate does; whom it meets is drawn from `chance`."""

    at_ms: int
    name: str
    chance: int = 0


class Script(Struct, frozen=True):
    """A whole run."""

    seed: int
    jobs: tuple[PlannedJob, ...]
    deeds: tuple[Deed, ...] = ()
    hosts: int = 1
    weather: str = "calm"
    store: str = "sqlite"
    """Or `etcd`: heads elect a leader."""


def draw(seed: int, deed_names: tuple[str, ...]) -> Script:
    """Return the script of a seed: many runs with few kinds of trouble find more than average ones.

    Args:
        seed: Which.
        deed_names: What can be done.
    """
    rnd = random.Random(seed)
    weather = rnd.choice(("calm", "calm", "bytes", "windy", "windy", "rough", "storm"))
    jobs = tuple(
        PlannedJob(number, rnd.choice((0, 0, 500, 20_000)), _features(seed, number))
        for number in range(rnd.choice((1, 1, 1, 2, 3)))
    )
    count = 0 if rnd.random() < 0.15 else rnd.choice((1, 2, 4, 8, 14))
    kinds = _some(deed_names, seed, rnd.choice((1, 2, 4, 8)))
    last_ms = rnd.choice((5_000, 30_000, DEEDS_MS))
    times = sorted(rnd.randrange(last_ms) for _ in range(count))
    deeds = tuple(Deed(at_ms, rnd.choice(kinds), rnd.randrange(1 << 16)) for at_ms in times)
    hosts = rnd.choice((1, 2, 2, 3))
    if random.Random(f"{seed}/store").random() >= ETCD_SHARE:
        return Script(seed, jobs, deeds, hosts, weather)
    return Script(seed, jobs, _with_etcd(seed, deeds, last_ms), hosts, weather, "etcd")


def _with_etcd(seed: int, deeds: tuple[Deed, ...], last_ms: int) -> tuple[Deed, ...]:
    """Return deeds with some more: what happens to etcd."""
    rnd = random.Random(f"{seed}/etcd deeds")
    more = tuple(
        Deed(rnd.randrange(last_ms), rnd.choice(ETCD_DEEDS), rnd.randrange(1 << 16))
        for _ in range(rnd.choice((0, 1, 3, 6)))
    )
    return tuple(sorted((*deeds, *more), key=lambda deed: deed.at_ms))


def _some(names: tuple[str, ...], seed: int, count: int) -> tuple[str, ...]:
    """Return some of the names; one more in the table changes few of the seeds."""
    return tuple(sorted(names, key=lambda name: random.Random(f"{seed}/{name}").random())[:count])


def _features(seed: int, number: int) -> tuple[str, ...]:
    wish = random.Random(f"{seed}/{number}").choice((0.3, 0.7, 1.0))
    return tuple(
        name
        for name, one in FEATURES.items()
        if random.Random(f"{seed}/{number}/has/{name}").random() < one.share * wish
    )


def as_python(script: Script) -> str:
    """Return a few lines of Python that replay the script."""
    jobs = "".join(f"        {one!r},\n" for one in script.jobs)
    deeds = "".join(f"        {one!r},\n" for one in script.deeds)
    assert script.weather in WEATHERS
    return (
        "from tests.simulation.playing import play\n"
        "from tests.simulation.script import Deed, PlannedJob, Script\n\n"
        f"play(Script(\n    {script.seed},\n    jobs=(\n{jobs}    ),\n    deeds=(\n{deeds}    ),\n"
        f"    hosts={script.hosts},\n    weather={script.weather!r},\n"
        f"    store={script.store!r},\n))\n"
    )
