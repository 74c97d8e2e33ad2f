"""Recovery: the world from snapshots and the entries after them, by replay alone.

A record that raises condemns its job only: the job stays as it was before that entry, and its raw
records are kept until a version of primusd loads them.
"""

from collections import defaultdict
from collections.abc import Mapping

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from primusd import core
from primusd.admission.model import Admission
from primusd.core import Machine, World
from primusd.datafeed.ledger.events import StreamDeclared
from primusd.datafeed.ledger.model import Stream
from primusd.job.events import ForgetRequested, JobSubmitted
from primusd.job.model import Job
from primusd.records import ADMISSION, Entry, job_of
from primusd.shelves import shelved
from primusd.state.journal import Loaded
from primusd.state.schema import check_schema
from primusd.state.snapshots import decode_machine


class Recovered(Struct, frozen=True):
    """What a journal adds up to."""

    world: World
    wedged: Mapping[str, str]
    """Jobs ("" admission) that raised, with what was raised."""
    uncovered: Mapping[str, int]
    """Machine to its oldest record that its snapshot does not cover."""


def recover(loaded: Loaded) -> Recovered:
    """Return the world that the journal holds.

    Raises:
        NewerSchemaError: A newer version wrote a part of it.
        core.ReplayError: Admission itself cannot be loaded; every job hangs on it.
    """
    for entry in loaded.entries:
        check_schema(entry.schema)
    world, covers, wedged = _from_snapshots(loaded)
    covers |= _forgotten(loaded)
    uncovered: dict[str, int] = {}
    for entry in loaded.entries:
        world = replayed(world, entry, covers, wedged)
        for record in entry.records:
            if covers.get(record.machine, 0) < entry.revision:
                uncovered.setdefault(record.machine, entry.revision)
    lone = [key for key in world.streams if job_of(key) not in world.jobs]
    if lone:
        # Their job was forgotten, and their snapshots were still to be removed.
        streams = {key: one for key, one in world.streams.items() if key not in lone}
        world = replace(world, streams=shelved(streams))
        uncovered |= {key: loaded.revision for key in lone if key not in uncovered}
    return Recovered(world, wedged, uncovered)


def _forgotten(loaded: Loaded) -> dict[str, int]:
    """Return up to which revision the records of machines that are gone say nothing any more.

    A job that is forgotten has no snapshot, while entries about it may stay: the newest is always
    kept, and others as long as some machine has records in them that no snapshot covers.
    """
    ends: dict[str, int] = {}
    begun: set[str] = set()
    told: set[str] = set()
    for entry in loaded.entries:
        for record in entry.records:
            told.add(record.machine)
            if isinstance(record.event, ForgetRequested):
                ends[record.machine] = entry.revision
            elif isinstance(record.event, JobSubmitted | StreamDeclared):
                begun.add(record.machine)
    return {
        machine: ends[job_of(machine)]
        for machine in told - begun - loaded.snapshots.keys()
        if job_of(machine) in ends
    }


def _from_snapshots(loaded: Loaded) -> tuple[World, dict[str, int], dict[str, str]]:
    """Return the machines as their snapshots have them, and what each covers."""
    parts: defaultdict[str, dict[str, bytes]] = defaultdict(dict)
    covers: dict[str, int] = {}
    for key, snapshot in loaded.snapshots.items():
        machine, _, part = key.partition("#")
        parts[machine][part] = snapshot.body
        if not part:
            covers[machine] = snapshot.covers
    machines: dict[str, Machine] = {}
    wedged: dict[str, str] = {}
    for machine, bodies in parts.items():
        try:
            machines[machine] = decode_machine(machine, bodies)
        except (msgspec.MsgspecError, KeyError) as error:
            text = f"the snapshot of {machine or 'admission'} cannot be read: {error}"
            if machine == ADMISSION:
                raise core.ReplayError(text, machine=machine) from error
            wedged[job_of(machine)] = text
    return _world(machines), covers, wedged


def _world(machines: Mapping[str, Machine]) -> World:
    admission = Admission()
    jobs: dict[str, Job] = {}
    streams: dict[str, Stream] = {}
    for machine, value in machines.items():
        match value:
            case Admission():
                admission = value
            case Job():
                jobs[machine] = value
            case Stream():
                streams[machine] = value
    return World(admission, shelved(jobs), shelved(streams))


def replayed(
    world: World, entry: Entry, covers: Mapping[str, int], wedged: dict[str, str]
) -> World:
    """Return the world after an entry; a job that raises is left as it was before it.

    Args:
        world: As of the entry before.
        entry: The next one.
        covers: What snapshots hold already.
        wedged: Jobs that raised before, whose records are left alone; gets those that raise now.
    """
    while True:
        try:
            return core.replay(world, entry, skip=frozenset(wedged), covers=covers)
        except core.ReplayError as error:
            job = job_of(error.machine)
            if not job:
                raise
            wedged[job] = error.message
