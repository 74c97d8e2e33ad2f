"""Original job files: converted with their meaning, every idle field named (A1, A14)."""

import json
from pathlib import Path

import pytest

from primusd.compat.converting import convert
from primusd.compat.environment import original_environment
from primusd.compat.original import camel, is_original
from primusd.errors import NotYetError, SpecError
from primusd.jobfile import ParseContext, Parsed, convert_file, parse, write_yaml

EXAMPLES = Path(__file__).parents[2] / "examples" / "original"


def example(name: str) -> Parsed:
    path = EXAMPLES / name
    return parse(path.read_bytes(), filename=name, context=ParseContext(base_dir=str(EXAMPLES)))


def role(**fields: object) -> dict[str, object]:
    return {"roleName": "worker", "num": 1, "command": "true", "successPercent": 100} | fields


def parsed(*roles: dict[str, object], **fields: object) -> Parsed:
    return parse(json.dumps({"name": "x", "role": list(roles), **fields}).encode())


def failover(**fields: object) -> dict[str, object]:
    return {"failover": {"commonFailoverPolicy": fields}}


def test_hello_is_three_roles_that_must_all_complete_a1() -> None:
    spec = example("hello.json").spec

    assert {name: one.success.kind for name, one in spec.roles.items()} == {
        "chief": "all",
        "ps": "all",
        "worker": "all",
    }
    assert spec.policy == "gang"
    assert spec.original


def test_ps_and_worker_that_never_end_are_helpers_of_the_chief_a14() -> None:
    spec = example("parameter-server.json").spec

    assert {name: one.success.kind for name, one in spec.roles.items()} == {
        "chief": "all",
        "ps": "never",
        "worker": "never",
    }
    assert [file.path for file in spec.files] == ["stand-in"]


def test_file_input_goes_to_standard_input_of_the_streaming_role() -> None:
    spec = example("input-file-text.json").spec

    worker, stream = spec.roles["worker"], spec.data["default"]
    assert [reading.stream for reading in worker.data] == ["default"]
    assert (worker.feed, worker.framing) == ("stdin", "lines")
    assert stream.sources[0].files == f"{EXAMPLES}/lines/*"
    assert (stream.format, stream.leftover) == ("text", "fail")


def test_every_line_is_a_note_with_a_path_and_none_is_said_twice() -> None:
    for path in EXAMPLES.glob("*.json"):
        warnings = example(path.name).warnings
        assert len(warnings) == len(set(warnings))
        assert all(": " in warning for warning in warnings)
        assert any(warning.startswith("role[0].jvmMemoryMb: ") for warning in warnings)


@pytest.mark.parametrize(
    ("policy", "restarts"),
    [
        ({"maxFailureTimes": 3}, 2),
        ({"maxFailureTimes": 1}, 0),
        ({}, 0),
        ({"maxFailureTimes": 9, "restartType": "NEVER"}, 0),
        ({"maxFailureTimes": "4", "restartType": 0}, 3),
        ({"commonFailover": {"maxFailureTimes": 3}}, 2),
    ],
)
def test_M050_M051_the_nth_end_of_a_replica_trips_so_one_less_is_forgiven(
    policy: dict[str, object], restarts: int
) -> None:
    budgets = parsed(role(**failover(**policy))).spec.roles["worker"].budgets

    assert budgets is not None
    assert (budgets.application, budgets.infrastructure) == (restarts, restarts)


def test_M051_the_count_is_that_of_one_replica_and_not_of_its_role() -> None:
    budgets = parsed(role(num=4, **failover(maxFailureTimes=3))).spec.roles["worker"].budgets

    assert budgets is not None
    assert (budgets.replica, budgets.application, budgets.infrastructure) == (2, 12, 12)


@pytest.mark.parametrize(
    ("policy", "percent", "is_noted"),
    [("FAIL_APP", 50, True), ("FAIL_ATTEMPT", 50, True), (None, 50, True), ("FAIL_APP", 100, False),
     ("NONE", 50, False), ("NONE", 100, True)],
)  # fmt: skip
def test_M051_what_follows_otherwise_here_is_noted(
    policy: str | None, percent: int, *, is_noted: bool
) -> None:
    fields = failover(maxFailureTimes=3, maxFailurePolicy=policy)

    found = parsed(role(num=4, successPercent=percent, **fields), role(roleName="chief"))

    noted = [one for one in found.warnings if ".maxFailurePolicy: " in one]
    assert bool(noted) == is_noted, noted


def test_M050_always_starts_again_what_ended_with_0() -> None:
    policy = failover(maxFailureTimes=3, restartType="ALWAYS")

    (rule,) = parsed(role(**policy)).spec.failure

    assert (rule.action, rule.causes, rule.roles) == ("restart", ("completed",), ("worker",))
    assert rule.budget == "application"


@pytest.mark.parametrize(
    ("policy", "attempts", "reruns"),
    [("FAIL_ATTEMPT", 3, 2), ("FAIL_ATTEMPT", 1, 0), ("FAIL_ATTEMPT", 0, 0), ("FAIL_APP", 3, 0)],
)
def test_M057_another_attempt_of_the_whole_is_a_rerun(
    policy: str, attempts: int, reruns: int
) -> None:
    job = role(**failover(maxFailureTimes=3, maxFailurePolicy=policy))

    assert parsed(job, maxAppAttempts=attempts).spec.reruns == reruns


def test_without_a_failover_policy_nothing_is_started_again() -> None:
    budgets = parsed(role()).spec.roles["worker"].budgets

    assert budgets is not None
    assert (budgets.application, budgets.infrastructure) == (0, 0)


def test_no_percentage_anywhere_means_all_here_and_is_said() -> None:
    found = parsed(role(successPercent=0), role(roleName="ps", successPercent=None))

    assert {one.success.kind for one in found.spec.roles.values()} == {"all"}
    assert any("succeeds before anything ran" in warning for warning in found.warnings)


def test_rows_left_are_allowed_only_where_the_original_would_not_wait() -> None:
    def leftover(graceful: object) -> str:
        files = {"inputs": [{"spec": {"pathPattern": "/d", "namePattern": "*", "textInput": {}}}]}
        manager = {"fileConfig": files, "gracefulShutdown": graceful}
        spec = parsed(role(inputPolicy="STREAMING"), inputManager=manager).spec
        return spec.data["default"].leftover

    assert [leftover(value) for value in ("true", True, False, None)] == [
        "fail",
        "fail",
        "allow",
        "allow",
    ]


def test_our_own_files_are_no_originals() -> None:
    assert not is_original({"name": "x", "roles": {}})
    assert not is_original({"apiVersion": "primus/v1", "role": []})
    assert not is_original([])
    assert is_original({"role": []})
    assert is_original({"input_manager": {}})


@pytest.mark.parametrize("value", [None, 1, "x", [], {}, [[]], {"a": 1}, True, -1, 1.5])
def test_no_value_of_any_field_breaks_the_conversion_c34(value: object) -> None:
    fields = ("name", "role", "files", "env", "scheduler", "inputManager", "gracefulShutdown")
    for field in (*fields, "gracefulShutdownTimeoutMin", "runtimeConf", "queue"):
        convert({"name": "x", "role": [role()], field: value})
    for field in ("roleName", "num", "command", "env", "failover", "inputPolicy", "portNum"):
        convert({"name": "x", "role": [role(**{field: value})], "inputManager": {}})
    for field in ("fileConfig", "kafkaConfig", "workPreserve"):
        convert({"name": "x", "role": [role()], "inputManager": {field: value}})


def test_names_in_snake_case_are_the_same_fields() -> None:
    assert camel("max_failure_times") == "maxFailureTimes"
    assert camel("maxFailureTimes") == "maxFailureTimes"


def test_the_original_s_variables_are_those_its_trainers_look_for() -> None:
    spec = parsed(role(num=3, portNum=2), role(roleName="ps", num=2)).spec

    assert original_environment(spec, "worker", 1, ports=(20001, 20002)) == {
        "EXECUTOR_ID": "1",
        "TOTAL_ORACLES": "3",
        "ROLES_LIST": "worker,ps",
        "NUM_OF_PRIMUS_worker": "3",
        "PRIMUS_ROLE_CATEGORY": "worker",
        "PORT_LIST": "20001,20002",
    }
    assert original_environment(spec, "ps", 0)["PRIMUS_ROLE_CATEGORY"] == "ps"


def test_a_converted_file_is_a_job_file_that_means_the_same() -> None:
    for path in EXAMPLES.glob("*.json"):
        conversion = convert_file(path.read_bytes(), filename=path.name)

        assert conversion is not None
        context = ParseContext(base_dir=str(EXAMPLES))
        again = parse(write_yaml(conversion.document).encode(), context=context)
        assert again.spec == example(path.name).spec
        assert set(conversion.notes) <= set(example(path.name).warnings)


def customized(name: str) -> dict[str, object]:
    own = {"className": name, "params": {"key-prefix": "KP"}}
    spec = {"pathPattern": "/d", "namePattern": "*", "customizedInput": own}
    manager = {"fileConfig": {"inputs": [{"spec": spec}]}}
    return {"name": "x", "role": [role(inputPolicy="STREAMING")], "inputManager": manager}


def test_A6_a_customized_source_is_a_class_in_python() -> None:
    found = parse(json.dumps(customized("clicks:Pairs")).encode(), filename="a.json").spec
    stream = found.data["default"]

    assert stream.format == "class"
    assert stream.decoding.options == {
        "class": "clicks:Pairs",
        "parameters": '{"key-prefix": "KP"}',
    }
    with pytest.raises(SpecError, match="a class of Java does not run here; write it in Python"):
        parse(json.dumps(customized("com.example.Source")).encode(), filename="a.json")


def test_a_file_that_asks_for_what_has_to_come_is_converted_all_the_same() -> None:
    manager = {
        "kafkaConfig": {
            "topics": [
                {
                    "topic": "t",
                    "consumerGroup": "g",
                    "config": {"bootstrap.servers": "a:1,b:2", "max.poll.records": "5"},
                }
            ]
        },
        "workPreserve": {"hdfsConfig": {"stagingDir": "/keep"}},
    }
    file = {"name": "x", "role": [role(inputPolicy="STREAMING")], "inputManager": manager}

    conversion = convert_file(json.dumps(file).encode(), filename="a.json")

    assert conversion is not None
    data = conversion.document["data"]
    assert isinstance(data, dict)
    assert data["default"]["sources"] == [
        {"kafka": {"bootstrap": ["a:1", "b:2"], "topic": "t", "start": "committed", "group": "g"}}
    ]
    assert any("max.poll.records" in note for note in conversion.notes)
    assert data["default"]["staging"] == "/keep"


def test_topics_of_an_original_file_are_followed_as_it_says_m103() -> None:
    topics = [
        {
            "topic": name,
            "consumerGroup": "primus-example",
            "kafkaStartUpMode": mode,
            "startUpTimestamp": 1_700_000_000_000,
            "config": {"bootstrap.servers": "localhost:9092", "enable.auto.commit": "true"},
        }
        for name, mode in (("a", "EARLIEST"), ("b", "TIMESTAMP"), ("c", "GROUP_OFFSETS"))
    ]
    manager = {"kafkaConfig": {"topics": topics, "kafkaMessageType": "PB"}}

    spec = parsed(role(inputPolicy="STREAMING"), inputManager=manager).spec

    sources = [one.kafka for one in spec.data["default"].sources if one.kafka is not None]
    assert [one.start.kind for one in sources] == ["earliest", "time", "committed"]
    assert {one.until.kind for one in sources} == {"never"}
    assert {one.group for one in sources} == {"primus-example"}
    assert spec.roles["worker"].framing == "raw"


def test_a_user_of_the_java_client_is_refused_with_the_place_where_it_belongs() -> None:
    config = {"bootstrap.servers": "k:9092", "security.protocol": "SASL_SSL"}
    manager = {"kafkaConfig": {"topics": [{"topic": "t", "config": config}]}}

    with pytest.raises(NotYetError) as caught:
        parsed(role(inputPolicy="STREAMING"), inputManager=manager)

    assert ["passwordFile" in one.hint for one in caught.value.errors] == [True]


def test_one_of_our_files_is_not_converted_and_a_wrong_one_is_refused() -> None:
    assert convert_file(b"name: x\nroles: {}", filename="a.yaml") is None
    with pytest.raises(SpecError) as caught:
        convert_file(b'{"role": [{"num": "x"}, {"num": -1}]}', filename="a.json")

    assert [one.path for one in caught.value.errors][:2] == ["role[0].num", "role[1].num"]


def test_limit_per_node_is_kept_A30_M026() -> None:
    """The original reads it, and never asks its strategy."""
    found = parsed(role(num=2, scheduleStrategy={"maxReplicasPerNode": 1, "roleCategory": "X"}))

    assert found.spec.roles["worker"].placement.max_per_node == 1
    assert any("roleCategory" in warning for warning in found.warnings)
