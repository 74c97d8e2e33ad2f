"""What a submit would do: the effective spec, and the rules in force, in words."""

from collections.abc import Mapping

from primusd.job.rules import action_words, condition_words, rule_label
from primusd.job.spec import Hang, JobSpec, RoleSpec, budgets_of, streams_of
from primusd.jobfile.names import DERIVED
from primusd.jobfile.patching import diff
from primusd.jobfile.rendering import render
from primusd.jobfile.schedules import start_rules
from primusd.units import format_duration


def plan(
    spec: JobSpec, origins: Mapping[str, str], old: JobSpec | None = None
) -> dict[str, object]:
    """Return a Plan document but for what only a daemon knows.

    Args:
        spec: What would be submitted.
        origins: Of its values.
        old: The spec of the live job of that name; None there is none.
    """
    return {
        "kind": "Plan",
        "spec": render(spec),
        "origins": dict(origins),
        "diff": [] if old is None else diff(old, spec),
        "names": derived_names(spec),
        "start": start_rules(spec),
        "success": success_rule(spec),
        "failure": failure_rules(spec),
    }


def success_rule(spec: JobSpec) -> str:
    """Return the rule by which the job succeeds: `all of worker`."""
    voters = [role for role in spec.roles.values() if role.success.kind != "never"]
    helpers = [_helper(role) for role in spec.roles.values() if role.success.kind == "never"]
    rules = [f"{_success(role)} of {role.name}" for role in voters]
    for stream, readers in streams_of(spec).items():
        if readers:
            left = spec.data[stream.partition("@")[0]].leftover
            rules.append(f"every row of {stream}" if left == "fail" else f"no failure of {stream}")
    helped = f"; then {_and(helpers)} {'is' if len(helpers) == 1 else 'are'} stopped"
    return _and(rules) + (helped if helpers else "")


def failure_rules(spec: JobSpec) -> list[str]:
    """Return the rules that decide what follows the end of a replica; the first match wins."""
    rules = [
        "code 0: completed, never started again",
        "the command cannot be started, or the launcher refuses it: the job fails",
    ]
    for number, rule in enumerate(spec.failure, start=1):
        rules.append(f"{rule_label(number)}, {condition_words(rule)}: {action_words(rule)}")
    for role in spec.roles.values():
        rules += _role_rules(spec, role)
    if spec.reruns:
        rules.append(f"a budget is used up: all roles begin anew, {spec.reruns} times")
    rules.append(_hang_rule(spec.hang))
    for stream, readers in streams_of(spec).items():
        if readers:
            of = spec.data[stream.partition("@")[0]]
            rules.append(f"{stream}, a bad record: {of.on_bad}{_bad_rows(of.on_bad, of.bad_rows)}")
    return rules


def derived_names(spec: JobSpec) -> dict[str, dict[str, str]]:
    """Return what the first and the last replica of each role are called by the launcher."""
    names: dict[str, dict[str, str]] = {}
    for role in spec.roles.values():
        for index in sorted({0, role.replicas - 1}):
            names[f"{role.name}-{index}"] = {
                derived.what: derived.form.format(
                    job=spec.name, role=role.name, index=index, attempt=1
                )
                for derived in DERIVED
                if derived.launcher == spec.launcher
            }
    return names


def _helper(role: RoleSpec) -> str:
    after = f" (after at most {format_duration(role.drain_ms)})" if role.drain_ms else ""
    return f"{role.name}{after}"


def _success(role: RoleSpec) -> str:
    success = role.success
    return f"{success.percent} percent" if success.kind == "percent" else success.kind


def _and(words: list[str]) -> str:
    return " and ".join((", ".join(words[:-1]), words[-1]) if len(words) > 1 else words)


def _role_rules(spec: JobSpec, role: RoleSpec) -> list[str]:
    budgets = budgets_of(spec, role.name)
    restart = role.restart
    within = format_duration(budgets.within_ms)
    own = f", {budgets.replica} of one replica" if budgets.replica >= 0 else ""
    within += own
    what = {"replica": "the replica", "role": f"all of {role.name}", "job": "the whole job"}
    again = (
        f"{what[restart.unit]} starts again after {format_duration(restart.delay_ms)}, doubling "
        f"to {format_duration(restart.delay_max_ms)}"
    )
    grows = "; out of memory: with 1.5 times as much" if role.resources.memory_bytes else ""
    return [
        f"{role.name}, a crash or out of memory: "
        + (
            f"{again}; {_times(budgets.application)} within {within}{grows}"
            if budgets.application
            else "fails"
        ),
        f"{role.name}, lost or preempted: "
        + (
            f"{what[restart.unit]} starts again; {_times(budgets.infrastructure)} within {within}"
            if budgets.infrastructure
            else "fails"
        ),
    ]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _hang_rule(hang: Hang) -> str:
    if not hang.after_ms:
        return "no progress: nobody looks"
    then = {"report": "it is told", "restart": "it is stopped, which counts as a crash"}
    return f"no progress for {format_duration(hang.after_ms)} after the first: {then[hang.action]}"


def _bad_rows(on_bad: str, bad_rows: int) -> str:
    if on_bad == "fail":
        return ""
    return ", any number of them" if bad_rows < 0 else f", at most {bad_rows}"
