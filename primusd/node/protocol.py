"""What nodes and the daemon say to each other (docs/protocol.md §9); pure values."""

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from primusd.executor.protocol import Exit, Refused, Usage
from primusd.job.ids import AttemptId


class NodeHello(Struct, frozen=True, array_like=True, tag="nodeHello"):
    """The first message of a node."""

    speaks: tuple[int, int]
    cluster: str
    node: str
    """Host name unless configured."""
    boot_id: str
    version: str
    cpu_milli: int
    memory_bytes: int
    gpus: tuple[tuple[str, str, int], ...]
    """Uuid, model, memory bytes."""
    port_range: tuple[int, int]
    labels: Mapping[str, str]
    home: str = ""
    """Its host and state directory, by which two nodes that share a file are told apart; "" not
    known."""


class NodeAttempt(Struct, frozen=True, array_like=True):
    """An attempt that has a directory on the node."""

    attempt: AttemptId
    alive: bool
    """Its lock is held."""
    exit: Exit | None
    """From exit.json."""
    error: str = ""
    """Could not be forked: an ExecutorFailed, never permanent."""
    boot_id: str = ""
    """Of the boot in which its lock was last taken; "" not known."""


class NodeReport(Struct, frozen=True, array_like=True, tag="nodeReport"):
    """All that is so on a node."""

    seq: int
    orders_term: int
    """Of the newest orders it has carried out; 0, 0 none."""
    orders_revision: int
    attempts: tuple[NodeAttempt, ...]
    """Every attempt directory it has that is not released, from the moment its lock is held or
    its fork failed.
    """
    usage: Usage | None = None
    memory_free_bytes: int = -1
    disk_free_bytes: int = -1
    jobs: tuple[str, ...] = ()
    """Uids of jobs that have a folder here; with each sample of the host, () in between."""
    load_cpu_milli: int = -1
    """With each sample: what others use of that which this node offers; -1 not known."""
    load_memory_bytes: int = -1


class NodeStart(Struct, frozen=True, array_like=True):
    """An executor that should be alive here."""

    bootstrap: bytes
    """JSON of Bootstrap."""
    attempt: AttemptId
    cpu_milli: int
    """0 = no limit."""
    memory_bytes: int
    gpus: tuple[str, ...]


class NodeOrders(Struct, frozen=True, array_like=True, tag="nodeOrders"):
    """All that should be so on a node."""

    report: int
    revision: int
    term: int
    run: tuple[NodeStart, ...]
    """All that should be alive here; what is alive and missing is left alone; what has a
    directory is never forked again.
    """
    kill: tuple[AttemptId, ...]
    """End it now, whole cgroup or session."""
    release: tuple[AttemptId, ...]
    """End what lives of it, then remove all but logs and exit record; Ended for 10 s, or Gone
    and still listed.
    """
    beat_ms: int
    drop: tuple[str, ...] = ()
    """Jobs among those it reported whose records were dropped: remove their folders."""
    heads: tuple[str, ...] = ()
    """All to dial from now on; () as before."""


class NodeWelcome(Struct, frozen=True, array_like=True, tag="nodeWelcome"):
    """The answer to a node's hello that is taken."""

    version: int


NodeMessage = NodeHello | NodeReport
DaemonToNodeMessage = NodeWelcome | Refused | NodeOrders

encode = msgspec.msgpack.Encoder().encode
decode_node_message = msgspec.msgpack.Decoder(NodeMessage).decode
decode_daemon_message = msgspec.msgpack.Decoder(DaemonToNodeMessage).decode
