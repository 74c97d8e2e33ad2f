"""The Replica document, with the newest attempts (docs/api-documents.md §3)."""

from msgspec import UNSET, UnsetType

from primusd.core import World
from primusd.job.ids import AttemptId, replica_name
from primusd.job.model import Attempt, Job, Replica, RoleState
from primusd.job.phases import ReplicaPhase
from primusd.views import documents
from primusd.views.live import NOTHING_LIVE, Live
from primusd.views.outcomes import outcome_document
from primusd.views.times import known_time, rfc3339


def replica_document(
    job: Job, role: RoleState, replica: Replica, world: World, live: Live = NOTHING_LIVE
) -> documents.Replica:
    """Return the document of a replica of the job."""
    newest = replica.newest
    attempt = AttemptId(job.uid, role.name, replica.index, newest.number if newest else 0)
    is_delayed = replica.phase is ReplicaPhase.DELAYED
    not_before_ms = max(replica.not_before_ms, role.not_before_ms) if is_delayed else 0
    return documents.Replica(
        job=job.spec.name,
        job_uid=job.uid,
        namespace=job.spec.namespace,
        name=replica_name(role.name, replica.index),
        role=role.name,
        index=replica.index,
        resource_version=str(job.changed_revision),
        phase=replica.phase.value,
        not_before=known_time(not_before_ms),
        attempts=tuple(_attempt(one) for one in replica.attempts),
        usage=_usage(attempt, live),
        progress=_progress(attempt, live),
        leases=_lease_count(job, attempt, world),
        silent_since=known_time(newest.silent_since_ms if newest and newest.is_silent else 0),
    )


def _attempt(attempt: Attempt) -> documents.AttemptStatus:
    return documents.AttemptStatus(
        attempt=attempt.number,
        generation=attempt.generation,
        phase=attempt.phase.value,
        node=attempt.node or UNSET,
        host=attempt.host or UNSET,
        ports=dict(attempt.ports) if attempt.ports else UNSET,
        requested_at=known_time(attempt.requested_ms),
        launched_at=known_time(attempt.launched_ms),
        registered_at=known_time(attempt.registered_ms),
        started_at=known_time(attempt.started_ms),
        ended_at=known_time(attempt.ended_ms),
        gone_at=known_time(attempt.gone_ms),
        ready=attempt.is_ready,
        waiting_for=attempt.waiting_for or UNSET,
        stopping=attempt.stop.reason.value if attempt.stop else UNSET,
        quarantined=True if attempt.is_quarantined else UNSET,
        memory_bytes=attempt.memory_bytes or UNSET,
        hang=attempt.hang or UNSET,
        pid=attempt.trainer_pid or UNSET,
        outcome=outcome_document(attempt.outcome) if attempt.outcome else UNSET,
        handle=attempt.handle or UNSET,
    )


def _usage(attempt: AttemptId, live: Live) -> documents.ReplicaUsage | UnsetType:
    usage = live.usage.get(attempt)
    if usage is None:
        return UNSET
    return documents.ReplicaUsage(
        at=rfc3339(usage.at_ms),
        cpu_milli=known_count(usage.cpu_milli),
        rss_bytes=usage.rss_bytes,
        net_in_bytes_per_s=known_count(usage.net_in_bytes_per_s),
        net_out_bytes_per_s=known_count(usage.net_out_bytes_per_s),
        gpus=tuple(
            {"uuid": uuid, "busyPerMille": busy, "memoryBytes": memory}
            for uuid, busy, memory in usage.gpus
        ),
    )


def known_count(count: int) -> int | UnsetType:
    """Return a count, or nothing for the -1 that stands for `not known`."""
    return count if count >= 0 else UNSET


def _progress(attempt: AttemptId, live: Live) -> documents.ProgressStatus | UnsetType:
    progress = live.progress.get(attempt)
    if progress is None:
        return UNSET
    return documents.ProgressStatus(
        step=progress.step,
        epoch=progress.epoch,
        at=rfc3339(progress.at_ms),
        metrics=progress.metrics,
    )


def _lease_count(job: Job, attempt: AttemptId, world: World) -> int:
    streams = (world.streams.get(f"{job.uid}/{name}") for name in job.streams)
    return sum(
        lease.attempt == attempt
        for stream in streams
        if stream is not None
        for lease in stream.leases.values()
    )
