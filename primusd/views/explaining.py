"""Explanations: why a job waits, is not over yet, began attempts anew, or has its verdict.

What decides tells why: admission and `views/waiting.py` what is waited for, `job/restarts.py` what
failover recorded, completion its verdict with the numbers of that moment.
"""

from collections.abc import Iterator

import msgspec
from msgspec import UNSET, UnsetType

from primusd.admission.foresight import smaller_that_fits
from primusd.core import World
from primusd.job.counts import Count
from primusd.job.model import Job, Moment
from primusd.job.phases import JobPhase
from primusd.job.reasons import WHY_ENDING, WHY_VERDICT, WHY_WAITING, Why
from primusd.job.restarts import why_restarted
from primusd.job.scheduling import drain_end_ms, drains
from primusd.views import explanation_documents as documents
from primusd.views.estimates import StartGuess, start_of
from primusd.views.queue import Queue, is_waiting
from primusd.views.times import known_time, said_duration
from primusd.views.waiting import Waiting, why

ROOM_REASONS = frozenset(
    {"WaitingForSlots", "WaitingForQueue", "WaitingForQuota", "WaitingForPlacement"}
)
_RECORDS = {
    "RetryDelayed": ("RetryDecided", "RoleRestarted", "JobRestarted"),
    "StartBackoff": ("StartTimedOut",),
    "WaitingForNode": ("AttemptEnded", "JobSubmitted"),
}
"""Reasons to the entries of the timeline that they follow from; else the newest of `_ASKING`."""
_ASKING = ("JobSubmitted", "AllGone", "RoleScaled", "FellBelowMinimum", "JobAdmitted")
_VERDICTS = ("VerdictReached", "VerdictRequested", "CancelRequested", "StartTimedOut")


def explanations(
    job: Job, world: World, queue: Queue, *, at_ms: int
) -> tuple[documents.Explanation, ...]:
    """Return all that can be asked of a job now, what holds it first.

    Args:
        job: One of `world.jobs`.
        world: Its admission and streams are read.
        queue: That of `world`.
        at_ms: Journal time now.
    """
    found = []
    waiting = why(job, world, queue, at_ms=at_ms)
    if waiting is not None:
        found.append(_waiting(job, world, waiting, at_ms=at_ms))
    found += [_document(job, one) for one in _ending(job, world, at_ms=at_ms)]
    found += [_document(job, one) for one in why_verdict(job)]
    found += [_document(job, one) for one in why_restarted(job)]
    return tuple(found)


def _document(job: Job, why: Why) -> documents.Explanation:
    return documents.Explanation(
        job=job.spec.name,
        job_uid=job.uid,
        namespace=job.spec.namespace,
        question=why.question,
        answer=why.message,
        reason=why.reason,
        subject=why.subject or UNSET,
        since=known_time(why.since_ms),
        numbers=why.numbers,
        because=why.because,
    )


# Why it waits.


def _waiting(job: Job, world: World, waiting: Waiting, *, at_ms: int) -> documents.Explanation:
    told = Why(
        WHY_WAITING,
        waiting.reason,
        waiting.message,
        waiting.numbers,
        since_ms=_since(job, world),
        because=_because(job, _RECORDS.get(waiting.reason, _ASKING)),
    )
    document = _document(job, told)
    demand = world.admission.demands.get(job.uid)
    if waiting.reason not in ROOM_REASONS or demand is None or not is_waiting(demand):
        return msgspec.structs.replace(document, estimate=_at_the_latest(waiting))
    guess = start_of(job, world, at_ms=at_ms)
    if guess is None:
        estimate = _by_deadlines(world, waiting, at_ms=at_ms)
        document = msgspec.structs.replace(document, estimate=estimate)
    else:
        document = msgspec.structs.replace(document, estimate=_estimate(guess))
        if guess.error_ms or not waiting.starts_ms:
            # What deadlines tell stands in the sentence already.
            after = world.jobs[guess.granted.after].spec.name
            answer = f"{document.answer}; {after} is likely to make room in {_about(guess)}"
            document = msgspec.structs.replace(document, answer=answer)
    fits = tuple(_would_fit(job, world, guess, at_ms=at_ms))
    return msgspec.structs.replace(document, would_fit=fits) if fits else document


def _since(job: Job, world: World) -> int:
    demand = world.admission.demands.get(job.uid)
    is_queued = job.phase is JobPhase.QUEUED and demand is not None
    return demand.since_ms if is_queued and demand is not None else job.phase_since_ms


def _at_the_latest(waiting: Waiting) -> documents.Estimate | UnsetType:
    """Return the end of a delay, which is known exactly."""
    in_ms = waiting.numbers.get("inMs")
    if in_ms is None:
        return UNSET
    return documents.Estimate(in_ms=in_ms, source="the delay that was decided", error_ms=0)


def _by_deadlines(world: World, waiting: Waiting, *, at_ms: int) -> documents.Estimate | UnsetType:
    """Return when admission itself sees the job start at the latest."""
    if not waiting.starts_ms:
        return UNSET
    # In a replay the other jobs are known to admission alone.
    names = {uid: name for (_, name), uid in world.admission.names.items()}
    by = names.get(waiting.starts_by, waiting.starts_by)
    in_ms = max(0, waiting.starts_ms - at_ms)
    return documents.Estimate(in_ms=in_ms, source=f"deadline of {by}", error_ms=0)


def _estimate(guess: StartGuess) -> documents.Estimate:
    return documents.Estimate(in_ms=guess.in_ms, source=guess.source, error_ms=guess.error_ms)


def _about(guess: StartGuess) -> str:
    near = f", give or take {said_duration(guess.error_ms)}" if guess.error_ms else " at the latest"
    return f"about {said_duration(guess.in_ms)}{near} ({guess.source})"


def _would_fit(job: Job, world: World, guess: StartGuess | None, *, at_ms: int) -> Iterator[str]:
    demand = world.admission.demands[job.uid]
    smaller = smaller_that_fits(world.admission, demand, at_ms=at_ms)
    if smaller is not None:
        role, count, least = smaller
        yield f"with {role} {count} instead of {least}"
    if guess is not None:
        after = world.jobs[guess.granted.after].spec.name
        yield f"on {', '.join(guess.granted.nodes)} when {after} ends"


def _because(job: Job, reasons: tuple[str, ...]) -> tuple[str, ...]:
    """Return the id of the newest entry of the timeline with one of these reasons."""
    found = _newest(job, reasons)
    return () if found is None else (f"{found.revision}.{found.position}",)


def _newest(job: Job, reasons: tuple[str, ...]) -> Moment | None:
    return next((one for one in reversed(job.timeline) if one.reason in reasons), None)


# Why it is not over.


def _ending(job: Job, world: World, *, at_ms: int) -> Iterator[Why]:
    wedged = world.admission.wedged.get(job.uid)
    if wedged is not None:
        text = "it stopped on a bug of primusd; its processes run on, and a restart tries again"
        yield Why(WHY_ENDING, "Wedged", text, {"attempts": _left(job)})
    match job.phase:
        case JobPhase.SUSPENDED:
            asked = _newest(job, ("SuspendRequested",))
            by = f" (by {asked.by})" if asked is not None else ""
            text = f"it is suspended{by}; primusctl resume {job.spec.name} ends that"
            numbers = {"suspendedMs": at_ms - job.phase_since_ms}
            yield _of_phase(job, "Suspended", text, numbers, "SuspendRequested")
        case JobPhase.STOPPING:
            left = _left(job)
            have = "1 attempt has" if left == 1 else f"{left} attempts have"
            text = f"{have} to end first, then it is {job.then}"
            numbers = {"attempts": left, "graceLeftMs": _grace_left_ms(job, at_ms)}
            yield _of_phase(job, "AttemptsEnding", text, numbers, "StopDecided")
        case JobPhase.DRAINING:
            draining = [role for role in job.roles.values() if drains(job, role)]
            left_ms = max((drain_end_ms(job, role) for role in draining), default=at_ms) - at_ms
            names = ", ".join(role.name for role in draining)
            text = f"{names} may finish for at most {said_duration(left_ms)} more"
            numbers = {"attempts": _left(job), "leftMs": max(0, left_ms)}
            yield _of_phase(job, "HelpersDraining", text, numbers, "VerdictReached")
        case _:
            return


def _of_phase(job: Job, reason: str, text: str, numbers: dict[str, int], record: str) -> Why:
    because = _because(job, (record,))
    return Why(WHY_ENDING, reason, text, numbers, since_ms=job.phase_since_ms, because=because)


def _left(job: Job) -> int:
    return sum(role.counts[Count.NOT_GONE] for role in job.roles.values())


def _grace_left_ms(job: Job, at_ms: int) -> int:
    """Return how long the trainers that were told to stop may still take."""
    ends = (
        one.stop.decided_ms + one.stop.grace_ms
        for role in job.roles.values()
        for chunk in role.chunks
        for replica in chunk.replicas
        if (one := replica.newest) is not None and one.stop is not None and one.outcome is None
    )
    return max(0, max(ends, default=at_ms) - at_ms)


# Why this verdict.


def why_verdict(job: Job) -> tuple[Why, ...]:
    """Return why the job has the verdict it has; nothing while it has none."""
    verdict = job.verdict
    if verdict is None:
        return ()
    by = "" if verdict.decided_by == "rules" else f" (by {verdict.decided_by})"
    moment = _newest(job, _VERDICTS)
    return (
        Why(
            WHY_VERDICT,
            verdict.reason,
            f"{verdict.as_phase}: {verdict.message}{by}{_began_with(job)}",
            verdict.numbers,
            verdict.cause,
            moment.at_ms if moment is not None else job.phase_since_ms,
            _because(job, _VERDICTS),
        ),
    )


def _began_with(job: Job) -> str:
    """Return the first cause of a failure, where it is another end than the one that decided."""
    cause, verdict = job.first_cause, job.verdict
    if cause is None or verdict is None or verdict.as_phase != "Failed":
        return ""
    if cause.attempt == verdict.cause:
        return f"; it wrote last: {cause.last_line}" if cause.last_line else ""
    last = f": {cause.last_line}" if cause.last_line else ""
    return f"; it began with {cause.attempt} ({cause.cause}{last})"
