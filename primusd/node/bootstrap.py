"""How a node knows its daemon: a file that the daemon writes; and the lock that says it runs."""

import fcntl
import os
import signal
from pathlib import Path

import msgspec
from msgspec import Struct

from primusd.executor.directory import Holder, read_holder, take_lock
from primusd.executor.processes import boot_id, is_process, signal_process, started_ticks

BOOTSTRAP_FILE = "node.json"
LOCK_FILE = "node.lock"


class NodeBootstrap(Struct, frozen=True):
    """All that a node needs; JSON in a file of mode 0600."""

    name: str
    """Of the node; the key is made for it."""
    cluster: str
    """Id of the cluster."""
    heads: tuple[str, ...]
    key: str
    ca: str | None = None


def read_bootstrap(path: Path) -> NodeBootstrap:
    """Return what the file says.

    Raises:
        OSError: It is not there or may not be read.
        msgspec.DecodeError: It is no such file.
    """
    return msgspec.json.decode(path.read_bytes(), type=NodeBootstrap)


def hold_node_lock(state: Path) -> int | None:
    """Take the lock of the one node of a state directory; None: a node runs already."""
    pid = os.getpid()
    return take_lock(state / LOCK_FILE, Holder(pid, started_ticks(pid), boot_id()))


def node_holder(state: Path) -> Holder | None:
    """Return the node that runs on a state directory; None when none does."""
    try:
        descriptor = os.open(state / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return read_holder(state / LOCK_FILE)
    finally:
        os.close(descriptor)
    return None


def end_node(state: Path) -> bool:
    """Ask the node of a state directory to end; return whether there was one."""
    holder = node_holder(state)
    if holder is None or not is_process(holder.pid, holder.started_ticks):
        return False
    return signal_process(holder.pid, holder.started_ticks, signal.SIGTERM)
