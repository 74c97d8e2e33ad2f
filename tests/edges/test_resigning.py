"""A leader lets another head lead only where one could take over at once."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import pytest

from primusd.api import cluster
from primusd.config.settings import Config
from primusd.ctl.documents import mappings
from primusd.ctl.failures import ApiError
from primusd.ctl.main import run
from primusd.state.election import Heads, Identity, News, others_once_ready
from tests.edges.api_server import Server, serve

B = Identity("b", ("http://b:1",))
LOADS = Identity("b", ("http://b:1",), ready=False)
RESIGN = ("POST", "/api/v1/cluster:resign")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serve(tmp_path, Config(member="a")) as served:
        yield served


def refusal(server: Server) -> str:
    with pytest.raises(ApiError) as raised:
        server.client.call(*RESIGN, body={})
    assert raised.value.status == 409
    assert not server.resigned
    return str(raised.value)


def test_without_another_head_it_leads_on(server: Server) -> None:
    assert "no other head stands by: a leads on" in refusal(server)


def test_with_one_that_is_ready_it_resigns(server: Server) -> None:
    server.stand_beside(LOADS, Identity("c"))

    assert server.client.call(*RESIGN, body={})["leader"] == "a"
    assert server.resigned == 1
    members = mappings(server.client.get("/api/v1/cluster"), "members")
    assert {one["name"]: one["ready"] for one in members} == {"a": True, "b": False, "c": True}


def test_with_one_that_reads_yet_what_there_is_it_is_refused(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "READY_S", 0.1)
    server.stand_beside(LOADS)

    assert "no other head is ready, a leads on: b cannot take over yet" in refusal(server)


def test_primusctl_says_who_cannot_take_over_yet(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.stand_beside(LOADS, Identity("c", ("http://c:1",)))

    assert run(["leader", "--address", f"unix:{server.socket}"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "b stands by at http://b:1, but cannot take over yet",
        "c stands by at http://c:1",
    ]


def test_one_that_is_ready_in_a_moment_is_waited_for(server: Server) -> None:
    server.stand_beside(LOADS)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.client.call, *RESIGN, body={})
        time.sleep(0.2)
        assert not asked.done()
        server.stand_beside(B)
        asked.result(timeout=20)
    assert server.resigned == 1


@pytest.mark.anyio
@pytest.mark.parametrize("after", [(), (B,)])
async def test_whoever_waits_for_a_head_to_be_ready_hears_too_that_it_left(
    after: tuple[Identity, ...],
) -> None:
    now, news = [Heads(None, 0, (Identity("a"), LOADS))], News()
    found: list[tuple[Identity, ...]] = []

    async def ask() -> None:
        found.append(await others_once_ready(lambda: now[0], news, "a", within_s=20))

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        assert not found
        now[0] = Heads(None, 0, (Identity("a"), *after))
        news.tell()
    assert found == [after]
