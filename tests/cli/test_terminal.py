"""primusctl as a process: on a terminal, in a pipe, and when a person presses Ctrl-C."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.edges.api_server import Server, serve

CTL = Path(sys.executable).parent / "primusctl"
COLOR = "\x1b["


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serve(tmp_path) as running:
        running.node()
        yield running


def environment(server: Server, **more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PRIMUS")}
    kept.pop("NO_COLOR", None)
    return {**kept, "PRIMUS_ADDRESS": f"unix:{server.socket}", "TERM": "xterm", **more}


def on_terminal(server: Server, *words: str, **more: str) -> str:
    """Run primusctl on a terminal of its own and return all that it showed."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [CTL, *words], env=environment(server, **more), stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    shown = b""
    end_s = time.monotonic() + 20
    while time.monotonic() < end_s:
        if select.select([ours], [], [], 0.1)[0]:
            try:
                part = os.read(ours, 65_536)
            except OSError:
                break
            if not part:
                break
            shown += part
    os.close(ours)
    process.wait(timeout=20)
    return shown.decode().replace("\r\n", "\n")


def test_a_table_is_aligned_and_coloured_on_a_terminal_and_tabbed_in_a_pipe(
    server: Server,
) -> None:
    uid = str(server.submit()["uid"])
    server.run_job(uid)

    shown = on_terminal(server, "list")
    plain = on_terminal(server, "list", NO_COLOR="1")
    flagged = on_terminal(server, "list", "--no-color")
    piped = subprocess.run(
        [CTL, "list"], env=environment(server), capture_output=True, text=True, check=True
    ).stdout

    assert COLOR in shown
    assert COLOR not in plain + flagged + piped
    assert re.search(r"^hello  Running  2/2 ", plain, re.MULTILINE)
    assert piped.splitlines()[1].startswith("hello\tRunning\t2/2\t")


def test_waiting_shows_a_bar_on_a_terminal_and_leaves_the_verdict(server: Server) -> None:
    job = server.folder / "job.yaml"
    job.write_text("name: hello\nroles: {worker: {command: [sleep, '1']}}\n")

    def play() -> None:
        server.until(lambda: bool(server.open_watches))
        uid = server.world.admission.names["default", "hello"]
        server.run_job(uid)
        server.end_attempts(uid)

    edges = threading.Thread(target=play)
    edges.start()
    shown = on_terminal(server, "submit", str(job), "--wait")
    edges.join()

    assert shown.startswith("hello submitted")
    assert "Starting" in shown
    assert "━" in shown
    assert re.search(r"hello .*Succeeded.*: 1 worker completed", shown)


def test_ctrl_c_while_waiting_leaves_the_job_and_says_how_to_end_it(server: Server) -> None:
    uid = str(server.submit()["uid"])
    server.run_job(uid)
    process = subprocess.Popen(
        # A test run in the background has SIGINT ignored, and would hand that on.
        ["env", "--default-signal=INT", CTL, "wait", "hello"],
        env=environment(server),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    server.until(lambda: bool(server.open_watches))

    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=20)

    assert process.returncode == 130
    assert stderr == (
        "detached: the job runs on; come back: primusctl wait hello --for ended; "
        "end it: primusctl cancel hello\n"
    )
    assert not server.world.jobs[uid].is_final


def test_following_the_events_of_a_job_ends_with_it_whatever_the_level(server: Server) -> None:
    uid = str(server.submit()["uid"])
    server.run_job(uid)
    process = subprocess.Popen(
        [CTL, "events", "hello", "-f", "--level", "warning"],
        env=environment(server),
        stdout=subprocess.PIPE,
        text=True,
    )
    server.until(lambda: bool(server.open_watches))

    server.end_attempts(uid)

    said, _ = process.communicate(timeout=20)
    assert (said, process.returncode) == ("", 0)
    later = subprocess.run(
        [CTL, "events", "hello", "-f"],
        env=environment(server),
        stdout=subprocess.PIPE,
        check=True,
        timeout=20,
    )
    assert b"hello ended after" in later.stdout


def test_a_followed_log_is_written_at_once_into_a_pipe(server: Server) -> None:
    uid = str(server.submit()["uid"])
    server.run_job(uid)
    folder = server.state / "jobs" / uid / "worker-0" / "a1"
    folder.mkdir(parents=True)
    (folder / "stdout.log").write_text("so far\n")
    process = subprocess.Popen(
        [CTL, "logs", "hello", "-f"], env=environment(server), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None

    try:
        ready, _, _ = select.select([process.stdout], [], [], 20)

        assert ready
        assert process.stdout.readline() == "worker-0  so far\n"
        assert not server.world.jobs[uid].is_final
    finally:
        server.end_attempts(uid)
        process.communicate(timeout=20)


def test_a_reader_that_has_seen_enough_is_no_error(server: Server) -> None:
    for number in range(30):
        server.submit(name=f"job-{number}", labels={f"l{n}": "x" * 200 for n in range(60)})

    done = subprocess.run(
        ["/bin/bash", "-o", "pipefail", "-c", f"{CTL} list -o jsonl | head -c 10"],
        env=environment(server),
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0
    assert done.stdout.startswith('{"kind"')
    assert done.stderr == ""


def test_starting_up_loads_neither_the_api_nor_anything_heavy(server: Server) -> None:
    code = (
        "import sys; from primusd.ctl.main import run; run(['version']); "
        "print(sorted({'aiohttp', 'anyio', 'rich', 'numpy', 'msgspec', 'ruamel', 'structlog'} "
        "& {name.split('.')[0] for name in sys.modules}))"
    )

    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(server),
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.splitlines()[-1] == "[]"


def test_words_are_completed_without_a_daemon() -> None:
    def completed(words: str, index: int) -> list[str]:
        asked = {"COMP_WORDS": words, "COMP_CWORD": str(index)}
        done = subprocess.run(
            [CTL],
            env={**os.environ, "_PRIMUSCTL_COMPLETE": "bash_complete", **asked},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.split()

    assert completed("primusctl l", 1) == ["plain,list", "plain,logs", "plain,leader"]
    assert completed("primusctl wait --f", 2) == ["plain,--for"]
