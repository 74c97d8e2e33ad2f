"""The process that becomes the trainer: forked before the executor has a thread, waits, executes.

An executor has threads once it reads data, and a fork of a process with threads may hang; so the
trainer-to-be is forked first, from the main thread, whose end then ends the trainer
(`PDEATHSIG`). It learns by a socket what to become. Errors of the start come back on that socket,
which closes itself when the start succeeds.
"""

import array
import errno
import os
import signal
import socket
import struct
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from primusd.executor.processes import die_with_parent

_LENGTH = struct.Struct("!I")
_FAILURE = struct.Struct("!i")
FIRST_FREE_DESCRIPTOR = 3


class StartCall(Struct, frozen=True, array_like=True):
    """What the waiting process becomes."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    cgroups: tuple[str, ...] = ()
    """`cgroup.procs` files to enter."""
    uid: int = -1
    """-1: stay who the executor is."""
    gid: int = -1
    groups: tuple[int, ...] = ()


_decode_call = msgspec.msgpack.Decoder(StartCall).decode


class Starter:
    """The waiting process, as the executor sees it."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self._connection = connection

    def start(self, call: StartCall, *, stdin: int, stdout: int, stderr: int) -> int:
        """Let it become the trainer; return 0, or the errno of what failed.

        Returns once the kernel has taken the program, or refused it.
        """
        body = msgspec.msgpack.encode(call)
        descriptors = array.array("i", [stdin, stdout, stderr])
        self._connection.sendmsg(
            [_LENGTH.pack(len(body))],
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors.tobytes())],
        )
        self._connection.sendall(body)
        answer = _receive(self._connection, _FAILURE.size)
        self._connection.close()
        return _FAILURE.unpack(answer)[0] if answer else 0

    def dismiss(self) -> None:
        """Let it end without becoming anything."""
        self._connection.close()


def refusal_line(call: StartCall, failure: int) -> str:
    """Return why the kernel did not take the program, as a shell would say it."""
    if not os.path.isdir(call.cwd):  # noqa: PTH112 as few imports as can be
        return f"{call.cwd}: no such working directory"
    name = call.argv[0]
    if failure == errno.ENOENT and "/" not in name:
        return f"{name}: command not found"
    if failure == errno.ENOENT and os.path.exists(name):  # noqa: PTH110 as few imports as can be
        return f"{name}: the interpreter that its first line names is not there"
    return f"{name}: {os.strerror(failure).lower()}"


def fork_starter(close: tuple[int, ...] = ()) -> Starter:
    """Fork the process that waits to become the trainer; only while there is one thread.

    Args:
        close: Descriptors that must not live on in it: the attempt's lock above all.
    """
    ours, theirs = socket.socketpair()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        theirs.close()
        return Starter(pid, ours)
    try:
        ours.close()
        for descriptor in close:
            os.close(descriptor)
        os.setsid()
        die_with_parent(parent)
        _wait_and_become(theirs, parent)
    finally:
        os._exit(1)


def _wait_and_become(connection: socket.socket, parent: int) -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    head, ancillary, _, _ = connection.recvmsg(_LENGTH.size, socket.CMSG_SPACE(3 * 4))
    if len(head) < _LENGTH.size:
        os._exit(0)
    descriptors = array.array("i")
    for _, _, data in ancillary:
        descriptors.frombytes(data)
    body = _receive(connection, _LENGTH.unpack(head)[0])
    call = _decode_call(body)
    try:
        _become(call, tuple(descriptors), keep=connection.fileno(), parent=parent)
    except OSError as error:
        connection.sendall(_FAILURE.pack(error.errno or 1))
    os._exit(127)


def _become(call: StartCall, descriptors: tuple[int, ...], *, keep: int, parent: int) -> None:
    for path in call.cgroups:
        with open(path, "w", encoding="ascii") as procs:  # noqa: PTH123 as few imports as can be
            procs.write("0")
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target, inheritable=True)
    os.closerange(FIRST_FREE_DESCRIPTOR, keep)
    os.closerange(keep + 1, os.sysconf("SC_OPEN_MAX"))
    os.set_inheritable(keep, False)  # noqa: FBT003 its only form
    if call.gid >= 0:
        os.setgroups(call.groups)
        os.setgid(call.gid)
    if call.uid >= 0:
        os.setuid(call.uid)
        # A change of user forgets it.
        die_with_parent(parent)
    os.chdir(call.cwd)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.execvpe(call.argv[0], call.argv, call.env)  # noqa: S606 what the job says


def _receive(connection: socket.socket, byte_count: int) -> bytes:
    parts = bytearray()
    while len(parts) < byte_count:
        part = connection.recv(byte_count - len(parts))
        if not part:
            return b""
        parts += part
    return bytes(parts)
