"""The job machine with admission under faults: 2,000 seeds, and what no seed may break.

A failure names its seed; `Simulation(seed).run(STEPS)` plays it again.
"""

from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from primusd import core
from primusd.core import World
from primusd.job import events as ev
from primusd.job.commands import PublishPeers
from primusd.job.ids import AttemptId
from primusd.job.job_tables import ATTEMPT_TABLE, JOB_TABLE, REPLICA_TABLE
from primusd.job.model import Job, replicas_of
from primusd.job.phases import AttemptPhase
from primusd.job.tables import is_refused
from tests.properties.job_simulator import UID, Simulation

SEEDS = 2_000
STEPS = 16
COVERED_SHARE = 0.9
"""Of the cells that are not refused; `tests/state/test_tables.py` drives every one of them."""
FINAL = ("Succeeded", "Failed", "Cancelled")
MOVING = (AttemptPhase.REQUESTED, AttemptPhase.STOPPING, AttemptPhase.ENDED)


def play(seed: int) -> Simulation:
    """Play a seed to its end."""
    simulation = Simulation(seed)
    try:
        simulation.run(STEPS)
    except AssertionError as error:
        told = "\n  ".join(simulation.log[-30:])
        raise AssertionError(f"seed {seed}: {error}\n  {told}") from error
    return simulation


def cells() -> list[tuple[str, tuple[str, ...]]]:
    """Return every cell that is not refused: its event, and the phases of its column."""
    return [
        (event, FINAL if column == "final" else (column,))
        for table in (ATTEMPT_TABLE, REPLICA_TABLE, JOB_TABLE)
        for event, row in table.rows.items()
        for column, cell in zip(table.columns, row, strict=True)
        if not is_refused(cell)
    ]


@pytest.mark.timeout(600)
def test_2000_seeds_end_as_they_should_and_reach_the_tables() -> None:
    covered: Counter[tuple[str, str]] = Counter()
    ends: Counter[str] = Counter()

    for seed in range(SEEDS):
        simulation = play(seed)
        if seed % 20 == 0:
            simulation.check_replay()
        covered.update(simulation.covered)
        ends[simulation.end] += 1

    missing = [
        (event, phases)
        for event, phases in cells()
        if not any(covered[event, phase] for phase in phases)
    ]
    silent = {event for event, _ in cells()} - {event for event, _ in covered}
    assert silent == {"JobSubmitted"} & silent, f"rows that no run reached: {silent}"
    assert len(missing) <= (1 - COVERED_SHARE) * len(cells()), f"cells not reached: {missing}"
    assert len(ends) >= 10, ends


@given(st.integers(min_value=SEEDS, max_value=1 << 40))
@example(722_179_042)  # Its rules let what completes begin anew for ever.
@settings(max_examples=40)
def test_any_seed_keeps_the_invariants_and_its_records_lead_to_its_state(seed: int) -> None:
    play(seed).check_replay()


@pytest.mark.parametrize("first", range(0, 100, 25))
def test_C11_from_every_reachable_state_a_final_one_is_reached_by_time_alone(first: int) -> None:
    for seed in range(first, first + 25):
        for steps in (0, 5, 12):
            simulation = Simulation(seed, has_deadline=True)
            simulation.faults(steps)

            simulation.by_time_alone()

            assert simulation.job.is_final, (seed, steps)


def test_C38_a_daemon_that_begins_anew_at_any_entry_comes_to_the_same_state() -> None:
    for seed in range(20):
        simulation = play(seed)
        world = World()
        for entry in simulation.entries:
            world = core.replay(world, entry)
            plan = core.plan(world, UID)
            assert plan == core.plan(world, UID)
        assert world == simulation.world


def in_motion(job: Job) -> list[AttemptId]:
    """Return the attempts for which something has to be in motion, each of them looked at."""
    return [
        AttemptId(job.uid, role.name, replica.index, attempt.number)
        for role in job.roles.values()
        for replica in replicas_of(role)
        for attempt in replica.attempts
        if attempt.phase in MOVING or attempt.is_quarantined
    ]


def test_a_plan_that_opens_no_quiet_chunk_forgets_nobody() -> None:
    planned, quarantined = 0, 0
    for seed in range(60):
        simulation = play(seed)
        world = World()
        for entry in simulation.entries:
            world = core.replay(world, entry)
            job = world.jobs.get(UID)
            plan = [one for one in core.plan(world, UID) if not isinstance(one, PublishPeers)]
            expected = in_motion(job) if job is not None else []
            assert [getattr(one, "attempt", None) for one in plan] == expected, seed
            planned += bool(plan)
            quarantined += job is not None and job.has_quarantined
    assert planned > 1_000
    assert quarantined > 0


def test_C21_after_the_end_nothing_starts_whatever_is_said() -> None:
    for seed in range(30):
        simulation = Simulation(seed)
        simulation.run(STEPS)
        told = [record.event for entry in simulation.entries for record in entry.records]
        ends = [
            position
            for position, event in enumerate(told)
            if isinstance(event, ev.AllGone) and position > 0
        ]
        begun = [
            position for position, event in enumerate(told) if isinstance(event, ev.AttemptBegun)
        ]
        assert not begun or begun[-1] < ends[-1]
