"""A small HTTP client over a unix socket or TCP, of the standard library alone: it loads fast.

Requests that may be repeated are repeated when the connection breaks: all that read, and those that
carry an Idempotency-Key.
"""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from socket import socket
from typing import NamedTuple
from urllib.parse import quote, urlencode

from primusd.ctl.exchange import PART_BYTES, Answer, Body, ask
from primusd.ctl.failures import ApiError, NobodyLeadsError, UnreachableError
from primusd.ctl.heads import (
    CONNECT_S,
    TAKES_NO_TOKEN,
    Heads,
    connect,
    host_of,
    leader_named,
    sent_on_to,
)

RETRY_DELAYS_S = (0.1, 0.5, 1.0)
RETRIED_STATUSES = frozenset({429, 503})
Json = dict[str, object]


class _Request(NamedTuple):
    method: str
    target: str
    data: Body
    headers: Mapping[str, str]


class Client:
    """Calls one daemon; of several heads, named by addresses between commas, the one that leads."""

    def __init__(
        self,
        address: str,
        *,
        token: str = "",
        ca: str = "",
        timeout_s: float = 30.0,
        is_verbose: bool = False,
    ) -> None:
        self._heads = Heads(address)
        self._token = token
        self._ca = ca
        self._timeout_s = timeout_s
        self._is_verbose = is_verbose

    @property
    def address(self) -> str:
        """Of the head that answered last; before that, of the one to ask first."""
        return self._heads.address

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
            try:
                text = response.read()
            except OSError as error:
                raise self._lost(error) from error
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
                yield from _split(iter(partial(response.read_some, PART_BYTES), b""))
            except OSError as error:
                raise self._lost(error) from error

    def parts(self, path: str, query: Mapping[str, str] | None = None) -> Iterator[bytes]:
        """Yield the bytes of an answer as they come."""
        target = _target(path, query)
        with self._opened("GET", target, None, {}, silence_s=None) as response:
            try:
                while part := response.read_some(PART_BYTES):
                    yield part
            except OSError as error:
                raise self._lost(error) from error

    def _opened(
        self,
        method: str,
        target: str,
        data: Body,
        headers: Mapping[str, str],
        *,
        may_repeat: bool = True,
        silence_s: float | None,
    ) -> Answer:
        """Return the answer's head; a refusal that may pass is tried again."""
        sent = _Request(method, target, data, headers)
        delays = iter(RETRY_DELAYS_S if may_repeat else ())
        while True:
            try:
                response = self._reached(sent, silence_s)
                if response.status in RETRIED_STATUSES and (delay_s := next(delays, None)):
                    response.close()
                    time.sleep(delay_s)
                    continue
            except OSError as error:
                delay_s = next(delays, None)
                if delay_s is None or isinstance(error, FileNotFoundError):
                    raise self._lost(error) from error
                self._heads.pass_over()
                time.sleep(delay_s)
                continue
            except NobodyLeadsError:
                delay_s = next(delays, None)
                if delay_s is None:
                    raise
                time.sleep(delay_s)
                continue
            _raise_problem(response, self._heads.followed)
            return response

    def _reached(self, sent: _Request, silence_s: float | None) -> Answer:
        """Return the answer of the head that leads, wherever that is.

        Raises:
            NobodyLeadsError: None of several does.
            OSError: The only one is not there, or the one that leads went.
        """
        way = self._heads.round()
        for address in way.addresses():
            is_sole = not way.said and not self._heads.has_others
            within_s = self._timeout_s if is_sole else min(CONNECT_S, self._timeout_s)
            try:
                connection = connect(
                    address, ca=self._ca, within_s=within_s, timeout_s=self._timeout_s
                )
            except OSError as error:
                if is_sole:
                    raise
                way.said[address] = _words(error)
                continue
            shown = way.shown_to(address)
            if not shown:
                # Whoever takes our word, as one that was sent on has none for the next request.
                self._heads.address = address
            headers = self._headers(sent.headers, address, shown)
            response = self._asked(connection, sent, silence_s, headers)
            leader, given = leader_named(response), sent_on_to(response)
            is_stranger = response.status == 401 and self._heads.is_one_of_several
            if leader is None and given is None and not is_stranger:
                return response
            with response:
                words = _title(response.read())
                way.said[address] = TAKES_NO_TOKEN if is_stranger else words
            if given is not None:
                way.follow(address, given[0], shown=given[1])
            elif leader is not None:
                way.follow(address, leader)
        raise NobodyLeadsError(way.said)

    def _asked(
        self,
        opened: socket,
        sent: _Request,
        silence_s: float | None,
        headers: Mapping[str, str],
    ) -> Answer:
        begun = time.monotonic()
        try:
            response = ask(opened, sent.method, sent.target, sent.data, headers)
            response.wait_at_most(silence_s)
        except BaseException:
            opened.close()
            raise
        if self._is_verbose:
            took_ms = (time.monotonic() - begun) * 1000
            sys.stderr.write(f"{sent.method} {sent.target} {response.status} {took_ms:.0f} ms\n")
        return response

    def _headers(self, headers: Mapping[str, str], address: str, shown: str) -> dict[str, str]:
        # One connection per request: the response then owns the socket and closes it.
        sent = {
            "Host": host_of(address),
            "Accept": "application/json",
            "User-Agent": "primusctl",
            "Connection": "close",
        }
        sent |= headers
        if shown:
            sent["Authorization"] = shown
        elif self._token and not address.startswith("unix:"):
            sent["Authorization"] = f"Bearer {self._token}"
        return sent

    def _lost(self, error: Exception) -> UnreachableError:
        """Return what a caller is told of a head that went; another one is asked next."""
        address = self.address
        self._heads.pass_over()
        if isinstance(error, TimeoutError):
            return UnreachableError(
                f"no answer from {address} within {self._timeout_s:g} s",
                hint="a longer --request-timeout",
            )
        return UnreachableError(f"no daemon answers at {address}: {_words(error)}")


def _split(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines, whole ones only."""
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


def _words(error: Exception) -> str:
    """Return what is wrong with a connection."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text).lower()


def _title(text: bytes) -> str:
    """Return what a head says that does not lead: a problem, or plain text."""
    try:
        return str(_document(text).get("title"))
    except ValueError:
        return text.decode(errors="replace").strip() or "it does not lead"


def _raise_problem(response: Answer, followed: str) -> None:
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
    if response.status == 401 and followed:
        problem["title"] = f"{followed}, which leads, does not take the token that was found"
    raise ApiError(response.status, problem)


def _document(text: bytes) -> Json:
    document = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError("the answer is no JSON object")  # noqa: TRY004 - as JSON errors are
    return document
