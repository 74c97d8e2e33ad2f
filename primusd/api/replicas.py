"""Replicas and events of a job over HTTP; events of all jobs too."""

from collections.abc import Iterable, Iterator

from aiohttp import web
from msgspec import UNSET, Struct

from primusd.api.asking import (
    LIMIT_DEFAULT,
    LIMIT_MAX,
    answer,
    choice,
    context_of,
    find_job,
    number,
    page,
)
from primusd.api.watching import is_watch, serve_watch
from primusd.errors import NotFoundError
from primusd.job.ids import parse_replica
from primusd.job.model import Job, Replica, RoleState, find_replica, replicas_of
from primusd.job.phases import ReplicaPhase
from primusd.views import documents
from primusd.views.events import event_document
from primusd.views.peers import peers_view
from primusd.views.replicas import replica_document

LEVELS = ("", "info", "warning", "error")


async def list_replicas(request: web.Request) -> web.StreamResponse:
    """List or watch the replicas of a job."""
    context, job = context_of(request), find_job(request)
    role_name, node = request.query.get("role", ""), request.query.get("node", "")
    phase = choice(request, "phase", ("", *(one.value for one in ReplicaPhase)), "")
    if role_name and role_name not in job.roles:
        raise NotFoundError(f"{job.spec.name} has no role {role_name!r}")
    if is_watch(request):

        def wants(document: Struct) -> bool:
            assert isinstance(document, documents.Replica)
            return (
                document.job_uid == job.uid
                and (not role_name or document.role == role_name)
                and (not phase or document.phase == phase)
            )

        return await serve_watch(request, ("Replica",), wants=wants)
    roles = [role for name, role in job.roles.items() if not role_name or name == role_name]
    found = [
        (key, (role, replica))
        for key, role, replica in _keyed(roles)
        if (not phase or replica.phase.value == phase)
        and (not node or (replica.newest is not None and replica.newest.node == node))
    ]
    shown, cursor = page(request, found)
    world, live = context.engine.world, context.live()
    return answer(
        documents.ReplicaList(
            resource_version=str(context.engine.revision),
            items=tuple(replica_document(job, role, one, world, live) for role, one in shown),
            cursor=cursor or UNSET,
        )
    )


def _keyed(roles: Iterable[RoleState]) -> Iterator[tuple[str, RoleState, Replica]]:
    """Yield replicas with a key that sorts as they stand: by role, then by index."""
    for role in sorted(roles, key=lambda one: one.name):
        for replica in replicas_of(role):
            yield f"{role.name}/{replica.index:06d}", role, replica


async def get_replica(request: web.Request) -> web.Response:
    """Show one replica with its attempts."""
    context, job = context_of(request), find_job(request)
    role, replica = named_replica(job, request.match_info["replica"])
    return answer(replica_document(job, role, replica, context.engine.world, context.live()))


def named_replica(job: Job, name: str) -> tuple[RoleState, Replica]:
    """Return a replica by its name.

    Raises:
        NotFoundError: The job has none of that name.
    """
    try:
        role, index = parse_replica(name)
    except ValueError as error:
        raise NotFoundError(str(error)) from error
    replica = find_replica(job, role, index)
    if replica is None:
        raise no_replica(job, name)
    return job.roles[role], replica


def no_replica(job: Job, name: str) -> NotFoundError:
    """Return the error for a name that no replica of the job has."""
    roles = ", ".join(f"{one.name} 0 to {one.size - 1}" for one in job.roles.values() if one.size)
    return NotFoundError(f"{job.spec.name} has no replica {name}", hint=f"it has {roles}")


async def show_peers(request: web.Request) -> web.Response:
    """Show who is in a job now, and where."""
    return answer(peers_view(find_job(request)))


async def list_events(request: web.Request) -> web.StreamResponse:
    """List or watch the events of a job."""
    job = find_job(request)
    return await _events(request, job)


async def list_all_events(request: web.Request) -> web.StreamResponse:
    """List or watch the events of all jobs."""
    return await _events(request, None)


async def _events(request: web.Request, job: Job | None) -> web.StreamResponse:
    context = context_of(request)
    level = choice(request, "level", LEVELS, "")
    levels = LEVELS[LEVELS.index(level) or 1 :]
    uid = job.uid if job is not None else ""
    if is_watch(request):

        def wants(document: Struct) -> bool:
            assert isinstance(document, documents.Event)
            return (not uid or document.job_uid == uid) and document.level in levels

        return await serve_watch(request, ("Event",), wants=wants)
    owners = [job] if job is not None else list(context.engine.world.jobs.values())
    found = [
        ((moment.revision, moment.position), owner, moment)
        for owner in owners
        for moment in owner.timeline
        if moment.level in levels
    ]
    found.sort(key=lambda one: one[0])
    limit = number(request, "limit", LIMIT_DEFAULT, low=1, high=LIMIT_MAX)
    return answer(
        documents.EventList(
            resource_version=str(context.engine.revision),
            items=tuple(event_document(owner, moment) for _, owner, moment in found[-limit:]),
        )
    )
