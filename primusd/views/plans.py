"""The Plan document: what a job file comes to (docs/api-documents.md §8)."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET

from primusd import __version__
from primusd.job.environment import environment
from primusd.job.ids import AttemptId
from primusd.job.spec import JobSpec
from primusd.views import documents
from primusd.views.waiting import Waiting

UNKNOWN_UID = "0" * 16
SAMPLE_HOST = "<host>"
SAMPLE_PORT = 20_000


def plan_view(
    planned: Mapping[str, Any],  # Any: as `jobfile.plan` has it, a document of plain values
    spec: JobSpec,
    *,
    cluster: str,
    would_wait: Waiting | None,
    warnings: Sequence[str],
) -> documents.Plan:
    """Return the document of a plan.

    Args:
        planned: What can be told without a daemon.
        spec: That was planned.
        cluster: Name of the cluster it would run in.
        would_wait: Why it would not start at once; None it would.
        warnings: Fields without effect, names that were mapped.
    """
    return documents.Plan(
        spec=planned["spec"],
        origins=planned["origins"],
        diff=tuple(planned["diff"]),
        names=planned["names"],
        environment={f"{role}-0": sample_environment(spec, role, cluster) for role in spec.roles},
        success=planned["success"],
        failure=tuple(planned["failure"]),
        would_wait=UNSET if would_wait is None else _would_wait(would_wait),
        warnings=tuple(warnings),
        recommendations=(),
    )


def _would_wait(waiting: Waiting) -> Mapping[str, Any]:
    return {
        "reason": waiting.reason,
        "message": waiting.message,
        "numbers": dict(waiting.numbers),
    }


def sample_environment(spec: JobSpec, role: str, cluster: str) -> Mapping[str, str]:
    """Return what replica 0 of a role would find; host and ports stand for those it will get."""
    ports = {name: SAMPLE_PORT + number for number, name in enumerate(spec.roles[role].ports)}
    return environment(
        spec,
        AttemptId(UNKNOWN_UID, role, 0, 1),
        cluster=cluster,
        generation=1,
        host=SAMPLE_HOST,
        ports=ports,
        version=__version__,
    )
