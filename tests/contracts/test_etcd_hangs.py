"""While etcd hangs the loop turns: a leader's executors, nodes and people are answered."""

from functools import partial
from pathlib import Path
from uuid import uuid4

import anyio
import pytest

from primusd.errors import StoreUnavailableError
from primusd.state.etcd.messages import messages
from tests.services.etcd import Etcd, running_etcd
from tests.services.etcd_heads import Store

WAIT_S = 30
TICK_S = 0.01
TICKS_MIN = 10
"""Of a hundred and more; whoever blocks the loop for a try lets one or two through."""


def test_no_call_of_etcd_holds_up_the_loop(tmp_path: Path, version: str) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await anyio.sleep(TICK_S)
            ticks += 1

    async def play(etcd: Etcd) -> None:
        nonlocal ticks
        with anyio.fail_after(WAIT_S):
            async with (
                Store(etcd.endpoints, uuid4().hex, ttl_ms=60_000) as store,
                anyio.create_task_group() as group,
            ):
                request = messages()["RangeRequest"](key=store.layout.lane)
                await store.lead()
                for member in etcd.members:
                    member.pause()
                group.start_soon(tick)
                for act in (
                    partial(store.client.keep_alive, store.leadership.lease, within_s=1.5),
                    partial(store.client.call, "KV", "Range", request, within_s=1.5),
                ):
                    ticks = 0
                    with pytest.raises(StoreUnavailableError):
                        await act()
                    assert ticks >= TICKS_MIN
                group.cancel_scope.cancel()

    with running_etcd(tmp_path, version=version) as etcd:
        anyio.run(play, etcd)
