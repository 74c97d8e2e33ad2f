"""A cluster's store in etcd, held by a tool while none of its heads runs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from primusd import __version__
from primusd.errors import ConflictError, StoreUnavailableError
from primusd.records import SCHEMA
from primusd.state.election import Identity
from primusd.state.etcd.client import EtcdClient, EtcdSettings
from primusd.state.etcd.election import EtcdElection
from primusd.state.etcd.identity import ClusterIdentity
from primusd.state.etcd.journal import EtcdJournal
from primusd.state.etcd.layout import Layout
from primusd.state.etcd.leadership import Leadership
from primusd.state.etcd.members import Members
from primusd.state.etcd.moved import moved_to
from primusd.state.etcd.redo import Change
from primusd.state.etcd.requests import get, transaction
from primusd.state.etcd.versions import check_versions
from primusd.state.journal import Loaded

TTL_MS = 30_000
ASK_S = 10.0
LEAD_S = 15.0
"""A head that was killed holds the lead for its time to live; its own successor need not wait."""
MEMBER = "primusctl"


class Visit:
    """What a tool may do with the store: nobody else leads meanwhile.

    Attributes:
        journal: Of the cluster.
        identity: Of the cluster; None: it never had a head.
        moved: Where it was moved to; "" it was not.
    """

    def __init__(
        self, journal: EtcdJournal, layout: Layout, identity: ClusterIdentity | None, moved: str
    ) -> None:
        self.journal = journal
        self.identity = identity
        self.moved = moved
        self._layout = layout

    async def fill(self, loaded: Loaded, identity: ClusterIdentity) -> None:
        """Make it the store of a cluster, with all that this holds and nothing else."""
        layout = self._layout
        await self.journal.load()
        await self.journal.replace(
            loaded,
            (
                Change(layout.cluster, identity.id.encode()),
                Change(layout.secret, identity.secret),
                Change(layout.moved),
            ),
        )

    async def leave(self, where: str) -> None:
        """Let no head start on it any more: its cluster is elsewhere from now on."""
        await self.journal.load()
        await self.journal.note(Change(self._layout.moved, where.encode()))


@asynccontextmanager
async def visiting(settings: EtcdSettings, *, cluster: str, home: str) -> AsyncIterator[Visit]:
    """Lead a cluster of which no head runs.

    Args:
        settings: How etcd is reached.
        cluster: Its name.
        home: Of the state directory that the caller holds; "" none: what a head of that one left
            when it was killed is no reason to wait.

    Raises:
        ConfigError: The servers must not be used.
        ConflictError: A head of it runs.
        StoreUnavailableError: Etcd does not answer, or refuses.
    """
    client, layout, leadership = EtcdClient(settings), Layout(cluster), Leadership()
    identity = Identity(MEMBER, home=home, version=__version__, schema=SCHEMA)
    try:
        await check_versions(client)
        await _check_alone(client, layout, identity)
        election = EtcdElection(
            client, layout, leadership, identity=lambda: identity, ttl_ms=TTL_MS
        )
        with anyio.move_on_after(LEAD_S) as scope:
            await election.campaign(last_term=0, wall_ms=0)
        if scope.cancelled_caught:
            raise StoreUnavailableError(
                f"nobody can lead cluster {cluster!r} in etcd within {LEAD_S:.0f} s",
                hint="see that a majority of etcd runs and has room; then again",
            )
        async with election.held():
            yield Visit(
                EtcdJournal(client, layout, leadership),
                layout,
                await _identity(client, layout),
                await moved_to(client, layout),
            )
    finally:
        with anyio.CancelScope(shield=True):
            await client.close()


async def _check_alone(client: EtcdClient, layout: Layout, own: Identity) -> None:
    """See that no head is up, be it one that stands by.

    Raises:
        ConflictError: One is.
    """
    members = Members(client, layout, own)
    await members.look()
    found = members.heads
    heads = (*((found.leader,) if found.leader else ()), *found.members)
    others = sorted({one.member for one in heads if not own.home or one.home != own.home})
    if others:
        raise ConflictError(
            f"heads of this cluster run: {', '.join(others)}",
            hint="stop them, trainers run on; one that was killed is forgotten within 15 s, or "
            "its leader_ttl",
        )


async def _identity(client: EtcdClient, layout: Layout) -> ClusterIdentity | None:
    request = transaction((), (get(layout.cluster), get(layout.secret)))
    answer = await client.call("KV", "Txn", request, within_s=ASK_S)
    cluster, secret = (one.response_range.kvs for one in answer.responses)
    if not cluster or not secret:
        return None
    return ClusterIdentity(cluster[0].value.decode(), bytes(secret[0].value))
