"""All of the etcd store that a head has, opened and closed together."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import structlog
from msgspec import Struct

from primusd.errors import ConfigError, StoreUnavailableError
from primusd.state.archiving import Archiver
from primusd.state.election import Identity
from primusd.state.etcd.client import EtcdClient, EtcdRefusedError, EtcdSettings
from primusd.state.etcd.election import EtcdElection
from primusd.state.etcd.identity import ClusterIdentity, shared_identity
from primusd.state.etcd.journal import EtcdJournal
from primusd.state.etcd.layout import Layout
from primusd.state.etcd.leadership import Leadership
from primusd.state.etcd.members import Members
from primusd.state.etcd.moved import check_not_moved
from primusd.state.etcd.upkeep import Upkeep, UpkeepLimits
from primusd.state.etcd.versions import check_versions

log = structlog.get_logger()

AGAIN_S = 1.0


class EtcdStore(Struct, frozen=True):
    """Journal, election and the other heads."""

    cluster: ClusterIdentity
    journal: EtcdJournal
    election: EtcdElection
    members: Members
    upkeep: Upkeep


@asynccontextmanager
async def opened(
    settings: EtcdSettings,
    *,
    cluster: str,
    own: ClusterIdentity,
    lived_in: str,
    identity: Identity,
    ttl_ms: int,
    archiver: Archiver | None,
    limits: UpkeepLimits,
) -> AsyncIterator[EtcdStore]:
    """Yield the store once etcd answers, however long that takes.

    Args:
        settings: How etcd is reached.
        cluster: Name of the cluster.
        own: Given to a cluster that has none yet.
        lived_in: Where our jobs are known to be; "" nowhere.
        identity: Of this head.
        ttl_ms: Of the leader's lease.
        archiver: Gets entries before they go.
        limits: Of what etcd takes.

    Raises:
        ConfigError: The servers must not be used, or do not let us in; or another head has our
            name.
    """
    client, layout, leadership = EtcdClient(settings), Layout(cluster), Leadership()
    members = Members(client, layout, identity)
    upkeep = Upkeep(client, layout, leadership, limits)
    try:
        async with anyio.create_task_group() as group:
            # Before anything else: a full etcd lets nobody join until there is room.
            group.start_soon(upkeep.run)
            shared = await _joined(client, layout, own, members, lived_in)
            election = EtcdElection(
                client, layout, leadership, identity=lambda: identity, ttl_ms=ttl_ms
            )
            journal = EtcdJournal(client, layout, leadership, archiver=archiver)
            group.start_soon(members.run)
            yield EtcdStore(shared, journal, election, members, upkeep)
            group.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await client.close()


async def _joined(
    client: EtcdClient, layout: Layout, own: ClusterIdentity, members: Members, lived_in: str
) -> ClusterIdentity:
    """Return the cluster's identity, once it can be had and we are one of its heads."""
    told = ""
    while True:
        try:
            await check_versions(client)
            await check_not_moved(client, layout)
            shared = await shared_identity(client, layout, own, lived_in=lived_in)
            await members.join()
            await members.look()
            return shared
        except EtcdRefusedError as error:
            raise ConfigError(error.message, hint=error.hint) from error
        except StoreUnavailableError as error:
            if error.message != told:
                told = error.message
                log.warning("etcd.awaited", text=told, hint=error.hint)
        await anyio.sleep(AGAIN_S)
