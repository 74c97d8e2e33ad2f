"""What a job reads, strays, and machines that stopped, over HTTP."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from primusd.admission.events import MachineWedged
from primusd.ctl.client import Json
from primusd.ctl.failures import ApiError
from primusd.datafeed.ledger.events import BeatReceived, UnitsListed
from primusd.datafeed.protocol import FeedReport, Unit, UnitMap
from primusd.executor.protocol import Bootstrap
from primusd.job.ids import AttemptId
from primusd.job.spec import Resources
from primusd.launchers.base import LauncherEvent, Listed
from tests.edges.api_server import NAMESPACE, Server, items, serve, with_rows

DATA = f"{NAMESPACE}/hello/data"
STREAM = {"clicks": {"sources": [{"files": "/data/*.txt"}]}}
READER = {"worker": {"replicas": 1, "command": ["x"], "data": "clicks", "feed": "stdin"}}

READER_OF_ROWS = {"worker": {"replicas": 1, "command": ["x"], "data": "clicks"}}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serve(tmp_path) as running:
        running.node()
        yield running


@pytest.fixture
def uid(server: Server) -> str:
    return with_rows(server, READER, STREAM)


def test_streams_tell_where_every_byte_is(server: Server, uid: str) -> None:
    (stream,) = items(server.client.get(DATA))

    assert stream["jobUid"] == uid
    assert stream["positions"] == {
        "unit": "bytes",
        "total": 3_000,
        "done": 400,
        "leased": 600,
        "waiting": 2_000,
        "skipped": 0,
        "dead": 0,
        "expected": 3_000,
    }
    assert server.client.get(f"{DATA}/clicks")["name"] == "clicks"


@pytest.mark.usefixtures("uid")
def test_tasks_are_ranges_by_phase_in_pages(server: Server) -> None:
    leased = items(server.client.get(f"{DATA}/clicks/tasks", {"phase": "leased"}))
    first = server.client.get(f"{DATA}/clicks/tasks", {"limit": "2"})
    rest = server.client.get(f"{DATA}/clicks/tasks", {"cursor": str(first["cursor"])})

    assert [(one["replica"], one["position"]) for one in leased] == [("worker-0/1", 400)]
    phases = [one["phase"] for one in (*items(first), *items(rest))]
    assert phases == ["leased", "waiting", "waiting"]


@pytest.mark.usefixtures("uid")
def test_a_proof_adds_up_for_one_stream_and_for_all(server: Server) -> None:
    one = server.client.call("POST", f"{DATA}/clicks:verify", body={})
    every = server.client.call("POST", f"{DATA}:verify", body={})

    assert one["ok"] is every["ok"] is True
    assert (one["listed"], one["done"], one["leased"], one["waiting"]) == (3_000, 400, 600, 2_000)
    assert (one["gaps"], one["overlaps"], one["complete"]) == ([], [], False)
    assert items(every) == [one]


def test_a_proof_of_data_that_is_over_fails_when_some_was_never_read(
    server: Server, uid: str
) -> None:
    """C54: what a cancelled job left is no proof that every row was read."""
    server.client.call("POST", f"{NAMESPACE}/hello:cancel", body={})
    server.end_attempts(uid)

    proof = server.client.call("POST", f"{DATA}/clicks:verify", body={})

    assert server.client.get(f"{DATA}/clicks")["phase"] == "Closed"
    assert (proof["ok"], proof["complete"], proof["gaps"]) == (False, False, [])
    assert proof["text"] == "it is over, and 2600 bytes of it were never read"


def test_a_verdict_counts_the_rows_of_a_job_that_did_not_succeed(server: Server) -> None:
    """C48, C54: what was read until then, not nothing."""
    clicks = {"clicks": {"sources": [{"files": "/data/*.parquet"}]}}
    uid = str(server.submit(roles=READER_OF_ROWS, data=clicks)["uid"])
    server.run_job(uid)
    unit = Unit("file", "/data/0.parquet", 5_000, "1", {"format": "parquet"})
    server.tell(f"{uid}/clicks", UnitsListed((unit,), 0, is_complete=True))
    reader = AttemptId(uid, "worker", 0, 1)
    mapped = FeedReport("clicks", (), 1, mapped=(UnitMap(0, (0, 1_000), 1_000),))
    server.tell(f"{uid}/clicks", BeatReceived(reader, "i1", mapped))
    server.read(uid, 400)

    server.client.call("POST", f"{NAMESPACE}/hello:cancel", body={})
    server.end_attempts(uid)

    verdict = verdict_of(server)
    assert (verdict["phase"], verdict["rowsRead"], verdict["rowsSkipped"]) == ("Cancelled", 400, 0)


def test_a_verdict_does_not_call_bytes_rows(server: Server, uid: str) -> None:
    server.client.call("POST", f"{NAMESPACE}/hello:cancel", body={})
    server.end_attempts(uid)

    assert "rowsRead" not in verdict_of(server)


def verdict_of(server: Server) -> Json:
    status = server.client.get(f"{NAMESPACE}/hello")["status"]
    assert isinstance(status, dict)
    verdict = status["verdict"]
    assert isinstance(verdict, dict)
    return verdict


@pytest.mark.usefixtures("uid")
def test_paused_data_is_said_to_be_the_reason(server: Server) -> None:
    paused = server.client.call("POST", f"{DATA}/clicks:pause", body={})
    status = server.client.get(f"{NAMESPACE}/hello")["status"]
    resumed = server.client.call("POST", f"{DATA}:resume", body={})

    assert paused["paused"] is True
    assert isinstance(status, dict)
    assert (status["reason"], status["message"]) == ("Paused", "data is paused: clicks")
    assert items(resumed)[0]["paused"] is False


@pytest.mark.usefixtures("uid")
def test_a_stream_that_is_not_there_is_told_with_those_that_are(server: Server) -> None:
    with pytest.raises(ApiError) as caught:
        server.client.get(f"{DATA}/views")

    assert (caught.value.status, caught.value.hint) == (404, "it has clicks")


class RecordingLauncher:
    """A launcher of which only what was asked for is looked at."""

    name = "local"

    def __init__(self, *listed: Listed) -> None:
        self.asked: list[tuple[str, str]] = []
        self._listed = listed

    async def launch(
        self, attempt: AttemptId, node: str, resources: Resources, bootstrap: Bootstrap
    ) -> None:
        raise AssertionError("nothing is launched here")

    async def stop(self, attempt: AttemptId, node: str) -> bool:
        self.asked.append(("stop", attempt.label))
        return True

    async def release(self, attempt: AttemptId, node: str) -> bool:
        self.asked.append(("release", attempt.label))
        return True

    async def list(self) -> tuple[Listed, ...]:
        return self._listed

    def watch(self, sink: Callable[[LauncherEvent], None]) -> None:
        """Tell nothing."""


def test_a_stray_is_shown_and_ended_only_when_a_person_says_so(tmp_path: Path) -> None:
    attempt = AttemptId("06f3k2m9q1x7abcd", "worker", 3, 2)
    launcher = RecordingLauncher(Listed(attempt, "n1", is_alive=True))
    with serve(tmp_path, launchers={"local": launcher}) as server:
        (shown,) = items(server.client.get("/api/v1/strays"))
        before = list(launcher.asked)
        server.client.call("POST", f"/api/v1/strays/{shown['id']}:stop", body={})
        with pytest.raises(ApiError) as caught:
            server.client.call("POST", f"/api/v1/strays/{shown['id']}:adopt", body={})

    assert (shown["id"], shown["alive"]) == ("06f3k2m9q1x7abcd.worker-3.2", True)
    assert before == []
    assert launcher.asked == [("stop", "worker-3/2"), ("release", "worker-3/2")]
    assert (caught.value.status, caught.value.code) == (409, "PhaseConflict")


def test_a_machine_that_stopped_on_our_bug_says_so_and_refuses_more(
    server: Server, uid: str
) -> None:
    server.tell("", MachineWedged(uid, "KeyError: 'x'"), by="engine")

    status = server.client.get(f"{NAMESPACE}/hello")["status"]
    with pytest.raises(ApiError) as caught:
        server.client.call("POST", f"{NAMESPACE}/hello:cancel", body={})

    assert isinstance(status, dict)
    assert [one for one in status["conditions"] if one["type"] == "Wedged"] == [
        {"type": "Wedged", "status": True, "reason": "OurBug", "message": "KeyError: 'x'"}
    ]
    assert (caught.value.status, caught.value.code) == (409, "Wedged")
    assert server.client.get("/api/v1/cluster")["wedged"] == {uid: "KeyError: 'x'"}


def test_rows_that_are_read_meanwhile_do_not_fail_a_write(server: Server, uid: str) -> None:
    seen = server.client.get(f"{NAMESPACE}/hello")["resourceVersion"]
    server.read(uid, 700)
    now = server.client.get(f"{NAMESPACE}/hello")["resourceVersion"]

    patched = server.client.call(
        "PATCH",
        f"{NAMESPACE}/hello",
        body={"spec": {"priority": 70}},
        headers={"If-Match": f'"{seen}"'},
    )

    assert seen != now
    assert patched["specVersion"] == 2
