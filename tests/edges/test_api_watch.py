"""Watches: what changed, as NDJSON and server-sent events; who is too slow is cut off."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPResponse
from pathlib import Path

import pytest

from primusd.api import watching
from primusd.ctl.client import Json
from primusd.ctl.failures import ApiError
from tests.edges.api_server import NAMESPACE, Server, serve


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serve(tmp_path) as running:
        running.node()
        yield running


@contextmanager
def opened(server: Server, path: str, **headers: str) -> Iterator[HTTPResponse]:
    connection = server.connection()
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    try:
        yield response
    finally:
        response.close()
        connection.close()


def line(response: HTTPResponse) -> Json:
    found = json.loads(response.readline())
    assert isinstance(found, dict)
    return found


def until(response: HTTPResponse, kind: str) -> Json:
    for _ in range(50):
        found = line(response)
        if found["type"] == kind:
            return found
    raise AssertionError(f"no {kind} within 50 lines")


def phase(found: Json) -> object:
    assert isinstance(found["object"], dict)
    return found["object"]["status"]["phase"]


def test_a_watch_from_nothing_shows_all_there_is_and_then_a_bookmark(server: Server) -> None:
    server.submit(name="one")
    server.submit(name="two")

    with opened(server, f"{NAMESPACE}?watch=1") as response:
        first, second, mark = line(response), line(response), line(response)

    assert [first["type"], second["type"], mark["type"]] == ["ADDED", "ADDED", "BOOKMARK"]
    assert mark["resourceVersion"] == str(server.engine.revision)


def test_a_watch_goes_on_from_the_version_of_a_list(server: Server) -> None:
    uid = str(server.submit()["uid"])
    version = server.client.get(NAMESPACE)["resourceVersion"]

    with opened(server, f"{NAMESPACE}?watch=1&resourceVersion={version}") as response:
        server.run_job(uid)
        found = line(response)
        while phase(found) != "Running":
            found = line(response)
        server.submit(name="two")
        added = until(response, "ADDED")

    assert found["type"] == "MODIFIED"
    assert isinstance(added["object"], dict)
    assert added["object"]["name"] == "two"


def test_a_watch_that_comes_back_misses_nothing(server: Server) -> None:
    uid = str(server.submit()["uid"])
    version = server.client.get(NAMESPACE)["resourceVersion"]
    server.run_job(uid)
    server.end_attempts(uid)

    path = f"{NAMESPACE}/hello/events?watch=1&resourceVersion={version}"
    with opened(server, path) as response:
        found = [line(response) for _ in range(4)]

    listed = server.client.get(f"{NAMESPACE}/hello/events")["items"]
    assert isinstance(listed, list)
    later = [one["id"] for one in listed if int(one["resourceVersion"]) > int(str(version))]
    ids = []
    for one in found:
        assert isinstance(one["object"], dict)
        ids.append(one["object"]["id"])
    assert ids == later[:4]


def test_c79_a_watcher_of_a_deleted_job_sees_it_go_and_not_the_next_of_its_name(
    server: Server,
) -> None:
    old = str(server.submit()["uid"])
    with opened(server, f"{NAMESPACE}/{old}?watch=1") as response:
        until(response, "BOOKMARK")
        server.client.call("POST", f"{NAMESPACE}/{old}:cancel", body={})
        server.end_attempts(old)
        server.client.call("DELETE", f"{NAMESPACE}/{old}")
        server.submit()
        gone = until(response, "DELETED")
        server.node("n2")
        response.fp.raw._sock.settimeout(0.5)  # type: ignore[attr-defined]  # nothing more may come
        with pytest.raises(TimeoutError):
            response.readline()

    assert isinstance(gone["object"], dict)
    assert gone["object"]["uid"] == old


def test_a_version_that_is_no_longer_kept_is_410_with_the_oldest(server: Server) -> None:
    version = server.engine.revision
    server.watch._keep_ms = -1
    server.submit(name="one")
    server.submit(name="two")

    with pytest.raises(ApiError) as caught:
        server.client.get(NAMESPACE, {"watch": "1", "resourceVersion": str(version)})

    assert (caught.value.status, caught.value.code) == (410, "ResourceVersionTooOld")


def test_a_version_of_another_store_is_410_too(server: Server) -> None:
    with pytest.raises(ApiError) as caught:
        server.client.get(NAMESPACE, {"watch": "1", "resourceVersion": "999999"})

    assert caught.value.status == 410


def test_server_sent_events_carry_ids_and_go_on_from_the_last_one(server: Server) -> None:
    server.submit(name="one")
    path = f"{NAMESPACE}?watch=1"
    with opened(server, path, Accept="text/event-stream") as response:
        block = [response.readline().decode().strip() for _ in range(4)]
        kind = response.headers["Content-Type"]
    last = block[0].removeprefix("id: ")
    server.submit(name="two")
    headers = {"Accept": "text/event-stream", "Last-Event-ID": last}
    with opened(server, path, **headers) as response:
        again = [response.readline().decode().strip() for _ in range(3)]

    assert kind == "text/event-stream"
    assert block[1] == "event: ADDED"
    assert json.loads(block[2].removeprefix("data: "))["object"]["name"] == "one"
    assert block[3] == ""
    assert json.loads(again[2].removeprefix("data: "))["object"]["name"] == "two"


def test_changes_of_one_object_within_100_ms_come_as_one_unless_each_is_wanted(
    server: Server,
) -> None:
    uid = str(server.submit()["uid"])
    version = server.client.get(NAMESPACE)["resourceVersion"]
    path = f"{NAMESPACE}?watch=1&resourceVersion={version}"
    with opened(server, path) as few, opened(server, f"{path}&coalesce=0") as each:
        server.run_job(uid)
        last_few, count_few = _count(few)
        last_each, count_each = _count(each)

    assert phase(last_few) == phase(last_each) == "Running"
    assert count_each > count_few


def _count(response: HTTPResponse) -> tuple[Json, int]:
    for count in range(1, 50):
        found = line(response)
        if phase(found) == "Running":
            return found, count
    raise AssertionError("it never ran")


def test_a_reader_that_takes_nothing_is_cut_off(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "WRITE_TIMEOUT_S", 0.3)
    labels = {f"label-{number}": "x" * 200 for number in range(60)}
    for number in range(60):
        server.submit(name=f"job-{number}", labels=labels)
    with socket.socket(socket.AF_UNIX) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.settimeout(20)
        slow.connect(str(server.socket))
        path = f"{NAMESPACE}?watch=1&coalesce=0"
        slow.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        open_watches = server.open_watches
        server.until(lambda: bool(open_watches))
        server.until(lambda: not open_watches)

    assert server.client.get("/version")["version"]


def test_a_watch_that_ends_after_its_reader_left_is_no_error_of_ours(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(server, f"{NAMESPACE}?watch=1") as response:
        line(response)
    assert server.client.get("/version")["version"], "the loop has seen the reader go"

    for watcher in list(server.open_watches):
        server.cut_off(watcher)

    server.until(lambda: not server.open_watches)
    assert server.client.get("/version")["version"]
    assert not [record for record in caplog.records if record.name == "aiohttp.server"]


def test_watches_are_bounded_in_number(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "WATCHES_MAX", 1)
    with opened(server, f"{NAMESPACE}?watch=1") as first:
        line(first)
        with opened(server, f"{NAMESPACE}?watch=1") as second:
            problem = json.loads(second.read())

    assert (second.status, problem["code"]) == (429, "TooManyRequests")


def test_nodes_and_replicas_can_be_watched(server: Server) -> None:
    uid = str(server.submit()["uid"])
    with (
        opened(server, "/api/v1/nodes?watch=1") as nodes,
        opened(server, f"{NAMESPACE}/{uid}/replicas?watch=1&role=worker") as replicas,
    ):
        until(nodes, "BOOKMARK")
        until(replicas, "BOOKMARK")
        server.node("n2")
        server.run_job(uid)
        node, replica = line(nodes), line(replicas)

    assert isinstance(node["object"], dict)
    assert isinstance(replica["object"], dict)
    assert (node["type"], node["object"]["name"]) == ("ADDED", "n2")
    assert replica["object"]["kind"] == "Replica"
