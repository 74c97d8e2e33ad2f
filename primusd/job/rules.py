"""The `failure` rules of a job: which one an end meets, and what it makes of the outcome.

The first rule that holds decides, with the outcome and once like it (docs/jobspec.md, "Failure
rules"). An end that we asked for meets none.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from msgspec.structs import replace

from primusd.job.model import Attempt, Outcome
from primusd.job.outcome import signal_name
from primusd.job.phases import Budget, Cause, StopReason
from primusd.job.spec import FailureRule, JobSpec
from primusd.units import format_bytes, format_duration

RESTART, FAIL, GIVE_UP, COMPLETE = "restart", "fail", "giveUp", "complete"
ACTIONS = (RESTART, FAIL, GIVE_UP, COMPLETE)
BUDGETS: Mapping[str, Budget] = MappingProxyType(
    {"application": Budget.APPLICATION, "infrastructure": Budget.INFRASTRUCTURE}
    | {"none": Budget.NONE}
)

_NAMES = {
    Cause.CRASHED: "crashed",
    Cause.OUT_OF_MEMORY: "outOfMemory",
    Cause.LOST: "lost",
    Cause.NODE_LOST: "nodeLost",
    Cause.PREEMPTED: "preempted",
    Cause.EXECUTOR_FAILED: "executorFailed",
    Cause.START_FAILED: "startFailed",
    Cause.LAUNCH_FAILED: "launchFailed",
    Cause.COMPLETED: "completed",
}
_STOPS = (
    StopReason.HUNG,
    StopReason.PREEMPTED,
    StopReason.START_TIMEOUT,
    StopReason.NO_REGISTRATION,
    StopReason.PLACEMENT,
)
"""Stops of ours that are failures all the same."""
CAUSES = tuple(dict.fromkeys((*_NAMES.values(), *(reason.value for reason in _STOPS))))
"""What `cause` of a rule may name."""

MEMORY_PER_MILLE = 1500
"""Growth after an end by want of memory where no rule says otherwise."""


def cause_name(outcome: Outcome) -> str:
    """Return an end's cause as rules name it; "" it was a stop that is no failure."""
    if outcome.cause is not Cause.STOPPED:
        return _NAMES[outcome.cause]
    reason = outcome.stop_reason
    return reason.value if reason in _STOPS and outcome.budget is not Budget.NONE else ""


def judge(spec: JobSpec, role: str, outcome: Outcome) -> Outcome:
    """Return the outcome with what the first rule that holds makes of it."""
    seen = matched_rules(spec, role, outcome.matched)
    for position, rule in enumerate(spec.failure):
        has_line = not rule.log_match or position in seen
        if has_line and _holds(rule, role, outcome):
            return _with_rule(outcome, position + 1, rule)
    return outcome


def _holds(rule: FailureRule, role: str, outcome: Outcome) -> bool:
    """Return whether an end meets every condition of a rule but that on the logs."""
    name = cause_name(outcome)
    if not name or (rule.roles and role not in rule.roles):
        return False
    if outcome.cause is Cause.COMPLETED and "completed" not in rule.causes:
        # Nothing but its name, or its code, makes an end without a fault one.
        if 0 not in rule.exit_codes:
            return False
    elif rule.causes and name not in rule.causes:
        return False
    if rule.exit_codes and outcome.exit_code not in rule.exit_codes:
        return False
    return not rule.signals or outcome.signal in rule.signals


def _with_rule(outcome: Outcome, number: int, rule: FailureRule) -> Outcome:
    found = replace(outcome, rule=number, action=rule.action, is_permanent=rule.action == FAIL)
    if rule.action == COMPLETE:
        return replace(found, budget=Budget.NONE)
    if rule.action == RESTART and rule.budget:
        return replace(found, budget=BUDGETS[rule.budget])
    if outcome.budget is Budget.NONE:
        # It was done, or could not be mended: a failure by this rule's word.
        return replace(found, budget=Budget.APPLICATION)
    return found


def rule_of(spec: JobSpec, outcome: Outcome | None) -> FailureRule | None:
    """Return the rule that decided an end, None when none did."""
    if outcome is None or not 0 < outcome.rule <= len(spec.failure):
        return None
    return spec.failure[outcome.rule - 1]


def endless_rule(spec: JobSpec, role: str) -> int:
    """Return the number of the rule by which a role that completes never does; 0 none.

    Each clean end begins anew by it and is charged to nobody, so no budget ends the job. What a log
    has to say first may not come, so a rule that looks into it is no such rule.
    """
    clean = Outcome(Cause.COMPLETED, Budget.NONE, exit_code=0)
    for position, rule in enumerate(spec.failure):
        if not rule.log_match and _holds(rule, role, clean):
            is_endless = rule.action == RESTART and rule.budget == "none"
            return position + 1 if is_endless else 0
    return 0


def log_rules(spec: JobSpec, role: str) -> tuple[int, ...]:
    """Return the positions of the rules that look into the logs of a role."""
    return tuple(
        position
        for position, rule in enumerate(spec.failure)
        if rule.log_match and (not rule.roles or role in rule.roles)
    )


def log_patterns(spec: JobSpec, role: str) -> tuple[str, ...]:
    """Return what the executor looks for in a role's logs: one for each of `log_rules`."""
    return tuple(spec.failure[position].log_match for position in log_rules(spec, role))


def matched_rules(spec: JobSpec, role: str, matched: tuple[int, ...]) -> tuple[int, ...]:
    """Return the positions of the rules whose patterns an executor says it saw."""
    known = log_rules(spec, role)
    return tuple(known[one] for one in matched if 0 <= one < len(known))


def grown_bytes(spec: JobSpec, role: str, attempt: Attempt) -> int:
    """Return the memory that the attempt after this one asks for; 0 no other amount."""
    outcome = attempt.outcome
    had = attempt.memory_bytes or spec.roles[role].resources.memory_bytes
    if outcome is None or not had:
        return 0
    rule = rule_of(spec, outcome)
    per_mille = rule.memory_per_mille if rule is not None else 1000
    if rule is None and outcome.cause is Cause.OUT_OF_MEMORY:
        per_mille = MEMORY_PER_MILLE
    wanted = had * per_mille // 1000
    if rule is not None and rule.memory_max_bytes:
        wanted = min(wanted, rule.memory_max_bytes)
    return wanted if wanted > had else 0


def rule_label(number: int) -> str:
    """Return what a rule is called: its place in the file, `failure[1]`."""
    return f"failure[{number - 1}]"


def kept_off_words(rule: FailureRule | None, node: str) -> str:
    """Return that a rule wants the job off the node of an end: `, off n2 for 1h`; "" none does."""
    if rule is None or rule.action != RESTART or not rule.exclude_node_ms or not node:
        return ""
    return f", off {node} for {format_duration(rule.exclude_node_ms)}"


def condition_words(rule: FailureRule) -> str:
    """Return what has to hold, as people read it: `exit code 3 or 4 of worker`."""
    words = " and ".join(_conditions(rule)) or "any failure"
    return f"{words} in {_either(rule.roles)}" if rule.roles else words


def _conditions(rule: FailureRule) -> Iterator[str]:
    if rule.causes:
        yield _either(rule.causes)
    if rule.exit_codes:
        yield f"exit code {_either(map(str, rule.exit_codes))}"
    if rule.signals:
        yield _either(map(signal_name, rule.signals))
    if rule.log_match:
        yield f"a line like {rule.log_match!r}"


def _either(words: "Iterator[str] | tuple[str, ...] | map[str]") -> str:
    found = list(words)
    return " or ".join((", ".join(found[:-1]), found[-1]) if len(found) > 1 else found)


_ACTION_WORDS = {
    FAIL: "the job fails",
    GIVE_UP: "the replica gets no other try",
    COMPLETE: "it counts as completed",
}


def action_words(rule: FailureRule) -> str:
    """Return what follows, as people read it."""
    if rule.action != RESTART:
        return _ACTION_WORDS[rule.action]
    units = {"replica": " of the replica", "role": " of its role", "job": " of the job", "": ""}
    return ", ".join((f"restart{units[rule.unit]}", *_details(rule)))


def _details(rule: FailureRule) -> Iterator[str]:
    if rule.delay_ms >= 0:
        yield f"after {format_duration(rule.delay_ms)}" if rule.delay_ms else "at once"
    if rule.budget:
        yield "charged to nobody" if rule.budget == "none" else f"charged as {rule.budget}"
    if rule.memory_per_mille > 1000:
        most = f", at most {format_bytes(rule.memory_max_bytes)}" if rule.memory_max_bytes else ""
        yield f"with {rule.memory_per_mille / 1000:g} times the memory{most}"
    if rule.exclude_node_ms:
        yield f"not on that node for {format_duration(rule.exclude_node_ms)}"
