"""How the timeline tells of attempts that ended, or were lost: who pays, and what follows."""

from collections.abc import Callable, Mapping
from typing import Any

from primusd.job import rules
from primusd.job.budgets import limit_of, used_of
from primusd.job.counts import has_retry, is_failure, rules_of
from primusd.job.events import GroupLeaseLost
from primusd.job.failover import replica_retry, role_retry, unit_of
from primusd.job.ids import AttemptId
from primusd.job.model import Attempt, Job, Outcome, find_attempt, find_replica
from primusd.job.outcome import how_it_ended
from primusd.job.phases import AttemptPhase, Budget, Cause
from primusd.job.wording import duration_words

Details = Mapping[str, str | int]


Told = tuple[str, str, str, str, Details]
"""Level, reason, subject, message, details of an entry."""
Teller = Callable[[Job, Job, Any], Told | None]  # each takes the event that it tells of
"""Takes the job before and after a record, and its event; None: it is no news to a person."""


def told(
    level: str, reason: str, subject: str, message: str, details: Details | None = None
) -> Told:
    """Return what is told of a record."""
    return level, reason, subject, message, details or {}


def attempt_words(attempt: AttemptId) -> str:
    """Return an attempt as people say it: `worker-3 attempt 2`."""
    return f"{attempt.replica} attempt {attempt.attempt}"


def both(before: Job, after: Job, attempt: AttemptId) -> tuple[Attempt | None, Attempt | None]:
    """Return an attempt before and after a record."""
    return find_attempt(before, attempt), find_attempt(after, attempt)


def ended(before: Job, after: Job, attempt: AttemptId) -> Told | None:
    """Return how an attempt ended, what it was charged to, and what follows."""
    old, new = both(before, after, attempt)
    if new is None or new.outcome is None or (old is not None and old.outcome == new.outcome):
        return None
    outcome = new.outcome
    if outcome.cause is Cause.STOPPED and not outcome.charged:
        return None
    ran_ms = new.ended_ms - new.started_ms if new.started_ms else 0
    after_words = f" after {duration_words(ran_ms)}" if new.started_ms else ""
    budget, follows, details = _what_follows(after, attempt, new, outcome)
    message = f"{attempt_words(attempt)} {how_it_ended(outcome)}{after_words}{budget}{follows}"
    level = "info" if outcome.cause is Cause.COMPLETED else "warning"
    return told(level, "AttemptEnded", attempt.label, message, {**_evidence(outcome), **details})


def group_lost(before: Job, after: Job, event: GroupLeaseLost) -> Told:
    """Return which lease a group lost, and what that was charged to where its holder lives."""
    message = f"{event.attempt.label} lost its lease of stream {event.stream}"
    role = after.roles[event.attempt.role]
    if role.charges == before.roles[role.name].charges:
        return told("warning", "GroupLeaseLost", event.stream, message)
    budget = Budget.INFRASTRUCTURE
    used = used_of(after, role, budget, role.charges[-1].at_ms)
    limit = limit_of(after, role.name, budget)
    message += f" ({budget} {used} of {limit})"
    details = {"budgetUsed": used, "budgetLimit": limit}
    return told("warning", "GroupLeaseLost", event.stream, message, details)


def _evidence(outcome: Outcome) -> dict[str, str | int]:
    found: dict[str, str | int] = {"cause": str(outcome.cause)}
    if outcome.exit_code is not None:
        found["exitCode"] = outcome.exit_code
    if outcome.signal is not None:
        found["signal"] = outcome.signal
    if outcome.last_line:
        found["lastLine"] = outcome.last_line
    return found


def _what_follows(
    job: Job, attempt: AttemptId, new: Attempt, outcome: Outcome
) -> tuple[str, str, dict[str, str | int]]:
    """Return the words for the budget and for what follows, with their details."""
    role = job.roles[attempt.role]
    replica = find_replica(job, attempt.role, attempt.index)
    budget, details = _charge_words(job, attempt, outcome)
    by_rule = _by_rule(job, outcome)
    if by_rule:
        return budget, by_rule, details
    is_unpaid = outcome.is_permanent and not outcome.charged
    if replica is None or is_unpaid or not is_failure(outcome):
        return budget, "; another try cannot mend that" if is_unpaid else "", details
    if not has_retry(outcome, rules_of(job, role)):
        return budget, "; no try is left", details
    is_alone = unit_of(job, role, outcome) == "replica"
    retry = replica_retry if is_alone else role_retry
    not_before_ms, _ = retry(job, role, replica, new)
    delay_ms = not_before_ms - new.ended_ms
    details["delayMs"] = delay_ms
    if new.phase is AttemptPhase.ENDED and outcome.cause is Cause.LOST:
        return budget, _when_known_gone(job), details
    follows = f"; again in {duration_words(delay_ms)}" if delay_ms else "; again at once"
    off = rules.kept_off_words(rules.rule_of(job.spec, outcome), new.node)
    return budget, f"{follows}{off}", details


def _charge_words(
    job: Job, attempt: AttemptId, outcome: Outcome
) -> tuple[str, dict[str, str | int]]:
    rule: dict[str, str | int] = {"rule": rules.rule_label(outcome.rule)} if outcome.rule else {}
    if not outcome.charged:
        return "", rule
    limit = limit_of(job, attempt.role, outcome.budget)
    details = {"budgetUsed": outcome.charged, "budgetLimit": limit}
    return f" ({outcome.budget} {outcome.charged} of {limit})", {**rule, **details}


def _by_rule(job: Job, outcome: Outcome) -> str:
    """Return what a rule made of an end that no other try follows; "" none did."""
    rule = rules.rule_of(job.spec, outcome)
    if rule is None or rule.action == rules.RESTART:
        return ""
    return f"; {rules.action_words(rule)} by {rules.rule_label(outcome.rule)}"


def _when_known_gone(job: Job) -> str:
    if job.spec.replace_after_ms < 0:
        return "; again once it is known to be gone"
    latest = duration_words(job.spec.replace_after_ms)
    return f"; again once it is known to be gone, at the latest in {latest}"
