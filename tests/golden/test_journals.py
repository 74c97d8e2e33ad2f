"""Journals that older versions wrote load for ever; `journals/` has one of each schema.

A file is made once by a real daemon, never again: `python tests/golden/record_journal.py NAME`.
"""

import shutil
from pathlib import Path

import anyio
import pytest

from primusd.core import World
from primusd.job.model import replicas_of
from primusd.records import SCHEMA
from primusd.recovery import recover
from primusd.state.embedded import EmbeddedJournal
from primusd.state.journal import Loaded

JOURNALS = Path(__file__).with_name("journals")
NAMES = sorted(path.stem for path in JOURNALS.glob("*.db"))


def summary(world: World) -> str:
    """Return what a person knows of a world: jobs, how they ended, attempts, rows."""
    lines = []
    for job in sorted(world.jobs.values(), key=lambda one: one.uid):
        reason = job.verdict.reason if job.verdict else ""
        lines.append(f"{job.spec.name} {job.phase} {reason}".rstrip())
        for role in job.roles.values():
            lines += [
                f"  {role.name}-{one.index} {one.phase}, attempt {one.last_number}"
                for one in replicas_of(role)
            ]
    lines += [
        f"{stream.name} {stream.phase}, {stream.consumed_before} taken in {len(stream.units)} units"
        for _, stream in sorted(world.streams.items())
    ]
    return "\n".join([*lines, f"nodes {', '.join(sorted(world.admission.nodes))}"]) + "\n"


def test_there_is_a_journal_of_every_schema() -> None:
    assert {f"schema-{number}" for number in range(1, SCHEMA + 1)} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_an_old_journal_loads_and_says_what_it_said(name: str, tmp_path: Path) -> None:
    shutil.copy(JOURNALS / f"{name}.db", tmp_path / "journal.db")

    async def load() -> Loaded:
        journal = EmbeddedJournal(tmp_path / "journal.db")
        try:
            return await journal.load()
        finally:
            await journal.close()

    recovered = recover(anyio.run(load))

    assert recovered.wedged == {}
    assert summary(recovered.world) == (JOURNALS / f"{name}.out").read_text()
