"""One way from an object's kind and key to its document: for watches and for paths alike."""

from collections.abc import Callable

from msgspec import Struct

from primusd.admission.model import Admission
from primusd.admission.queues import names_of
from primusd.core import World
from primusd.job.ids import parse_replica
from primusd.job.model import Job, find_replica
from primusd.views.events import event_document
from primusd.views.jobs import job_document
from primusd.views.live import NOTHING_LIVE, Live
from primusd.views.nodes import node_document
from primusd.views.queue import queue_of
from primusd.views.queues import queue_document
from primusd.views.replicas import replica_document
from primusd.views.streams import stream_document


class Renderer:
    """Makes the document of an object by its kind and key.

    `Job` by uid, `Replica` by `<uid>/worker-3`, `Event` by `<uid>/<revision>.<position>`, `Stream`
    by `<uid>/<stream>`, `Node` and `Queue` by name.
    """

    def __init__(
        self, at_ms: Callable[[], int], live: Callable[[], Live] = lambda: NOTHING_LIVE
    ) -> None:
        """Make a renderer.

        Args:
            at_ms: Tells journal time.
            live: Tells what the edges know.
        """
        self._at_ms = at_ms
        self._live = live
        self._queue = queue_of(Admission())

    def __call__(self, kind: str, key: str, world: World) -> Struct | None:
        """Return the document, None when there is no such object."""
        match kind:
            case "Job":
                job = world.jobs.get(key)
                return None if job is None else self._job(job, world)
            case "Node":
                node = world.admission.nodes.get(key)
                return None if node is None else node_document(node, world, self._live())
            case "Queue":
                return queue_document(key, world) if key in names_of(world.admission) else None
            case "Stream":
                stream = world.streams.get(key)
                if stream is None:
                    return None
                return stream_document(
                    stream, world, self._live(), at_ms=self._at_ms(), is_watched=True
                )
            case _:
                uid, _, rest = key.partition("/")
                owner = world.jobs.get(uid)
                return None if owner is None else self._part(kind, owner, rest, world)

    def _job(self, job: Job, world: World) -> Struct:
        if self._queue.admission is not world.admission:
            self._queue = queue_of(world.admission)
        return job_document(job, world, at_ms=self._at_ms(), live=self._live(), queue=self._queue)

    def _part(self, kind: str, job: Job, name: str, world: World) -> Struct | None:
        if kind == "Event":
            moments = (one for one in job.timeline if f"{one.revision}.{one.position}" == name)
            moment = next(moments, None)
            return None if moment is None else event_document(job, moment)
        role, index = parse_replica(name)
        replica = find_replica(job, role, index)
        if replica is None:
            return None
        return replica_document(job, job.roles[role], replica, world, self._live())
