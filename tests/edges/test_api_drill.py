"""F21: what a drill does over HTTP: refused before anything is done, recorded before it is done."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from primusd.ctl.failures import ApiError
from primusd.executor.protocol import Answer
from primusd.job.events import CheckpointNoted
from primusd.job.ids import AttemptId
from tests.edges.api_server import NAMESPACE, Server, serve

DRILL = f"{NAMESPACE}/hello:drill"


class Executors:
    """Executors that do what they are asked, unless a test says why they cannot."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str]] = []
        self.error = ""

    async def ask(
        self, attempt: AttemptId, kind: str, *, path: str = "", offset: int = 0, byte_count: int = 0
    ) -> Answer:
        self.asked.append((attempt.label, kind, path))
        return Answer(1, b"1", end=True, error=self.error)


@pytest.fixture
def executors() -> Executors:
    return Executors()


@pytest.fixture
def server(tmp_path: Path, executors: Executors) -> Iterator[Server]:
    with serve(tmp_path, ask=executors.ask) as running:
        running.node()
        yield running


def runs(server: Server) -> str:
    uid = str(server.submit()["uid"])
    server.run_job(uid)
    return uid


def drilled(server: Server, **body: Any) -> Any:
    return server.client.call("POST", DRILL, body=body)


def refused(server: Server, **body: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        drilled(server, **body)
    return caught.value


def events(server: Server) -> list[Any]:
    items: Any = server.client.get(f"{NAMESPACE}/hello/events")["items"]
    return [one for one in items if one["reason"] == "DrillRequested"]


def test_a_kill_is_recorded_with_who_asked_and_carried_out(
    server: Server, executors: Executors
) -> None:
    uid = runs(server)
    server.tell(uid, CheckpointNoted(AttemptId(uid, "worker", 1, 1), "/ckpt/40", 40))

    found = drilled(server, fault="kill", replicas=["worker-1"])

    assert executors.asked == [("worker-1/1", "kill", "")]
    (event,) = events(server)
    assert event["by"].startswith("uid:")
    assert event["message"] == "a drill was asked for: SIGKILL to worker-1"
    assert (found["kind"], found["event"], found["fault"]) == ("Drill", event["id"], "kill")
    target = {"replica": "worker-1", "attempt": 1, "node": "n1", "checkpointStep": 40}
    assert found["targets"] == [target]
    assert found["checkpoint"] == {"path": "/ckpt/40", "step": 40}


@pytest.mark.parametrize(
    ("body", "asks"),
    [
        ({"fault": "pause", "pauseMs": 1_500}, [("worker-0/1", "pause", "1500")]),
        ({"fault": "loseNode"}, [("worker-0/1", "die", ""), ("worker-1/1", "die", "")]),
        ({"fault": "preempt"}, []),
    ],
)
def test_each_fault_asks_whom_it_meets(
    server: Server, executors: Executors, body: dict[str, Any], asks: list[Any]
) -> None:
    runs(server)

    found = drilled(server, **body)

    assert sorted(executors.asked) == asks
    assert len(found["targets"]) == (1 if body["fault"] == "pause" else 2)
    job: Any = server.client.get(f"{NAMESPACE}/hello")
    is_stopping = job["status"]["phase"] == "Stopping" and job["status"]["then"] == "Queued"
    assert is_stopping == (body["fault"] == "preempt")


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"fault": "explode"}, 400, "fault has to be one of kill, pause, preempt, loseNode"),
        ({"fault": "pause", "pauseMs": 0}, 400, "pauseMs has to be a whole number from 1"),
        ({"fault": "preempt", "replicas": ["worker-0"]}, 400, "preempt names no replicas"),
        ({"fault": "kill", "node": "n1"}, 400, "kill names no node"),
        ({"fault": "kill", "replicas": ["worker-7"]}, 404, "has no replica worker-7"),
        ({"fault": "loseNode", "node": "n9"}, 404, "nothing of hello runs on a node 'n9'"),
    ],
)
def test_what_cannot_be_drilled_is_refused_before_anything_happens(
    server: Server, executors: Executors, body: dict[str, Any], status: int, says: str
) -> None:
    runs(server)

    error = refused(server, **body)

    assert (error.status, says in error.message) == (status, True), error.message
    assert events(server) == []
    assert executors.asked == []


def test_a_job_that_does_not_run_is_not_drilled(server: Server) -> None:
    uid = str(server.submit()["uid"])
    assert refused(server, fault="preempt").status == 409

    server.run_job(uid)
    server.end_attempts(uid)

    over = refused(server, fault="kill")
    assert over.status == 409
    assert "it cannot be drilled" in str(over)
    assert events(server) == []


def test_who_may_only_read_may_not_drill(server: Server) -> None:
    runs(server)

    with pytest.raises(ApiError) as caught:
        server.tcp("tok-read").call("POST", DRILL, body={"fault": "preempt"})
    server.tcp("tok-write").call("POST", DRILL, body={"fault": "preempt"})

    assert caught.value.status == 403
    assert [one["by"] for one in events(server)] == ["token:write"]


def test_an_executor_that_cannot_is_told_of(server: Server, executors: Executors) -> None:
    runs(server)
    executors.error = "no trainer runs"

    error = refused(server, fault="kill", replicas=["worker-0"])

    assert (error.status, error.message) == (404, "worker-0: no trainer runs")
    assert len(events(server)) == 1
