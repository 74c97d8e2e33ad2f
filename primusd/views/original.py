"""The status of a job in the shape of the original's `status.json`, for scripts that read it.

Its keys are `primusConf, isHistory, summary, roleMap, tasks, job, data`; what has no counterpart
here is left empty. Source: the web application of github.com/bytedance/primus.
"""

from collections.abc import Mapping
from typing import Any

from primusd.core import World
from primusd.job.ids import replica_name
from primusd.job.model import Attempt, Job, Replica, replicas_of
from primusd.job.outcome import how_it_ended
from primusd.job.phases import AttemptPhase, JobPhase
from primusd.views.specs import spec_document

# Any: a document whose shape is another project's, and which nothing here reads again.
Document = dict[str, Any]
_FINAL_STATUS = {
    JobPhase.SUCCEEDED: "SUCCEEDED",
    JobPhase.FAILED: "FAILED",
    JobPhase.CANCELLED: "KILLED",
}
_STATES: Mapping[AttemptPhase, str] = {
    AttemptPhase.REQUESTED: "NEW",
    AttemptPhase.LAUNCHED: "STARTING",
    AttemptPhase.REGISTERED: "REGISTERED",
    AttemptPhase.STARTING: "STARTING",
    AttemptPhase.RUNNING: "RUNNING",
    AttemptPhase.STOPPING: "KILLING",
}


def status_json(job: Job, world: World) -> Document:
    """Return the document of a job."""
    return {
        "primusConf": spec_document(job.spec),
        "isHistory": job.is_final,
        "summary": _summary(job),
        "roleMap": {
            name: [_executor(name, replica) for replica in replicas_of(role)]
            for name, role in job.roles.items()
        },
        "tasks": [],
        "job": {"name": job.spec.name, "uid": job.uid, "status": job.phase.value},
        "data": {
            name: {"phase": stream.phase, "units": len(stream.units)}
            for name in job.streams
            if (stream := world.streams.get(f"{job.uid}/{name}")) is not None
        },
    }


def _summary(job: Job) -> Document:
    completed = sum(1 for one in _replicas(job) if one.phase.value == "Completed")
    count = sum(1 for _ in _replicas(job))
    return {
        "applicationId": job.uid,
        "finalStatus": _FINAL_STATUS.get(job.phase, "IN_PROGRESS"),
        "name": job.spec.name,
        "queue": job.spec.queue,
        "user": job.submitted_by,
        "progress": completed / count if count else 0.0,
        "startTime": job.started_ms,
        "finishTime": job.ended_ms,
        "attemptId": job.generation,
        "exitCode": 0 if job.phase is JobPhase.SUCCEEDED else None,
        "diagnostic": job.verdict.message if job.verdict is not None else "",
        "starving": False,
    }


def _replicas(job: Job) -> list[Replica]:
    return [replica for role in job.roles.values() for replica in replicas_of(role)]


def _executor(role: str, replica: Replica) -> Document:
    newest = replica.newest
    return {
        "id": replica_name(role, replica.index),
        "node": newest.host or newest.node if newest is not None else "",
        "launchTime": newest.requested_ms if newest is not None else 0,
        "releaseTime": newest.ended_ms if newest is not None else 0,
        "state": _state(newest),
        "exitCode": newest.outcome.exit_code if newest is not None and newest.outcome else None,
        "diag": how_it_ended(newest.outcome) if newest is not None and newest.outcome else "",
    }


def _state(attempt: Attempt | None) -> str:
    if attempt is None:
        return "NEW"
    if attempt.outcome is not None:
        return "SUCCESS" if attempt.outcome.exit_code == 0 else "FAIL"
    return _STATES.get(attempt.phase, "EXITED")
