"""Why a job waits: one reason of a closed list, with the numbers that decide it.

Order, free room and what could never fit are asked of the functions that grant slots
(`admission/machine.py`, `admission/fitting.py`), never worked out a second time.
"""

from collections.abc import Iterator
from itertools import islice

from primusd.admission.waits import Wait, why_waits
from primusd.core import World
from primusd.datafeed.ledger.grants import does_wait
from primusd.datafeed.ledger.rescans import rests
from primusd.job import gates
from primusd.job.counts import Count, due_of, rules_of
from primusd.job.ids import replica_name
from primusd.job.model import Job, Replica, replicas_of
from primusd.job.outcome import how_it_ended
from primusd.job.phases import AttemptPhase, JobPhase, ReplicaPhase
from primusd.views.counting import count_role
from primusd.views.queue import Queue, is_waiting
from primusd.views.times import said_duration

NAMED_MAX = 3
IMAGE_WORD = "image"
"""So begins what a launcher says that waits for an image and not for a place."""
_OVER = frozenset({AttemptPhase.ENDED, AttemptPhase.GONE})
_STEPS: tuple[tuple[str, tuple[str, str], tuple[int, ...], frozenset[AttemptPhase | None]], ...] = (
    (
        "WaitingForPlacement",
        ("is not placed yet", "are not placed yet"),
        (Count.WAITING, Count.REQUESTED),
        frozenset({None, AttemptPhase.REQUESTED}),
    ),
    (
        "WaitingForRegistration",
        ("has not registered yet", "have not registered yet"),
        (Count.LAUNCHED,),
        frozenset({AttemptPhase.LAUNCHED}),
    ),
    (
        "WaitingForReady",
        ("fetches its files", "fetch their files"),
        (Count.REGISTERED,),
        frozenset({AttemptPhase.REGISTERED}),
    ),
    (
        "WaitingForRole",
        ("waits for the others of its gang", "wait for the rest of their gang"),
        (Count.OPENABLE,),
        frozenset({AttemptPhase.REGISTERED}),
    ),
)
"""Reason, words for one and for several, what counts, and how one is told, from first to last."""


Waiting = Wait
"""A reason of the closed list, its sentence, and its numbers."""


def why(job: Job, world: World, queue: Queue, *, at_ms: int) -> Waiting | None:
    """Return what the job waits for, None when it waits for nothing that it names."""
    match job.phase:
        case JobPhase.QUEUED:
            return _queued(job, queue, at_ms=at_ms)
        case JobPhase.STARTING:
            return (
                _delayed(job, at_ms=at_ms)
                or _rest_of_gang(job, at_ms=at_ms)
                or _short_of_slots(job, queue, at_ms=at_ms)
                or _not_known_gone(job, at_ms=at_ms)
                or _on_the_way(job)
                or _nearly_there(job, at_ms=at_ms)
            )
        case JobPhase.RUNNING:
            return (
                _delayed(job, at_ms=at_ms)
                or _paused(job, world)
                or _without_data(job, world, at_ms=at_ms)
                or _short_of_slots(job, queue, at_ms=at_ms)
                or _held_up(job)
            )
        case _:
            return None


def _queued(job: Job, queue: Queue, *, at_ms: int) -> Waiting | None:
    if job.not_before_ms > at_ms:
        left_ms = job.not_before_ms - at_ms
        count = job.start_timeouts
        starts = "1 start" if count == 1 else f"{count} starts"
        return Waiting(
            "StartBackoff",
            f"starts again in {said_duration(left_ms)}: {starts} did not come about",
            {"inMs": left_ms, "startTimeouts": job.start_timeouts},
        )
    return _short_of_slots(job, queue, at_ms=at_ms) or Waiting(
        "WaitingForQueue", "has just come", {}
    )


def _short_of_slots(job: Job, queue: Queue, *, at_ms: int) -> Waiting | None:
    demand = queue.admission.demands.get(job.uid)
    if demand is None or not is_waiting(demand):
        return None
    return why_waits(queue.survey(at_ms=at_ms), demand)


def _delayed(job: Job, *, at_ms: int) -> Waiting | None:
    delayed = [
        (max(replica.not_before_ms, role.not_before_ms), role.name, replica)
        for role in job.roles.values()
        if count_role(role).delayed
        for replica in replicas_of(role)
        if replica.phase is ReplicaPhase.DELAYED
    ]
    if not delayed:
        return None
    not_before_ms, role, replica = min(delayed, key=lambda one: (one[0], one[1], one[2].index))
    left_ms = max(0, not_before_ms - at_ms)
    message = f"{replica_name(role, replica.index)} starts again in {said_duration(left_ms)}"
    newest = replica.newest
    if newest is not None and newest.outcome is not None:
        message += f": attempt {newest.number} {how_it_ended(newest.outcome)}"
    if len(delayed) > 1:
        message += f"; {len(delayed) - 1} more wait likewise"
    return Waiting("RetryDelayed", message, {"inMs": left_ms, "replicas": len(delayed)})


def _not_known_gone(job: Job, *, at_ms: int) -> Waiting | None:
    """Return who cannot begin anew yet: what it ran may still run where nobody answers."""
    if all(
        role.counts[Count.ACTIVE] == role.counts[Count.LIVING] + role.counts[Count.MOVABLE]
        for role in job.roles.values()
    ):
        return None
    held = [
        (replica_name(role.name, replica.index), replica.newest.node, due_ms)
        for role in job.roles.values()
        for replica in replicas_of(role)
        if replica.newest is not None and replica.newest.phase in _OVER
        if (due_ms := due_of(replica, rules_of(job, role)))
    ]
    if not held:
        return None
    names = ", ".join(name for name, _, _ in held[:NAMED_MAX])
    shown = names + (", …" if held[NAMED_MAX:] else "")
    nodes = ", ".join(sorted({node for _, node, _ in held})[:NAMED_MAX])
    left_ms = max(0, max(due_ms for _, _, due_ms in held) - at_ms)
    message = (
        f"{_counted(len(held), ('waits', 'wait'))} ({shown}) until it is known that nothing of "
        f"the attempt before runs on {nodes}, for at most {said_duration(left_ms)}"
    )
    return Waiting("WaitingForNode", message, {"replicas": len(held), "inMs": left_ms})


def _paused(job: Job, world: World) -> Waiting | None:
    paused = [
        name
        for name in job.streams
        if (one := world.streams.get(f"{job.uid}/{name}")) is not None
        and one.is_paused
        and one.phase in ("Opening", "Serving")
    ]
    if not paused:
        return None
    return Waiting("Paused", f"data is paused: {', '.join(paused)}", {"streams": len(paused)})


def _without_data(job: Job, world: World, *, at_ms: int) -> Waiting | None:
    """Return which stream has nothing to give because its sources cannot be looked at."""
    machines = ((name, world.streams.get(f"{job.uid}/{name}")) for name in job.streams)
    empty = [
        (name, one)
        for name, one in machines
        if one is not None
        and (one.waiting_for or rests(one))
        and one.phase in ("Opening", "Serving")
        and not one.lease_count
        and not does_wait(one)
    ]
    if not empty:
        return None
    name, stream = empty[0]
    left_ms = max(0, stream.next_listing_ms - at_ms)
    if not stream.waiting_for:
        said = said_duration(left_ms)
        message = f"stream {name}: all files were read; late ones are looked for in {said}"
        return Waiting("WaitingForData", message, {"inMs": left_ms, "streams": len(empty)})
    message = f"stream {name}: {stream.waiting_for[0]}"
    if stream.next_listing_ms:
        message += f"; next try in {said_duration(left_ms)}"
    numbers = {"inMs": left_ms, "tries": stream.listing_failures, "streams": len(empty)}
    return Waiting("WaitingForData", message, numbers)


def _on_the_way(job: Job) -> Waiting | None:
    """Return the step at which a start stands: the earliest one that some replica is still at."""
    for reason, words, counts, phases in _STEPS:
        count = sum(sum(role.counts[one] for one in counts) for role in job.roles.values())
        count -= _holding_count(job) if reason == "WaitingForReady" else 0
        if count > 0 and reason == "WaitingForRole":
            return _held_up(job) or _at_step(job, reason, words, count, phases)
        if count > 0:
            return _at_step(job, reason, words, count, phases)
    return None


def _held_up(job: Job) -> Waiting | None:
    """Return which roles are there and wait for another one to come far enough."""
    words: list[str] = []
    roles = replicas = 0
    for role in job.roles.values():
        if not role.counts[Count.OPENABLE] or role.gate_opened:
            continue
        waits = gates.held_up_words(job, role.name)
        roles, replicas = roles + bool(waits), replicas + len(waits) * role.counts[Count.OPENABLE]
        words += waits
    if not words:
        return None
    return Waiting("WaitingForRole", "; ".join(words), {"roles": roles, "replicas": replicas})


def _rest_of_gang(job: Job, *, at_ms: int) -> Waiting | None:
    """Return when an elastic gang that has its minimum starts without the rest."""
    times = [gates.assembled_ms(job, job.roles[one]) for one in gates.gang_roles(job.spec)]
    known = [one for one in times if one is not None]
    if not known or len(known) < len(times) or max(known) <= at_ms:
        return None
    there = sum(job.roles[one].counts[Count.HOLDING] for one in gates.gang_roles(job.spec))
    size = sum(job.roles[one].size for one in gates.gang_roles(job.spec))
    left_ms = max(known) - at_ms
    message = f"{there} of {size} are there; it starts with them in {said_duration(left_ms)}"
    numbers = {"replicas": there, "missing": size - there, "inMs": left_ms}
    return Waiting("WaitingForRole", message, numbers)


def _nearly_there(job: Job, *, at_ms: int) -> Waiting:
    """Return what a start waits for whose replicas are all past registration."""
    counts = [role.counts for role in job.roles.values()]
    old = sum(one[Count.STOPPING] + one[Count.ENDED] for one in counts)
    if old:
        words = ("has to end before it begins anew", "have to end before they begin anew")
        return Waiting("RetryDelayed", _counted(old, words), {"replicas": old})
    started = sum(one[Count.STARTING] for one in counts)
    if started:
        words = ("starts its trainer", "start their trainers")
        return Waiting("WaitingForReady", _counted(started, words), {"replicas": started})
    begun_ms = job.phase_since_ms
    return Waiting(
        "WaitingForRole",
        f"the start gate is not reached after {said_duration(max(0, at_ms - begun_ms))}",
        {"replicas": sum(role.size for role in job.roles.values())},
    )


def _holding_count(job: Job) -> int:
    """Return how many replicas are registered and hold: they wait for others, not for files."""
    return sum(role.counts[Count.OPENABLE] for role in job.roles.values())


def _at_step(
    job: Job,
    reason: str,
    words: tuple[str, str],
    count: int,
    phases: frozenset[AttemptPhase | None],
) -> Waiting:
    wants_holding = reason == "WaitingForRole"
    there = (
        (name, replica)
        for name, replica in _all(job)
        if (phase := _phase(replica)) in phases
        and (phase is not AttemptPhase.REGISTERED or _is_holding(replica) is wants_holding)
    )
    found = list(islice(there, NAMED_MAX))
    shown = ", ".join(name for name, _ in found) + (", …" if count > len(found) else "")
    message = f"{_counted(count, words)} ({shown})"
    first = found[0][1].newest if found else None
    if first is not None and first.waiting_for:
        kind = "WaitingForPlacement"
        if first.waiting_for.startswith(IMAGE_WORD):
            kind = "WaitingForImage"
        return Waiting(kind, f"{message}: {first.waiting_for}", {"replicas": count})
    return Waiting(reason, message, {"replicas": count})


def _is_holding(replica: Replica) -> bool:
    return replica.newest is not None and replica.newest.is_holding


def _phase(replica: Replica) -> AttemptPhase | None:
    """Return the phase of the newest attempt of an active replica; None: it waits for a slot."""
    if replica.phase is ReplicaPhase.WAITING:
        return None
    if replica.phase is not ReplicaPhase.ACTIVE or replica.newest is None:
        return AttemptPhase.GONE
    return replica.newest.phase


def _counted(count: int, words: tuple[str, str]) -> str:
    return f"1 replica {words[0]}" if count == 1 else f"{count} replicas {words[1]}"


def _all(job: Job) -> Iterator[tuple[str, Replica]]:
    for role in job.roles.values():
        for replica in replicas_of(role):
            yield replica_name(role.name, replica.index), replica
