"""What bounds a job: its deadline and its replica hours, with the warning before each.

Neither is polled: `deadlines` says when something is due at the rate of now, and every start and
end of a trainer changes that time.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from primusd.job import events as ev
from primusd.job.model import Attempt, Hours, Job
from primusd.job.phases import JobPhase
from primusd.job.scheduling import drain_end_ms, drains
from primusd.units import format_duration

DEADLINE = "deadline"
REPLICA_HOURS = "replicaHours"
DRAIN = "drain"
WARNED_PHASES = (JobPhase.STARTING, JobPhase.RUNNING)
LIMITED_PHASES = (JobPhase.QUEUED, *WARNED_PHASES)
WARN_MS = 300_000
"""Replica hours that last no longer than this at the present rate are warned of."""
WARN_SHARE = 10
"""And not before all but one in so many are used."""
HOUR_MS = 3_600_000


def deadline_at_ms(job: Job) -> int:
    """Return the journal time of the job's deadline; 0 none, or not running yet."""
    if not job.spec.deadline_ms or not job.first_admitted_ms:
        return 0
    return job.first_admitted_ms + job.spec.deadline_ms + job.suspended_ms


def has_limits(job: Job) -> bool:
    """Return whether anything bounds the job."""
    return bool(job.spec.deadline_ms or job.spec.max_replica_ms)


def counted(hours: Hours, before: Attempt, after: Attempt) -> Hours:
    """Return the time of all trainers with an attempt's start or end counted in."""
    has_started = bool(after.started_ms) and not before.started_ms
    has_ended = bool(after.ended_ms) and not before.ended_ms
    if has_started and not has_ended:
        return replace(
            hours, running=hours.running + 1, started_ms=hours.started_ms + after.started_ms
        )
    # What ran when an older version wrote the snapshot is not among those that are counted.
    if not has_ended or not before.started_ms or not hours.running:
        return hours
    return Hours(
        hours.spent_ms + after.ended_ms - before.started_ms,
        hours.running - 1,
        hours.started_ms - before.started_ms,
    )


def used_ms(job: Job, at_ms: int) -> int:
    """Return how long the job's trainers ran so far, all attempts of all roles together."""
    hours = job.hours
    return hours.spent_ms + hours.running * at_ms - hours.started_ms


def _reaches_ms(job: Job, amount_ms: int) -> int:
    """Return when so much will be used at the rate of now; 0 never, and of no limit."""
    hours = job.hours
    if not hours.running or not amount_ms:
        return 0
    return -(-(amount_ms - hours.spent_ms + hours.started_ms) // hours.running)


def _warned_amount_ms(job: Job) -> int:
    """Return how much may be used before the trainers are warned."""
    limit_ms = job.spec.max_replica_ms
    return limit_ms - min(job.hours.running * WARN_MS, limit_ms // WARN_SHARE)


def over(job: Job, at_ms: int) -> ev.VerdictReached | None:
    """Return the end of a job whose limit is reached; one that is complete by then has succeeded.

    It asks no more than completion does: not while Suspended, and not once there is a verdict.
    """
    if not has_limits(job) or job.phase not in LIMITED_PHASES:
        return None
    ends_ms = deadline_at_ms(job)
    if ends_ms and ends_ms <= at_ms:
        words = format_duration(job.spec.deadline_ms)
        message = f"the deadline of {words} from the first admission is over"
        numbers = {"deadlineMs": job.spec.deadline_ms, "suspendedMs": job.suspended_ms}
        return ev.VerdictReached("Failed", "DeadlineExceeded", message, DEADLINE, numbers=numbers)
    limit_ms = job.spec.max_replica_ms
    used = used_ms(job, at_ms)
    if limit_ms and used >= limit_ms:
        message = (
            f"its trainers ran {hour_words(used)} together, {hour_words(limit_ms)} are allowed"
        )
        return ev.VerdictReached(
            "Failed",
            "ReplicaHoursUsed",
            message,
            "maxReplicaHours",
            numbers={"usedMs": used, "limitMs": limit_ms},
        )
    return None


def hour_words(duration_ms: int) -> str:
    """Return replica hours as people read them."""
    hours = duration_ms / HOUR_MS
    return f"{hours:.2g} h" if hours < 1 else f"{round(hours, 2):g} h"


def settle(job: Job, at_ms: int) -> ev.LimitNeared | None:
    """Return the warning that is due."""
    if not has_limits(job):
        return None
    for limit, mark, due_ms, end_ms in _warnings(job):
        if due_ms <= at_ms:
            return ev.LimitNeared(limit, mark, max(0, end_ms - at_ms))
    return None


def deadlines(job: Job) -> Iterator[int]:
    """Yield the journal times at which a limit is reached or has to be warned of."""
    if job.phase not in LIMITED_PHASES:
        return
    ends = (deadline_at_ms(job), _reaches_ms(job, job.spec.max_replica_ms))
    yield from (one for one in ends if one)
    for _, _, due_ms, _ in _warnings(job):
        yield due_ms


def _warnings(job: Job) -> Iterator[tuple[str, int, int, int]]:
    """Yield each limit to be warned of: its name and mark, when to warn, and when it is reached."""
    if job.phase not in WARNED_PHASES:
        return
    ends_ms = deadline_at_ms(job)
    if ends_ms and job.spec.deadline_warn_ms and (DEADLINE, ends_ms) not in job.warned:
        yield DEADLINE, ends_ms, ends_ms - job.spec.deadline_warn_ms, ends_ms
    limit_ms = job.spec.max_replica_ms
    if limit_ms and job.hours.running and (REPLICA_HOURS, limit_ms) not in job.warned:
        warned_ms = _reaches_ms(job, _warned_amount_ms(job))
        yield REPLICA_HOURS, limit_ms, warned_ms, _reaches_ms(job, limit_ms)


def neared(job: Job, event: ev.LimitNeared) -> Job:
    """Return the job whose trainers were warned of a limit as it is now."""
    others = tuple(one for one in job.warned if one[0] != event.limit)
    return replace(job, warned=(*others, (event.limit, event.mark)))


def near(job: Job, role: str, at_ms: int) -> Iterator[tuple[str, int]]:
    """Yield the limits that trainers of a role are warned of, with the milliseconds that are left.

    A warning of a limit that was moved since is taken back.
    """
    if job.phase is JobPhase.DRAINING and drains(job, job.roles[role]):
        yield DRAIN, max(0, drain_end_ms(job, job.roles[role]) - at_ms)
    if job.phase not in WARNED_PHASES:
        return
    for limit, mark in job.warned:
        if limit == DEADLINE and mark == deadline_at_ms(job):
            yield limit, max(0, mark - at_ms)
        elif limit == REPLICA_HOURS and mark == job.spec.max_replica_ms:
            yield limit, max(0, _reaches_ms(job, mark) - at_ms)
