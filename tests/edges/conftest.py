"""Fixtures of the edges: a real node that talks to a scripted head."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.edges.node_process import NodeProcess, running_node


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[NodeProcess]:
    async with running_node(tmp_path) as running:
        yield running
