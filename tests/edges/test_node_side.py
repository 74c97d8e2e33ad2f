"""The daemon's side of nodes: admission hears of them, and the launcher of what they have."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from primusd.admission.model import Tombstone
from primusd.api.nodes import seen
from primusd.engine import Anew
from primusd.errors import NotLeaderError
from primusd.executor.protocol import Refused, Usage
from primusd.job.events import AttemptLaunched, AttemptVanished
from primusd.job.ids import AttemptId
from primusd.job.phases import NodePhase
from primusd.job.spec import Resources
from primusd.keys import node_key
from primusd.launchers.base import LauncherEvent
from primusd.node.protocol import NodeAttempt, NodeOrders, NodeReport, NodeWelcome
from primusd.records import ADMISSION
from tests.edges.daemon_side import (
    SECRET,
    Daemon,
    Voice,
    make_exit,
    node_hello,
    serving_daemon,
    voice,
)
from tests.edges.scripted_head import attempt_id

pytestmark = pytest.mark.anyio

PATH = "/node/v1/connect"
KEY = node_key(SECRET, "n1")
GONE = NodeAttempt(attempt_id(), alive=False, exit=None)


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    async with serving_daemon(tmp_path) as served:
        yield served


def phase(daemon: Daemon) -> NodePhase | None:
    node = daemon.engine.world.admission.nodes.get("n1")
    return None if node is None else node.phase


async def welcome(node: Voice, *, boot: str = "boot-1") -> NodeOrders:
    """Say hello as a node, and return the first orders."""
    await node.say_as_node(node_hello(boot=boot))
    assert await node.hear_as_node() == NodeWelcome(1)
    orders = await node.hear_as_node()
    assert isinstance(orders, NodeOrders)
    return orders


async def report(
    node: Voice,
    orders: NodeOrders,
    *attempts: NodeAttempt,
    usage: Usage | None = None,
    jobs: tuple[str, ...] = (),
) -> NodeOrders:
    """Report these attempts as a node that has carried out the orders; return what answers it."""
    node.seq += 1
    await node.say_as_node(
        NodeReport(node.seq, orders.term, orders.revision, attempts, usage, 1 << 30, 1 << 40, jobs)
    )
    while True:
        answer = await node.hear_as_node()
        assert isinstance(answer, NodeOrders)
        if answer.report >= node.seq:
            return answer


async def test_a_node_that_says_hello_is_ready(daemon: Daemon) -> None:
    async with voice(daemon, key=KEY, path=PATH) as node:
        await welcome(node)
        await daemon.until(lambda: phase(daemon) is NodePhase.READY)

        known = daemon.engine.world.admission.nodes["n1"]

    assert (known.cpu_milli, known.first_port, known.boot_id) == (4_000, 20_000, "boot-1")


async def test_a_node_is_away_when_its_connection_is_gone_for_30_s(daemon: Daemon) -> None:
    async with voice(daemon, key=KEY, path=PATH) as node:
        orders = await welcome(node)
        await report(node, orders)
        await daemon.until(lambda: phase(daemon) is NodePhase.READY)
        for _ in range(6):
            daemon.clock.advance(10_000)
            daemon.nodes.look()
            await report(node, orders)
        assert daemon.nodes.is_connected("n1")

    await daemon.until_gone("n1")
    daemon.clock.advance(29_999)
    daemon.nodes.look()
    assert phase(daemon) is NodePhase.READY
    daemon.clock.advance(1)
    daemon.nodes.look()
    await daemon.until(lambda: phase(daemon) is NodePhase.AWAY)

    async with voice(daemon, key=KEY, path=PATH) as node:
        await welcome(node)
        await daemon.until(lambda: phase(daemon) is NodePhase.READY)


async def test_a_node_that_says_nothing_any_more_is_away_30_s_after_its_last_word_m059(
    daemon: Daemon,
) -> None:
    """M059, C41: a host without power, or behind a cut network, closes no connection."""
    async with voice(daemon, key=KEY, path=PATH) as node:
        await report(node, await welcome(node))
        await daemon.until(lambda: phase(daemon) is NodePhase.READY)

        daemon.clock.advance(14_999)
        daemon.nodes.look()
        assert daemon.nodes.is_connected("n1")
        daemon.clock.advance(1)
        daemon.nodes.look()
        await daemon.until_gone("n1")
        assert phase(daemon) is NodePhase.READY
        daemon.clock.advance(15_000)
        daemon.nodes.look()
        await daemon.until(lambda: phase(daemon) is NodePhase.AWAY)

    async with voice(daemon, key=KEY, path=PATH) as again:
        await welcome(again)
        await daemon.until(lambda: phase(daemon) is NodePhase.READY)


async def test_a_daemon_that_stood_still_takes_no_node_for_silent(daemon: Daemon) -> None:
    async with voice(daemon, key=KEY, path=PATH) as node:
        orders = await report(node, await welcome(node))

        daemon.clock.advance(3_600_000)
        daemon.nodes.begin_anew(Anew.STALL)
        daemon.nodes.look()

        await report(node, orders)
        assert daemon.nodes.is_connected("n1")


async def test_a_daemon_that_was_away_waits_for_its_nodes_anew(daemon: Daemon) -> None:
    await daemon.add_node()
    daemon.clock.advance(3_600_000)
    daemon.nodes.begin_anew(Anew.TERM)

    daemon.clock.advance(29_999)
    daemon.nodes.look()
    assert phase(daemon) is NodePhase.READY
    daemon.clock.advance(1)
    daemon.nodes.look()

    await daemon.until(lambda: phase(daemon) is NodePhase.AWAY)


@pytest.mark.parametrize(
    ("key", "cluster", "code"),
    [
        ("wrong", "cluster-1", "badKey"),
        (KEY, "another", "wrongCluster"),
        ("wrong", "another", "wrongCluster"),
    ],
)
async def test_a_strangers_hello_is_refused(
    daemon: Daemon, key: str, cluster: str, code: str
) -> None:
    async with voice(daemon, key=key, path=PATH) as node:
        await node.say_as_node(node_hello(cluster=cluster))
        refused = await node.hear_as_node()

    assert isinstance(refused, Refused)
    assert refused.code == code
    assert phase(daemon) is None


async def test_a_daemon_that_does_not_lead_refuses_nodes(daemon: Daemon) -> None:
    daemon.engine.outage = NotLeaderError("another daemon leads")

    async with voice(daemon, key=KEY, path=PATH) as node:
        await node.say_as_node(node_hello())
        refused = await node.hear_as_node()

    assert isinstance(refused, Refused)
    assert refused.code == "notLeader"


@pytest.mark.parametrize(("boot", "home"), [("boot-1", "b:/state"), ("boot-2", "a:/state")])
async def test_a_second_node_with_a_copy_of_the_file_is_refused_until_the_first_is_silent(
    daemon: Daemon, boot: str, home: str
) -> None:
    async with voice(daemon, key=KEY, path=PATH) as first:
        await first.say_as_node(node_hello(home="a:/state"))
        assert isinstance(await first.hear_as_node(), NodeWelcome)

        async with voice(daemon, key=KEY, path=PATH) as second:
            await second.say_as_node(node_hello(boot=boot, home=home))
            refused = await second.hear_as_node()
        async with voice(daemon, key=KEY, path=PATH) as same:
            await same.say_as_node(node_hello(home="a:/state"))
            assert isinstance(await same.hear_as_node(), NodeWelcome)
            daemon.clock.advance(15_000)
            async with voice(daemon, key=KEY, path=PATH) as later:
                await later.say_as_node(node_hello(boot=boot, home=home))
                assert isinstance(await later.hear_as_node(), NodeWelcome)

    assert isinstance(refused, Refused)
    assert (refused.code, refused.text) == ("nameTaken", "a:/state is connected as n1")


async def test_a_newer_connection_of_a_node_counts(daemon: Daemon) -> None:
    async with voice(daemon, key=KEY, path=PATH) as first:
        await welcome(first)
        async with voice(daemon, key=KEY, path=PATH) as second:
            await welcome(second)
            assert await first.is_ended()
            assert daemon.nodes.is_connected("n1")


async def test_what_a_node_has_is_told_once(daemon: Daemon) -> None:
    attempt, told = attempt_id(), heard(daemon)
    async with voice(daemon, key=KEY, path=PATH) as node:
        orders = await welcome(node)
        alive = NodeAttempt(attempt, alive=True, exit=None)
        for _ in range(3):
            orders = await report(node, orders, alive)
        for _ in range(3):
            orders = await report(
                node, orders, NodeAttempt(attempt, alive=False, exit=make_exit(3))
            )

    assert told == [
        AttemptLaunched(attempt, {"node": "n1", "version": "1"}),
        AttemptVanished(attempt, make_exit(3)),
    ]


async def test_after_a_loss_everything_is_told_again(daemon: Daemon) -> None:
    attempt, told = attempt_id(), heard(daemon)
    async with voice(daemon, key=KEY, path=PATH) as node:
        orders = await report(
            node, await welcome(node), NodeAttempt(attempt, alive=True, exit=None)
        )
        daemon.nodes.begin_anew(Anew.RELOAD)
        await report(node, orders, NodeAttempt(attempt, alive=True, exit=None))

    assert [type(event) for event in told] == [AttemptLaunched, AttemptLaunched]


@pytest.mark.parametrize(
    ("one", "evidence"),
    [
        (
            NodeAttempt(attempt_id(), alive=False, exit=None, error="no memory"),
            "forkFailed:no memory",
        ),
        (NodeAttempt(attempt_id(), alive=False, exit=None, boot_id="boot-0"), "bootChanged"),
        (NodeAttempt(attempt_id(), alive=False, exit=make_exit(), boot_id="boot-0"), ""),
        (NodeAttempt(attempt_id(), alive=False, exit=None, boot_id="boot-1"), ""),
    ],
)
async def test_what_a_node_saw_of_an_end_is_evidence(
    daemon: Daemon, one: NodeAttempt, evidence: str
) -> None:
    told = heard(daemon)
    async with voice(daemon, key=KEY, path=PATH) as node:
        await report(node, await welcome(node), one)

    assert told[-1] == AttemptVanished(one.attempt, one.exit, evidence)


def heard(daemon: Daemon) -> list[LauncherEvent]:
    events: list[LauncherEvent] = []
    daemon.launcher.watch(events.append)
    return events


async def test_a_wish_reaches_a_node_that_comes_later(daemon: Daemon) -> None:
    attempt = attempt_id()
    await daemon.launcher.launch(attempt, "n1", Resources(gpu=2), daemon.bootstrap(attempt))

    async with voice(daemon, key=KEY, path=PATH) as node:
        orders = await welcome(node)
        (start,) = orders.run
        later = await report(node, orders, NodeAttempt(attempt, alive=True, exit=None))

    assert (start.attempt, start.gpus) == (attempt, ("", ""))
    assert later.run == ()


async def test_a_stop_of_what_never_started_is_answered_when_it_was_carried_out(
    daemon: Daemon,
) -> None:
    attempt, told = attempt_id(), heard(daemon)
    async with voice(daemon, key=KEY, path=PATH) as node:
        orders = await welcome(node)
        async with daemon.in_background(lambda: daemon.launcher.stop(attempt, "n1")) as stopped:
            newer = await node.hear_as_node()
            assert isinstance(newer, NodeOrders)
            assert newer.kill == (attempt,)
            # A report that followed older orders proves nothing.
            await report(node, orders)
            assert told == []
            await report(node, newer)

    assert stopped == [True]
    assert told == [AttemptVanished(attempt)]


async def test_a_stop_at_a_node_that_is_away_is_not_delivered(daemon: Daemon) -> None:
    assert not await daemon.launcher.stop(attempt_id(), "n1")


async def test_what_nodes_have_is_listed(daemon: Daemon) -> None:
    attempts = (AttemptId("b", "worker", 1, 1), AttemptId("a", "worker", 0, 4))
    async with voice(daemon, key=KEY, path=PATH) as node:
        await report(
            node,
            await welcome(node),
            NodeAttempt(attempts[0], alive=True, exit=None),
            NodeAttempt(attempts[1], alive=False, exit=make_exit()),
        )
        listed = await daemon.launcher.list()

    assert [(one.attempt, one.node, one.is_alive) for one in listed] == [
        (attempts[0], "n1", True),
        (attempts[1], "n1", False),
    ]


async def test_the_host_is_shown_live(daemon: Daemon) -> None:
    async with voice(daemon, key=KEY, path=PATH) as node:
        orders = await report(node, await welcome(node), usage=Usage(0, 0, 0, 0, 0, 0, ()))
        daemon.clock.advance(10_000)
        await report(node, orders, usage=Usage(20_000, 0, 0, 0, 50_000, 0, ()))
        live = daemon.live.live().nodes["n1"]

    assert (live.cpu_percent, live.net_in_bytes_per_s) == (50, 5_000)
    assert live.memory_free_bytes == 1 << 30


async def test_a_node_is_told_of_which_jobs_it_may_drop_the_folders(daemon: Daemon) -> None:
    """Those known to be over whose records are gone; never those that are not known."""
    live, buried, unknown = await daemon.submit(0), "06f3k2m9q1x7aaaa", "06f3k2m9q1x7bbbb"
    admission = daemon.engine.world.admission
    tombstones = {uid: Tombstone(uid, 1 << 50) for uid in (live, buried)}
    daemon.engine.world = replace(
        daemon.engine.world, admission=replace(admission, tombstones=tombstones)
    )
    async with voice(daemon, key=KEY, path=PATH) as node:
        orders = await welcome(node)
        assert orders.drop == ()

        orders = await report(node, orders, jobs=(live, buried, unknown))

    assert orders.drop == (buried,)


async def test_load_is_recorded_when_there_is_a_choice_and_it_changed_by_a_step(
    daemon: Daemon,
) -> None:
    def load() -> tuple[int, int]:
        found = daemon.engine.world.admission.nodes["n1"].load
        return found.cpu_milli, found.memory_bytes

    async def weigh(cpu_milli: int, memory_bytes: int) -> tuple[int, int]:
        node.seq += 1
        told = NodeReport(node.seq, orders.term, orders.revision, ())
        told = replace(told, load_cpu_milli=cpu_milli, load_memory_bytes=memory_bytes)
        await node.say_as_node(told)
        while (answer := await node.hear_as_node()).report < node.seq:  # type: ignore[union-attr] # orders
            pass
        assert isinstance(answer, NodeOrders)
        return load()

    async with voice(daemon, key=KEY, path=PATH) as node:
        orders = await welcome(node)
        await daemon.until(lambda: phase(daemon) is NodePhase.READY)
        capacity = daemon.engine.world.admission.nodes["n1"]
        step = capacity.cpu_milli // 4
        alone = await weigh(4 * step, 0)
        other = replace(seen(node_hello(), "local"), node="n2")
        await daemon.engine.propose(ADMISSION, other, by="test")

        small = await weigh(step - 1, -1)
        await weigh(step, -1)
        await daemon.until(lambda: load() == (step, 0))
        unknown = await weigh(-1, capacity.memory_bytes // 8 - 1)
        await weigh(-1, capacity.memory_bytes // 8)
        await daemon.until(lambda: load() == (step, capacity.memory_bytes // 8))

    assert alone == small == (0, 0)
    assert unknown == (step, 0)
