"""The node that a daemon sees to: started when it can be, again after its death, never a zombie."""

# ruff: noqa: ASYNC110  a lock tells nobody

import os
import signal
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from primusd.executor.processes import stat_fields
from primusd.local_node import keep_node, local_node_pid, wait_for_end
from primusd.node.bootstrap import end_node

pytestmark = pytest.mark.anyio
WAIT_S = 20.0


async def until(holds: Callable[[], bool]) -> None:
    with anyio.fail_after(WAIT_S):
        while not holds():
            await anyio.sleep(0.02)


async def test_a_node_is_started_once_there_is_room_and_again_after_its_death(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: keep_node(state, look_s=0.02))
        said = ""
        with anyio.fail_after(WAIT_S):
            while "node.start_failed" not in said:
                await anyio.sleep(0.02)
                said += capfd.readouterr().out

        state.mkdir()
        await until(lambda: local_node_pid(state) > 0)
        first = local_node_pid(state)
        os.kill(first, signal.SIGKILL)
        await until(lambda: local_node_pid(state) not in (0, first))
        await until(lambda: stat_fields(first) is None)

        tasks.cancel_scope.cancel()
    end_node(state)
    assert await wait_for_end(state)
