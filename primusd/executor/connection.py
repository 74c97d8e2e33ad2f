"""A WebSocket to a head, over its unix socket or TCP: bytes in, bytes out.

Executors and nodes use it.
One binary message is one msgpack value of at most 1 MiB, no compression, no pings: reports are the
pulse (docs/protocol.md §1).
"""

import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache

import aiohttp
import anyio

from primusd.executor.protocol import LOST, MESSAGE_BYTES_MAX

DIAL_TIMEOUT_S = 10.0
FETCH_TIMEOUT_S = 600.0
FETCH_CHUNK_BYTES = 1 << 20
REACH_TIMEOUT_S = 3.0
"""For the connection alone: a host that is gone says nothing."""
UNIX = "unix:"


class UnreachableError(Exception):
    """A head did not answer as one; the text says how.

    Attributes:
        is_missing: It answered that there is no such thing: asking again is of no use.
    """

    def __init__(self, message: str, *, is_missing: bool = False) -> None:
        super().__init__(message)
        self.is_missing = is_missing


class Head:
    """One head's address, with the key that opens it."""

    def __init__(self, address: str, *, key: str, ca: str | None) -> None:
        self.address = address
        self._key = key
        self._ca = ca

    @asynccontextmanager
    async def session(self) -> AsyncIterator[aiohttp.ClientSession]:
        """Yield an HTTP session with this head; paths given to it begin with `/`."""
        connector: aiohttp.BaseConnector
        if self.address.startswith(UNIX):
            connector = aiohttp.UnixConnector(path=self.address.removeprefix(UNIX))
            base = "http://localhost"
        else:
            is_secure = self.address.startswith("https:")
            connector = aiohttp.TCPConnector(ssl=trusting(self._ca) if is_secure else True)
            base = self.address.rstrip("/")
        headers = {"Authorization": f"Bearer {self._key}"}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=REACH_TIMEOUT_S)
        async with aiohttp.ClientSession(
            base, connector=connector, headers=headers, timeout=timeout
        ) as session:
            yield session

    @asynccontextmanager
    async def connect(self, path: str, *, lost: Sequence[str] = ()) -> AsyncIterator["Connection"]:
        """Yield an open connection.

        Args:
            path: Of executors or nodes.
            lost: Heads that did not answer: a follower names none of them before it has waited.

        Raises:
            UnreachableError: Nobody listens there, or no WebSocket is spoken.
        """
        async with self.session() as session:
            try:
                with anyio.fail_after(DIAL_TIMEOUT_S):
                    socket = await session.ws_connect(
                        path,
                        max_msg_size=MESSAGE_BYTES_MAX,
                        headers={LOST: ",".join(lost)} if lost else None,
                    )
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                raise UnreachableError(_text(self.address, error)) from error
            try:
                yield Connection(socket)
            finally:
                await socket.close()

    async def fetch(self, path: str) -> AsyncIterator[bytes]:
        """Yield the body of a GET in chunks.

        Raises:
            UnreachableError: The head did not answer, or not with 200.
        """
        timeout = aiohttp.ClientTimeout(total=FETCH_TIMEOUT_S, connect=DIAL_TIMEOUT_S)
        try:
            async with (
                self.session() as session,
                session.get(path, timeout=timeout) as response,
            ):
                if response.status != 200:
                    raise UnreachableError(
                        f"{self.address}{path}: HTTP {response.status}",
                        is_missing=response.status == 404,
                    )
                async for chunk in response.content.iter_chunked(FETCH_CHUNK_BYTES):
                    yield chunk
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise UnreachableError(_text(self.address + path, error)) from error


@cache
def trusting(ca: str | None) -> ssl.SSLContext:
    """Return what heads are judged by: the authorities of this host, and what the head gave out.

    That may be its own certificate alone. aiohttp's own context knows no authorities (see
    `primusd.imports`).
    """
    context = ssl.create_default_context()
    if ca:
        context.load_verify_locations(cadata=ca)
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def _text(place: str, error: Exception) -> str:
    return f"{place}: {str(error) or type(error).__name__}"


class Connection:
    """An open WebSocket."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket

    async def send(self, data: bytes) -> None:
        """Send one message.

        Raises:
            UnreachableError: The connection is gone.
        """
        try:
            await self._socket.send_bytes(data)
        except (aiohttp.ClientError, OSError) as error:
            raise UnreachableError(f"connection lost: {error}") from error

    async def messages(self) -> AsyncIterator[bytes]:
        """Yield messages until the other side closes or the connection is lost."""
        async for message in self._socket:
            if message.type is aiohttp.WSMsgType.BINARY:
                yield message.data

    async def close(self) -> None:
        """Close it; `messages` ends."""
        await self._socket.close()
