"""Queues over HTTP: shown, set up, closed, reset; jobs that wait, move, preempt and depend."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from primusd.admission.events import QueueDeclared, QueueDropped
from primusd.config import Config
from primusd.config.settings import Queue
from primusd.ctl.client import Json
from primusd.ctl.failures import ApiError
from primusd.declaring import declarations
from tests.edges.api_server import NAMESPACE, Server, serve

QUEUES = "/api/v1/queues"
CONFIG = Config(queues={"default": Queue(), "batch": Queue({"gpu": 4}, "lowerPriority")})


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serve(tmp_path, CONFIG) as running:
        for event in declarations(CONFIG, running.world):
            running.tell("", event, by="config")
        running.node(gpu=8)
        yield running


def gpu_job(name: str, count: int, **changes: Any) -> dict[str, Any]:
    role = {"replicas": count, "command": ["x"], "resources": {"gpu": 1}}
    return {"name": name, "roles": {"worker": role}, **changes}


def refused(server: Server, method: str, path: str, **words: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        server.client.call(method, path, **words)
    return caught.value


def status(server: Server, name: str) -> Any:
    return get(server, f"{NAMESPACE}/{name}")["status"]


def get(server: Server, path: str) -> Any:
    return server.client.get(path)


def post(server: Server, path: str, **words: Any) -> Any:
    return server.client.call("POST", path, **words)


def submit(server: Server, name: str, count: int, **changes: Any) -> Any:
    return post(server, NAMESPACE, body=gpu_job(name, count, **changes))


def test_queues_of_the_file_are_shown_with_what_they_may_use(server: Server) -> None:
    submit(server, "a", 3, queue="batch")

    shown = get(server, QUEUES)

    assert [one["name"] for one in shown["items"]] == ["default", "batch"]
    batch = get(server, f"{QUEUES}/batch")
    assert batch["quota"] == {"gpus": 4}
    assert batch["used"] == {"cpuMilli": 0, "memoryBytes": 0, "gpus": 3}
    assert (batch["origin"], batch["preemption"], batch["running"]) == ("file", "lowerPriority", 1)


def test_unknown_queue_is_refused_with_the_list(server: Server) -> None:
    error = refused(server, "POST", NAMESPACE, body=gpu_job("a", 1, queue="bacth"))

    assert error.status == 422
    assert "allowed: default, batch" in error.message or "did you mean batch" in error.message


def test_more_than_the_quota_is_refused_at_submit_with_the_numbers(server: Server) -> None:
    error = refused(server, "POST", NAMESPACE, body=gpu_job("a", 5, queue="batch"))

    assert "asks for 5 GPUs, queue batch may use 4 in all" in error.message
    query = {"waitForNodes": "1"}
    body = gpu_job("a", 5, queue="batch")
    post(server, NAMESPACE, query=query, body=body)
    assert status(server, "a")["reason"] == "WaitingForQuota"


def test_closed_queue_takes_no_new_job_and_what_it_has_goes_on(server: Server) -> None:
    submit(server, "a", 3, queue="batch")
    submit(server, "b", 2, queue="batch")

    closed = post(server, f"{QUEUES}/batch:set", body={"state": "closed"})

    assert (closed["state"], closed["origin"], closed["quota"]) == ("closed", "set", {"gpus": 4})
    error = refused(server, "POST", NAMESPACE, body=gpu_job("c", 1, queue="batch"))
    assert (error.status, error.code) == (409, "QueueClosed")
    post(server, f"{QUEUES}/batch:set", body={"quota": {"gpu": 8}})
    assert status(server, "b")["phase"] == "Starting"


def test_what_is_set_wins_over_the_file_until_reset(server: Server) -> None:
    body = {"quota": {"gpu": None, "memory": "64Gi"}, "preemption": "never"}
    shown = post(server, f"{QUEUES}/batch:set", body=body)
    assert shown["quota"] == {"memoryBytes": 64 << 30}

    assert declarations(CONFIG, server.world) == ()
    reset = post(server, f"{QUEUES}/batch:reset", body={})

    assert (reset["quota"], reset["origin"]) == ({"gpus": 4}, "file")


def test_queue_of_a_person_goes_with_reset_when_no_job_lives_in_it(server: Server) -> None:
    post(server, f"{QUEUES}/night:set", body={"quota": {"cpu": 2.5}})
    submit(server, "a", 1, queue="night")

    error = refused(server, "POST", f"{QUEUES}/night:reset", body={})
    assert error.status == 409
    post(server, f"{NAMESPACE}/a:cancel", body={})
    server.end_attempts(next(iter(server.world.jobs)))
    post(server, f"{QUEUES}/night:reset", body={})

    assert refused(server, "GET", f"{QUEUES}/night").status == 404


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("batch:set", {"quota": {"gpus": 1}}, "quota.gpus"),
        ("batch:set", {"quota": {"memory": 5}}, "quota.memory"),
        ("batch:set", {"quota": {"gpu": -1}}, "quota.gpu"),
        ("batch:set", {"preemption": "always"}, "never or lowerPriority"),
        ("batch:set", {"state": "shut"}, "open or closed"),
        ("batch:set", {"open": True}, "open"),
        ("Batch:set", {}, "no name of a queue"),
        ("batch:move", {"job": "a"}, "say where to"),
        ("batch:move", {"job": "a", "priority": 101}, "0 to 100"),
    ],
)
def test_wrong_settings_are_refused_with_what_is_right(
    server: Server, path: str, body: Json, said: str
) -> None:
    submit(server, "a", 1)

    error = refused(server, "POST", f"{QUEUES}/{path}", body=body)

    assert error.status == 400
    assert said in error.message


def test_moved_job_is_next_and_keeps_its_priority_in_its_spec(server: Server) -> None:
    for name in "abcd":
        submit(server, name, 8)
    shown = get(server, f"{QUEUES}/default")
    assert [one["name"] for one in shown["jobs"]] == ["b", "c", "d"]

    moved = post(server, f"{QUEUES}/default:move", body={"job": "d", "first": True})
    assert moved["status"]["queue"] == {"name": "default", "position": 1, "ahead": 0}
    body = {"job": "c", "priority": 80}
    moved = post(server, f"{QUEUES}/default:move", body=body)

    assert moved["spec"]["priority"] == 80
    shown = get(server, f"{QUEUES}/default")
    assert [one["name"] for one in shown["jobs"]] == ["c", "d", "b"]


def test_job_that_does_not_wait_cannot_be_moved(server: Server) -> None:
    submit(server, "a", 8)

    error = refused(server, "POST", f"{QUEUES}/default:move", body={"job": "a", "first": True})

    assert (error.status, error.code) == (409, "PhaseConflict")


def test_preempted_job_and_the_one_that_gets_its_room_both_say_so(server: Server) -> None:
    low = submit(server, "low", 4, queue="batch", priority=10)
    server.run_job(str(low["uid"]))

    submit(server, "high", 4, queue="batch", priority=90)

    assert status(server, "low")["phase"] == "Stopping"
    assert "low is being stopped for it" in status(server, "high")["message"]
    told = get(server, f"{NAMESPACE}/high/events")
    assert "RoomMade" in [one["reason"] for one in told["items"]]
    server.end_attempts(str(low["uid"]), 143)
    assert status(server, "high")["phase"] == "Starting"
    low_now = status(server, "low")
    assert (low_now["phase"], low_now["queue"]["position"]) == ("Queued", 1)
    assert low_now["budgets"]["infrastructure"]["used"] == 0, "C22: preemption costs no budget"


def test_job_starts_when_the_one_it_names_has_succeeded_F08(server: Server) -> None:
    first = submit(server, "first", 1)
    submit(server, "second", 1, after=["first"])
    assert status(server, "second")["reason"] == "WaitingForJob"
    assert "first has Succeeded" in status(server, "second")["message"]

    server.run_job(str(first["uid"]))
    server.end_attempts(str(first["uid"]))

    assert status(server, "second")["phase"] == "Starting"
    third = submit(server, "third", 1, after=["default/first"])
    assert third["status"]["phase"] == "Starting"


def test_job_fails_when_the_one_it_names_does_not_succeed_F08(server: Server) -> None:
    submit(server, "first", 1)
    submit(server, "second", 1, after=["first"])
    submit(server, "third", 1, after=["second"])

    post(server, f"{NAMESPACE}/first:finish", body={"as": "Failed"})
    server.end_attempts(next(iter(server.world.jobs)))

    for name in ("second", "third"):
        verdict = status(server, name)["verdict"]
        assert (verdict["phase"], verdict["reason"]) == ("Failed", "DependencyFailed")


def test_suspended_job_hears_that_the_one_it_waits_for_failed(server: Server) -> None:
    submit(server, "first", 1)
    submit(server, "second", 1, after=["first"])
    post(server, f"{NAMESPACE}/second:suspend", body={})

    post(server, f"{NAMESPACE}/first:cancel", body={})
    server.end_attempts(next(iter(server.world.jobs)))

    assert status(server, "second")["verdict"]["reason"] == "DependencyFailed"


def test_unknown_and_failed_jobs_are_refused_in_after(server: Server) -> None:
    submit(server, "first", 1)
    post(server, f"{NAMESPACE}/first:cancel", body={})
    server.end_attempts(next(iter(server.world.jobs)))

    error = refused(server, "POST", NAMESPACE, body=gpu_job("b", 1, after=["first", "nobody"]))

    assert error.status == 422
    assert "first, which ended Cancelled" in error.message
    assert "nobody" in error.message


def test_plan_says_what_the_job_would_wait_for(server: Server) -> None:
    submit(server, "a", 3, queue="batch")

    body = gpu_job("b", 2, queue="batch")
    plan = post(server, NAMESPACE, query={"plan": "1"}, body=body)

    assert plan["wouldWait"]["reason"] == "WaitingForQuota"


def test_plan_says_that_the_job_would_wait_for_another(server: Server) -> None:
    submit(server, "a", 1)

    body = gpu_job("b", 1, after=["a", "nobody"])
    plan = post(server, NAMESPACE, query={"plan": "1"}, body=body)

    assert plan["wouldWait"]["reason"] == "WaitingForJob"


def test_queue_that_the_file_has_no_more_stays_while_jobs_live_in_it(server: Server) -> None:
    submit(server, "a", 1, queue="batch")
    without = Config()
    assert declarations(without, server.world) == ()

    post(server, f"{NAMESPACE}/a:cancel", body={})
    server.end_attempts(next(iter(server.world.jobs)))

    assert declarations(without, server.world) == (QueueDropped("batch"),)
    changed = Config(queues={"default": Queue(), "batch": Queue({"gpu": 2})})
    assert declarations(changed, server.world) == (QueueDeclared("batch", {"gpu": 2}),)


def test_watch_of_queues_tells_what_was_set(server: Server) -> None:
    version = get(server, QUEUES)["resourceVersion"]
    post(server, f"{QUEUES}/night:set", body={"quota": {"gpu": 1}})

    query = {"watch": "1", "resourceVersion": str(version)}
    event = json.loads(next(server.client.lines(QUEUES, query)))

    assert (event["type"], event["object"]["name"]) == ("ADDED", "night")
