"""When the trainers of a role may start: gangs, order, and what one role waits for of another.

Places come first, for all roles at once; processes start second, as far as the gates here let them.
So a gang and an order never wait for each other.
"""

from collections.abc import Iterator, Mapping

from primusd.job import chunks
from primusd.job.counts import WANTING, Count
from primusd.job.ids import replica_name
from primusd.job.model import Job, Replica, RoleState, replicas_of
from primusd.job.phases import JobPhase
from primusd.job.spec import JobSpec, RoleSpec, gang_of, waits_of

ELASTIC_WAIT_MS = 30_000
"""An elastic role that has its minimum starts once nothing was placed for so long."""
ELASTIC_WAIT_MAX_MS = 120_000
"""However often something is placed, it starts after so long."""
NAMED_MAX = 3


def gang_roles(spec: JobSpec) -> tuple[str, ...]:
    """Return the roles whose gate opens for all of them together."""
    return gang_of(spec) if spec.policy == "gang" else ()


def starting_roles(spec: JobSpec) -> tuple[str, ...]:
    """Return the roles that a start waits for: of a gang its own, else all."""
    return gang_roles(spec) or tuple(spec.roles)


def is_in_order(spec: JobSpec) -> bool:
    """Return whether some role waits for another."""
    return spec.policy == "ordered" or any(role.depends_on for role in spec.roles.values())


def minimum_of(job: Job, role: RoleState) -> int:
    """Return how many replicas of a role must be present.

    A role that was made smaller keeps the smaller minimum when it grows again, so that a live job
    does not fall below it by a wish for more. Of an elastic role of which nobody lives one more is
    needed than are done, when somebody is left who has begun before.
    """
    minimum = min(role.minimum or job.spec.roles[role.name].minimum, role.size)
    done = role.counts[Count.FOR_GOOD]
    if minimum <= done < role.size and not role.counts[Count.LIVING] and _is_half_left(role):
        return done + 1
    return minimum


def _is_half_left(role: RoleState) -> bool:
    """Return whether some replica has begun and is not done."""
    return any(
        one.last_number and one.phase in WANTING and one.index < role.size
        for one in replicas_of(role)
        if not one.marks & 1 << Count.FOR_GOOD
    )


def counted(spec: RoleSpec, role: RoleState) -> int:
    """Return how many replicas count for a role's success: of an elastic one those with a place.

    Who waits for a place while the role runs, or came too late to join its members, is not missed.
    """
    if not is_elastic(spec, role.size) or not role.gate_opened:
        return role.size
    counts = role.counts
    idle = 0 if role.begin_ms else counts[Count.WAITING]
    if spec.restart.unit != "replica":
        idle += counts[Count.REQUESTED] + counts[Count.LAUNCHED] + counts[Count.REGISTERED]
    return max(min(role.minimum or spec.minimum, role.size), role.size - idle)


def needed(spec: RoleSpec, role: RoleState) -> int:
    """Return how many completions a role's `success` asks for."""
    count = counted(spec, role)
    match spec.success.kind:
        case "any":
            return min(1, count)
        case "percent":
            return min(count, max(1, -(-count * spec.success.percent // 100)))
        case _:
            return count


def takes_nobody_new(spec: RoleSpec, role: RoleState) -> bool:
    """Return whether an elastic role grows no more: one of its replicas is done already."""
    return is_elastic(spec, role.size) and role.counts[Count.COMPLETED] > 0


def start_count(job: Job, role: RoleState) -> int:
    """Return how many of a role must hold before the first of it starts, gangs aside.

    `replicas: 3` asks for places for three, and each starts as it comes; a minimum that the file
    gives, or a step, lets none start before so many are there.
    """
    is_together = has_minimum(job.spec.roles[role.name]) or job.spec.step
    return minimum_of(job, role) if is_together else min(1, role.size)


def has_minimum(spec: RoleSpec) -> bool:
    """Return whether the file says how many of a role have to be there at the least."""
    return spec.has_minimum or is_elastic(spec)


def is_elastic(spec: RoleSpec, size: int = 0) -> bool:
    """Return whether a role may run with fewer replicas than it would have.

    Args:
        spec: Of the role.
        size: In force; one above all that its file asks for is a wish, and its minimum stays.
    """
    return spec.minimum < max(spec.replicas, size)


def assembled_ms(job: Job, role: RoleState) -> int | None:
    """Return from when on a role is enough of a gang as it is; None when it is not."""
    there = role.counts[Count.HOLDING] + role.counts[Count.FOR_GOOD]
    if there >= role.size:
        return 0
    if there < minimum_of(job, role):
        return None
    # Who holds may wait for others no longer than `readyTimeout`: it starts well before.
    patience_ms = job.spec.ready_timeout_ms // 2
    quiet_ms = max(role.placed_ms, role.begun_ms) + min(ELASTIC_WAIT_MS, patience_ms)
    return min(quiet_ms, job.start_clock_ms + min(ELASTIC_WAIT_MAX_MS, patience_ms))


def is_assembled(job: Job, at_ms: int) -> bool:
    """Return whether the whole gang is there: who is to run holds, or is past it."""
    times = [assembled_ms(job, job.roles[name]) for name in gang_roles(job.spec)]
    return all(one is not None and one <= at_ms for one in times)


def is_there(job: Job, role: RoleState, at_ms: int) -> bool:
    """Return whether enough of a role holds for its gate to open, whatever it waits for."""
    if role.name in gang_roles(job.spec):
        return is_assembled(job, at_ms)
    if needs_all(job.spec):
        return all(_has_minimum(job, one) for one in job.roles.values())
    there = role.counts[Count.HOLDING] + role.counts[Count.FOR_GOOD]
    return there >= start_count(job, role)


def needs_all(spec: JobSpec) -> bool:
    """Return whether trainers are told the addresses of all roles before the first one starts."""
    return spec.policy == "ordered" and spec.framework != "none"


def _has_minimum(job: Job, role: RoleState) -> bool:
    there = role.counts[Count.HOLDING] + role.counts[Count.FOR_GOOD]
    return there >= minimum_of(job, role)


def is_far_enough(job: Job, name: str, gate: str) -> bool:
    """Return whether a role has come as far as another one waits for."""
    role = job.roles[name]
    counts = role.counts
    match gate:
        case "completed":
            back = counts[Count.BACK] and sum(
                one.phase == "Completed" for one in chunks.find(role, Count.BACK)
            )
            return counts[Count.COMPLETED] - back >= needed(job.spec.roles[name], role)
        case "ready":
            there = counts[Count.READY]
        case _:
            there = counts[Count.RUNNING]
    return there + counts[Count.FOR_GOOD] >= minimum_of(job, role)


def held_up(job: Job, name: str) -> Mapping[str, str]:
    """Return what a role still waits for: roles, and how far each has to come."""
    waits = waits_of(job.spec, name)
    return {one: gate for one, gate in waits.items() if not is_far_enough(job, one, gate)}


def is_begun(job: Job, role: RoleState) -> bool:
    """Return whether enough of a role was told to start, or needs not run any more."""
    opened = role.counts[Count.HOLDING] - role.counts[Count.OPENABLE]
    return opened + role.counts[Count.FOR_GOOD] >= minimum_of(job, role)


def is_reached(job: Job, at_ms: int) -> bool:
    """Return whether the start of the job has come about."""
    gang = gang_roles(job.spec)
    if gang:
        return is_assembled(job, at_ms) and not any(
            held_up(job, name) for name in gang if not job.roles[name].gate_opened
        )
    if job.spec.policy == "ordered":
        return all(is_begun(job, role) for role in job.roles.values())
    return all(
        role.counts[Count.RUNNING] + role.counts[Count.FOR_GOOD] >= minimum_of(job, role)
        for role in job.roles.values()
    )


def openable(job: Job, role: RoleState, at_ms: int) -> Iterator[Replica]:
    """Yield the replicas of a role whose trainers may start now, the lowest index first."""
    if not role.counts[Count.OPENABLE]:
        return
    if not role.gate_opened and (not is_there(job, role, at_ms) or held_up(job, role.name)):
        return
    if not job.spec.step:
        yield from chunks.find(role, Count.OPENABLE)
    elif is_there(job, role, at_ms):
        room = max(0, job.spec.step - _on_the_way(job.spec, role))
        for _, replica in zip(range(room), chunks.find(role, Count.OPENABLE), strict=False):
            yield replica


def _on_the_way(spec: JobSpec, role: RoleState) -> int:
    """Return how many of a role were told to start and have not come as far as the next asks."""
    counts = role.counts
    match spec.gate:
        case "started":
            return counts[Count.STARTING]
        case "ready":
            return counts[Count.STARTING] + counts[Count.RUNNING] - counts[Count.READY]
        case _:
            return counts[Count.STARTING] + counts[Count.RUNNING]


def stands_still(job: Job) -> bool:
    """Return whether the start clock stands still: all that is missing waits for a completion."""
    spec = job.spec
    if not _waits_for_completion(spec) or job.phase is not JobPhase.STARTING:
        return False
    states = [_state(job, name) for name in starting_roles(spec)]
    return "waits" in states and "lacks" not in states


def _waits_for_completion(spec: JobSpec) -> bool:
    if spec.step and spec.gate == "completed":
        return True
    return any("completed" in waits_of(spec, name).values() for name in spec.roles)


def _state(job: Job, name: str) -> str:
    """Return `runs`, `waits` (for a completion and nothing else) or `lacks` (something else)."""
    role = job.roles[name]
    if job.spec.step and job.spec.gate == "completed" and role.gate_opened:
        is_next_there = bool(role.counts[Count.OPENABLE] and _on_the_way(job.spec, role))
        if is_next_there and is_there(job, role, job.start_clock_ms):
            return "waits"
    if is_begun(job, role):
        return "runs"
    if role.gate_opened:
        return "runs" if role.counts[Count.PRESENT] >= minimum_of(job, role) else "lacks"
    up = held_up(job, name)
    if not up or not _has_its_executors(job, role):
        return "lacks"
    for other, gate in up.items():
        state = _state(job, other)
        if state == "lacks" or (state == "runs" and gate != "completed"):
            return "lacks"
    return "waits"


def _has_its_executors(job: Job, role: RoleState) -> bool:
    """Return whether a role could start if nothing held it up; time is left out of account."""
    gang = gang_roles(job.spec)
    if role.name in gang:
        return all(assembled_ms(job, job.roles[name]) is not None for name in gang)
    return is_there(job, role, 0)


def regroups(spec: JobSpec, name: str) -> bool:
    """Return whether the members of a role come and go only together, in a new generation.

    Those that restart together do, unless they start one by one, or each as it comes.
    """
    role = spec.roles[name]
    if role.restart.unit == "replica" or spec.step:
        return False
    return name in gang_roles(spec) or needs_all(spec) or has_minimum(role)


def opening_words(job: Job, role: RoleState) -> str:
    """Return why the gate of a role opens: what a person reads in the timeline."""
    if role.gate_opened:
        return f"those of {role.name} before {_CAME_ALL[job.spec.gate]}" if job.spec.step else ""
    waits = waits_of(job.spec, role.name)
    came = " and ".join(f"{name} {_CAME[gate]}" for name, gate in waits.items())
    if role.name in gang_roles(job.spec):
        return came or f"the gang of {role.name} is there"
    if came:
        return came
    count = role.counts[Count.HOLDING]
    return f"{count} of {role.size} {role.name} {'is' if count == 1 else 'are'} there"


_CAME_ALL = {"started": "have started", "ready": "are ready", "completed": "have completed"}
_CAME = {"started": "has started", "ready": "is ready", "completed": "has completed"}
_TO_COME = {"started": "to start", "ready": "to be ready", "completed": "to complete"}


def missing_words(job: Job) -> str:
    """Return what a start lacks: roles that wait for others, and replicas that are not there."""
    parts: list[str] = []
    for name in starting_roles(job.spec):
        role = job.roles[name]
        up = () if role.gate_opened else held_up_words(job, name)
        if up:
            parts += up
        elif role.counts[Count.HOLDING] + role.counts[Count.FOR_GOOD] < minimum_of(job, role):
            parts.append(f"{_absent(role)} not there")
    return "; ".join(parts)


def held_up_words(job: Job, name: str) -> tuple[str, ...]:
    """Return what a role still waits for, one sentence for each role."""
    up = held_up(job, name)
    return tuple(f"{name} waits for {one} {_TO_COME[gate]}" for one, gate in up.items())


def _absent(role: RoleState) -> str:
    """Return which replicas neither hold nor are done, with their verb."""
    here = 1 << Count.HOLDING | 1 << Count.FOR_GOOD
    names = [
        replica_name(role.name, one.index)
        for one in replicas_of(role)
        if one.index < role.size and not one.marks & here
    ]
    shown = ", ".join(names[:NAMED_MAX]) + (", …" if names[NAMED_MAX:] else "")
    return f"{shown} {'is' if len(names) == 1 else 'are'}"
