"""Carries positions into a stream that starts at them, and out of one that ended.

What a stream starts at comes from a savepoint of another job, from a file, or from the staging
folder that the job before left. Nothing is listed before it is there.
"""

from collections.abc import Iterator
from itertools import repeat

import anyio.to_thread
import structlog

from primusd.core import World
from primusd.datafeed.ledger import savepoints
from primusd.datafeed.ledger.carrying import carried_units, order_fault, order_of, whole_epochs
from primusd.datafeed.ledger.events import CarryingFailed, PositionsCarried, PositionsKept
from primusd.datafeed.ledger.model import CarriedUnit, Savepoint, Stream
from primusd.datafeed.ledger.portable import Portable, PortableError, as_carried, as_portable
from primusd.datafeed.storage.base import StorageError
from primusd.engine import Engine
from primusd.errors import NotFoundError, PrimusdError
from primusd.job.commands import CarryPositions, KeepPositions
from primusd.job.ids import is_uid
from primusd.job.spec import Restore
from primusd.position_files import read_positions, write_positions
from primusd.timer import Sleep
from primusd.views.times import rfc3339

log = structlog.get_logger()

UNITS_PER_EVENT = 500
"""A unit takes about 150 bytes and its ranges, so an entry stays small."""
DELAYS_MS = (200, 1_000, 2_000, 5_000, 10_000)
WAIT_MS = 200
EXPIRED_TRIES = 8_640
"""A day: somebody has to see that a credential expired, and the next job waits meanwhile."""


class _WaitingError(Exception):
    """Another job still holds what this one starts at."""


class Found:
    """Positions to start at.

    Attributes:
        units: By location.
        whole: Epochs in which every one of them is done.
        source: Where they come from, as people read it; "" there are none.
    """

    def __init__(
        self, units: tuple[CarriedUnit, ...] = (), whole: int = 0, source: str = ""
    ) -> None:
        self.units = units
        self.whole = whole
        self.source = source


async def carry_positions(engine: Engine, command: CarryPositions, sleep: Sleep) -> None:
    """Tell a stream where it starts, as long as that is planned."""
    machine = f"{command.job}/{command.stream}"
    tries = 0
    while True:
        stream = engine.world.streams.get(machine)
        if stream is None:
            return
        try:
            found = await _find(engine.world, stream)
            for event in _carried(found, len(stream.carried)):
                await engine.propose(machine, event, by="source")
        except _WaitingError as waiting:
            failed = CarryingFailed(str(waiting), is_permanent=False, is_waiting=True)
            if stream.waiting_for != (failed.text,):
                engine.tell(machine, failed, by="source")
            await sleep(WAIT_MS)
            continue
        except PrimusdError as error:
            log.warning("positions.not_carried", stream=machine, text=str(error))
            is_brief = isinstance(error, StorageError) and error.kind in ("transient", "expired")
            failed = CarryingFailed(str(error), is_permanent=not is_brief)
            engine.tell(machine, failed, by="source")
        await sleep(DELAYS_MS[min(tries, len(DELAYS_MS) - 1)])
        tries += 1


async def _find(world: World, stream: Stream) -> Found:
    """Return what a stream starts at.

    Raises:
        PrimusdError: It is not there, or cannot be read or used.
    """
    restore = stream.spec.restore
    if restore is not None and restore.job:
        other, savepoint = named_savepoint(world, stream, restore)
        units = carried_units(other, savepoint)
        source = f"savepoint {savepoint.name} of {restore.job}"
        _check_order(units, order_of(other.spec), stream)
        return Found(units, whole_epochs(savepoint), source)
    path = restore.path if restore is not None else stream.spec.staging
    if restore is None and (holder := _holder(world, stream)):
        raise _WaitingError(f"{holder} has not left its positions in {path} yet")
    spoken = stream.name.partition("@")[0]
    found = await anyio.to_thread.run_sync(read_positions, path, spoken)
    if found is None:
        if restore is not None:
            raise NotFoundError(f"there are no positions of stream {spoken} in {path}")
        return Found()
    portable, where = found
    units = as_carried(portable.units)
    _check_order(units, portable.order, stream)
    return Found(units, portable.whole_epochs, where)


def _check_order(units: tuple[CarriedUnit, ...], order: str, stream: Stream) -> None:
    if fault := order_fault(units, order, stream.spec):
        raise PortableError(fault, hint="with shuffle as it was, or at a whole pass")


def named_savepoint(world: World, stream: Stream, restore: Restore) -> tuple[Stream, Savepoint]:
    """Return the savepoint that a spec names, with its stream.

    Raises:
        NotFoundError: There is none.
    """
    namespace = world.jobs[stream.job].spec.namespace if stream.job in world.jobs else "default"
    return find_savepoint(world, restore, namespace, stream.name)


def find_savepoint(
    world: World, restore: Restore, namespace: str, stream: str
) -> tuple[Stream, Savepoint]:
    """Return the savepoint of a job's stream; without a name the newest that is sealed.

    Raises:
        NotFoundError: There is none.
    """
    job = _job_of(world, restore.job, namespace)
    wished = restore.stream or stream.partition("@")[0]
    known = {name: world.streams.get(f"{job}/{name}") for name in world.jobs[job].streams}
    other = known.get(wished) or known.get(stream)
    if other is None:
        names = ", ".join(known) or "none"
        raise NotFoundError(f"{restore.job} has no stream {wished}; its streams: {names}")
    sealed = [one for one in other.savepoints if one.phase == "Sealed"]
    if restore.savepoint:
        sealed = [one for one in sealed if one.name == restore.savepoint]
    if not sealed and not restore.savepoint and other.phase == "Closed":
        # It is over, so where it ended is as good as kept.
        return other, savepoints.as_it_is(other)
    if not sealed:
        what = f"savepoint {restore.savepoint}" if restore.savepoint else "savepoint"
        names = ", ".join(one.name for one in other.savepoints) or "none"
        raise NotFoundError(
            f"stream {wished} of {restore.job} has no {what}; it has {names}",
            hint=f"primusctl data {restore.job} savepoint create NAME",
        )
    return other, max(sealed, key=lambda one: one.revision)


def _job_of(world: World, name: str, namespace: str) -> str:
    """Return the uid of a job by its name in a namespace, `namespace/name`, or uid."""
    if is_uid(name) and name in world.jobs:
        return name
    before, slash, after = name.partition("/")
    namespace, name = (before, after) if slash else (namespace, name)
    found = [
        uid
        for uid, job in world.jobs.items()
        if (job.spec.namespace, job.spec.name) == (namespace, name)
    ]
    if not found:
        raise NotFoundError(f"there is no job {name} in namespace {namespace}")
    live = world.admission.names.get((namespace, name), "")
    return live if live in world.jobs else max(found)


def _holder(world: World, stream: Stream) -> str:
    """Return the job before this one that has not left its positions in a staging folder yet."""
    for key, other in world.streams.items():
        is_here = other.spec.staging == stream.spec.staging and not other.is_kept
        is_same = other.name.partition("@")[0] == stream.name.partition("@")[0]
        is_other = other.job != stream.job and key.partition("/")[0] in world.jobs
        if is_here and is_same and is_other and _comes_before(world, other, stream):
            return f"job {world.jobs[other.job].spec.name}"
    return ""


def _comes_before(world: World, other: Stream, stream: Stream) -> bool:
    """Return whether a stream that shares a folder has it first: admission says who waits."""
    waits = world.admission.over_first
    if other.phase == "Closed" or other.job in waits.get(stream.job, ()):
        return True
    return stream.job not in waits.get(other.job, ()) and other.job < stream.job


def _carried(found: Found, known: int) -> Iterator[PositionsCarried]:
    """Yield what was found, in parts, the last one complete."""
    for first in range(min(known, len(found.units)), max(1, len(found.units)), UNITS_PER_EVENT):
        part = found.units[first : first + UNITS_PER_EVENT]
        is_complete = first + len(part) >= len(found.units)
        yield PositionsCarried(part, first, is_complete, found.whole, found.source)


async def keep_positions(engine: Engine, command: KeepPositions, sleep: Sleep) -> None:
    """Leave the last positions of a closed stream in its staging folder."""
    machine = f"{command.job}/{command.stream}"
    delays, told = iter(DELAYS_MS), ""
    for_credentials = repeat(DELAYS_MS[-1], EXPIRED_TRIES)
    while (stream := engine.world.streams.get(machine)) is not None:
        error = await _kept(stream, engine.world)
        text = f"positions are not kept in {stream.spec.staging}: {error.message}" if error else ""
        if text not in ("", told):
            log.warning("positions.not_kept", stream=machine, text=text)
        told = text
        waits = for_credentials if error is not None and error.kind == "expired" else delays
        delay_ms = next(waits, None) if error is not None else None
        if delay_ms is None:
            await engine.propose(machine, PositionsKept(text), by="source")
        await sleep(delay_ms or DELAYS_MS[-1])


async def _kept(stream: Stream, world: World) -> StorageError | None:
    """Write positions; return why that did not come about."""
    try:
        await anyio.to_thread.run_sync(
            write_positions, stream.spec.staging, exported(stream, world)
        )
    except StorageError as error:
        return error
    return None


def exported(stream: Stream, world: World, savepoint: Savepoint | None = None) -> Portable:
    """Return a savepoint of a stream as it leaves the daemon; None: where the stream is now."""
    found = savepoints.as_it_is(stream) if savepoint is None else savepoint
    job = world.jobs.get(stream.job)
    return Portable(
        job=job.spec.name if job is not None else stream.job,
        stream=stream.name.partition("@")[0],
        name=found.name,
        sealed_at=rfc3339(found.sealed_ms) if found.sealed_ms else "",
        whole_epochs=whole_epochs(found),
        order=order_of(stream.spec),
        units=as_portable(carried_units(stream, found)),
    )
