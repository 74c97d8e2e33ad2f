"""A role gets another size while its job lives."""

from msgspec.structs import replace

from primusd.job import chunks
from primusd.job.counts import rules_of
from primusd.job.model import Job, RoleState, replicas_of
from primusd.job.run_order import publish


def resized(job: Job, name: str, size: int) -> Job:
    """Return the job whose role has so many replicas; peers hear of those that go at once.

    The highest indices go. A role whose members come and go only together then meets anew, in the
    next generation (`scheduling.regroup`).
    """
    role = job.roles[name]
    has_lost = any(
        one.index >= size and one.newest is not None and one.newest.opened_ms > 0
        for one in replicas_of(role)
    )
    is_larger = size > role.size
    role = replace(
        chunks.grow(role, size),
        minimum=min(role.minimum or job.spec.roles[name].minimum, size),
        has_shrunk=role.gate_opened and (role.has_shrunk or has_lost),
        is_growing=role.gate_opened and (role.is_growing or is_larger),
    )
    role = chunks.recount(role, rules_of(job, role))
    job = replace(job, roles={**job.roles, name: role})
    return publish(job) if has_lost and job.peers.generation else job


def gate_closed(role: RoleState) -> RoleState:
    """Return the role as it is when nothing of it runs: its members will meet anew."""
    return replace(role, gate_opened=False, has_shrunk=False, is_growing=False)
