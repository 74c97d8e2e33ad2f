"""The daemon's side of executors: who is taken, what reports come to, what is ordered, and when."""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import msgspec
import pytest
from msgspec.structs import replace

from primusd.admission.model import Tombstone
from primusd.api.hello import judge
from primusd.engine import Anew
from primusd.errors import NotFoundError, NotLeaderError
from primusd.executor.protocol import (
    Answer,
    Hold,
    Leave,
    Orders,
    Progress,
    Refused,
    Start,
    StartVariables,
    Stop,
    Usage,
    Welcome,
    spoken,
)
from primusd.job.events import CancelRequested
from primusd.job.ids import AttemptId
from primusd.job.phases import AttemptPhase, Cause, JobPhase
from primusd.job.spec import ShippedSpec
from primusd.keys import job_key
from primusd.liveness import beat_ms, lost_ms, silent_ms
from tests.edges.daemon_side import (
    CLUSTER,
    SECRET,
    Daemon,
    executor_voice,
    make_exit,
    make_hello,
    make_report,
    serving_daemon,
    session,
    voice,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    async with serving_daemon(tmp_path) as served:
        await served.add_node()
        yield served


def worker(uid: str, index: int = 0, attempt: int = 1) -> AttemptId:
    return AttemptId(uid, "worker", index, attempt)


# Hello.


async def test_the_first_hello_is_durable_before_its_welcome(daemon: Daemon) -> None:
    attempt = worker(await daemon.submit())
    revision = daemon.engine.revision

    async with voice(daemon, key=job_key(SECRET, attempt.job)) as executor:
        welcome = await executor.ask(make_hello(attempt))

    assert isinstance(welcome, Welcome)
    assert welcome.order is not None
    assert welcome.order.command == ("/bin/sh", "-c", "echo hi")
    assert welcome.order.ports == (("main", 20_000),)
    assert welcome.order.stop_signal == 15
    env = welcome.order.env
    assert (env["COLOUR"], env["PRIMUS_REPLICA"], env["PRIMUS_HOST"]) == (
        "blue",
        "worker-0",
        "host-1",
    )
    assert daemon.records(revision) == [["ExecutorRegistered"]]
    found = daemon.attempt(attempt)
    assert (found.phase, found.incarnation) == (AttemptPhase.REGISTERED, "0123456789abcdef")


async def test_a_hello_that_is_known_costs_no_write(daemon: Daemon) -> None:
    attempt = worker(await daemon.submit())
    async with executor_voice(daemon, attempt) as first:
        orders = await first.report("preparing")
    revision = daemon.engine.revision

    async with voice(daemon, key=job_key(SECRET, attempt.job)) as again:
        welcome = await again.ask(make_hello(attempt, seen=(orders.term, orders.revision)))
        await again.report("preparing")

    assert welcome == Welcome(1, None)
    assert daemon.engine.revision == revision


async def test_a_newer_connection_takes_the_place_of_an_older_one(daemon: Daemon) -> None:
    attempt = worker(await daemon.submit())

    async with executor_voice(daemon, attempt) as first, executor_voice(daemon, attempt) as second:
        assert await first.is_ended()
        assert isinstance((await second.report("preparing")).run, Hold)


async def test_a_wrong_key_is_refused(daemon: Daemon) -> None:
    uid, other = await daemon.submit(), await daemon.submit()

    async with voice(daemon, key=job_key(SECRET, other)) as executor:
        refused = await executor.ask(make_hello(worker(uid)))

    assert isinstance(refused, Refused)
    assert refused.code == "badKey"
    assert daemon.attempt(worker(uid)).incarnation == ""


async def test_an_executor_of_another_cluster_is_told_so_before_its_key_is_judged(
    daemon: Daemon,
) -> None:
    """It may have met us at a path of its own host: with `badKey` it would dial no other head."""
    uid = await daemon.submit()

    async with voice(daemon, key="of another cluster") as executor:
        refused = await executor.ask(make_hello(worker(uid), cluster="another"))

    assert isinstance(refused, Refused)
    assert refused.code == "wrongCluster"


async def test_what_is_no_hello_ends_the_connection(daemon: Daemon) -> None:
    uid = await daemon.submit()

    async with voice(daemon, key=job_key(SECRET, uid)) as executor:
        await executor.socket.send_bytes(b"\xc1 nonsense")
        assert await executor.is_ended()


def refusal(daemon: Daemon, attempt: AttemptId, **changes: object) -> str:
    refused = judge(
        daemon.engine.world,
        replace(make_hello(attempt), **changes),
        cluster=CLUSTER,
        term=daemon.engine.term,
        revision=daemon.engine.revision,
    )
    return "" if refused is None else refused.code


async def test_every_refusal_has_its_code_m058(daemon: Daemon) -> None:
    uid = await daemon.submit()
    attempt, term = worker(uid), daemon.engine.term
    unknown = replace(attempt, job="0000000000000000")
    newest = daemon.engine.revision

    assert refusal(daemon, attempt) == ""
    assert refusal(daemon, attempt, cluster="another") == "wrongCluster"
    assert refusal(daemon, attempt, speaks=(2, 3)) == "versionUnknown"
    assert refusal(daemon, unknown) == "unknownJob"
    assert refusal(daemon, attempt, seen_term=term, seen_revision=newest) == ""
    assert refusal(daemon, attempt, seen_term=term, seen_revision=newest + 1) == "stateBehind"
    assert refusal(daemon, attempt, seen_term=term + 1, seen_revision=1) == "stateBehind"
    assert refusal(daemon, attempt, seen_term=term - 1, seen_revision=1) == "stateBehind"
    assert refusal(daemon, worker(uid, attempt=2)) == "stateBehind"
    assert refusal(daemon, worker(uid, index=7)) == "stateBehind"

    async with executor_voice(daemon, attempt):
        assert refusal(daemon, attempt, incarnation="another") == "attemptTaken"
    admission = daemon.engine.world.admission
    buried = replace(admission, tombstones={unknown.job: Tombstone(unknown.job, 1 << 50)})
    daemon.engine.world = replace(daemon.engine.world, admission=buried)
    assert refusal(daemon, unknown) == "attemptOver"


async def test_a_store_that_lost_its_end_is_found_out_in_the_next_term(daemon: Daemon) -> None:
    """(t, r) was here when t is known and r lies below the first revision of the next term."""
    attempt = worker(await daemon.submit())
    admission = daemon.engine.world.admission
    (term, first), revision = admission.terms[-1], daemon.engine.revision
    later = replace(admission, terms=((term, first), (term + 1, revision + 1)))
    daemon.engine.world = replace(daemon.engine.world, admission=later)
    daemon.engine.term, daemon.engine.revision = term + 1, revision + 5

    assert refusal(daemon, attempt, seen_term=term, seen_revision=revision) == ""
    assert refusal(daemon, attempt, seen_term=term, seen_revision=revision + 1) == "stateBehind"
    assert refusal(daemon, attempt, seen_term=term + 1, seen_revision=revision + 5) == ""


async def test_an_executor_that_is_ahead_is_taken_once_a_person_vouched_for_it(
    daemon: Daemon,
) -> None:
    attempt = worker(await daemon.submit())
    ahead = make_hello(attempt, seen=(daemon.engine.term - 1, 7))

    async with voice(daemon, key=job_key(SECRET, attempt.job)) as first:
        refused = await first.ask(ahead)
    assert isinstance(refused, Refused)
    assert refused.code == "stateBehind"
    assert daemon.strays.ahead == {attempt}
    daemon.strays.adopt(attempt)
    async with voice(daemon, key=job_key(SECRET, attempt.job)) as second:
        welcome = await second.ask(ahead)
        assert isinstance(welcome, Welcome)
        await second.report("running", is_started=True)

    assert daemon.strays.ahead == frozenset()
    assert daemon.attempt(attempt).incarnation == ahead.incarnation


async def test_an_attempt_that_ended_is_over(daemon: Daemon) -> None:
    attempt = worker(await daemon.submit())
    async with executor_voice(daemon, attempt) as executor:
        await executor.report("holding")
        await executor.report("running", is_started=True)
        orders = await executor.report("ended", exit_=make_exit(1))

    assert orders.run == Leave()
    assert orders.exit_recorded
    assert refusal(daemon, attempt) == "attemptOver"


async def test_a_daemon_that_does_not_lead_says_so(daemon: Daemon) -> None:
    attempt = worker(await daemon.submit())
    daemon.engine.outage = NotLeaderError("another daemon leads")

    async with voice(daemon, key=job_key(SECRET, attempt.job)) as executor:
        refused = await executor.ask(make_hello(attempt))

    assert isinstance(refused, Refused)
    assert (refused.code, refused.heads) == ("notLeader", (f"unix:{daemon.path}",))


# Reports and orders.


async def test_the_gate_opens_for_all_at_once_and_unasked(daemon: Daemon) -> None:
    uid = await daemon.submit(2)
    async with (
        executor_voice(daemon, worker(uid, 0)) as first,
        executor_voice(daemon, worker(uid, 1)) as second,
    ):
        assert isinstance((await first.report("holding")).run, Hold)
        assert isinstance((await second.report("holding")).run, Start)

        pushed = await first.hear_orders()

        assert isinstance(pushed.run, Start)
        peers = msgspec.json.decode(pushed.run.inline)
        assert [one["ports"] for one in peers["roles"]["worker"]] == [
            {"main": 20_000},
            {"main": 20_001},
        ]
        assert pushed.revision == daemon.engine.revision
        assert pushed.term == daemon.engine.term


async def test_what_a_report_brings_about_comes_with_its_answer(daemon: Daemon) -> None:
    attempt = worker(await daemon.submit())
    async with executor_voice(daemon, attempt) as executor:
        await executor.say(make_report(1, "holding"))

        orders = await executor.hear_orders()

    assert isinstance(orders.run, Start)
    assert (orders.report, orders.revision) == (1, daemon.engine.revision)


async def test_a_step_wakes_only_those_whose_orders_it_changed(daemon: Daemon) -> None:
    one, other = await daemon.submit(), await daemon.submit()
    async with (
        executor_voice(daemon, worker(one)) as touched,
        executor_voice(daemon, worker(other)) as untouched,
    ):
        await untouched.report("preparing")
        await touched.report("holding")
        await touched.report("running", is_started=True)

        with anyio.move_on_after(0.1) as waiting:
            await untouched.hear()

    assert waiting.cancelled_caught


async def test_all_of_one_report_is_one_entry_in_the_order_of_the_page(daemon: Daemon) -> None:
    attempt = worker(await daemon.submit())
    async with executor_voice(daemon, attempt) as executor:
        orders = await executor.report("holding")
        assert isinstance(orders.run, Start)
        revision = daemon.engine.revision

        await executor.report("ended", is_started=True, exit_=make_exit(0))

    first, *_ = daemon.records(revision)
    assert first[:3] == ["TrainerStarted", "TrainerReady", "TrainerExited"]
    outcome = daemon.attempt(attempt).outcome
    assert outcome is not None
    assert outcome.cause is Cause.COMPLETED


async def test_a_report_that_says_nothing_new_costs_no_write(daemon: Daemon) -> None:
    attempt = worker(await daemon.submit())
    async with executor_voice(daemon, attempt) as executor:
        await executor.report("holding")
        await executor.report("running", is_started=True)
        revision = daemon.engine.revision

        for _ in range(3):
            await executor.report("running", is_started=True)

    assert daemon.engine.revision == revision


async def test_a_trainer_that_ended_before_its_start_was_told_is_counted(daemon: Daemon) -> None:
    """The exit code survives when the process dies before its start is reported."""
    attempt = worker(await daemon.submit())
    async with executor_voice(daemon, attempt) as executor:
        await executor.report("holding")
        await executor.report("ended", exit_=make_exit(137))

    outcome = daemon.attempt(attempt).outcome
    assert outcome is not None
    assert (outcome.cause, outcome.exit_code) == (Cause.CRASHED, 137)


async def test_a_cancel_reaches_the_trainer_with_its_reason(daemon: Daemon) -> None:
    uid = await daemon.submit()
    async with executor_voice(daemon, worker(uid)) as executor:
        await executor.report("holding")
        await executor.report("running", is_started=True)
        await daemon.engine.propose(uid, CancelRequested("enough"), by="test")

        pushed = await executor.hear_orders()

        assert isinstance(pushed.run, Stop)
        assert (pushed.run.reason, pushed.run.grace_ms) == ("cancelled", 30_000)
        daemon.clock.advance(10_000)
        again = await executor.report("stopping", is_started=True)
        assert isinstance(again.run, Stop)
        assert again.run.grace_ms <= 20_000


async def test_orders_say_the_pulse_and_the_lease_time(daemon: Daemon) -> None:
    attempt = worker(await daemon.submit())
    async with executor_voice(daemon, attempt) as executor:
        orders = await executor.report("preparing")

    assert (orders.beat_ms, orders.ttl_ms, orders.heads) == (
        1_000,
        30_000,
        (f"unix:{daemon.path}",),
    )


def test_the_pulse_slows_down_with_their_number() -> None:
    assert [beat_ms(count) for count in (1, 2_000, 4_000, 10_000)] == [1_000, 1_000, 2_000, 5_000]
    assert [silent_ms(beat) for beat in (1_000, 5_000)] == [10_000, 15_000]
    assert [lost_ms(beat) for beat in (1_000, 6_000)] == [30_000, 36_000]


# Silence.


async def running(daemon: Daemon, attempt: AttemptId) -> None:
    async with executor_voice(daemon, attempt) as executor:
        await executor.report("holding")
        await executor.report("running", is_started=True)


async def test_silence_is_suspected_and_forgiven_when_it_ends_c17(daemon: Daemon) -> None:
    """C17: two steps, suspect then lost; a pause below the limit costs nothing."""
    attempt = worker(await daemon.submit())
    await running(daemon, attempt)

    daemon.clock.advance(9_999)
    daemon.liveness.look()
    assert not daemon.attempt(attempt).is_silent
    daemon.clock.advance(1)
    daemon.liveness.look()
    await daemon.until(lambda: daemon.attempt(attempt).is_silent)

    async with executor_voice(daemon, attempt) as executor:
        await executor.report("running", is_started=True)

    found = daemon.attempt(attempt)
    assert (found.is_silent, found.phase) == (False, AttemptPhase.RUNNING)


async def test_silence_for_the_lease_time_is_the_end_c17_m059(daemon: Daemon) -> None:
    attempt = worker(await daemon.submit())
    await running(daemon, attempt)

    daemon.clock.advance(30_000)
    daemon.liveness.look()
    await daemon.until(lambda: daemon.attempt(attempt).outcome)

    outcome = daemon.attempt(attempt).outcome
    assert outcome is not None
    assert outcome.cause is Cause.LOST


@pytest.mark.parametrize("why", list(Anew))
async def test_who_was_away_accuses_nobody(daemon: Daemon, why: Anew) -> None:
    """A change of leader, a suspended host, a store that was away: every clock starts anew."""
    attempt = worker(await daemon.submit())
    await running(daemon, attempt)

    daemon.clock.advance(3_600_000)
    daemon.liveness.begin_anew(why)
    daemon.clock.advance(9_999)
    daemon.liveness.look()
    assert not daemon.attempt(attempt).is_silent
    daemon.clock.advance(1)
    daemon.liveness.look()

    await daemon.until(lambda: daemon.attempt(attempt).is_silent)


# Questions, single beats, files, peers, live values.


async def test_a_question_is_repeated_until_it_is_answered(daemon: Daemon) -> None:
    attempt = worker(await daemon.submit())
    answers: list[Answer] = []

    async def ask() -> None:
        answers.append(await daemon.executors.ask(attempt, "logs", path="stdout", offset=5))

    async with executor_voice(daemon, attempt) as executor:
        await executor.report("preparing")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            (question,) = (await executor.hear_orders()).asks
            assert (question.kind, question.path, question.offset) == ("logs", "stdout", 5)
            assert (await executor.report("preparing")).asks == (question,)
            answer = Answer(question.id, b"text", end=True)
            executor.seq += 1
            report = replace(make_report(executor.seq, "preparing"), answers=(answer,))
            orders = await executor.ask(report)

    assert answers == [answer]
    assert isinstance(orders, Orders)
    assert orders.asks == ()


async def test_nobody_is_asked_who_is_not_connected(daemon: Daemon) -> None:
    attempt = worker(await daemon.submit())

    with pytest.raises(NotFoundError, match="not connected"):
        await daemon.executors.ask(attempt, "stacks")


async def test_a_reader_without_a_connection_beats_in_json(daemon: Daemon) -> None:
    attempt = worker(await daemon.submit())
    headers = {"Authorization": f"Bearer {job_key(SECRET, attempt.job)}"}
    headers["Content-Type"] = "application/json"
    query = {"attempt": f"{attempt.job}/{attempt.label}", "incarnation": "0123456789abcdef"}

    async with session(daemon) as opened:
        body = msgspec.json.encode(make_hello(attempt))
        async with opened.post("/executor/v1/beat", data=body, headers=headers) as response:
            welcome = msgspec.json.decode(await response.read(), type=Welcome | Refused | Orders)
        body = msgspec.json.encode(make_report(7, "holding"))
        async with opened.post(
            "/executor/v1/beat", params=query, data=body, headers=headers
        ) as response:
            orders = msgspec.json.decode(await response.read(), type=Welcome | Refused | Orders)

    assert isinstance(welcome, Welcome)
    assert isinstance(orders, Orders)
    assert orders.report == 7
    assert isinstance(orders.run, Start)


async def test_peers_are_given_to_their_own_job_only(daemon: Daemon) -> None:
    uid, other = await daemon.submit(), await daemon.submit()
    async with executor_voice(daemon, worker(uid)) as executor:
        orders = await executor.report("holding")
    assert isinstance(orders.run, Start)
    path = f"/executor/v1/peers/{uid}/1?digest={orders.run.peers}"

    statuses = []
    async with session(daemon) as opened:
        for key in (job_key(SECRET, uid), job_key(SECRET, other), ""):
            headers = {"Authorization": f"Bearer {key}"}
            async with opened.get(path, headers=headers) as response:
                statuses.append(response.status)
                body = await response.read() if response.status == 200 else b""
                assert body in (orders.run.inline, b"")

    assert statuses == [200, 401, 401]


async def test_a_frameworks_variables_are_fetched_with_the_digest_of_the_start(
    daemon: Daemon,
) -> None:
    uid = await daemon.submit(2, framework="torch")
    async with (
        executor_voice(daemon, worker(uid, 0)) as first,
        executor_voice(daemon, worker(uid, 1)) as second,
    ):
        await first.report("holding")
        orders = await second.report("holding")
    assert isinstance(orders.run, Start)
    assert orders.run.has_variables
    path = f"/executor/v1/variables/{uid}/1?digest={orders.run.peers}&replica="
    headers = {"Authorization": f"Bearer {daemon.bootstrap(worker(uid)).key}"}

    async def status(url: str, headers: dict[str, str]) -> int:
        async with session(daemon) as opened, opened.get(url, headers=headers) as response:
            return response.status

    async with (
        session(daemon) as opened,
        opened.get(f"{path}worker-1", headers=headers) as response,
    ):
        found = msgspec.json.decode(await response.read(), type=StartVariables)
    assert found.env["MASTER_PORT"] == "20000"
    assert (found.env["RANK"], found.env["WORLD_SIZE"]) == ("1", "2")
    assert found.env["TORCHELASTIC_RUN_ID"] == f"{uid}.1"
    assert found.env["PRIMUS_ROLES"] == '{"worker":2}'
    assert await status(f"{path}worker-1", {}) == 401
    assert await status(f"{path}worker", headers) == 400
    assert await status(f"{path}ps-0", headers) == 404
    assert await status(path.replace("sha256", "sha255") + "worker-1", headers) == 404


async def test_a_job_without_a_framework_has_no_variables_to_fetch(daemon: Daemon) -> None:
    attempt = worker(await daemon.submit())
    async with executor_voice(daemon, attempt) as executor:
        orders = await executor.report("holding")

    assert isinstance(orders.run, Start)
    assert not orders.run.has_variables


async def test_a_file_that_a_job_does_not_ship_is_not_given_to_it(daemon: Daemon) -> None:
    digest = "sha256:" + "0" * 64
    uid = await daemon.submit(files=(ShippedSpec("a", "sha256:" + "1" * 64, 1),))
    headers = {"Authorization": f"Bearer {job_key(SECRET, uid)}"}

    async with (
        session(daemon) as opened,
        opened.get(f"/executor/v1/blobs/{digest}?job={uid}", headers=headers) as response,
    ):
        assert response.status == 404


async def test_progress_and_use_are_live_and_not_journaled(daemon: Daemon) -> None:
    attempt = worker(await daemon.submit())
    progress = Progress(7, 1, 0, {"loss": 0.5})
    async with executor_voice(daemon, attempt) as executor:
        await executor.report("holding")
        revision = daemon.engine.revision
        for seq, cpu_ms in ((2, 1_000), (3, 3_000)):
            usage = Usage(cpu_ms, 1 << 20, 0, 0, 100 * cpu_ms, 0, ())
            report = replace(make_report(seq, "holding"), progress=progress, usage=usage)
            await executor.ask(report)
            daemon.clock.advance(1_000)

    live = daemon.live.live()
    assert live.progress[attempt] == progress
    assert live.usage[attempt].cpu_milli == 2_000
    assert live.usage[attempt].net_in_bytes_per_s == 200_000
    assert daemon.engine.revision == revision


async def test_a_whole_job_by_voice_alone(daemon: Daemon) -> None:
    uid = await daemon.submit()
    async with executor_voice(daemon, worker(uid)) as executor:
        await executor.report("holding")
        await executor.report("running", is_started=True)
        orders = await executor.report("ended", exit_=make_exit(0))

    assert orders.run == Leave()
    assert daemon.job(uid).phase in (JobPhase.STOPPING, JobPhase.RUNNING)


@pytest.mark.parametrize(
    ("we", "they", "version"),
    [
        ((1, 1), (1, 1), 1),
        ((1, 2), (1, 1), 1),
        ((1, 1), (1, 2), 1),
        ((1, 3), (2, 2), 2),
        ((1, 1), (2, 3), 0),
        ((2, 3), (1, 1), 0),
    ],
)
def test_the_highest_version_that_both_sides_speak_is_spoken(
    monkeypatch: pytest.MonkeyPatch, we: tuple[int, int], they: tuple[int, int], version: int
) -> None:
    monkeypatch.setattr("primusd.executor.protocol.SPEAKS", we)

    assert spoken(they) == version
