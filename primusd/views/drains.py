"""How far the emptying of a node is: what is left there, and what each of it waits for."""

from collections.abc import Iterator

from msgspec import UNSET, UnsetType

from primusd.admission.model import Node
from primusd.admission.shortage import why_no_place
from primusd.core import World
from primusd.job import draining
from primusd.job.ids import replica_name
from primusd.job.model import Attempt, Job, Replica, RoleState, replicas_of
from primusd.job.phases import AttemptPhase
from primusd.job.scheduling import SCHEDULED_PHASES
from primusd.views import cluster_documents as documents
from primusd.views.times import rfc3339

OVER = frozenset({AttemptPhase.ENDED, AttemptPhase.GONE})


def drain_of(node: Node, world: World) -> documents.NodeDrain | UnsetType:
    """Return how far a node is emptied; UNSET: nobody asked for it."""
    if not node.draining_ms:
        return UNSET
    left = tuple(_left(node, world))
    return documents.NodeDrain(
        since=rfc3339(node.draining_ms), now=node.drains_now, done=not left, left=left
    )


def job_name(world: World, uid: str) -> str:
    """Return what people call a job: its name, with its namespace where that is no default."""
    job = world.jobs.get(uid)
    if job is None:
        return uid
    namespace = job.spec.namespace
    return job.spec.name if namespace == "default" else f"{namespace}/{job.spec.name}"


def _left(node: Node, world: World) -> Iterator[documents.DrainLeft]:
    for uid, demand in world.admission.demands.items():
        places = (*demand.held.values(), *demand.old_slots.values())
        job = world.jobs.get(uid)
        if job is None or all(slot.node != node.name for slot in places):
            continue
        waiting = frozenset(draining.waiting_names(job))
        for role, replica in _on(job, node.name):
            attempt = replica.attempts[-1]
            name = replica_name(role.name, replica.index)
            state, message = _state(node, world, job, attempt, is_waiting=name in waiting)
            yield documents.DrainLeft(
                namespace=job.spec.namespace,
                job=job.spec.name,
                replica=name,
                attempt=attempt.number,
                state=state,
                message=message,
            )


def _on(job: Job, node: str) -> Iterator[tuple[RoleState, Replica]]:
    for role in job.roles.values():
        for replica in replicas_of(role):
            newest = replica.newest
            if newest is not None and newest.node == node and newest.phase not in OVER:
                yield role, replica


def _state(
    node: Node, world: World, job: Job, attempt: Attempt, *, is_waiting: bool
) -> tuple[str, str]:
    if attempt.phase is AttemptPhase.STOPPING:
        return "moving", "is being stopped"
    if job.phase not in SCHEDULED_PHASES:
        return "ending", f"ends with its job, which is {job.phase}"
    if not is_waiting:
        return "queued", "moves after another of its role"
    demand = world.admission.demands[job.uid]
    short = why_no_place(world.admission, demand, at_ms=node.draining_ms)
    return "waiting", short.text if short is not None else "waits for a place elsewhere"
