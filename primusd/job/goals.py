"""Where a job is and where it goes: its phase, and the stop that is kept until it is true."""

from msgspec.structs import replace

from primusd.errors import PhaseConflictError
from primusd.job import chunks
from primusd.job.counts import rules_of
from primusd.job.model import Job
from primusd.job.phases import JobPhase, StopReason


def recounted(job: Job) -> Job:
    """Return the job with every role counted anew: after its spec changed."""
    roles = {name: chunks.recount(role, rules_of(job, role)) for name, role in job.roles.items()}
    return replace(job, roles=roles)


def in_phase(job: Job, phase: JobPhase, at_ms: int) -> Job:
    """Return the job in a phase."""
    if phase is job.phase:
        return job
    if job.phase is JobPhase.SUSPENDED:
        job = replace(job, suspended_ms=job.suspended_ms + at_ms - job.phase_since_ms)
    return replace(job, phase=phase, phase_since_ms=at_ms)


def stopping(job: Job, then: str, reason: StopReason, text: str, at_ms: int) -> Job:
    """Return the job in Stopping: a goal that is kept until it is true."""
    return replace(
        in_phase(job, JobPhase.STOPPING, at_ms),
        then=then,
        stop_reason=reason,
        stop_text=text,
        start_clock_ms=0,
        withdrawals=job.withdrawals + 1,
    )


def refusal(job: Job, event: object, why: str) -> PhaseConflictError:
    """Return the error of a request that does not fit where the job goes."""
    name = type(event).__name__
    return PhaseConflictError(
        f"job {job.spec.name} is {job.phase} towards {job.then}: {why}",
        phase=job.phase,
        event=name,
    )
