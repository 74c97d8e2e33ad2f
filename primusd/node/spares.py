"""Executors forked ahead: a start takes one that waits, and only its attempt is new to it.

A fork shares its memory until it writes to it, and what an executor writes to before it has started
a trainer costs three quarters of its start. A spare has done that before it is asked for; one that
is still at it is asked for nothing, for a fork of its own never has to wait.
"""

import os
import select
import socket
import time

from primusd.node.forked import READY, Request, become_spare, send

FIRST_S = 1.0
AFTER_START_S = 5.0
"""Without a start, before one is forked: who starts now needs the processors."""
BETWEEN_S = 0.1
"""Two forks: a busy host hardly notices."""
AFTER_END_S = 10.0
"""Of a spare that nobody asked for anything: what ended it may end the next one too."""


class Spares:
    """The spares of a warm process, each at the other end of a connection."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._preparing: list[socket.socket] = []
        self._ready: list[socket.socket] = []
        self._due_s = time.monotonic() + FIRST_S

    @property
    def connections(self) -> tuple[socket.socket, ...]:
        """Those to all spares: whoever else holds one keeps them from ending with this process."""
        return (*self._preparing, *self._ready)

    def take(self, request: Request) -> bool:
        """Give a request to a spare; return False when none is ready."""
        self._due_s = time.monotonic() + AFTER_START_S
        while self._ready:
            spare = self._ready.pop(0)
            try:
                send(spare, request)
            except OSError:
                continue
            else:
                return True
            finally:
                spare.close()
        return False

    def until_asked(self, connection: socket.socket) -> None:
        """Return when there is something to read, and fork what is missing while there is not."""
        while True:
            readable = _readable((connection, *self.connections), self._wait_s())
            if not readable:
                self._fork(connection)
            for spare in readable - {connection}:
                self._hear(spare)
            if connection in readable:
                return

    def _wait_s(self) -> float | None:
        if len(self.connections) >= self._count_max:
            return None
        return max(0.0, self._due_s - time.monotonic())

    def _fork(self, connection: socket.socket) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._due_s = time.monotonic() + BETWEEN_S
        try:
            pid = os.fork()
        except OSError:
            # No process or no memory to be had now: later, perhaps.
            self._due_s += AFTER_START_S
            ours.close()
            theirs.close()
            return
        if pid == 0:
            become_spare(theirs, (connection, ours, *self.connections))
        theirs.close()
        self._preparing.append(ours)

    def _hear(self, spare: socket.socket) -> None:
        """Take note that a spare is ready, or that somebody ended it."""
        try:
            is_ready = spare.recv(len(READY), socket.MSG_DONTWAIT) == READY
        except OSError:
            is_ready = False
        if is_ready:
            self._preparing.remove(spare)
            self._ready.append(spare)
            return
        (self._ready if spare in self._ready else self._preparing).remove(spare)
        spare.close()
        self._due_s = time.monotonic() + AFTER_END_S


def _readable(connections: tuple[socket.socket, ...], within_s: float | None) -> set[socket.socket]:
    """Return those that can be read, waiting so long for the first; None is however long."""
    poll = select.poll()
    by_descriptor = {one.fileno(): one for one in connections}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    found = poll.poll(None if within_s is None else within_s * 1000)
    return {by_descriptor[descriptor] for descriptor, _ in found}
