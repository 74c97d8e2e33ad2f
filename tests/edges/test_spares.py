"""Spare executors: taken by starts, needed by none, and gone with the node that forked them."""

# ruff: noqa: ASYNC220, ASYNC240  a test may block its loop
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import msgspec
import pytest

from primusd.config.settings import LocalLauncher
from primusd.errors import ConfigError
from primusd.node.main import read_settings, spare_count
from tests.edges.node_process import NodeProcess, running_node, until_dead, until_file
from tests.edges.scripted_head import attempt_id, launch_order, shell

pytestmark = pytest.mark.anyio

COUNT = 2
WAIT_S = 30.0
REFILLING = """
import os, sys, time
from pathlib import Path
from primusd.node import spares, zygote

spares.FIRST_S = spares.AFTER_START_S = spares.BETWEEN_S = spares.AFTER_END_S = 0.01
warm = zygote.start_zygote(spare_count=2)
print(warm.pid, flush=True)
sys.stdin.read()
warm.close()
"""

REHEARSING_FOR_EVER = """
import os, sys, time
from pathlib import Path
import anyio
from primusd.node import forked, spares, zygote

def rehearse():
    print(os.getpid(), flush=True)
    time.sleep(3600)

forked.rehearse = rehearse
spares.FIRST_S, spares.AFTER_START_S = 0.01, 3600
warm = zygote.start_zygote(spare_count=1)
sys.stdin.readline()
print(repr(anyio.run(lambda: warm.fork_executor(Path(sys.argv[1]), within_s=10.0))), flush=True)
warm.close()
"""
REHEARSAL = """
from primusd.executor import rehearsal

# Less than the 10 s that who dialled waits for a head that does not close.
rehearsal.REHEARSAL_S = 9.0
rehearsal.rehearse()
"""


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[NodeProcess]:
    async with running_node(tmp_path, "--spare-executors", str(COUNT)) as running:
        yield running


def named(name: str, parent: int) -> list[int]:
    """Return the children of a process that go by a name."""
    found = []
    for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        try:
            if Path(f"/proc/{pid}/comm").read_text().strip() == name:
                found.append(int(pid))
        except OSError:
            continue
    return found


async def until_spares(warm: int, count: int = COUNT) -> list[int]:
    """Return the spares below a warm process once so many are ready, each with its starter."""
    with anyio.fail_after(WAIT_S):
        while True:
            found = named("primus-spare", warm)
            if len(found) == count and all(named("primus-starter", one) for one in found):
                return found
            await anyio.sleep(0.02)


def warm_of(node: NodeProcess) -> int:
    assert node.process is not None
    (warm,) = named("primus-warm", node.process.pid)
    return warm


async def test_a_start_takes_a_spare_and_one_too_many_is_forked(node: NodeProcess) -> None:
    spares = await until_spares(warm_of(node))

    attempts = [attempt_id(index=index) for index in range(COUNT + 2)]
    for attempt in attempts:
        await node.head.launch(attempt, launch_order(*shell("pwd; exec sleep 600")))
    said = [await until_file(node.directory(attempt).path / "stdout.log") for attempt in attempts]

    pids = [node.head.executors[attempt].hellos[0].pid for attempt in attempts]
    assert set(pids[:COUNT]) == set(spares)
    assert not set(pids[COUNT:]) & set(spares)
    assert said == [f"{node.directory(attempt).replica_work}\n" for attempt in attempts]
    for attempt, pid in zip(attempts, pids, strict=True):
        assert Path(f"/proc/{pid}/comm").read_text() == "primus-executor\n"
        assert Path(f"/proc/{pid}/fd/2").readlink() == node.directory(attempt).executor_log
        assert f'"job": "{attempt.job}"' in node.text(attempt, "executor.log")


async def test_no_spare_outlives_its_node(node: NodeProcess) -> None:
    warm = warm_of(node)
    spares = await until_spares(warm)
    starters = [pid for spare in spares for pid in named("primus-starter", spare)]
    attempt = attempt_id()
    await node.head.launch(attempt, launch_order(*shell("echo $$; exec sleep 600")))
    trainer = int(await until_file(node.directory(attempt).path / "stdout.log"))
    (taken,) = {node.head.executors[attempt].hellos[0].pid}

    await node.end(signal.SIGKILL)

    for pid in {warm, *spares, *starters} - {taken, trainer}:
        await until_dead(pid)
    assert Path(f"/proc/{taken}/comm").read_text() == "primus-executor\n"


async def test_a_spare_that_was_killed_is_not_missed(node: NodeProcess) -> None:
    for spare in await until_spares(warm_of(node)):
        os.kill(spare, signal.SIGKILL)
        await until_dead(spare)
    attempt = attempt_id()
    await node.head.launch(attempt, launch_order(*shell("echo $$; exec sleep 600")))

    await until_file(node.directory(attempt).path / "stdout.log")
    found = node.head.node_attempt(attempt)
    assert found is None or not found.error


async def test_spares_that_are_gone_are_replaced() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", REFILLING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        warm = int(process.stdout.readline())
        before = await until_spares(warm)

        os.kill(before[0], signal.SIGKILL)
        await until_dead(before[0])
        after = await until_spares(warm)
        process.stdin.close()

        assert before[1] in after
        assert before[0] not in after
        for pid in after:
            await until_dead(pid)


async def test_a_start_does_not_wait_for_a_spare_that_rehearses(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", REHEARSING_FOR_EVER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        spare = int(process.stdout.readline())
        process.stdin.write("\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        os.kill(spare, signal.SIGKILL)

    # The executor holds its lock, and finds then that nobody has written its bootstrap.
    assert answer == "''\n"
    assert "bootstrap.unreadable" in await until_file(tmp_path / "executor.log")


def test_a_rehearsal_ends_by_itself() -> None:
    subprocess.run([sys.executable, "-c", REHEARSAL], check=True, timeout=WAIT_S)


def test_spares_take_a_hundredth_of_the_memory_unless_told_otherwise(tmp_path: Path) -> None:
    local = LocalLauncher(memory_bytes=5 << 30)

    assert spare_count(local) == 5
    assert spare_count(LocalLauncher(memory_bytes=1 << 40)) == 16
    assert spare_count(msgspec.structs.replace(local, spare_executors=0)) == 0
    words = ["--state-dir", str(tmp_path), "--spare-executors"]
    assert read_settings([*words, "40"]).local.spare_executors == 40
    with pytest.raises(ConfigError, match=r"--spare-executors is 65, must be .* from 0 to 64"):
        read_settings([*words, "65"])
