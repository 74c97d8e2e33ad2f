"""The Plan document: what a job file comes to (docs/api-documents.md §8)."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET

from primusd import __version__
from primusd.compat.environment import original_maker
from primusd.executor.protocol import StartVariables
from primusd.job.environment import environment
from primusd.job.frameworks import FRAMEWORKS
from primusd.job.frameworks.cluster import Maker, make_cluster
from primusd.job.ids import AttemptId
from primusd.job.peers import Member
from primusd.job.spec import JobSpec
from primusd.views import documents
from primusd.views.waiting import Waiting

UNKNOWN_UID = "0" * 16
SAMPLE_HOST = "<host>"
SAMPLE_PORT = 20_000
SAMPLE_FILE = "<path of a file>"
SAMPLE_CHARACTERS_MAX = 1_000
"""A TF_CONFIG of 10,000 workers is no help to whoever reads a plan."""


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
        environment={
            f"{role}-0": found for role, found in sample_environments(spec, cluster).items()
        },
        start=tuple(planned["start"]),
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


def sample_environments(spec: JobSpec, cluster: str) -> Mapping[str, Mapping[str, str]]:
    """Return what replica 0 of each role would find; stand-ins for hosts and ports it will get."""
    maker = _sample_maker(spec)
    found: dict[str, Mapping[str, str]] = {}
    for role in spec.roles:
        variables = environment(
            spec,
            AttemptId(UNKNOWN_UID, role, 0, 1),
            cluster=cluster,
            generation=1,
            host=SAMPLE_HOST,
            ports=_sample_ports(spec, role),
            version=__version__,
        )
        of_framework = maker(role, 0) if maker is not None else StartVariables()
        found[role] = {
            **variables,
            **{name: _shortened(value) for name, value in of_framework.env.items()},
            **dict.fromkeys(of_framework.files, SAMPLE_FILE),
        }
    return found


def _sample_maker(spec: JobSpec) -> Maker | None:
    make = FRAMEWORKS.get(spec.framework, original_maker if spec.original else None)
    if make is None:
        return None
    present = (
        Member(name, index, f"<{name}-{index}>", _sample_ports(spec, name))
        for name in spec.roles
        for index in range(spec.roles[name].replicas)
    )
    return make(make_cluster(spec, UNKNOWN_UID, generation=1, present=present))


def _sample_ports(spec: JobSpec, role: str) -> Mapping[str, int]:
    return {name: SAMPLE_PORT + number for number, name in enumerate(spec.roles[role].ports)}


def _shortened(value: str) -> str:
    if len(value) <= SAMPLE_CHARACTERS_MAX:
        return value
    return f"{value[:SAMPLE_CHARACTERS_MAX]}… ({len(value)} characters)"
