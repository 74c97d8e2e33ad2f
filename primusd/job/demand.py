"""What a job asks admission for, and what it tells it."""

from collections.abc import Iterator

from msgspec.structs import replace

from primusd.admission.events import (
    DemandRaised,
    DemandWithdrawn,
    NodeExclusionRequested,
    NodeFaultCounted,
    QuarantineLifted,
    RoleDemand,
    SlotFreed,
    SlotQuarantined,
)
from primusd.job import events as ev
from primusd.job.chunks import is_named, mask_spans, span_length
from primusd.job.counts import Count, not_gone_of, port_generation, rules_of
from primusd.job.draining import asked
from primusd.job.gates import minimum_of, takes_nobody_new
from primusd.job.ids import AttemptId, Span
from primusd.job.machine import Proposed
from primusd.job.model import Attempt, Job, RoleState, find_replica, replicas_of
from primusd.job.phases import AttemptPhase, JobPhase
from primusd.job.rules import rule_label, rule_of
from primusd.job.scheduling import drains
from primusd.job.spec import JobSpec, RoleSpec

ADMISSION = ""
"""Key of the admission machine, as in `records.py`, which this layer may not import."""

ASKING_PHASES = frozenset({JobPhase.STARTING, JobPhase.RUNNING, JobPhase.DRAINING})
STOPPED_AFTER_MS = 100_000
"""After the grace: 40 s until a stop has failed, 60 s until a release has (`duties.py`)."""


def demand_of(job: Job) -> DemandRaised | None:
    """Return what the job asks for; None: nothing.

    What it keeps while it runs are its wanted replicas; in Draining those of the helpers that run.
    """
    asking = [_role_demand(job, role) for role in job.roles.values() if _asks(job, role)]
    if not asking or not has_demand(job):
        return None
    spec = job.spec
    return DemandRaised(
        job.uid,
        job.generation,
        spec.queue,
        spec.priority,
        tuple(asking),
        ports_taken=job.ports_taken,
        busy=_busy(job),
        lacking=_lacking(job),
        moving=asked(job),
        runs_for_ms=runs_for_ms(spec),
        ends_ms=_ends_ms(job),
        since_ms=job.aged_ms,
        is_preemptible=spec.preemptible,
        spared=job.spared,
    )


def runs_for_ms(spec: JobSpec) -> int:
    """Return how long after its first admission a job surely holds nothing; 0 no bound.

    Its `maxReplicaHours` bound nothing: while replicas do not run they do not count.
    """
    if not spec.deadline_ms:
        return 0
    stop_ms = max(role.stop.grace_ms for role in spec.roles.values())
    drain_ms = max(role.drain_ms for role in spec.roles.values())
    return spec.deadline_ms + drain_ms + stop_ms + STOPPED_AFTER_MS


def _ends_ms(job: Job) -> int:
    """Return when the job surely holds nothing any more; 0 not admitted yet, or no bound."""
    lasting_ms = runs_for_ms(job.spec)
    if not lasting_ms or not job.first_admitted_ms:
        return 0
    return job.first_admitted_ms + job.suspended_ms + lasting_ms


def has_demand(job: Job) -> bool:
    """Return whether the job is in a phase that asks for anything."""
    if job.phase is JobPhase.QUEUED:
        return job.not_before_ms == 0
    return job.phase in ASKING_PHASES


def _asks(job: Job, role: RoleState) -> bool:
    return bool(_claimed(job, role)) and (job.phase is not JobPhase.DRAINING or drains(job, role))


def _role_demand(job: Job, role: RoleState) -> RoleDemand:
    spec = job.spec.roles[role.name]
    wanted = _claimed(job, role)
    return RoleDemand(
        role.name,
        wanted,
        spec.resources.cpu_milli,
        spec.resources.memory_bytes,
        spec.resources.gpu,
        len(spec.ports),
        port_generation(job, role),
        placement=spec.placement,
        memory=_memory(role) if spec.resources.memory_bytes else (),
        spare_count=_spare_count(job, role, wanted),
    )


def _memory(role: RoleState) -> tuple[tuple[int, int, int], ...]:
    """Return the replicas that would have more than their role, as runs."""
    found: list[tuple[int, int, int]] = []
    for replica in replicas_of(role):
        asked_bytes = replica.memory_asked_bytes
        if not asked_bytes:
            continue
        if found and found[-1][1:] == (replica.index - 1, asked_bytes):
            found[-1] = (found[-1][0], replica.index, asked_bytes)
        else:
            found.append((replica.index, replica.index, asked_bytes))
    return tuple(found)


def _claimed(job: Job, role: RoleState) -> tuple[Span, ...]:
    """Return the replicas that a role asks for: one that grows no more leaves out who never ran."""
    if not takes_nobody_new(job.spec.roles[role.name], role):
        return role.wanted
    masks = []
    for chunk in role.chunks:
        mask = chunk.wanted
        for bit, replica in enumerate(chunk.replicas):
            if not replica.last_number and not replica.slot_generation:
                mask &= ~(1 << bit)
        masks.append(mask)
    return mask_spans(role.name, masks)


def _spare_count(job: Job, role: RoleState, wanted: tuple[Span, ...]) -> int:
    """Return how many of the replicas asked for an elastic role can do without for now."""
    needed = max(0, minimum_of(job, role) - role.counts[Count.FOR_GOOD])
    return max(0, span_length(wanted) - needed)


def _busy(job: Job) -> tuple[Span, ...]:
    """Return the replicas with an attempt that is not Gone."""
    found: list[Span] = []
    for role in job.roles.values():
        masks = []
        for chunk in role.chunks:
            mask = 0
            for bit, replica in enumerate(chunk.replicas if chunk.counts[Count.NOT_GONE] else ()):
                if not_gone_of(replica):
                    mask |= 1 << bit
            masks.append(mask)
        found += mask_spans(role.name, masks)
    return tuple(found)


def _lacking(job: Job) -> tuple[Span, ...]:
    """Return the wanted replicas that know of no slot with good ports."""
    found: list[Span] = []
    for role in job.roles.values():
        floor = rules_of(job, role).slot_floor
        masks = []
        for chunk in role.chunks:
            mask = chunk.wanted
            for bit, replica in enumerate(chunk.replicas if mask else ()):
                if replica.slot_generation >= floor:
                    mask &= ~(1 << bit)
            masks.append(mask)
        found += mask_spans(role.name, masks)
    return tuple(found)


def _is_same_demand(before: Job, after: Job) -> bool:
    """Return whether nothing that a demand is made from has changed; ports given back are none."""
    if before.phase is not after.phase and JobPhase.DRAINING in (before.phase, after.phase):
        return False
    return (
        has_demand(before) == has_demand(after)
        and before.withdrawals == after.withdrawals
        and before.slots_lost == after.slots_lost
        and before.moving == after.moving
        and before.generation == after.generation
        and before.spec is after.spec
        and len(after.ports_taken) <= len(before.ports_taken)
        and all(
            _asks_the_same(before.spec.roles[name], role, after.roles[name])
            for name, role in before.roles.items()
        )
    )


def _asks_the_same(spec: RoleSpec, before: RoleState, after: RoleState) -> bool:
    return before is after or (
        before.wanted == after.wanted
        and takes_nobody_new(spec, before) == takes_nobody_new(spec, after)
    )


def changes(before: Job | None, after: Job) -> tuple[Proposed, ...]:
    """Return what admission has to hear of a changed demand."""
    if before is not None and _is_same_demand(before, after):
        return ()
    asked = demand_of(after)
    found: list[Proposed] = []
    had = before is not None and (has_demand(before) or after.withdrawals != before.withdrawals)
    was_withdrawn = before is not None and before.withdrawals != after.withdrawals
    if had and (asked is None or was_withdrawn):
        found.append(Proposed(ADMISSION, DemandWithdrawn(after.uid, _busy(after))))
    if asked is not None:
        found.append(Proposed(ADMISSION, asked))
    return tuple(found)


def after_attempt(
    job: Job, before: Attempt | None, after: Attempt, attempt: AttemptId
) -> tuple[Proposed, ...]:
    """Return what admission has to hear of an attempt: a slot that is free, a node at fault.

    Args:
        job: After the event and all that settle decided.
        before: The attempt before the event.
        after: The attempt now.
        attempt: Its identity.
    """
    found: list[Proposed] = []
    outcome = after.outcome
    had_end = before is not None and before.outcome is not None
    if outcome is not None and outcome.is_node_fault and not had_end and after.node:
        label = f"{attempt.job}/{attempt.label}"
        fault = NodeFaultCounted(after.node, label, outcome.cause, after.boot_id)
        found.append(Proposed(ADMISSION, fault))
    if job.spec.failure:
        found += _exclusion(job, before, after, attempt)
    key = (attempt.job, attempt.role, attempt.index, attempt.attempt)
    was_gone = before is not None and before.phase is AttemptPhase.GONE
    was_quarantined = before is not None and before.is_quarantined
    if after.is_quarantined and not was_quarantined:
        if _is_newest(job, attempt):
            found.append(Proposed(ADMISSION, SlotQuarantined(*key)))
    elif was_quarantined and not after.is_quarantined:
        found.append(Proposed(ADMISSION, QuarantineLifted(*key)))
    elif after.phase is AttemptPhase.GONE and not was_gone:
        span = Span(attempt.role, attempt.index, attempt.index)
        freed = SlotFreed(attempt.job, (span,), _runs_again(job, attempt))
        found.append(Proposed(ADMISSION, freed))
    return tuple(found)


def _exclusion(
    job: Job, before: Attempt | None, after: Attempt, attempt: AttemptId
) -> Iterator[Proposed]:
    """Yield that the job is kept off a node, when a rule said so of this end."""
    rule = rule_of(job.spec, after.outcome)
    known = rule_of(job.spec, before.outcome) if before is not None else None
    if rule is None or rule is known or not rule.exclude_node_ms or not after.node:
        return
    assert after.outcome is not None, "a rule decided it"
    reason = f"{rule_label(after.outcome.rule)}, {attempt.label}"
    asked = NodeExclusionRequested(after.node, rule.exclude_node_ms, job.uid, reason)
    yield Proposed(ADMISSION, asked)


def _is_newest(job: Job, attempt: AttemptId) -> bool:
    """Return whether no other attempt has taken the place of this one, in its slot."""
    replica = find_replica(job, attempt.role, attempt.index)
    return replica is not None and replica.last_number == attempt.attempt


def idle_slots(job: Job) -> tuple[Span, ...]:
    """Return the replicas that the demand names and of which nothing runs."""
    found: list[Span] = []
    for role in job.roles.values():
        masks = [
            sum(
                1 << bit
                for bit, replica in enumerate(chunk.replicas)
                if not not_gone_of(replica) and is_named(role, replica.index)
            )
            for chunk in role.chunks
        ]
        found += mask_spans(role.name, masks)
    return tuple(found)


def _runs_again(job: Job, attempt: AttemptId) -> bool:
    """Return whether the slot of an attempt that is Gone is in use by the next one already."""
    replica = find_replica(job, attempt.role, attempt.index)
    return replica is not None and not_gone_of(replica) > 0


def without_given_ports(job: Job, event: ev.JobAdmitted) -> Job:
    """Return the job that no longer asks for ports it was given anew."""
    if not job.ports_taken:
        return job
    kept = tuple(
        (role, index, port)
        for role, index, port in job.ports_taken
        if not any(
            place.role == role and place.first <= index < place.first + place.count
            for place in event.places
        )
    )
    return replace(job, ports_taken=kept)
