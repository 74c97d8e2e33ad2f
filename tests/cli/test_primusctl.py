"""primusctl, told in files: commands, what they print, and how they exit.

`file NAME` and indented lines make a file. `play …` lets edges say something to the daemon. `$ …`
runs a command; then come its standard output, its standard error behind `! `, and `exit N` when
it is not 0. What differs each time (uids, ages, the socket) is replaced. `pytest --rewrite` writes
what came in place of what was expected; the diff is the review.
"""

import io
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from primusd.ctl.client import Client
from primusd.ctl.explaining import trouble_lines
from primusd.ctl.main import VERBS, run
from primusd.ctl.progress import progress_text
from primusd.ctl.reading import restarts
from primusd.executor.cgroup import find_trees
from tests.edges.api_server import NAMESPACE, Server, serve

FOLDER = Path(__file__).parent
STORIES = sorted(FOLDER.glob("*.txt"))


class Story:
    """One file, played against one daemon."""

    def __init__(self, server: Server, folder: Path, hides: Callable[[str], str]) -> None:
        self.server = server
        self._folder = folder
        self._hides = hides

    def told(self, text: str) -> str:
        """Return the file with what came in place of what was expected."""
        out: list[str] = []
        lines = iter(text.splitlines())
        skips = False
        file: list[str] | None = None
        name = ""
        for line in lines:
            if file is not None:
                if line.startswith("  ") or not line.strip():
                    file.append(line[2:])
                    out.append(line)
                    continue
                (self._folder / name).write_text("\n".join(file) + "\n", encoding="utf-8")
                file = None
            if line.startswith("file "):
                name, file, skips = line.split()[1], [], False
                out.append(line)
            elif line.startswith(("#", "play ")) or (not line and not skips):
                skips = False
                out.append(line)
                if line.startswith("play "):
                    self._play(*shlex.split(line)[1:])
            elif line.startswith("$ primusctl "):
                out += [line, *self._run(shlex.split(line)[2:])]
                skips = True
            elif not line:
                skips = False
                out.append(line)
        return "\n".join(out) + "\n"

    def _run(self, words: list[str]) -> list[str]:
        code, stdout, stderr = primusctl(words)
        found = self._hides(stdout).splitlines()
        found += [f"! {line}".rstrip() for line in self._hides(stderr).splitlines()]
        # An empty line ends what is compared.
        found = [line or "." for line in found]
        return [*found, f"exit {code}"] if code else found

    def _play(self, what: str, *words: str) -> None:
        uid = str(self.server.client.get(f"{NAMESPACE}/{words[0]}")["uid"]) if words else ""
        match what:
            case "node":
                self.server.node()
            case "run":
                self.server.run_job(uid)
            case "end":
                self.server.end_attempts(uid, int(words[1]) if len(words) > 1 else 0)
            case "exit":
                _, replica, code, last = words
                self.server.end_attempts(uid, int(code), only=replica, last=last)
            case "read":
                self.server.list_units(uid, words[1], sizes=(1_000, 1_000))
                self.server.run_job(uid)
                self.server.read(uid, 400, words[1])
            case "log":
                _, replica, text = words
                folder = self.server.state / "jobs" / uid / replica / "a1"
                folder.mkdir(parents=True, exist_ok=True)
                with (folder / "stdout.log").open("a", encoding="utf-8") as log:
                    log.write(text + "\n")
            case _:
                raise AssertionError(f"nobody plays {what}")


def primusctl(words: list[str], stdin: str = "") -> tuple[int, str, str]:
    """Run primusctl here; return exit code, standard output and standard error."""
    streams = sys.stdin, sys.stdout, sys.stderr
    out, error = io.BytesIO(), io.BytesIO()
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8")
    sys.stdout = io.TextIOWrapper(out, encoding="utf-8", write_through=True)
    sys.stderr = io.TextIOWrapper(error, encoding="utf-8", write_through=True)
    try:
        code = run(words)
        sys.stdout.flush()
        return code, out.getvalue().decode(), error.getvalue().decode()
    finally:
        sys.stdin, sys.stdout, sys.stderr = streams


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for name in [name for name in os.environ if name.startswith("PRIMUS")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    with serve(tmp_path) as running:
        monkeypatch.setenv("PRIMUS_ADDRESS", f"unix:{running.socket}")
        yield running


def hider(folder: Path) -> Callable[[str], str]:
    """Return what replaces that which differs each time; the width of what is aligned is kept."""
    rules = (
        (re.escape(str(folder / "here")), "<here>"),
        (re.escape(str(folder)), "<folder>"),
        (r"\b06[0-9a-hjkmnp-tv-z]{14}\b", "<uid>"),
        (r"uid:\d+ \(\w+\)", "<caller>"),
        (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{3})?Z", "<time>"),
        (r"\b\d+ m?s\b", "<t>"),
        (r"after \d+m?s\b", "after <t>"),
        (r"(?m)((?:\t|for ))\d+m?s(?=\t|$)", r"\1<age>"),
        (r"\b\d+m?s ago", "<t> ago"),
        (r"(?m)(\d %)\t[\d,]+\t[^\t\n]*$", r"\1\t<speed>\t<left>"),
        (r"term \d+", "term <term>"),
        (r"(?m)^( *term:? +)\d+$", r"\1<term>"),
        (r"\d+ GiB free", "<n> GiB free"),
        (r"[0-9a-f]{64}", "<digest>"),
        (r"(\.backup) [\d.]+Ki", r"\1 <size>"),
        (r"-[0-9a-f]{6}\b", "-<random>"),
        (r"(?m)^(ok|warning) +(memory limits|disk): .*$", r"\2: …"),
    )

    def hide(text: str) -> str:
        for pattern, word in rules:
            text = re.sub(pattern, word, text)
        return text

    return hide


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story(path: Path, server: Server, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    expected = path.read_text(encoding="utf-8")

    found = Story(server, tmp_path / "here", hider(tmp_path)).told(expected)

    if request.config.getoption("--rewrite"):
        path.write_text(found, encoding="utf-8")
    assert found == expected


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_loads_and_has_a_help(verb: str) -> None:
    code, stdout, stderr = primusctl([verb, "--help"])

    assert (code, stderr) == (0, "")
    assert stdout.startswith(f"Usage: primusctl {verb}")
    assert "Options of all verbs: primusctl --help" in stdout


def test_without_a_verb_the_help_is_shown_as_it_is_and_exit_is_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run([]) == 2

    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("Usage: primusctl [OPTIONS] COMMAND")
    assert "submit      Submit a job file." in said.err


def test_progress_names_what_it_counts() -> None:
    stream = {"unit": "rows", "done": 1_200, "perSecond": 7_416, "epoch": 0, "epochs": 1}

    unknown = progress_text({"data": {"clicks": stream}})
    known = progress_text({"data": {"clicks": {**stream, "total": 2_400, "etaMs": 2_000}}})

    assert unknown.endswith("clicks 1,200 rows 7,416 rows/s")
    assert known.endswith("clicks 50 % 7,416 rows/s 2s left")


@pytest.mark.parametrize("words", [["list"], ["run", "--", "true"]], ids=" ".join)
def test_no_daemon_is_exit_5_with_what_was_tried(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIMUS_ADDRESS", f"unix:{tmp_path}/none.sock")

    code, stdout, stderr = primusctl(words)

    assert (code, stdout) == (5, "")
    assert stderr == (
        f"error: no daemon answers at unix:{tmp_path}/none.sock: no such file or directory "
        "(try: start it with: primusd)\n"
    )


def test_doctor_says_by_what_memory_limits_are_kept_as_an_executor_would_find_it(
    server: Server,
) -> None:
    server.node()
    trees = find_trees("auto")

    found = json.loads(primusctl(["doctor", "-o", "json"])[1])

    (limits,) = [one for one in found["checks"] if one["what"] == "memory limits"]
    assert (limits["found"] == "enforced by cgroup v1") == (trees.memory_v1 is not None)
    assert (limits["level"] == "warning") == ("not enforced" in limits["found"])


def test_a_missing_token_is_told_by_the_flag_that_gives_it(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "nobody"))

    code, _, stderr = primusctl(["--address", f"http://127.0.0.1:{server.port}", "list"])

    assert code == 1
    assert stderr.startswith("error: a token is needed (try: --token-file FILE, ")


def test_c34_what_get_prints_can_be_submitted_again(server: Server) -> None:
    server.node()
    server.submit()
    for form in ("yaml", "json", "spec"):
        text = primusctl(["get", "hello", "-o", form])[1]

        code, stdout, stderr = primusctl(["plan", "-", "-o", "json"], stdin=text)

        assert (code, stderr) == (0, "")
        assert json.loads(stdout)["diff"] == []


def test_a_dry_run_as_a_document_is_its_plan_and_a_wait_its_job(server: Server) -> None:
    server.node()
    hello = "name: hello\nroles: {worker: {command: 'true'}}\n"

    code, stdout, _ = primusctl(["submit", "-", "--dry-run", "-o", "json"], hello)

    assert code == 0
    assert json.loads(stdout)["kind"] == "Plan"
    assert primusctl(["get", "hello"])[0] == 3
    server.run_job(str(server.submit(name="hello")["uid"]))
    code, stdout, _ = primusctl(["wait", "hello", "--for", "phase=Running", "-o", "json"])
    assert code == 0
    assert json.loads(stdout)["status"]["phase"] == "Running"


def test_a_shipped_folder_is_sent_once_however_often_it_is_submitted(server: Server) -> None:
    server.node()
    Path("train").mkdir()
    Path("train/a.py").write_text("pass\n", encoding="utf-8")
    Path("train/__pycache__").mkdir()
    text = "name: {}\nfiles: [train/]\nroles: {{worker: {{command: [python, train/a.py]}}}}\n"

    first = primusctl(["submit", "-"], stdin=text.format("one"))
    os.utime("train/a.py", (1, 1))
    again = primusctl(["submit", "-"], stdin=text.format("two"))

    assert (first[0], again[0]) == (0, 0)
    assert first[2] == "sending train (10,240 bytes)\n"
    assert again[2] == ""


def test_c78_a_lost_answer_to_a_submit_makes_no_second_job(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.node()
    real = Client._asked
    lost: list[object] = []

    # Any: whatever the client hands over goes on as it is.
    def asked(self: Client, connection: Any, sent: Any, *rest: Any) -> object:
        response = real(self, connection, sent, *rest)
        if sent.method == "POST" and not lost:
            lost.append(response.read())
            response.close()
            raise ConnectionResetError("the answer was lost")
        return response

    monkeypatch.setattr(Client, "_asked", asked)

    code, stdout, _ = primusctl(
        ["submit", "-"], stdin="name: hello\nroles: {worker: {command: ['true']}}\n"
    )

    assert (code, len(lost)) == (0, 1)
    assert stdout.startswith("hello submitted")
    assert len(server.world.jobs) == 1


NASTY = (
    "plain", "two words", "it's", 'say "hi"', "$HOME", "`id`", "a\nb", "tab\tbed", "日本語", "שלום",
    "-rf", "back\\slash",
)  # fmt: skip


@pytest.mark.parametrize("name", NASTY)
def test_c76_a_nasty_name_of_a_file_arrives_as_it_is(server: Server, name: str) -> None:
    server.node()
    folder = Path(f"in {name}")
    folder.mkdir()
    (folder / name).write_text(name, encoding="utf-8")
    job = {
        "name": "hello",
        "files": [name],
        "roles": {"worker": {"command": ["cat", name], "env": {"NAME": name}}},
    }
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")

    code, _, stderr = primusctl(["submit", str(folder / "job.json"), "-q"])
    shown = json.loads(primusctl(["get", "hello", "-o", "json"])[1])
    again = primusctl(["plan", "-"], stdin=primusctl(["get", "hello", "-o", "yaml"])[1])

    assert code == 0, stderr
    assert shown["spec"]["files"][0]["path"] == name
    assert shown["spec"]["roles"]["worker"]["command"] == ["cat", name]
    assert shown["spec"]["roles"]["worker"]["env"] == {"NAME": name}
    assert again[0] == 0


GOOD = b"name: hello\nroles: {worker: {command: ['true']}}\n"
BOMB = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"%c: &%c [*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c]\n" % (at, at, *(at - 1,) * 9)
    for at in range(ord("b"), ord("k"))
)
BAD = {
    "empty": (b"", "empty"),
    "blank": (b" \n\n", "empty"),
    "binary": (bytes(range(256)) * 8, ""),
    "not_utf8": (GOOD + b"labels: {a: \xff}\n", "UTF-8"),
    "ten_megabytes": (b"name: x\n" + b"# comment\n" * (1 << 20), "4 MiB"),
    "alias_bomb": (BOMB, ""),
    "duplicate_key": (GOOD + b"name: again\n", "name"),
    "wrong_unit": (GOOD + b"deadline: 10 parsecs\n", "deadline"),
    "no_unit": (GOOD + b"deadline: 10\n", "10 what?"),
    "unknown_field": (GOOD + b"dedline: 10m\n", "deadline"),
    "a_list": (b"[1, 2]\n", ""),
    "broken": (b"name: [\n", ""),
    "nested": (b"[" * 5_000, ""),
}


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("verb", ["validate", "submit"])
def test_bad_input_is_one_clear_sentence_and_exit_2(server: Server, verb: str, kind: str) -> None:
    data, word = BAD[kind]
    Path("job.yaml").write_bytes(data)

    code, stdout, stderr = primusctl([verb, "job.yaml"])

    assert (code, stdout) == (2, "")
    first = stderr.splitlines()[0]
    assert first.startswith("error: job.yaml")
    assert word in first
    assert len(first) < 400
    assert "Traceback" not in stderr
    assert not server.world.jobs


@pytest.mark.parametrize("path", [".", "missing.yaml", "job.yaml/x", "a\0b"])
def test_a_path_that_cannot_be_read_is_one_clear_sentence_and_exit_2(
    server: Server, path: str
) -> None:
    Path("job.yaml").write_bytes(GOOD)

    code, stdout, stderr = primusctl(["submit", path])

    assert (code, stdout, len(stderr.splitlines())) == (2, "", 1)
    assert stderr.startswith("error: ")
    assert not server.world.jobs


def test_what_holds_of_a_job_that_runs_is_told_below_the_answers() -> None:
    status: dict[str, object] = {
        "conditions": [
            {"type": "Admitted", "status": True, "message": "all have slots"},
            {"type": "Hanging", "status": True, "message": "a-0: no progress for 2 s"},
            {"type": "DataStarved", "status": False},
        ]
    }

    assert trouble_lines(status) == ["Hanging: a-0: no progress for 2 s"]


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"waiting": 3}, 0),
        ({"waiting": 3, "attempts": 3}, 0),
        ({"active": 3, "attempts": 6}, 3),
        ({"active": 3, "retired": 3, "attempts": 9}, 3),
        ({"active": 3, "waiting": 5, "attempts": 4}, 1),
        ({"retired": 2, "completed": 1, "attempts": 3}, 0),
    ],
    ids=["queued", "suspended", "resumed", "smaller", "elastic", "cancelled"],
)
def test_a_restart_is_an_attempt_after_the_first_of_a_replica(
    counts: dict[str, int], expected: int
) -> None:
    phases = ("waiting", "delayed", "active", "completed", "failed", "retired", "attempts")
    role = dict.fromkeys(phases, 0) | counts

    assert restarts({"roles": {"worker": role}}) == expected
