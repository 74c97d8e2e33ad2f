"""Replicas, and what settle decides of them: table 5 of docs/state-machines.md."""

from collections.abc import Callable, Iterable
from typing import assert_never

from msgspec.structs import replace

from primusd.job import attempt as attempts
from primusd.job import chunks
from primusd.job import events as ev
from primusd.job.attempt import Surroundings
from primusd.job.counts import rules_of
from primusd.job.gates import is_in_order, regroups
from primusd.job.ids import Span, replica_name
from primusd.job.job_tables import check_replica
from primusd.job.machine import Ignore
from primusd.job.model import (
    ATTEMPTS_KEPT,
    Attempt,
    Job,
    Replica,
    RoleState,
    find_replica,
)
from primusd.job.phases import AttemptPhase, JobPhase, ReplicaPhase
from primusd.job.rules import rule_of
from primusd.job.run_order import publish
from primusd.job.spec import RoleSpec

SLOTLESS = frozenset({ReplicaPhase.COMPLETED, ReplicaPhase.FAILED, ReplicaPhase.RETIRED})
"""Phases in which the demand may have given the slot back."""

SpannedEvent = ev.AttemptCompleted | ev.ReplicaRecalled | ev.ReplicaRetired | ev.ReplicaRevived


def apply(job: Job, event: ev.DecidedEvent, at_ms: int) -> Job | Ignore:
    """Return the job after what settle decided of its replicas.

    Raises:
        PhaseConflictError: A cell of table 4 or 5 is refused.
    """
    match event:
        case ev.GateOpened():
            return _gate_opened(job, event, at_ms)
        case ev.StopDecided():
            return _stop_decided(job, event, at_ms)
        case ev.AttemptBegun():
            return _attempt_begun(job, event, at_ms)
        case ev.RetryDecided():
            return _retry_decided(job, event)
        case ev.RetriesExhausted():
            return _moved(job, event, (Span(event.role, event.index, event.index),))
        case (
            ev.AttemptCompleted() | ev.ReplicaRecalled() | ev.ReplicaRetired() | ev.ReplicaRevived()
        ):
            return _moved(job, event, event.spans)
        case ev.RoleRestarted():
            return _role_restarted(job, event, at_ms)
        case _:
            assert_never(event)


def change_replicas(
    job: Job, spans: Iterable[Span], make: Callable[[RoleState, Replica], Replica]
) -> Job:
    """Return the job with every replica that the spans name made anew."""
    by_role: dict[str, list[Span]] = {}
    for span in spans:
        by_role.setdefault(span.role, []).append(span)
    roles = dict(job.roles)
    for name, ones in by_role.items():
        role = roles[name]

        def made(replica: Replica, role: RoleState = role) -> Replica:
            return make(role, replica)

        roles[name] = chunks.change(role, rules_of(job, role), ones, made)
    return replace(job, roles=roles)


def surroundings(
    job: Job, role: str, index: int, number: int, at_ms: int, *, has_moved: bool = False
) -> Surroundings:
    """Return what of the job an attempt is judged with."""
    return Surroundings(
        f"{replica_name(role, index)}/{number}",
        at_ms,
        job.spec.roles[role].ready is None,
        job.phase is JobPhase.STOPPING,
        has_moved,
        job.spec.roles[role].resources.memory_bytes,
    )


def with_newest(replica: Replica, attempt: Attempt) -> Replica:
    """Return the replica with its newest attempt replaced."""
    return replace(replica, attempts=(*replica.attempts[:-1], attempt))


def _stop_decided(job: Job, event: ev.StopDecided, at_ms: int) -> Job:
    def stopped(role: RoleState, replica: Replica) -> Replica:
        newest = replica.attempts[-1]
        around = surroundings(job, role.name, replica.index, newest.number, at_ms)
        grace_ms = event.grace_ms
        if grace_ms < 0:
            grace_ms = job.spec.roles[role.name].stop.grace_ms
        return with_newest(replica, attempts.stop(newest, event, around, grace_ms))

    return change_replicas(job, event.spans, stopped)


def _gate_opened(job: Job, event: ev.GateOpened, at_ms: int) -> Job:
    def opened(role: RoleState, replica: Replica) -> Replica:
        newest = replica.attempts[-1]
        around = surroundings(job, role.name, replica.index, newest.number, at_ms)
        return with_newest(replica, attempts.open_gate(newest, around))

    after = change_replicas(job, event.spans, opened)
    if job.phase is JobPhase.STARTING and is_in_order(job.spec):
        # Each role, and each step of one, has the whole time for its own start.
        after = replace(after, start_clock_ms=max(job.start_clock_ms, at_ms))
    return publish(open_roles(after, {span.role for span in event.spans}))


def open_roles(job: Job, names: Iterable[str]) -> Job:
    """Return the job with the gates of these roles open."""
    roles = dict(job.roles)
    for name in names:
        if not roles[name].gate_opened:
            roles[name] = replace(roles[name], gate_opened=True)
    return replace(job, roles=roles)


def _attempt_begun(job: Job, event: ev.AttemptBegun, at_ms: int) -> Job:
    def begun(role: RoleState, replica: Replica) -> Replica:
        check_replica("AttemptBegun", replica.phase, replica_name(role.name, replica.index))
        spec = job.spec.roles[role.name]
        number = replica.last_number + 1
        attempt = Attempt(
            number=number,
            generation=job.generation,
            phase=AttemptPhase.REQUESTED,
            node=replica.node,
            ports=_ports(spec, replica.first_port),
            requested_ms=at_ms,
            phase_since_ms=at_ms,
            memory_bytes=replica.memory_bytes,
            is_newcomer=role.gate_opened and regroups(job.spec, role.name),
        )
        return replace(
            replica,
            phase=ReplicaPhase.ACTIVE,
            attempts=(*_kept(replica.attempts), attempt),
            last_number=number,
            not_before_ms=0,
        )

    after = change_replicas(job, event.spans, begun)
    roles = dict(after.roles)
    for name in {span.role for span in event.spans}:
        roles[name] = replace(roles[name], begun_ms=at_ms)
    return replace(after, roles=roles)


def _ports(spec: RoleSpec, first_port: int) -> tuple[tuple[str, int], ...]:
    """Return the allotted ports by name; 0 where none were allotted."""
    if not first_port:
        return tuple((name, 0) for name in spec.ports)
    return tuple((name, first_port + offset) for offset, name in enumerate(spec.ports))


def _kept(old: tuple[Attempt, ...]) -> tuple[Attempt, ...]:
    """Return the attempts that stay in the record beside a new one: all that are not Gone do."""
    if len(old) < ATTEMPTS_KEPT:
        return old
    rest = old[-(ATTEMPTS_KEPT - 1) :]
    forgotten = old[: -(ATTEMPTS_KEPT - 1)]
    return (*(one for one in forgotten if one.phase is not AttemptPhase.GONE), *rest)


def _retry_decided(job: Job, event: ev.RetryDecided) -> Job:
    def delayed(role: RoleState, replica: Replica) -> Replica:
        check_replica("RetryDecided", replica.phase, replica_name(role.name, replica.index))
        after = replace(
            replica,
            phase=ReplicaPhase.DELAYED,
            not_before_ms=event.not_before_ms,
            failures=event.failures,
        )
        return _asking(_off_left_node(job, after), event.memory_bytes)

    after = change_replicas(job, (Span(event.role, event.index, event.index),), delayed)
    replica = find_replica(after, event.role, event.index)
    if event.memory_bytes or (replica is not None and not replica.slot_generation):
        after = replace(after, slots_lost=after.slots_lost + 1)
    return delay_start(after, event.not_before_ms)


def _off_left_node(job: Job, replica: Replica) -> Replica:
    """Return the replica without its slot where nothing of the job is to begin anew."""
    if not replica.slot_generation or not (
        is_left(job, replica.node) or _is_excluded(job, replica)
    ):
        return replica
    return replace(replica, node="", first_port=0, slot_generation=0)


def _is_excluded(job: Job, replica: Replica) -> bool:
    """Return whether a rule that decided its end keeps the job off its node."""
    newest = replica.newest
    rule = rule_of(job.spec, newest.outcome) if newest is not None else None
    is_there = newest is not None and newest.node == replica.node
    return is_there and rule is not None and rule.exclude_node_ms > 0


def is_left(job: Job, node: str) -> bool:
    """Return whether a node is being emptied, or was given up for the job."""
    return node in job.draining_nodes or node in job.given_up


def _asking(replica: Replica, memory_bytes: int) -> Replica:
    """Return the replica that asks for more memory, and so for its slot anew; 0 for the same."""
    if not memory_bytes:
        return replica
    return replace(replica, memory_asked_bytes=memory_bytes, slot_generation=0)


def delay_start(job: Job, not_before_ms: int) -> Job:
    """Return the job whose start clock counts from the end of a delay, not from before."""
    if job.phase is not JobPhase.STARTING or job.start_clock_ms >= not_before_ms:
        return job
    return replace(job, start_clock_ms=not_before_ms)


_PHASES = {
    "AttemptCompleted": ReplicaPhase.COMPLETED,
    "RetriesExhausted": ReplicaPhase.FAILED,
    "ReplicaRecalled": ReplicaPhase.WAITING,
    "ReplicaRetired": ReplicaPhase.RETIRED,
    "ReplicaRevived": ReplicaPhase.WAITING,
}


def _moved(
    job: Job, event: SpannedEvent | ev.RetriesExhausted, spans: tuple[Span, ...]
) -> Job | Ignore:
    """Return the job with replicas in another phase; Ignore when the table ignores every one."""
    name = type(event).__name__
    target = _PHASES[name]
    ignored: list[Ignore] = []
    count = lost = 0

    def moved(role: RoleState, replica: Replica) -> Replica:
        nonlocal count, lost
        count += 1
        cell = check_replica(name, replica.phase, replica_name(role.name, replica.index))
        if isinstance(cell, Ignore):
            ignored.append(cell)
            return replica
        after = _in_phase(role, replica, target)
        if target is ReplicaPhase.WAITING:
            after = _off_left_node(job, after)
        lost += after.slot_generation != replica.slot_generation
        return after

    after = change_replicas(job, spans, moved)
    if lost:
        after = replace(after, slots_lost=after.slots_lost + lost)
    return ignored[0] if ignored and len(ignored) == count else after


def _in_phase(role: RoleState, replica: Replica, target: ReplicaPhase) -> Replica:
    """Return the replica in a phase; one that runs again needs a slot that is still its own."""
    is_back = target is ReplicaPhase.WAITING and replica.phase in SLOTLESS
    has_slot = not is_back or chunks.is_named(role, replica.index)
    return replace(
        replica,
        phase=target,
        is_recalled=False,
        not_before_ms=0,
        slot_generation=replica.slot_generation if has_slot else 0,
    )


def _role_restarted(job: Job, event: ev.RoleRestarted, at_ms: int) -> Job:
    generation = job.generation + 1
    after = replace(
        job,
        generation=generation,
        groups_lost=tuple(one for one in job.groups_lost if one.role != event.role),
    )
    after = restart_role(
        after, event.role, event.not_before_ms, event.failures, memory_bytes=event.memory_bytes
    )
    return delay_start(after, event.not_before_ms)


def restart_role(
    job: Job, name: str, not_before_ms: int, failures: int, *, memory_bytes: int = 0
) -> Job:
    """Return the job whose role is in force only from this generation on: its gate is closed.

    Args:
        job: In its new generation.
        name: Of the role.
        not_before_ms: Nothing of it begins before.
        failures: Consecutive ones of the role.
        memory_bytes: What each of its replicas asks for from now on; 0 the same as before.
    """
    if memory_bytes:
        everyone = (Span(name, 0, job.roles[name].size - 1),)
        job = change_replicas(job, everyone, lambda _, one: _asking(one, memory_bytes))
    role = replace(
        job.roles[name],
        generation=job.generation,
        gate_opened=False,
        has_shrunk=False,
        is_growing=False,
        not_before_ms=not_before_ms,
        failures=failures,
    )
    role = chunks.recount(role, rules_of(job, role))
    return replace(job, roles={**job.roles, name: role})


def newest_of(job: Job, role: str, index: int) -> Attempt | None:
    """Return the newest attempt of a replica, None when there is none."""
    replica = find_replica(job, role, index)
    return replica.newest if replica is not None else None
