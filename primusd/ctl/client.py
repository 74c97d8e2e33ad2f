"""A small HTTP client over a unix socket or TCP, of the standard library alone: it loads fast.

Requests that may be repeated are repeated when the connection breaks: all that read, and those that
carry an Idempotency-Key.
"""

import json
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from urllib.parse import quote, urlencode, urlsplit

from primusd.ctl.failures import ApiError, UnreachableError

RETRY_DELAYS_S = (0.1, 0.5, 1.0)
RETRIED_STATUSES = frozenset({429, 503})
BODY_PART_BYTES = 1 << 20
Json = dict[str, object]
Body = bytes | Callable[[], Iterator[bytes]] | None


class Client:
    """Calls one daemon."""

    def __init__(
        self,
        address: str,
        *,
        token: str = "",
        ca: str = "",
        timeout_s: float = 30.0,
        is_verbose: bool = False,
    ) -> None:
        self.address = address
        self._token = token
        self._ca = ca
        self._timeout_s = timeout_s
        self._is_verbose = is_verbose

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Json:
        """Return the document at a path.

        Raises:
            ApiError: The daemon refused.
            UnreachableError: No daemon answers.
        """
        return self.call("GET", path, query=query)

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> Json:
        """Send a request and return the document that answers it; {} where the answer has none."""
        data = None if body is None else json.dumps(body, ensure_ascii=False).encode()
        sent = dict(headers or {})
        if data is not None:
            sent.setdefault("Content-Type", "application/json")
        may_repeat = method in {"GET", "HEAD"} or "Idempotency-Key" in sent
        target = _target(path, query)
        with self._opened(
            method, target, data, sent, may_repeat=may_repeat, silence_s=self._timeout_s
        ) as response:
            text = response.read()
        return _document(text) if text else {}

    def exists(self, path: str) -> bool:
        """Return whether HEAD finds something."""
        try:
            self.call("HEAD", path)
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    def send(self, path: str, parts: Callable[[], Iterator[bytes]], byte_count: int) -> None:
        """PUT a body of a known length.

        Args:
            path: Where to.
            parts: Gives the body from its beginning, once per try.
            byte_count: Of the body.
        """
        headers = {"Content-Length": str(byte_count)}
        with self._opened("PUT", path, parts, headers, silence_s=self._timeout_s) as response:
            response.read()

    def lines(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        accept: str = "application/x-ndjson",
        silence_s: float | None = None,
    ) -> Iterator[bytes]:
        """Yield the lines of an answer as they come.

        Args:
            path: What to read.
            query: Its parameters.
            accept: The form of the answer.
            silence_s: After so long without a byte the daemon counts as gone; None: never.

        Raises:
            ApiError: The daemon refused.
            UnreachableError: The connection broke.
        """
        target = _target(path, query)
        headers = {"Accept": accept}
        with self._opened("GET", target, None, headers, silence_s=silence_s) as response:
            try:
                yield from _split(iter(partial(response.read1, BODY_PART_BYTES), b""))
            except (OSError, HTTPException) as error:
                raise self._unreachable(error) from error

    def parts(self, path: str, query: Mapping[str, str] | None = None) -> Iterator[bytes]:
        """Yield the bytes of an answer as they come."""
        target = _target(path, query)
        with self._opened("GET", target, None, {}, silence_s=None) as response:
            try:
                while part := response.read1(BODY_PART_BYTES):
                    yield part
            except (OSError, HTTPException) as error:
                raise self._unreachable(error) from error

    def _opened(
        self,
        method: str,
        target: str,
        data: Body,
        headers: Mapping[str, str],
        *,
        may_repeat: bool = True,
        silence_s: float | None,
    ) -> HTTPResponse:
        """Return the answer's head; a refusal that may pass is tried again."""
        delays = iter(RETRY_DELAYS_S if may_repeat else ())
        while True:
            try:
                response = self._once(method, target, data, headers, silence_s)
                if response.status in RETRIED_STATUSES and (delay_s := next(delays, None)):
                    response.close()
                    time.sleep(delay_s)
                    continue
            except (OSError, HTTPException) as error:
                delay_s = next(delays, None)
                if delay_s is None or isinstance(error, FileNotFoundError):
                    raise self._unreachable(error) from error
                time.sleep(delay_s)
                continue
            _raise_problem(response)
            return response

    def _once(
        self,
        method: str,
        target: str,
        data: Body,
        headers: Mapping[str, str],
        silence_s: float | None,
    ) -> HTTPResponse:
        connection = self._connection(self._timeout_s)
        begun = time.monotonic()
        try:
            connection.request(
                method,
                target,
                body=data() if callable(data) else data,
                headers=self._headers(headers),
            )
            opened = connection.sock
            response = connection.getresponse()
            opened.settimeout(silence_s)
        except BaseException:
            connection.close()
            raise
        if self._is_verbose:
            took_ms = (time.monotonic() - begun) * 1000
            sys.stderr.write(f"{method} {target} {response.status} {took_ms:.0f} ms\n")
        return response

    def _connection(self, timeout_s: float | None) -> HTTPConnection:
        if self.address.startswith("unix:"):
            return _UnixConnection(self.address.removeprefix("unix:"), timeout_s)
        parts = urlsplit(self.address)
        host = parts.hostname or "localhost"
        if parts.scheme == "https":
            context = ssl.create_default_context(cafile=self._ca or None)
            return HTTPSConnection(host, parts.port, timeout=timeout_s, context=context)
        return HTTPConnection(host, parts.port, timeout=timeout_s)

    def _headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        # One connection per request: the response then owns the socket and closes it.
        sent = {"Accept": "application/json", "User-Agent": "primusctl", "Connection": "close"}
        sent |= headers
        if self._token and not self.address.startswith("unix:"):
            sent["Authorization"] = f"Bearer {self._token}"
        return sent

    def _unreachable(self, error: Exception) -> UnreachableError:
        if isinstance(error, TimeoutError):
            return UnreachableError(
                f"no answer from {self.address} within {self._timeout_s:g} s",
                hint="a longer --request-timeout",
            )
        text = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return UnreachableError(f"no daemon answers at {self.address}: {text.lower()}")


class _UnixConnection(HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str, timeout_s: float | None) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        """Open the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _split(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines: `HTTPResponse.readline` takes a connection that broke for the end."""
    rest = b""
    for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield line + b"\n"
    if rest:
        yield rest


def job_path(namespace: str, name: str, *rest: str) -> str:
    """Return the path of a job, or of something below it."""
    parts = ("namespaces", namespace, "jobs", name, *rest)
    return "/api/v1/" + "/".join(quote(part, safe=":@") for part in parts)


def named_path(kind: str, name: str, action: str = "") -> str:
    """Return the path of a node or a queue, or of an action on it."""
    return f"/api/v1/{kind}/{quote(name, safe='')}" + (f":{action}" if action else "")


def _target(path: str, query: Mapping[str, str] | None) -> str:
    kept = {key: value for key, value in (query or {}).items() if value != ""}
    return f"{path}?{urlencode(kept)}" if kept else path


def _raise_problem(response: HTTPResponse) -> None:
    if response.status < 400:
        return
    text = response.read()
    response.close()
    try:
        problem = _document(text)
    except ValueError:
        problem = {"hint": "what stands in the daemon's log"}
    if not problem.get("title"):
        problem["title"] = f"the daemon answered {response.status} {response.reason}"
    raise ApiError(response.status, problem)


def _document(text: bytes) -> Json:
    document = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError("the answer is no JSON object")  # noqa: TRY004 - as JSON errors are
    return document
