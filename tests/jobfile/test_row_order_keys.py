"""What a job file says of the order of rows: read, rendered, refused with the place."""

import pytest

from primusd.errors import SpecError
from primusd.job.spec import Sample, Shuffle
from primusd.jobfile import parse
from primusd.jobfile.rendering import to_yaml

FILE = """
name: order
roles:
  worker: {{command: x, data: clicks, {role}}}
data:
  clicks:
    sources:
      - {{files: /data/a.{form}, {source}}}
      - {{files: /data/b.{form}}}
    {stream}
"""


def job(stream: str = "", *, source: str = "", role: str = "", form: str = "parquet") -> bytes:
    return FILE.format(stream=stream, source=source, role=role, form=form).encode()


def test_all_of_it_is_read_and_comes_back_as_it_was() -> None:
    text = job("shuffle: {seed: 7, blocks: 16}\n    sample: 0.1\n    mixing: priority",
               source="weight: 3")  # fmt: skip

    spec = parse(text).spec

    stream = spec.data["clicks"]
    assert (stream.shuffle, stream.sample) == (Shuffle(7, 16), Sample(100_000))
    assert (stream.mixing, stream.sources[0].weight) == ("priority", 3)
    assert parse(to_yaml(spec).encode()).spec == spec


@pytest.mark.parametrize(
    ("stream", "source", "mixing"),
    [
        ("", "", "inOrder"),
        ("", "weight: 2", "weighted"),
        ("mixing: roundRobin", "", "roundRobin"),
    ],
)
def test_a_weight_alone_mixes_the_sources(stream: str, source: str, mixing: str) -> None:
    assert parse(job(stream, source=source)).spec.data["clicks"].mixing == mixing


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ({"stream": "shuffle: {seed: -1}"}, "a whole number, 0 or more"),
        ({"stream": "shuffle: {buffer: 1000}"}, "there is no such field"),
        ({"stream": "sample: 1.5"}, "a fraction over 0 to 1"),
        ({"stream": "sample: 0"}, "a fraction over 0 to 1"),
        ({"stream": "mixing: random"}, "roundRobin"),
        ({"stream": "order: strict", "source": "weight: 2"}, "order: strict or mixed sources"),
        ({"stream": "lanes: 65\n    order: strict"}, "1 to 64"),
        ({"stream": "order: strict", "role": "feed: stdin"}, "order: strict needs it"),
        ({"stream": "shuffle: true", "role": "feed: stdin"}, "as lines of text only"),
        ({"stream": "tail: even"}, "uneven"),
        ({"stream": "tail: drop", "role": "feed: stdin"}, "which counts batches"),
        ({"stream": "tail: pad\n    order: strict"}, "not shared at the end"),
        ({"stream": "tail: pad", "role": "restart: {unit: replica}"}, "its trainers step together"),
    ],
)
def test_what_cannot_be_is_refused_in_words(said: dict[str, str], wanted: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(job(**said))

    assert wanted in str([*caught.value.errors])


def test_lines_that_are_shuffled_may_go_through_a_pipe() -> None:
    text = job("shuffle: true", role="feed: stdin", form="txt")

    assert parse(text).spec.data["clicks"].shuffle == Shuffle()


def test_trainers_that_step_together_restart_together() -> None:
    spec = parse(job("tail: drop")).spec

    assert spec.data["clicks"].tail == "drop"
    assert spec.roles["worker"].restart.unit == "role"
    assert parse(to_yaml(spec).encode()).spec == spec
