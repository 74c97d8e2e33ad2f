"""The daemon: keeps every part running, hears signals, and stops in order; knows them all."""

import contextlib
import faulthandler
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from functools import partial

import anyio
import anyio.to_thread
import structlog
from aiohttp import web
from anyio.abc import TaskGroup, TaskStatus

from primusd import __version__, config, logs, systemd
from primusd.api.blob_room import BLOB_ROOM
from primusd.api.log_copies import copies_folder
from primusd.clock import SystemClock
from primusd.declaring import declarations
from primusd.engine import Engine, EngineSettings
from primusd.errors import (
    ConfigError,
    NewerSchemaError,
    NotLeaderError,
    PrimusdError,
    StateDirectoryInUseError,
    StoreFullError,
    StoreUnavailableError,
)
from primusd.flags import parse
from primusd.job.events import CancelRequested, JobSubmitted
from primusd.job.model import replicas_of
from primusd.job.phases import AttemptPhase
from primusd.keys import node_key
from primusd.listeners import AddressInUseError
from primusd.local_node import keep_node, local_node_pid, wait_for_end
from primusd.node.bootstrap import NodeBootstrap, end_node, write_bootstrap
from primusd.node.retention import keep_within
from primusd.parts import Around, Parts, build_parts, is_healthy
from primusd.records import ADMISSION, Event, Proposal
from primusd.refill import refilled
from primusd.sampling import sample
from primusd.startup import (
    Prepared,
    access_of,
    all_heads,
    ca_of,
    clean_run,
    history_of,
    load_chain,
    load_configuration,
    prepare,
    remove_state,
    start_lines,
    take_shared,
    tls_of,
)
from primusd.state.ballast import Ballast
from primusd.state.election import Heads, others_once_ready
from primusd.state.journal import Journal
from primusd.stores import Store, opened_store
from primusd.warm_copy import WarmCopy

log = structlog.get_logger()

EXIT_STOPPED, EXIT_FAILED, EXIT_CONFIG, EXIT_IN_USE, EXIT_NEWER, EXIT_ADDRESS = range(6)
CANCEL_S = 60.0
"""How long an orderly stop of an ephemeral daemon waits for its jobs."""
HAND_OVER_S = 5.0
"""How long a leader that is to stop leads on for others that still read what there is."""
CLOSE_S = 5.0
BALLAST_AGAIN_S = 5.0
REFILL_ENTRIES_MAX = 2_000
"""How many archived entries are read at a start, for watches that go on."""
LOOK_S = 0.05
LEAD_AGAIN_S = 0.1
NEWER_AGAIN_S = 10.0
STANDS_BY = "stands by in"
OVER = frozenset({AttemptPhase.ENDED, AttemptPhase.GONE})


def main(words: Sequence[str]) -> int:
    """Run the daemon to its end; return its exit code."""
    flags = parse(words)
    try:
        loaded = load_configuration(flags, os.environ)
        if flags.check_config:
            sys.stdout.write(config.check_text(loaded))
            return EXIT_STOPPED
        logs.configure(loaded.config.logs.level, loaded.config.logs.format, stream=sys.stderr)
        if flags.config is not None:
            # The node of this host reads its own section of the same file.
            os.environ["PRIMUSD_CONFIG"] = str(flags.config.absolute())
        prepared = prepare(flags, loaded, os.environ)
    except PrimusdError as error:
        return failed(error)
    return run(prepared)


def run(prepared: Prepared) -> int:
    """Run a daemon that holds its directories; return its exit code."""
    code = EXIT_FAILED
    try:
        code = anyio.run(Daemon(prepared).run)
    except* PrimusdError as group:
        code = failed(next(leaves(group)))
    finally:
        clean_run(prepared)
        prepared.directory.close()
    if prepared.is_ephemeral and code == EXIT_STOPPED:
        remove_state(prepared)
    return code


def say(text: str) -> None:
    """Print for a person; nobody may listen any more."""
    with contextlib.suppress(OSError):
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


def failed(error: PrimusdError) -> int:
    """Tell a failure to a person, and return the exit code it leads to."""
    if isinstance(error, ConfigError) and error.errors:
        text = config.problem_text(error)
    else:
        text = f"error: {error.message}"
    hint = f"\n  {error.hint}" if error.hint else ""
    sys.stderr.write(f"{text}{hint}\n")
    match error:
        case ConfigError():
            return EXIT_CONFIG
        case StateDirectoryInUseError():
            return EXIT_IN_USE
        case NewerSchemaError():
            return EXIT_NEWER
        case AddressInUseError():
            return EXIT_ADDRESS
        case _:
            return EXIT_FAILED


def leaves(group: BaseExceptionGroup[PrimusdError]) -> Iterator[PrimusdError]:
    """Yield the errors of a group, however deep they are nested."""
    for one in group.exceptions:
        if isinstance(one, BaseExceptionGroup):
            yield from leaves(one)
        else:
            yield one


class Daemon:
    """One life of the daemon."""

    def __init__(self, prepared: Prepared) -> None:
        self._prepared = prepared
        self._loaded = prepared.loaded
        self._access = access_of(prepared.loaded, prepared.token)
        self._state = prepared.directory.path
        self._ballast = Ballast(self._state / "ballast")
        self._archive = history_of(prepared)
        self._clock = SystemClock()
        self._tls = tls_of(prepared.loaded)
        self._parts: Parts | None = None
        """Of this leadership, or of the one that we wait for; None before there is a store."""
        self._store: Store | None = None
        self._leads = False
        self._said = ""
        self._told_to_stop = anyio.Event()
        self._told_again = anyio.Event()

    async def run(self) -> int:
        """Lead and serve, or stand by, until told to stop; stop in order."""
        self._ballast.take()
        async with anyio.create_task_group() as group:
            await group.start(self._hear_signals)
            group.start_soon(self._live)
            await self._told_to_stop.wait()
            await self._end()
            group.cancel_scope.cancel()
        return EXIT_STOPPED

    async def _live(self) -> None:
        """Lead; of a store that other heads share, again whenever that was lost."""
        async with opened_store(self._prepared, self._archive, self._ballast) as store:
            self._store = store
            await anyio.to_thread.run_sync(take_shared, self._prepared)
            while True:
                try:
                    await self._lead(store)
                except* (NotLeaderError, StoreUnavailableError) as group:
                    if not store.is_shared:
                        raise
                    log.warning("leadership.ended", text=next(leaves(group)).message)
                except* NewerSchemaError as group:
                    # Others may lead: this one waits until it was started anew as a newer version.
                    if not store.is_shared:
                        raise
                    log.error("leadership.refused", text=next(leaves(group)).message)  # noqa: TRY400
                    await anyio.sleep(NEWER_AGAIN_S)
                await anyio.sleep(LEAD_AGAIN_S)

    async def _lead(self, store: Store) -> None:
        """Wait until we lead, and do so until that is over: nothing of it is kept in memory."""
        parts = self._parts = self._build(store)
        try:
            async with anyio.create_task_group() as group:
                if store.is_shared:
                    await self._open(group, parts, store)
                    if store.heads().leader is not None:
                        self._say(STANDS_BY)
                    systemd.notify_ready("stands by")
                await self._start(group, parts, store)
                if not store.is_shared:
                    await self._open(group, parts, store)
                self._leads = True
                store.news.tell()
                self._say("leads")
                systemd.notify_ready(f"leads, term {parts.engine.term}")
                await anyio.sleep_forever()
        finally:
            self._leads = False

    def _build(self, store: Store) -> Parts:
        config_now = self._loaded.config
        copy = None if store.followed is None else WarmCopy(store.followed, store.tell_ready)
        engine = Engine(
            store.journal,
            store.election,
            self._clock,
            settings=EngineSettings(
                cluster_id=self._prepared.directory.cluster_id,
                version=__version__,
                ack_linger_ms=config_now.store.ack_linger_ms or 0,
                snapshot_every_ms=config_now.store.snapshot_every_ms,
            ),
            admits=partial(self._refusal, store),
            copy=copy,
        )
        return build_parts(
            self._prepared,
            engine,
            self._clock,
            Around(
                archive=self._archive,
                config=lambda: self._loaded,
                access=lambda: self._access,
                members=store.heads,
                news=store.news,
                copy=copy,
                is_leader=lambda: self._leads or not store.is_shared,
                resign=store.election.resign,
                load=store.journal.load,
                figures=store.figures,
                measured=store.measured,
                refusal=store.refusal,
            ),
        )

    def _refusal(self, store: Store, event: Event) -> PrimusdError | None:
        """Refuse new jobs where there is little room: what is left is for jobs to end in order."""
        if not isinstance(event, JobSubmitted):
            return None
        if self._ballast.is_given_up:
            return StoreFullError(
                f"the disk of {self._state} is full; no new job is taken",
                hint="free some room there",
            )
        return store.refusal()

    async def _start(self, group: TaskGroup, parts: Parts, store: Store) -> None:
        """Recover, ask the launchers, keep the plans, and only then answer anybody."""
        await group.start(parts.engine.run)
        await group.start(parts.effects.run)
        await self._declare_queues(parts.engine)
        for background in (
            parts.liveness.run,
            parts.nodes.run,
            parts.executors.run,
            parts.mirror.run,
        ):
            group.start_soon(background)
        group.start_soon(self._keep_ballast)
        group.start_soon(sample, parts.engine)
        group.start_soon(parts.app[BLOB_ROOM].run)
        group.start_soon(keep_within, copies_folder(self._state), self._loaded.config.logs)
        await self._refill(parts, store.journal)

    async def _open(self, group: TaskGroup, parts: Parts, store: Store) -> None:
        """Answer, be it only with who leads, and let the node of this host find us."""
        await group.start(self._serve, parts.app)
        # A node that somebody else starts (its own unit, another user) finds us by it as well.
        known = self._introduce_node(store.heads())
        if store.is_shared:
            group.start_soon(self._keep_introduced, store, known)
        if not self._prepared.flags.no_node:
            group.start_soon(keep_node, self._state)
        if (every_ms := systemd.watchdog_every_ms()) is not None:
            group.start_soon(_ping_watchdog, parts.engine, every_ms)

    def _say(self, does: str) -> None:
        """Tell a person what we do now, where that is news."""
        if does != self._said:
            self._said = does
            say(start_lines(self._prepared, __version__, does=does))

    async def _declare_queues(self, engine: Engine) -> None:
        """Let the queues be as the configuration has them, but for those that a person set up."""
        events = declarations(self._loaded.config, engine.world)
        await engine.propose_all([Proposal(ADMISSION, event, "config") for event in events])

    async def _refill(self, parts: Parts, journal: Journal) -> None:
        """Let watches go on from before our start, as far as the entries of late reach."""
        newest = await journal.entries()
        from_revision = max(0, parts.watch.oldest - REFILL_ENTRIES_MAX)
        older = await anyio.to_thread.run_sync(lambda: list(self._archive.read(from_revision)))
        first = newest[0].revision if newest else 0
        entries = [one for one in older if one.revision < first]
        entries += [one for one in newest if one.revision <= parts.watch.oldest]
        changes, oldest = refilled(entries, parts.engine.world)
        parts.watch.refill(changes, oldest=oldest)

    async def _serve(
        self, app: web.Application, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Answer on every listener until cancelled."""
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await runner.setup()
        try:
            for one in self._prepared.listeners:
                tls = None if one.is_unix else self._tls
                # A copy: the socket itself stays open over the end of this leadership.
                await web.SockSite(runner, one.socket.dup(), ssl_context=tls).start()
            task_status.started()
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSE_S):
                await runner.cleanup()

    def _introduce_node(self, members: Heads) -> tuple[str, ...]:
        """Leave the file by which the node of this host finds us and the other heads."""
        directory, name = self._prepared.directory, self._loaded.config.member
        heads = all_heads(self._prepared, members)
        write_bootstrap(
            self._state,
            NodeBootstrap(
                cluster=directory.cluster_id,
                name=name,
                heads=heads,
                key=node_key(directory.secret, name),
                ca=ca_of(self._loaded),
            ),
        )
        return heads

    async def _keep_introduced(self, store: Store, known: tuple[str, ...]) -> None:
        """Write that file anew whenever heads come or go."""
        while True:
            await store.news.wait()
            if all_heads(self._prepared, store.heads()) != known:
                known = self._introduce_node(store.heads())

    async def _keep_ballast(self) -> None:
        while True:
            await anyio.sleep(BALLAST_AGAIN_S)
            if self._ballast.is_given_up and self._ballast.take():
                log.info("ballast.taken")

    async def _hear_signals(
        self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
        with anyio.open_signal_receiver(*numbers) as received:
            task_status.started()
            async for number in received:
                match number:
                    case signal.SIGHUP:
                        self._reload()
                    case signal.SIGUSR1:
                        self._dump()
                    case _ if self._told_to_stop.is_set():
                        self._told_again.set()
                    case _:
                        self._told_to_stop.set()

    def _reload(self) -> None:
        """Read the configuration again and take over what can change while we run."""
        systemd.notify("RELOADING=1")
        try:
            loaded = load_configuration(self._prepared.flags, os.environ)
            access = access_of(loaded, self._prepared.token)
            found = config.changes(self._loaded.config, loaded.config)
            if self._tls is not None and loaded.config.listen.tls_cert:
                load_chain(self._tls, loaded)
        except PrimusdError as error:
            log.error("config.refused", text=error.message)  # noqa: TRY400 - a person's mistake.
        else:
            self._loaded, self._access = loaded, access
            if self._parts is not None:
                engine = self._parts.engine
                for event in declarations(loaded.config, engine.world):
                    engine.tell(ADMISSION, event, by="config")
            logs.configure(loaded.config.logs.level, loaded.config.logs.format, stream=sys.stderr)
            log.info("config.reloaded", taken=found.live, after_restart=found.after_restart)
        systemd.notify("READY=1")

    def _dump(self) -> None:
        """Write state and stacks to the log."""
        tasks = [one.name for one in anyio.get_running_tasks()]
        if self._parts is None:
            log.info("daemon.dumped", outage="the store does not answer yet", tasks=tasks)
        else:
            engine = self._parts.engine
            world = engine.world
            log.info(
                "daemon.dumped",
                term=engine.term,
                revision=engine.revision,
                outage=engine.outage.message if engine.outage else "",
                jobs={job.uid: job.phase.value for job in world.jobs.values()},
                nodes={node.name: node.phase.value for node in world.admission.nodes.values()},
                wedged=dict(world.admission.wedged),
                tasks=tasks,
            )
        faulthandler.dump_traceback(file=sys.stderr)

    async def _end(self) -> None:
        """Stop in order: trainers run on, unless all of it was ephemeral."""
        systemd.notify_stopping()
        if self._prepared.is_ephemeral and self._loaded.config.store.kind == "embedded":
            # What it has to cancel is known once it leads.
            with anyio.move_on_after(CANCEL_S):
                while not self._leads and not self._told_again.is_set():  # noqa: ASYNC110 - either
                    await anyio.sleep(LOOK_S)
        await self._wait_for_others()
        if self._parts is None or not self._leads:
            say("primusd stopped; it did not lead")
            return
        engine = self._parts.engine
        if self._prepared.is_ephemeral:
            await self._end_jobs(engine)
            if end_node(self._state):
                await wait_for_end(self._state)
        count = living_attempts(engine)
        told = f"primusd stopped; {count} trainers run on, and the next start takes them up again"
        say(told if count else "primusd stopped; no trainer runs")
        if not count and not self._prepared.flags.no_node and (pid := local_node_pid(self._state)):
            say(f"  its node (pid {pid}) waits for the next start; kill {pid} ends it")

    async def _wait_for_others(self) -> None:
        """Lead on for a moment where other heads are there and none could take over at once."""
        store, own = self._store, self._loaded.config.member
        if store is None or not self._leads:
            return
        async with anyio.create_task_group() as group:
            group.start_soon(self._end_when_told_again, group.cancel_scope)
            await others_once_ready(store.heads, store.news, own, within_s=HAND_OVER_S)
            group.cancel_scope.cancel()

    async def _end_when_told_again(self, wait: anyio.CancelScope) -> None:
        await self._told_again.wait()
        wait.cancel()

    async def _end_jobs(self, engine: Engine) -> None:
        """Cancel every job and wait until nothing of it is left; a second signal ends the wait."""
        for uid, job in engine.world.jobs.items():
            if not job.is_final:
                engine.tell(uid, CancelRequested("the ephemeral daemon stops"), by="engine")
        with anyio.move_on_after(CANCEL_S):
            while not self._told_again.is_set():
                if all(job.is_final for job in engine.world.jobs.values()):
                    break
                await anyio.sleep(LOOK_S)


def living_attempts(engine: Engine) -> int:
    """Return how many attempts are not over."""
    return sum(
        replica.newest is not None and replica.newest.phase not in OVER
        for job in engine.world.jobs.values()
        if not job.is_final
        for role in job.roles.values()
        for replica in replicas_of(role)
    )


async def _ping_watchdog(engine: Engine, every_ms: int) -> None:
    """Tell systemd that the loop turns; one that stands still, or hangs on its disk, does not."""
    while True:
        if is_healthy(engine):
            systemd.notify_watchdog()
        await anyio.sleep(every_ms / 1000)
