"""Jobs over HTTP: submit once, show, change, end, forget."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace

from primusd.config import Config
from primusd.ctl.client import Json, job_path
from primusd.ctl.failures import ApiError
from primusd.datafeed.storage import schemes
from primusd.job.events import JobSubmitted
from primusd.job.ids import make_uid
from primusd.job.spec import JobSpec, RoleSpec, Success
from tests.edges.api_server import NAMESPACE, Server, job_file, serve

HELLO = f"{NAMESPACE}/hello"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serve(tmp_path) as running:
        running.node()
        yield running


def refused(server: Server, method: str, path: str, **words: object) -> ApiError:
    with pytest.raises(ApiError) as caught:
        server.client.call(method, path, **words)  # type: ignore[arg-type]  # a test's own words
    return caught.value


def status_of(server: Server, name: str = "hello") -> Json:
    status = server.client.get(job_path("default", name))["status"]
    assert isinstance(status, dict)
    return status


def test_a_submitted_job_is_shown_with_its_defaults_and_who_sent_it(server: Server) -> None:
    job = server.submit(labels={"team": "ranking"})

    assert job["kind"] == "Job"
    assert job["labels"] == {"team": "ranking"}
    assert str(job["submittedBy"]).startswith("uid:")
    assert isinstance(job["spec"], dict)
    assert job["spec"]["budgets"] == {"application": 3, "infrastructure": 20, "within": "1d"}
    assert server.client.get(HELLO)["uid"] == job["uid"]
    assert server.client.get(f"{NAMESPACE}/{job['uid']}")["name"] == "hello"


def test_c34_what_get_shows_can_be_submitted_again_unchanged(server: Server) -> None:
    job = server.submit()
    shown = server.client.get(f"{HELLO}/spec")

    plan = server.client.call("POST", NAMESPACE, query={"plan": "1"}, body=job)

    assert plan["spec"] == job["spec"] == shown
    assert plan["diff"] == []


def test_c78_the_same_key_makes_one_job_however_often_its_answer_is_lost(server: Server) -> None:
    headers = {"Idempotency-Key": "k1"}
    first = server.client.call("POST", NAMESPACE, body=job_file(), headers=headers)

    again = [
        server.client.call("POST", NAMESPACE, body=job_file(), headers=headers)["uid"]
        for _ in range(100)
    ]

    assert set(again) == {first["uid"]}
    assert len(server.world.jobs) == 1


def test_c78_the_same_key_at_the_same_time_makes_one_job(server: Server) -> None:
    def submit(_: int) -> object:
        headers = {"Idempotency-Key": "k1"}
        return server.client.call("POST", NAMESPACE, body=job_file(), headers=headers)["uid"]

    with ThreadPoolExecutor(8) as pool:
        uids = set(pool.map(submit, range(24)))

    assert len(uids) == 1
    assert len(server.world.jobs) == 1


def test_c78_the_same_key_with_another_spec_is_refused(server: Server) -> None:
    headers = {"Idempotency-Key": "k1"}
    server.client.call("POST", NAMESPACE, body=job_file(), headers=headers)

    error = refused(server, "POST", NAMESPACE, body=job_file(priority=60), headers=headers)

    assert (error.status, error.code) == (409, "KeyReused")


def test_a_live_jobs_name_is_taken(server: Server) -> None:
    server.submit()

    error = refused(server, "POST", NAMESPACE, body=job_file())

    assert (error.status, error.code) == (409, "NameTaken")


def test_c79_a_name_used_again_is_another_job_and_the_old_uid_stays_its_own(
    server: Server,
) -> None:
    old = server.submit()
    server.client.call("POST", f"{HELLO}:cancel", body={})
    server.end_attempts(str(old["uid"]))

    new = server.submit()

    assert new["uid"] != old["uid"]
    assert server.client.get(HELLO)["uid"] == new["uid"]
    assert status_of(server, str(old["uid"]))["phase"] == "Cancelled"


def test_all_errors_of_a_job_file_come_at_once(server: Server) -> None:
    body = job_file(rols={}, roles={"worker": {"replicas": 0, "comand": ["true"]}})

    error = refused(server, "POST", NAMESPACE, body=body)

    assert (error.status, error.code) == (422, "InvalidSpec")
    said = "\n".join(error.details)
    for path in ("rols", "roles.worker.replicas", "roles.worker.comand", "command is missing"):
        assert path in said
    assert not server.world.jobs


def test_a_source_whose_storage_this_daemon_cannot_read_is_refused_at_submit(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schemes, "find_spec", lambda name: None if name == "hdfs_native" else name)
    sources = [{"files": url} for url in ("nope://a/b.txt", "s3://a/b.txt", "hdfs://a/b.txt")]
    worker = {"command": ["cat"], "data": "clicks", "feed": "stdin"}
    body = job_file(roles={"worker": worker}, data={"clicks": {"sources": sources}})

    error = refused(server, "POST", NAMESPACE, body=body)

    assert (error.status, error.code) == (422, "InvalidSpec")
    said = "\n".join(error.details)
    assert "sources[0].files: found nope://a/b.txt; no driver of fsspec reads nope:" in said
    assert "sources[1]" not in said
    assert "sources[2].files: found hdfs://a/b.txt; pip install 'primusd[hdfs]'" in said


def test_c31_a_name_whose_longest_derived_name_is_too_long_is_refused(server: Server) -> None:
    roles = {"evaluator": {"replicas": 1, "command": ["true"]}}

    error = refused(server, "POST", NAMESPACE, body=job_file(name="a" * 63, roles=roles))

    assert error.status == 422
    assert "name" in error.message


@pytest.mark.parametrize("body", ["", "[]", "null", '"x"', "{", '{"name": 1, "name": 2}', "\x00"])
def test_a_body_that_is_no_job_file_is_the_callers_mistake(server: Server, body: str) -> None:
    connection = server.connection()
    connection.request("POST", NAMESPACE, body=body.encode())

    response = connection.getresponse()
    problem = json.loads(response.read())
    connection.close()

    assert response.status in (400, 422)
    assert response.headers["Content-Type"] == "application/problem+json"
    assert problem["requestId"] == response.headers["X-Request-Id"]


def test_a_job_file_may_come_as_yaml(server: Server) -> None:
    connection = server.connection()
    text = "name: hello\nroles:\n  worker: {replicas: 1, command: [echo, no]}\n"
    connection.request("POST", NAMESPACE, text, {"Content-Type": "application/yaml"})

    job = json.loads(connection.getresponse().read())
    connection.close()

    assert job["spec"]["roles"]["worker"]["command"] == ["echo", "no"]


def test_the_path_and_the_file_name_one_namespace(server: Server) -> None:
    error = refused(server, "POST", NAMESPACE, body=job_file(namespace="ads"))

    assert error.status == 422
    assert "ads" in error.message


def test_a_body_over_the_bound_is_refused_and_the_daemon_lives_on(server: Server) -> None:
    connection = server.connection()
    connection.request("POST", NAMESPACE, body=b" " * (5 << 20))

    response = connection.getresponse()
    problem = json.loads(response.read())
    connection.close()

    assert (response.status, problem["code"]) == (413, "TooLarge")
    assert server.client.get("/version")["version"]


def test_a_dry_run_checks_all_and_submits_nothing(server: Server) -> None:
    plan = server.client.call("POST", NAMESPACE, query={"dryRun": "true"}, body=job_file())

    assert plan["kind"] == "Plan"
    assert not server.world.jobs


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"queue": "bach"}, "queue"),
        ({"after": ["nobody"]}, "after[0]"),
        ({"roles": {"worker": {"command": ["true"], "resources": {"gpu": 1}}}}, "roles"),
    ],
)
def test_c34_a_dry_run_is_refused_what_a_submit_would_be(
    server: Server, fields: dict[str, object], path: str
) -> None:
    server.node()

    errors = [
        refused(server, "POST", NAMESPACE, query=query, body=job_file(**fields))
        for query in ({"dryRun": "true"}, {})
    ]

    assert [(one.status, one.code) for one in errors] == [(422, "InvalidSpec")] * 2
    assert errors[0].message == errors[1].message
    assert path in errors[0].message


def test_c34_a_dry_run_of_a_name_that_lives_is_refused_and_files_may_come_later(
    server: Server,
) -> None:
    server.submit(name="hello")

    taken = refused(
        server, "POST", NAMESPACE, query={"dryRun": "true"}, body=job_file(name="hello")
    )
    plan = server.client.call(
        "POST", NAMESPACE, query={"dryRun": "true"}, body=job_file(name="b", files=["train.py"])
    )

    assert (taken.status, taken.code) == (409, "NameTaken")
    assert plan["kind"] == "Plan"


def test_c09_a_plan_names_the_success_rule_and_the_environment_of_replica_0(
    server: Server,
) -> None:
    plan = server.client.call("POST", NAMESPACE, query={"plan": "true"}, body=job_file())

    assert plan["success"] == "all of worker"
    assert isinstance(plan["environment"], dict)
    assert plan["environment"]["worker-0"]["PRIMUS_REPLICA"] == "worker-0"
    assert "wouldWait" not in plan


def test_c36_a_job_that_waits_says_for_what_with_numbers(server: Server) -> None:
    role = {"replicas": 4, "command": ["true"], "resources": {"gpu": 1}}
    server.node("n2", gpu=4)
    taken = {"replicas": 1, "command": ["true"], "resources": {"gpu": 2}}
    server.submit(name="mnist", roles={"worker": taken})
    server.submit(roles={"worker": role})

    status = status_of(server)

    assert status["phase"] == "Queued"
    assert status["reason"] == "WaitingForSlots"
    assert status["message"] == "needs at once 4 GPUs, 2 free"
    assert status["queue"] == {"name": "default", "position": 1, "ahead": 0}


def test_c36_a_job_behind_another_says_how_many_are_ahead(server: Server) -> None:
    server.node("n2", gpu=1)
    role = {"replicas": 1, "command": ["true"], "resources": {"gpu": 1}}
    for name in ("one", "two", "three"):
        server.submit(name=name, roles={"worker": role})

    assert status_of(server, "three")["message"] == "needs at once 1 GPU, 0 free; 1 job is ahead"


def test_c36_a_job_that_waits_for_ports_to_rest_says_so(server: Server) -> None:
    role = {"replicas": 1, "command": ["true"], "ports": ["a", "b"]}
    uid = str(server.submit(name="before", roles={"worker": role})["uid"])
    server.run_job(uid)
    server.end_attempts(uid)
    every = {"replicas": 200, "command": ["true"], "ports": [f"p{one}" for one in range(50)]}
    server.submit(roles={"worker": every})

    message = status_of(server)["message"]

    assert message == (
        "needs at once 10000 ports, 9998 free (2 rest for a while after their last use)"
    )


def test_what_could_never_fit_is_refused_with_the_numbers_unless_it_may_wait(
    server: Server,
) -> None:
    role = {"replicas": 1, "command": ["true"], "resources": {"memory": "900Gi"}}

    error = refused(server, "POST", NAMESPACE, body=job_file(roles={"worker": role}))
    job = server.client.call(
        "POST", NAMESPACE, query={"waitForNodes": "1"}, body=job_file(roles={"worker": role})
    )

    assert error.status == 422
    assert "memory" in error.message
    status = job["status"]
    assert isinstance(status, dict)
    assert status["reason"] == "WaitingForNode"


def test_without_a_node_a_job_waits_for_one(tmp_path: Path) -> None:
    with serve(tmp_path) as server:
        server.submit()

        status = status_of(server)

    assert (status["reason"], status["message"]) == ("WaitingForNode", "no node is known yet")


def test_a_list_comes_in_pages_and_by_phase_and_label(server: Server) -> None:
    for number in range(5):
        server.submit(name=f"job-{number}", labels={"even": str(number % 2 == 0).lower()})
    client = server.client

    first = client.get(NAMESPACE, {"limit": "3"})
    rest = client.get(NAMESPACE, {"limit": "3", "cursor": str(first["cursor"])})
    even = client.get("/api/v1/jobs", {"label": "even=true"})
    none = client.get("/api/v1/jobs", {"phase": "Failed"})

    assert isinstance(first["items"], list)
    assert isinstance(rest["items"], list)
    names = [one["name"] for one in (*first["items"], *rest["items"])]
    assert names == [f"job-{number}" for number in range(5)]
    assert "cursor" not in rest
    assert isinstance(even["items"], list)
    assert len(even["items"]) == 3
    assert none["items"] == []


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "phase=x", "label=x", "watch=maybe"])
def test_a_wrong_parameter_is_told(server: Server, query: str) -> None:
    error = refused(server, "GET", f"{NAMESPACE}?{query}")

    assert (error.status, error.code) == (400, "InvalidRequest")


@pytest.mark.parametrize("body", [{"priority": 70}, {}, {"spec": None}, [], 5])
def test_a_patch_that_names_no_field_of_the_spec_is_refused_and_not_passed_over(
    server: Server, body: object
) -> None:
    server.submit()

    error = refused(server, "PATCH", HELLO, body=body)

    assert error.status == 400
    assert '{"spec": {"priority": 60}}' in str(error)


def test_a_patch_changes_what_may_change_and_says_what_may_not(server: Server) -> None:
    server.submit()

    patched = server.client.call("PATCH", HELLO, body={"spec": {"priority": 70}})
    error = refused(server, "PATCH", HELLO, body={"spec": {"roles": {"worker": {"command": "x"}}}})

    assert isinstance(patched["spec"], dict)
    assert patched["spec"]["priority"] == 70
    assert patched["specVersion"] == 2
    assert (error.status, error.code) == (409, "ImmutableField")


def test_a_write_that_names_an_older_version_is_refused(server: Server) -> None:
    job = server.submit()
    headers = {"If-Match": f'"{job["resourceVersion"]}"'}
    server.client.call("PATCH", HELLO, body={"spec": {"priority": 70}}, headers=headers)

    error = refused(server, "PATCH", HELLO, body={"spec": {"priority": 71}}, headers=headers)

    assert (error.status, error.code) == (412, "PreconditionFailed")


def test_cancel_is_a_goal_that_may_be_asked_for_again(server: Server) -> None:
    uid = str(server.submit()["uid"])
    server.run_job(uid)

    first = server.client.call("POST", f"{HELLO}:cancel", body={"reason": "no more needed"})
    again = server.client.call("POST", f"{HELLO}:cancel", body={})
    server.end_attempts(uid, 143)

    for answer in (first, again):
        status = answer["status"]
        assert isinstance(status, dict)
        assert (status["phase"], status["then"]) == ("Stopping", "Cancelled")
    status = status_of(server)
    assert status["phase"] == "Cancelled"
    assert isinstance(status["verdict"], dict)
    assert status["verdict"]["reason"] == "CancelledByUser"


def test_a_person_may_decide_the_verdict(server: Server) -> None:
    uid = str(server.submit()["uid"])
    server.run_job(uid)

    body = {"as": "Succeeded", "reason": "good enough"}
    server.client.call("POST", f"{HELLO}:finish", body=body)
    server.end_attempts(uid, 143)

    verdict = status_of(server)["verdict"]
    assert isinstance(verdict, dict)
    assert (verdict["phase"], verdict["reason"]) == ("Succeeded", "DecidedByUser")
    assert "good enough" in str(verdict["message"])


def test_of_two_verdicts_of_people_the_first_stands_while_the_job_stops(server: Server) -> None:
    uid = str(server.submit()["uid"])
    server.run_job(uid)
    server.client.call("POST", f"{HELLO}:finish", body={"as": "Succeeded", "reason": "enough"})

    error = refused(server, "POST", f"{HELLO}:finish", body={"as": "Failed", "reason": "bad"})
    again = {"as": "Succeeded", "reason": "I say so too"}
    told = server.client.call("POST", f"{HELLO}:finish", body=again)["status"]

    assert (error.status, error.code) == (409, "PhaseConflict")
    assert "hello is being finished as Succeeded (uid:" in str(error)
    assert "enough): it cannot be finished as Failed as well" in str(error)
    assert isinstance(told, dict)
    assert (told["phase"], told["then"]) == ("Stopping", "Succeeded")
    server.end_attempts(uid, 143)
    verdict = status_of(server)["verdict"]
    assert isinstance(verdict, dict)
    assert (verdict["phase"], verdict["message"]) == ("Succeeded", "enough")


def test_replicas_restart_by_name_by_role_or_all(server: Server) -> None:
    uid = str(server.submit()["uid"])
    server.run_job(uid)

    server.client.call("POST", f"{HELLO}:restart", body={"replicas": ["worker-1"]})
    shown = server.client.get(f"{HELLO}/replicas")["items"]
    error = refused(server, "POST", f"{HELLO}:restart", body={"roles": ["ps"]})

    assert isinstance(shown, list)
    assert [one["attempts"][-1]["phase"] for one in shown] == ["Running", "Stopping"]
    assert error.status == 404


def test_a_pause_and_its_end_are_goals_that_may_be_asked_for_again(server: Server) -> None:
    uid = str(server.submit()["uid"])
    server.run_job(uid)

    asked = [
        server.client.call("POST", f"{HELLO}:suspend", body={"reason": "lunch"})["status"]
        for _ in range(2)
    ]
    server.end_attempts(uid, 143)
    again = server.client.call("POST", f"{HELLO}:suspend", body={})["status"]

    for status in asked:
        assert isinstance(status, dict)
        assert (status["phase"], status["then"]) == ("Stopping", "Suspended")
    assert isinstance(again, dict)
    assert again["phase"] == "Suspended"
    for _ in range(2):
        resumed = server.client.call("POST", f"{HELLO}:resume", body={})["status"]
        assert isinstance(resumed, dict)
        assert resumed["phase"] == "Starting"
    events = server.client.get(f"{HELLO}/events")["items"]
    assert isinstance(events, list)
    (first, *_) = [one for one in events if one["reason"] == "SuspendRequested"]
    assert "lunch" in first["message"]
    assert first["by"].startswith("uid:")


def elastic(server: Server) -> str:
    """Submit a job of 3 workers, 2 to 6 allowed, and 1 parameter server; return its uid."""
    roles = {
        "worker": RoleSpec("worker", 6, 2, "true"),
        "ps": RoleSpec("ps", 2, 1, "true", success=Success("never")),
    }
    uid = make_uid(1_000_000, 7)
    server.tell(uid, JobSubmitted(uid, JobSpec("hello", roles), {}, "ann"))
    server.run_job(uid)
    server.client.call("POST", f"{HELLO}:scale", body={"worker": 3, "ps": 1})
    return uid


def sizes_of(server: Server) -> dict[str, int]:
    roles = status_of(server)["roles"]
    assert isinstance(roles, dict)
    return {name: role["replicas"] for name, role in roles.items()}


def test_roles_are_scaled_together_and_within_their_bounds(server: Server) -> None:
    uid = elastic(server)

    server.client.call("POST", f"{HELLO}:scale", body={"worker": 5, "ps": 2})
    error = refused(server, "POST", f"{HELLO}:scale", body={"worker": 4, "ps": 3})

    assert sizes_of(server) == {"worker": 5, "ps": 2}
    assert (error.status, error.code) == (422, "InvalidSpec")
    assert error.message == "roles.ps.replicas is 3, may be 1 to 2"
    assert server.world.jobs[uid].roles["worker"].size == 5


def test_a_patch_scales_and_changes_fields_in_one_step_or_does_neither(server: Server) -> None:
    uid = elastic(server)
    revision = server.engine.revision

    body = {"spec": {"priority": 60, "roles": {"worker": {"replicas": 4}}}}
    patched = server.client.call("PATCH", HELLO, body=body)
    wrong = {"spec": {"priority": 101, "roles": {"worker": {"replicas": 5}}}}
    error = refused(server, "PATCH", HELLO, body=wrong)

    assert isinstance(patched["spec"], dict)
    assert patched["spec"]["priority"] == 60
    assert patched["spec"]["roles"]["worker"]["replicas"] == {"min": 2, "max": 6}
    assert sizes_of(server)["worker"] == 4
    assert server.engine.revision == revision + 1
    assert (error.status, error.code) == (422, "InvalidSpec")
    assert server.world.jobs[uid].spec.priority == 60


def test_scaling_to_the_size_it_has_records_nothing(server: Server) -> None:
    elastic(server)
    revision = server.engine.revision

    server.client.call("POST", f"{HELLO}:scale", body={"worker": 3})

    assert server.engine.revision == revision


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({}, 400, "InvalidRequest"),
        ({"worker": "4"}, 400, "InvalidRequest"),
        ({"worker": 2.5}, 400, "InvalidRequest"),
        ({"chief": 4}, 404, "NotFound"),
        ({"worker": 7}, 422, "InvalidSpec"),
        ({"worker": 1}, 422, "InvalidSpec"),
    ],
)
def test_a_wrong_size_is_refused(
    server: Server, body: dict[str, object], status: int, code: str
) -> None:
    elastic(server)

    error = refused(server, "POST", f"{HELLO}:scale", body=body)

    assert (error.status, error.code) == (status, code)
    assert sizes_of(server) == {"worker": 3, "ps": 1}


def test_a_job_that_ended_is_neither_paused_nor_scaled_and_its_finish_may_be_repeated(
    server: Server,
) -> None:
    uid = elastic(server)
    body = {"as": "Failed", "reason": "wrong data"}
    server.client.call("POST", f"{HELLO}:finish", body=body)
    server.end_attempts(uid, 143)

    for action, said in (
        ("suspend", {}),
        ("resume", {}),
        ("restart", {}),
        ("scale", {"worker": 4}),
    ):
        error = refused(server, "POST", f"{HELLO}:{action}", body=said)
        assert (error.status, error.code) == (409, "PhaseConflict")
    again = server.client.call("POST", f"{HELLO}:finish", body=body)["status"]
    assert isinstance(again, dict)
    assert again["phase"] == "Failed"
    other = refused(server, "POST", f"{HELLO}:finish", body={"as": "Succeeded", "reason": "x"})
    assert (other.status, other.code) == (409, "PhaseConflict")


def test_only_an_ended_job_is_deleted_and_then_it_is_gone(server: Server) -> None:
    uid = str(server.submit()["uid"])

    error = refused(server, "DELETE", HELLO)
    server.client.call("POST", f"{HELLO}:cancel", body={})
    server.end_attempts(uid)
    server.client.call("DELETE", HELLO)

    assert (error.status, error.code) == (409, "PhaseConflict")
    assert refused(server, "GET", HELLO).status == 404
    assert refused(server, "GET", f"{NAMESPACE}/{uid}").status == 404


def test_a_crash_shows_its_cause_its_budget_and_when_it_starts_again(server: Server) -> None:
    uid = str(server.submit()["uid"])
    server.run_job(uid)

    server.end_attempts(uid, 1, only="worker-1", last="ValueError: label out of range")

    status = status_of(server)
    assert status["reason"] == "RetryDelayed"
    assert "worker-1 starts again in" in str(status["message"])
    assert isinstance(status["firstCause"], dict)
    assert status["firstCause"]["attempt"] == "worker-1/1"
    assert status["firstCause"]["lastLine"] == "ValueError: label out of range"
    assert isinstance(status["budgets"], dict)
    assert status["budgets"]["application"] == {
        "used": 1, "limit": 3, "windowMs": 86_400_000, "role": "worker"
    }  # fmt: skip
    events = server.client.get(f"{HELLO}/events", {"level": "warning"})["items"]
    assert isinstance(events, list)
    assert events[0]["reason"] == "AttemptEnded"


def test_a_job_that_ended_shows_verdict_times_and_no_queue(server: Server) -> None:
    uid = str(server.submit()["uid"])
    server.run_job(uid)
    server.end_attempts(uid)

    status = status_of(server)

    assert status["phase"] == "Succeeded"
    assert isinstance(status["verdict"], dict)
    assert status["verdict"]["reason"] == "Completed"
    assert isinstance(status["durationMs"], int)
    assert "queue" not in status
    assert "then" not in status


def test_a_file_is_sent_once_and_named_by_its_content(server: Server) -> None:
    digest = "sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"
    path = f"/api/v1/blobs/{digest}"
    files = [{"path": "a.txt", "digest": digest, "bytes": 3, "mode": "0644", "unpack": False}]

    missing = refused(server, "POST", NAMESPACE, body=job_file(files=files))
    before = server.client.exists(path)
    server.client.send(path, lambda: iter([b"foo"]), 3)
    after = server.client.exists(path)
    job = server.submit(files=files)

    assert (before, after) == (False, True)
    assert missing.status == 422
    assert isinstance(job["spec"], dict)
    assert job["spec"]["files"] == files


def test_content_that_has_another_digest_is_not_kept(server: Server) -> None:
    path = "/api/v1/blobs/sha256:" + "0" * 64

    with pytest.raises(ApiError) as caught:
        server.client.send(path, lambda: iter([b"foo"]), 3)

    assert caught.value.status == 400
    assert not server.client.exists(path)
    assert [one.name for one in (server.state / "blobs" / "sha256").iterdir()] == []


def test_unknown_paths_and_methods_are_problems_too(server: Server) -> None:
    assert (refused(server, "GET", "/nope").status, refused(server, "GET", "/nope").code) == (
        404,
        "NotFound",
    )
    assert refused(server, "PUT", "/api/v1/cluster").status == 405


def test_one_caller_cannot_take_all(tmp_path: Path) -> None:
    limits = replace(Config().limits, api_requests_per_s=5)
    with serve(tmp_path, replace(Config(), limits=limits)) as server:
        codes = []
        for _ in range(30):
            connection = server.connection()
            connection.request("GET", "/api/v1/cluster")
            response = connection.getresponse()
            response.read()
            connection.close()
            codes.append((response.status, response.headers.get("Retry-After")))

    assert codes[0] == (200, None)
    assert codes[-1] == (429, "1")


def test_the_original_status_has_the_originals_shape(server: Server) -> None:
    roles = {"worker": {"replicas": 1, "command": "echo Hello from worker"}}
    server.submit(roles=roles)

    found = server.client.get("/webapps/primus/status.json", {"job": "hello"})

    keys = {"primusConf", "isHistory", "summary", "roleMap", "tasks", "job", "data"}
    assert set(found) == keys
    assert "Hello from worker" in json.dumps(found["primusConf"])


def test_openapi_describes_every_path_with_the_documents_types(server: Server) -> None:
    found = server.client.get("/openapi.json")

    paths, components = found["paths"], found["components"]
    assert isinstance(paths, dict)
    assert isinstance(components, dict)
    assert "/api/v1/namespaces/{ns}/jobs/{name}:cancel" in paths
    assert {"Job", "Replica", "Stream", "Node", "Plan"} <= set(components["schemas"])


def test_health_readiness_version_metrics_and_the_plain_screen_answer(server: Server) -> None:
    server.submit(name="shown-here")
    texts = {
        path: b"".join(server.client.parts(path)).decode()
        for path in ("/healthz", "/readyz", "/version", "/metrics", "/")
    }

    assert texts["/healthz"] == texts["/readyz"] == "ok\n"
    assert "primus_jobs{phase=" in texts["/metrics"]
    assert "shown-here" in texts["/"]


def test_nodes_are_cordoned_and_uncordoned(server: Server) -> None:
    cordoned = server.client.call("POST", "/api/v1/nodes/n1:cordon", body={})
    server.submit()
    waiting = status_of(server)
    server.client.call("POST", "/api/v1/nodes/n1:uncordon", body={})

    assert cordoned["phase"] == "Cordoned"
    assert waiting["message"] == "none of 1 nodes is ready (cordoned)"
    assert status_of(server)["phase"] == "Starting"
    assert refused(server, "POST", "/api/v1/nodes/n9:cordon", body={}).status == 404


def test_jobs_beyond_the_limits_are_told_to_come_again(tmp_path: Path) -> None:
    """Without a node every job waits: the queue is full before the live ones are too many."""
    limits = replace(Config().limits, queue=2, jobs_live=3)
    with serve(tmp_path, replace(Config(), limits=limits)) as server:
        full = {"roles": {"worker": {"command": ["true"], "resources": {"cpu": 1}}}}
        for name in ("a", "b"):
            body = job_file(name=name, **full)
            server.client.call("POST", NAMESPACE, query={"waitForNodes": "1"}, body=body)

        error = refused(
            server, "POST", NAMESPACE, query={"waitForNodes": "1"}, body=job_file(name="c", **full)
        )

        assert (error.status, error.code) == (429, "TooManyRequests")
        assert "2 jobs wait already, limits.queue is 2" in error.message
        assert len(server.world.jobs) == 2


def test_C68_who_is_in_a_job_and_with_which_rank_can_be_read_by_others(server: Server) -> None:
    uid = str(
        server.submit(
            framework="torch",
            roles={
                "worker": {"replicas": 2, "command": ["train"]},
                "evaluator": {"command": ["evaluate"], "success": "never"},
            },
        )["uid"]
    )
    before = server.client.get(f"{HELLO}/peers")

    server.run_job(uid)

    after = server.client.get(f"{HELLO}/peers")
    assert (before["generation"], before["roles"]) == (0, {})
    assert (after["kind"], after["generation"], after["framework"]) == ("Peers", 1, "torch")
    roles = after["roles"]
    assert isinstance(roles, dict)
    assert [(one["index"], one["rank"]) for one in roles["worker"]] == [(0, 0), (1, 1)]
    assert len({one["ports"]["main"] for one in roles["worker"]}) == 2
    assert "rank" not in roles["evaluator"][0]
