"""Reports to events: what of a report is not in the state yet, in the order that the tables allow.

Pure. All of one report goes into one step, so the first report after a long silence, which says all
at once, meets no refused cell (docs/protocol.md §4).
"""

from collections.abc import Iterator

from primusd.datafeed.ledger.events import BeatReceived
from primusd.executor.protocol import Report
from primusd.job.events import (
    AttemptEvent,
    CheckpointNoted,
    ExecutorHolding,
    ExecutorReturned,
    PreemptionNoticed,
    TrainerExited,
    TrainerHung,
    TrainerReady,
    TrainerStarted,
)
from primusd.job.ids import AttemptId
from primusd.job.model import Attempt, Job
from primusd.job.phases import AttemptPhase
from primusd.records import Proposal

HOLDING_PHASES = ("holding", "starting", "running")
UNTIL_STOPPING = (AttemptPhase.REGISTERED, AttemptPhase.STARTING, AttemptPhase.RUNNING)
TOLD_TO_START = (AttemptPhase.STARTING, AttemptPhase.RUNNING, AttemptPhase.STOPPING)


def proposals(job: Job, attempt: AttemptId, found: Attempt, report: Report) -> tuple[Proposal, ...]:
    """Return the events of a report, in their order.

    Args:
        job: As it is now.
        attempt: Whose executor reports.
        found: The attempt as it is now; it has an incarnation.
        report: All that is so beside the trainer.
    """
    events = [
        *_about_the_executor(attempt, found, report),
        *_about_the_trainer(attempt, found, report),
    ]
    before = [Proposal(job.uid, event, "executor") for event in events]
    feeds = [
        Proposal(
            f"{job.uid}/{feed.stream}", BeatReceived(attempt, found.incarnation, feed), "executor"
        )
        for feed in report.feeds
    ]
    return (*before, *feeds, *_at_the_end(job, attempt, found, report))


def _about_the_executor(
    attempt: AttemptId, found: Attempt, report: Report
) -> Iterator[AttemptEvent]:
    if found.is_silent:
        yield ExecutorReturned(attempt)
    is_held = report.phase in HOLDING_PHASES or report.trainer is not None
    if is_held and not found.is_holding and found.phase in UNTIL_STOPPING:
        yield ExecutorHolding(attempt, report.ports)


def _about_the_trainer(
    attempt: AttemptId, found: Attempt, report: Report
) -> Iterator[AttemptEvent]:
    trainer = report.trainer
    if trainer is not None and found.phase in TOLD_TO_START:
        if found.trainer_pid != trainer.pid:
            yield TrainerStarted(attempt, trainer.pid, trainer.started_ms)
        if trainer.ready and not found.is_ready and found.phase is not AttemptPhase.STOPPING:
            yield TrainerReady(attempt)
        if bool(report.hang) != bool(found.hang) and found.phase is not AttemptPhase.STOPPING:
            yield TrainerHung(attempt, report.hang)
    if report.preemption_ms > 0 and not found.preemption_ms and found.phase in UNTIL_STOPPING:
        yield PreemptionNoticed(attempt, report.preemption_ms)


def _at_the_end(job: Job, attempt: AttemptId, found: Attempt, report: Report) -> Iterator[Proposal]:
    checkpoint = report.checkpoint
    if checkpoint is not None and checkpoint != found.checkpoint and found.phase in TOLD_TO_START:
        noted = CheckpointNoted(attempt, checkpoint.path, checkpoint.step, checkpoint.savepoint)
        yield Proposal(job.uid, noted, "executor")
    if report.exit is not None and found.phase in (*UNTIL_STOPPING, AttemptPhase.STOPPING):
        yield Proposal(job.uid, TrainerExited(attempt, report.exit), "executor")
