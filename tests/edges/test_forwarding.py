"""A head that stands by hands requests on to the leader, under the name of who sent them."""

import base64
import hashlib
import json
import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPResponse, IncompleteRead
from pathlib import Path

import pytest

from primusd.api.vouching import GOOD_FOR_MS, Caller, Voucher, vouch
from primusd.clock import SystemClock
from primusd.config import Config
from primusd.config.settings import Listen
from primusd.ctl.client import Client, Json
from primusd.ctl.failures import ApiError
from primusd.state.election import Heads, Identity
from tests.edges.api_server import NAMESPACE, Server, job_file, serve
from tests.edges.test_api_access import certificate

JOBS = "/api/v1/jobs"
SECRET = b"s" * 32


class Two:
    """Head a leads, head b stands by; both are of one cluster."""

    def __init__(self, leader: Server, other: Server) -> None:
        self.leader = leader
        self.other = other
        self.heads = Heads(leader.identity(), 7, (leader.identity(), other.identity()))
        other.follow(self.heads)

    @contextmanager
    def over_tcp(
        self,
        method: str,
        path: str,
        *,
        token: str = "tok-admin",
        body: bytes | None = None,
        **headers: str,
    ) -> Iterator[HTTPResponse]:
        """Ask the one that stands by, as curl does."""
        connection = HTTPConnection("127.0.0.1", self.other.port, timeout=20)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token:
            sent["Authorization"] = f"Bearer {token}"
        with closing(connection):
            connection.request(method, path, body=body, headers=sent)
            with connection.getresponse() as answer:
                yield answer


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    with serve(folders[0], Config(member="a")) as a, serve(folders[1], Config(member="b")) as b:
        yield Two(a, b)


def by(server: Server) -> list[str]:
    """Return who has submitted jobs."""
    return [job.timeline[0].by for job in server.world.jobs.values()]


def test_reads_and_writes_reach_the_leader_and_its_answers_come_back(two: Two) -> None:
    made = two.other.client.call("POST", NAMESPACE, body=job_file(name="x"))
    found = two.other.client.get(f"{NAMESPACE}/x")

    assert made["uid"] == found["uid"]
    assert list(two.leader.world.jobs) == [made["uid"]]
    assert not two.other.world.jobs
    with two.over_tcp("GET", JOBS) as answer:
        assert answer.status == 200
        assert answer.headers["X-Primus-Leader"] == two.leader.identity().addresses[0]
        assert answer.headers["X-Primus-Term"] == "7"
        assert [one["name"] for one in json.loads(answer.read())["items"]] == ["x"]


def test_refusals_of_the_leader_come_back_as_they_are(two: Two) -> None:
    two.other.client.call("POST", NAMESPACE, body=job_file(name="x"))

    with pytest.raises(ApiError) as raised:
        two.other.client.call("POST", NAMESPACE, body=job_file(name="x"))
    assert (raised.value.status, raised.value.code) == (409, "NameTaken")
    with pytest.raises(ApiError) as raised:
        two.other.client.get(f"{NAMESPACE}/nothing")
    assert raised.value.status == 404
    with two.over_tcp("POST", NAMESPACE, body=b"{", Content_Type="application/json") as answer:
        assert answer.status == 400
        assert answer.headers["Content-Type"].startswith("application/problem+json")


def test_the_journal_keeps_who_asked_and_which_head_handed_it_on(two: Two) -> None:
    two.other.client.call("POST", NAMESPACE, body=job_file(name="x"))
    two.other.tcp("tok-write").call("POST", NAMESPACE, body=job_file(name="y"))

    via_socket, via_token = by(two.leader)
    assert via_socket.startswith("uid:")
    assert via_socket.endswith(" via b")
    assert via_token == "token:write via b"


def test_the_head_that_is_asked_judges_its_callers(two: Two) -> None:
    for token, method, status in (
        ("", "GET", 401),
        ("wrong", "GET", 401),
        ("tok-read", "POST", 403),
    ):
        with two.over_tcp(method, NAMESPACE, token=token, body=b"{}") as answer:
            assert answer.status == status
    assert not two.leader.world.jobs


@pytest.mark.parametrize("method", ["HEAD", "PUT"])
def test_a_large_body_is_handed_on_in_parts(two: Two, method: str) -> None:
    body = bytes(range(256)) * 40_000
    digest = hashlib.sha256(body).hexdigest()
    path = f"/api/v1/blobs/sha256:{digest}"
    with two.over_tcp("PUT", path, body=body) as answer:
        assert answer.status in (200, 201, 204), answer.read()
    assert next((two.leader.state / "blobs" / "sha256").rglob(digest)).read_bytes() == body
    if method == "HEAD":
        with two.over_tcp("HEAD", path) as answer:
            assert answer.status in (200, 204)


@pytest.mark.parametrize(
    "target", [f"{JOBS}?watch=1", f"{NAMESPACE}/x/logs?follow=1", f"{NAMESPACE}/x/logs"]
)
def test_watches_and_logs_are_sent_to_the_leader_with_a_pass_for_that_one_thing(
    two: Two, target: str
) -> None:
    two.leader.submit(name="x")
    with two.over_tcp("GET", target, token="tok-read") as answer:
        assert answer.status == 307
        place, shown = answer.headers["Location"], answer.headers["X-Primus-Pass"]
        assert place == two.leader.identity().addresses[0] + target

    def asked(path: str, method: str = "GET") -> int:
        connection = HTTPConnection("127.0.0.1", two.leader.port, timeout=20)
        connection.request(method, path, headers={"Authorization": f"PrimusHead {shown}"})
        status = connection.getresponse().status
        connection.close()
        return status

    assert asked(target) == 200
    assert asked(JOBS) == 401
    assert asked(target, "DELETE") == 401


def test_primusctl_follows_to_the_leader_and_comes_back(two: Two) -> None:
    two.leader.submit(name="x")
    client = Client(f"unix:{two.other.socket}", timeout_s=20)

    lines = client.lines(JOBS, {"watch": "1"}, silence_s=20)
    first: Json = json.loads(next(lines))

    assert first["type"] == "ADDED"
    # For the next request it has no pass: that one goes by way of the follower.
    assert client.get(f"{NAMESPACE}/x")["name"] == "x"
    assert client.address == f"unix:{two.other.socket}"


def test_nothing_goes_round_in_circles(two: Two) -> None:
    # Each takes the other one for the leader.
    two.leader.follow(Heads(two.other.identity(), 8, two.heads.members))

    with two.over_tcp("GET", JOBS) as answer:
        problem = json.loads(answer.read())
    assert (answer.status, problem["code"]) == (503, "NotLeader")
    assert problem["title"] == "this daemon stands by: b leads, term 8"
    assert answer.headers["Retry-After"] == "1"


def test_while_nobody_leads_that_is_said_and_nothing_is_done(two: Two) -> None:
    two.other.follow(Heads(None, 7, two.heads.members))

    for method in ("GET", "POST"):
        with two.over_tcp(method, NAMESPACE, body=b"{}") as answer:
            problem = json.loads(answer.read())
        assert (answer.status, problem["code"]) == (503, "NotLeader")
        assert (answer.headers["X-Primus-Leader"], answer.headers["Retry-After"]) == ("", "1")
        assert problem["title"] == "this daemon does not lead, and nobody else does yet"


def test_a_head_that_takes_over_asks_nobody(two: Two) -> None:
    two.other.follow(Heads(two.other.identity(), 8, two.heads.members))

    with two.over_tcp("GET", JOBS) as answer:
        assert answer.status == 503
        assert "takes over just now" in json.loads(answer.read())["title"]


def test_a_leader_that_is_not_reached_is_told_with_its_address(two: Two) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
    two.other.follow(Heads(Identity("c", (address,)), 9, ()))

    with two.over_tcp("POST", NAMESPACE, body=b"{}") as answer:
        problem = json.loads(answer.read())
    assert (answer.status, problem["code"]) == (503, "NotLeader")
    assert f"c leads, and does not answer at {address}" in problem["title"]


@contextmanager
def dying_leader(sends: bytes) -> Iterator[str]:
    """A leader that takes a request, says something, and is gone."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve_one() -> None:
            opened, _ = listener.accept()
            with opened:
                opened.recv(65_536)
                opened.sendall(sends)

        thread = threading.Thread(target=serve_one)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            thread.join(20)


def test_of_a_write_that_the_leader_died_over_nobody_says_that_it_was_not_done(two: Two) -> None:
    for method, code in (("POST", "LeaderLost"), ("GET", "NotLeader")):
        with dying_leader(b"") as address:
            two.other.follow(Heads(Identity("c", (address,)), 9, ()))
            with two.over_tcp(method, NAMESPACE, body=b"{}") as answer:
                problem = json.loads(answer.read())
        assert (answer.status, problem["code"]) == (503, code)
        # Only where it says so may a client ask another head as if nothing had been.
        assert ("X-Primus-Leader" in answer.headers) is (code == "NotLeader")


def test_an_answer_that_breaks_off_does_not_look_like_a_whole_one(two: Two) -> None:
    half = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"
    with dying_leader(half) as address:
        two.other.follow(Heads(Identity("c", (address,)), 9, ()))
        with (
            two.over_tcp("GET", JOBS) as answer,
            pytest.raises((ConnectionError, IncompleteRead)),
        ):
            answer.read()


def test_a_request_ends_when_the_leader_it_went_to_leads_no_more(two: Two) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        two.other.follow(Heads(Identity("c", (address,)), 9, ()))
        connection = HTTPConnection("127.0.0.1", two.other.port, timeout=20)
        headers = {"Authorization": "Bearer tok-admin"}
        connection.request("POST", NAMESPACE, body=b"{}", headers=headers)
        opened, _ = silent.accept()

        two.other.follow(two.heads)

        answer = connection.getresponse()
        assert json.loads(answer.read())["code"] == "LeaderLost"
        opened.close()
        connection.close()


def test_readiness_tells_whether_requests_are_served(two: Two) -> None:
    def ready(path: str = "/readyz") -> tuple[int, str]:
        with two.over_tcp("GET", path, token="") as answer:
            return answer.status, answer.read().decode().strip()

    assert ready() == (200, "ok")
    assert ready("/readyz?leads") == (503, "this daemon stands by: a leads, term 7")
    assert ready("/livez") == ready("/healthz") == (200, "ok")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
    two.other.follow(Heads(Identity("c", (address,)), 9, ()))
    status, text = ready()
    assert status == 503
    assert text.startswith(f"c leads, and does not answer at {address}")
    two.other.follow(Heads(None, 0, ()))
    assert ready() == (503, "this daemon does not lead, and nobody else does yet")
    two.other.follow(None)
    assert ready() == ready("/readyz?leads=1") == (200, "ok")


def test_a_standby_answers_for_itself_what_is_its_own(two: Two) -> None:
    two.leader.submit(name="x")

    found = two.other.client.get("/api/v1/cluster")
    with two.over_tcp("GET", "/metrics") as answer:
        figures = answer.read().decode()

    assert (found["member"], found["leader"], found["term"]) == ("b", "a", 7)
    assert "primus_leads 0.0" in figures
    assert "primus_term 7.0" in figures
    # The sum over all heads is the cluster's.
    assert "primus_jobs" not in figures


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make certificates with")
def test_between_heads_tls_is_kept_and_checked(tmp_path: Path) -> None:
    key, cert = certificate(tmp_path, "localhost")
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(cert, key)
    secured = Listen(tls_cert=str(cert), tls_key=str(key))
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with (
        serve(tmp_path / "a", Config(member="a"), tls=serving) as leader,
        serve(tmp_path / "b", Config(member="b", listen=secured)) as other,
    ):
        two = Two(leader, other)
        with two.over_tcp("GET", JOBS) as answer:
            assert answer.status == 503
            assert "CERTIFICATE_VERIFY_FAILED" in json.loads(answer.read())["title"]
        other.ca = cert.read_text()
        assert other.client.get(JOBS)["items"] == []

        # Nobody who came in by TLS is handed on without.
        plain = Identity("a", (two.heads.members[0].addresses[0].replace("https:", "http:"),))
        other.follow(Heads(plain, 8, ()))
        with two.over_tcp("GET", JOBS) as answer:
            assert (answer.status, json.loads(answer.read())["code"]) == (503, "NotLeader")


VOUCHER = Voucher("b", Caller("token:x", "admin"), "GET", JOBS, 0)


def changed(word: str) -> str:
    """Return a word with another role in what was signed."""
    body, _, signature = word.partition(".")
    text = base64.urlsafe_b64decode(body).replace(b"token:x", b"token:y")
    return f"{base64.urlsafe_b64encode(text).decode()}.{signature}"


@pytest.mark.parametrize(
    "fault", ["none", "old", "early", "other secret", "changed", "cut", "empty"]
)
def test_the_word_of_a_head_holds_for_minutes_and_only_as_it_was_given(
    two: Two, fault: str
) -> None:
    away_ms = {"old": -GOOD_FOR_MS - 60_000, "early": GOOD_FOR_MS + 60_000}.get(fault, 0)
    secret = b"t" * 32 if fault == "other secret" else SECRET
    now_ms = SystemClock().wall_ms()
    word = vouch(
        secret, Voucher("b", VOUCHER.caller, VOUCHER.method, VOUCHER.target, now_ms + away_ms)
    )
    word = {"changed": changed(word), "cut": word[:-1], "empty": ""}.get(fault, word)
    connection = HTTPConnection("127.0.0.1", two.leader.port, timeout=20)

    connection.request("GET", JOBS, headers={"Authorization": f"PrimusHead {word}"})

    with connection.getresponse() as answer:
        assert answer.status == (200 if fault == "none" else 401)
        if away_ms:
            assert "clock" in json.loads(answer.read())["title"]
    connection.close()
