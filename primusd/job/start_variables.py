"""Variables that hang on who the peers are, made once all hold (docs/protocol.md §11)."""

from collections.abc import Callable, Mapping

from primusd.executor.protocol import StartVariables
from primusd.job.environment import size_variables
from primusd.job.frameworks import FRAMEWORKS
from primusd.job.frameworks.cluster import Cluster, Maker, make_cluster
from primusd.job.frameworks.members import NONE
from primusd.job.gates import gang_roles, needs_all
from primusd.job.model import Job
from primusd.job.peers import Member


def has_variables(job: Job) -> bool:
    """Return whether trainers need more than their launch order could say.

    A framework's variables, the original's, and the true sizes of roles that begin with as many
    replicas as there is room for.
    """
    return (
        job.spec.framework != NONE
        or job.spec.original
        or any(role.minimum != role.replicas for role in job.spec.roles.values())
    )


def variables_maker(
    job: Job,
    present: tuple[Member, ...],
    *,
    without_framework: Callable[[Cluster], Maker] | None = None,
) -> Maker:
    """Return what makes the variables of each replica of the job.

    Args:
        job: As it is now.
        present: Who stands in its peers document.
        without_framework: Maker for a job that names no framework.
    """
    make = FRAMEWORKS.get(job.spec.framework, without_framework)
    cluster = make_cluster(job.spec, job.uid, generation=job.peers.generation, present=present)
    of_framework = make(cluster) if make is not None else None
    sizes = _sizes(job, present)

    def variables(role: str, index: int) -> StartVariables:
        found = of_framework(role, index) if of_framework is not None else StartVariables()
        return StartVariables({**found.env, **size_variables(role, sizes)}, found.files)

    return variables


def _sizes(job: Job, present: tuple[Member, ...]) -> Mapping[str, int]:
    """Return how many replicas each role has: where peers are known, those that are there."""
    sizes = {name: role.size for name, role in job.roles.items()}
    counts = dict.fromkeys(sizes, 0)
    for member in present:
        counts[member.role] += 1
    known = tuple(sizes) if needs_all(job.spec) else gang_roles(job.spec)
    return sizes | {name: counts[name] for name in known if counts[name]}
