"""What people ask of a job: each request, as table 6 of docs/state-machines.md has it.

`job/job.py` has checked the cell before a function here runs; the numbers are the table's notes.
"""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from primusd.errors import PhaseConflictError, PrimusdError
from primusd.job import chunks
from primusd.job import events as ev
from primusd.job.goals import in_phase, recounted, refusal, stopping
from primusd.job.ids import Span
from primusd.job.machine import At
from primusd.job.model import Job, Replica, RoleState, Verdict
from primusd.job.phases import FINAL_PHASES, JobPhase, ReplicaPhase, StopReason
from primusd.job.replica import change_replicas
from primusd.job.resizing import resized

FINAL = frozenset(str(phase) for phase in FINAL_PHASES)


def _cancel_requested(job: Job, event: ev.CancelRequested, at: At) -> Job:
    """(1): in Stopping, Queued or Suspended becomes Cancelled; a verdict stays, Draining's too."""
    has_verdict = job.then in FINAL or job.phase is JobPhase.DRAINING
    if has_verdict:
        assert job.verdict is not None, "a job that goes to a final phase has its verdict"
        if job.phase is JobPhase.STOPPING:
            return job
        text = event.reason or "cancelled while it drained"
        return stopping(job, job.verdict.as_phase, StopReason.CANCELLED, text, at.at_ms)
    verdict = Verdict(
        "Cancelled", "CancelledByUser", event.reason or "cancelled", "cancel", decided_by=at.by
    )
    job = replace(job, verdict=verdict, then="Cancelled")
    if job.phase is JobPhase.STOPPING:
        return job
    return stopping(job, "Cancelled", StopReason.CANCELLED, event.reason, at.at_ms)


def _suspend_requested(job: Job, event: ev.SuspendRequested, at: At) -> Job:
    """(2): in Stopping, Queued becomes Suspended; with a verdict it is refused."""
    if job.phase is JobPhase.QUEUED:
        job = replace(job, not_before_ms=0, withdrawals=job.withdrawals + 1, aged_ms=0)
        return in_phase(job, JobPhase.SUSPENDED, at.at_ms)
    if job.phase is JobPhase.STOPPING:
        if job.then in FINAL:
            raise refusal(job, event, "it cannot be suspended any more")
        return replace(job, then="Suspended")
    return stopping(job, "Suspended", StopReason.SUSPENDED, event.reason, at.at_ms)


def _resume_requested(job: Job, event: ev.ResumeRequested, at: At) -> Job:
    """(3): in Stopping, Suspended becomes Queued; with a verdict it is refused."""
    if job.phase is JobPhase.SUSPENDED:
        return replace(in_phase(job, JobPhase.QUEUED, at.at_ms), queued_ms=at.at_ms)
    if job.then in FINAL:
        raise refusal(job, event, "it cannot be resumed any more")
    return replace(job, then="Queued")


def _restart_requested(job: Job, event: ev.RestartRequested, at: At) -> Job:
    """(4): the replicas named are stopped and recalled; settle does both."""
    spans = tuple(
        Span(span.role, span.low, min(span.high, job.roles[span.role].size - 1))
        for span in event.spans
        if span.role in job.roles and span.low < job.roles[span.role].size
    )

    def marked(_role: RoleState, replica: Replica) -> Replica:
        if replica.phase is ReplicaPhase.RETIRED:
            return replica
        return replace(replica, is_recalled=True)

    job = change_replicas(job, spans, marked)
    named = chunks.span_length(spans)
    everybody = sum(role.size for role in job.roles.values())
    return replace(job, is_restart_whole=named == everybody or job.is_restart_whole)


def _role_scaled(job: Job, event: ev.RoleScaled, at: At) -> Job:
    """(5): in Stopping only on the way to Queued or Suspended."""
    if job.phase is JobPhase.STOPPING and job.then in FINAL:
        raise refusal(job, event, "it cannot be scaled any more")
    if event.role not in job.roles:
        raise PrimusdError(
            f"job {job.spec.name} has no role {event.role}; it has {', '.join(job.roles)}"
        )
    job = resized(job, event.role, event.replicas)
    return replace(job, spec_version=job.spec_version + 1)


def _spec_patched(job: Job, event: ev.SpecPatched, at: At) -> Job:
    patched = replace(
        job, spec=event.spec, origins=event.origins, spec_version=job.spec_version + 1
    )
    return recounted(patched)


def _verdict_requested(job: Job, event: ev.VerdictRequested, at: At) -> Job:
    """(6): `then` becomes that verdict, with who and why."""
    if event.as_phase not in ("Succeeded", "Failed"):
        raise PrimusdError(f"a job is finished as Succeeded or Failed, not as {event.as_phase}")
    message = event.reason or f"decided by {at.by}"
    verdict = Verdict(event.as_phase, "DecidedByUser", message, "finish", decided_by=at.by)
    job = replace(job, verdict=verdict)
    if job.phase is JobPhase.STOPPING:
        return replace(job, then=event.as_phase)
    return stopping(job, event.as_phase, StopReason.VERDICT, message, at.at_ms)


def repeats_verdict(job: Job, event: ev.VerdictRequested) -> bool:
    """Return whether a person said the same before; the first verdict stands.

    For what is proposed: journals may hold a later one, which counted.

    Raises:
        PhaseConflictError: A person ends the job with the other verdict.
    """
    decided = decided_verdict(job)
    if decided is None:
        return False
    if decided.as_phase == event.as_phase:
        return True
    if job.is_final:
        return False
    name = job.spec.name
    raise PhaseConflictError(
        f"{name} is being finished as {decided.as_phase} ({decided.decided_by}: "
        f"{decided.message}): it cannot be finished as {event.as_phase} as well",
        phase=job.phase,
        event=ev.VerdictRequested.__name__,
        hint=f"the first verdict stands; primusctl describe {name} shows it",
    )


def decided_verdict(job: Job) -> Verdict | None:
    """Return the verdict by which a person ended the job, or is ending it; None: no such one."""
    verdict = job.verdict
    if verdict is None or verdict.reason != "DecidedByUser":
        return None
    is_under_way = job.phase is JobPhase.STOPPING and job.then == verdict.as_phase
    return verdict if job.is_final or is_under_way else None


def _drill_requested(job: Job, event: ev.DrillRequested, at: At) -> Job:
    """(9): a preemption stops the job as a real one does; other faults are for an edge."""
    if event.fault != "preempt":
        return job
    job = replace(job, aged_ms=job.queued_ms)
    return stopping(job, "Queued", StopReason.PREEMPTED, event.text, at.at_ms)


REQUESTS: Mapping[type, Callable[[Job, Any, At], Job]] = {  # each takes the event of its key
    ev.CancelRequested: _cancel_requested,
    ev.SuspendRequested: _suspend_requested,
    ev.ResumeRequested: _resume_requested,
    ev.RestartRequested: _restart_requested,
    ev.RoleScaled: _role_scaled,
    ev.SpecPatched: _spec_patched,
    ev.VerdictRequested: _verdict_requested,
    ev.DrillRequested: _drill_requested,
}
