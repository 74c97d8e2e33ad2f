"""The state directory: taken by one daemon, and refused in one sentence where it cannot be used."""

import ctypes
import os
import signal
import stat
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from primusd.errors import ConfigError, PrimusdError, StateDirectoryInUseError, StoreFullError
from primusd.state.ballast import Ballast
from primusd.state.directory import check_local, file_system_type, take_state_directory

HOLDER = """
import sys, time
from pathlib import Path
from primusd.state.directory import take_state_directory
held = take_state_directory(Path(sys.argv[1]), cluster="default")
print("held", flush=True)
sys.stdin.read()
"""

AS_NOBODY = """
import sys
from pathlib import Path
from primusd.errors import PrimusdError
from primusd.state.directory import take_state_directory
import os
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    take_state_directory(Path(sys.argv[1]), cluster="default")
except PrimusdError as error:
    print(f"{error.code}: {error.message}")
"""

MOUNTS = """\
21 1 8:1 / / rw - ext4 /dev/sda1 rw
30 21 0:40 / /mnt/share rw - nfs4 server:/export rw
31 21 0:41 / /mnt/with\\040blank rw - cifs //server/share rw
32 21 0:42 / /mnt/ssh rw - fuse.sshfs user@host: rw
33 21 0:43 / /mnt/share/local rw - xfs /dev/sdb1 rw
34 21 0:44 / /mnt/over rw - ext4 /dev/sdc1 rw
35 21 0:45 / /mnt/over rw - nfs server:/b rw
36 21 0:46 / /mnt/container rw - fuse.fuse-overlayfs overlay rw
"""


def test_a_new_directory_gets_its_files_with_their_modes(tmp_path: Path) -> None:
    path = tmp_path / "a" / "state"

    directory = take_state_directory(path, cluster="default")

    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE((path / "secret").stat().st_mode) == 0o600
    assert len(directory.secret) == 32
    assert (path / "lock").read_text() == f"{os.getpid()}\n"
    directory.close()


def test_cluster_and_secret_are_made_once(tmp_path: Path) -> None:
    first = take_state_directory(tmp_path, cluster="default")
    first.close()
    second = take_state_directory(tmp_path, cluster="default")
    second.close()

    assert (second.cluster_id, second.secret) == (first.cluster_id, first.secret)


def test_the_state_of_another_cluster_is_refused(tmp_path: Path) -> None:
    take_state_directory(tmp_path, cluster="one").close()

    with pytest.raises(ConfigError, match="belongs to cluster 'one', not to 'two'"):
        take_state_directory(tmp_path, cluster="two")


def test_c67_a_second_daemon_is_refused_by_the_pid_of_the_first_and_a_dead_one_holds_nothing(
    tmp_path: Path,
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"

        with pytest.raises(StateDirectoryInUseError, match=str(holder.pid)) as caught:
            take_state_directory(tmp_path, cluster="default")
        assert caught.value.pid == holder.pid

        holder.send_signal(signal.SIGKILL)
        holder.wait(timeout=10)
        take_state_directory(tmp_path, cluster="default").close()


@pytest.mark.parametrize("name", ["cluster.json", "secret"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    take_state_directory(tmp_path, cluster="default").close()
    (tmp_path / name).write_bytes(b"{}")

    with pytest.raises(ConfigError, match=f"{name} is damaged"):
        take_state_directory(tmp_path, cluster="default")


def test_a_file_in_the_place_of_the_directory_is_told(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_text("")

    with pytest.raises(ConfigError, match="cannot be used: Not a directory"):
        take_state_directory(path, cluster="default")


def as_nobody(path: Path) -> str:
    return subprocess.run(
        [sys.executable, "-c", AS_NOBODY, str(path)], capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_no_permission_is_told_in_one_sentence(tmp_path: Path) -> None:
    said = as_nobody(tmp_path / "state")

    assert said == (
        f"InvalidConfig: the state directory {tmp_path / 'state'} cannot be written by uid 65534: "
        "permission denied\n"
    )


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB, read-only once it is remounted."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount")
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(folder)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("this container may not mount")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.root
def test_a_read_only_file_system_is_told_in_one_sentence(mounted: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(mounted)], check=True)

    with pytest.raises(ConfigError, match="is on a read-only file system"):
        take_state_directory(mounted, cluster="default")


@pytest.mark.root
def test_a_full_disk_is_told_in_one_sentence(mounted: Path) -> None:
    with (mounted / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass

    with pytest.raises(StoreFullError, match="is full; nothing was started"):
        take_state_directory(mounted, cluster="default")


@pytest.mark.root
def test_a_ballast_without_room_is_not_taken(mounted: Path) -> None:
    ballast = Ballast(mounted / "ballast", byte_count=200 << 10)

    assert not ballast.take()
    assert not (mounted / "ballast").exists()
    assert not ballast.is_given_up


def test_a_ballast_is_given_up_and_taken_again(tmp_path: Path) -> None:
    ballast = Ballast(tmp_path / "ballast", byte_count=1 << 20)
    assert ballast.take()
    assert (tmp_path / "ballast").stat().st_blocks * 512 >= 1 << 20

    ballast.give_up()
    assert ballast.is_given_up
    assert not (tmp_path / "ballast").exists()

    assert ballast.take()
    assert not ballast.is_given_up


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/primusd", "ext4"),
        ("/mnt/share/x/y", "nfs4"),
        ("/mnt/sharex", "ext4"),
        ("/mnt/with blank/state", "cifs"),
        ("/mnt/ssh", "fuse.sshfs"),
        ("/mnt/share/local/state", "xfs"),
        ("/mnt/over/state", "nfs"),
        ("/mnt/container/state", "fuse.fuse-overlayfs"),
    ],
)
def test_the_file_system_of_a_path_is_told_by_its_mount(path: str, kind: str) -> None:
    assert file_system_type(Path(path), MOUNTS) == kind


@pytest.mark.parametrize("path", ["/mnt/share/x", "/mnt/with blank/x", "/mnt/ssh/x", "/mnt/over/x"])
def test_a_network_file_system_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="network file system"):
        check_local(Path(path), MOUNTS)


@pytest.mark.parametrize("path", ["/var/lib", "/mnt/share/local/x", "/mnt/container/x"])
def test_a_local_file_system_is_taken(path: str) -> None:
    check_local(Path(path), MOUNTS)


class FuseServer:
    """As much of a FUSE file system as it takes to look at its root.

    Source: https://docs.kernel.org/filesystems/fuse.html, include/uapi/linux/fuse.h.
    """

    HEADER = struct.Struct("<IIQQIIII")
    GETATTR, OPENDIR, INIT, LOOKUP = 3, 27, 26, 1

    def __init__(self, mount_point: Path) -> None:
        self.fd = os.open("/dev/fuse", os.O_RDWR)
        libc = ctypes.CDLL(None, use_errno=True)
        options = f"fd={self.fd},rootmode=40000,user_id=0,group_id=0"
        done = libc.mount(b"test", bytes(mount_point), b"fuse", 0, options.encode())
        if done:
            error = ctypes.get_errno()
            os.close(self.fd)
            raise OSError(error, os.strerror(error))
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()
        # A request that is never answered cannot be interrupted but by this.
        self.guard = threading.Timer(10, self.abort, [mount_point])
        self.guard.start()

    def abort(self, mount_point: Path) -> None:
        subprocess.run(["umount", "--force", str(mount_point)], check=False)

    def serve(self) -> None:
        while True:
            try:
                data = os.read(self.fd, 1 << 17)
            except OSError:
                return
            _, opcode, unique, *_ = self.HEADER.unpack_from(data)
            if opcode == self.INIT:
                body = struct.pack("<IIIIHHIIHHI28x", 7, 31, 1 << 16, 0, 8, 8, 4096, 1, 1, 0, 0)
            elif opcode == self.GETATTR:
                attributes = struct.pack(
                    "<6Q10I", 1, 0, 0, 0, 0, 0, 0, 0, 0, 0o40755, 2, 0, 0, 0, 4096, 0
                )
                body = struct.pack("<QII", 1, 0, 0) + attributes
            else:
                self.answer(unique, b"", error=-2)
                continue
            self.answer(unique, body)

    def answer(self, unique: int, body: bytes, *, error: int = 0) -> None:
        try:
            os.write(self.fd, struct.pack("<IiQ", 16 + len(body), error, unique) + body)
        except OSError:
            return

    def close(self, mount_point: Path) -> None:
        self.guard.cancel()
        subprocess.run(["umount", "--force", str(mount_point)], check=True)
        os.close(self.fd)


@pytest.mark.root
def test_a_mounted_fuse_file_system_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip("needs root and /dev/fuse")
    point = tmp_path / "remote"
    point.mkdir()
    try:
        server = FuseServer(point)
    except OSError as error:
        pytest.skip(f"this container may not mount: {error}")
    try:
        with pytest.raises(PrimusdError, match=r"network file system \(fuse\)"):
            take_state_directory(point / "state", cluster="default")
    finally:
        server.close(point)
