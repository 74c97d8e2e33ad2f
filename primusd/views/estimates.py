"""When a job that waits is likely to start: reckoned from when those that run are likely to end.

The basis is always named: runs of the same name that ended, the speed at which data is read, or a
deadline, in this order.
"""

from collections import defaultdict
from collections.abc import Mapping
from statistics import median

from msgspec import UNSET, Struct

from primusd.admission.foresight import End, Granted, granted_when
from primusd.core import World
from primusd.job.limits import deadline_at_ms
from primusd.job.model import Job
from primusd.job.phases import JobPhase
from primusd.views.streams import stream_status

RUNS_MAX = 20
"""So many of the newest runs of a name are looked at."""


Runs = Mapping[tuple[str, str], list[int]]
"""Namespace and name to how long each run took, in ms."""


class EndGuess(Struct, frozen=True):
    """When a job is likely to be over."""

    at_ms: int
    source: str
    """What it is taken from, as people read it."""
    error_ms: int
    """It may be so much earlier or later."""


class StartGuess(Struct, frozen=True):
    """When a job is likely to be granted what it asks for."""

    in_ms: int
    source: str
    error_ms: int
    granted: Granted


def start_of(job: Job, world: World, *, at_ms: int) -> StartGuess | None:
    """Return when a job that waits for room is likely to get it; None: nothing tells."""
    runs = _runs(world)
    guesses = {
        uid: guess
        for uid in world.admission.demands
        if uid != job.uid
        and (other := world.jobs.get(uid)) is not None
        and (guess := _end_of(other, world, runs, at_ms=at_ms)) is not None
    }
    ends = [End(guess.at_ms, uid) for uid, guess in guesses.items()]
    granted = granted_when(world.admission, job.uid, ends, now_ms=at_ms)
    if granted is None:
        return None
    guess = guesses[granted.after]
    return StartGuess(max(0, granted.at_ms - at_ms), guess.source, guess.error_ms, granted)


def _end_of(job: Job, world: World, runs: Runs, *, at_ms: int) -> EndGuess | None:
    """Return when a job that runs is likely to be over; None: nothing tells."""
    if not job.admitted_ms or job.is_final:
        return None
    return _by_history(job, runs, at_ms) or _by_data(job, world, at_ms) or _by_deadline(job)


def _by_history(job: Job, known: Runs, at_ms: int) -> EndGuess | None:
    runs = known.get((job.spec.namespace, job.spec.name), [])[-RUNS_MAX:]
    if not runs:
        return None
    usual_ms = int(median(runs))
    spread_ms = (max(runs) - min(runs)) // 2 if len(runs) > 1 else usual_ms // 2
    many = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    end_ms = max(at_ms, job.first_admitted_ms + job.suspended_ms + usual_ms)
    return EndGuess(end_ms, f"history of {job.spec.name}, {many}", spread_ms)


def _runs(world: World) -> Runs:
    """Return how long each success took from its admission on, oldest first, by name."""
    found: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for uid in sorted(world.jobs):
        one = world.jobs[uid]
        if one.phase is JobPhase.SUCCEEDED and one.first_admitted_ms:
            took_ms = max(0, one.ended_ms - one.first_admitted_ms - one.suspended_ms)
            found[one.spec.namespace, one.spec.name].append(took_ms)
    return found


def _by_data(job: Job, world: World, at_ms: int) -> EndGuess | None:
    """Return the end of the stream that takes longest; None unless each is known."""
    etas = []
    for name in job.streams:
        stream = world.streams.get(f"{job.uid}/{name}")
        if stream is None or stream.phase == "Done":
            continue
        eta_ms = stream_status(stream).eta_ms
        if eta_ms is UNSET:
            return None
        etas.append(eta_ms)
    if not etas:
        return None
    return EndGuess(at_ms + max(etas), f"speed of {job.spec.name}'s data", max(etas) // 4)


def _by_deadline(job: Job) -> EndGuess | None:
    ends_ms = deadline_at_ms(job)
    return EndGuess(ends_ms, f"deadline of {job.spec.name}", 0) if ends_ms else None
