"""The store that the configuration names: what the journal is in, and who else is a head."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
from msgspec import Struct

from primusd import __version__
from primusd.config.settings import Config, Etcd
from primusd.errors import ConfigError, PrimusdError
from primusd.records import SCHEMA
from primusd.startup import Prepared, heads_of
from primusd.state.archive import History
from primusd.state.archiving import ArchiveLimits, Archiver
from primusd.state.ballast import Ballast
from primusd.state.directory import EmbeddedElection
from primusd.state.election import Election, Heads, Identity, News
from primusd.state.embedded import EmbeddedJournal, embedded_figures
from primusd.state.figures import StoreFigures
from primusd.state.journal import Followed, Journal

if TYPE_CHECKING:
    from primusd.state.etcd.client import EtcdSettings
    from primusd.state.etcd.upkeep import UpkeepLimits

CLOSE_S = 5.0
JOURNAL_FILE = "journal.db"


class Store(Struct, frozen=True):
    """What a daemon keeps its state in."""

    journal: Journal
    election: Election
    figures: Callable[[], Awaitable[StoreFigures]]
    """Measures it now."""
    heads: Callable[[], Heads]
    """Who leads and who is there; of an embedded store nobody else."""
    news: News
    """Told when others lead, or are there, than before."""
    followed: Followed | None
    """The journal as other heads write it; None: nobody else does, so the lead is lost for good."""
    measured: Callable[[], StoreFigures | None] = lambda: None
    """As last measured; None: not yet, or nothing bounds it but the disk."""
    refusal: Callable[[], PrimusdError | None] = lambda: None
    """Why no new job is to be taken, as far as the store knows; None: take it."""
    tell_ready: Callable[[bool], None] = lambda _is_ready: None
    """Lets other heads know whether this one could take over at once."""

    @property
    def is_shared(self) -> bool:
        """Whether other heads may lead: who loses the lead then waits to lead again."""
        return self.followed is not None


@asynccontextmanager
async def opened_store(
    prepared: Prepared, archive: History, ballast: Ballast
) -> AsyncIterator[Store]:
    """Yield the store; one that is shared, once it answers.

    Raises:
        ConfigError: It must not be used.
    """
    config = prepared.loaded.config
    limits = ArchiveLimits(config.history.keep_ms, config.history.bytes_max)
    if config.store.kind == "etcd":
        async with _opened_etcd(prepared, config, Archiver(archive, limits)) as store:
            yield store
        return
    prepared.directory.check_embedded()
    path = prepared.directory.path / JOURNAL_FILE
    journal = EmbeddedJournal(path, archive=archive, ballast=ballast, limits=limits)
    figures = partial(anyio.to_thread.run_sync, embedded_figures, path)
    try:
        yield Store(
            journal, EmbeddedElection(prepared.directory), figures, Heads, News(), followed=None
        )
    finally:
        with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSE_S):
            await journal.close()


@asynccontextmanager
async def _opened_etcd(
    prepared: Prepared, config: Config, archiver: Archiver
) -> AsyncIterator[Store]:
    # Imported here: most daemons need no etcd, and gRPC is large.
    from primusd.state.etcd.identity import ClusterIdentity  # noqa: PLC0415 - see above.
    from primusd.state.etcd.store import opened  # noqa: PLC0415 - see above.

    directory = prepared.directory
    identity = Identity(
        member=config.member,
        addresses=tuple(one for one in heads_of(prepared) if not one.startswith("unix:")),
        home=directory.home(),
        version=__version__,
        schema=SCHEMA,
        ready=False,
    )
    async with opened(
        etcd_settings(config.store.etcd),
        cluster=config.cluster,
        own=ClusterIdentity(directory.cluster_id, directory.secret),
        lived_in=directory.store,
        identity=identity,
        ttl_ms=config.store.etcd.leader_ttl_ms,
        archiver=archiver,
        limits=_limits(config.store.etcd),
    ) as store:
        place = etcd_url(config.store.etcd)
        directory.adopt(store.cluster.id, store.cluster.secret, store=place)
        yield Store(
            store.journal,
            store.election,
            store.upkeep.measured,
            lambda: store.members.heads,
            store.members.news,
            followed=store.journal,
            measured=lambda: store.upkeep.figures,
            refusal=store.upkeep.refusal,
            tell_ready=store.members.tell_ready,
        )


def _limits(etcd: Etcd) -> "UpkeepLimits":
    from primusd.state.etcd.upkeep import UpkeepLimits  # noqa: PLC0415 - see above.

    return UpkeepLimits(
        warn_percent=etcd.quota_warn_percent,
        stop_percent=etcd.quota_stop_percent,
        quota_byte_count=etcd.quota_bytes or 0,
        is_alone=etcd.compact,
    )


def etcd_url(etcd: Etcd) -> str:
    """Return the configured etcd as `--store` names it."""
    return f"etcd://{','.join(one.rpartition('//')[2] for one in etcd.endpoints)}"


def etcd_settings(etcd: Etcd) -> "EtcdSettings":
    """Return how the configured etcd is reached.

    Raises:
        ConfigError: A file that it names cannot be read.
    """
    from primusd.state.etcd.client import EtcdSettings, Tls  # noqa: PLC0415 - see above.

    is_secured = etcd.endpoints[0].startswith("https:") or bool(etcd.ca or etcd.cert)
    tls = Tls(_read(etcd.ca), _read(etcd.cert), _read(etcd.key)) if is_secured else None
    password = (_read(etcd.password_file) or b"").decode(errors="replace").strip()
    return EtcdSettings(
        etcd.endpoints,
        user=etcd.user,
        password=password,
        tls=tls,
        try_ms=etcd.request_timeout_ms,
    )


def _read(path: str) -> bytes | None:
    if not path:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
