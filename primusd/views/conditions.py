"""The conditions of a job: statements that hold or do not, each with its reason while it holds."""

from collections.abc import Iterator, Mapping
from itertools import islice

from msgspec import UNSET, Struct

from primusd.core import World
from primusd.datafeed.ledger.machine import LIVE_PHASES
from primusd.job.ids import replica_name
from primusd.job.model import Attempt, Job, replicas_of
from primusd.job.phases import AttemptPhase, JobPhase, StopReason
from primusd.views.counting import Counts
from primusd.views.credentials import credential_notes
from primusd.views.documents import Condition
from primusd.views.feed_findings import has_caught_up, starved_words
from primusd.views.live import Live, LiveWait
from primusd.views.times import known_time, said_duration

STARVED_PERCENT = 50
STARVED_AFTER_MS = 10_000
"""For less than this no reader is judged."""
JOURNAL_BEHIND_MS = 1_000
CLOCK_SKEWED_MS = 5_000
NAMED_MAX = 3
TYPES = (
    "Admitted",
    "GateOpen",
    "Restarting",
    "Degraded",
    "DataStarved",
    "CredentialExpires",
    "JournalBehind",
    "Hanging",
    "Wedged",
    "ClockSkewed",
)
"""The closed list, in the order in which they are shown."""


class Held(Struct, frozen=True):
    """That a condition holds, and why."""

    reason: str
    message: str = ""
    since_ms: int = 0


def conditions(
    job: Job, world: World, counts: Mapping[str, Counts], live: Live, *, at_ms: int
) -> tuple[Condition, ...]:
    """Return all conditions of a job.

    Args:
        job: One of `world.jobs`.
        world: Its admission and streams are read.
        counts: Of each role.
        live: What the edges know; without it what rests on it does not hold.
        at_ms: Journal time now.
    """
    found = {
        "Admitted": _admitted(job),
        "GateOpen": _gate(job),
        "Restarting": _restarting(job, counts),
        "Degraded": _degraded(job, counts),
        "DataStarved": None if job.is_final else _starved(job, world, live),
        "CredentialExpires": None if job.is_final else _expiring(job, world, live, at_ms),
        "JournalBehind": None if job.is_final else _behind(live),
        "Hanging": _hanging(job),
        "Wedged": _wedged(job, world),
        "ClockSkewed": None if job.is_final else _skewed(live),
    }
    return tuple(_condition(type_, found[type_]) for type_ in TYPES)


def _condition(type_: str, held: Held | None) -> Condition:
    if held is None:
        return Condition(type=type_, status=False)
    return Condition(
        type=type_,
        status=True,
        reason=held.reason,
        message=held.message or UNSET,
        since=known_time(held.since_ms),
    )


def _admitted(job: Job) -> Held | None:
    is_admitted = bool(job.admitted_ms) and not job.is_final and job.phase is not JobPhase.QUEUED
    return Held("SlotsReserved", since_ms=job.admitted_ms) if is_admitted else None


def _gate(job: Job) -> Held | None:
    if job.phase not in (JobPhase.RUNNING, JobPhase.DRAINING):
        return None
    reason = "GangComplete" if job.spec.policy == "gang" else "MinimumReached"
    return Held(reason, since_ms=job.started_ms)


def _restarting(job: Job, counts: Mapping[str, Counts]) -> Held | None:
    delayed = sum(one.delayed for one in counts.values())
    is_stopping = any(one.stopping for one in counts.values()) and any(_restart_stops(job))
    if job.is_final or not (delayed or is_stopping):
        return None
    since_ms = job.first_cause.at_ms if job.first_cause else 0
    return Held("RetryDelayed" if delayed else "Stopping", since_ms=since_ms)


def _restart_stops(job: Job) -> Iterator[int]:
    """Yield when each attempt that is being stopped for a restart was told so."""
    for role in job.roles.values():
        for replica in replicas_of(role):
            newest = replica.newest
            if (
                newest is not None
                and newest.phase is AttemptPhase.STOPPING
                and newest.stop is not None
                and newest.stop.reason is StopReason.RESTARTING
            ):
                yield newest.stop.decided_ms


def _degraded(job: Job, counts: Mapping[str, Counts]) -> Held | None:
    short = {
        name: role.size - one.running - one.completed
        for name, role in job.roles.items()
        if (one := counts[name]).running + one.completed < role.size
    }
    if job.phase is not JobPhase.RUNNING or not short:
        return None
    words = ", ".join(f"{name}: {count} fewer than asked" for name, count in short.items())
    return Held("FewerThanAsked", words)


def _starved(job: Job, world: World, live: Live) -> Held | None:
    """Return that trainers wait for data most of the time, over all readers of a stream.

    Where the sources cannot be looked at, why; nothing where all that there is was read.
    """
    waits: dict[str, list[LiveWait]] = {}
    for (attempt, stream), one in live.waits.items():
        if attempt.job == job.uid and one.passed_ms >= STARVED_AFTER_MS:
            waits.setdefault(stream, []).append(one)
    said = []
    for name, some in sorted(waits.items()):
        state = world.streams.get(f"{job.uid}/{name}")
        percent = sum(one.waited_percent for one in some) // len(some)
        if state is None or state.phase not in LIVE_PHASES or percent < STARVED_PERCENT:
            continue
        words = f"{name}: trainers wait for data {percent} % of the time"
        if state.waiting_for:
            said.append(f"{words}: {state.waiting_for[0]}")
        elif state.phase == "Serving" and not has_caught_up(state):
            said.append(", ".join(filter(None, (words, starved_words(state, live)))))
    return Held("TrainersWait", "; ".join(said)) if said else None


def _expiring(job: Job, world: World, live: Live, at_ms: int) -> Held | None:
    """Return that what readers show a storage ends soon, or has ended."""
    notes = [
        note
        for name in job.streams
        if (stream := world.streams.get(f"{job.uid}/{name}")) is not None
        for note in credential_notes(stream, live, at_ms=at_ms)
    ]
    if not notes:
        return None
    # Several streams of one storage say the same.
    said = dict.fromkeys(note.message for note in notes)
    is_over = any(note.reason == "CredentialExpired" for note in notes)
    return Held("Expired" if is_over else "ExpiresSoon", "; ".join(islice(said, NAMED_MAX)))


def _behind(live: Live) -> Held | None:
    if live.journal_lag_ms < JOURNAL_BEHIND_MS:
        return None
    words = said_duration(live.journal_lag_ms)
    return Held("SlowStore", f"what happens is durable, and shown, only {words} later")


def _hanging(job: Job) -> Held | None:
    # Most jobs never hang: their replicas need not be looked at.
    if job.is_final or not any(one.reason == "TrainerHung" for one in job.timeline):
        return None
    hung = list(_hung(job))
    if not hung:
        return None
    names = ", ".join(name for name, _ in hung[:NAMED_MAX]) + (", …" if hung[NAMED_MAX:] else "")
    message = f"{names}: {hung[0][1].hang}"
    return Held("NoProgress", message, min(one.hung_ms for _, one in hung))


def _hung(job: Job) -> Iterator[tuple[str, Attempt]]:
    """Yield the replicas whose trainers hang, as far as their executors can tell."""
    for role in job.roles.values():
        for replica in replicas_of(role):
            newest = replica.newest
            if newest is not None and newest.phase is AttemptPhase.RUNNING and newest.hang:
                yield replica_name(role.name, replica.index), newest


def _wedged(job: Job, world: World) -> Held | None:
    text = world.admission.wedged.get(job.uid)
    return None if text is None else Held("OurBug", text)


def _skewed(live: Live) -> Held | None:
    if abs(live.clock_skew_ms) < CLOCK_SKEWED_MS:
        return None
    is_ahead = live.clock_skew_ms > 0
    words = said_duration(abs(live.clock_skew_ms))
    message = (
        f"the wall clock of the head is {words} {'ahead of' if is_ahead else 'behind'} journal "
        "time; deadlines follow journal time"
    )
    return Held("WallClockMoved", message)
