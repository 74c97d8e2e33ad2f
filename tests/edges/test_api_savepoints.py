"""Savepoints, dead letters and histories over HTTP."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from primusd.ctl.failures import ApiError
from primusd.datafeed.ledger.events import BeatReceived
from primusd.datafeed.protocol import BadRange, FeedReport, Held
from primusd.job.ids import AttemptId
from tests.edges.api_server import NAMESPACE, Server, items, serve, with_rows

DATA = f"{NAMESPACE}/hello/data/clicks"
STREAM = {"clicks": {"sources": [{"files": "/data/*.txt"}], "onBad": "deadLetter"}}
READER = {"worker": {"replicas": 1, "command": ["x"], "data": "clicks"}}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serve(tmp_path) as running:
        running.node()
        yield running


@pytest.fixture
def uid(server: Server) -> str:
    return with_rows(server, READER, STREAM)


def call(server: Server, method: str, path: str, **body: object) -> Any:
    return server.client.call(method, f"{DATA}{path}", body=body or None)


def bad(server: Server, uid: str, lo: int, hi: int) -> None:
    machine = f"{uid}/clicks"
    lease = next(iter(server.world.streams[machine].leases.values()))
    held = Held("clicks", 0, lease.unit, lease.lo, lease.token, lease.position, lease.hi)
    report = FeedReport(
        "clicks", (held,), 0, bad=(BadRange(held, lo, hi, "data", "no JSON", b"{\xff"),)
    )
    server.tell(machine, BeatReceived(AttemptId(uid, "worker", 0, 1), "i1", report))


def test_a_savepoint_is_made_shown_restored_and_dropped(server: Server, uid: str) -> None:
    """M120, M121, M123."""
    made = call(server, "POST", "/savepoints", name="mine")
    server.read(uid, 700)
    call(server, "POST", "/savepoints/mine:restore")
    (listed,) = items(server.client.get(f"{DATA}/savepoints"))
    after: Any = server.client.get(DATA)
    call(server, "DELETE", "/savepoints/mine")

    expected = {"name": "mine", "origin": "asked", "done": 400, "unitsDone": 0, "unitsOpen": 1}
    assert {key: made[key] for key in expected} == expected
    assert listed == server_safe(made, listed)
    assert after["positions"]["done"] == 400
    assert items(server.client.get(f"{DATA}/savepoints")) == []
    reasons = [one["reason"] for one in items(server.client.get(f"{DATA}/history"))]
    assert reasons == ["SavepointSealed", "Restored"]


def server_safe(made: Any, listed: Any) -> Any:
    """Return the document as made, with what may differ as listed."""
    return {**made, "revision": listed["revision"]}


@pytest.mark.usefixtures("uid")
def test_what_was_exported_can_be_imported(server: Server) -> None:
    call(server, "POST", "/savepoints", name="mine")
    positions: Any = server.client.get(f"{DATA}/savepoints/mine/positions")

    made = call(server, "POST", "/savepoints", name="brought", positions=positions)

    assert positions["units"] == [
        {
            "location": "/data/0.txt",
            "byteCount": 1_000,
            "pin": "1",
            "size": 1_000,
            "epochs": [{"epoch": 0, "done": [[0, 400]]}],
        }
    ]
    assert (made["origin"], made["done"]) == ("imported", 400)


MISTAKES: dict[str, tuple[str, dict[str, Any], int, str]] = {
    "a name": ("POST /savepoints", {"name": "a b"}, 400, "letters"),
    "a name that is taken": ("POST /savepoints", {"name": "taken"}, 409, "already"),
    "no such one to restore": ("POST /savepoints/none:restore", {}, 404, "no savepoint none"),
    "no such one to drop": ("DELETE /savepoints/none", {}, 404, "it has taken"),
    "no such one": ("GET /savepoints/none", {}, 404, "it has taken"),
    "form": ("POST /savepoints", {"name": "x", "positions": {"form": 9}}, 422, "form 9"),
    "no reason": ("POST :skip", {"unit": 0, "lo": 0}, 400, "reason"),
    "no task": ("POST :skip", {"unit": 9, "lo": 0, "reason": "no"}, 404, "no such task: 1.9.0"),
    "not dead": ("POST :retry", {"unit": 0, "lo": 700}, 409, "not left out"),
}


@pytest.mark.usefixtures("uid")
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered_with_what_is_allowed(server: Server, mistake: str) -> None:
    request, body, status, says = MISTAKES[mistake]
    call(server, "POST", "/savepoints", name="taken")

    with pytest.raises(ApiError) as caught:
        call(server, *request.split(), **body)

    assert caught.value.status == status
    assert says in f"{caught.value} {caught.value.hint} {caught.value.details}"


def test_dead_letters_are_listed_with_their_first_bytes_skipped_and_retried(
    server: Server, uid: str
) -> None:
    """C48, C54, M114."""
    bad(server, uid, 400, 420)
    bad(server, uid, 500, 510)
    found = items(server.client.get(f"{DATA}/tasks", {"phase": "dead"}))
    call(server, "POST", ":skip", unit=0, lo=400, reason="known to be broken")
    server.read(uid, 1_000)

    after = call(server, "POST", ":retry", unit=0, lo=500)

    assert [(one["lo"], one["hi"], one["fault"], one["head"]) for one in found] == [
        (400, 420, "data", "7bff"),
        (500, 510, "data", "7bff"),
    ]
    assert found[0]["by"] == "worker-0/1"
    assert [(one["lo"], one["fault"], one["text"]) for one in after["deadTasks"]] == [
        (400, "skipped", "known to be broken")
    ]
    proof: Any = server.client.call("POST", f"{DATA}:verify")
    assert proof["leftOut"] == {"skipped": 1}
    assert (proof["ok"], proof["skipped"], proof["dead"]) == (True, 20, 0)


def test_ended_jobs_are_listed_the_newest_first(server: Server) -> None:
    uids = []
    for name in ("one", "two", "three"):
        uids.append(str(server.submit(name=name)["uid"]))
        server.run_job(uids[-1])
    for uid in uids[:2]:
        server.end_attempts(uid)

    found = items(server.client.get("/api/v1/history"))
    first = server.client.get("/api/v1/history", {"limit": "1"})
    none = items(server.client.get("/api/v1/history", {"namespace": "other"}))

    assert {one["name"] for one in found} == {"one", "two"}
    assert found[0]["status"]["endedAt"] >= found[1]["status"]["endedAt"]
    assert items(first) == found[:1]
    assert first["cursor"]
    assert none == []
