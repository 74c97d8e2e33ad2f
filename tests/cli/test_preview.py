"""primusctl preview: first rows without a daemon, for people and programs, faults in a sentence."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from primusd.ctl.main import run

HEAD = """
name: clicks
roles: {worker: {command: x, data: [rows]}}
data:
"""


@pytest.fixture
def preview(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def call(data: str, *words: str) -> tuple[int, str, str]:
        (tmp_path / "job.yaml").write_text(HEAD + data)
        code = run(["preview", str(tmp_path / "job.yaml"), *words])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return call


def test_rows_of_several_files_are_shown_as_a_table(preview: Any, tmp_path: Path) -> None:
    for number in range(3):
        table = pa.table({"label": [number, 9], "user": ["ann\tx", None]})
        pq.write_table(table, tmp_path / f"{number}.parquet")

    code, out, _ = preview('  rows: {sources: [{files: "*.parquet"}]}', "--rows", "3")

    assert code == 0
    assert out.splitlines() == [
        f"rows: parquet, 3 files, from {tmp_path}/0.parquet",
        "label (int64)\tuser (string)",
        "0\tann\N{REPLACEMENT CHARACTER}x",
        "9\tnull",
        "1\tann\N{REPLACEMENT CHARACTER}x",
    ]


def test_programs_get_a_document_or_a_row_a_line(preview: Any, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n;s\n1;x\n2;y\n3;x\n")
    data = (
        '  rows: {sources: [{files: a.csv}], format: {name: csv, delimiter: ";"}, '
        "filter: s == x, columns: [n]}"
    )

    code, out, _ = preview(data, "rows", "-o", "json")
    _, lines, _ = preview(data, "-o", "jsonl", "--rows", "1")

    assert code == 0
    assert json.loads(out) == {
        "kind": "PreviewList",
        "items": [
            {
                "stream": "rows",
                "format": "csv",
                "files": 1,
                "complete": True,
                "first": f"{tmp_path}/a.csv",
                "columns": [{"name": "n", "type": "int64"}],
                "rows": [{"n": 1}, {"n": 3}],
            }
        ],
    }
    assert lines == '{"n": 1}\n'


def test_bytes_are_shown_as_the_text_they_are(preview: Any, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("é\n\xff\n".encode("latin-1").replace(b"\xe9", "é".encode()))

    _, out, _ = preview("  rows: {sources: [{files: a.txt}]}", "-o", "jsonl")

    assert [json.loads(line) for line in out.splitlines()] == [{"line": "é"}, {"line": "\\xff"}]


def test_a_class_of_the_users_is_found_beside_the_job_file(preview: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "class Words:\n"
        "    def __init__(self, parameters):\n"
        "        self.mark = parameters['mark']\n"
        "    def records(self, file, location):\n"
        "        for word in file.read().split():\n"
        "            yield word + self.mark.encode()\n"
    )
    (tmp_path / "a.words").write_text("one two")
    data = (
        "  rows: {sources: [{files: a.words}], "
        'format: {name: class, class: "mine:Words", parameters: {mark: "!"}}}'
    )

    _, out, _ = preview(data, "-o", "jsonl")

    assert [json.loads(line)["record"] for line in out.splitlines()] == ["one!", "two!"]


@pytest.mark.parametrize(
    ("data", "words", "code", "told"),
    [
        ("  rows: {sources: [{files: a.parquet}]}", [], 1, "a.parquet is no Parquet file"),
        ("  rows: {sources: [{files: none.csv}]}", [], 1, "No such file or directory"),
        ("  rows: {sources: [{files: odd}]}", [], 1, "it begins with b'odd bytes'"),
        ("  rows: {sources: [{files: odd}]}", ["nothing"], 2, "there is no stream nothing"),
        ("  rows: {sources: [{files: odd}], format: odd}", [], 2, "format: found odd"),
        ("  rows: {sources: [{files: odd}]}", ["-o", "name"], 2, "no form of this verb"),
    ],
)
def test_what_is_wrong_is_told_in_a_sentence(
    preview: Any, tmp_path: Path, *, data: str, words: list[str], code: int, told: str
) -> None:
    (tmp_path / "a.parquet").write_bytes(b"nonsense")
    (tmp_path / "odd").write_bytes(b"odd bytes")

    found, out, err = preview(data, *words)

    assert (found, out) == (code, "")
    assert told in err
    assert "Traceback" not in err
