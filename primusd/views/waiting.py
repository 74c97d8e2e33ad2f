"""Why a job waits: one reason of a closed list, with the numbers that decide it.

Whether slots are free is asked of the functions that grant them (`job/fitting.py`), never worked
out a second time.
"""

from collections.abc import Iterator, Mapping

from msgspec import Struct

from primusd.core import World
from primusd.job import fitting
from primusd.job.admission_model import Admission, Demand
from primusd.job.ids import replica_name
from primusd.job.model import Job, Replica, replicas_of
from primusd.job.outcome import how_it_ended
from primusd.job.phases import AttemptPhase, DemandPhase, JobPhase, NodePhase, ReplicaPhase
from primusd.units import format_bytes
from primusd.views.times import said_duration

NAMED_MAX = 3


class Waiting(Struct, frozen=True):
    """A reason of the closed list, its sentence, and its numbers."""

    reason: str
    message: str
    numbers: Mapping[str, int] = {}


def why(job: Job, world: World, *, at_ms: int) -> Waiting | None:
    """Return what the job waits for, None when it waits for nothing that it names."""
    match job.phase:
        case JobPhase.QUEUED:
            return _queued(job, world.admission, at_ms=at_ms)
        case JobPhase.STARTING:
            return (
                _delayed(job, at_ms=at_ms)
                or _short_of_slots(job, world.admission, at_ms=at_ms)
                or _on_the_way(job)
            )
        case JobPhase.RUNNING:
            return (
                _delayed(job, at_ms=at_ms)
                or _paused(job, world)
                or _short_of_slots(job, world.admission, at_ms=at_ms)
            )
        case _:
            return None


def _queued(job: Job, admission: Admission, *, at_ms: int) -> Waiting | None:
    if job.not_before_ms > at_ms:
        left_ms = job.not_before_ms - at_ms
        return Waiting(
            "StartBackoff",
            f"starts again in {said_duration(left_ms)}: "
            f"{job.start_timeouts} starts did not come to their end",
            {"inMs": left_ms, "startTimeouts": job.start_timeouts},
        )
    demand = admission.demands.get(job.uid)
    if demand is None:
        return Waiting("WaitingForQueue", "has just come", {})
    return why_demand_waits(demand, admission, at_ms=at_ms)


def _short_of_slots(job: Job, admission: Admission, *, at_ms: int) -> Waiting | None:
    demand = admission.demands.get(job.uid)
    if demand is None or demand.phase is not DemandPhase.WAITING:
        return None
    return why_demand_waits(demand, admission, at_ms=at_ms)


def why_demand_waits(demand: Demand, admission: Admission, *, at_ms: int) -> Waiting | None:
    """Return why a demand has not got what it asks for, None when it has."""
    if fitting.is_satisfied(demand):
        return None
    ready = tuple(one for one in admission.nodes.values() if one.phase is NodePhase.READY)
    if not ready:
        return Waiting("WaitingForNode", _no_node(admission), {"nodesReady": 0})
    never = fitting.unfit_sentence(admission, demand.roles.values())
    if never:
        return Waiting("WaitingForNode", never, {"nodesReady": len(ready)})
    ahead = len(queue_ahead(demand, admission))
    if fitting.fit(admission, demand, at_ms=at_ms) is not None:
        words = "1 job is" if ahead == 1 else f"{ahead} jobs are"
        return Waiting("WaitingForQueue", f"{words} ahead in {demand.queue}", {"jobsAhead": ahead})
    return _slots(demand, admission, ahead)


def queue_ahead(demand: Demand, admission: Admission) -> tuple[Demand, ...]:
    """Return the demands that wait and come before this one: higher priority, then older."""
    rank = (-demand.priority, demand.since_ms, demand.job)
    return tuple(
        other
        for other in admission.demands.values()
        if other.phase is DemandPhase.WAITING
        and other.job != demand.job
        and (-other.priority, other.since_ms, other.job) < rank
    )


def _no_node(admission: Admission) -> str:
    if not admission.nodes:
        return "no node is known yet"
    phases = sorted({node.phase.value.lower() for node in admission.nodes.values()})
    count = len(admission.nodes)
    return f"none of {count} nodes is ready ({', '.join(phases)})"


def _slots(demand: Demand, admission: Admission, ahead: int) -> Waiting:
    missing, free = _missing(demand), _free(admission)
    numbers: dict[str, int] = {}
    parts = []
    for key, word, needed, there, show in (
        ("gpus", "GPUs", missing.gpu, free.gpu, str),
        ("cpuMilli", "CPUs", missing.cpu_milli, free.cpu_milli, _cores),
        ("memoryBytes", "of memory", missing.memory_bytes, free.memory_bytes, format_bytes),
        ("ports", "ports", missing.port_count, free.port_count, str),
    ):
        if needed:
            numbers |= {f"{key}Needed": needed, f"{key}Free": max(0, there)}
        if needed > there:
            amount = f"{show(needed)} {word}".removesuffix("s" if needed == 1 else "\0")
            parts.append(f"{amount}, {show(max(0, there))} free")
    at_once = " at once" if demand.is_gang else ""
    message = f"needs{at_once} " + (
        "; ".join(parts) or "more room on one node than any of them has free"
    )
    if ahead:
        message += f"; {ahead} {'job is' if ahead == 1 else 'jobs are'} ahead"
    return Waiting("WaitingForSlots", message, numbers | {"jobsAhead": ahead})


def _missing(demand: Demand) -> fitting.Amount:
    """Return what the replicas without a slot take together."""
    missing = fitting.Amount()
    for want in demand.roles.values():
        absent = sum((want.role, index) not in demand.held for index in fitting.indices(want))
        missing = missing.plus(fitting.amount_of(want), absent)
    return missing


def _free(admission: Admission) -> fitting.Amount:
    """Return what the ready nodes have free together."""
    used = fitting.used_by_node(admission.demands.values(), admission)
    free = fitting.Amount()
    for node in admission.nodes.values():
        if node.phase is NodePhase.READY:
            ports = node.last_port - node.first_port + 1
            free = free.plus(fitting.Amount(node.cpu_milli, node.memory_bytes, node.gpu, ports))
            free = free.plus(used.get(node.name, fitting.Amount()), -1)
    return free


def _cores(cpu_milli: int) -> str:
    return f"{cpu_milli / 1000:g}"


def _delayed(job: Job, *, at_ms: int) -> Waiting | None:
    delayed = [
        (max(replica.not_before_ms, role.not_before_ms), role.name, replica)
        for role in job.roles.values()
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


def _on_the_way(job: Job) -> Waiting | None:
    """Return the step at which a start stands: the earliest one that some replica is still at."""
    steps: dict[str, list[str]] = {}
    for name, replica in _all(job):
        step = _step(replica)
        if step:
            steps.setdefault(step, []).append(name)
    for reason, words in (
        ("WaitingForPlacement", ("is not placed yet", "are not placed yet")),
        ("WaitingForRegistration", ("has not registered yet", "have not registered yet")),
        ("WaitingForReady", ("fetches its files", "fetch their files")),
        ("WaitingForRole", ("waits for the others of its gang", "wait for the rest of their gang")),
    ):
        names = steps.get(reason, [])
        if names:
            shown = ", ".join(names[:NAMED_MAX]) + (", …" if len(names) > NAMED_MAX else "")
            message = f"{_counted(len(names), words)} ({shown})"
            return Waiting(reason, message, {"replicas": len(names)})
    return None


def _counted(count: int, words: tuple[str, str]) -> str:
    return f"1 replica {words[0]}" if count == 1 else f"{count} replicas {words[1]}"


def _all(job: Job) -> Iterator[tuple[str, Replica]]:
    for role in job.roles.values():
        for replica in replicas_of(role):
            yield replica_name(role.name, replica.index), replica


def _step(replica: Replica) -> str:
    if replica.phase is ReplicaPhase.WAITING:
        return "WaitingForPlacement"
    newest = replica.newest
    if replica.phase is not ReplicaPhase.ACTIVE or newest is None:
        return ""
    match newest.phase:
        case AttemptPhase.REQUESTED:
            return "WaitingForPlacement"
        case AttemptPhase.LAUNCHED:
            return "WaitingForPlacement" if newest.waiting_for else "WaitingForRegistration"
        case AttemptPhase.REGISTERED:
            return "WaitingForRole" if newest.is_holding else "WaitingForReady"
        case _:
            return ""
