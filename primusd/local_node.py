"""The node of this host: seen to by the daemon where no unit does, and never ended with it."""

from pathlib import Path

import anyio
import structlog

from primusd.node.bootstrap import node_holder, start_detached

log = structlog.get_logger()

LOOK_S = 2.0
"""How often it is looked whether the node's lock is held; one that starts takes half a second."""
START_S = 10.0
END_S = 15.0
_AGAIN_S = 0.05


async def keep_node(state: Path) -> None:
    """See to it that a node runs on the state directory, until cancelled."""
    while True:
        if node_holder(state) is None:
            log.info("node.started", pid=start_detached(state))
            with anyio.move_on_after(START_S):
                while node_holder(state) is None:  # noqa: ASYNC110 - a lock tells nobody.
                    await anyio.sleep(_AGAIN_S)
        await anyio.sleep(LOOK_S)


def local_node_pid(state: Path) -> int:
    """Return the process of the node that runs there; 0 none."""
    holder = node_holder(state)
    return holder.pid if holder is not None else 0


async def wait_for_end(state: Path) -> bool:
    """Wait until no node runs there; return False when it takes too long."""
    with anyio.move_on_after(END_S):
        while node_holder(state) is not None:  # noqa: ASYNC110 - a lock tells nobody.
            await anyio.sleep(_AGAIN_S)
        return True
    return False
