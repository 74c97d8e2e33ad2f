"""A head that stands by sends executors and nodes to the leader in the words of their protocol."""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import anyio
import pytest
from msgspec.structs import replace

from primusd.api import leading
from primusd.executor.protocol import DaemonMessage, Refused, Welcome
from primusd.job.ids import AttemptId, make_uid
from primusd.keys import job_key, node_key
from primusd.node.protocol import DaemonToNodeMessage
from primusd.state.election import Heads, Identity, News
from tests.edges.daemon_side import (
    SECRET,
    Daemon,
    make_hello,
    node_hello,
    serving_daemon,
    session,
    voice,
)
from tests.edges.node_process import NodeProcess
from tests.edges.scripted_head import serving

pytestmark = pytest.mark.anyio

A, B, C = (Identity(name, (f"http://{name}:1",)) for name in "abc")
LED_BY_B = Heads(B, 7, (A, B, C))
TO_B = Refused(
    "notLeader",
    "this daemon stands by: b leads, term 7",
    ("http://b:1", "http://a:1", "http://c:1"),
)
ATTEMPT = AttemptId(make_uid(1_000, 1), "worker", 0, 1)


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    async with serving_daemon(tmp_path) as served:
        served.stands_by = LED_BY_B
        yield served


async def heard_as_executor(
    daemon: Daemon,
    *,
    key: str = job_key(SECRET, ATTEMPT.job),
    cluster: str = "cluster-1",
    lost: str = "",
) -> DaemonMessage:
    async with voice(daemon, key=key, lost=lost) as executor:
        return await executor.ask(make_hello(ATTEMPT, cluster=cluster))


async def heard_as_node(
    daemon: Daemon, *, key: str = node_key(SECRET, "n1"), cluster: str = "cluster-1"
) -> DaemonToNodeMessage:
    async with voice(daemon, key=key, path="/node/v1/connect") as node:
        await node.say_as_node(node_hello(cluster=cluster))
        return await node.hear_as_node()


async def test_executors_and_nodes_are_told_who_leads_and_who_else_there_is(
    daemon: Daemon,
) -> None:
    assert await heard_as_executor(daemon) == TO_B
    assert await heard_as_node(daemon) == TO_B


async def test_while_nobody_leads_nobody_is_named(daemon: Daemon) -> None:
    daemon.stands_by = Heads(None, 0, (A, B, C))

    for refused in (await heard_as_executor(daemon), await heard_as_node(daemon)):
        assert isinstance(refused, Refused)
        assert (refused.code, refused.heads) == ("notLeader", ())


async def test_whoever_dials_while_nobody_leads_is_told_as_soon_as_somebody_does(
    tmp_path: Path,
) -> None:
    news = News()
    async with serving_daemon(tmp_path, news=news) as daemon:
        daemon.stands_by = Heads(None, 0, (A, B, C))
        answers: list[DaemonMessage] = []

        async def dial() -> None:
            answers.append(await heard_as_executor(daemon))

        async with anyio.create_task_group() as group:
            group.start_soon(dial)
            await anyio.sleep(0.1)
            assert not answers
            daemon.stands_by = LED_BY_B
            news.tell()

    assert answers == [TO_B]


async def test_a_leader_that_does_not_answer_is_named_only_when_there_is_no_other_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leading, "HELD_S", 0.2)
    async with serving_daemon(tmp_path, news=News()) as daemon:
        daemon.stands_by = LED_BY_B
        found = await heard_as_executor(daemon)
        late = await heard_as_executor(daemon, lost="unix:/x,http://b:1")

    assert found == TO_B
    assert late == replace(TO_B, retry_ms=leading.AGAIN_MS)


async def test_a_head_that_takes_over_is_waited_for_and_welcomes(tmp_path: Path) -> None:
    news = News()
    async with serving_daemon(tmp_path, news=news) as daemon:
        await daemon.add_node()
        attempt = AttemptId(await daemon.submit(), "worker", 0, 1)
        # It has the leader's key, and its parts do not work yet.
        daemon.stands_by = Heads(Identity("self", ("http://self:1",)), 8, (A, B, C))
        answers: list[DaemonMessage] = []

        async def dial() -> None:
            async with voice(daemon, key=job_key(SECRET, attempt.job)) as executor:
                answers.append(await executor.ask(make_hello(attempt)))

        async with anyio.create_task_group() as group:
            group.start_soon(dial)
            await anyio.sleep(0.1)
            assert not answers
            daemon.stands_by = None
            news.tell()

    assert isinstance(answers[0], Welcome)


@pytest.mark.parametrize(
    ("wrong", "code"), [({"key": "wrong"}, "badKey"), ({"cluster": "other"}, "wrongCluster")]
)
async def test_strangers_are_turned_away_and_not_sent_on(
    daemon: Daemon, wrong: dict[str, str], code: str
) -> None:
    for refused in (await heard_as_executor(daemon, **wrong), await heard_as_node(daemon, **wrong)):
        assert isinstance(refused, Refused)
        assert (refused.code, refused.heads) == (code, ())


async def test_what_is_no_connection_gets_the_leaders_address_in_a_header(daemon: Daemon) -> None:
    async with session(daemon) as opened, opened.post("/executor/v1/beat") as answer:
        found = answer
        document = await answer.json()

    assert isinstance(found, aiohttp.ClientResponse)
    assert (found.status, document["code"]) == (503, "NotLeader")
    assert found.headers["X-Primus-Leader"] == "http://b:1"


async def test_a_node_goes_where_a_follower_sends_it(node: NodeProcess, tmp_path: Path) -> None:
    async with serving(tmp_path / "leader.sock") as leader:
        node.head.node_refused = Refused("notLeader", "", (leader.address,))
        await node.head.cut()
        await node.head.start()

        await leader.until(lambda: leader.node_reports.get("n1"))


async def test_two_that_name_each_other_are_dialled_until_one_leads(
    node: NodeProcess, tmp_path: Path
) -> None:
    async with serving(tmp_path / "other.sock") as other:
        node.head.node_refused = Refused("notLeader", "", (other.address,))
        other.node_refused = Refused("notLeader", "", (node.head.address,))
        before = node.head.node_hellos
        await node.head.cut()
        await node.head.start()

        # More than are dialled at once.
        await node.head.until(lambda: node.head.node_hellos > before + 3)
        other.node_refused = None
        await other.until(lambda: other.node_reports.get("n1"))
