"""What must hold after every step, of jobs and admission: docs/state-machines.md §12.

Checked after each step in tests, and on sampling in the daemon. The numbers are the page's;
7 to 9 are the ledger's (`datafeed/ledger/invariants.py`), 11, 12 and 14 are properties of runs.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from primusd.admission.model import Admission, Demand
from primusd.admission.usage import book_anew, book_of, used_by_node
from primusd.job import chunks
from primusd.job.counts import Count, is_gone_for_sure, rules_of
from primusd.job.duties import plan_of
from primusd.job.ids import replica_name
from primusd.job.job import deadline_ms
from primusd.job.model import Attempt, Job, Replica, RoleState, replicas_of
from primusd.job.phases import AttemptPhase, Cause, DemandPhase, JobPhase, ReplicaPhase


class Machines(Protocol):
    """What is looked at: `core.World`, which this layer does not know."""

    @property
    def admission(self) -> Admission:
        """The admission machine."""

    @property
    def jobs(self) -> Mapping[str, Job]:
        """The job machines by uid."""


def check(world: Machines, held: Machines | None = None) -> None:
    """Check every invariant of one state.

    Args:
        world: The state.
        held: A state that was found right: a machine that is the same object in it is so still, and
            only what lies between machines is looked at again.

    Raises:
        AssertionError: One does not hold; the message names it by number.
    """
    known = held.jobs if held is not None else {}
    for uid, job in world.jobs.items():
        if known.get(uid) is not job:
            _check_job(job)
    if held is None or held.admission is not world.admission:
        _check_slots(world.admission)
    _check_reservations(world)
    _check_ports(world)
    _check_all_over(world)


def _check_job(job: Job) -> None:
    """Check what holds of a job alone."""
    _check_attempts(job)
    for role in job.roles.values():
        _check_charges(job, role)
    _check_final(job)
    _check_counts(job)
    _check_hours(job)
    _check_moves_on(job)


def check_step(before: Machines, after: Machines, touched: Iterable[str]) -> None:
    """Check what one step changed, at a cost that does not grow with what it left alone.

    Args:
        before: The state before the step.
        after: The state after it.
        touched: Machines whose value changed.

    Raises:
        AssertionError: An invariant does not hold; the message names it by number.
    """
    for machine in touched:
        job = after.jobs.get(machine)
        if job is None:
            continue
        old = before.jobs.get(machine)
        if old is not None:
            _check_job_change(old, job)
        _check_final(job)
        for role in job.roles.values():
            was = old.roles.get(role.name) if old is not None else None
            _check_charges(job, role)
            for number, chunk in enumerate(role.chunks):
                known = was.chunks if was is not None else ()
                if number >= len(known) or known[number] is not chunk:
                    for replica in chunk.replicas:
                        name = f"{job.uid} {replica_name(role.name, replica.index)}"
                        _check_replica_attempts(job, name, replica)


def check_change(before: Machines, after: Machines) -> None:
    """Check what one step may not change.

    Raises:
        AssertionError: An outcome changed, or a number fell.
    """
    for uid, job in after.jobs.items():
        old = before.jobs.get(uid)
        if old is not None and old is not job:
            _check_job_change(old, job)


def _check_job_change(old: Job, job: Job) -> None:
    assert job.generation >= old.generation, f"2: the generation of {job.uid} fell"
    for name, role in job.roles.items():
        was = old.roles.get(name)
        if was is not None and was is not role:
            _check_role_change(was, role)


def _check_role_change(before: RoleState, after: RoleState) -> None:
    assert after.generation >= before.generation, f"2: the generation of {after.name} fell"
    for was, now in zip(before.chunks, after.chunks, strict=False):
        if was is not now:
            for old, new in zip(was.replicas, now.replicas, strict=False):
                if old is not new:
                    _check_replica_change(replica_name(after.name, new.index), old, new)


def _check_replica_change(name: str, old: Replica, new: Replica) -> None:
    assert new.last_number >= old.last_number, f"2: the attempts of {name} fell"
    known = {one.number: one.outcome for one in new.attempts}
    for one in old.attempts:
        outcome = known.get(one.number)
        if one.outcome is not None and outcome is not None:
            is_same = outcome == one.outcome or one.outcome.cause is Cause.LOST
            assert is_same, f"4: the outcome of {name}/{one.number} changed"


def _check_charges(job: Job, role: RoleState) -> None:
    """15: no end is charged twice."""
    labels = [one.attempt for one in role.charges if one.attempt]
    assert len(set(labels)) == len(labels), f"15: {job.uid} charges {labels}"


def _named(job: Job) -> Iterator[tuple[str, RoleState, Replica]]:
    for role in job.roles.values():
        for replica in replicas_of(role):
            yield f"{job.uid} {replica_name(role.name, replica.index)}", role, replica


def _check_attempts(job: Job) -> None:
    for name, _, replica in _named(job):
        _check_replica_attempts(job, name, replica)


def _check_replica_attempts(job: Job, name: str, replica: Replica) -> None:
    numbers = [one.number for one in replica.attempts]
    assert numbers == sorted(set(numbers)), f"2: {name} has attempts {numbers}"
    assert not numbers or numbers[-1] == replica.last_number, f"2: {name} lost an attempt"
    generations = [one.generation for one in replica.attempts]
    assert generations == sorted(generations), f"2: {name} has generations {generations}"
    for one in replica.attempts:
        assert one.generation <= job.generation, f"2: {name}/{one.number} is of the future"
        assert (one.outcome is not None) == (
            one.phase in (AttemptPhase.ENDED, AttemptPhase.GONE)
        ), f"4: {name}/{one.number} is {one.phase} with outcome {one.outcome}"
    left = [one for one in replica.attempts if one.phase is not AttemptPhase.GONE]
    replaced = left[:-1] if replica.phase is ReplicaPhase.ACTIVE else left
    for one in replaced:
        is_lost = one.outcome is not None and one.outcome.cause is Cause.LOST
        assert is_lost or job.is_final, f"1: {name}/{one.number} lives beside another"


def _check_final(job: Job) -> None:
    if not job.is_final:
        return
    assert job.verdict is not None, f"3: {job.uid} is final without a verdict"
    for name, _, replica in _named(job):
        for one in replica.attempts:
            assert one.phase is AttemptPhase.GONE, f"3: {job.uid} is final, {name} is {one.phase}"
        assert replica.phase in (
            ReplicaPhase.COMPLETED,
            ReplicaPhase.FAILED,
            ReplicaPhase.RETIRED,
        ), f"3: {job.uid} is final, {name} is {replica.phase}"


def _check_counts(job: Job) -> None:
    """What is kept beside the replicas equals what they add up to."""
    for role in job.roles.values():
        anew = chunks.recount(role, rules_of(job, role))
        assert anew.counts == role.counts, f"counts of {job.uid} {role.name} are wrong"
        assert anew.deadline_ms == role.deadline_ms, f"deadline of {role.name} is wrong"
        assert anew.begin_ms == role.begin_ms, f"begin of {role.name} is wrong"
        for chunk, fresh in zip(role.chunks, anew.chunks, strict=True):
            assert chunk == fresh, f"a chunk of {job.uid} {role.name} is wrong"
        for span in anew.wanted:
            named = all(chunks.is_named(role, index) for index in range(span.low, span.high + 1))
            assert named, f"the demand of {role.name} lacks {span}"


def _check_hours(job: Job) -> None:
    running = [
        one.started_ms
        for _, _, replica in _named(job)
        for one in replica.attempts
        if one.started_ms and not one.ended_ms
    ]
    known = (job.hours.running, job.hours.started_ms)
    assert known == (len(running), sum(running)), f"16: the replica hours of {job.uid} are wrong"


def _check_moves_on(job: Job) -> None:
    """10: each phase that is not final has a timer, an effect, or a person to wait for."""
    if job.is_final or job.phase in (JobPhase.SUSPENDED, JobPhase.QUEUED):
        return
    has_reason = (
        deadline_ms(job)
        or plan_of(job)
        or any(role.counts[Count.NOT_GONE] for role in job.roles.values())
        or any(role.counts[Count.ACTIVE] for role in job.roles.values())
        # Made larger, and all who had a slot are done: admission, as each is looked at below.
        or (
            job.phase is JobPhase.RUNNING
            and any(role.counts[Count.WAITING] for role in job.roles.values())
        )
    )
    assert has_reason, f"10: nothing moves {job.uid} on from {job.phase}"
    if job.phase not in (JobPhase.STARTING, JobPhase.RUNNING):
        return
    for name, role, replica in _named(job):
        if replica.phase is ReplicaPhase.ACTIVE:
            attempt = replica.newest
            assert attempt is not None, f"10: {name} is Active without an attempt"
            _check_attempt_moves_on(job, role.name, name, replica, attempt)
        elif replica.phase in (ReplicaPhase.WAITING, ReplicaPhase.DELAYED):
            can_begin = replica.begin_ms > 0
            is_asked = chunks.is_named(role, replica.index)
            assert can_begin or is_asked, (
                f"10: {name} is {replica.phase} and nobody gives it a slot"
            )


def _check_attempt_moves_on(
    job: Job, role: str, name: str, replica: Replica, attempt: Attempt
) -> None:
    over = (AttemptPhase.RUNNING, AttemptPhase.STOPPING, AttemptPhase.ENDED)
    if attempt.phase in over:
        return
    if attempt.phase is AttemptPhase.GONE:
        assert not is_gone_for_sure(attempt), f"10: {name} did not move though its attempt is gone"
        is_for_ever = job.spec.replace_after_ms < 0
        assert replica.due_ms or is_for_ever, f"10: nothing moves {name} on"
        return
    if attempt.phase is AttemptPhase.REGISTERED and attempt.is_holding:
        # It waits for others, who have their own; while the job starts there is the start clock.
        return
    spec = job.spec.roles[role]
    is_pending = attempt.phase is AttemptPhase.REQUESTED or attempt.waiting_for
    if is_pending and spec.minimum < spec.replicas:
        return
    assert replica.due_ms, f"10: {name} is {attempt.phase} without a deadline"


def _check_slots(admission: Admission) -> None:
    """5: what is taken is there; CPU is compressible. Sums carried on are as made anew."""
    assert book_of(admission.demands) == book_anew(admission.demands), "5: the sums are wrong"
    for name, used in used_by_node(admission.demands.values(), admission).items():
        node = admission.nodes.get(name)
        if node is not None:
            assert used.memory_bytes <= node.memory_bytes, f"5: memory of {name} is taken twice"
            assert used.gpu <= node.gpu, f"5: GPUs of {name} are taken twice"
    for uid, demand in admission.demands.items():
        assert demand.old_slots.keys() <= demand.busy, f"5: {uid} keeps slots that nothing is in"
        assert demand.moving <= demand.held.keys(), f"5: {uid} moves what has no slot"


def _check_reservations(world: Machines) -> None:
    """5: a job that has not begun holds all or nothing."""
    for uid, demand in world.admission.demands.items():
        job = world.jobs.get(uid)
        if job is None or job.phase is not JobPhase.QUEUED or not demand.is_gang:
            continue
        is_partial = demand.phase is DemandPhase.WAITING and _holds_idle(demand)
        assert not is_partial, f"5: {uid} waits with a part of what it needs"


def _holds_idle(demand: Demand) -> bool:
    return any(key not in demand.busy for key in demand.held)


def _check_ports(world: Machines) -> None:
    """6: no port is held twice on one host."""
    taken: dict[tuple[str, int], str] = {}
    for uid, demand in world.admission.demands.items():
        for (role, index), slot in demand.held.items():
            if slot.first_port:
                for port in range(slot.first_port, slot.first_port + slot.port_count):
                    owner = f"{uid} {replica_name(role, index)}"
                    other = taken.setdefault((slot.node, port), owner)
                    assert other == owner, f"6: {slot.node}:{port} is held by {other} and {owner}"
    for job in world.jobs.values():
        if job.is_final:  # all of its attempts are gone: 3
            continue
        for name, _, replica in _named(job):
            for attempt in replica.attempts:
                if attempt.phase is not AttemptPhase.GONE and attempt.node:
                    _claim(taken, name, attempt)


def _claim(taken: dict[tuple[str, int], str], name: str, attempt: Attempt) -> None:
    for _, port in attempt.ports:
        if port:
            other = taken.setdefault((attempt.node, port), name)
            assert other == name, f"6: {attempt.node}:{port} is used by {other} and {name}"


def _check_all_over(world: Machines) -> None:
    """13: when every job is final nothing is held, but for what quarantined attempts hold."""
    if any(not job.is_final for job in world.jobs.values()):
        return
    for uid, demand in world.admission.demands.items():
        assert not demand.held, f"13: every job is over and {uid} holds {len(demand.held)} slots"
