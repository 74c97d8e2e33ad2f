"""Every part of a daemon, built from the configuration; nothing runs yet."""

import shutil
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import msgspec
from aiohttp import web
from msgspec import Struct

from primusd import __version__
from primusd.api.app import build
from primusd.api.auth import Access
from primusd.api.context import Context
from primusd.api.executor_routes import add_executor_routes
from primusd.api.executors import ExecutorRegistry
from primusd.api.launch_orders import OrderSettings
from primusd.api.live_values import LiveValues
from primusd.api.log_copies import LogCopies, copies_folder
from primusd.api.nodes import NodeRegistry, add_node_routes
from primusd.api.shared_blobs import SharedBlobs
from primusd.clock import Clock
from primusd.config import Loaded
from primusd.datafeed.sources.listing import Listings
from primusd.effects import Effects
from primusd.engine import Engine
from primusd.errors import PrimusdError
from primusd.executor.protocol import Bootstrap
from primusd.job.ids import AttemptId
from primusd.keys import job_key
from primusd.launchers.local import LocalLauncher
from primusd.liveness import Liveness
from primusd.mirroring import Mirror
from primusd.startup import Prepared, all_heads, blobs_folder, ca_of, shared_blobs_of
from primusd.state.archive import History
from primusd.state.election import Heads, News
from primusd.state.figures import StoreFigures
from primusd.state.journal import Loaded as Stored
from primusd.sweep import Strays
from primusd.views.live import Live
from primusd.views.rendering import Renderer
from primusd.warm_copy import WarmCopy
from primusd.watch import Watch

STUCK_MS = 30_000
"""A turn that takes so long hangs on its disk: `/healthz` says so, and the watchdog bites."""


class Parts(Struct, frozen=True):
    """What a daemon runs."""

    engine: Engine
    effects: Effects
    watch: Watch
    liveness: Liveness
    nodes: NodeRegistry
    executors: ExecutorRegistry
    app: web.Application
    mirror: Mirror


class Around(Struct, frozen=True):
    """What parts ask the daemon for while they run."""

    archive: History
    """Read by the API."""
    config: Callable[[], Loaded]
    """The configuration in force."""
    access: Callable[[], Access]
    """Who may come in over TCP."""
    members: Callable[[], Heads]
    """The heads of the cluster."""
    news: News
    """Told when other heads lead, or are there, than before."""
    copy: WarmCopy | None
    """What is kept of another head's work."""
    is_leader: Callable[[], bool]
    """Whether the parts are at work: others are turned away before."""
    resign: Callable[[], Awaitable[None]]
    """Lets another head lead."""
    load: Callable[[], Awaitable[Stored]]
    """Reads all that the store holds."""
    figures: Callable[[], Awaitable[StoreFigures]]
    """Measures the store."""
    measured: Callable[[], StoreFigures | None]
    """The store as last measured."""
    refusal: Callable[[], PrimusdError | None]
    """Why the store takes no new job."""


def build_parts(prepared: Prepared, engine: Engine, clock: Clock, around: Around) -> Parts:
    """Return the parts around an engine.

    Args:
        prepared: Directories, addresses, secret.
        engine: Not running yet, so that all of them hear its first word.
        clock: Of this host.
        around: What they ask for.
    """
    config = around.config
    cluster_id, secret = prepared.directory.cluster_id, prepared.directory.secret
    strays, live = Strays(), LiveValues(clock)
    heads = partial(_heads, prepared, around.members)
    liveness = Liveness(engine, clock)
    launcher = LocalLauncher(lambda: engine.term)
    nodes = NodeRegistry(
        engine,
        launcher,
        live,
        clock,
        cluster_id=cluster_id,
        secret=secret,
        heads=partial(_heads_for_nodes, prepared, around.members),
    )
    executors = ExecutorRegistry(
        engine,
        liveness,
        live,
        cluster_id=cluster_id,
        secret=secret,
        heads=heads,
        settings=lambda: _order_settings(config(), secret),
        copies=LogCopies(prepared.directory.path),
        strays=strays,
    )
    effects = Effects(
        engine,
        {launcher.name: launcher},
        bootstrap=partial(_bootstrap, cluster_id, heads, secret, lambda: ca_of(config())),
        list_piece=Listings().piece,
        drop_record=partial(_drop_record, prepared.directory.path),
        strays=strays,
    )
    context = _context(
        prepared,
        engine,
        clock,
        around,
        live=live,
        launcher=launcher,
        strays=strays,
        executors=executors,
        heads=heads,
    )
    mirror = Mirror(lambda: engine.world, clock, live.partitions_measured)
    app = build(context)
    add_executor_routes(app, executors)
    add_node_routes(app, nodes)
    return Parts(engine, effects, context.watch, liveness, nodes, executors, app, mirror)


def _context(
    prepared: Prepared,
    engine: Engine,
    clock: Clock,
    around: Around,
    *,
    live: LiveValues,
    launcher: LocalLauncher,
    strays: Strays,
    executors: ExecutorRegistry,
    heads: Callable[[], tuple[str, ...]],
) -> Context:
    config = around.config
    keep_ms = config().config.limits.replay_watch_ms
    shown = partial(_shown, engine, live)
    shared = shared_blobs_of(prepared)
    return Context(
        engine=engine,
        watch=Watch(engine, clock, Renderer(engine.at_ms, shown), keep_ms=keep_ms),
        config=config,
        access=around.access,
        clock=clock,
        cluster_id=prepared.directory.cluster_id,
        secret=prepared.directory.secret,
        version=__version__,
        started_ms=clock.wall_ms(),
        state=prepared.directory.path,
        blobs=blobs_folder(prepared),
        shared_blobs=None if shared is None else SharedBlobs(shared),
        archive=around.archive,
        launchers={launcher.name: launcher},
        strays=strays,
        heads=heads,
        members=around.members,
        news=around.news,
        copy=around.copy,
        is_leader=around.is_leader,
        resign=around.resign,
        ca=lambda: ca_of(config()),
        live=shown,
        ask=executors.ask,
        is_connected=lambda attempt: attempt in executors.connected,
        is_healthy=lambda: is_healthy(engine),
        load=around.load,
        figures=around.figures,
        measured=around.measured,
        refusal=around.refusal,
    )


def _heads(prepared: Prepared, members: Callable[[], Heads]) -> tuple[str, ...]:
    return all_heads(prepared, members())


def _heads_for_nodes(prepared: Prepared, members: Callable[[], Heads]) -> tuple[str, ...]:
    """Return what nodes are told: nothing of a lone head, which their own file names best."""
    return _heads(prepared, members) if len(members().members) > 1 else ()


def _shown(engine: Engine, live: LiveValues) -> Live:
    """Return what documents show beside the state, as of now."""
    return msgspec.structs.replace(
        live.live(), journal_lag_ms=engine.journal_lag_ms(), clock_skew_ms=engine.skew_ms()
    )


def is_healthy(engine: Engine) -> bool:
    """Return whether the loop turns: no write hangs, and no store is out of reach, for long."""
    return engine.busy_ms() < STUCK_MS


def _order_settings(loaded: Loaded, secret: bytes) -> OrderSettings:
    logs = loaded.config.logs
    return OrderSettings(
        cluster=loaded.config.cluster,
        version=__version__,
        log_bytes_max=logs.attempt_file_bytes,
        log_files_max=logs.attempt_files,
        secret=secret,
    )


def _bootstrap(
    cluster_id: str,
    heads: Callable[[], tuple[str, ...]],
    secret: bytes,
    ca: Callable[[], str | None],
    attempt: AttemptId,
) -> Bootstrap:
    return Bootstrap(
        cluster=cluster_id,
        attempt=attempt,
        heads=heads(),
        key=job_key(secret, attempt.job),
        ca=ca(),
    )


def _drop_record(state: Path, job: str) -> None:
    """Remove the folders of a job whose record went: working directories, logs and their copies."""
    for folder in (state, copies_folder(state)):
        shutil.rmtree(folder / "jobs" / job, ignore_errors=True)
