"""The node of this host: seen to by the daemon where no unit does, and never ended with it."""

import os
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


async def keep_node(state: Path, *, look_s: float = LOOK_S) -> None:
    """See to it that a node runs on the state directory, until cancelled.

    A host that cannot start one now (no memory, no room, no directory) is asked again.
    """
    children: set[int] = set()
    while True:
        children = {pid for pid in children if not _has_ended(pid)}
        if node_holder(state) is None:
            try:
                pid = start_detached(state)
            except OSError as error:
                log.warning("node.start_failed", text=str(error))
            else:
                log.info("node.started", pid=pid)
                if not await _has_died_early(state, pid):
                    children.add(pid)
        await anyio.sleep(look_s)


async def _has_died_early(state: Path, pid: int) -> bool:
    """Wait until a node that was started holds its lock; return True when it ended before."""
    with anyio.move_on_after(START_S):
        while node_holder(state) is None:
            if _has_ended(pid):
                return True
            await anyio.sleep(_AGAIN_S)
    return False


def _has_ended(pid: int) -> bool:
    """Return whether a child is over; it then leaves the table of processes."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


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
