"""The Job document (docs/api-documents.md §2)."""

from collections.abc import Mapping

from msgspec import UNSET, UnsetType

from primusd.core import World
from primusd.datafeed.ledger.accounts import unit_word
from primusd.job.limits import deadline_at_ms, used_ms
from primusd.job.model import FirstCause, Job, RoleState, Verdict
from primusd.job.phases import Budget, JobPhase
from primusd.job.spec import Success, budgets_of
from primusd.views import documents
from primusd.views.conditions import conditions
from primusd.views.counting import Counts, count_role
from primusd.views.live import NOTHING_LIVE, Live
from primusd.views.queue import Queue, queue_of
from primusd.views.specs import spec_document
from primusd.views.streams import stream_status
from primusd.views.times import known_time, rfc3339
from primusd.views.waiting import Waiting, why


def job_document(
    job: Job, world: World, *, at_ms: int, live: Live = NOTHING_LIVE, queue: Queue | None = None
) -> documents.Job:
    """Return the document of a job.

    Args:
        job: One of `world.jobs`.
        world: Its streams and admission are read.
        at_ms: Journal time now.
        live: What the edges know.
        queue: That of `world`, where it has been added up already.
    """
    return documents.Job(
        uid=job.uid,
        name=job.spec.name,
        namespace=job.spec.namespace,
        resource_version=str(shown_revision(job, world)),
        spec_version=job.spec_version,
        created_at=rfc3339(job.created_ms),
        labels=job.spec.labels,
        submitted_by=job.submitted_by,
        spec=spec_document(job.spec),
        status=_status(job, world, live, queue or queue_of(world.admission), at_ms=at_ms),
    )


def shown_revision(job: Job, world: World) -> int:
    """Return the revision of the last change of what is shown: the job's or a stream's."""
    streams = (world.streams.get(f"{job.uid}/{name}") for name in job.streams)
    return max(job.changed_revision, *(one.changed_revision for one in streams if one), 0)


def _status(job: Job, world: World, live: Live, queue: Queue, *, at_ms: int) -> documents.JobStatus:
    counts = {name: count_role(role) for name, role in job.roles.items()}
    waiting = why(job, world, queue, at_ms=at_ms)
    reason, message = _reason(job, waiting)
    return documents.JobStatus(
        phase=job.phase.value,
        since=rfc3339(job.phase_since_ms),
        reason=reason,
        message=message,
        then=job.then if job.phase is JobPhase.STOPPING else UNSET,
        generation=job.generation,
        launcher=job.spec.launcher,
        spec_version_running=job.spec_version,
        queued_at=known_time(job.queued_ms),
        admitted_at=known_time(job.admitted_ms),
        started_at=known_time(job.started_ms),
        ended_at=known_time(job.ended_ms),
        duration_ms=job.ended_ms - job.created_ms if job.ended_ms else UNSET,
        deadline_at=known_time(_deadline_ms(job)),
        queue=_queue(job, queue, at_ms=at_ms),
        roles={name: _role(job, role, counts[name]) for name, role in job.roles.items()},
        budgets=documents.Budgets(
            application=_budget(job, Budget.APPLICATION, at_ms=at_ms),
            infrastructure=_budget(job, Budget.INFRASTRUCTURE, at_ms=at_ms),
        ),
        data=_data(job, world),
        progress=_progress(job, live),
        checkpoint=_checkpoint(job),
        replica_hours=_replica_hours(job, at_ms),
        conditions=conditions(job, world, counts, live, at_ms=at_ms),
        first_cause=_first_cause(job.first_cause) if job.first_cause else UNSET,
        verdict=_verdict(job, job.verdict, world) if job.verdict else UNSET,
    )


def _reason(job: Job, waiting: Waiting | None) -> tuple[str | UnsetType, str | UnsetType]:
    if waiting is not None:
        return waiting.reason, waiting.message
    if job.verdict is not None:
        return job.verdict.reason, job.verdict.message
    if job.phase is JobPhase.SUSPENDED:
        return "Suspended", _pause_words(job)
    return UNSET, UNSET


def _pause_words(job: Job) -> str:
    asked = next((one for one in reversed(job.timeline) if one.reason == "SuspendRequested"), None)
    by = f"{asked.message}, by {asked.by}" if asked is not None else "it is suspended"
    return f"{by}; primusctl resume {job.spec.name} ends that"


def _queue(job: Job, queue: Queue, *, at_ms: int) -> documents.QueueStatus | UnsetType:
    ahead = queue.survey(at_ms=at_ms).ahead(job.uid) if job.phase is JobPhase.QUEUED else None
    if ahead is None:
        return UNSET
    return documents.QueueStatus(name=job.spec.queue, position=ahead + 1, ahead=ahead)


def success_words(success: Success) -> str:
    """Return what a role must reach, as the documents have it: `all`, `90 percent`."""
    return f"{success.percent} percent" if success.kind == "percent" else success.kind


def _role(job: Job, role: RoleState, counts: Counts) -> documents.RoleStatus:
    spec = job.spec.roles[role.name]
    return documents.RoleStatus(
        replicas=role.size,
        min=spec.minimum,
        waiting=counts.waiting,
        delayed=counts.delayed,
        active=counts.active,
        registered=counts.registered,
        running=counts.running,
        ready=counts.ready,
        completed=counts.completed,
        failed=counts.failed,
        retired=counts.retired,
        attempts=counts.attempts,
        success=success_words(spec.success),
        restart_unit=spec.restart.unit,
    )


def _budget(job: Job, budget: Budget, *, at_ms: int) -> documents.BudgetStatus:
    """Return the budget of the role that is nearest its limit, the job's own charges counted in."""
    found = []
    for name, role in job.roles.items():
        limits = budgets_of(job.spec, name)
        limit = limits.application if budget is Budget.APPLICATION else limits.infrastructure
        oldest_ms = at_ms - limits.within_ms
        used = sum(one.budget is budget and one.at_ms > oldest_ms for one in role.charges)
        found.append((used / max(1, limit), used, limit, limits.within_ms, name))
    _, used, limit, window_ms, name = max(found, key=lambda one: one[0])
    own = sum(one.budget is budget and one.at_ms > at_ms - window_ms for one in job.charges)
    if own > used:
        limit = job.spec.budgets.infrastructure
        return documents.BudgetStatus(used=own, limit=limit, window_ms=window_ms)
    return documents.BudgetStatus(
        used=used, limit=limit, window_ms=window_ms, role=name if used else UNSET
    )


def _data(job: Job, world: World) -> Mapping[str, documents.StreamStatus]:
    streams = ((name, world.streams.get(f"{job.uid}/{name}")) for name in job.streams)
    return {name: stream_status(one) for name, one in streams if one is not None}


def _deadline_ms(job: Job) -> int:
    """Return the deadline's time; 0 where it stands still, since nobody knows it then."""
    return 0 if job.phase is JobPhase.SUSPENDED else deadline_at_ms(job)


def _checkpoint(job: Job) -> documents.CheckpointStatus | UnsetType:
    found = job.checkpoint
    if found is None:
        return UNSET
    return documents.CheckpointStatus(
        step=found.step, path=found.path, savepoint=found.savepoint or UNSET
    )


def _replica_hours(job: Job, at_ms: int) -> documents.ReplicaHours | UnsetType:
    limit_ms = job.spec.max_replica_ms
    if not limit_ms:
        return UNSET
    return documents.ReplicaHours(used_ms=used_ms(job, at_ms), limit_ms=limit_ms)


def _progress(job: Job, live: Live) -> documents.ProgressStatus | UnsetType:
    """Return the progress of the trainer that is furthest: they report the same step or nothing."""
    found = [one for attempt, one in live.progress.items() if attempt.job == job.uid]
    if not found or job.is_final:
        return UNSET
    best = max(found, key=lambda one: (one.epoch, one.step))
    return documents.ProgressStatus(
        step=best.step, epoch=best.epoch, at=rfc3339(best.at_ms), metrics=best.metrics
    )


def _first_cause(cause: FirstCause) -> documents.FirstCause:
    return documents.FirstCause(
        attempt=cause.attempt,
        cause=cause.cause.value,
        exit_code=UNSET if cause.exit_code is None else cause.exit_code,
        signal=UNSET if cause.signal is None else cause.signal,
        at=rfc3339(cause.at_ms),
        last_line=cause.last_line,
        evidence=cause.evidence,
        ends=cause.ends,
    )


def _verdict(job: Job, verdict: Verdict, world: World) -> documents.Verdict:
    streams = (world.streams.get(f"{job.uid}/{name}") for name in job.streams)
    # Positions of text are bytes; the data section has those, under their own name.
    in_rows = [one for one in streams if one is not None and unit_word(one) == "rows"]
    return documents.Verdict(
        phase=verdict.as_phase,
        reason=verdict.reason,
        message=verdict.message,
        rule=verdict.rule,
        decided_by=verdict.decided_by,
        rows_read=sum(one.consumed for one in in_rows) if in_rows else UNSET,
        rows_skipped=sum(one.skipped for one in in_rows) if in_rows else UNSET,
    )
