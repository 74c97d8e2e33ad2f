"""Plays scripts: `play(Script(...))` once, `play_seed(17)` with a short script when it fails."""

from tests.simulation.checks import Checks
from tests.simulation.cluster import Town
from tests.simulation.deeds import DEEDS
from tests.simulation.script import ETCD_DEEDS, Script, as_python, draw
from tests.simulation.shrinking import shrunk

DEED_NAMES = tuple(name for name in DEEDS if name not in ETCD_DEEDS)


def play(script: Script, checks: Checks | None = None) -> Town:
    """Play a script to its end; raises AssertionError when something does not hold."""
    town = Town(script, checks)
    town.run(DEEDS)
    return town


def why_broken(script: Script) -> str:
    """Return what does not hold in a script, "" when all does."""
    town = Town(script)
    try:
        town.run(DEEDS)
    except Exception as error:  # noqa: BLE001 - whatever breaks a run is what is looked for
        return f"{type(error).__name__}: {error}"
    return ""


def script_of(seed: int) -> Script:
    """Return the script of a seed."""
    return draw(seed, DEED_NAMES)


def play_seed(seed: int, checks: Checks | None = None) -> Town:
    """Play a seed; when it fails, say so by the shortest script that fails as well."""
    script = script_of(seed)
    try:
        return play(script, checks)
    except Exception as error:
        # What does not come again is told as it is.
        short = shrunk(script, why_broken) if why_broken(script) else script
        raise AssertionError(f"seed {seed}: {error}\n\n{story(short)}") from error


def story(script: Script) -> str:
    """Return how a failing script comes to its failure: the script, its diary, its last entries."""
    town = Town(script)
    text = "it fails no more"
    try:
        town.run(DEEDS)
    except Exception as error:  # noqa: BLE001 - whatever breaks a run is what is looked for
        text = f"{type(error).__name__}: {error}"
    diary = "\n".join(town.diary)
    return f"in short: {text}\n\n{as_python(script)}\n{diary}\n\n{town.checks.last_records()}"
