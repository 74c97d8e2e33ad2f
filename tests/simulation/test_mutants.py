"""The simulator notices faults that are put into the code on purpose."""

import runpy
from pathlib import Path

import pytest

from tests.simulation.mutants import MUTANTS, Mutant, mutated
from tests.simulation.playing import play_seed, script_of, why_broken
from tests.simulation.script import Script, as_python

SEARCH_SEEDS = 60
SOAK_SEEDS = 2_000


def named(one: Mutant) -> str:
    return one.name


def finder(one: Mutant, seeds: int) -> int | Script | None:
    """Return what notices a fault: what did before, else the first of so many seeds."""
    with mutated(one):
        first = one.found_by if isinstance(one.found_by, Script) else script_of(one.found_by)
        if why_broken(first):
            return one.found_by
        return next((seed for seed in range(seeds) if why_broken(script_of(seed))), None)


def test_there_are_enough_of_them_and_none_is_there_unasked() -> None:
    assert len({one.name for one in MUTANTS}) == len(MUTANTS) >= 20
    for one in MUTANTS:
        if isinstance(one.found_by, Script):
            assert not why_broken(one.found_by), one.name


@pytest.mark.parametrize("one", MUTANTS, ids=named)
def test_a_fault_in_the_code_is_noticed(one: Mutant) -> None:
    assert finder(one, SEARCH_SEEDS) is not None, f"{one.name}: nothing notices it any more"


def test_a_seed_that_fails_prints_a_short_script_that_fails_alike(tmp_path: Path) -> None:
    (one,) = [one for one in MUTANTS if one.name == "a code other than 0 is a completion"]
    path = tmp_path / "found.py"

    with mutated(one):
        seed = next(
            seed
            for seed in range(SEARCH_SEEDS)
            if len(script_of(seed).deeds) > 1 and why_broken(script_of(seed))
        )
        with pytest.raises(AssertionError) as caught:
            play_seed(seed)
        first, _, rest = str(caught.value).partition("in short: ")
        printed = rest[rest.index("from tests.simulation") : rest.index("\n))\n") + 4]
        path.write_text(printed)
        with pytest.raises(AssertionError) as again:
            runpy.run_path(str(path))

    assert first.startswith(f"seed {seed}: ")
    assert rest.startswith(f"AssertionError: {again.value}")
    assert len(printed) < len(as_python(script_of(seed)))
    # With the code as it is the same script has nothing to say.
    runpy.run_path(str(path))


@pytest.mark.soak
def test_each_fault_has_a_seed_that_finds_it(capsys: pytest.CaptureFixture[str]) -> None:
    found = {one.name: finder(one, SOAK_SEEDS) for one in MUTANTS}

    with capsys.disabled():
        print()  # noqa: T201 - the table is what a soak run is for
        for name, by in found.items():
            print(f"{by if isinstance(by, int) else 'its own script':>16}  {name}")  # noqa: T201
    assert None not in found.values()
