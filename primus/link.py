"""A connection of this process to its executor."""

import select
import socket
from collections.abc import Callable

from primus import wire
from primus.dialling import SOCKET_BYTES, dial, greeting
from primus.wire import Header

# An executor that stands still for so long is not waited for.
FINISH_TIMEOUT_S = 5.0


class Link:
    """A socket that has said hello and speaks frames; one thread at a time uses it."""

    def __init__(self, path: str) -> None:
        self._socket = dial(path)
        self._socket.sendall(greeting())
        self._prefix = bytearray(wire.PREFIX.size)
        self._header = bytearray(wire.HEADER_BYTES)

    def say(self, *messages: dict[str, object]) -> None:
        """Send control messages."""
        self._socket.sendall(b"".join(wire.pack_control(message) for message in messages))

    def receive(
        self, allocate: Callable[[int], memoryview]
    ) -> dict[str, object] | tuple[Header, memoryview]:
        """Return the next control message, or the next data frame with its payload.

        Args:
            allocate: Gives writable memory for a payload of so many bytes.

        Raises:
            ConnectionError: The executor is gone.
            WireError: It does not speak this wire.
        """
        self._fill(memoryview(self._prefix))
        length, kind = wire.PREFIX.unpack(self._prefix)
        if kind == wire.CONTROL:
            body = bytearray(length - 1)
            self._fill(memoryview(body))
            return wire.unpack_control(body)
        if kind != wire.DATA:
            raise wire.WireError(f"a frame of kind {kind}")
        self._fill(memoryview(self._header))
        header = wire.unpack_header(self._header)
        payload = allocate(header.byte_count)
        self._fill(payload)
        return header, payload

    def _fill(self, view: memoryview) -> None:
        while view:
            count = self._socket.recv_into(view, len(view), socket.MSG_WAITALL)
            if not count:
                raise ConnectionError("the executor closed the connection")
            view = view[count:]

    def wait(self, seconds: float) -> bool:
        """Return whether something comes within so long."""
        return bool(select.select([self._socket], [], [], seconds)[0])

    def fileno(self) -> int:
        """Return what to wait on for a message."""
        return self._socket.fileno()

    def finish(self) -> None:
        """Hang up once the executor has taken in all that was said; what it sends is dropped."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
            self._socket.settimeout(FINISH_TIMEOUT_S)
            while self._socket.recv(SOCKET_BYTES):
                pass
        except OSError:
            return
        finally:
            self._socket.close()

    def close(self) -> None:
        """Hang up."""
        self._socket.close()
