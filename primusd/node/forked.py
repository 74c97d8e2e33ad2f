"""What a fork of the warm process becomes: the executor of an attempt, now or once one is named."""

import array
import os
import signal
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import structlog
from msgspec import Struct

from primusd.executor import main as executor_main
from primusd.executor import own_log
from primusd.executor.directory import AttemptDirectory
from primusd.executor.machine import EXIT_INTERNAL, EXIT_LEFT
from primusd.executor.processes import set_name
from primusd.executor.rehearsal import rehearse
from primusd.executor.starter import Starter

REQUEST_BYTES_MAX = 8192
ANSWER_BYTES_MAX = 4096
STARTED = b"started"
READY = b"ready"
"""All that a spare ever says: from then on it takes a request at once."""


class Request(Struct, frozen=True):
    """Which attempt is to have its executor."""

    attempt: bytes
    """Path of its directory."""
    answer: int
    """Descriptor to say on that its lock is held, or why not."""


def send(connection: socket.socket, request: Request) -> None:
    """Send a request to a process that is to carry it out.

    Raises:
        OSError: It is gone.
    """
    descriptors = array.array("i", [request.answer]).tobytes()
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)]
    connection.sendmsg([request.attempt], ancillary, socket.MSG_DONTWAIT)


def receive(connection: socket.socket) -> Request | None:
    """Return the next request; None when who sends them is gone."""
    data, ancillary, _, _ = connection.recvmsg(REQUEST_BYTES_MAX, socket.CMSG_SPACE(4))
    if not data:
        return None
    descriptors = array.array("i")
    for _, _, part in ancillary:
        descriptors.frombytes(part)
    return Request(data, descriptors[0])


def become_executor(request: Request, foreign: Iterable[socket.socket]) -> None:
    """Be the executor of an attempt in a process that was just forked; does not return.

    Args:
        request: Names the attempt.
        foreign: Connections of the warm process, which this one must not hold open.
    """
    try:
        _detach(foreign)
        os._exit(_execute(request, None))
    finally:
        os._exit(0)


def become_spare(connection: socket.socket, foreign: Iterable[socket.socket]) -> None:
    """Prepare to be an executor, say so, and carry out a request; does not return.

    Without the warm process at the other end there is nothing to wait for, and it ends.
    """
    try:
        _detach(foreign)
        set_name("primus-starter")
        # Before the rehearsal: what was forked shares all memory until somebody writes to it.
        starter = executor_main.prepare(close=(connection.fileno(),))
        with suppress(OSError, ExceptionGroup):
            rehearse()
        connection.send(READY)
        # From here on, so that the name tells which of them are.
        set_name("primus-spare")
        request = receive(connection)
        connection.close()
        if request is not None:
            os._exit(_execute(request, starter))
    finally:
        os._exit(0)


def _detach(foreign: Iterable[socket.socket]) -> None:
    for one in foreign:
        one.close()
    os.setsid()
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)


def _execute(request: Request, starter: Starter | None) -> int:
    """Be the executor; return its exit code."""
    try:
        set_name("primus-executor")
        attempt = Path(os.fsdecode(request.attempt))
        directory = AttemptDirectory(attempt)
        os.chdir(attempt)
        _redirect(directory)
        lock = executor_main.hold(directory)
        os.write(request.answer, STARTED)
    except OSError as error:
        os.write(request.answer, str(error).encode()[:ANSWER_BYTES_MAX])
        return EXIT_INTERNAL
    finally:
        os.close(request.answer)
    if lock is None:
        return EXIT_LEFT
    try:
        return executor_main.run(directory.bootstrap, directory, lock, starter)
    except BaseException:
        structlog.get_logger().exception("executor.raised")
        raise


def _redirect(directory: AttemptDirectory) -> None:
    null = os.open("/dev/null", os.O_RDONLY)
    out = os.open(directory.executor_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
    for target, source in ((0, null), (1, out), (2, out)):
        os.dup2(source, target)
    os.close(null)
    os.close(out)
    own_log.configure()
