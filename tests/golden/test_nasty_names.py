"""Texts that break quoting elsewhere pass through job files unharmed, or are refused (C76)."""

import json
import subprocess
import sys

import pytest

from primusd.errors import PrimusdError, SpecError
from primusd.jobfile import ParseContext, parse, parse_document, render, to_yaml

NASTY = {
    "blanks": "  two  blanks ",
    "double quote": 'a "quoted" word',
    "single quote": "it's",
    "dollar": "$HOME ${HOME} $(id) $$",
    "newline": "one\ntwo\n",
    "carriage return": "one\rtwo\r\n",
    "cjk": "数据 训练",
    "right to left": "אבג \u202eevil\u202c",
    "emoji": "👩‍🔬 family",
    "controls": "bell \x07 escape \x1b[31m delete \x7f next \x85 line \u2028",
    "backslash": "C:\\temp\\new\\x41 \\",
    "yaml": "- {a: [b, #c]} & *d ! | > %e @f `g`: ? ~",
}


@pytest.mark.parametrize("text", NASTY.values(), ids=NASTY)
def test_a_nasty_text_survives_in_command_environment_label_and_path_c76(text: str) -> None:
    document = {
        "name": "nasty",
        "labels": {"note": text},
        "roles": {
            "worker": {
                "command": [sys.executable, "-c", text],
                "env": {"TEXT": text, f"NAME {text}".replace("=", ""): "1"},
                "ready": {"file": f"dir/{text}"},
            },
            "shell": {"command": text, "data": "rows", "workdir": "/data"},
        },
        "data": {"rows": {"sources": [{"files": f"/data/{text}/a.txt"}], "format": "text"}},
    }
    if "${" in text:
        document["roles"]["worker"]["ready"] = "sdk"  # type: ignore[index]  # a test's own dict
        document["labels"] = {"note": text.replace("${HOME}", "")}
        document["data"]["rows"]["sources"] = [{"files": "/data/a.txt"}]  # type: ignore[index]  # as above

    spec = parse_document(document).spec

    worker = spec.roles["worker"]
    assert worker.command == (sys.executable, "-c", text)
    assert worker.env["TEXT"] == text
    assert spec.roles["shell"].command == text
    assert parse(to_yaml(spec).encode(), filename="a.yaml").spec == spec
    assert parse(json.dumps(render(spec)).encode(), filename="a.json").spec == spec


@pytest.mark.parametrize("text", NASTY.values(), ids=NASTY)
def test_a_nasty_name_is_refused_in_one_printable_line_with_a_suggestion_c76(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_document({"name": text, "roles": {text: {"command": "true"}}})

    for problem in caught.value.errors:
        assert problem.sentence().isprintable()
    assert any(problem.path == "name" for problem in caught.value.errors)


@pytest.mark.parametrize("text", NASTY.values(), ids=NASTY)
def test_a_nasty_file_name_and_value_keep_errors_on_one_line_c76(text: str) -> None:
    with pytest.raises(PrimusdError) as caught:
        parse(json.dumps({"name": "x", "roles": text, text: 1}).encode(), filename="job.json")

    assert caught.value.message.isprintable()


@pytest.mark.parametrize("text", NASTY.values(), ids=NASTY)
def test_an_argument_list_reaches_the_program_as_it_was_written_c76(text: str) -> None:
    script = "import sys; sys.stdout.buffer.write(sys.argv[1].encode())"
    command = [sys.executable, "-c", script, text]
    spec = parse_document({"name": "x", "roles": {"worker": {"command": command}}}).spec

    argv = spec.roles["worker"].command
    done = subprocess.run(argv, check=True, capture_output=True, timeout=60)

    assert done.stdout.decode() == text


def test_a_relative_path_with_blanks_is_made_absolute_below_a_folder_with_blanks_c76() -> None:
    document = {
        "name": "x",
        "roles": {"a": {"command": "cat", "data": "rows"}},
        "data": {"rows": {"sources": [{"files": "my data/*.txt"}]}},
    }

    spec = parse_document(document, context=ParseContext(base_dir="/home/ann/my jobs")).spec

    assert spec.data["rows"].sources[0].files == "/home/ann/my jobs/my data/*.txt"


@pytest.mark.parametrize("text", NASTY.values(), ids=NASTY)
def test_a_nasty_text_in_an_original_file_keeps_notes_on_one_line_c76(text: str) -> None:
    role = {"roleName": "w_x", "num": 1, "command": text, "successPercent": 100, text: 1}

    parsed = parse_document({"name": f"x{text}", "role": [role], "files": [f"a#{text}"]})

    assert all(warning.isprintable() for warning in parsed.warnings)
    assert next(iter(parsed.spec.roles.values())).command == ("bash", "-c", text)


def test_a_file_of_a_nasty_name_is_named_on_one_line_c76() -> None:
    with pytest.raises(PrimusdError) as caught:
        parse(b"name: [", filename="two\nlines.yaml")

    assert caught.value.message.startswith("two\\nlines.yaml:")
    assert caught.value.message.isprintable()
