"""What goes into a trainer's log when it hangs, and who it is asked of (C26)."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from primus.wire import pack_control
from primusd.datafeed.delivery.desk import Desk
from primusd.datafeed.delivery.trainer_socket import TrainerConnection
from primusd.executor.dumping import py_spy_text
from primusd.executor.logs import Output, read_log
from primusd.job.ids import AttemptId

ATTEMPT = AttemptId("j1", "worker", 0, 1)
SLEEPER = "import time\ndef waits_for_nobody():\n    time.sleep(60)\nwaits_for_nobody()\n"


@pytest.fixture
def sleeper() -> Iterator[int]:
    """A Python program without the SDK that does nothing for long."""
    with subprocess.Popen(
        [sys.executable, "-c", "print(1, flush=True)\n" + SLEEPER], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


def greeted(number: object) -> dict[int, int]:
    """Return what a desk knows of signals after a hello with this number."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        desk = Desk((), ATTEMPT, lambda: 0.0)
        connection = TrainerConnection(desk, ours, "")
        theirs.sendall(pack_control({"op": "hello", "stacks": number}))
        connection.drain()
        return desk.stack_signals


def test_the_process_that_says_it_has_a_signal_is_known_by_the_kernels_word() -> None:
    assert greeted(signal.SIGRTMIN + 7) == {os.getpid(): signal.SIGRTMIN + 7}


@pytest.mark.parametrize("number", [0, signal.SIGKILL, signal.SIGTERM, 65, -1, "9", True, None])
def test_only_real_time_signals_are_ever_sent(number: object) -> None:
    assert greeted(number) == {}


def test_a_phase_ends_with_the_connection_that_declared_it() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        desk = Desk((), ATTEMPT, lambda: 0.0)
        connection, other = TrainerConnection(desk, ours, ""), TrainerConnection(desk, theirs, "")
        theirs.sendall(pack_control({"op": "phase", "name": "evaluation"}))
        connection.drain()

        with desk.changed:
            other.close()
            assert desk.phase == "evaluation"
            connection.close()
            assert desk.phase == ""


def test_what_we_note_is_in_the_log_and_no_line_of_the_trainers(tmp_path: Path) -> None:
    output = Output(
        tmp_path, file_bytes_max=1 << 20, files_max=2, patterns=("primusd",), wall_ms=lambda: 0
    )
    output.take("stderr", b"the last line of the trainer\n")
    output.note("stderr", "[primusd: worker-0/1 hangs]\n")
    output.close()
    output.note("stderr", "too late\n")

    assert b"worker-0/1 hangs" in read_log(tmp_path, "stderr", 0, 1 << 20).data
    assert output.last_lines == "the last line of the trainer\n"
    assert output.matched == ()


def test_a_dumper_that_cannot_be_started_or_says_nothing_is_no_trouble(sleeper: int) -> None:
    for program in ("/no/such/program", "/bin/true"):
        assert anyio.run(py_spy_text, program, sleeper) == ""


@pytest.mark.skipif(shutil.which("py-spy") is None, reason="py-spy is not installed here")
def test_py_spy_shows_where_a_program_without_the_sdk_stands(sleeper: int) -> None:
    program = shutil.which("py-spy")
    assert program is not None

    told = anyio.run(py_spy_text, program, sleeper)

    assert "waits_for_nobody" in told


def test_a_trainer_that_imports_the_sdk_prints_its_own_stacks_on_the_signal() -> None:
    program = (
        "import time\nfrom primus import stacks\ndef waits_for_nobody():\n"
        "    print(stacks.listen(), stacks.listen(), flush=True)\n    time.sleep(60)\n"
        "waits_for_nobody()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        number, again = map(int, process.stdout.readline().split())
        process.send_signal(number)
        lines = [process.stderr.readline() for _ in range(3)]
        process.kill()

    assert number == again
    assert number in range(signal.SIGRTMIN, signal.SIGRTMAX + 1)
    assert any("waits_for_nobody" in line for line in lines), lines


def test_a_child_that_was_forked_has_the_signal_too() -> None:
    program = (
        "import os\nfrom primus import stacks\nfirst = stacks.listen()\n"
        "child = os.fork()\n"
        "if not child:\n    os._exit(0 if stacks.listen() == first > 0 else 1)\n"
        "os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )

    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_signal_that_the_trainer_uses_itself_is_left_to_it() -> None:
    program = (
        "import signal\nfrom primus import stacks\n"
        "signal.signal(stacks.NUMBER, lambda *_: None)\nprint(stacks.listen())\n"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)

    assert done.stdout.strip() == b"0"
