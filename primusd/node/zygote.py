"""The warm process that executors are forked from: one thread, everything imported, no event loop.

A fork takes a few milliseconds where a fresh interpreter takes hundreds. Executors have sessions of
their own and nobody here waits for them: the node may be replaced or die without them. pyarrow is
never imported in it, for it starts a thread.
"""

import gc
import os
import resource  # noqa: F401 what os.wait4 would load in each executor
import signal
import socket
from pathlib import Path

import anyio
from anyio import open_signal_receiver  # noqa: F401 loaded when it is first named

from primusd.executor.processes import set_name
from primusd.node.forked import (
    ANSWER_BYTES_MAX,
    STARTED,
    Request,
    become_executor,
    receive,
    send,
)
from primusd.node.spares import Spares


class Zygote:
    """The warm process, as the node sees it."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self._connection = connection

    async def fork_executor(self, attempt: Path, *, within_s: float) -> str:
        """Fork the executor of an attempt; return "" once its lock is held, else why not."""
        read_end, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            send(self._connection, Request(os.fsencode(attempt), write_end))
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

    def close(self) -> None:
        """Let the warm process end, and wait for it."""
        self._connection.close()
        os.waitpid(self.pid, 0)


def start_zygote(close: tuple[int, ...] = (), *, spare_count: int = 0) -> Zygote:
    """Fork the warm process; only while there is one thread and no event loop.

    Args:
        close: Descriptors that must not live on in executors: a lock goes with its last holder.
        spare_count: How many executors it keeps forked ahead.
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
        _serve(theirs, spare_count)
    finally:
        os._exit(0)


def _serve(connection: socket.socket, spare_count: int) -> None:
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        # It ends when the node closes the connection, not before.
        signal.signal(number, signal.SIG_IGN)
    # The kernel reaps executors: no fork waits for the one before.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    set_name("primus-warm")
    anyio.run(anyio.sleep, 0)
    gc.collect()
    gc.freeze()
    spares = Spares(spare_count)
    while True:
        spares.until_asked(connection)
        request = receive(connection)
        if request is None:
            return
        if not spares.take(request) and os.fork() == 0:
            become_executor(request, (connection, *spares.connections))
        os.close(request.answer)
