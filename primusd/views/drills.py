"""The Drill document: a fault on purpose, and how the job stood right before it."""

from collections.abc import Mapping

from msgspec import UNSET, Struct, UnsetType

from primusd.core import World
from primusd.job.ids import AttemptId
from primusd.job.model import Job, find_attempt
from primusd.views.documents import Text
from primusd.views.live import Live
from primusd.views.times import rfc3339


class _Document(Struct, frozen=True, kw_only=True, rename="camel"):
    """A JSON object with keys in camel case."""


class DrillTarget(_Document, frozen=True, kw_only=True):
    """An attempt that the fault met."""

    replica: str
    attempt: int
    node: Text = UNSET
    step: int | UnsetType = UNSET
    """Where its trainer said it was; absent: it said nothing."""
    checkpoint_step: int | UnsetType = UNSET
    """Of the newest checkpoint that it wrote; one that wrote none goes by the job's newest."""


class DrillCheckpoint(_Document, frozen=True, kw_only=True):
    """The newest whole checkpoint before the fault."""

    path: str
    step: int


class Drill(_Document, frozen=True, kw_only=True, tag_field="kind", tag="Drill"):
    """A fault that was brought about."""

    job: str
    job_uid: str
    namespace: str
    fault: str
    at: str
    event: str
    """Id of its event in the timeline."""
    targets: tuple[DrillTarget, ...]
    checkpoint: DrillCheckpoint | UnsetType = UNSET
    done: Mapping[str, int]
    """Stream to what of it was done."""
    repeated: Mapping[str, int]
    """Stream to what of it had come twice at most."""


def drill_document(
    job: Job, world: World, live: Live, targets: tuple[AttemptId, ...], fault: str
) -> Drill:
    """Return the document of a fault that is recorded and not brought about yet.

    Args:
        job: With the drill as its newest entry of the timeline that is one.
        world: Its streams are read.
        live: Tells progress.
        targets: Attempts that it meets.
        fault: Which.
    """
    moment = next(one for one in reversed(job.timeline) if one.reason == "DrillRequested")
    streams = {
        name: stream
        for name in job.streams
        if (stream := world.streams.get(f"{job.uid}/{name}")) is not None
    }
    checkpoint = job.checkpoint
    return Drill(
        job=job.spec.name,
        job_uid=job.uid,
        namespace=job.spec.namespace,
        fault=fault,
        at=rfc3339(moment.at_ms),
        event=f"{moment.revision}.{moment.position}",
        targets=tuple(_target(job, one, live) for one in targets),
        checkpoint=UNSET
        if checkpoint is None
        else DrillCheckpoint(path=checkpoint.path, step=checkpoint.step),
        done={name: stream.consumed for name, stream in streams.items()},
        repeated={name: stream.repeated for name, stream in streams.items()},
    )


def _target(job: Job, attempt: AttemptId, live: Live) -> DrillTarget:
    progress = live.progress.get(attempt)
    found = find_attempt(job, attempt)
    return DrillTarget(
        replica=attempt.replica,
        attempt=attempt.attempt,
        node=found.node if found is not None and found.node else UNSET,
        step=progress.step if progress is not None else UNSET,
        checkpoint_step=_checkpoint_step(job, attempt),
    )


def _checkpoint_step(job: Job, attempt: AttemptId) -> int | UnsetType:
    for moment in reversed(job.timeline):
        is_own = moment.subject.rpartition("/")[0] == attempt.replica
        step = moment.details.get("step")
        if moment.reason == "CheckpointNoted" and is_own and isinstance(step, int):
            return step
    return job.checkpoint.step if job.checkpoint is not None else UNSET
