"""What `primusctl store` does itself while no daemon runs: read, restore and move stores."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import anyio
from msgspec import Struct

from primusd import __version__, config
from primusd.config import Loaded as Configuration
from primusd.ctl.failures import CONFLICT, FAILED, USAGE, CtlError
from primusd.errors import (
    ConfigError,
    ConflictError,
    PrimusdError,
    StateDirectoryInUseError,
)
from primusd.held_stores import (
    FILES,
    HeldStore,
    Keys,
    Transfer,
    give_to_owner,
    held_store,
    put_archive_aside,
)
from primusd.held_stores import (
    move as moved,
)
from primusd.held_stores import (
    restore as restored,
)
from primusd.state.backup import Backup, BackupError, backup_of, read_backup, written
from primusd.state.directory import StateDirectory, take_state_directory
from primusd.stores import etcd_url

T = TypeVar("T")
EMBEDDED = "embedded"
ETCD = "etcd"
STOP_HINT = "stop it first (systemctl stop primusd, or kill its process); trainers run on"


class Places(Struct, frozen=True):
    """What a person said of where the daemon keeps things."""

    environ: Mapping[str, str]
    config: str = ""
    state_dir: str = ""
    cluster: str = ""

    def configuration(self, store: str = "") -> Configuration:
        """Return the daemon's configuration.

        Args:
            store: In the place of its own store: `embedded`, or `etcd://h1,h2`; "" its own.

        Raises:
            ConfigError: It cannot be used.
        """
        said = {"state_dir": self.state_dir, "store": store, "cluster": self.cluster}
        file = Path(self.config) if self.config else None
        overrides = {name: value or None for name, value in said.items()}
        return config.load(overrides, self.environ, file)


def backup(places: Places) -> Iterator[bytes]:
    """Return the bytes of a backup of the store that no daemon has now."""

    async def read() -> Backup:
        configuration = places.configuration()
        async with _held(configuration, makes=False) as (store, _):
            loaded = await store.load()
            if loaded.is_empty or store.keys is None:
                raise ConflictError(f"there is nothing to copy: {store.place} is empty")
            return backup_of(
                loaded,
                cluster=configuration.config.cluster,
                cluster_id=store.keys.id,
                secret=store.keys.secret,
                store=configuration.config.store.kind,
                version=__version__,
                wall_ms=time.time_ns() // 1_000_000,
            )

    return written(_done(read))


def restore(places: Places, file: Path, *, to: str, may_replace: bool) -> Sequence[str]:
    """Put a backup into a store; return what to tell."""

    async def put() -> Sequence[str]:
        found = read_backup(_content(file), name=str(file))
        configuration = places.configuration(_checked_store(to))
        name = configuration.config.cluster
        if found.about.cluster != name:
            raise ConfigError(
                f"{file} is of cluster {found.about.cluster!r}, the configuration names {name!r}",
                hint=f"--cluster {found.about.cluster}",
            )
        async with _held(configuration, makes=True) as (store, directory):
            keys = Keys(found.about.cluster_id, found.secret)
            done = await restored(found.loaded, keys, store, may_replace=may_replace)
            lines = [f"restored {done.told} into {store.place}, as of {found.about.created_at}"]
            if directory is not None:
                aside = await put_archive_aside(directory.path, found.about.revision)
                lines += [f"  {aside}"] if aside else []
            if url := configuration.config.history.url:
                lines.append(f"  history in {url} may be later than that: name another history.url")
            return [*lines, _start_line(configuration)]

    return _done(put)


def move(places: Places, *, to: str, source: str, may_replace: bool) -> Sequence[str]:
    """Move a cluster from one store to another; return what to tell."""

    async def carry() -> Sequence[str]:
        target_configuration = places.configuration(_checked_store(to))
        target_kind = target_configuration.config.store.kind
        source_configuration = places.configuration(_checked_store(source))
        if not source and source_configuration.config.store.kind == target_kind:
            # The file names where it goes: then it comes from the other kind.
            other = EMBEDDED if target_kind == ETCD else ETCD
            source_configuration = places.configuration(other)
        if source_configuration.config.store == target_configuration.config.store:
            raise ConfigError(
                "the store is to be moved to where it is",
                hint="--from and --to name two: embedded, etcd://host1,host2",
            )
        makes = target_kind == EMBEDDED
        async with (
            _directory(source_configuration, makes=makes) as (directory, is_new),
            held_store(source_configuration, directory, is_new=is_new) as old,
            held_store(target_configuration, directory, is_new=is_new) as new,
        ):
            done = await moved(old, new, may_replace=may_replace)
            return _moved_lines(done, old, new, target_configuration)

    return _done(carry)


def _moved_lines(
    done: Transfer, old: HeldStore, new: HeldStore, target: Configuration
) -> Sequence[str]:
    lines = [f"moved {done.told} from {old.place} to {new.place}"]
    lines += [f"  {one}" for one in done.kept]
    return [*lines, _start_line(target)]


def _start_line(configuration: Configuration) -> str:
    store = configuration.config.store
    flag = etcd_url(store.etcd) if store.kind == ETCD else EMBEDDED
    return f"  start primusd with --store {flag}; trainers that ran on are taken up again"


@asynccontextmanager
async def _held(
    configuration: Configuration, *, makes: bool
) -> AsyncIterator[tuple[HeldStore, StateDirectory | None]]:
    """Yield the configured store, and the state directory where there is one."""
    makes = makes and configuration.config.store.kind == EMBEDDED
    async with (
        _directory(configuration, makes=makes) as (directory, is_new),
        held_store(configuration, directory, is_new=is_new) as store,
    ):
        yield store, directory


@asynccontextmanager
async def _directory(
    configuration: Configuration, *, makes: bool
) -> AsyncIterator[tuple[StateDirectory | None, bool]]:
    """Yield the state directory, held, and whether it was made for this.

    None: there is none on this host, and a store in etcd needs none.

    Raises:
        ConfigError: There is none, or it cannot be used.
        StateDirectoryInUseError: A daemon runs.
    """
    path = configuration.directories.state
    is_new = not (path / "cluster.json").exists()
    if is_new and not makes:
        if configuration.config.store.kind == EMBEDDED:
            raise ConfigError(
                f"there is no state of a primusd in {path}", hint="name it with --state-dir"
            )
        yield None, True
        return
    directory = take_state_directory(path, cluster=configuration.config.cluster)
    try:
        yield directory, is_new
    finally:
        directory.close()
        give_to_owner(path, FILES)


def _checked_store(text: str) -> str:
    """Return a store as a person named it.

    Raises:
        ConfigError: It is none.
    """
    hosts = text.removeprefix("etcd://")
    if text in ("", EMBEDDED) or (hosts != text and hosts.strip(",")):
        return text
    raise ConfigError(f"{text!r} is no store", hint="embedded, or etcd://host1:2379,host2:2379")


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise BackupError(f"{file} cannot be read: {error.strerror}") from error


def _done(work: Callable[[], Awaitable[T]]) -> T:
    """Run it to its end; what goes wrong is told as a call's error."""
    try:
        return anyio.run(work)
    except (PrimusdError, OSError, BaseExceptionGroup) as error:
        told = _told_first(error)
        if told is None:
            raise
        raise told from error


def _told_first(error: BaseException) -> CtlError | None:
    """Return what is told of an error, or of the first in a group; None of a bug."""
    match error:
        case BaseExceptionGroup():
            return _told_first(error.exceptions[0])
        case PrimusdError():
            return _told(error)
        case OSError():
            return CtlError(f"{error.filename or 'a file'}: {error.strerror or error}")
        case _:
            return None


def _told(error: PrimusdError) -> CtlError:
    hint = error.hint
    code = FAILED
    match error:
        case StateDirectoryInUseError():
            code, hint = CONFLICT, STOP_HINT
        case ConflictError():
            code = CONFLICT
        case ConfigError() | BackupError():
            code = USAGE
        case _:
            pass
    details = [one.sentence() for one in error.errors]
    return CtlError(error.message, hint=hint, exit_code=code, details=details)
