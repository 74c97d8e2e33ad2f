"""The warm process that executors are forked from: one thread, everything imported, no event loop.

A fork takes a few milliseconds where a fresh interpreter takes hundreds. Executors have sessions of
their own and nobody here waits for them: the node may be replaced or die without them. pyarrow is
never imported in it, for it starts a thread.
"""

import array
import gc
import os
import resource  # noqa: F401 what os.wait4 would load in each executor
import signal
import socket
from pathlib import Path

import anyio
import structlog
from anyio import open_signal_receiver  # noqa: F401 loaded when it is first named

from primusd.executor import main as executor_main
from primusd.executor import own_log
from primusd.executor.directory import AttemptDirectory
from primusd.executor.machine import EXIT_INTERNAL, EXIT_LEFT
from primusd.executor.processes import set_name

REQUEST_BYTES_MAX = 8192
ANSWER_BYTES_MAX = 4096
STARTED = b"started"


class Zygote:
    """The warm process, as the node sees it."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self._connection = connection

    async def fork_executor(self, attempt: Path, *, within_s: float) -> str:
        """Fork the executor of an attempt; return "" once its lock is held, else why not."""
        read_end, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            self._request(attempt, write_end)
        except OSError as error:
            os.close(read_end)
            return f"the fork server does not answer: {error}"
        finally:
            os.close(write_end)
        try:
            with anyio.move_on_after(within_s):
                await anyio.wait_readable(read_end)
                answer = os.read(read_end, ANSWER_BYTES_MAX)
                if answer == STARTED:
                    return ""
                return answer.decode(errors="replace") or "it ended before it held its lock"
        finally:
            os.close(read_end)
        return f"no answer within {within_s:.0f} s"

    @property
    def is_gone(self) -> bool:
        """Whether the warm process has ended."""
        try:
            # It never says a word here, so all there is to read is its end.
            return self._connection.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    async def until_gone(self) -> None:
        """Return when the warm process has ended."""
        await anyio.wait_readable(self._connection)

    def _request(self, attempt: Path, write_end: int) -> None:
        descriptors = array.array("i", [write_end]).tobytes()
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)]
        self._connection.sendmsg([os.fsencode(attempt)], ancillary)

    def close(self) -> None:
        """Let the warm process end, and wait for it."""
        self._connection.close()
        os.waitpid(self.pid, 0)


def start_zygote(close: tuple[int, ...] = ()) -> Zygote:
    """Fork the warm process; only while there is one thread and no event loop.

    Args:
        close: Descriptors that must not live on in executors: a lock goes with its last holder.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid:
        theirs.close()
        return Zygote(pid, ours)
    try:
        ours.close()
        for descriptor in close:
            os.close(descriptor)
        _serve(theirs)
    finally:
        os._exit(0)


def _serve(connection: socket.socket) -> None:
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        # It ends when the node closes the connection, not before.
        signal.signal(number, signal.SIG_IGN)
    # The kernel reaps executors: no fork waits for the one before.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    set_name("primus-warm")
    anyio.run(anyio.sleep, 0)
    gc.collect()
    gc.freeze()
    while True:
        data, ancillary, _, _ = connection.recvmsg(REQUEST_BYTES_MAX, socket.CMSG_SPACE(4))
        if not data:
            return
        descriptors = array.array("i")
        for _, _, part in ancillary:
            descriptors.frombytes(part)
        if os.fork() == 0:
            connection.close()
            _detach(Path(os.fsdecode(data)), descriptors[0])
        os.close(descriptors[0])


def _detach(attempt: Path, answer: int) -> None:
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os._exit(_execute(attempt, answer))
    finally:
        os._exit(0)


def _execute(attempt: Path, answer: int) -> int:
    """Be the executor; its exit code."""
    try:
        set_name("primus-executor")
        directory = AttemptDirectory(attempt)
        os.chdir(attempt)
        _redirect(directory)
        lock = executor_main.hold(directory)
        os.write(answer, STARTED)
    except OSError as error:
        os.write(answer, str(error).encode()[:ANSWER_BYTES_MAX])
        return EXIT_INTERNAL
    finally:
        os.close(answer)
    if lock is None:
        return EXIT_LEFT
    try:
        return executor_main.run(directory.bootstrap, directory, lock)
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
