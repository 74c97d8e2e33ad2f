"""What a job file says of a transform: read, rendered, refused with the place."""

import pytest

from primusd.errors import SpecError
from primusd.job.formats import plan_of, transform_of
from primusd.job.spec import Transform
from primusd.jobfile import parse
from primusd.jobfile.rendering import to_yaml

FILE = """
name: transforms
roles:
  worker: {{command: x, data: clicks, {role}}}
data:
  clicks:
    sources: [{{files: /data/a.txt}}]
    transform: {transform}
"""


def job(transform: str, role: str = "") -> bytes:
    return FILE.format(transform=transform, role=role).encode()


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ('"prep:features"', Transform("prep:features")),
        ('{function: "a.b:c"}', Transform("a.b:c")),
        (
            '{function: "a:b", workers: 2, rows: mayDrop, parameters: {k: v}, memory: 4Gi}',
            Transform("a:b", 2, may_drop=True, parameters={"k": "v"}, memory_bytes=4 << 30),
        ),
    ],
)
def test_a_transform_is_read_and_comes_back_and_reaches_the_reader(
    said: str, wanted: Transform
) -> None:
    spec = parse(job(said)).spec

    assert spec.data["clicks"].transform == wanted
    assert parse(to_yaml(spec).encode()).spec == spec
    assert transform_of(plan_of(spec.data["clicks"])) == wanted


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("features", "module:function"),
        ("{workers: 2}", "function is missing"),
        ('{function: "a:b", workers: 0}', "a whole number, 1 to 64"),
        ('{function: "a:b", rows: fewer}', "mayDrop"),
        ('{function: "a:b", parameters: [x]}', "a mapping of texts"),
        ('{function: "a:b", parameters: {k: 1}}', "a text"),
        ('{function: "a:b", memory: 1Mi}', "256Mi to 1Ti"),
        ('{function: "a:b", zzz: 2}', "there is no such field"),
    ],
)
def test_what_is_wrong_is_refused_with_what_is_allowed(said: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(job(said))

    assert "data.clicks.transform" in str(caught.value)
    assert words in str(caught.value)


def test_transformed_rows_do_not_go_to_a_pipe_as_they_stand_in_the_file() -> None:
    with pytest.raises(SpecError, match=r"allowed: lines"):
        parse(job('"a:b"', role="feed: stdin, framing: raw"))
