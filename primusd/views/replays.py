"""The Replay document: a job as it was after an entry of the journal."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from primusd import core
from primusd.core import World
from primusd.job.commands import Command
from primusd.job.model import Job, replicas_of
from primusd.views import documents
from primusd.views.events import event_document
from primusd.views.explaining import explanations
from primusd.views.explanation_documents import Reach, Replay
from primusd.views.jobs import job_document
from primusd.views.queue import queue_of
from primusd.views.replicas import replica_document
from primusd.views.times import rfc3339

REPLICAS_MAX = 1_000
WAITING_PHASES = ("Queued", "Starting")


def replay_document(job: Job, world: World, reach: Reach, *, revision: int, at_ms: int) -> Replay:
    """Return the document of a job as it was.

    Args:
        job: As it was; one of `world.jobs`.
        world: Of the same moment.
        reach: What is known of that time.
        revision: Of the newest entry about the job.
        at_ms: Journal time of the moment.
    """
    is_known = reach.cluster_from is not UNSET
    queue = queue_of(world.admission)
    shown = job_document(job, world, at_ms=at_ms, queue=queue)
    explained = explanations(job, world, queue, at_ms=at_ms)
    if not is_known:
        shown = _without_cluster(shown)
        explained = tuple(one for one in explained if one.question != "why does it wait")
    return Replay(
        revision=str(revision),
        at=rfc3339(at_ms),
        reach=reach,
        job=shown,
        replicas=tuple(_replicas(job, world)),
        events=tuple(event_document(job, one) for one in job.timeline if one.revision == revision),
        plan=tuple(_command(one) for one in _plan(job, world)),
        explanations=explained,
    )


def _without_cluster(shown: documents.Job) -> documents.Job:
    """Return the document without what only the queue and the nodes of that time could tell."""
    status = replace(shown.status, queue=UNSET)
    if status.phase in WAITING_PHASES:
        status = replace(status, reason=UNSET, message=UNSET)
    return replace(shown, status=status)


def _replicas(job: Job, world: World) -> Iterator[documents.Replica]:
    count = 0
    for role in job.roles.values():
        for replica in replicas_of(role):
            if count == REPLICAS_MAX:
                return
            count += 1
            yield replica_document(job, role, replica, world)


def _plan(job: Job, world: World) -> Iterator[Command]:
    yield from core.plan(world, job.uid)
    for name in job.streams:
        yield from core.plan(world, f"{job.uid}/{name}")


def _command(command: Command) -> Mapping[str, Any]:
    """Return a command as a document: its name, the attempt by its label, times as times."""
    found: dict[str, Any] = {"command": type(command).__name__}
    for name in command.__struct_fields__:
        value = getattr(command, name)  # of our own closed union
        key = "".join((word if not at else word.title()) for at, word in enumerate(name.split("_")))
        if name == "attempt":
            found[key] = value.label
        elif name.endswith("_ms"):
            found[key.removesuffix("Ms") + "At"] = rfc3339(value)
        elif name != "job":
            found[key] = msgspec.to_builtins(value)
    return found
