"""One event of each kind about a job, its attempts or a stream: what an edge may say too late."""

from collections.abc import Iterator

import msgspec

from primusd.admission import events as adm
from primusd.admission.machine import DEMAND_TABLE
from primusd.admission.nodes import NODE_TABLE
from primusd.core import World
from primusd.datafeed.ledger import events as data
from primusd.datafeed.ledger.tables import STREAM
from primusd.datafeed.protocol import FeedReport
from primusd.executor.protocol import Exit
from primusd.job import events as ev
from primusd.job.ids import AttemptId, Span
from primusd.job.job_tables import ATTEMPT_TABLE, JOB_TABLE
from primusd.job.model import Job
from primusd.job.phases import FINAL_PHASES
from primusd.job.tables import Table, ignored_reason
from primusd.records import Event, Proposal

NOBODY = AttemptId("", "worker", 0, 1)
EXIT = Exit(0, None, None, "", 0, 0, 0, 0, "", (), "", ())


def _feed_words(attempt: AttemptId) -> dict[str, Event]:
    report = FeedReport("s", held=(), want=0)
    found: tuple[Event, ...] = (
        data.UnitsListed((), 0, is_complete=True),
        data.ListingFailed("gone", is_permanent=True),
        data.PositionsCarried((), 0, is_complete=True),
        data.CarryingFailed("gone", is_permanent=True),
        data.TopicsFollowed((), (), (), 0, is_complete=True),
        data.ReaderOpened(attempt, "i"),
        data.ReaderEnded(attempt, (), has_completed=False, was_own_fault=False),
        data.BeatReceived(attempt, "i", report),
        data.LeaseExpired(attempt, ()),
        data.PauseRequested(),
        data.ResumeRequested(),
        data.StreamClosed(),
        ev.TimePassed(),
    )
    return {type(one).__name__: one for one in found}


def _job_words(attempt: AttemptId) -> dict[str, Event]:
    found: tuple[Event, ...] = (
        ev.CancelRequested(),
        ev.SuspendRequested(),
        ev.ResumeRequested(),
        ev.RestartRequested((Span(attempt.role, 0, 0),)),
        ev.JobAdmitted((), 1),
        ev.JobRefused("DependencyFailed", "late"),
        ev.JobEvicted("late"),
        ev.NodeDraining("n1"),
        ev.RoomMade("other", "late"),
        ev.SlotsStranded("n1"),
        ev.StreamFinished("s", 0, 0),
        ev.StreamFailed("s", "late"),
        ev.StreamReopened("s"),
        ev.ReaderSettled(attempt, "s", 0),
        ev.SavepointSealed("s", "late"),
        ev.GroupLeaseLost("s", attempt),
        ev.CheckpointNoted(attempt, "/late", 1),
        ev.TimePassed(),
    )
    return {type(one).__name__: one for one in found}


def _attempt_words(attempt: AttemptId) -> dict[str, Event]:
    found: tuple[Event, ...] = (
        ev.AttemptLaunched(attempt),
        ev.AttemptWaiting(attempt, "late"),
        ev.LaunchFailed(attempt, "late", is_permanent=False),
        ev.StopFailed(attempt, was_delivered=True),
        ev.PreemptionNoticed(attempt, 1_000),
        ev.ExecutorRegistered(attempt, "late", "n1", "n1-1", 7, "0"),
        ev.ExecutorHolding(attempt),
        ev.TrainerStarted(attempt, 7, 0),
        ev.TrainerReady(attempt),
        ev.TrainerHung(attempt, "late"),
        ev.TrainerExited(attempt, EXIT),
        ev.ExecutorFellSilent(attempt),
        ev.ExecutorReturned(attempt),
        ev.ExecutorExpired(attempt),
    )
    return {type(one).__name__: one for one in found}


def _ignored(table: Table, phase: str, words: dict[str, Event]) -> Iterator[Event]:
    for name, event in words.items():
        if name in table.rows and ignored_reason(table.cell(name, phase)) is not None:
            yield event


def late_words(world: World, job: Job) -> Iterator[Proposal]:
    """Yield everything that the tables ignore now: of a job, all that is its, and the nodes."""
    streams = {key: one for key, one in world.streams.items() if one.job == job.uid}
    attempts = [
        (AttemptId(job.uid, role.name, replica.index, one.number), one)
        for role in job.roles.values()
        for chunk in role.chunks
        for replica in chunk.replicas
        for one in replica.attempts
    ]
    some = attempts[0][0] if attempts else msgspec.structs.replace(NOBODY, job=job.uid)
    column = "final" if job.phase in FINAL_PHASES else job.phase
    for event in _ignored(JOB_TABLE, column, _job_words(some)):
        yield Proposal(job.uid, event, "late")
    for name, attempt in attempts:
        for event in _ignored(ATTEMPT_TABLE, attempt.phase, _attempt_words(name)):
            yield Proposal(job.uid, event, "late")
    for key, stream in streams.items():
        for event in _ignored(STREAM, stream.phase, _feed_words(some)):
            yield Proposal(key, event, "late")
    for host, node in world.admission.nodes.items():
        for event in _ignored(NODE_TABLE, node.phase, _node_words(host)):
            yield Proposal("", event, "late")
    demand = world.admission.demands.get(job.uid)
    if demand is not None:
        words: dict[str, Event] = {
            "DemandMoved": adm.DemandMoved(job.uid, 50),
            "DemandWithdrawn": adm.DemandWithdrawn(job.uid),
        }
        for event in _ignored(DEMAND_TABLE, demand.phase, words):
            yield Proposal("", event, "late")


def _node_words(node: str) -> dict[str, Event]:
    found: tuple[Event, ...] = (
        adm.NodeWentAway(node),
        adm.CordonRequested(node),
        adm.UncordonRequested(node),
        adm.ForgiveRequested(node),
        adm.NodeLoadMeasured(node, 0, 0),
    )
    return {type(one).__name__: one for one in found}
