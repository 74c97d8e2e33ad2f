"""Queues over HTTP: what they may use, who waits, and the acts of a person."""

import msgspec
from aiohttp import web
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from primusd.admission.events import DemandMoved, QueueDeclared, QueueDropped, QueueSet
from primusd.admission.model import Demand
from primusd.admission.queues import DEFAULT, names_of, queue_named
from primusd.admission.usage import waiting_in
from primusd.api.after import job_named
from primusd.api.asking import answer, caller_of, check_version, context_of, read_body
from primusd.api.context import Context
from primusd.api.jobs import document_of
from primusd.api.watching import is_watch, serve_watch
from primusd.config.values import Quota, SettingError, read_value
from primusd.core import Rejected
from primusd.declaring import declared_as
from primusd.errors import (
    ConflictError,
    MalformedError,
    NotFoundError,
    PhaseConflictError,
    Problem,
)
from primusd.job.events import SpecPatched
from primusd.job.labels import LABEL_MAX, is_label
from primusd.job.model import Job
from primusd.job.phases import DemandPhase
from primusd.jobfile import apply_patch
from primusd.records import ADMISSION, Proposal
from primusd.views import queue_documents as documents
from primusd.views.queue import queue_of
from primusd.views.queues import queue_document, waiting_jobs

STATES = ("open", "closed")
PREEMPTIONS = ("never", "lowerPriority")
PRIORITY_MAX = 100


class SetBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `:set`: what is not named stays as it is."""

    quota: dict[str, int | float | str | None] | UnsetType = UNSET
    """`cpu`, `memory` with a unit, `gpu`; null: not limited."""
    preemption: str | UnsetType = UNSET
    state: str | UnsetType = UNSET


class MoveBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `:move`: a priority, or to the front of those with the same, or both."""

    job: str
    namespace: str = "default"
    priority: int | UnsetType = UNSET
    first: bool = False


async def list_queues(request: web.Request) -> web.StreamResponse:
    """List or watch the queues."""
    context = context_of(request)
    if is_watch(request):
        return await serve_watch(request, ("Queue",), wants=lambda _document: True)
    world = context.engine.world
    return answer(
        documents.QueueList(
            resource_version=str(context.engine.revision),
            items=tuple(queue_document(name, world) for name in names_of(world.admission)),
        )
    )


def _name(request: web.Request) -> str:
    """Return the queue that the path names.

    Raises:
        NotFoundError: There is none.
    """
    name, known = request.match_info["name"], names_of(context_of(request).engine.world.admission)
    if name not in known:
        raise NotFoundError(
            f"there is no queue {name}; there are {', '.join(known)}",
            hint=f"primusctl queue set {name} quota.cpu=8",
        )
    return name


def _shown(context: Context, name: str) -> documents.Queue:
    world = context.engine.world
    jobs = waiting_jobs(name, world, queue_of(world.admission), at_ms=context.engine.at_ms())
    return replace(queue_document(name, world), jobs=jobs)


async def get_queue(request: web.Request) -> web.Response:
    """Show one queue, and who waits in it."""
    return answer(_shown(context_of(request), _name(request)))


async def set_queue(request: web.Request) -> web.Response:
    """Set up a queue; from now on the configuration file does not change it."""
    context, name = context_of(request), request.match_info["name"]
    if not is_label(name) or len(name) > LABEL_MAX:
        raise MalformedError(f"{name[:80]!r} is no name of a queue", hint="a DNS label, as batch")
    body = await read_body(request, SetBody)
    old = queue_named(context.engine.world.admission, name)
    check_version(request, since=old.changed_revision, now=old.changed_revision)
    quota = dict(old.quota) if body.quota is UNSET else _quota(dict(old.quota), body.quota)
    preemption = _word("preemption", body.preemption, PREEMPTIONS, old.preemption)
    state = _word("state", body.state, STATES, "open" if old.is_open else "closed")
    event = QueueSet(name, quota, preemption, is_open=state == "open")
    await context.engine.propose(ADMISSION, event, by=caller_of(request))
    return answer(_shown(context, name))


def _word(key: str, found: str | UnsetType, allowed: tuple[str, ...], default: str) -> str:
    if found is UNSET:
        return default
    if found not in allowed:
        problem = Problem(key, found=found[:80], allowed=allowed)
        raise MalformedError(f"{key} has to be {' or '.join(allowed)}", errors=(problem,))
    return found


def _quota(quota: dict[str, int], changes: dict[str, int | float | str | None]) -> dict[str, int]:
    """Return a quota with what a person changed of it."""
    keys = {"cpu": "cpuMilli", "memory": "memoryBytes", "gpu": "gpu"}
    for name, value in changes.items():
        if name in keys and value is None:
            quota.pop(keys[name], None)
            continue
        try:
            found = read_value(Quota(), {name: value})
        except SettingError as error:
            allowed = error.allowed.removeprefix(f"{name}: ")
            problem = Problem(f"quota.{name}"[:80], found=str(value)[:80], allowed=allowed)
            raise MalformedError(
                f"quota.{name[:60]}: found {str(value)[:80]}; allowed: {allowed}",
                errors=(problem,),
            ) from error
        quota |= msgspec.convert(found, dict[str, int])
    return quota


async def reset_queue(request: web.Request) -> web.Response:
    """Forget what was set: a queue is as the configuration file has it, or goes if it has none."""
    context, name = context_of(request), _name(request)
    world = context.engine.world
    last = queue_document(name, world)
    events: list[QueueDropped | QueueDeclared] = []
    if name in world.admission.queues:
        events.append(QueueDropped(name))
    declared = declared_as(context.config().config, name)
    if declared is not None:
        events.append(declared)
    elif name != DEFAULT:
        _check_empty(context, name)
    proposals = tuple(Proposal(ADMISSION, event, caller_of(request)) for event in events)
    for one in await context.engine.propose_all(proposals):
        if isinstance(one, Rejected):
            raise one.error
    known = names_of(context.engine.world.admission)
    return answer(_shown(context, name) if name in known else last)


def _check_empty(context: Context, name: str) -> None:
    live = [
        job
        for job in context.engine.world.jobs.values()
        if job.spec.queue == name and not job.is_final
    ]
    if live:
        raise ConflictError(
            f"{len(live)} jobs live in queue {name}, {live[0].spec.name} is one of them",
            hint=f"close it until they have ended: primusctl queue set {name} state=closed",
        )


async def move(request: web.Request) -> web.Response:
    """Move a job that waits: to another priority, or to the front of its own."""
    context, name = context_of(request), _name(request)
    body = await read_body(request, MoveBody)
    job = job_named(context.engine.world, body.namespace, body.job)
    if job is None:
        raise NotFoundError(f"there is no job {body.job} in namespace {body.namespace}")
    if body.priority is UNSET and not body.first:
        raise MalformedError("say where to: a priority, or first", hint='{"first": true}')
    priority = job.spec.priority if body.priority is UNSET else body.priority
    if not 0 <= priority <= PRIORITY_MAX:
        problem = Problem("priority", found=str(priority), allowed=f"0 to {PRIORITY_MAX}")
        raise MalformedError(f"priority is 0 to {PRIORITY_MAX}", errors=(problem,))
    demand = _waiting(context, job, name)
    proposals = [*_patched(job, priority, caller_of(request))]
    if body.first:
        since_ms = _before_all(context, demand, priority)
        moved = DemandMoved(job.uid, priority, since_ms)
        proposals.append(Proposal(ADMISSION, moved, caller_of(request)))
    for one in await context.engine.propose_all(tuple(proposals)):
        if isinstance(one, Rejected):
            raise one.error
    return answer(document_of(context, context.engine.world.jobs.get(job.uid, job)))


def _waiting(context: Context, job: Job, queue: str) -> Demand:
    """Return the demand of a job that waits in a queue.

    Raises:
        PhaseConflictError: It does not.
    """
    demand = context.engine.world.admission.demands.get(job.uid)
    is_there = demand is not None and demand.phase is DemandPhase.WAITING
    if demand is None or not is_there or job.spec.queue != queue:
        where = "" if job.spec.queue == queue else f", in queue {job.spec.queue}"
        raise PhaseConflictError(
            f"{job.spec.name} is {job.phase.value}{where}: it does not wait in {queue}",
            phase=job.phase.value,
            event="DemandMoved",
        )
    return demand


def _patched(job: Job, priority: int, by: str) -> list[Proposal]:
    """Return the change of the job's spec, which keeps its new priority."""
    if priority == job.spec.priority:
        return []
    parsed = apply_patch(job.spec, {"priority": priority})
    origins = {path: job.origins.get(path, origin) for path, origin in parsed.origins.items()}
    return [Proposal(job.uid, SpecPatched(parsed.spec, origins), by)]


def _before_all(context: Context, demand: Demand, priority: int) -> int:
    """Return an age older than that of every other job that waits there with the priority."""
    others = [
        one.since_ms
        for one in waiting_in(context.engine.world.admission)
        if one.job != demand.job and one.queue == demand.queue and one.priority == priority
    ]
    return min([*others, demand.since_ms + 1]) - 1
