"""Why attempts after the first began: the ends that were decided on, the first cause first.

Nothing is judged here: causes, charges and delays are those that the outcome and failover recorded.
"""

from collections.abc import Iterator, Mapping

from primusd.job.budgets import limit_of
from primusd.job.counts import is_failure
from primusd.job.failover import unit_of
from primusd.job.ids import replica_name
from primusd.job.model import Attempt, Job, Moment, Outcome, Replica, RoleState, replicas_of
from primusd.job.outcome import how_it_ended
from primusd.job.phases import AttemptPhase, Budget, Cause, ReplicaPhase, StopReason
from primusd.job.reasons import WHY_RESTARTED, Why
from primusd.job.rules import RESTART, kept_off_words, rule_label, rule_of
from primusd.job.wording import duration_words
from primusd.units import bytes_words

TOLD_MAX = 10
ASKERS = ("uid:", "token:", "certificate:")
"""So begin those who ask; others decide by rules."""
_OVER = frozenset({AttemptPhase.ENDED, AttemptPhase.GONE})
_STOPS = {
    StopReason.HUNG: "Hung",
    StopReason.NO_REGISTRATION: "NoRegistration",
    StopReason.START_TIMEOUT: "StartTimeout",
    StopReason.DRAINED: "Drained",
    StopReason.NODE_GIVEN_UP: "NodeGivenUp",
    StopReason.PLACEMENT: "NotPlaced",
    StopReason.PREEMPTED: "Preempted",
}
_MOVED = frozenset({StopReason.DRAINED, StopReason.NODE_GIVEN_UP})
"""Charged to nobody: it was the node's doing, or a person's."""
_DECISIONS = {
    "RestartRequested": "RestartRequested",
    "ResumeRequested": "Resumed",
    "JobEvicted": "Evicted",
    "StartTimedOut": "StartTimedOut",
    "GroupLeaseLost": "LeaseLost",
}
"""Entries of the timeline after which replicas begin anew, and the reason that each is."""


def why_restarted(job: Job) -> tuple[Why, ...]:
    """Return why attempts began after the first: of the newest trouble, oldest first, at most 10.

    Where there are more the first stays: it is the cause, and the others are what followed.
    """
    found = sorted((*_ends(job), *_decisions(job)), key=lambda one: one.since_ms)
    first_ms = job.first_cause.at_ms if job.first_cause is not None else 0
    of_trouble = [one for one in found if one.since_ms >= first_ms]
    if len(of_trouble) <= TOLD_MAX:
        return tuple(of_trouble or found[-TOLD_MAX:])
    return (of_trouble[0], *of_trouble[1 - TOLD_MAX :])


def _ends(job: Job) -> Iterator[Why]:
    """Yield the ends that another attempt followed, or will."""
    told = {one.subject: one for one in job.timeline if one.reason == "AttemptEnded"}
    for role in job.roles.values():
        for replica in replicas_of(role):
            for attempt in replica.attempts:
                if _is_followed(replica, attempt):
                    found = _end(job, role, replica, attempt, told)
                    if found is not None:
                        yield found


def _is_followed(replica: Replica, attempt: Attempt) -> bool:
    if attempt.phase not in _OVER:
        return False
    is_to_come = replica.phase in (ReplicaPhase.WAITING, ReplicaPhase.DELAYED)
    return attempt.number < replica.last_number or is_to_come


def reason_of(outcome: Outcome) -> str:
    """Return the reason that an end is for the next attempt; "" it only followed another."""
    if outcome.port_taken:
        return "PortTaken"
    if outcome.cause is Cause.COMPLETED:
        return "CompletedAgain" if outcome.action == RESTART else ""
    if outcome.cause is not Cause.STOPPED:
        return str(outcome.cause)
    is_moved = outcome.stop_reason in _MOVED
    if outcome.stop_reason is None or (outcome.budget is Budget.NONE and not is_moved):
        return ""
    return _STOPS.get(outcome.stop_reason, "")


def _end(
    job: Job, role: RoleState, replica: Replica, attempt: Attempt, told: Mapping[str, Moment]
) -> Why | None:
    outcome = attempt.outcome
    reason = reason_of(outcome) if outcome is not None else ""
    if outcome is None or not reason or _only_followed(outcome):
        return None
    name = replica_name(role.name, replica.index)
    numbers = {"attempt": attempt.number, "generation": attempt.generation}
    if attempt.started_ms:
        numbers["ranMs"] = attempt.ended_ms - attempt.started_ms
    if outcome.exit_code is not None:
        numbers["exitCode"] = outcome.exit_code
    if outcome.charged:
        numbers["budgetUsed"] = outcome.charged
        numbers["budgetLimit"] = limit_of(job, role.name, outcome.budget)
    message = (
        f"{name} attempt {attempt.number} {how_it_ended(outcome)}"
        f"{_ran(attempt)}{_charge(job, role, attempt, outcome)}{_next(replica, attempt, numbers)}"
    )
    moment = told.get(f"{name}/{attempt.number}")
    because = (f"{moment.revision}.{moment.position}",) if moment is not None else ()
    return Why(WHY_RESTARTED, reason, message, numbers, name, outcome.at_ms, because)


def _only_followed(outcome: Outcome) -> bool:
    """Return whether an end was charged to nobody: it came of another's, or while all stopped."""
    return outcome.cause is not Cause.STOPPED and not is_failure(outcome)


def _ran(attempt: Attempt) -> str:
    ran = f" after {duration_words(attempt.ended_ms - attempt.started_ms)}"
    last = attempt.outcome.last_line if attempt.outcome is not None else ""
    return (ran if attempt.started_ms else "") + (f" ({last})" if last else "")


def _charge(job: Job, role: RoleState, attempt: Attempt, outcome: Outcome) -> str:
    """Return what the end was charged to, and who began anew with it."""
    off = kept_off_words(rule_of(job.spec, outcome), attempt.node)
    by_rule = f", by {rule_label(outcome.rule)}{off}" if outcome.rule else ""
    if not outcome.charged:
        return by_rule
    limit = limit_of(job, role.name, outcome.budget)
    if outcome.charged > limit and job.reruns:
        used_up = f", which used up the {outcome.budget} budget of {limit}{by_rule}"
        return f"{used_up}; all roles begin anew with new budgets"
    charge = f", {outcome.charged} of {limit} of the {outcome.budget} budget{by_rule}"
    unit = unit_of(job, role, outcome)
    if unit == "replica":
        return charge
    return f"{charge}; {'all roles begin' if unit == 'job' else f'{role.name} begins'} anew whole"


def _next(replica: Replica, attempt: Attempt, numbers: dict[str, int]) -> str:
    """Return when the attempt after this one began, as a part of the sentence."""
    after = next((one for one in replica.attempts if one.number == attempt.number + 1), None)
    if after is None:
        return ""
    numbers["delayMs"] = max(0, after.requested_ms - attempt.ended_ms)
    delay_ms = numbers["delayMs"]
    when = f"{duration_words(delay_ms)} later" if delay_ms else "at once"
    began = f"; attempt {after.number} began {when}"
    if after.memory_bytes == attempt.memory_bytes:
        return began
    numbers["memoryBytes"] = after.memory_bytes
    return f"{began}, with {bytes_words(after.memory_bytes)}"


def _decisions(job: Job) -> Iterator[Why]:
    """Yield what made whole roles or the job begin anew, as the timeline has it."""
    for moment in job.timeline:
        reason = _DECISIONS.get(moment.reason)
        if moment.details.get("fault") == "preempt":
            reason = "Evicted"
        if reason is not None:
            numbers = {key: one for key, one in moment.details.items() if isinstance(one, int)}
            yield Why(
                WHY_RESTARTED,
                reason,
                moment.message + _by(moment),
                {"generation": job.generation, **numbers},
                moment.subject,
                moment.at_ms,
                (f"{moment.revision}.{moment.position}",),
            )


def _by(moment: Moment) -> str:
    """Return who asked, where it was a person or a program."""
    return f" (by {moment.by})" if moment.by.startswith(ASKERS) else ""
