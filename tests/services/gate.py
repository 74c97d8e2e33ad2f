"""Stands before a real server: passes on what it is asked, or refuses it in that server's words."""

import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

HOP_HEADERS = frozenset({"connection", "transfer-encoding", "keep-alive", "content-length"})


class Asked(NamedTuple):
    """A request that came."""

    method: str
    target: str
    """Path and query."""
    headers: dict[str, str]
    """By their names in lower case."""


class Refusal(NamedTuple):
    """What is answered instead of the server."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: dict[str, str] = {}  # noqa: RUF012 it is of a tuple


class Gate:
    """A proxy with a will of its own.

    Attributes:
        address: `host:port` to ask.
        judge: Returns why a request is refused; None lets it through.
        rewrite: Returns the target that the server is asked for.
    """

    def __init__(self, address: str, behind: str) -> None:
        self.address = address
        self.behind = behind
        self.judge: Callable[[Asked], Refusal | None] = lambda _: None
        self.rewrite: Callable[[str], str] = lambda target: target


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Leave it to who asked."""


@contextmanager
def gate_before(behind: str) -> Iterator[Gate]:
    """Stand before a server (`host:port`) until left."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects())

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            refused = gate.judge(Asked(self.command, self.path, headers))
            if refused is not None:
                body = b"" if self.command == "HEAD" else refused.body
                found = {"Content-Type": refused.content_type} if body else {}
                self._answer(refused.status, {**found, **refused.headers}, body)
                return
            url = f"http://{behind}{gate.rewrite(self.path)}"
            sent = {name: value for name, value in headers.items() if name not in HOP_HEADERS}
            request = urllib.request.Request(url, data=body or None, method=self.command)
            request.headers = {name.title(): value for name, value in sent.items()}
            try:
                answer = opener.open(request, timeout=30)
            except urllib.error.HTTPError as error:
                answer = error
            with answer:
                told = {name.title(): value for name, value in answer.headers.items()}
                self._answer(answer.status, told, answer.read())

        def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
            self.send_response(status)
            length = headers.get("Content-Length", "") if self.command == "HEAD" else ""
            for name, value in headers.items():
                if name.lower() not in HOP_HEADERS:
                    self.send_header(name, value)
            self.send_header("Content-Length", length or str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass  # noqa: N815 the names it looks for

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    gate = Gate(f"127.0.0.1:{server.server_port}", behind)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield gate
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
