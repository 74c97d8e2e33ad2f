"""The units, and what the daemon says to systemd, checked with systemd's own tools."""

import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from primusd.systemd import (
    notify,
    notify_ready,
    notify_status,
    notify_stopping,
    notify_watchdog,
    passed_sockets,
    watchdog_every_ms,
)

UNITS = Path(__file__).parents[2] / "contrib" / "systemd"
PROGRAM = "/usr/local/bin/primusd"
WAIT_S = 60
NAMES = ("primusd.socket", "primusd.service", "primusd-node.service")

needs_analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)
needs_activate = pytest.mark.skipif(
    shutil.which("systemd-socket-activate") is None,
    reason="systemd-socket-activate is not installed",
)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The units as they would be installed, with a program that exists."""
    for name in NAMES:
        text = (UNITS / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(text.replace(PROGRAM, sys.executable), encoding="utf-8")
    return tmp_path


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """A real notification socket, as systemd binds it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        receiver.settimeout(20)
        yield receiver


def heard(manager: socket.socket) -> tuple[str, int]:
    """Return the next message and the pid of its sender, as the kernel tells it."""
    data, control, _, _ = manager.recvmsg(4096, socket.CMSG_SPACE(struct.calcsize("3i")))
    pid, _, _ = struct.unpack("3i", control[0][2])
    return data.decode(), pid


def analyze(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@needs_analyze
def test_the_units_are_clean_to_the_last_key(installed: Path) -> None:
    files = [f"./{name}" for name in NAMES]

    done = analyze(installed, "verify", "--man=no", "--recursive-errors=no", *files)

    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@needs_analyze
def test_the_drop_ins_of_several_heads_are_clean(installed: Path) -> None:
    for unit in ("primusd.service", "primusd.socket"):
        folder = installed / f"{unit}.d"
        folder.mkdir()
        shutil.copy(UNITS / "heads" / f"{unit}.conf", folder / "heads.conf")
    files = [f"./{name}" for name in NAMES]

    done = analyze(installed, "verify", "--man=no", "--recursive-errors=no", *files)

    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@needs_analyze
def test_a_key_that_does_not_exist_would_be_found(installed: Path) -> None:
    """The check above can fail: plain `verify` only warns of an unknown key."""
    unit = installed / "primusd.service"
    text = unit.read_text(encoding="utf-8")
    unit.write_text(text.replace("KillMode=", "KillMood="), encoding="utf-8")

    done = analyze(installed, "verify", "--man=no", "--recursive-errors=no", "./primusd.service")

    assert "KillMood" in done.stdout + done.stderr


@needs_analyze
def test_the_daemon_is_exposed_to_at_most_3_of_10(installed: Path) -> None:
    done = analyze(installed, "security", "--offline=true", "--threshold=30", "./primusd.service")

    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("unit", "lines"),
    [
        ("primusd.service", ("Type=notify", "KillMode=mixed", "WatchdogSec=30s")),
        (
            "primusd-node.service",
            ("KillMode=process", "Delegate=yes", "OOMPolicy=continue"),
        ),
        ("primusd.socket", ("ListenStream=/run/primusd/primusd.sock", "SocketMode=0660")),
    ],
)
def test_units_keep_trainers_alive(unit: str, lines: tuple[str, ...]) -> None:
    """KillMode=process: a stop of the node leaves what it started."""
    text = (UNITS / unit).read_text(encoding="utf-8").splitlines()

    assert [line for line in lines if line not in text] == []


@pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="no systemd-sysusers")
def test_trainers_run_as_a_user_who_may_not_use_the_daemon(tmp_path: Path) -> None:
    snippets = tmp_path / "usr" / "lib" / "sysusers.d"
    snippets.mkdir(parents=True)
    (tmp_path / "etc").mkdir()
    shutil.copy(UNITS / "primus.sysusers", snippets / "primus.conf")

    subprocess.run(
        ["systemd-sysusers", f"--root={tmp_path}"], check=True, timeout=30, capture_output=True
    )

    rows = (tmp_path / "etc" / "passwd").read_text(encoding="utf-8").splitlines()
    groups = (tmp_path / "etc" / "group").read_text(encoding="utf-8").splitlines()
    group_id = {row.split(":")[0]: row.split(":")[2] for row in groups}
    primary = {row.split(":")[0]: row.split(":")[3] for row in rows}
    assert primary["primusd"] == group_id["primus"]
    assert primary["primus"] == group_id["primus-trainers"]


@pytest.mark.root
@pytest.mark.skipif(shutil.which("systemd-tmpfiles") is None, reason="no systemd-tmpfiles")
def test_folders_are_made_with_their_modes(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give folders away")
    for part in ("usr/lib/sysusers.d", "usr/lib/tmpfiles.d", "etc", "run", "var/lib"):
        (tmp_path / part).mkdir(parents=True)
    shutil.copy(UNITS / "primus.sysusers", tmp_path / "usr/lib/sysusers.d/primus.conf")
    shutil.copy(UNITS / "primus.tmpfiles", tmp_path / "usr/lib/tmpfiles.d/primus.conf")
    root = f"--root={tmp_path}"

    subprocess.run(["systemd-sysusers", root], check=True, timeout=30, capture_output=True)
    subprocess.run(["systemd-tmpfiles", root, "--create", "primus.conf"], check=True, timeout=30)

    def mode(path: str) -> int:
        return (tmp_path / path).stat().st_mode & 0o777

    assert mode("run/primusd") == 0o750
    assert mode("var/lib/primusd") == 0o751
    assert mode("etc/primus/secrets") == 0o700


def test_every_word_reaches_a_real_notification_socket(manager: socket.socket) -> None:
    environ = {"NOTIFY_SOCKET": manager.getsockname()}

    assert notify_status("loading", environ=environ)
    assert notify_ready("leads cluster\n default", environ=environ)
    assert notify_watchdog(environ=environ)
    assert notify_stopping(environ=environ)

    messages = [heard(manager) for _ in range(4)]
    assert [text for text, _ in messages] == [
        "STATUS=loading",
        "READY=1\nSTATUS=leads cluster  default",
        "WATCHDOG=1",
        "STOPPING=1",
    ]
    assert {pid for _, pid in messages} == {os.getpid()}


def test_an_abstract_notification_socket_is_reached_too() -> None:
    name = f"primusd-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(f"\0{name}")
        receiver.settimeout(20)

        assert notify("X=1", environ={"NOTIFY_SOCKET": f"@{name}"})
        assert receiver.recv(100) == b"X=1"


@pytest.mark.parametrize(
    "environ", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "/nowhere/s"}, {"NOTIFY_SOCKET": "s"}]
)
def test_nobody_to_tell_is_no_failure(environ: dict[str, str]) -> None:
    assert not notify_ready("up", environ=environ)


@pytest.mark.parametrize(
    ("environ", "every_ms"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "30000000"}, 10_000),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 10_000),
        ({"WATCHDOG_USEC": "1"}, 1),
    ],
)
def test_the_watchdog_is_fed_three_times_in_its_limit(
    environ: dict[str, str], every_ms: int | None
) -> None:
    assert watchdog_every_ms(environ) == every_ms


def test_sockets_for_another_process_are_left_alone() -> None:
    environ = {"LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "api", "PATH": "/bin"}

    assert passed_sockets(environ) == ()
    assert environ == {"PATH": "/bin"}


def free_port() -> int:
    """Return a port that nobody had just now; systemd-socket-activate does not take 0."""
    with socket.socket(socket.AF_INET) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


ANSWER_ONCE = """
import os, sys
from primusd.systemd import passed_sockets, notify_ready
passed = passed_sockets()
assert not {"LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"} & set(os.environ)
notify_ready("answering")
for one in passed:
    one.socket.settimeout(20)
unix = next(one for one in passed if one.is_unix)
connection, _ = unix.socket.accept()
words = [f"{one.name}={'unix' if one.is_unix else 'tcp'}" for one in passed]
connection.sendall(f"{os.getpid()} {' '.join(words)}".encode())
"""


@needs_activate
def test_sockets_that_were_passed_are_found_by_name_and_kind(
    tmp_path: Path, manager: socket.socket
) -> None:
    """C67: the first connection starts the program and is answered by it, in the same process."""
    path = tmp_path / "primusd.sock"
    process = subprocess.Popen(
        ["systemd-socket-activate", "-l", str(path), "-l", f"127.0.0.1:{free_port()}",
         "--fdname=api:page", "-E", "NOTIFY_SOCKET", "-E", "PYTHONPATH",
         sys.executable, "-c", ANSWER_ONCE],
        env={
            "PATH": os.environ["PATH"],
            "NOTIFY_SOCKET": manager.getsockname(),
            "PYTHONPATH": str(Path(__file__).parents[2]),
        },
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        listening = [process.stderr.readline() for _ in range(2)]
        with socket.socket(socket.AF_UNIX) as caller:
            caller.settimeout(20)
            caller.connect(str(path))
            answer = caller.recv(200).decode()
        message, pid = heard(manager)
        process.wait(timeout=20)
    finally:
        process.kill()
        process.communicate(timeout=20)

    assert all("Listening on" in line for line in listening), listening
    assert answer == f"{process.pid} api=unix page=tcp"
    assert message == "READY=1\nSTATUS=answering"
    assert pid == process.pid


def activated(
    folder: Path, manager: socket.socket, port: int
) -> tuple[subprocess.Popen[str], Path]:
    """Start the real daemon as its socket unit would: on the first connection."""
    path = folder / "primusd.sock"
    process = subprocess.Popen(
        ["systemd-socket-activate", "-l", str(path), "-l", f"127.0.0.1:{port}",
         "-E", "NOTIFY_SOCKET", "-E", "WATCHDOG_USEC=300000", "-E", f"HOME={folder}",
         sys.executable, "-m", "primusd", "--no-node",
         "--state-dir", str(folder / "state"), "--run-dir", str(folder / "run")],
        env={"PATH": os.environ["PATH"], "NOTIFY_SOCKET": manager.getsockname()},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert process.stderr is not None
    for _ in range(2):
        assert "Listening on" in process.stderr.readline()
    return process, path


def answer_of(family: socket.AddressFamily, address: str | tuple[str, int], path: str) -> str:
    """Return the status line and body that an HTTP server gives."""
    with socket.socket(family) as caller:
        caller.settimeout(WAIT_S)
        caller.connect(address)
        caller.sendall(
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        )
        parts = []
        while part := caller.recv(65536):
            parts.append(part)
    return b"".join(parts).decode()


@needs_activate
def test_systemd_starts_the_daemon_on_a_connection_hears_it_and_stops_it(
    tmp_path: Path, manager: socket.socket
) -> None:
    """C67: both sockets are systemd's; READY, WATCHDOG and STOPPING come from the daemon itself."""
    manager.settimeout(WAIT_S)
    port = free_port()
    process, path = activated(tmp_path, manager, port)
    try:
        first = answer_of(socket.AF_UNIX, str(path), "/healthz")
        ready, pid = heard(manager)
        fed = [heard(manager) for _ in range(2)]
        over_tcp = answer_of(socket.AF_INET, ("127.0.0.1", port), "/version")
        process.terminate()
        words = []
        while "STOPPING=1" not in words:
            words.append(heard(manager)[0])
        code = process.wait(timeout=WAIT_S)
    finally:
        process.kill()
        process.communicate(timeout=WAIT_S)

    assert first.startswith("HTTP/1.1 200"), first
    assert ready.startswith("READY=1\nSTATUS=leads")
    assert fed == [("WATCHDOG=1", process.pid)] * 2
    assert pid == process.pid
    assert over_tcp.startswith("HTTP/1.1 200"), over_tcp
    assert code == 0
    assert path.is_socket(), "systemd's socket is not ours to remove"


def can_be_run_by(uid: int) -> bool:
    """Return whether another user can use this interpreter and what is installed in it."""
    probe = [*as_user(uid, 1), sys.executable, "-c", "import primusd.daemon"]
    return subprocess.run(probe, capture_output=True, timeout=WAIT_S, check=False).returncode == 0


def as_user(uid: int, gid: int) -> list[str]:
    return ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups"]


@pytest.fixture
def passable() -> Iterator[Path]:
    """A folder that any user can reach; those of pytest are closed to others."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.root
def test_a_daemon_without_rights_and_a_root_node_run_a_job_and_show_its_logs(
    passable: Path,
) -> None:
    """The users and modes of the units: the daemon reads by its group what the node writes."""
    uid, gid = 64_321, 64_320
    if os.geteuid() != 0 or not can_be_run_by(uid):
        pytest.skip("only root can become another user, who must be able to run this Python")
    folders = {"STATE_DIRECTORY": passable / "state", "RUNTIME_DIRECTORY": passable / "run"}
    for folder, mode in zip(folders.values(), (0o751, 0o750), strict=True):
        folder.mkdir()
        folder.chmod(mode)
        os.chown(folder, uid, gid)
    environ = {"PATH": os.environ["PATH"]} | {name: str(at) for name, at in folders.items()}
    program = [sys.executable, "-m", "primusd"]
    daemon = subprocess.Popen(
        [*as_user(uid, gid), *program, "--no-node", "--listen", ""], env=environ, umask=0o027
    )
    node = subprocess.Popen(
        ["setpriv", f"--regid={gid}", "--clear-groups", *program, "node"], env=environ
    )
    address = f"unix:{passable}/run/primusd.sock"
    try:
        wait_for_socket(passable / "run" / "primusd.sock", daemon)
        ran = ctl(address, "run", "--name", "spoken", "--", "echo", "heard by its group")
        logs = ctl(address, "logs", "spoken")
    finally:
        for process in (daemon, node):
            process.terminate()
        codes = [process.wait(timeout=WAIT_S) for process in (daemon, node)]

    assert ran.returncode == 0, ran.stderr
    assert "heard by its group" in logs.stdout
    assert codes == [0, 0]
    lock = passable / "state" / "node.lock"
    assert lock.stat().st_uid == 0


def wait_for_socket(path: Path, daemon: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not path.is_socket():
        assert daemon.poll() is None, "the daemon ended"
        assert time.monotonic() < deadline, "the daemon did not start"
        time.sleep(0.02)


def ctl(address: str, *words: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).parent / "primusctl"
    return subprocess.run(
        [program, "--address", address, *words],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
