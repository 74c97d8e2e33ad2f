"""primusctl's own HTTP: an answer is read whole or refused, however its bytes come."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from primusd.ctl.exchange import HEADERS_MAX, Answer, BrokenAnswerError, ask

WAIT_S = 20.0
HOST = {"Host": "localhost"}
BODY = b"abc0123456789"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n"
    b"3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\nTrailer: 1\r\n\r\n"
)
SIZED = b"HTTP/1.1 201 Created\r\nContent-Length: 13\r\n\r\n" + BODY
ENDED = b"HTTP/1.0 200 OK\r\n\r\n" + BODY
PRECEDED = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + SIZED


@contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(WAIT_S)
        theirs.settimeout(WAIT_S)
        yield ours, theirs


def answered(data: bytes, method: str = "GET") -> tuple[Answer, bytes]:
    """Return what comes of these bytes and an end behind them."""
    with pair() as (ours, theirs):
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        answer = ask(ours, method, "/", None, HOST)
        return answer, answer.read()


@pytest.mark.parametrize("data", [CHUNKED, SIZED, ENDED, PRECEDED])
def test_a_body_is_read_to_its_end(data: bytes) -> None:
    answer, body = answered(data)

    assert body == BODY
    assert answer.status in {200, 201}


@pytest.mark.parametrize("data", [CHUNKED, SIZED])
def test_an_answer_that_breaks_off_anywhere_is_never_taken_for_a_whole_one(data: bytes) -> None:
    for byte_count in range(len(data)):
        with pytest.raises(BrokenAnswerError):
            answered(data[:byte_count])


def test_what_is_there_of_a_chunk_is_given_before_the_rest_comes() -> None:
    with pair() as (ours, theirs):
        theirs.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab")
        answer = ask(ours, "GET", "/", None, HOST)

        assert answer.read_some(100) == b"ab"
        theirs.sendall(b"c\r\n0\r\n\r\n")
        assert answer.read_some(100) == b"c"
        assert answer.read_some(100) == b""


@pytest.mark.parametrize(
    ("head", "method"),
    [("204 No Content", "DELETE"), ("304 Not Modified", "GET"), ("200 OK", "HEAD")],
)
def test_an_answer_without_a_body_waits_for_none(head: str, method: str) -> None:
    with pair() as (ours, theirs):
        theirs.sendall(f"HTTP/1.1 {head}\r\nContent-Length: 9\r\n\r\n".encode())

        assert ask(ours, method, "/", None, HOST).read() == b""


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 many OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * (64 << 10) + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: 1\r\n" * (HEADERS_MAX + 1) + b"\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n",
    ],
)
def test_what_is_no_answer_is_refused(data: bytes) -> None:
    with pytest.raises(BrokenAnswerError):
        answered(data)


def test_a_header_that_is_empty_is_there() -> None:
    answer, _ = answered(b"HTTP/1.1 503 Busy\r\nX-Primus-Leader:\r\nContent-Length: 0\r\n\r\n")

    assert answer.has_header("x-primus-leader")
    assert answer.header("X-Primus-Leader") == ""
    assert not answer.has_header("Retry-After")


def test_a_request_says_how_long_its_body_is() -> None:
    requests: list[bytes] = []
    for body in (None, b"{}", lambda: iter((b"x", b"y"))):
        with pair() as (ours, theirs):
            theirs.sendall(SIZED)
            length = {"Content-Length": "2"} if callable(body) else {}
            with ask(ours, "PUT", "/a?b=%20", body, HOST | length):
                requests.append(theirs.recv(1 << 16))

    line = b"PUT /a?b=%20 HTTP/1.1\r\nHost: localhost\r\n"
    assert requests[:2] == [
        line + b"Content-Length: %d\r\n\r\n%s" % (len(body), body) for body in (b"", b"{}")
    ]
    # Parts go one by one, so what has come of them is not told.
    assert requests[2].startswith(line + b"Content-Length: 2\r\n\r\n")


def test_a_header_with_a_line_break_is_not_sent() -> None:
    with pair() as (ours, _), pytest.raises(ValueError, match="line break"):
        ask(ours, "GET", "/", None, HOST | {"Authorization": "Bearer a\r\nX: y"})
