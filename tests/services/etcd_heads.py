"""A head's store in etcd as tests use it: it leads as soon as it loads, and not before."""

from contextlib import AsyncExitStack
from types import TracebackType

from primusd.records import Entry
from primusd.state.election import Identity
from primusd.state.etcd.client import EtcdClient, EtcdSettings
from primusd.state.etcd.election import EtcdElection
from primusd.state.etcd.journal import EtcdJournal
from primusd.state.etcd.layout import Layout
from primusd.state.etcd.leadership import Leadership
from primusd.state.journal import Loaded, Snapshot

TTL_MS = 5_000
TRY_MS = 500


class Store:
    """Client, election and journal of one head.

    Attributes:
        client: Made in the running loop.
        leadership: Of this head.
        election: Its part in it.
        journal: Of the cluster.
    """

    def __init__(
        self,
        endpoints: tuple[str, ...],
        cluster: str,
        *,
        member: str = "a",
        home: str = "",
        ttl_ms: int = TTL_MS,
        settings: EtcdSettings | None = None,
    ) -> None:
        self.client = EtcdClient(settings or EtcdSettings(endpoints, try_ms=TRY_MS))
        self.leadership = Leadership()
        self.layout = Layout(cluster)
        identity = Identity(member, home=home)
        self.election = EtcdElection(
            self.client, self.layout, self.leadership, identity=lambda: identity, ttl_ms=ttl_ms
        )
        self.journal = EtcdJournal(self.client, self.layout, self.leadership)

    async def __aenter__(self) -> "Store":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.client.close()

    async def lead(self) -> int:
        """Campaign, and read what there is."""
        term = await self.election.campaign(last_term=0, wall_ms=0)
        await self.journal.load()
        return term


class LeadingJournal:
    """A journal whose head leads from its first load on, until it is closed."""

    def __init__(self, endpoints: tuple[str, ...], cluster: str) -> None:
        self._endpoints = endpoints
        self._cluster = cluster
        self._open: AsyncExitStack | None = None
        self._store: Store | None = None

    async def load(self) -> Loaded:
        if self._store is None:
            # The same home each time: who comes back need not wait for its own lease.
            store = Store(self._endpoints, self._cluster, home=self._cluster)
            self._open = AsyncExitStack()
            await self._open.enter_async_context(store)
            await store.election.campaign(last_term=0, wall_ms=0)
            await self._open.enter_async_context(store.election.held())
            self._store = store
        return await self._store.journal.load()

    async def entries(self) -> tuple[Entry, ...]:
        assert self._store is not None
        return await self._store.journal.entries()

    async def append(
        self, entry: Entry | None, snapshots: tuple[Snapshot, ...] = (), keep_from: int = 0
    ) -> None:
        assert self._store is not None
        await self._store.journal.append(entry, snapshots, keep_from)

    async def replace(self, loaded: Loaded) -> None:
        assert self._store is not None
        await self._store.journal.replace(loaded)

    async def close(self) -> None:
        if self._open is not None:
            await self._open.aclose()
        self._open = self._store = None
