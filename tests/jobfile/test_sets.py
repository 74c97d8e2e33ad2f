"""`--set`: fields in place of the file's, values for `${VAR}`, and nothing from anywhere else."""

import pytest

from primusd.errors import SpecError
from primusd.jobfile import ParseContext, parse

JOB = b"""
name: ${NAME}
priority: ${PRIORITY}
roles:
  worker: {command: "train ${DAY} ${HOME}", replicas: 2, ports: [main, other], data: rows}
data:
  rows: {sources: [{files: "/data/${DAY}/a.txt"}]}
"""
VARIABLES = ("NAME=day-job", "PRIORITY=7", "DAY=0131")


def test_a_variable_is_filled_in_and_keeps_the_type_of_what_it_makes() -> None:
    spec = parse(JOB, sets=VARIABLES).spec

    assert spec.name == "day-job"
    assert spec.priority == 7
    assert spec.data["rows"].sources[0].files == "/data/0131/a.txt"


def test_a_variable_of_the_shell_stays_the_shell_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/not/mine")

    spec = parse(JOB, sets=VARIABLES).spec

    assert spec.roles["worker"].command == "train 0131 ${HOME}"


def test_a_variable_never_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAY", "0131")

    with pytest.raises(SpecError) as caught:
        parse(JOB, sets=VARIABLES[:2])

    assert [one.path for one in caught.value.errors] == ["data.rows.sources[0].files"]
    assert "--set DAY=" in caught.value.errors[0].hint


def test_a_variable_that_the_file_lacks_is_an_error() -> None:
    with pytest.raises(SpecError) as caught:
        parse(JOB, sets=(*VARIABLES, "DYA=1"))

    assert caught.value.errors[0].at == "--set DYA"


def test_fields_are_set_by_path_and_values_are_yaml() -> None:
    parsed = parse(
        JOB,
        sets=(
            *VARIABLES,
            "roles.worker.replicas=4",
            "roles.worker.env.NEW=x",
            "roles.worker.ports[1]=metrics",
            'labels."a.b"=c',
            "deadline=1h",
            "budgets={application: 9}",
        ),
    )

    worker = parsed.spec.roles["worker"]
    assert (worker.replicas, worker.env, worker.ports) == (4, {"NEW": "x"}, ("main", "metrics"))
    assert parsed.spec.labels == {"a.b": "c"}
    assert parsed.spec.budgets.application == 9
    assert parsed.origins["roles.worker.replicas"] == "--set"
    assert parsed.origins["budgets.application"] == "--set"
    assert parsed.origins["roles.worker.ports[0]"] == "file"


def test_an_error_in_a_value_names_the_option() -> None:
    with pytest.raises(SpecError) as caught:
        parse(JOB, sets=(*VARIABLES, "roles.worker.replicas=many"))

    assert caught.value.errors[0].at == "--set roles.worker.replicas"


@pytest.mark.parametrize(
    "text", ["", "=1", "name", "a..b=1", "roles.worker.replicas.x=1", "roles.worker.ports[9]=x"]
)
def test_what_is_no_assignment_is_refused(text: str) -> None:
    with pytest.raises(SpecError):
        parse(JOB, sets=(*VARIABLES, text))


def test_a_field_of_an_original_file_is_set_by_either_form_s_path() -> None:
    original = b'{"name": "x", "role": [{"roleName": "w", "num": 1, "command": "a"}]}'

    spec = parse(original, sets=("role[0].num=3", "priority=9")).spec
    also = parse(original, sets=("roles.w.replicas=5",)).spec

    assert (spec.roles["w"].replicas, spec.priority) == (3, 9)
    assert also.roles["w"].replicas == 5


def test_names_given_beside_the_file_win_or_fill_in() -> None:
    job = b"name: x\nroles: {a: {command: x}}"

    parsed = parse(job, context=ParseContext(name="y", namespace="ads"))

    assert (parsed.spec.name, parsed.spec.namespace) == ("y", "ads")
    assert (parsed.origins["name"], parsed.origins["namespace"]) == ("client", "client")
