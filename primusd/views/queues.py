"""The Queue document (docs/api-documents.md §6)."""

from collections.abc import Iterator, Mapping

from msgspec import UNSET

from primusd.admission.model import Demand, QueueState
from primusd.admission.queues import queue_named, used_of
from primusd.admission.usage import waiting_in
from primusd.admission.waits import why_waits
from primusd.core import World
from primusd.views import queue_documents as documents
from primusd.views.queue import Queue
from primusd.views.times import rfc3339

WAITING_SHOWN_MAX = 100


def queue_document(name: str, world: World) -> documents.Queue:
    """Return the document of a queue, without who waits in it."""
    state = world.admission
    queue, used = queue_named(state, name), used_of(state, name)
    demands = [one for one in state.demands.values() if one.queue == name]
    return documents.Queue(
        name=name,
        resource_version=str(queue.changed_revision),
        state="open" if queue.is_open else "closed",
        quota=_amounts(queue.quota),
        used=documents.QueueAmounts(
            cpu_milli=used.cpu_milli, memory_bytes=used.memory_bytes, gpus=used.gpu
        ),
        preemption=queue.preemption,
        origin=_origin(state.queues.get(name)),
        waiting=sum(not one.held for one in demands),
        running=sum(bool(one.held) for one in demands),
    )


def _origin(queue: QueueState | None) -> str:
    if queue is None:
        return "default"
    return "set" if queue.is_set else "file"


def _amounts(quota: Mapping[str, int]) -> documents.QueueAmounts:
    return documents.QueueAmounts(
        cpu_milli=quota.get("cpuMilli", UNSET),
        memory_bytes=quota.get("memoryBytes", UNSET),
        gpus=quota.get("gpu", UNSET),
    )


def waiting_jobs(
    name: str, world: World, queue: Queue, *, at_ms: int
) -> tuple[documents.Queued, ...]:
    """Return who waits in a queue, in order, at most WAITING_SHOWN_MAX."""
    found: list[documents.Queued] = []
    for demand in _of_queue(name, world):
        survey = queue.survey(at_ms=at_ms)
        job, ahead = world.jobs.get(demand.job), survey.ahead(demand.job)
        wait = why_waits(survey, demand)
        if job is None or wait is None:
            continue
        found.append(
            documents.Queued(
                uid=job.uid,
                name=job.spec.name,
                namespace=job.spec.namespace,
                priority=demand.priority,
                since=rfc3339(demand.since_ms),
                position=UNSET if ahead is None else ahead + 1,
                reason=wait.reason,
                message=wait.message,
            )
        )
        if len(found) == WAITING_SHOWN_MAX:
            break
    return tuple(found)


def _of_queue(name: str, world: World) -> Iterator[Demand]:
    return (one for one in waiting_in(world.admission) if one.queue == name)
