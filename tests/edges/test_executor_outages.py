"""Executors whose head is gone, slow, new, forgetful or wrong: only knowledge ends a trainer."""

# ruff: noqa: ASYNC221  a test may block its loop

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import pytest

from primusd.executor.directory import is_lock_held, read_exit_record
from primusd.executor.logs import LogWriter
from primusd.executor.protocol import Leave, Refused
from primusd.job.ids import AttemptId
from tests.edges.node_process import NodeProcess, is_alive, running_node, until_dead, until_file
from tests.edges.scripted_head import CLUSTER, Executor, attempt_id, launch_order, serving, shell

pytestmark = pytest.mark.anyio

STAYS = "echo $$; exec sleep 600"


async def launched(node: NodeProcess, line: str = STAYS) -> tuple[Executor, int]:
    """Launch a trainer that prints its pid, and return its executor and that pid."""
    executor = await node.head.launch(attempt_id(), launch_order(*shell(line)))
    pid = int((await until_file(node.directory(attempt_id()).path / "stdout.log")).split()[0])
    await node.head.until(lambda: executor.newest and executor.newest.phase == "running")
    return executor, pid


async def refuse(node: NodeProcess, executor: Executor, refused: Refused) -> None:
    """Cut the connection, and refuse the hello that follows."""
    executor.refused = refused
    hellos = len(executor.hellos)
    assert executor.socket is not None
    await executor.socket.close()
    await node.head.until(lambda: len(executor.hellos) > hellos)


async def until_left(node: NodeProcess, attempt: AttemptId) -> None:
    lock = node.directory(attempt).lock
    with anyio.fail_after(20):
        while is_lock_held(lock):  # noqa: ASYNC110 asks the kernel
            await anyio.sleep(0.01)


async def test_a_cut_connection_is_made_again_and_the_trainer_does_not_notice_m063(
    node: NodeProcess,
) -> None:
    executor, trainer = await launched(node)
    first = executor.hellos[0]

    await node.head.cut()
    await anyio.sleep(0.3)
    await node.head.start()
    await node.head.until(lambda: len(executor.hellos) > 1)
    reports = len(executor.reports)
    await node.head.until(lambda: len(executor.reports) > reports)

    again = executor.hellos[1]
    assert again.incarnation == first.incarnation
    assert (first.seen_term, first.seen_revision) == (0, 0)
    assert (again.seen_term, again.seen_revision) == (1, node.head.revision)
    assert executor.reports[-1].seq < reports
    assert is_alive(trainer)


async def test_an_end_that_nobody_hears_is_delivered_later_m063(node: NodeProcess) -> None:
    executor, trainer = await launched(node, "echo $$; mkfifo go; echo ok; read x < go; exit 7")
    directory = node.directory(attempt_id())

    await node.head.cut()
    fifo = directory.replica_work / "go"
    await anyio.to_thread.run_sync(fifo.write_text, "\n")
    await until_dead(trainer)
    with anyio.fail_after(20):
        while (recorded := read_exit_record(directory.exit)) is None:  # noqa: ASYNC110 a file
            await anyio.sleep(0.01)
    assert executor.exit is None
    assert is_lock_held(directory.lock)

    await node.head.start()
    delivered = await node.head.until_ended(executor)

    assert delivered == recorded
    assert delivered.code == 7
    await until_left(node, attempt_id())


@pytest.mark.parametrize("code", ["superseded", "attemptOver"])
async def test_a_daemon_that_knows_ends_the_trainer(node: NodeProcess, code: str) -> None:
    executor, trainer = await launched(node)

    await refuse(node, executor, Refused(code, "worker-0/2 took its place"))
    await until_dead(trainer)
    await until_left(node, attempt_id())

    recorded = read_exit_record(node.directory(attempt_id()).exit)
    assert recorded is not None
    assert (recorded.signal, recorded.stop_seen) == (9, "superseded")


@pytest.mark.parametrize(
    "code",
    [
        "unknownJob",
        "stateBehind",
        "wrongCluster",
        "badKey",
        "versionUnknown",
        "attemptTaken",
        "new",
    ],
)
async def test_a_daemon_that_does_not_know_ends_nothing(node: NodeProcess, code: str) -> None:
    executor, trainer = await launched(node)

    await refuse(node, executor, Refused(code, "an empty, older or another store"))
    await node.head.until_reports(3)

    assert is_alive(trainer)
    assert is_lock_held(node.directory(attempt_id()).lock)
    assert len(executor.hellos) == 2


async def test_an_executor_whose_attempt_is_taken_leaves(node: NodeProcess) -> None:
    executor = node.head.expect(attempt_id(), launch_order(*shell("echo never")))
    executor.refused = Refused("attemptTaken", "another executor runs worker-0/1")

    await node.head.launch_expected(attempt_id())
    await node.head.until(lambda: executor.hellos)
    await until_left(node, attempt_id())

    assert not (node.directory(attempt_id()).path / "stdout.log").exists()
    assert read_exit_record(node.directory(attempt_id()).exit) is None


async def test_a_busy_head_is_dialled_again_after_its_time(node: NodeProcess) -> None:
    executor = node.head.expect(attempt_id(), launch_order("true"))
    executor.refused = Refused("busy", "", retry_ms=50)

    await node.head.launch_expected(attempt_id())
    await node.head.until(lambda: len(executor.hellos) >= 3)
    executor.refused = None

    assert (await node.head.until_ended(executor)).code == 0


async def test_a_follower_names_the_leader(node: NodeProcess, tmp_path: Path) -> None:
    async with serving(tmp_path / "leader.sock") as leader:
        taken = leader.expect(attempt_id(), launch_order(*shell("exit 4")))
        follower = node.head.expect(attempt_id(), launch_order("true"))
        follower.refused = Refused("notLeader", "", (leader.address,))

        await node.head.launch_expected(attempt_id())
        ended = await leader.until_ended(taken)

    assert ended.code == 4
    assert len(follower.hellos) == 1


async def test_whoever_waits_for_a_leader_is_sent_to_it_however_often_it_was_refused(
    node: NodeProcess, tmp_path: Path
) -> None:
    executor, trainer = await launched(node)
    async with serving(tmp_path / "leader.sock") as leader:
        taken = leader.expect(attempt_id(), launch_order("true"))
        # Doubled each time, the wait would soon be longer than this test may take.
        await refuse(node, executor, Refused("notLeader", "", (), 10))
        await node.head.until(lambda: len(executor.hellos) >= 12)
        executor.refused = Refused("notLeader", "", (leader.address,))
        await leader.until(lambda: taken.hellos)

    assert is_alive(trainer)


async def test_a_head_that_answers_no_report_is_given_up(node: NodeProcess) -> None:
    executor, trainer = await launched(node)

    executor.is_answered = False
    await node.head.until(lambda: len(executor.hellos) > 1)
    executor.is_answered = True
    reports = len(executor.reports)
    await node.head.until(lambda: len(executor.reports) > reports + 2)

    assert is_alive(trainer)


async def test_orders_of_an_older_term_are_dropped(node: NodeProcess) -> None:
    executor, trainer = await launched(node)

    node.head.term = 0
    executor.leaves_at_once = True
    executor.exit = None
    await node.head.order(executor, Leave())
    hellos = len(executor.hellos)
    await node.head.until(lambda: len(executor.hellos) > hellos)

    assert is_alive(trainer)


@asynccontextmanager
async def cutting_proxy(path: Path, behind: Path, cuts: Iterator[int]) -> AsyncIterator[None]:
    """Relay a socket; each connection is cut after so many bytes, once `cuts` is empty never."""

    async def relay(
        source: asyncio.StreamReader, sink: asyncio.StreamWriter, left: list[int]
    ) -> None:
        with suppress(ConnectionError):
            while left[0] > 0 and (data := await source.read(left[0])):
                left[0] -= len(data)
                sink.write(data)
                await sink.drain()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = [next(cuts, 1 << 30)]
        from_head, to_head = await asyncio.open_unix_connection(behind)
        ways = {
            asyncio.ensure_future(relay(reader, to_head, left)),
            asyncio.ensure_future(relay(from_head, writer, left)),
        }
        _, waiting = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in waiting:
            way.cancel()
        writer.close()
        to_head.close()

    server = await asyncio.start_unix_server(serve, path)
    try:
        yield
    finally:
        server.close()


async def test_a_connection_that_is_cut_anywhere_loses_nothing(
    node: NodeProcess, tmp_path: Path
) -> None:
    cuts = iter((1, 300, 500, 700, 1_000, 1_500))
    async with cutting_proxy(tmp_path / "proxy.sock", node.head.path, cuts):
        executor = node.head.expect(attempt_id(), launch_order(*shell("echo once >> ran; exit 6")))
        await node.head.launch_expected(attempt_id(), heads=(f"unix:{tmp_path / 'proxy.sock'}",))

        ended = await node.head.until_ended(executor)

    assert ended.code == 6
    work = node.directory(attempt_id()).replica_work
    assert (work / "ran").read_text() == "once\n"
    assert {hello.cluster for hello in executor.hellos} == {CLUSTER}


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
async def test_the_verdict_survives_a_full_disk(tmp_path: Path) -> None:
    """Exit written on a full disk; the output that found no room is marked."""
    state = tmp_path / "small"
    state.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "small", state], check=True)
    try:
        async with running_node(state) as node:
            flood = "head -c 16000000 /dev/zero | tr '\\0' x"
            # What the file gives up is printed full as well.
            line = f"{flood}; rm filler; {flood}; echo; exit 5"
            filled = node.head.ship(b"x" * (1 << 20), "filler")
            ends = []
            for number in (1, 2):
                order = launch_order(*shell(line), files=(filled,), log_bytes_max=1 << 30)
                attempt = attempt_id(number)
                executor = await node.head.launch(attempt, order)
                ends.append(await node.head.until_ended(executor))
                assert read_exit_record(node.directory(attempt).exit) == ends[-1]
                await until_left(node, attempt)

            assert ends[0].code == 5
            assert "bytes of output were lost: no room on the disk" in node.text(attempt_id(1))
            # What the first one printed left no room to lay out the second one's file.
            assert ends[1].executor_error.startswith("files:filler")
            assert "No space left" in ends[1].executor_error
    finally:
        subprocess.run(["umount", "-l", state], check=True)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
async def test_what_is_printed_leaves_the_last_room_of_a_disk_alone(tmp_path: Path) -> None:
    """The daemon records on the same disk how jobs end."""
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "small", small], check=True)
    try:
        writer = LogWriter(small, "stdout", file_bytes_max=1 << 30, files_max=2)
        for at_ms in range(128):
            writer.write(b"x" * (64 << 10), at_ms)
        space = os.statvfs(small)
        writer.close(1_000)

        left = space.f_bavail * space.f_frsize
        assert (4 << 20) // 20 - (128 << 10) < left < (4 << 20) // 10
        assert b"bytes of output were lost" in (small / "stdout.log").read_bytes()
    finally:
        subprocess.run(["umount", "-l", small], check=True)
