"""The daemon as a process: what it says at its start, its exit codes, its signals."""

import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from primusd.records import SCHEMA
from tests.real.conftest import WAIT_S

SLEEPER = """
apiVersion: primus/v1
name: sleeper
roles:
  worker: {replicas: 2, command: "echo up; exec sleep 1000", stop: {grace: 1s}}
"""


def ended(head: Any, *flags: str, within_s: float = WAIT_S) -> tuple[int, str]:
    """Start a daemon that is to end by itself; return its exit code and what it said."""
    head.start(*flags, is_awaited=False)
    code = head.daemon.wait(timeout=within_s)
    return code, head.told()


def test_it_says_who_leads_and_where_it_listens(head: Any) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    head.start("--listen", f"127.0.0.1:{port}", "--no-node")

    lines = head.told()
    assert re.search(r'^primusd \S+ leads cluster "default" \(embedded store in ', lines, re.M)
    assert re.search(rf"^  socket  {head.socket}\s+page  http://localhost:{port}$", lines, re.M)
    assert head.stop() == 0
    assert "primusd stopped; no trainer runs" in head.told()
    assert not head.socket.exists()


def test_it_says_at_its_end_that_its_node_stays_and_how_to_end_it(head: Any) -> None:
    head.start()
    head.until("its node is there", lambda: "node.connected" in head.told())

    assert head.stop() == 0

    found = re.search(r"^  its node \(pid (\d+)\) waits for the next start; kill \1 ends it$",
                      head.told(), re.M)  # fmt: skip
    assert found
    os.kill(int(found[1]), signal.SIGTERM)
    head.until("it is gone", lambda: not head.processes(" node "))


def test_files_of_the_run_directory_have_their_modes(head: Any) -> None:
    head.start("--no-node")

    run = head.socket.parent
    assert (run / "primusd.pid").read_text() == f"{head.daemon.pid}\n"
    assert len((run / "token").read_text().strip()) >= 32
    assert (run / "token").stat().st_mode & 0o137 == 0
    assert head.socket.stat().st_mode & 0o117 == 0
    token = (run / "token").read_text()
    head.stop()

    head.start("--no-node")
    assert (run / "token").read_text() == token
    assert (run / "primusd.pid").read_text() == f"{head.daemon.pid}\n"


def test_c67_a_second_daemon_ends_with_3_and_names_the_first(head: Any) -> None:
    head.start("--no-node")
    first = head.daemon

    code, said = ended(head, "--no-node")

    assert code == 3
    assert f"is in use by process {first.pid}" in said
    assert "Traceback" not in said
    head.daemon = first
    assert head.ctl("version").returncode == 0


def test_c67_the_socket_of_a_killed_daemon_is_not_in_the_way(head: Any) -> None:
    head.start("--no-node")
    head.kill()
    assert head.socket.exists()

    head.start("--no-node")

    assert head.ctl("version").returncode == 0


def test_c67_a_live_socket_of_another_daemon_is_not_stolen(head: Any, tmp_path: Path) -> None:
    head.start("--no-node")
    first = head.daemon

    code, said = ended(head, "--no-node", "--state-dir", str(tmp_path / "other"))

    assert code == 5
    assert f"another process answers on {head.socket}" in said
    head.daemon = first
    assert head.ctl("version").returncode == 0


def test_a_store_of_a_newer_version_ends_it_with_4_and_stays_as_it_is(head: Any) -> None:
    head.start("--no-node")
    head.stop()
    path = head.state / "journal.db"
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version={SCHEMA + 1}")
    db.close()
    before = path.read_bytes()

    code, said = ended(head, "--no-node")

    assert code == 4
    assert f"schema {SCHEMA + 1}" in said
    assert "Traceback" not in said
    assert path.read_bytes() == before


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]


def test_a_port_that_was_asked_for_and_is_taken_ends_it_with_5(head: Any, taken_port: int) -> None:
    code, said = ended(head, "--no-node", "--listen", f"127.0.0.1:{taken_port}")

    assert code == 5
    assert f"error: 127.0.0.1:{taken_port} is in use" in said


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--listen", "nonsense"), "host:port"),
        (("--listen", "0.0.0.0:0"), "--insecure"),
        (("--log-level", "loud"), "debug"),
        (("--store", "etcd://h1:x"), "must be host:port"),
        (("--socket", "/tmp/" + "x" * 120), "at most 107 bytes"),
        (("--state-dir", "/proc/primusd"), "--state-dir"),
        (("--run-dir", "/proc/primusd"), "--run-dir"),
        (("--config", "/nowhere/primusd.toml"), "/nowhere/primusd.toml"),
    ],
)
def test_a_wrong_configuration_ends_it_with_2_and_one_sentence(
    head: Any, flags: tuple[str, ...], said: str
) -> None:
    code, told = ended(head, "--no-node", *flags)

    assert (code, said in told) == (2, True), told
    assert "Traceback" not in told
    assert not (head.state / "journal.db").exists()


def test_every_fault_of_a_file_is_told_with_its_line(head: Any) -> None:
    path = head.folder / "primusd.toml"
    path.write_text('[logs]\nlevel = "loud"\n[store]\nsnapshot_evry = "1s"\n')

    code, said = ended(head, "--config", str(path), "--no-node")

    assert code == 2
    assert f"{path}:2" in said
    assert f"{path}:4" in said


def test_check_config_prints_and_starts_nothing(head: Any) -> None:
    code, said = ended(head, "--check-config")

    assert code == 0
    assert 'cluster = "default"' in said
    assert not head.state.exists()


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_a_plain_user_without_permission_gets_one_sentence_and_2(head: Any) -> None:
    head.state.mkdir(mode=0o700)
    head.folder.chmod(0o755)
    head.environment["HOME"] = str(head.folder)
    code = "import sys; from primusd import daemon; import os; os.setgroups([]);" + (
        "os.setgid(65534); os.setuid(65534); sys.exit(daemon.main(sys.argv[1:]))"
    )
    head.start("--no-node", program=(sys.executable, "-c", code), is_awaited=False)

    assert head.daemon.wait(timeout=WAIT_S) == 2
    assert "cannot be written by uid 65534: permission denied" in head.told()
    assert "Traceback" not in head.told()


def test_a_stop_leaves_trainers_says_how_many_and_the_next_start_takes_them_up(head: Any) -> None:
    head.start()
    head.submit(SLEEPER)
    head.until("both run", lambda: len(head.trainers("worker-0") + head.trainers("worker-1")) == 2)
    trainers = head.trainers("worker-0") + head.trainers("worker-1")

    assert head.stop() == 0
    assert "primusd stopped; 2 trainers run on" in head.told()
    assert head.trainers("worker-0") + head.trainers("worker-1") == trainers

    head.start()
    head.until("it runs", lambda: head.phase("sleeper") == "Running")
    assert head.attempts("sleeper") == {"worker-0": 1, "worker-1": 1}
    assert head.trainers("worker-0") + head.trainers("worker-1") == trainers
    head.ctl("cancel", "sleeper")
    head.ended("sleeper")


def test_an_ephemeral_daemon_takes_up_again_after_a_crash_and_leaves_nothing_at_its_stop(
    head: Any,
) -> None:
    head.start("--ephemeral")
    head.submit(SLEEPER)
    head.until("both run", lambda: len(head.trainers("worker-0") + head.trainers("worker-1")) == 2)
    trainers = head.trainers("worker-0") + head.trainers("worker-1")
    head.kill()

    head.start("--ephemeral")
    head.until("it runs", lambda: head.phase("sleeper") == "Running")
    assert head.trainers("worker-0") + head.trainers("worker-1") == trainers
    assert head.attempts("sleeper") == {"worker-0": 1, "worker-1": 1}

    assert head.stop() == 0
    assert not head.state.exists()
    head.until("nothing is left", lambda: not head.processes())


def test_hup_takes_over_what_can_change_and_names_what_cannot(head: Any) -> None:
    path = head.folder / "primusd.toml"
    path.write_text('[logs]\nlevel = "info"\n')
    head.start("--config", str(path), "--no-node", "--log-format", "json")
    path.write_text('[logs]\nlevel = "debug"\n[store]\nsnapshot_every = "5s"\n')

    head.daemon.send_signal(signal.SIGHUP)

    head.until("it was read", lambda: "config.reloaded" in head.told())
    assert '"taken": ["logs.level"]' in head.told()
    assert '"after_restart": ["store.snapshot_every"]' in head.told()

    path.write_text('[logs]\nlevel = "loud"\n')
    head.daemon.send_signal(signal.SIGHUP)
    head.until("it was refused", lambda: "config.refused" in head.told())
    assert head.ctl("version").returncode == 0


def test_usr1_dumps_state_and_stacks(head: Any) -> None:
    head.start("--no-node")

    head.daemon.send_signal(signal.SIGUSR1)

    head.until("it dumped", lambda: "daemon.dumped" in head.told() and "File " in head.told())
    assert head.ctl("version").returncode == 0


def test_systemd_hears_of_start_watchdog_and_stop(head: Any) -> None:
    path = head.folder / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(path))
        heard.settimeout(WAIT_S)
        head.environment["NOTIFY_SOCKET"] = str(path)
        head.environment["WATCHDOG_USEC"] = "600000"
        head.start("--no-node")

        ready = heard.recv(4096).decode()
        assert ready.startswith("READY=1\nSTATUS=leads")
        assert heard.recv(4096) == b"WATCHDOG=1"
        assert heard.recv(4096) == b"WATCHDOG=1"
        head.daemon.terminate()
        said = [heard.recv(4096)]
        while said[-1] != b"STOPPING=1":
            said.append(heard.recv(4096))
        assert set(said) <= {b"WATCHDOG=1", b"STOPPING=1"}
        assert head.daemon.wait(timeout=WAIT_S) == 0


@pytest.mark.skipif(
    shutil.which("systemd-socket-activate") is None, reason="needs systemd-socket-activate"
)
def test_a_socket_that_systemd_passes_is_served(head: Any) -> None:
    passed = head.folder / "passed.sock"
    head.start(
        "--no-node",
        program=(
            "systemd-socket-activate", "-l", str(passed), "--fdname=primusd.socket",
            sys.executable, "-m", "primusd",
        ),
        is_awaited=False,
    )  # fmt: skip
    head.until("it listens", passed.exists)

    done = subprocess.run(
        [Path(sys.executable).parent / "primusctl", "--address", f"unix:{passed}", "version"],
        check=False,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )

    assert done.returncode == 0, done.stderr + head.told()
    assert not head.socket.exists()


def test_m062_a_full_disk_refuses_new_jobs_and_lives_on_when_there_is_room(head: Any) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a small file system")
    head.state.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(head.state)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("this container may not mount")
    try:
        head.start("--no-node")
        filler = head.state / "filler"
        fill(filler)
        done = head.ctl("submit", "-", stdin=SLEEPER, allowed=(0, 1, 4, 5))
        for number in range(20):
            if done.returncode:
                break
            named = SLEEPER.replace("sleeper", f"sleeper-{number}")
            done = head.ctl("submit", "-", stdin=named, allowed=(0, 1, 4, 5))
        assert done.returncode != 0
        assert "full" in done.stderr

        filler.unlink()
        head.until(
            "a job is taken again",
            lambda: (
                head.ctl(
                    "submit", "-", stdin=SLEEPER.replace("sleeper", "late"), allowed=(0, 1, 4, 5)
                ).returncode
                == 0
            ),
        )
        assert head.stop() == 0
    finally:
        subprocess.run(["umount", "--lazy", str(head.state)], check=True)


def fill(path: Path) -> None:
    """Write until the disk is full."""
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            return
