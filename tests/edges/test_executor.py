"""Executors against a head that says what the test wants: starts, output, stops, ends."""

# ruff: noqa: ASYNC221  a test may block its loop

import os
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import anyio
import msgspec
import pytest

from primusd.executor.directory import read_exit_record, read_holder
from primusd.executor.protocol import Ask, Hold, Probe, Start, StartVariables, Stop
from primusd.executor.variables import VALUE_BYTES_MAX
from primusd.job.ids import AttemptId
from tests.edges.node_process import (
    NodeProcess,
    free_ports,
    is_alive,
    pids_with,
    running_node,
    until_dead,
    until_file,
    until_lines,
)
from tests.edges.scripted_head import Executor, attempt_id, launch_order, shell

pytestmark = pytest.mark.anyio

NASTY = (
    "two words",
    "quote'single",
    'quote"double',
    "dollar$HOME",
    "back`tick`",
    "semi;colon",
    "new\nline",
    "star*?[a]",
    "漢字",
    "עברית",
    "emoji 🦆",
    "-dash",
)


async def test_exit_code_and_output_arrive(node: NodeProcess) -> None:
    executor = await node.head.launch(attempt_id(), launch_order(*shell("echo hi; exit 3")))

    ended = await node.head.until_ended(executor)

    assert (ended.code, ended.signal, ended.stop_seen) == (3, None, "")
    assert ended.last_lines == "hi\n"
    assert node.text(attempt_id()) == "hi\n"
    assert read_exit_record(node.directory(attempt_id()).exit) == ended


async def test_a_signal_is_told_as_a_signal(node: NodeProcess) -> None:
    executor = await node.head.launch(attempt_id(), launch_order(*shell("kill -SEGV $$")))

    ended = await node.head.until_ended(executor)

    assert (ended.code, ended.signal) == (None, signal.SIGSEGV)


async def test_a_command_that_is_not_there_is_told_with_its_errno(node: NodeProcess) -> None:
    executor = await node.head.launch(attempt_id(), launch_order("no-such-program"))

    ended = await node.head.until_ended(executor)

    assert (ended.code, ended.signal, ended.start_errno) == (None, None, 2)
    assert ended.last_lines == "no-such-program: command not found\n"
    assert node.text(attempt_id(), "stderr.log") == ended.last_lines


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("plain", "{folder}/plain: permission denied"),
        ("script", "{folder}/script: the interpreter that its first line names is not there"),
        ("absent", "{folder}/absent: no such file or directory"),
    ],
)
async def test_why_a_program_was_not_taken_is_said_as_a_shell_would(
    node: NodeProcess, tmp_path: Path, what: str, said: str
) -> None:
    (tmp_path / "plain").write_text("no program")
    (tmp_path / "script").write_text("#!/no/such/interpreter\n")
    (tmp_path / "script").chmod(0o755)
    executor = await node.head.launch(attempt_id(), launch_order(str(tmp_path / what)))

    ended = await node.head.until_ended(executor)

    assert ended.last_lines == said.format(folder=tmp_path) + "\n"


async def test_a_working_directory_that_is_not_there_is_named(node: NodeProcess) -> None:
    order = msgspec.structs.replace(launch_order("true"), workdir="/no/where")
    executor = await node.head.launch(attempt_id(), order)

    ended = await node.head.until_ended(executor)

    assert ended.last_lines == "/no/where: no such working directory\n"


async def test_every_line_is_kept_c73(node: NodeProcess) -> None:
    """C73: the line count is exact, on both streams."""
    line = "for i in $(seq 5000); do echo out $i; echo err $i >&2; done"
    executor = await node.head.launch(attempt_id(), launch_order(*shell(line)))

    await node.head.until_ended(executor)

    assert node.text(attempt_id()).splitlines() == [f"out {i}" for i in range(1, 5001)]
    assert len(node.text(attempt_id(), "stderr.log").splitlines()) == 5000


async def test_nothing_starts_while_the_gate_is_closed(node: NodeProcess) -> None:
    attempt = attempt_id()
    executor = await node.head.launch(attempt, launch_order(*shell("echo started")))
    executor.run = Hold()

    await node.head.until(lambda: executor.newest and executor.newest.phase == "holding")
    assert node.text(attempt, "executor.log").count("trainer.started") == 0
    await node.head.order(executor, Start(1, "sha256:1", b'{"generation": 1}'))
    ended = await node.head.until_ended(executor)

    assert ended.code == 0
    assert node.text(attempt) == "started\n"


async def test_a_trainer_that_ignores_its_signal_is_killed_after_the_grace_c62(
    node: NodeProcess,
) -> None:
    """C62: signal, grace, kill."""
    line = "trap '' TERM; echo ready; while true; do sleep 0.05; done"
    order = launch_order(*shell(line))
    executor = await node.head.launch(attempt_id(), order)
    await until_file(node.directory(attempt_id()).path / "stdout.log")

    await node.head.order(executor, Stop("preempted", "", 300))
    ended = await node.head.until_ended(executor)

    assert (ended.code, ended.signal, ended.stop_seen) == (None, signal.SIGKILL, "preempted")


async def test_a_trainer_saves_within_its_grace_c62(node: NodeProcess) -> None:
    """C62: what is saved in the grace is complete; the reason stands in the stop file."""
    line = (
        "trap 'cat $PRIMUS_STOP_FILE > reason; echo model > saved; exit 0' TERM;"
        "echo ready; while true; do sleep 0.02; done"
    )
    executor = await node.head.launch(attempt_id(), launch_order(*shell(line)))
    await until_file(node.directory(attempt_id()).path / "stdout.log")

    await node.head.order(executor, Stop("deadline", "the job is over its time", 20_000))
    ended = await node.head.until_ended(executor)

    work = node.directory(attempt_id()).replica_work
    assert (ended.code, ended.stop_seen) == (0, "deadline")
    assert (work / "saved").read_text() == "model\n"
    assert b'"reason":"deadline"' in (work / "reason").read_bytes()


async def test_a_stop_ends_the_whole_tree_c57(node: NodeProcess) -> None:
    """C57: the double-forked grandchild, in a session of its own, goes too."""
    marker = f"tree-{os.urandom(4).hex()}"
    line = "(setsid sh -c 'echo up; sleep 600' &); exec sleep 600"
    order = launch_order(*shell(line), env={"MARKER": marker})
    executor = await node.head.launch(attempt_id(), order)
    await until_file(node.directory(attempt_id()).path / "stdout.log")
    assert len(pids_with(marker)) >= 2

    await node.head.order(executor, Stop("cancelled", "", 2_000))
    ended = await node.head.until_ended(executor)

    assert ended.signal == signal.SIGTERM
    assert pids_with(marker) == []


@pytest.mark.parametrize("rounds", [1, pytest.param(25, marks=pytest.mark.soak)])
async def test_many_short_replicas_that_fork_leave_nothing_c59(
    node: NodeProcess, rounds: int
) -> None:
    """C59: zero zombies, zero leftovers; of 40 replicas, of 1,000 with `make soak`."""
    marker = f"short-{os.urandom(4).hex()}"
    line = "(setsid sleep 600 &); (sleep 600 &); true"
    order = launch_order(*shell(line), env={"MARKER": marker})

    for first in range(0, 40 * rounds, 40):
        attempts = [attempt_id(index=index) for index in range(first, first + 40)]
        executors = [await node.head.launch(attempt, order) for attempt in attempts]
        for executor in executors:
            assert (await node.head.until_ended(executor)).code == 0
        await node.head.until(partial(all_dead, node, attempts))

    assert pids_with(marker) == []
    assert node.process is not None
    assert zombies_below(node.process.pid) == []


def all_dead(node: NodeProcess, attempts: list[AttemptId]) -> bool:
    known = [node.head.node_attempt(attempt) for attempt in attempts]
    return all(one is not None and not one.alive for one in known)


def zombies_below(pid: int) -> list[str]:
    listed = subprocess.run(
        ["ps", "-o", "stat=,pid=,ppid=", "-e"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    rows = [line.split() for line in listed]
    ours = {str(pid), *(row[1] for row in rows if row[2] == str(pid))}
    return [row[1] for row in rows if row[0].startswith("Z") and row[2] in ours]


async def test_an_allotted_port_that_a_stranger_holds_is_named_c65(node: NodeProcess) -> None:
    """C65: the port was stolen between allotment and bind: nothing starts, the port is named."""
    with socket.socket() as thief:
        thief.bind(("", 0))
        thief.listen()
        port = thief.getsockname()[1]
        order = launch_order(*shell("echo never"), ports=(("main", port),))
        executor = await node.head.launch(attempt_id(), order)

        ended = await node.head.until_ended(executor)

    assert ended.executor_error == "portTaken:main"
    assert (ended.code, ended.signal) == (None, None)


async def test_a_port_that_is_stolen_after_our_look_is_not_the_trainers_fault_c65(
    node: NodeProcess,
) -> None:
    """C65: it was free when the executor looked, and taken when the trainer bound it."""
    program = "import os, socket; socket.socket().bind(('', int(os.environ['PRIMUS_PORT'])))"
    (port,) = free_ports(1)
    order = launch_order(sys.executable, "-I", "-S", "-c", program, ports=(("main", port),))
    executor = await node.head.launch(attempt_id(), order)
    executor.run = Hold()
    await node.head.until(lambda: executor.newest and executor.newest.phase == "holding")

    with socket.socket() as thief:
        thief.bind(("", port))
        thief.listen()
        await node.head.order(executor, Start(1, "sha256:1", b'{"generation": 1}'))
        ended = await node.head.until_ended(executor)

    assert (ended.code, ended.executor_error) == (1, "portTaken:main")
    assert "Address already in use" in ended.last_lines


async def test_a_trainer_that_fails_with_its_port_free_is_at_fault_itself(
    node: NodeProcess,
) -> None:
    program = (
        "import os, socket; s = socket.socket(); s.bind(('', int(os.environ['PRIMUS_PORT'])));"
        "s.listen(); c = socket.create_connection(s.getsockname()); raise SystemExit(3)"
    )
    (port,) = free_ports(1)
    order = launch_order(sys.executable, "-I", "-S", "-c", program, ports=(("main", port),))

    ended = await node.head.until_ended(await node.head.launch(attempt_id(), order))

    assert (ended.code, ended.executor_error) == (3, "")


async def test_twenty_trainers_at_once_bind_their_ports_c64(node: NodeProcess) -> None:
    """C64: each gets a port of its own, and can bind it at once."""
    program = (
        "import os, socket; s = socket.socket(); s.bind(('', int(os.environ['PRIMUS_PORT'])));"
        "s.listen(); print(os.environ['PRIMUS_PORTS'])"
    )
    ports = free_ports(20)
    executors = []
    for index, port in enumerate(ports):
        order = launch_order(sys.executable, "-I", "-S", "-c", program, ports=(("main", port),))
        executors.append(await node.head.launch(attempt_id(index=index), order))

    ends = [await node.head.until_ended(executor) for executor in executors]

    assert [ended.last_lines for ended in ends] == [f"main={port}\n" for port in ports]


async def test_a_port_of_the_executors_own_choice_is_reported(node: NodeProcess) -> None:
    order = launch_order(*shell("echo $PRIMUS_PORT"), ports=(("main", 0),))
    executor = await node.head.launch(attempt_id(), order)

    await node.head.until_ended(executor)

    assert executor.newest is not None
    ((name, port),) = executor.newest.ports
    assert (name, node.text(attempt_id())) == ("main", f"{port}\n")
    assert port > 0


async def test_nasty_strings_go_through_unchanged_c76(node: NodeProcess) -> None:
    """C76: blanks, quotes, $, newline, CJK, RTL in arguments, environment, paths and output."""
    program = "import os, sys; sys.stdout.buffer.write(b'|'.join(map(os.fsencode, sys.argv[1:])))"
    program += "; sys.stdout.buffer.write(b'|' + os.fsencode(os.environ['NASTY']))"
    files = tuple(node.head.ship(name.encode(), f"{name}/{name}") for name in NASTY)
    order = launch_order(
        sys.executable, "-I", "-c", program, *NASTY, env={"NASTY": "".join(NASTY)}, files=files
    )
    executor = await node.head.launch(attempt_id(), order)

    ended = await node.head.until_ended(executor)

    work = node.directory(attempt_id()).replica_work
    assert ended.code == 0
    assert node.text(attempt_id()) == "|".join((*NASTY, "".join(NASTY)))
    assert ended.last_lines == node.text(attempt_id())
    assert [(work / name / name).read_text() for name in NASTY] == list(NASTY)


async def test_bytes_that_are_no_text_are_kept_and_shown_replaced_c75(node: NodeProcess) -> None:
    """C75: random bytes, and an emoji cut between two writes, end no stream."""
    program = (
        "import os, time; duck = '🦆'.encode(); os.write(1, b'\\xff\\xfe' + duck[:2]);"
        "time.sleep(0.05); os.write(1, duck[2:] + b'\\x80end')"
    )
    executor = await node.head.launch(
        attempt_id(), launch_order(sys.executable, "-I", "-c", program)
    )

    ended = await node.head.until_ended(executor)

    assert ended.last_lines == "\ufffd\ufffd🦆\ufffdend"
    data = (node.directory(attempt_id()).path / "stdout.log").read_bytes()
    assert data == b"\xff\xfe" + "🦆".encode() + b"\x80end"


async def test_shipped_files_are_fetched_once_for_a_host(node: NodeProcess) -> None:
    script = node.head.ship(b"#!/bin/sh\necho shipped $1\n", "bin/run.sh", mode=0o755)
    order = launch_order("bin/run.sh", "it", files=(script,))

    executors = [await node.head.launch(attempt_id(index=i), order) for i in range(4)]
    ends = [await node.head.until_ended(executor) for executor in executors]

    assert [ended.last_lines for ended in ends] == ["shipped it\n"] * 4
    assert node.head.blob_reads == 1


async def test_a_file_that_is_not_what_it_should_be_is_refused(node: NodeProcess) -> None:
    file = node.head.ship(b"right", "file")
    node.head.blobs[file.digest] = b"wrong"
    executor = await node.head.launch(attempt_id(), launch_order("true", files=(file,)))

    ended = await node.head.until_ended(executor)

    assert ended.executor_error.startswith("files:file: what came does not have the digest")


async def test_a_file_that_no_store_has_is_told_at_once(node: NodeProcess) -> None:
    file = node.head.ship(b"gone", "file")
    del node.head.blobs[file.digest]
    executor = await node.head.launch(attempt_id(), launch_order("true", files=(file,)))

    ended = await node.head.until_ended(executor)

    assert ended.executor_error.endswith("HTTP 404")


async def test_a_value_that_cannot_be_passed_goes_to_a_file(node: NodeProcess) -> None:
    long = "x" * (VALUE_BYTES_MAX + 1)
    order = launch_order(*shell('wc -c < "$TF_CONFIG_FILE"; echo ${TF_CONFIG-unset}'))
    order = launch_order(*order.command, env={"TF_CONFIG": long})
    executor = await node.head.launch(attempt_id(), order)

    ended = await node.head.until_ended(executor)

    assert ended.last_lines.split() == [str(VALUE_BYTES_MAX + 1), "unset"]


@pytest.mark.parametrize("kind", ["file", "port"])
async def test_ready_is_told_by_its_probe(node: NodeProcess, kind: str) -> None:
    probe = Probe(kind, {"file": "up", "port": "main"}[kind], 20)
    (port,) = free_ports(1)
    order = launch_order("sleep", "600", ports=(("main", port),), ready=probe)
    executor = await node.head.launch(attempt_id(), order)
    await node.head.until(lambda: executor.newest and executor.newest.trainer)
    await node.head.until_reports(2)
    assert not is_ready(executor)

    with socket.socket() as listener:
        if kind == "port":
            listener.bind(("127.0.0.1", port))
            listener.listen()
        else:
            (node.directory(attempt_id()).replica_work / "up").touch()
        await node.head.until(lambda: is_ready(executor))


async def test_a_trainer_that_is_ready_soon_is_looked_at_soon(node: NodeProcess) -> None:
    order = launch_order(*shell("touch up; sleep 600"), ready=Probe("file", "up", 600_000))
    executor = await node.head.launch(attempt_id(), order)

    await node.head.until(lambda: is_ready(executor))


async def test_a_trainer_says_itself_that_it_is_ready(node: NodeProcess) -> None:
    program = (
        "import json, os, socket, struct, time; s = socket.socket(socket.AF_UNIX);"
        "f = os.open(os.path.dirname(os.environ['PRIMUS_SOCKET']), os.O_PATH);"
        "s.connect(f'/proc/self/fd/{f}/trainer.sock')\n"
        "while not os.path.exists('go'): time.sleep(0.01)\n"
        "for op in ({'op': 'hello', 'sdk': '0', 'pid': os.getpid()}, {'op': 'ready'}):\n"
        "  d = json.dumps(op).encode(); s.sendall(struct.pack('<I', len(d) + 1) + b'J' + d)\n"
        "time.sleep(600)"
    )
    # Nobody looks every ten minutes: its word is what is told.
    probe = Probe("sdk", "", 600_000)
    order = launch_order(sys.executable, "-I", "-S", "-c", program, ready=probe)
    executor = await node.head.launch(attempt_id(), order)
    work = node.directory(attempt_id()).replica_work
    await node.head.until(lambda: executor.newest and executor.newest.trainer)
    await node.head.until_reports(2)
    assert not is_ready(executor)

    (work / "go").touch()
    await node.head.until(lambda: is_ready(executor))


def is_ready(executor: Executor) -> bool:
    report = executor.newest
    return report is not None and report.trainer is not None and report.trainer.ready


async def test_the_trainer_sees_who_it_is_and_its_parent_is_its_executor(
    node: NodeProcess,
) -> None:
    line = "echo $PPID; pwd; echo $TMPDIR; cat $PRIMUS_PEERS_FILE; test -S $PRIMUS_SOCKET"
    executor = await node.head.launch(attempt_id(), launch_order(*shell(line)))

    ended = await node.head.until_ended(executor)

    directory = node.directory(attempt_id())
    parent, folder, temporary, peers = node.text(attempt_id()).splitlines()
    assert ended.code == 0
    assert int(parent) == executor.hellos[0].pid
    assert Path(folder) == directory.replica_work
    assert Path(temporary) == directory.replica_work / "tmp"
    assert peers == '{"generation": 1, "roles": {}}'


async def test_what_hangs_on_the_peers_is_fetched_for_the_newest_start(node: NodeProcess) -> None:
    line = 'echo "$RANK $COLOUR $PRIMUS_REPLICAS $PRIMUS_REPLICA"; cat "$HYDRA_HOST_FILE"'
    env = {"RANK": "job's", "COLOUR": "blue", "PRIMUS_REPLICAS": "9", "PRIMUS_REPLICA": "worker-0"}
    executor = await node.head.launch(
        attempt_id(), msgspec.structs.replace(launch_order(*shell(line)), env=env)
    )
    executor.run = Hold()
    await node.head.until(lambda: executor.newest and executor.newest.phase == "holding")
    node.head.variables["sha256:2"] = StartVariables(
        {"RANK": "3", "PRIMUS_REPLICAS": "4"}, {"HYDRA_HOST_FILE": "n1:4\n"}
    )

    await node.head.order(executor, Start(1, "sha256:1", b"{}", has_variables=True))
    await node.head.until(lambda: len(node.head.asked_for) == 1)
    await node.head.order(executor, Start(1, "sha256:2", b"{}", has_variables=True))
    ended = await node.head.until_ended(executor)

    assert ended.code == 0
    assert node.text(attempt_id()) == "3 blue 4 worker-0\nn1:4\n"
    path = f"/executor/v1/variables/{attempt_id().job}/1?digest=sha256:2&replica=worker-0"
    assert node.head.asked_for[-1] == path


async def test_a_killed_executor_takes_its_trainer_along(node: NodeProcess) -> None:
    executor = await node.head.launch(attempt_id(), launch_order(*shell("echo $$; sleep 600")))
    trainer = int(await until_file(node.directory(attempt_id()).path / "stdout.log"))

    os.kill(executor.hellos[0].pid, signal.SIGKILL)
    await until_dead(trainer)
    await node.head.until(lambda: (one := node.head.node_attempt(attempt_id())) and not one.alive)

    found = node.head.node_attempt(attempt_id())
    assert found is not None
    assert found.exit is None


async def test_asks_bring_logs_and_stacks(node: NodeProcess) -> None:
    executor = await node.head.launch(
        attempt_id(), launch_order(*shell("echo 0123456789; sleep 600"))
    )
    await until_file(node.directory(attempt_id()).path / "stdout.log")

    executor.asks = (
        Ask(1, "logs", "stdout", 4, 3),
        Ask(2, "logs", "stdout", -4),
        Ask(3, "logs", "nothing"),
        Ask(4, "stacks"),
    )
    await node.head.order(executor, executor.run)
    await node.head.until(lambda: len(executor.answers) == 4)

    assert (executor.answers[1].data, executor.answers[1].offset) == (b"456", 4)
    assert (executor.answers[2].data, executor.answers[2].end) == (b"789\n", False)
    assert executor.answers[3].error == "no log 'nothing'"
    assert b"sleep 600" in executor.answers[4].data


async def test_log_patterns_that_were_seen_are_told_by_position(node: NodeProcess) -> None:
    order = launch_order(
        *shell("printf 'CUDA err'; sleep 0.05; echo or 7"),
        log_patterns=("never", "CUDA error [0-9]", "^CUDA"),
    )
    executor = await node.head.launch(attempt_id(), order)

    ended = await node.head.until_ended(executor)

    assert ended.matched == (1, 2)


async def test_logs_of_every_attempt_outlive_their_release_c72(node: NodeProcess) -> None:
    """C72: restarted three times and cleaned up, all four logs are there."""
    for number in range(1, 5):
        attempt = attempt_id(number)
        order = launch_order(*shell(f"echo run {number}; exit 1"))
        await node.head.until_ended(await node.head.launch(attempt, order))
        await node.head.release(attempt)
        await node.head.until_released(attempt)

    assert [node.text(attempt_id(number)) for number in range(1, 5)] == [
        f"run {number}\n" for number in range(1, 5)
    ]
    kept = sorted(path.name for path in node.directory(attempt_id(4)).path.iterdir())
    assert kept == [
        "executor.log",
        "exit.json",
        "stderr.index",
        "stderr.log",
        "stdout.index",
        "stdout.log",
    ]


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
async def test_trainers_of_a_root_node_run_as_the_user_that_was_named(tmp_path: Path) -> None:
    configured = tmp_path / "primusd.toml"
    configured.write_text('[launchers.local]\nuser = "nobody"\n')
    for folder in (tmp_path, *tmp_path.parents):
        folder.chmod(folder.stat().st_mode | 0o011)
    async with running_node(tmp_path, "--config", str(configured)) as node:
        file = node.head.ship(b"shipped", "folder/file")
        line = "id -un; id -gn; echo mine >> folder/file; echo $HOME; touch $TMPDIR/x"
        python = (
            "import os, socket as s; p = os.environ['PRIMUS_SOCKET'];"
            "f = os.open(os.path.dirname(p), os.O_PATH);"
            "s.socket(s.AF_UNIX).connect(f'/proc/self/fd/{f}/trainer.sock')"
        )
        line += f'; python3 -I -S -c "{python}"; sleep 600'
        executor = await node.head.launch(attempt_id(), launch_order(*shell(line), files=(file,)))
        await until_lines(node.directory(attempt_id()).path / "stdout.log", 3)
        await node.head.until(lambda: executor.newest and executor.newest.trainer)
        trainer = executor.newest and executor.newest.trainer
        assert trainer
        os.kill(executor.hellos[0].pid, signal.SIGKILL)
        await until_dead(trainer.pid)

        user, group, home = node.text(attempt_id()).splitlines()
        assert (user, group) == ("nobody", "nogroup")
        assert home == "/nonexistent"
        assert node.text(attempt_id(), "stderr.log") == ""
        work = node.directory(attempt_id()).replica_work
        assert (work / "folder" / "file").read_text() == "shippedmine\n"


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="makes a control group")
async def test_a_kill_for_want_of_memory_is_told_from_any_other(node: NodeProcess) -> None:
    program = "x = bytearray(400 << 20); x[::4096] = b'1' * len(x[::4096])"
    order = launch_order(sys.executable, "-I", "-S", "-c", program)
    executor = await node.head.launch(attempt_id(), order, memory_bytes=64 << 20)

    ended = await node.head.until_ended(executor)

    assert ended.signal == signal.SIGKILL
    assert ended.oom_kills >= 1


async def test_a_second_executor_of_an_attempt_ends_at_once(node: NodeProcess) -> None:
    attempt = attempt_id()
    executor = await node.head.launch(attempt, launch_order(*shell("echo up; sleep 600")))
    await until_file(node.directory(attempt).path / "stdout.log")

    second = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from primusd.executor.main import main; sys.exit(main(sys.argv[1:]))",
            "--bootstrap",
            node.directory(attempt).bootstrap,
        ],
        check=False,
    )

    assert second.returncode == 0
    assert len(executor.hellos) == 1
    holder = read_holder(node.directory(attempt).lock)
    assert holder is not None
    assert holder.pid == executor.hellos[0].pid
    assert is_alive(holder.pid)


async def test_a_shorter_grace_counts_at_once(
    node: NodeProcess,
) -> None:
    with anyio.fail_after(30):
        executor = await node.head.launch(
            attempt_id(), launch_order(*shell("trap '' TERM; echo up; while :; do sleep 1; done"))
        )
        await until_file(node.directory(attempt_id()).path / "stdout.log")
        await node.head.order(executor, Stop("hung", "", 60_000))
        await node.head.until(lambda: executor.newest and executor.newest.phase == "stopping")
        await node.head.order(executor, Stop("hung", "", 50))
        ended = await node.head.until_ended(executor)

    assert ended.signal == signal.SIGKILL
