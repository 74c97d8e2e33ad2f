"""What the HTTP application is built around: the daemon's parts, made once at its start."""

import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Protocol

import anyio.lowlevel
from msgspec import Struct

from primusd.api.auth import Access
from primusd.api.shared_blobs import SharedBlobs
from primusd.clock import Clock
from primusd.config import Loaded
from primusd.engine import Engine
from primusd.errors import NotFoundError, PrimusdError
from primusd.executor.protocol import Answer
from primusd.job.ids import AttemptId
from primusd.launchers.base import Launcher
from primusd.state.archive import History
from primusd.state.election import Heads, News
from primusd.state.figures import StoreFigures
from primusd.state.journal import Loaded as Stored
from primusd.sweep import Strays
from primusd.views.live import NOTHING_LIVE, Live
from primusd.warm_copy import WarmCopy
from primusd.watch import Watch


class AskExecutor(Protocol):
    """How a live executor is asked for stacks or for a part of its logs."""

    async def __call__(
        self, attempt: AttemptId, kind: str, *, path: str = "", offset: int = 0, byte_count: int = 0
    ) -> Answer:
        """Return what it answered; `error` says why it cannot.

        Raises:
            NotFoundError: It is not connected, or did not answer in time.
        """
        ...


async def ask_nobody(
    attempt: AttemptId, kind: str, *, path: str = "", offset: int = 0, byte_count: int = 0
) -> Answer:
    """Answer for a daemon that has no executors.

    Raises:
        NotFoundError: Always.
    """
    raise NotFoundError(f"the executor of {attempt.label} is not connected")


async def load_nothing() -> Stored:
    """Answer for a daemon that keeps its journal in memory alone."""
    return Stored({}, (), 0, 0)


async def measure_nothing() -> StoreFigures:
    """Answer for the same."""
    return StoreFigures("memory", "memory")


class Context(Struct, frozen=True):
    """The daemon's parts, as the application sees them."""

    engine: Engine
    watch: Watch
    config: Callable[[], Loaded]
    """The configuration in force; SIGHUP replaces it."""
    access: Callable[[], Access]
    """Who may come in over TCP; SIGHUP replaces it."""
    clock: Clock
    cluster_id: str
    secret: bytes
    """Of the cluster: keys of jobs and nodes are made from it."""
    version: str
    started_ms: int
    """Wall clock."""
    state: Path
    blobs: Path
    """Files by content: `<blobs>/sha256/<hex>`; where they are shared elsewhere, copies of them."""
    archive: History
    launchers: Mapping[str, Launcher]
    strays: Strays
    """What launchers list and the store does not know."""
    heads: Callable[[], tuple[str, ...]]
    """Addresses as executors and nodes dial them: this daemon's, the nearest first, then others."""
    ca: Callable[[], str | None] = lambda: None
    """What they trust it by, PEM; None where no address is secured."""
    live: Callable[[], Live] = lambda: NOTHING_LIVE
    """What the edges know and the journal does not."""
    ask: AskExecutor = ask_nobody
    """Asks a live executor."""
    is_connected: Callable[[AttemptId], bool] = lambda _attempt: True
    """Whether an executor could be asked now."""
    is_leader: Callable[[], bool] = lambda: True
    """Whether this daemon leads and all its parts work."""
    members: Callable[[], Heads] = Heads
    """The heads of the cluster; empty where there is one only."""
    news: News = News()
    """Told when other heads lead, or are there, than before; and when this one begins to lead."""
    copy: WarmCopy | None = None
    """What is kept of another head's work; None: no other one may lead."""
    resign: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint
    """Lets another head lead; this one stands by from then on."""
    is_healthy: Callable[[], bool] = lambda: True
    """Whether the loop turns; `/healthz`."""
    shared_blobs: SharedBlobs | None = None
    """Where shipped files are kept for all heads; None: in `blobs`."""
    load: Callable[[], Awaitable[Stored]] = load_nothing
    """Reads all that the store holds, as of one revision."""
    figures: Callable[[], Awaitable[StoreFigures]] = measure_nothing
    """Measures the store."""
    measured: Callable[[], StoreFigures | None] = lambda: None
    """The store as last measured; None: not yet, or nothing bounds it but the disk."""
    refusal: Callable[[], PrimusdError | None] = lambda: None
    """Why the store takes no new job; None: it does."""
    pid: int = os.getpid()
