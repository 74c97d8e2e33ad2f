"""Moving replicas off a node that is being emptied, and off one that does not answer.

A replica that is to move keeps its slot, and runs on, until admission has another one for it; then
its attempt is stopped with `drained` and the next one begins there. Of a role that restarts replica
by replica one moves at a time; what restarts whole moves whole, and restarts once. Such ends are
charged to no budget: how many move at a time is the budget of a drain.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from primusd.job import events as ev
from primusd.job.counts import IDLE, LIVING, Count, not_gone_of
from primusd.job.failover import unit_of
from primusd.job.ids import AttemptId, Span, replica_name, spans
from primusd.job.machine import At
from primusd.job.model import Job, Replica, RoleState, find_replica, replicas_of
from primusd.job.phases import AttemptPhase, Budget, JobPhase, ReplicaPhase, StopReason
from primusd.job.replica import change_replicas
from primusd.job.scheduling import OWN_GRACE, SCHEDULED_PHASES

ARRIVED = frozenset({ReplicaPhase.COMPLETED, ReplicaPhase.FAILED, ReplicaPhase.RETIRED})

# What comes.


def node_draining(job: Job, event: ev.NodeDraining, at: At) -> Job:
    """Return the job that moves off a node from now on, or does no more."""
    nodes = {name: is_now for name, is_now in job.draining_nodes.items() if name != event.node}
    if event.is_over:
        return replace(job, draining_nodes=nodes)
    nodes[event.node] = event.is_now
    return _without_idle_slots(replace(job, draining_nodes=nodes), event.node)


def slots_stranded(job: Job, event: ev.SlotsStranded, at: At) -> Job:
    """Return the job that begins nothing anew on a node, and gives up what had not begun there."""
    lost = tuple(
        AttemptId(job.uid, role.name, replica.index, replica.last_number)
        for role, replica in _living(job)
        if replica.attempts[-1].node == event.node and not replica.attempts[-1].registered_ms
    )
    given_up = tuple(sorted({*job.given_up, event.node}))
    return _without_idle_slots(replace(job, stranded=lost, given_up=given_up), event.node)


def admitted(job: Job, event: ev.JobAdmitted) -> Job:
    """Return the job that may begin on the nodes again that it has new slots on."""
    if not job.given_up:
        return job
    again = {place.node for place in event.places}
    return replace(job, given_up=tuple(one for one in job.given_up if one not in again))


def settled(job: Job) -> Job:
    """Return the job without a memory of nodes: it holds nothing any more."""
    return replace(job, draining_nodes={}, moving=(), stranded=(), given_up=())


def moves_decided(job: Job, event: ev.MovesDecided, at: At) -> Job:
    """Return the job with these replicas on their way."""
    return replace(job, moving=event.spans)


def _without_idle_slots(job: Job, node: str) -> Job:
    """Return the job whose replicas that run nowhere have no slot on a node."""
    idle = [
        (role.name, replica.index)
        for role in job.roles.values()
        for replica in replicas_of(role)
        if replica.node == node and replica.phase in IDLE and not not_gone_of(replica)
    ]
    if not idle:
        return job

    def without(_role: RoleState, replica: Replica) -> Replica:
        return replace(replica, node="", first_port=0, slot_generation=0)

    return replace(
        change_replicas(job, spans(idle), without), slots_lost=job.slots_lost + len(idle)
    )


# What follows.


def settle(job: Job, at_ms: int) -> ev.JobEvent | None:
    """Return who stops because of a node, what restarts whole, and who moves next."""
    if job.phase not in SCHEDULED_PHASES:
        return None
    if job.stranded:
        found = _stop_stranded(job)
        if found is not None:
            return found
    if not job.draining_nodes and not job.moving:
        return None
    leaving = [(role, replica) for role, replica in _living(job) if _leaves(job, replica)]
    if leaving:
        return _leave(job, leaving, at_ms) or _decide_moves(job)
    return _decide_moves(job)


def _living(job: Job) -> Iterator[tuple[RoleState, Replica]]:
    for role in job.roles.values():
        if role.counts[Count.LIVING]:
            for replica in replicas_of(role):
                if replica.attempts and replica.attempts[-1].phase in LIVING:
                    yield role, replica


def _stop_stranded(job: Job) -> ev.StopDecided | None:
    named = set(job.stranded)
    lost = [
        (role.name, replica.index)
        for role, replica in _living(job)
        if AttemptId(job.uid, role.name, replica.index, replica.last_number) in named
        and not replica.attempts[-1].registered_ms
    ]
    text = "its node was given up before its executor said hello"
    return ev.StopDecided(spans(lost), StopReason.NODE_GIVEN_UP, text, OWN_GRACE) if lost else None


def _leaves(job: Job, replica: Replica) -> bool:
    """Return whether an attempt ends because of a drain: it need not wait, or has a place now."""
    node = replica.attempts[-1].node
    is_now = job.draining_nodes.get(node)
    if is_now is None:
        return False
    return is_now or bool(replica.node and replica.node != node)


def _leave(
    job: Job, leaving: list[tuple[RoleState, Replica]], at_ms: int
) -> ev.StopDecided | ev.RoleRestarted | ev.JobRestarted | None:
    """Return the restart of what restarts whole, else the stop of those that leave."""
    going: list[tuple[str, int]] = []
    for role, replica in leaving:
        unit = unit_of(job, role)
        attempt = replica.attempts[-1]
        if unit == "replica" or attempt.generation < role.generation:
            going.append((role.name, replica.index))
        elif not _waits_for_others(job, role, unit):
            cause = AttemptId(job.uid, role.name, replica.index, attempt.number)
            if unit == "role":
                return ev.RoleRestarted(role.name, cause, at_ms, Budget.NONE, role.failures)
            return ev.JobRestarted(cause, at_ms, Budget.NONE, role.failures)
    if not going:
        return None
    nodes = sorted({replica.attempts[-1].node for _, replica in leaving})
    text = f"node {', '.join(nodes)} is being emptied"
    return ev.StopDecided(spans(going), StopReason.DRAINED, text, OWN_GRACE)


def _waits_for_others(job: Job, role: RoleState, unit: str) -> bool:
    """Return whether others of what restarts whole have no place elsewhere yet."""
    roles = job.roles.values() if unit == "job" else (role,)
    return any(
        _sits(job, replica) and not job.draining_nodes[replica.node]
        for one in roles
        for replica in replicas_of(one)
    )


def _sits(job: Job, replica: Replica) -> bool:
    """Return whether a replica runs on a node that is being emptied, and has its slot there."""
    newest = replica.newest
    return (
        replica.node in job.draining_nodes
        and newest is not None
        and newest.phase in LIVING
        and newest.node == replica.node
    )


def _decide_moves(job: Job) -> ev.MovesDecided | None:
    found = spans((role.name, index) for role in job.roles.values() for index in _movers(job, role))
    return ev.MovesDecided(found) if found != job.moving else None


def _movers(job: Job, role: RoleState) -> Iterator[int]:
    """Yield the replicas of a role that are on their way, and those that set out now."""
    under_way = {
        index
        for span in job.moving
        if span.role == role.name
        for index in range(span.low, span.high + 1)
        if not _has_arrived(job, role, index)
    }
    yield from under_way
    sitting = (
        replica.index
        for replica in replicas_of(role)
        if _sits(job, replica)
        and not job.draining_nodes[replica.node]
        and replica.index not in under_way
    )
    if unit_of(job, role) != "replica":
        yield from sitting
    elif not under_way:
        yield from list(sitting)[:1]


def _has_arrived(job: Job, role: RoleState, index: int) -> bool:
    replica = find_replica(job, role.name, index)
    if replica is None or index >= role.size or replica.phase in ARRIVED:
        return True
    newest = replica.newest
    return (
        newest is not None
        and newest.phase is AttemptPhase.RUNNING
        and newest.is_ready
        and newest.node not in job.draining_nodes
    )


def asked(job: Job) -> tuple[Span, ...]:
    """Return the replicas that are to get a slot elsewhere: those on their way that still sit."""
    if not job.moving:
        return ()
    return spans(
        (span.role, index)
        for span in job.moving
        for index in range(span.low, span.high + 1)
        if (replica := find_replica(job, span.role, index)) is not None and _sits(job, replica)
    )


def waiting_names(job: Job) -> tuple[str, ...]:
    """Return the names of the replicas that wait for a place elsewhere."""
    return tuple(
        replica_name(span.role, index)
        for span in asked(job)
        for index in range(span.low, span.high + 1)
    )


def is_left_alone(job: Job) -> bool:
    """Return whether a drain waits for the job to end by itself."""
    return job.phase in (JobPhase.DRAINING, JobPhase.STOPPING)
