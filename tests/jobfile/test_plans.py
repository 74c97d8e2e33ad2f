"""What a plan says: the rules in force in words, and every name (C09)."""

from typing import Any

import pytest

from primusd.jobfile import ParseContext, parse, plan
from primusd.jobfile.planning import success_rule


def planned(text: str) -> dict[str, Any]:
    parsed = parse(text.encode(), context=ParseContext(base_dir="/home/ann"))
    return plan(parsed.spec, parsed.origins)


def test_a_spec_without_a_success_rule_plans_all_of_worker_c09() -> None:
    plan_document = planned("name: x\nroles: {worker: {command: x, replicas: 3}}")

    assert plan_document["success"] == "all of worker"
    spec = plan_document["spec"]
    assert isinstance(spec, dict)
    assert spec["roles"]["worker"]["success"] == "all"
    origins = plan_document["origins"]
    assert isinstance(origins, dict)
    assert origins["roles.worker.success"] == "default"


@pytest.mark.parametrize(
    ("roles", "rule"),
    [
        ("a: {command: x}, b: {command: x, success: any}", "all of a and any of b"),
        ("a: {command: x, success: {percent: 90}}", "90 percent of a"),
        ("a: {command: x}, ps: {command: x, success: never}", "all of a; then ps is stopped"),
        (
            "a: {command: x}, ps: {command: x, success: never}, "
            "e: {command: x, success: never, drain: 15m}",
            "all of a; then ps and e (after at most 15m) are stopped",
        ),
        ("a: {command: x, data: rows}", "all of a and every row of rows"),
        (
            "a: {command: x, data: {rows: all}}, b: {command: x, data: [rows, more]}",
            "all of a, all of b, every row of rows, no failure of more and every row of rows@a",
        ),
    ],
)
def test_the_success_rule_is_told_in_words(roles: str, rule: str) -> None:
    streams = (
        "{rows: {sources: [{files: a.txt}]}, more: {sources: [{files: b.txt}], leftover: allow}}"
    )
    text = f"name: x\nroles: {{{roles}}}\ndata: {streams}"

    spec = parse(text.encode(), context=ParseContext(base_dir="/d")).spec

    assert success_rule(spec) == rule


def test_failure_rules_say_what_starts_again_how_often_and_when() -> None:
    rules = planned(
        "name: x\n"
        "roles: {a: {command: x, restart: {unit: role}, budgets: {application: 0}}}\n"
        "budgets: {infrastructure: 7}"
    )["failure"]

    assert rules == [
        "code 0: completed, never started again",
        "the command cannot be started, or the launcher refuses it: the job fails",
        "a, a crash or out of memory: fails",
        "a, lost or preempted: all of a starts again; 20 times within 1d",
        "no progress for 30m after the first: it is told",
    ]


def test_a_budget_of_one_is_once() -> None:
    budgets = "budgets: {application: 1, infrastructure: 1}"
    rules = planned(f"name: x\nroles: {{a: {{command: x}}}}\n{budgets}")["failure"]

    assert rules[2].endswith("doubling to 5m; once within 1d")
    assert rules[3].endswith("the replica starts again; once within 1d")


@pytest.mark.parametrize("end", ["deadline: 1d", "maxReplicaHours: 5"])
def test_a_job_that_nothing_ends_is_warned_of(end: str) -> None:
    text = (
        "name: x\nroles: {a: {command: x}, h: {command: x, success: never}}\n"
        "failure: [{exitCode: 3, action: fail}, {cause: completed, budget: none}]"
    )

    (warning,) = parse(text.encode()).warnings

    assert warning.startswith("failure[1]: a never completes")
    assert parse(f"{text}\n{end}".encode()).warnings == ()


def test_a_plan_of_twenty_thousand_replicas_is_small() -> None:
    names = planned("name: x\nroles: {worker: {command: x, replicas: 20000}}")["names"]

    assert names == {
        "worker-0": {"folder": "worker-0"},
        "worker-19999": {"folder": "worker-19999"},
    }


def test_a_plan_against_a_live_job_shows_the_difference() -> None:
    old = parse(b"name: x\nroles: {a: {command: x}}").spec
    new = parse(b"name: x\npriority: 9\nroles: {a: {command: x}}")

    assert plan(new.spec, new.origins, old)["diff"] == [{"path": "priority", "from": 50, "to": 9}]
