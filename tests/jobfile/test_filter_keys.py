"""`filter` in job files: which formats take which conditions, and what a wrong one is told."""

import pytest

from primusd.errors import SpecError
from primusd.job.conditions import Condition, parse_condition
from primusd.job.spec import StreamSpec
from primusd.jobfile import ParseContext, parse

JOB = """
name: job
roles:
  worker: {{command: [cat], data: rows, feed: stdin}}
data:
  rows: {{sources: [{{files: {files}}}], {rest}}}
"""


def stream(files: str, rest: str) -> StreamSpec:
    text = JOB.format(files=files, rest=rest)
    return parse(text.encode(), context=ParseContext(base_dir="/")).spec.data["rows"]


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("line contains GET /a", Condition("line", "contains", ("GET /a",))),
        ("line not  contains 404", Condition("line", "not contains", ("404",))),
        ("line starts with 'it''s'", Condition("line", "starts with", ("it''s",))),
        (r'"my line" ends with "a \"b\""', Condition("my line", "ends with", ('a "b"',))),
        ("a contains b == c", Condition("a", "contains", ("b == c",))),
        ("contains == 3", Condition("contains", "==", (3,))),
    ],
)
def test_a_condition_on_a_text_is_read(text: str, condition: Condition) -> None:
    assert parse_condition(text) == condition


@pytest.mark.parametrize(
    ("files", "form"),
    [("/a.txt", ""), ("/a.log", "format: text, "), ("/a.tfrecord", "format: tfrecord, ")],
)
def test_rows_that_are_bytes_are_picked_by_their_only_column(files: str, form: str) -> None:
    only = "line" if files != "/a.tfrecord" else "record"

    found = stream(files, f'{form}filter: ["{only} contains ERROR", "{only} != x"]')

    assert found.decoding.filter == (f"{only} contains ERROR", f"{only} != x")


@pytest.mark.parametrize(
    ("files", "rest", "sentence"),
    [
        ("/a.txt", "filter: label == 1", "conditions on line, the only column of text"),
        ("/a.txt", "format: raw, filter: chunk == a", "raw gives records as they are"),
        ("/a.txt", "columns: [line]", "text gives lines as they are"),
        ("/a.tfrecord", "filter: label == 1", "conditions on record, the only column of tfrecord"),
        ("/a.csv", "filter: line contains", "'line contains' is no condition"),
    ],
)
def test_a_condition_that_no_row_could_meet_is_refused_with_what_is_allowed(
    files: str, rest: str, sentence: str
) -> None:
    with pytest.raises(SpecError) as caught:
        stream(files, rest)

    assert sentence in " ".join(one.sentence() for one in caught.value.errors)
