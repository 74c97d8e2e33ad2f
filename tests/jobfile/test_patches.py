"""What of a spec can change while its job lives, and the difference between two specs."""

import msgspec
import pytest
from msgspec.structs import replace

from primusd.errors import ImmutableFieldError, MalformedError, SpecError
from primusd.job.spec import JobSpec
from primusd.jobfile import apply_patch, diff, parse, render, split_sizes
from primusd.jobfile.patching import check_sizes

SPEC = parse(
    b"""
name: x
labels: {a: "1", b: "2"}
deadline: 1h
roles:
  worker: {command: [python, a.py], replicas: 4, budgets: {application: 5}}
  ps: {command: x, success: never}
"""
).spec


def test_priority_budgets_deadline_and_labels_change() -> None:
    patch = {
        "priority": 90,
        "deadline": "2h",
        "labels": {"a": None, "c": "3"},
        "budgets": {"infrastructure": 50},
        "roles": {"worker": {"budgets": {"application": 9}}, "ps": {"budgets": {"within": "1h"}}},
    }

    spec = apply_patch(SPEC, {"spec": patch}).spec

    assert (spec.priority, spec.deadline_ms) == (90, 7_200_000)
    assert spec.labels == {"b": "2", "c": "3"}
    assert (spec.budgets.application, spec.budgets.infrastructure) == (3, 50)
    worker = spec.roles["worker"].budgets
    assert worker is not None
    assert worker.application == 9
    assert apply_patch(SPEC, patch).spec == spec


def test_null_takes_a_field_back_to_its_default() -> None:
    spec = apply_patch(SPEC, {"deadline": None, "labels": None}).spec

    assert (spec.deadline_ms, spec.labels) == (0, {})


@pytest.mark.parametrize(
    "patch",
    [
        {"name": "y"},
        {"namespace": "z"},
        {"roles": {"worker": {"command": "other"}}},
        {"roles": {"worker": {"stop": {"grace": "1s"}}}},
        {"roles": {"ps": None}},
        {"roles": {"new": {"command": "x"}}},
        {"schedule": {"placeTimeout": "1m"}},
        {"files": ["a"]},
    ],
)
def test_anything_else_is_immutable_and_is_named(patch: dict[str, object]) -> None:
    with pytest.raises(ImmutableFieldError) as caught:
        apply_patch(SPEC, patch)

    assert caught.value.errors[0].path.startswith(next(iter(patch)))
    assert caught.value.code == "ImmutableField"


def elastic() -> JobSpec:
    roles = {**SPEC.roles, "worker": replace(SPEC.roles["worker"], minimum=2, replicas=8)}
    return replace(SPEC, roles=roles)


def test_a_number_of_replicas_scales_and_the_rest_of_the_patch_goes_on() -> None:
    patch = {"priority": 60, "roles": {"worker": {"replicas": 3, "budgets": {"application": 1}}}}

    sizes, rest = split_sizes(elastic(), patch)

    assert sizes == {"worker": 3}
    assert rest == {"priority": 60, "roles": {"worker": {"budgets": {"application": 1}}}}


@pytest.mark.parametrize(
    ("size", "allowed"), [(1, "2 to 8"), (9, "2 to 8"), (0, "2 to 8"), (-1, "2 to 8")]
)
def test_a_size_out_of_the_bounds_of_its_role_is_refused(size: int, allowed: str) -> None:
    with pytest.raises(SpecError) as caught:
        split_sizes(elastic(), {"roles": {"worker": {"replicas": size}}})

    (problem,) = caught.value.errors
    assert (problem.path, problem.found) == ("roles.worker.replicas", str(size))
    assert problem.allowed == allowed


def test_a_role_of_one_size_is_not_scaled_and_is_told_how_it_could_be() -> None:
    with pytest.raises(SpecError) as caught:
        check_sizes(SPEC, {"worker": 8, "ps": 2})

    assert [one.path for one in caught.value.errors] == [
        "roles.worker.replicas",
        "roles.ps.replicas",
    ]
    assert caught.value.message == "roles.worker.replicas is 8, may be 4 only"
    assert "{min: 2, max: 8}" in caught.value.hint
    check_sizes(SPEC, {"worker": 4})


def test_the_bounds_themselves_do_not_change() -> None:
    with pytest.raises(ImmutableFieldError) as caught:
        apply_patch(SPEC, {"roles": {"worker": {"replicas": None}}})

    assert [one.path for one in caught.value.errors] == ["roles.worker.replicas"]


def test_a_wrong_value_is_refused_like_in_a_file() -> None:
    with pytest.raises(SpecError) as caught:
        apply_patch(SPEC, {"priority": 101, "deadline": 3})

    assert {one.path for one in caught.value.errors} == {"priority", "deadline"}
    with pytest.raises(MalformedError):
        apply_patch(SPEC, [])


def test_a_patch_that_says_what_is_so_changes_nothing() -> None:
    assert apply_patch(SPEC, {"roles": {"worker": {"replicas": 4}}, "name": "x"}).spec == SPEC
    assert apply_patch(SPEC, render(SPEC)).spec == SPEC


def test_a_difference_names_path_old_and_new_value() -> None:
    new = apply_patch(SPEC, {"priority": 60, "deadline": None, "labels": {"c": "3"}}).spec

    assert diff(SPEC, new) == [
        {"path": "priority", "from": 50, "to": 60},
        {"path": "deadline", "from": "1h"},
        {"path": "labels.c", "to": "3"},
    ]
    assert diff(SPEC, SPEC) == []


def test_a_patch_keeps_a_spec_whose_paths_were_made_absolute() -> None:
    spec = parse(
        b"name: x\nroles: {a: {command: cat, data: r}}\ndata: {r: {sources: [{files: /d/a.txt}]}}"
    ).spec

    patched = apply_patch(spec, {"priority": 1}).spec

    assert patched == msgspec.structs.replace(spec, priority=1)
