"""Who starts when: what a job file says, what the original's becomes, and what a plan tells."""

import json
from collections.abc import Mapping

import pytest

from primusd.job.spec import JobSpec
from primusd.jobfile import Parsed, parse, parse_document, plan, render


def spec_of(roles: str, rest: str = "") -> JobSpec:
    return parse(f"name: x\n{rest}\nroles: {roles}\n".encode()).spec


def original(policy: Mapping[str, object], *roles: Mapping[str, object]) -> Parsed:
    """Return an original file with this policy."""
    found = [{"num": 2, "command": "true", "successPercent": 100, **one} for one in roles]
    scheduler = {"schedulePolicy": policy}
    document = {"name": "x", "role": found, "scheduler": scheduler}
    return parse(json.dumps(document).encode())


@pytest.mark.parametrize(
    ("rest", "policy"),
    [
        ("", "dynamic"),
        ("framework: torch", "gang"),
        ("framework: xgboost", "gang"),
        ("schedule: {placeTimeout: 1m}", "dynamic"),
        ("schedule: {roles: [worker]}", "gang"),
        ("schedule: {policy: ordered}", "ordered"),
    ],
)
def test_without_a_word_a_framework_makes_a_gang_and_the_rest_start_as_they_come(
    rest: str, policy: str
) -> None:
    assert spec_of("{worker: {command: x}}", rest).policy == policy


def test_a_minimum_of_all_is_not_the_same_as_a_bare_number_and_both_come_back_as_written() -> None:
    spec = spec_of("{a: {command: x, replicas: 3}, b: {command: x, replicas: {min: 3, max: 3}}}")

    assert (spec.roles["a"].has_minimum, spec.roles["b"].has_minimum) == (False, True)
    rendered = render(spec)
    assert parse_document(rendered, filename="again").spec == spec


def test_the_plan_tells_who_starts_when_in_the_order_in_which_they_start() -> None:
    spec = spec_of(
        "{worker: {command: x, replicas: {min: 2, max: 8}, dependsOn: {ps: ready}},"
        " ps: {command: x, replicas: 3, success: never}, viewer: {command: x, success: never}}"
    )

    assert plan(spec, {})["start"] == [
        "ps: each as it comes",
        "viewer: as soon as it is there",
        "worker: each as it comes, from 2 on, once ps is ready",
    ]


@pytest.mark.parametrize(
    ("rest", "told"),
    [
        (
            "schedule: {policy: gang}",
            ["a: all 2, together with b", "b: together with a"],
        ),
        (
            "schedule: {policy: ordered, step: 1}",
            [
                "a: one by one, each after those before are ready",
                "b: as soon as it is there, once a is ready",
            ],
        ),
        (
            "schedule: {policy: gang, roles: [a]}",
            ["a: all 2 together", "b: as soon as it is there"],
        ),
    ],
)
def test_the_plan_tells_of_gangs_and_steps(rest: str, told: list[str]) -> None:
    spec = spec_of("{a: {command: x, replicas: 2}, b: {command: x}}", rest)

    assert plan(spec, {})["start"] == told


def test_A31_a_dynamic_policy_of_the_original_keeps_its_minimum() -> None:
    spec = original({"dynamicPolicy": {}}, {"roleName": "worker", "num": 3, "minNum": 1}).spec

    worker = spec.roles["worker"]
    assert (spec.policy, worker.minimum, worker.replicas) == ("dynamic", 1, 3)


def test_an_order_of_the_original_is_who_waits_for_whom() -> None:
    policy = {
        "orderPolicy": {
            "rolePolicy": [
                {"roleName": "ps", "scheduleType": "GANG"},
                {"roleName": "worker", "scheduleType": "DYNAMIC"},
            ]
        }
    }
    parsed = original(
        policy,
        {"roleName": "worker", "num": 4, "minNum": 2},
        {"roleName": "ps", "successPercent": 0},
        {"roleName": "other"},
    )

    roles = parsed.spec.roles
    assert list(roles) == ["worker", "ps"]
    assert dict(roles["worker"].depends_on) == {"ps": "started"}
    assert (roles["worker"].minimum, roles["worker"].replicas) == (2, 4)
    assert (roles["ps"].has_minimum, roles["ps"].minimum) == (True, 2)
    assert any("other is not named by the order of roles" in one for one in parsed.warnings)


def test_a_pony_policy_starts_the_parameter_servers_first() -> None:
    spec = original(
        {"ponyPolicy": {"psRoleName": "ps"}},
        {"roleName": "chief", "num": 1},
        {"roleName": "ps", "successPercent": 0},
    ).spec

    assert dict(spec.roles["chief"].depends_on) == {"ps": "started"}
    assert dict(spec.roles["ps"].depends_on) == {}


def test_without_a_policy_of_its_own_the_original_starts_a_gang() -> None:
    assert original({}, {"roleName": "worker", "minNum": 1}).spec.policy == "gang"


def test_a_replacement_is_never_sooner_than_the_end_can_be_known_and_the_file_is_told_so() -> None:
    roles = "roles: {worker: {command: x}}"
    soon = parse(f"{{name: x, schedule: {{replaceAfter: 10s}}, {roles}}}".encode())
    late = parse(f"{{name: x, schedule: {{replaceAfter: 65s}}, {roles}}}".encode())
    never = parse(f"{{name: x, schedule: {{replaceAfter: never}}, {roles}}}".encode())

    assert [one.partition(":")[0] for one in soon.warnings] == ["schedule.replaceAfter"]
    assert "counts as 1m5s" in soon.warnings[0]
    assert late.warnings == never.warnings == ()
    assert never.spec.replace_after_ms == -1


def test_a_helper_with_a_drain_may_wait_for_all_others_to_complete() -> None:
    evaluator = "{command: x, success: never, drain: 15m, dependsOn: {worker: completed}}"

    found = spec_of(f"{{worker: {{command: x}}, evaluator: {evaluator}}}")

    assert found.roles["evaluator"].depends_on == {"worker": "completed"}
