"""How a node knows its daemon: a file that the daemon writes; and the lock that says it runs."""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
from msgspec import Struct

from primusd.executor.directory import Holder, read_holder, take_lock
from primusd.executor.processes import boot_id, is_process, signal_process, started_ticks

BOOTSTRAP_FILE = "node.json"
LOCK_FILE = "node.lock"
LOG_FILE = "node.log"
LOG_BYTES_MAX = 16 << 20


class NodeBootstrap(Struct, frozen=True):
    """All that a node needs; JSON in a file of mode 0600."""

    name: str
    """Of the node; the key is made for it."""
    cluster: str
    """Id of the cluster."""
    heads: tuple[str, ...]
    key: str
    ca: str | None = None


def write_bootstrap(state: Path, bootstrap: NodeBootstrap) -> Path:
    """Write the file by which the node of this host finds its daemon; return where it is."""
    path = state / BOOTSTRAP_FILE
    part = path.with_suffix(".part")
    part.unlink(missing_ok=True)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(bootstrap))
    part.rename(path)
    return path


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


def start_detached(state: Path, arguments: tuple[str, ...] = ()) -> int:
    """Start a node that outlives this process; return its pid.

    Args:
        state: Its state directory; its log goes to `node.log` there.
        arguments: Further flags of `primusd node`.
    """
    command = (sys.executable, "-m", "primusd", "node", "--state-dir", str(state), *arguments)
    path = state / LOG_FILE
    if path.exists() and path.stat().st_size > LOG_BYTES_MAX:
        path.replace(path.with_suffix(".log.1"))
    with path.open("ab") as log_file:
        process = subprocess.Popen(  # noqa: S603 ourselves
            command,
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=log_file,
            start_new_session=True,
            cwd=state,
        )
    # It is never waited for here; `Popen` would warn of that.
    process.returncode = 0
    return process.pid


def end_node(state: Path) -> bool:
    """Ask the node of a state directory to end; return whether there was one."""
    holder = node_holder(state)
    if holder is None or not is_process(holder.pid, holder.started_ticks):
        return False
    return signal_process(holder.pid, holder.started_ticks, signal.SIGTERM)
