"""primusctl with several addresses: heads that do as they are told, of which one may lead."""

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from primusd.ctl.client import Client
from primusd.ctl.failures import ApiError, CtlError, NobodyLeadsError, UnreachableError
from primusd.ctl.finding import find_address
from primusd.ctl.heads import Heads
from primusd.ctl.waiting import resumed

PATH = "/api/v1/queues"


class FakeHead:
    """Answers as a head: the leader, or one that stands by.

    Attributes:
        leader: Whom it names; None it leads, "" nobody does.
        token: That it wants; "" none.
        asked: The requests that came, but for those that look whether it is there.
        lines: Of a stream that it sends, and then breaks off.
    """

    def __init__(self) -> None:
        self.leader: str | None = None
        self.token = ""
        self.asked: list[str] = []
        self.lines: list[int] = []
        head = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 its name
                return

            def _answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length).decode()
                if self.path != "/readyz":
                    head.asked.append(f"{self.command} {self.path} {body}".strip())
                if head.token and self.headers.get("Authorization") != f"Bearer {head.token}":
                    self._send(401, {"title": "a token is needed", "code": "Unauthorized"})
                elif head.leader is not None:
                    problem = {"title": "this daemon stands by", "code": "NotLeader"}
                    self._send(503, problem, head.leader)
                elif head.lines:
                    self.send_response(200)
                    self.end_headers()
                    self.wfile.write("".join(f'{{"row": {one}}}\n' for one in head.lines).encode())
                else:
                    self._send(200, {"by": head.address})

            do_GET = do_POST = do_HEAD = _answer  # noqa: N815 their names

            def _send(self, status: int, document: object, leader: str | None = None) -> None:
                data = json.dumps(document).encode()
                self.send_response(status)
                if leader is not None:
                    self.send_header("X-Primus-Leader", leader)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @contextmanager
    def serving(self) -> Iterator["FakeHead"]:
        self._thread.start()
        try:
            yield self
        finally:
            self.stop()

    def stop(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


@pytest.fixture
def heads() -> Iterator[list[FakeHead]]:
    with ExitStack() as held:
        yield [held.enter_context(FakeHead().serving()) for _ in range(3)]


def client_of(*heads: FakeHead, token: str = "") -> Client:
    return Client(",".join(one.address for one in heads), token=token, timeout_s=20)


def test_the_leader_is_remembered_for_the_rest_of_the_command(heads: list[FakeHead]) -> None:
    a, b, c = heads
    a.leader = b.leader = c.address
    client = client_of(a, b)

    found = [client.get(PATH)["by"] for _ in range(3)]

    assert found == [c.address] * 3
    assert (len(a.asked), len(b.asked), len(c.asked)) == (1, 0, 3)
    assert client.address == c.address


def test_what_may_not_be_repeated_follows_too_for_nothing_was_done(heads: list[FakeHead]) -> None:
    a, b, _ = heads
    a.leader = b.address

    assert client_of(a).call("POST", PATH, body={"x": 1})["by"] == b.address
    assert b.asked == [f'POST {PATH} {{"x": 1}}']


def test_a_head_that_is_gone_is_passed_over(heads: list[FakeHead]) -> None:
    a, b, c = heads
    a.stop()
    b.leader = ""

    assert client_of(a, b, c).call("POST", PATH, body={})["by"] == c.address


def test_a_follower_that_names_a_dead_leader_leaves_the_others_to_ask(
    heads: list[FakeHead],
) -> None:
    a, b, c = heads
    b.stop()
    a.leader = b.address

    assert client_of(a, b, c).get(PATH)["by"] == c.address


def test_when_none_leads_each_is_named_with_what_it_said(heads: list[FakeHead]) -> None:
    a, b, c = heads
    # Two that name each other are asked once in each round.
    a.leader, b.leader = b.address, a.address
    c.stop()

    with pytest.raises(NobodyLeadsError) as found:
        client_of(a, b, c).call("POST", PATH, body={})

    assert found.value.exit_code == 5
    assert found.value.message == "none of the 3 heads asked leads"
    assert dict(found.value.said) == {
        a.address: "this daemon stands by",
        b.address: "this daemon stands by",
        c.address: "connection refused",
    }
    assert sorted(found.value.details)[0].partition(": ")[2]
    assert (len(a.asked), len(b.asked)) == (1, 1)


def test_a_leader_that_wants_another_token_is_named(heads: list[FakeHead]) -> None:
    a, b, _ = heads
    a.leader, b.token = b.address, "its own"

    with pytest.raises(ApiError, match=f"{b.address}, which leads, does not take the token"):
        client_of(a, token="another").get(PATH)

    assert client_of(a, token="its own").get(PATH)["by"] == b.address


def test_heads_that_do_not_take_the_token_leave_the_others_to_ask(heads: list[FakeHead]) -> None:
    a, b, c = heads
    a.token = b.token = "its own"

    assert client_of(a, b, c, token="another").call("POST", PATH, body={})["by"] == c.address


def test_that_nobody_leads_is_not_hidden_behind_heads_with_other_tokens(
    heads: list[FakeHead],
) -> None:
    a, b, c = heads
    a.leader, b.token = "", "its own"
    c.stop()

    with pytest.raises(NobodyLeadsError) as found:
        client_of(a, b, c, token="another").call("POST", PATH, body={})

    assert found.value.message == (
        "none of the 3 heads asked leads and takes the token that was found"
    )
    assert "[auth] tokens" in found.value.hint
    assert dict(found.value.said) == {
        a.address: "this daemon stands by",
        b.address: "it does not take the token that was found",
        c.address: "connection refused",
    }


def test_a_stream_goes_on_at_the_new_leader_from_where_it_was(heads: list[FakeHead]) -> None:
    a, b, _ = heads
    a.lines = [1, 2]
    b.leader = a.address
    client = client_of(a, b)
    seen: list[object] = []

    def lines() -> Iterator[bytes]:
        return client.lines(f"{PATH}?from={len(seen)}")

    def is_over() -> bool:
        if b.leader is not None:
            # The leader went, and the other one took over.
            a.stop()
            b.leader, b.lines = None, [3, 4]
            return False
        return True

    for found in resumed(client, lines, is_over=is_over):
        row = found["row"]
        seen.append(row)

    assert seen == [1, 2, 3, 4]
    assert b.asked[-1] == f"GET {PATH}?from=2"
    assert client.address == b.address


def test_all_addresses_are_checked_and_one_that_is_none_is_named(tmp_path: Path) -> None:
    named = {"PRIMUS_ADDRESS": f"h1:8080, https://h2/ ,{tmp_path}/s.sock,"}

    assert find_address("", named) == f"http://h1:8080,https://h2,unix:{tmp_path}/s.sock"
    for wrong in ("h1:8080,nonsense", ","):
        with pytest.raises(CtlError, match="is no address") as found:
            find_address(wrong, {})
        assert found.value.exit_code == 2


def test_a_head_known_by_tls_sends_nobody_where_there_is_none() -> None:
    way = Heads("https://a:1,https://b:1").round()
    asked = []
    for address in way.addresses():
        asked.append(address)
        way.said[address] = "stands by"
        way.follow(address, "http://c:1")

    assert asked == ["https://a:1", "https://b:1"]


def test_one_address_is_told_as_before(heads: list[FakeHead]) -> None:
    a = heads[0]
    a.stop()

    with pytest.raises(UnreachableError, match=f"no daemon answers at {a.address}: connection"):
        client_of(a).call("POST", PATH, body={})
