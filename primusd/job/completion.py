"""How a job ends: the verdict and the rule that gave it, and the end of a drain."""

from collections.abc import Iterator, Mapping

from primusd.job import chunks, group_losses, limits
from primusd.job import events as ev
from primusd.job.budgets import attempt_identity, limit_of, retry_delay_ms, used_of
from primusd.job.counts import LIVING, Count
from primusd.job.gates import counted, needed
from primusd.job.ids import AttemptId, Span, replica_name
from primusd.job.model import Job, Outcome, Replica, RoleState, StreamSummary, replicas_of
from primusd.job.outcome import how_it_ended
from primusd.job.phases import Budget, JobPhase, ReplicaPhase
from primusd.job.rules import COMPLETE, GIVE_UP, condition_words, rule_label, rule_of
from primusd.job.scheduling import drain_end_ms, drains
from primusd.job.spec import RoleSpec, StreamSpec, budgets_of, is_endless, streams_of
from primusd.job.wording import left_out_words, missing_words, sampled_words, unit_words

DECIDING_PHASES = frozenset(
    {JobPhase.QUEUED, JobPhase.STARTING, JobPhase.RUNNING, JobPhase.SUSPENDED}
)

BEGUN_PHASES = (JobPhase.STARTING, JobPhase.RUNNING)


def settle(job: Job, at_ms: int) -> ev.VerdictReached | ev.JobRestarted | ev.DrainEnded | None:
    """Return the verdict or the end of the drain, when it is due."""
    if job.phase is JobPhase.DRAINING:
        return _drain_ended(job, at_ms)
    if job.phase not in DECIDING_PHASES:
        return None
    lost = _group_lost(job, at_ms) if job.groups_lost else None
    return _failed(job) or lost or _succeeded(job) or limits.over(job, at_ms)


def deadlines(job: Job) -> Iterator[int]:
    """Yield the journal times at which the end of a drain is due."""
    if job.phase is JobPhase.DRAINING:
        for role in job.roles.values():
            if drains(job, role) and _is_running(role):
                yield drain_end_ms(job, role)


def _fail(
    reason: str, message: str, rule: str, numbers: Mapping[str, int], *, cause: str = ""
) -> ev.VerdictReached:
    return ev.VerdictReached("Failed", reason, message, rule, numbers=numbers, cause=cause)


def _failed(job: Job) -> ev.VerdictReached | ev.JobRestarted | None:
    for role in job.roles.values():
        found = _permanent(job, role) or _cannot_succeed(job, role)
        if found is not None:
            return found
    for name, stream in job.streams.items():
        if stream.failure:
            failed = {"consumed": stream.consumed, "skipped": stream.skipped}
            text = f"stream {name} failed: {stream.failure}"
            return _fail("DataFailed", text, f"{name}: onBad", failed)
    if job.refused[0]:
        return _fail(job.refused[0], job.refused[1], "after", {})
    return _data_left(job)


def _permanent(job: Job, role: RoleState) -> ev.VerdictReached | None:
    """Return the failure by a cause that no other try can mend."""
    if not role.counts[Count.PERMANENT]:
        return None
    replica = next(chunks.find(role, Count.PERMANENT))
    outcome = replica.attempts[-1].outcome
    assert outcome is not None, "an attempt that failed for good has an outcome"
    if outcome.rule:
        return _fail_by_rule(job, role, replica, outcome)
    return _fail(
        str(outcome.cause),
        f"{replica_name(role.name, replica.index)} {how_it_ended(outcome)}; "
        "another try cannot mend that",
        f"{role.name}: {outcome.cause}",
        {"attempt": replica.attempts[-1].number},
        cause=AttemptId(job.uid, role.name, replica.index, replica.attempts[-1].number).label,
    )


def _fail_by_rule(
    job: Job, role: RoleState, replica: Replica, outcome: Outcome
) -> ev.VerdictReached:
    """Return the failure that a rule of `failure` asks for, naming it."""
    rule, label = rule_of(job.spec, outcome), rule_label(outcome.rule)
    words = f" ({condition_words(rule)})" if rule is not None else ""
    return _fail(
        "FailureRule",
        f"{replica_name(role.name, replica.index)} {how_it_ended(outcome)}; "
        f"by {label}{words} the job fails",
        label,
        {"attempt": replica.attempts[-1].number, "rule": outcome.rule - 1},
        cause=AttemptId(job.uid, role.name, replica.index, replica.attempts[-1].number).label,
    )


def _cannot_succeed(job: Job, role: RoleState) -> ev.VerdictReached | ev.JobRestarted | None:
    """Return what follows when a role can no longer have what its `success` asks."""
    failed = role.counts[Count.FAILED] + role.counts[Count.DOOMED]
    if not failed:
        return None
    spec = job.spec.roles[role.name]
    if spec.success.kind != "never" and counted(spec, role) - failed >= needed(spec, role):
        return None
    replica = _first_failure(job, role)
    newest = replica.newest
    assert newest is not None, "a replica that failed had an attempt"
    outcome = newest.outcome
    assert outcome is not None, "a replica that failed had an end"
    if outcome.action != GIVE_UP and job.reruns < job.spec.reruns and job.phase in BEGUN_PHASES:
        return _rerun(job, role, replica)
    limit = limit_of(job, role.name, outcome.budget)
    reason = "RetriesExhausted" if limit else str(outcome.cause)
    if reason not in {"RetriesExhausted", "Crashed", "OutOfMemory"}:
        reason = "RetriesExhausted"
    name = replica_name(role.name, replica.index)
    why = f"and the {outcome.budget} budget of {limit} is used up"
    if outcome.is_spent:
        own = budgets_of(job.spec, role.name).replica
        reason, why = "RetriesExhausted", f"and one replica may end so {own} times"
    if outcome.action == GIVE_UP:
        reason, why = "FailureRule", f"and gets no other try by {rule_label(outcome.rule)}"
    return _fail(
        reason,
        f"{name} {how_it_ended(outcome)} (cause {outcome.cause}) {why}; "
        f"{role.name} needs {success_words(spec, role)}",
        f"{role.name}: {rule_words(spec)}",
        {
            "failed": failed,
            "replicas": role.size,
            "needed": role.size if spec.success.kind == "never" else needed(spec, role),
            "budgetUsed": outcome.charged,
            "budgetLimit": limit,
        },
        cause=AttemptId(job.uid, role.name, replica.index, newest.number).label,
    )


def _rerun(job: Job, role: RoleState, replica: Replica) -> ev.JobRestarted:
    """Return that all roles begin anew, later each time, after a budget was used up."""
    attempt = replica.attempts[-1]
    cause = AttemptId(job.uid, role.name, replica.index, attempt.number)
    return _rerun_after(job, cause, attempt.ended_ms)


def _rerun_after(job: Job, cause: AttemptId, ended_ms: int) -> ev.JobRestarted:
    identity = attempt_identity(job, cause.role, cause.index, cause.attempt)
    restart = job.spec.roles[cause.role].restart
    delay_ms = retry_delay_ms(restart, Budget.APPLICATION, job.reruns + 1, identity)
    return ev.JobRestarted(cause, ended_ms + delay_ms, Budget.NONE, is_rerun=True)


def _group_lost(job: Job, at_ms: int) -> ev.VerdictReached | ev.JobRestarted | None:
    """Return what follows when a group lost one lease more than the budget forgives."""
    lost = next((one for one in job.groups_lost if group_losses.is_spent(job, one, at_ms)), None)
    if lost is None:
        return None
    if job.reruns < job.spec.reruns and job.phase in BEGUN_PHASES:
        return _rerun_after(job, lost, at_ms)
    limit = limit_of(job, lost.role, Budget.INFRASTRUCTURE)
    return _fail(
        "RetriesExhausted",
        f"{lost.label} was lost to its group while it ran, and the infrastructure budget of "
        f"{limit} is used up; {lost.role} reads an exactlyOnce stream and begins anew as a whole",
        "budgets",
        {
            "budgetUsed": used_of(job, job.roles[lost.role], Budget.INFRASTRUCTURE, at_ms),
            "budgetLimit": limit,
        },
        cause=lost.label,
    )


def _first_failure(job: Job, role: RoleState) -> Replica:
    """Return the replica whose failure came last of those that count: it tipped the scales."""
    found = [*chunks.find(role, Count.DOOMED), *chunks.find(role, Count.FAILED)]
    return max(found, key=lambda one: one.attempts[-1].ended_ms if one.attempts else 0)


def rule_words(spec: RoleSpec) -> str:
    """Return a role's rule as people write it."""
    if spec.success.kind == "percent":
        return f"{spec.success.percent} percent"
    return spec.success.kind


def success_words(spec: RoleSpec, role: RoleState) -> str:
    """Return what a role needs, as people read it."""
    if spec.success.kind == "never":
        return "to run until the others are done"
    return f"{needed(spec, role)} of {role.size} to complete"


def _data_left(job: Job) -> ev.VerdictReached | None:
    """Return the failure by rows that nobody is left to read."""
    if not job.streams:
        return None
    for name, roles in streams_of(job.spec).items():
        stream = job.streams[name]
        if not roles or stream.is_finished or _leftover(job, name) == "allow":
            continue
        if is_endless(_spec_of(job, name)):
            continue
        if _has_readers(job, roles):
            continue
        unit = unit_words(job.spec, name)
        count = f"{stream.left} {unit}" if stream.left >= 0 else f"an unknown number of {unit}"
        return _fail(
            "DataLeft",
            f"all readers of stream {name} are done and nobody read {count} of it",
            f"{name}: leftover fail",
            {"left": stream.left} if stream.left >= 0 else {},
        )
    return None


def _leftover(job: Job, stream: str) -> str:
    return _spec_of(job, stream).leftover


def _spec_of(job: Job, stream: str) -> StreamSpec:
    return job.spec.data[stream.partition("@")[0]]


def _has_readers(job: Job, roles: tuple[str, ...]) -> bool:
    """Return whether anybody still reads, or an end has not been counted in yet."""
    return any(
        role.counts[count]
        for role in (job.roles[name] for name in roles)
        for count in (
            Count.WAITING,
            Count.ACTIVE,
            Count.DELAYED,
            Count.UNSETTLED,
            Count.BACK,
            Count.REVIVABLE,
        )
    )


def _is_done(job: Job, name: str, roles: tuple[str, ...], stream: StreamSummary) -> bool:
    if not roles or stream.is_finished:
        return True
    # Rows that may be left hold up no success while only helpers read them.
    awaited = tuple(one for one in roles if job.spec.roles[one].success.kind != "never")
    return _leftover(job, name) == "allow" and not _has_readers(job, awaited)


def _succeeded(job: Job) -> ev.VerdictReached | None:
    success_roles = []
    for role in job.roles.values():
        spec = job.spec.roles[role.name]
        if spec.success.kind == "never" or not role.size:
            continue
        if role.counts[Count.COMPLETED] - _to_run_again(job, role) < needed(spec, role):
            return None
        success_roles.append(role)
    # A stream without an end takes no part: its job ends with its trainers, or is ended.
    streams = [
        (name, roles)
        for name, roles in streams_of(job.spec).items()
        if roles and not is_endless(_spec_of(job, name))
    ]
    if not success_roles and not streams:
        return None
    if not all(_is_done(job, name, roles, job.streams[name]) for name, roles in streams):
        return None
    partial = tuple(_partial(job, success_roles))
    return ev.VerdictReached(
        "Succeeded",
        "PartialSuccess" if partial else "Completed",
        "; ".join(partial) or _completed_words(success_roles),
        "; ".join(f"{one.name}: {rule_words(job.spec.roles[one.name])}" for one in success_roles),
        drains=any(drains(job, role) for role in job.roles.values()),
        numbers={
            "completed": sum(role.counts[Count.COMPLETED] for role in success_roles),
            "needed": sum(needed(job.spec.roles[role.name], role) for role in success_roles),
            "replicas": sum(role.size for role in success_roles),
        },
    )


def _to_run_again(job: Job, role: RoleState) -> int:
    """Return how many completed replicas are about to run again."""
    if not role.counts[Count.BACK]:
        return 0
    found = chunks.find(role, Count.BACK)
    return sum(one.phase is ReplicaPhase.COMPLETED for one in found)


def _completed_words(roles: list[RoleState]) -> str:
    return ", ".join(f"{role.counts[Count.COMPLETED]} {role.name}" for role in roles) + " completed"


def _partial(job: Job, roles: list[RoleState]) -> Iterator[str]:
    """Yield what a success left out: nothing laxer than the default goes unsaid."""
    for role in roles:
        spec = job.spec.roles[role.name]
        completed = role.counts[Count.COMPLETED]
        failed = role.counts[Count.FAILED] + role.counts[Count.DOOMED]
        # Reached before the rest ended, a percentage is no less partial than after a failure.
        if failed or (spec.success.kind == "percent" and completed < role.size):
            and_failed = f" and {failed} failed" if failed else ""
            yield (
                f"{completed} of {role.size} {role.name} completed{and_failed}, "
                f"{rule_words(spec)} was asked for"
            )
        yield from _by_rule(job, role)
    for name, stream in job.streams.items():
        if stream.skipped:
            unit = unit_words(job.spec, name)
            left_out = left_out_words(stream.skipped, unit, stream.unsized)
            yield f"{left_out} of stream {name} were left out"
        if stream.missing:
            yield missing_words(stream.missing, f" of stream {name}")
        if stream.left_out:
            yield f"{sampled_words(stream.left_out, job.spec, name)} of stream {name}"
        if stream.skipped or is_endless(_spec_of(job, name)):
            continue
        if not stream.is_finished and streams_of(job.spec)[name]:
            yield f"stream {name} was not read to its end, leftover allow was asked for"


def _by_rule(job: Job, role: RoleState) -> Iterator[str]:
    """Yield how many failures of a role a rule made completions."""
    if not any(rule.action == COMPLETE for rule in job.spec.failure):
        return
    outcomes = [
        one.attempts[-1].outcome
        for one in replicas_of(role)
        if one.phase is ReplicaPhase.COMPLETED and one.attempts
    ]
    numbers = [one.rule for one in outcomes if one is not None and one.action == COMPLETE]
    for number in sorted(set(numbers)):
        count = numbers.count(number)
        yield f"{count} of {role.size} {role.name} count as completed by {rule_label(number)}"


def _is_running(role: RoleState) -> bool:
    return role.counts[Count.LIVING] > 0


def _drain_ended(job: Job, at_ms: int) -> ev.DrainEnded | None:
    """Return the end of the drain, naming who was cut off."""
    draining = [role for role in job.roles.values() if drains(job, role)]
    if any(_is_running(role) and drain_end_ms(job, role) > at_ms for role in draining):
        return None
    return ev.DrainEnded(tuple(span for role in draining for span in _cut_off(job, role)))


def _cut_off(job: Job, role: RoleState) -> tuple[Span, ...]:
    """Return the replicas that ran when their time to drain was over."""
    end_ms = drain_end_ms(job, role)
    found = []
    for chunk in role.chunks:
        for replica in chunk.replicas:
            attempt = replica.newest
            if attempt is None:
                continue
            was_stopped = attempt.stop is not None and attempt.stop.decided_ms >= end_ms
            if attempt.phase in LIVING or was_stopped:
                found.append(replica)
    return chunks.names(role, found)
