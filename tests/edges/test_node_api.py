"""Nodes over HTTP: emptied, left out, and a job's placement refused with its numbers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from primusd.admission.events import NodeWentAway
from primusd.ctl.client import Json, job_path
from primusd.ctl.failures import ApiError
from tests.edges.api_server import NAMESPACE, Server, job_file, serve

NODE = "/api/v1/nodes/n1"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serve(tmp_path) as running:
        running.node()
        yield running


def post(server: Server, path: str, **body: object) -> Json:
    found = server.client.call("POST", path, body=body)
    assert isinstance(found, dict)
    return found


def refused(server: Server, path: str, body: object) -> ApiError:
    with pytest.raises(ApiError) as caught:
        server.client.call("POST", path, body=body)
    return caught.value


def left(node: Json) -> list[Json]:
    drain = node["drain"]
    assert isinstance(drain, dict)
    found = drain["left"]
    assert isinstance(found, list)
    return found


def test_a_drain_shows_what_is_left_and_why_until_another_node_takes_it(server: Server) -> None:
    uid = str(server.submit()["uid"])
    server.run_job(uid)

    before = post(server, f"{NODE}:drain")
    again = post(server, f"{NODE}:drain")
    server.node("n2")
    moving = server.client.get(NODE)

    assert before["phase"] == "Cordoned"
    assert [(one["replica"], one["state"]) for one in left(before)] == [
        ("worker-0", "waiting"),
        ("worker-1", "queued"),
    ]
    message = str(left(before)[0]["message"])
    assert message.startswith("1 of worker needs a place to move to: 1 node, 0 ready")
    assert again == before
    assert [(one["replica"], one["state"]) for one in left(moving)] == [
        ("worker-0", "moving"),
        ("worker-1", "queued"),
    ]


def test_an_empty_node_is_drained_at_once_and_uncordoned_again(server: Server) -> None:
    drained = post(server, f"{NODE}:drain", now=True)
    back = post(server, f"{NODE}:uncordon")

    drain = drained["drain"]
    assert isinstance(drain, dict)
    assert (drain["done"], drain["now"], drain["left"]) == (True, True, [])
    assert (back["phase"], back.get("drain")) == ("Ready", None)


def test_a_node_is_left_out_for_all_or_for_one_job(server: Server) -> None:
    server.node("n2")
    server.submit()

    excluded = post(server, "/api/v1/nodes/n2:exclude", **{"for": "1h", "reason": "Xid 79"})
    kept_off = post(server, f"{NODE}:exclude", **{"for": "30m", "job": "hello"})
    forgiven = post(server, f"{NODE}:forgive")

    assert (excluded["phase"], excluded["excludedReason"]) == ("Excluded", "Xid 79")
    assert str(excluded["excludedUntil"]).endswith("Z")
    jobs = kept_off["keptOff"]
    assert isinstance(jobs, list)
    assert (kept_off["phase"], [one["job"] for one in jobs]) == ("Ready", ["hello"])
    assert "keptOff" not in forgiven


def test_a_node_that_is_gone_is_removed_and_what_it_took_along_is_lost(server: Server) -> None:
    uid = str(server.submit()["uid"])
    server.run_job(uid)
    there = refused(server, f"{NODE}:remove", {})
    server.tell("", NodeWentAway("n1"))
    unknown = refused(server, f"{NODE}:remove", {})
    server.node("n2")

    removed = post(server, f"{NODE}:remove", lost=True)

    assert (there.status, "n1 is Ready: only a node that is away" in there.message) == (409, True)
    assert (unknown.status, unknown.code) == (409, "PhaseConflict")
    assert unknown.message == (
        "it is not known that worker-0 of hello, worker-1 of hello ended on n1"
    )
    assert unknown.hint.endswith("primusctl nodes remove n1 --lost")
    assert (removed["name"], removed["phase"]) == ("n1", "Away")
    found = server.client.get("/api/v1/nodes")["items"]
    assert isinstance(found, list)
    assert [one["name"] for one in found] == ["n2"]
    replica = server.client.get(f"{NAMESPACE}/hello/replicas/worker-1")
    attempts = replica["attempts"]
    assert isinstance(attempts, list)
    assert [one["node"] for one in attempts] == ["n1", "n2"]
    assert attempts[0]["outcome"]["cause"] == "NodeLost"


def test_an_empty_node_is_removed_without_a_word_and_an_unknown_one_is_told(
    server: Server,
) -> None:
    server.node("n2")
    server.tell("", NodeWentAway("n2"))

    post(server, "/api/v1/nodes/n2:remove")

    assert refused(server, "/api/v1/nodes/n2:remove", {}).status == 404


@pytest.mark.parametrize(
    ("action", "body", "text"),
    [
        ("remove", {"lost": "yes"}, "the body cannot be used"),
        ("drain", {"now": 1}, "the body cannot be used"),
        ("drain", {"later": True}, "the body cannot be used"),
        ("exclude", {}, "the body cannot be used"),
        ("exclude", {"for": "16"}, "for: "),
        ("exclude", {"for": "8d"}, "at most 7d"),
        ("exclude", {"for": "0s"}, "more than nothing"),
        ("exclude", {"for": "1h", "job": "nobody"}, "no live job is called nobody"),
    ],
)
def test_a_wrong_wish_is_refused_with_what_is_allowed(
    server: Server, action: str, body: Json, text: str
) -> None:
    error = refused(server, f"{NODE}:{action}", body)

    assert error.status in (400, 404)
    assert text in error.message
    assert server.client.get(NODE)["phase"] == "Ready"


@pytest.mark.parametrize("action", ["drain", "exclude"])
def test_a_node_that_is_not_there_is_said_to_be_none(server: Server, action: str) -> None:
    assert refused(server, f"/api/v1/nodes/n9:{action}", {"for": "1h"}).status in (400, 404)


def test_rules_that_no_node_could_meet_are_refused_or_wait(server: Server) -> None:
    role = {"command": ["true"], "placement": {"nodes": {"gpu": "h100"}}}
    body = job_file(name="picky", roles={"worker": role})

    error = refused(server, NAMESPACE, body)
    server.client.call("POST", NAMESPACE, query={"waitForNodes": "1"}, body=body)
    status = server.client.get(job_path("default", "picky"))["status"]

    assert "no node has gpu=h100; no node has any label" in error.message
    assert isinstance(status, dict)
    assert (status["phase"], status["reason"]) == ("Queued", "WaitingForNode")
    assert "gpu=h100" in str(status["message"])
