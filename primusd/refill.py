"""Changes told again from old entries, so that a watch goes on over a restart of the daemon.

Only the newest state is known, so each object that was touched is told as it is now. A deletion
cannot be told again, for its document is gone: the refill reaches back to the newest one.
"""

from collections.abc import Iterable, Iterator
from itertools import chain

from primusd.admission import events as admission
from primusd.core import World
from primusd.datafeed.ledger.events import StreamDeclared
from primusd.job import events as ev
from primusd.job.ids import Span, replica_name
from primusd.job.model import Job, replicas_of
from primusd.records import ADMISSION, Entry, Record, job_of
from primusd.watch import ADDED, EVENT, JOB, MODIFIED, NODE, REPLICA, STREAM, Change

NODE_EVENTS = (
    admission.NodeSeen
    | admission.NodeWentAway
    | admission.NodeFaultCounted
    | admission.CordonRequested
    | admission.UncordonRequested
    | admission.DrainRequested
    | admission.ForgiveRequested
    | admission.NodeExclusionRequested
    | admission.RemovalRequested
    | admission.NodeLoadMeasured
    | admission.CapacityChanged
    | admission.NodeExcluded
)
SPAN_EVENTS = (
    ev.GateOpened
    | ev.StopDecided
    | ev.AttemptBegun
    | ev.AttemptCompleted
    | ev.ReplicaRecalled
    | ev.ReplicaRetired
    | ev.ReplicaRevived
)


def refilled(entries: Iterable[Entry], world: World) -> tuple[list[Change], int]:
    """Return the changes that entries made, and the revision from which they are complete.

    Args:
        entries: In order; what lies before a gap is of no use.
        world: As it is now.
    """
    changes: list[Change] = []
    oldest = last = -1
    for entry in entries:
        if oldest < 0 or entry.revision != last + 1:
            changes.clear()
            oldest = entry.revision - 1
        last = entry.revision
        if any(_is_gone(record, world) for record in entry.records):
            changes.clear()
            oldest = entry.revision
            continue
        told = dict.fromkeys(
            chain.from_iterable(_objects(one, entry, world) for one in entry.records)
        )
        changes += [
            Change(entry.revision, entry.at_ms, change, kind, key) for change, kind, key in told
        ]
    return changes, oldest


def _is_gone(record: Record, world: World) -> bool:
    job = job_of(record.machine)
    if record.machine == ADMISSION and isinstance(record.event, NODE_EVENTS):
        return record.event.node not in world.admission.nodes
    return bool(job) and job not in world.jobs


def _objects(record: Record, entry: Entry, world: World) -> Iterator[tuple[str, str, str]]:
    """Yield change, kind and key of what a record touched."""
    if record.machine == ADMISSION:
        if isinstance(record.event, NODE_EVENTS):
            yield MODIFIED, NODE, record.event.node
        return
    uid = job_of(record.machine)
    if record.machine != uid:
        change = ADDED if isinstance(record.event, StreamDeclared) else MODIFIED
        yield change, STREAM, record.machine
        yield MODIFIED, JOB, uid
        return
    job = world.jobs[uid]
    change = ADDED if isinstance(record.event, ev.JobSubmitted) else MODIFIED
    yield change, JOB, uid
    for name in _replicas(record.event, job):
        yield change, REPLICA, f"{uid}/{name}"
    for moment in job.timeline:
        if moment.revision == entry.revision:
            yield ADDED, EVENT, f"{uid}/{moment.revision}.{moment.position}"


def _replicas(event: object, job: Job) -> Iterator[str]:
    """Yield the replicas that an event of a job names; all of them when it names none."""
    match event:
        case ev.RetryDecided(role, index) | ev.RetriesExhausted(role, index):
            yield replica_name(role, index)
        case _ if isinstance(event, ev.AttemptEvent):
            yield event.attempt.replica
        case _ if isinstance(event, SPAN_EVENTS):
            yield from _names(event.spans)
        case _:
            for state in job.roles.values():
                yield from (replica_name(state.name, one.index) for one in replicas_of(state))


def _names(spans: Iterable[Span]) -> Iterator[str]:
    for span in spans:
        yield from (replica_name(span.role, index) for index in range(span.low, span.high + 1))
