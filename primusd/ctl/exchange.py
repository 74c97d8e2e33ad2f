"""One request over HTTP/1.1 and its answer, as far as primusctl needs them.

`http.client` reads headers with the parser of e-mail, which takes longer to load than the daemon
takes to answer. Source: RFC 9112.
"""

import socket
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import TracebackType

LINE_BYTES_MAX = 64 << 10
HEADERS_MAX = 100
PART_BYTES = 1 << 20
BODILESS = frozenset({204, 304})
Body = bytes | Callable[[], Iterator[bytes]] | None


class BrokenAnswerError(ConnectionError):
    """What came is no answer, or not all of one; the text says how."""


class Answer:
    """What came back; it owns the connection.

    Attributes:
        status: Its code.
        reason: The words behind the code.
    """

    def __init__(self, opened: socket.socket, method: str) -> None:
        self._socket = opened
        self._file = opened.makefile("rb")
        self.status, self.reason = self._read_status()
        self._headers = self._read_headers()
        while 100 <= self.status < 200:
            self.status, self.reason = self._read_status()
            self._headers = self._read_headers()
        self._is_chunked = self.header("Transfer-Encoding").lower() == "chunked"
        self._is_first_chunk = True
        length = self.header("Content-Length")
        self._left = int(length) if length.isdecimal() else None
        """Bytes of the body, or of a chunk of it, that are to come; None: up to the end."""
        if self._is_chunked or method == "HEAD" or self.status in BODILESS:
            self._left = 0
        self._is_over = not self._is_chunked and self._left == 0

    def __enter__(self) -> "Answer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def header(self, name: str) -> str:
        """Return a header's value, "" where it is absent."""
        return self._headers.get(name.lower(), "")

    def has_header(self, name: str) -> bool:
        """Return whether a header is there, be it empty."""
        return name.lower() in self._headers

    def wait_at_most(self, silence_s: float | None) -> None:
        """Take the connection for lost after so long without a byte; None never."""
        self._socket.settimeout(silence_s)

    def read(self) -> bytes:
        """Return the rest of the body, and close.

        Raises:
            BrokenAnswerError: It ends too early.
        """
        with self:
            return b"".join(iter(partial(self.read_some, PART_BYTES), b""))

    def read_some(self, byte_count: int) -> bytes:
        """Return what of the body is there, waiting for the first byte; b"" at its end.

        Raises:
            BrokenAnswerError: It ends too early.
        """
        if self._is_chunked and self._left == 0 and not self._is_over:
            self._left = self._next_chunk()
            self._is_over = self._left == 0
        if self._is_over:
            return b""
        data = self._file.read1(byte_count if self._left is None else min(byte_count, self._left))
        if self._left is None:
            self._is_over = not data
            return data
        if not data:
            raise BrokenAnswerError(f"the answer ends {self._left} bytes too early")
        self._left -= len(data)
        self._is_over = not self._is_chunked and self._left == 0
        return data

    def close(self) -> None:
        """Hang up."""
        self._file.close()
        self._socket.close()

    def _next_chunk(self) -> int:
        """Return the bytes of the chunk that follows; 0: none does."""
        if not self._is_first_chunk and self._line():
            raise BrokenAnswerError("a chunk of the answer is longer than it says")
        self._is_first_chunk = False
        size, _, _ = self._line().partition(";")
        try:
            byte_count = int(size, 16)
        except ValueError as error:
            raise BrokenAnswerError(f"{size[:80]!r} is no size of a chunk") from error
        if byte_count < 0:
            raise BrokenAnswerError(f"{size[:80]!r} is no size of a chunk")
        if byte_count == 0:
            self._read_headers()
        return byte_count

    def _read_status(self) -> tuple[int, str]:
        line = self._line()
        version, _, rest = line.partition(" ")
        code, _, reason = rest.partition(" ")
        if not version.startswith("HTTP/1.") or not code.isdecimal():
            raise BrokenAnswerError(f"what answers speaks no HTTP: {line[:80]!r}")
        return int(code), reason

    def _read_headers(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        for _ in range(HEADERS_MAX):
            line = self._line()
            if not line:
                return headers
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        raise BrokenAnswerError(f"the answer has more than {HEADERS_MAX} headers")

    def _line(self) -> str:
        line = self._file.readline(LINE_BYTES_MAX)
        if not line.endswith(b"\n"):
            raise BrokenAnswerError("the connection was closed before the answer was there")
        return line.rstrip(b"\r\n").decode("utf-8", errors="replace")


def ask(
    opened: socket.socket, method: str, target: str, body: Body, headers: Mapping[str, str]
) -> Answer:
    """Send a request on a fresh connection and return its answer, which then owns the connection.

    Args:
        opened: To the server.
        method: As `GET`.
        target: Path and query, quoted.
        body: All of it, or what gives its parts; those need their `Content-Length`.
        headers: `Host` among them. None may hold a line break.

    Raises:
        OSError: The connection broke, or what came is no answer.
    """
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {one}" for name, one in headers.items())]
    if not callable(body) and (body is not None or method not in {"GET", "HEAD"}):
        lines.append(f"Content-Length: {len(body or b'')}")
    if any("\n" in line or "\r" in line for line in lines):
        raise ValueError("a header has a line break")
    head = "\r\n".join((*lines, "", "")).encode()
    if callable(body):
        opened.sendall(head)
        for part in body():
            opened.sendall(part)
    else:
        opened.sendall(head + (body or b""))
    return Answer(opened, method)
