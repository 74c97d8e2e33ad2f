"""`primusd node`: one per host of the local launcher."""

import argparse
import os
import signal
import socket
import sys
import time
from pathlib import Path

import anyio
import msgspec
import structlog
from msgspec import Struct

import primusd
from primusd import logs
from primusd.clock import SystemClock
from primusd.config import load
from primusd.config.settings import SPARE_EXECUTORS_MAX, LocalLauncher, Logs
from primusd.config.values import (
    Cores,
    Gpus,
    Integer,
    PortRange,
    Rule,
    SettingError,
    Size,
    read_value,
)
from primusd.errors import ConfigError
from primusd.executor.cgroup import delegate
from primusd.executor.files import prune
from primusd.executor.preparing import host_name
from primusd.executor.processes import boot_id
from primusd.executor.protocol import SPEAKS
from primusd.node.attempts import Attempts, Offer, cache_folder, default_user, find_jobs
from primusd.node.bootstrap import (
    BOOTSTRAP_FILE,
    NodeBootstrap,
    hold_node_lock,
    node_holder,
    read_bootstrap,
)
from primusd.node.host import (
    core_count,
    disk_free_bytes,
    find_gpus,
    memory_free_bytes,
    usage,
)
from primusd.node.metering import Meter, find_scope, offered_memory_bytes
from primusd.node.protocol import NodeHello
from primusd.node.retention import keep_within
from primusd.node.talk import Sample, Talk
from primusd.node.zygote import Zygote, start_zygote

log = structlog.get_logger()

SAMPLE_EVERY_S = 10.0
FIRST_SAMPLE_S = 1.0
"""After the first: how busy the cores are is told by two."""
PRUNE_EVERY_S = 3_600.0
CACHE_KEEP_MS = 7 * 86_400_000
"""Shipped files that nobody has asked for since then go."""
LOOK_FOR_UPGRADE_EVERY_S = 10.0
BOOTSTRAP_AGAIN_S = 0.5
SPARES_UNASKED_MAX = 16
BYTES_PER_SPARE = 1 << 30
"""Of the memory that this node offers; a spare itself takes 8 MiB."""
EXIT_CONFIG = 2
EXIT_TAKEN = 3
SECONDS_TO_FINISH_FORKS = 12.0


class Settings(Struct, frozen=True):
    """What this node was asked for."""

    state: Path
    bootstrap: Path
    name: str
    """"" = as the bootstrap file says."""
    local: LocalLauncher
    logs: Logs
    is_introduced: bool = False
    """By a file that was named; else by the one that a daemon leaves in the state directory."""


def main(argv: list[str] | None = None) -> int:
    """Run a node to its end; return its exit code."""
    logs.configure("info", "", stream=sys.stderr)
    try:
        settings = read_settings(argv)
    except ConfigError as error:
        sys.stderr.write(f"primusd node: {error}\n")
        return EXIT_CONFIG
    settings.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = hold_node_lock(settings.state)
    if lock is None:
        if settings.is_introduced:
            # Whoever names a file wants this node; a unit and a daemon only want that one runs.
            holder = node_holder(settings.state)
            sys.stderr.write(
                f"primusd node: a node runs on {settings.state} already (pid "
                f"{holder.pid if holder else '?'}); name another directory with --state-dir\n"
            )
            return EXIT_TAKEN
        log.info("node.runs_already", state=str(settings.state))
        return 0
    if settings.local.enforce != "none":
        delegate()
    # Before there is a second thread or an event loop.
    zygote = start_zygote(close=(lock,), spare_count=spare_count(settings.local))
    wants_exec = anyio.run(_live, settings, zygote)
    zygote.close()
    if wants_exec:
        log.info("node.replaced")
        os.execv(sys.executable, sys.orig_argv)  # noqa: S606 ourselves, in a newer version
    return 0


def read_settings(argv: list[str] | None) -> Settings:
    """Return what flags, environment and configuration file ask for.

    Raises:
        ConfigError: One of them is wrong; the text says which.
    """
    parser = argparse.ArgumentParser(prog="primusd node", description=__doc__)
    parser.add_argument("--config", type=Path, metavar="FILE")
    parser.add_argument("--name", default="")
    parser.add_argument("--bootstrap", type=Path, metavar="FILE")
    parser.add_argument("--state-dir", type=Path, metavar="DIR")
    parser.add_argument("--ports", metavar="FIRST-LAST")
    parser.add_argument("--cpu")
    parser.add_argument("--memory")
    parser.add_argument("--gpus", help="auto, none, or a number of pretended ones")
    parser.add_argument("--spare-executors", metavar="N", help="that wait for an attempt")
    parser.add_argument("--label", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args(argv)
    loaded = load({"state_dir": options.state_dir}, os.environ, options.config)
    state = (options.state_dir or loaded.directories.state).absolute()
    if options.bootstrap is not None:
        _check_bootstrap(options.bootstrap, options.name)
    return Settings(
        state=state,
        bootstrap=(options.bootstrap or state / BOOTSTRAP_FILE).absolute(),
        name=options.name,
        local=_overridden(loaded.config.launchers.local, options),
        logs=loaded.config.logs,
        is_introduced=options.bootstrap is not None,
    )


def _check_bootstrap(path: Path, name: str) -> None:
    """Look at a file that was named before anything waits for it.

    Raises:
        ConfigError: It is no bootstrap file, or another node's.
    """
    try:
        found = read_bootstrap(path)
    except (OSError, msgspec.DecodeError) as error:
        text = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"--bootstrap {path}: {text}; make it with: primusctl nodes add NAME --out {path}"
        ) from error
    if name not in ("", found.name):
        raise ConfigError(
            f"--name is {name}, but {path} holds the key of {found.name}; "
            f"make one with: primusctl nodes add {name}"
        )


def _overridden(local: LocalLauncher, options: argparse.Namespace) -> LocalLauncher:
    rules: dict[str, tuple[str, Rule, object]] = {
        "ports": ("ports", PortRange(), options.ports),
        "cpu": ("cpu_milli", Cores(), options.cpu),
        "memory": ("memory_bytes", Size(16 << 20, 1 << 50), options.memory),
        "gpus": ("gpus", Gpus(), _number_or_word(options.gpus)),
        "spare-executors": (
            "spare_executors",
            Integer(0, SPARE_EXECUTORS_MAX),
            _number_or_word(options.spare_executors),
        ),
    }
    changes: dict[str, object] = {}
    for flag, (field, rule, value) in rules.items():
        if value is None:
            continue
        try:
            changes[field] = read_value(rule, value)
        except SettingError as error:
            raise ConfigError(f"--{flag} is {value!r}, must be {error.allowed}") from error
    for pair in options.label:
        if not pair.partition("=")[0] or "=" not in pair:
            raise ConfigError(f"--label is {pair!r}, must be KEY=VALUE")
    labels = dict(pair.partition("=")[::2] for pair in options.label)
    changes["labels"] = {**local.labels, **labels}
    return msgspec.structs.replace(local, **changes)


def spare_count(local: LocalLauncher) -> int:
    """Return how many executors to keep forked ahead: unless configured, 1 % of the memory."""
    if local.spare_executors is not None:
        return local.spare_executors
    memory_bytes = local.memory_bytes or offered_memory_bytes()
    return min(SPARES_UNASKED_MAX, memory_bytes // BYTES_PER_SPARE)


def _number_or_word(text: str | None) -> str | int | None:
    return int(text) if text is not None and text.isdecimal() else text


async def _live(settings: Settings, zygote: Zygote) -> bool:
    """Serve until told to end; return whether to go on as a newer version."""
    bootstrap = await _wait_bootstrap(settings)
    hello = make_hello(settings, bootstrap)
    local = settings.local
    offer = Offer(
        host=host_name(bootstrap.heads),
        inherit=local.inherit,
        enforce=local.enforce,
        user=local.user or default_user(),
        gpus=hello.gpus,
    )
    if os.geteuid() == 0 and not offer.user:
        log.warning("node.trainers_run_as_root")
    wants_exec = False
    async with anyio.create_task_group() as tasks:
        attempts = Attempts(settings.state, zygote, offer, tasks)
        attempts.adopt()
        talk = Talk(bootstrap, hello, attempts)
        tasks.start_soon(talk.run)
        meter = Meter(find_scope(), cpu_milli=hello.cpu_milli, memory_bytes=hello.memory_bytes)
        tasks.start_soon(_sample, talk, attempts, meter, settings.state)
        tasks.start_soon(_prune_cache, settings.state)
        tasks.start_soon(keep_within, settings.state, settings.logs)
        wants_exec = await _until_told(attempts, zygote)
        tasks.cancel_scope.cancel()
    return wants_exec


async def _wait_bootstrap(settings: Settings) -> NodeBootstrap:
    """Return the file that the daemon writes, however long that takes."""
    is_told = False
    while True:
        try:
            bootstrap = read_bootstrap(settings.bootstrap)
        except (OSError, msgspec.DecodeError) as error:
            if not is_told:
                log.info("node.waits_for_bootstrap", text=str(error))
            is_told = True
            await anyio.sleep(BOOTSTRAP_AGAIN_S)
        else:
            return bootstrap


def make_hello(settings: Settings, bootstrap: NodeBootstrap) -> NodeHello:
    """Return what this node says of itself."""
    local = settings.local
    return NodeHello(
        speaks=SPEAKS,
        cluster=bootstrap.cluster,
        node=settings.name or bootstrap.name,
        boot_id=boot_id(),
        version=primusd.__version__,
        cpu_milli=local.cpu_milli or core_count() * 1000,
        memory_bytes=local.memory_bytes or offered_memory_bytes(),
        gpus=find_gpus(local.gpus),
        port_range=local.ports,
        labels=dict(local.labels),
        home=f"{socket.gethostname()}:{settings.state.resolve()}",
    )


async def _sample(talk: Talk, attempts: Attempts, meter: Meter, state: Path) -> None:
    wait_s = FIRST_SAMPLE_S
    while True:
        load = meter.measure(attempts.shares(), at_ns=time.monotonic_ns())
        jobs = find_jobs(state)
        talk.sampled(Sample(usage(), memory_free_bytes(), disk_free_bytes(state), jobs, load))
        await anyio.sleep(wait_s)
        wait_s = SAMPLE_EVERY_S


async def _prune_cache(state: Path) -> None:
    clock = SystemClock()
    while True:
        prune(cache_folder(state), older_than_ms=CACHE_KEEP_MS, now_ms=clock.wall_ms())
        await anyio.sleep(PRUNE_EVERY_S)


async def _until_told(attempts: Attempts, zygote: Zygote) -> bool:
    """Wait for the end of this life; return whether another one follows.

    None does after TERM or INT; one does after HUP, when a newer version is installed, and when
    nothing can be forked any more.
    """
    async with anyio.create_task_group() as tasks:
        found = _Found()
        tasks.start_soon(_hear, found)
        tasks.start_soon(_look_for_upgrade, found)
        tasks.start_soon(_notice_end, zygote, found)
        await found.event.wait()
        tasks.cancel_scope.cancel()
    with anyio.move_on_after(SECONDS_TO_FINISH_FORKS):
        while attempts.is_starting:  # noqa: ASYNC110 at the end of a life only
            await anyio.sleep(0.01)
    return found.wants_exec


class _Found:
    def __init__(self) -> None:
        self.event = anyio.Event()
        self.wants_exec = False


async def _hear(found: _Found) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        async for number in signals:
            found.wants_exec = number == signal.SIGHUP
            found.event.set()
            return


async def _notice_end(zygote: Zygote, found: _Found) -> None:
    """Begin anew without the warm process: another is made only before there is an event loop."""
    await zygote.until_gone()
    log.warning("node.fork_server_ended", pid=zygote.pid)
    found.wants_exec = True
    found.event.set()


async def _look_for_upgrade(found: _Found) -> None:
    source = Path(primusd.__file__)
    before = _content(source)
    while True:
        await anyio.sleep(LOOK_FOR_UPGRADE_EVERY_S)
        now = _content(source)
        if now and now != before:
            found.wants_exec = True
            found.event.set()
            return


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
