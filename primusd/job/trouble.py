"""The first cause: of all ends of one trouble the one that came first, not the last symptom.

A trouble begins with an end that counts while all was well, and goes on while others follow: until
ten minutes pass without one, and whoever ends next had run for as long.
"""

from msgspec.structs import replace

from primusd.job.budgets import HEALTHY_MS, failures_after
from primusd.job.ids import AttemptId
from primusd.job.model import Attempt, FirstCause, Job, Outcome, find_replica
from primusd.job.phases import Budget, JobPhase


def first_cause(
    job: Job, attempt: AttemptId, ended: Attempt, outcome: Outcome, *, is_counted: bool
) -> FirstCause | None:
    """Return the first cause after an end.

    Args:
        job: Before the end is counted in with its replica.
        attempt: Which ended.
        ended: The attempt, over.
        outcome: How.
        is_counted: It came in the generation in force, of a job that was to go on.
    """
    known = job.first_cause
    is_trouble = is_counted and (outcome.budget is not Budget.NONE or outcome.is_permanent)
    if known is not None and known.attempt == attempt.label:
        # A lost attempt whose exit record came after all: the same end, better known.
        return _begun(attempt, outcome, known) if is_trouble else None
    if not is_trouble:
        return known
    if known is not None and _goes_on(job, attempt, ended, known):
        return replace(known, newest_ms=ended.ended_ms, ends=known.ends + 1)
    return _begun(attempt, outcome, None)


def _begun(attempt: AttemptId, outcome: Outcome, before: FirstCause | None) -> FirstCause:
    return FirstCause(
        attempt.label,
        outcome.cause,
        outcome.exit_code,
        outcome.signal,
        outcome.at_ms,
        outcome.last_line,
        outcome.evidence,
        newest_ms=before.newest_ms if before is not None else outcome.at_ms,
        ends=before.ends if before is not None else 1,
    )


def _goes_on(job: Job, attempt: AttemptId, ended: Attempt, known: FirstCause) -> bool:
    """Return whether an end belongs to the trouble that is known."""
    newest_ms = known.newest_ms or known.at_ms
    if ended.ended_ms - newest_ms < HEALTHY_MS:
        return True
    if job.phase is JobPhase.STARTING and job.admitted_ms <= newest_ms:
        # It never ran again since.
        return True
    replica = find_replica(job, attempt.role, attempt.index)
    failures = max(replica.failures if replica else 0, job.roles[attempt.role].failures)
    return failures_after(failures, ended) > 1
