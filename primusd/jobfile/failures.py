"""The `failure` and `hang` parts of a job file: read, and written again."""

import re
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from fractions import Fraction
from typing import TypeVar

from msgspec.structs import replace

from primusd.job.rules import ACTIONS, BUDGETS, CAUSES, COMPLETE, RESTART, endless_rule
from primusd.job.spec import FailureRule, Hang, JobSpec
from primusd.jobfile.document import Path, show_value
from primusd.jobfile.roles import RESTART_UNITS
from primusd.jobfile.section import Findings, Section, is_list, nearest
from primusd.units import format_bytes, format_duration

RULES_MAX = 64
PATTERN_BYTES_MAX = 1024
FACTOR_MAX = 10
DELAY_MS_MAX = 86_400_000
EXCLUDE_MS_MAX = 7 * 86_400_000
HANG_MS_DEFAULT = 1_800_000
HANG_MS_MIN = 1_000
HANG_MS_MAX = 30 * 86_400_000
HANG_ACTIONS = ("report", "restart")
_CONDITIONS = ("cause", "exitCode", "signal", "logMatch", "role")
_OF_RESTART = ("budget", "unit", "delay", "memory", "memoryMax", "excludeNode")
_FACTOR = re.compile(r"x([0-9]{1,2}(?:\.[0-9]{1,3})?)", re.ASCII)
_FACTOR_ALLOWED = f"a factor of x1 to x{FACTOR_MAX}, as x1.5"
_SIGNALS = {one.name.removeprefix("SIG"): int(one) for one in signal.Signals}
_SIGNAL_MAX = 64

_T = TypeVar("_T")


def read_failure(section: Section, roles: Collection[str]) -> tuple[FailureRule, ...]:
    """Return the rules of a job in their order; what is wrong goes to the findings.

    Args:
        section: Of the job.
        roles: Names of its roles.
    """
    if not section.has("failure"):
        return ()
    value = section.raw("failure")
    if not is_list(value) or len(value) > RULES_MAX:
        section.wrong("failure", f"a list of at most {RULES_MAX} rules, as [{{exitCode: 3}}]")
        return ()
    found: list[FailureRule] = []
    for index, one in enumerate(value):
        path = (*section.at("failure"), index)
        if any(_is_for_all(rule) for rule in found):
            section.findings.warn(path, "is never reached: a rule before it holds for every end")
        found.append(_rule(section.findings, path, one, roles))
    return tuple(found)


def _is_for_all(rule: FailureRule) -> bool:
    conditions = (rule.causes, rule.exit_codes, rule.signals, rule.log_match, rule.roles)
    return not any(conditions)


def _rule(findings: Findings, path: Path, value: object, roles: Collection[str]) -> FailureRule:
    rule = Section(findings, path, value, (*_CONDITIONS, "action", *_OF_RESTART))
    found = FailureRule(
        action=rule.choice("action", ACTIONS, RESTART),
        causes=_several(rule, "cause", lambda one: _named(one, CAUSES), CAUSES),
        exit_codes=_several(rule, "exitCode", _exit_code, "a whole number, 0 to 255"),
        signals=_several(rule, "signal", _signal, f"a signal, as SEGV, or 1 to {_SIGNAL_MAX}"),
        log_match=_pattern(rule),
        roles=_several(rule, "role", lambda one: _named(one, roles), tuple(roles)),
        budget=rule.choice("budget", tuple(BUDGETS), ""),
        unit=rule.choice("unit", RESTART_UNITS, ""),
        delay_ms=_bounded(rule, "delay", -1, most_ms=DELAY_MS_MAX),
        memory_per_mille=_factor(rule),
        memory_max_bytes=rule.byte_count("memoryMax", 0, zero=False),
        exclude_node_ms=_bounded(rule, "excludeNode", 0, least_ms=1, most_ms=EXCLUDE_MS_MAX),
    )
    _check_action(rule, found)
    return found


def _check_action(rule: Section, found: FailureRule) -> None:
    if found.action != RESTART:
        for key in _OF_RESTART:
            if rule.has(key):
                rule.wrong(key, "nothing", f"it belongs to action: restart, this is {found.action}")
    if found.action == COMPLETE and found.causes == ("completed",):
        rule.wrong("action", ("restart", "fail", "giveUp"), "what completed counts as completed")
    if found.budget == "none" and found.delay_ms == 0:
        hint = "it would be tried at once and without end"
        rule.wrong("delay", "more than nothing with budget: none", hint)
    if found.memory_max_bytes and found.memory_per_mille == 1000:
        rule.wrong("memoryMax", "memory beside it, as memory: x1.5", "nothing grows without")
    if 0 in found.exit_codes and found.causes and "completed" not in found.causes:
        rule.wrong("exitCode", "1 to 255 with this cause", "code 0 is cause completed")


def check_end(findings: Findings, spec: JobSpec) -> None:
    """Warn of a role that never completes, in a job that nothing else ends."""
    if spec.deadline_ms or spec.max_replica_ms:
        return
    for role in spec.roles.values():
        number = endless_rule(spec, role.name)
        if number and role.success.kind != "never":
            findings.warn(
                ("failure", number - 1),
                f"{role.name} never completes: what ends with code 0 begins anew, charged to "
                "nobody; only a deadline, maxReplicaHours or a person ends the job",
            )


def _several(
    rule: Section,
    key: str,
    read: Callable[[object], _T | None],
    allowed: str | tuple[str, ...],
) -> tuple[_T, ...]:
    """Return the values of a field that has one or a list of them."""
    if not rule.has(key):
        return ()
    value = rule.raw(key)
    values: Sequence[object] = value if is_list(value) else [value]
    if not values:
        rule.wrong(key, "one or more; without the field it is any")
    found: list[_T] = []
    for index, one in enumerate(values):
        path = (*rule.at(key), index) if is_list(value) else rule.at(key)
        known = read(one)
        if known is None:
            names = allowed if isinstance(allowed, tuple) else ()
            hint = nearest(one, names) if isinstance(one, str) else ""
            rule.findings.add(path, found=show_value(one), allowed=allowed, hint=hint)
        elif known in found:
            rule.findings.add(path, found=show_value(one), hint="given twice")
        else:
            found.append(known)
    return tuple(found)


def _named(value: object, names: Collection[str]) -> str | None:
    return value if isinstance(value, str) and value in names else None


def _whole(value: object, low: int, high: int) -> int | None:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return value if is_whole and isinstance(value, int) and low <= value <= high else None


def _exit_code(value: object) -> int | None:
    return _whole(value, 0, 255)


def _signal(value: object) -> int | None:
    if isinstance(value, str):
        return _SIGNALS.get(value.removeprefix("SIG"))
    return _whole(value, 1, _SIGNAL_MAX)


def _pattern(rule: Section) -> str:
    text = rule.text("logMatch")
    if len(text.encode()) > PATTERN_BYTES_MAX:
        rule.wrong("logMatch", f"at most {PATTERN_BYTES_MAX} bytes")
        return ""
    try:
        re.compile(text.encode())
    except re.error as error:
        rule.wrong("logMatch", "a regular expression of Python's re", str(error))
        return ""
    return text


def _bounded(rule: Section, key: str, default: int, *, most_ms: int, least_ms: int = 0) -> int:
    if not rule.has(key):
        return default
    found = rule.duration_ms(key, default, low_ms=least_ms)
    if found > most_ms:
        rule.wrong(key, f"at most {format_duration(most_ms)}")
    return found


def _factor(rule: Section) -> int:
    """Return thousandths of a factor, as x1.5."""
    if not rule.has("memory"):
        return 1000
    value = rule.raw("memory")
    match = _FACTOR.fullmatch(value) if isinstance(value, str) else None
    factor = Fraction(match[1]) if match else Fraction(0)
    if not 1 <= factor <= FACTOR_MAX:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        rule.wrong("memory", _FACTOR_ALLOWED, f"write x{value}" if is_number else "")
        return 1000
    return int(factor * 1000)


def read_hang(section: Section) -> Hang:
    """Return when a trainer of the job counts as hung; by default it is told after 30 minutes."""
    default = Hang(HANG_MS_DEFAULT)
    if not section.has("hang"):
        return default
    if section.raw("hang") == "never":
        return Hang()
    if isinstance(value := section.raw("hang"), str):
        allowed = "never, or a mapping of after, action, phaseAfter"
        section.wrong("hang", allowed, f"write {{after: {value}}}")
        return default
    fields = ("after", "action", "phaseAfter")
    rule = Section(section.findings, section.at("hang"), section.raw("hang"), fields)
    found = Hang(
        _or_never(rule, "after", default.after_ms),
        rule.choice("action", HANG_ACTIONS, default.action),
        _or_never(rule, "phaseAfter", default.phase_after_ms),
    )
    if not found.after_ms and (found.phase_after_ms or found.action != default.action):
        rule.findings.warn(rule.path, "has no effect with after: never")
        return replace(found, action=default.action, phase_after_ms=0)
    return found


def _or_never(rule: Section, key: str, default: int) -> int:
    if rule.raw(key) == "never":
        return 0
    found = _bounded(rule, key, default, most_ms=HANG_MS_MAX)
    if rule.has(key) and found < HANG_MS_MIN:
        rule.wrong(key, f"never, or at least {format_duration(HANG_MS_MIN)}")
    return found


def render_failures(spec: JobSpec) -> Mapping[str, object]:
    """Return both parts in the spelling of a job file."""
    rendered: dict[str, object] = {"hang": _hang(spec.hang)}
    if spec.failure:
        rendered["failure"] = [_written(rule) for rule in spec.failure]
    if spec.reruns:
        rendered["reruns"] = spec.reruns
    return rendered


def _hang(hang: Hang) -> object:
    if not hang.after_ms:
        return "never"
    in_phase = format_duration(hang.phase_after_ms) if hang.phase_after_ms else "never"
    after = format_duration(hang.after_ms)
    return {"after": after, "action": hang.action, "phaseAfter": in_phase}


def _written(rule: FailureRule) -> dict[str, object]:
    rendered: dict[str, object] = {
        "cause": list(rule.causes),
        "exitCode": list(rule.exit_codes),
        "signal": [_signal_written(one) for one in rule.signals],
        "logMatch": rule.log_match,
        "role": list(rule.roles),
        "action": rule.action,
        "budget": rule.budget,
        "unit": rule.unit,
        "delay": format_duration(rule.delay_ms) if rule.delay_ms >= 0 else "",
        "memory": f"x{rule.memory_per_mille / 1000:g}" if rule.memory_per_mille > 1000 else "",
        "memoryMax": format_bytes(rule.memory_max_bytes) if rule.memory_max_bytes else "",
        "excludeNode": format_duration(rule.exclude_node_ms) if rule.exclude_node_ms else "",
    }
    return {key: value for key, value in rendered.items() if value not in ([], "")}


def _signal_written(number: int) -> object:
    return next((name for name, known in _SIGNALS.items() if known == number), number)
