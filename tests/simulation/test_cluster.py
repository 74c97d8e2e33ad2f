"""2,000 seeds of whole clusters: faults, people, heads that die. Nothing is lost, nothing is left.

A failing seed prints a short script that replays it; docs/testing-simulation.md tells how.
"""

import itertools
import os
import time
from pathlib import Path

import msgspec
import pytest

from tests.simulation.checks import Checks
from tests.simulation.coverage import Cell, missing, noted
from tests.simulation.playing import play, play_seed
from tests.simulation.script import Deed, PlannedJob, Script
from tests.simulation.stories import STORIES

SEEDS = 2_000
CHUNKS = 8
CHUNK = SEEDS // CHUNKS
SOAK_LIVES = 10_000


@pytest.fixture
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that all workers of this test run share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "reached"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.mark.timeout(600)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_C38_every_seed_comes_to_its_end_and_leaves_nothing(
    chunk: int, shared_folder: Path
) -> None:
    reached: set[Cell] = set()
    with noted(reached):
        for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
            play_seed(seed, Checks(reached))

        for story in STORIES[chunk::CHUNKS]:
            play(story, Checks(reached))

    partial = shared_folder / f"{chunk}.partial"
    partial.write_bytes(msgspec.json.encode(sorted(reached)))
    partial.rename(shared_folder / f"{chunk}.json")
    told = sorted(shared_folder.glob("*.json"))
    if len(told) == CHUNKS:
        # Whoever comes last looks at what all of them reached.
        cells = {tuple(one) for path in told for one in msgspec.json.decode(path.read_bytes())}
        lacking = missing(cells)
        assert not lacking, f"{len(lacking)} cells are neither refused nor reached: {lacking}"


@pytest.mark.parametrize("at_ms", range(500, 12_000, 1_000))
def test_C38_a_forgotten_job_is_gone_for_every_later_head(at_ms: int) -> None:
    script = Script(
        387,
        jobs=(PlannedJob(0, features=("stream",)),),
        deeds=(Deed(60_000, "forget"), Deed(60_000 + 10 * at_ms, "change leader")),
    )

    town = play(script)

    assert town.world.jobs == {}
    assert town.world.streams == {}


def test_a_slot_given_up_is_free_again_when_its_host_is_back_whoever_leads_then() -> None:
    script = Script(
        39,
        jobs=(PlannedJob(0, 20_000),),
        deeds=(Deed(579, "kill head at an entry", 37_819), Deed(3_536, "lose host", 61_935)),
    )

    town = play(script)

    assert town.world.admission.quarantined == ()


def test_who_was_scaled_up_while_the_only_host_is_left_out_waits_for_admission() -> None:
    script = Script(
        22802,
        jobs=(PlannedJob(0), PlannedJob(1, features=("stream",))),
        deeds=(Deed(1_108, "exclude node", 62_078), Deed(1_316, "scale", 1_813)),
        hosts=1,
        weather="windy",
    )

    town = play(script)

    assert town.world.jobs["j1"].roles["worker"].size == 5
    assert all(job.is_final for job in town.world.jobs.values())


def test_who_finds_no_place_beside_members_that_are_done_does_not_make_them_run_again() -> None:
    """12: made larger than its only host holds, a role that restarts whole ran round for ever."""
    script = Script(
        27099,
        jobs=(PlannedJob(0, 500, ("restart unit", "resources")),),
        deeds=(Deed(2_367, "scale", 18_920),),
        weather="windy",
    )

    town = play(script)

    job = town.world.jobs["j0"]
    assert job.roles["worker"].size == 5
    assert job.phase == "Succeeded"
    assert job.generation <= 3


def test_a_member_that_a_rule_lets_complete_does_not_take_its_group_round_in_circles() -> None:
    """12: its stream took it for lost, and the role began anew, charged to nobody, for ever."""
    features = "dynamic", "depends", "quick restarts", "bad stream", "poison", "exactly once"
    job = PlannedJob(2, 500, (*features, "failure rules"))

    for seed in range(50_936, 50_946):
        town = play(Script(seed, (job,)))

        assert town.world.jobs["j2"].generation <= 31


def test_an_elastic_gang_starts_with_what_it_has_before_its_members_waited_too_long() -> None:
    """14: it waited 30 s for a third place, and its members were given up after 20 s."""
    features = "two workers", "more workers", "elastic", "success", "all GPUs", "short start"

    town = play(Script(54558, (PlannedJob(0, 0, features),), hosts=2))

    assert town.world.jobs["j0"].start_timeouts == 0
    assert town.world.jobs["j0"].phase == "Succeeded"


def test_C40_no_trainer_notices_who_leads() -> None:
    """C39: leaders in etcd are killed, cut off, stand still, resign: each attempt is a first."""
    job = PlannedJob(0, features=("two workers", "stream", "long work"))
    deeds = (
        Deed(3_000, "let another lead"),
        Deed(9_000, "kill head", 1),
        Deed(12_000, "stop etcd member", 7),
        Deed(30_000, "cut etcd off", 11),
        Deed(80_000, "freeze head", 4),
    )

    town = play(Script(640, (job,), deeds, hosts=2, store="etcd"))

    assert len({head.term for head in town.heads if head.term}) >= 4
    assert {attempt.attempt for attempt in town.exits} == {1}
    assert town.world.jobs["j0"].phase == "Succeeded"


@pytest.mark.soak
def test_10000_lives_and_more_for_as_long_as_asked(capsys: pytest.CaptureFixture[str]) -> None:
    """C21: `SOAK_SECONDS` says how long; never less than 10,000 lives of jobs.

    At the end of each nothing is left: `Checks.nothing_left`.
    """
    first = int(os.environ.get("SOAK_SEED", SEEDS))
    end = time.monotonic() + int(os.environ.get("SOAK_SECONDS", "0"))
    lives = 0
    for seed in itertools.count(first):
        if lives >= SOAK_LIVES and time.monotonic() > end:
            break
        lives += len(play_seed(seed).world.jobs)

    with capsys.disabled():
        print(f"\n{lives:,} lives of jobs in the seeds {first:,} to {seed - 1:,}")  # noqa: T201 - as told
    assert lives >= SOAK_LIVES
