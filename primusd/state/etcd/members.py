"""The heads of a cluster: each has a key bound to a lease, and reads those of the others."""

import anyio
import structlog
from msgspec import structs

from primusd.errors import ConfigError, PrimusdError, StoreUnavailableError
from primusd.state.election import Heads, Identity, News
from primusd.state.etcd.client import EtcdClient
from primusd.state.etcd.layout import Layout
from primusd.state.etcd.leadership import decode_identity, encode_identity
from primusd.state.etcd.messages import messages
from primusd.state.etcd.requests import created_at, get, prefix_end, put, transaction
from primusd.state.etcd.watching import CompactedError, watch

log = structlog.get_logger()

MEMBER_TTL_S = 15
LOOK_S = 2.0
"""Beside the watch, for a member of etcd that hangs keeps its watches open."""
ASK_S = 3.0


class Members:
    """This head among the others.

    Attributes:
        heads: As last read.
        news: Told when they are others than before.
    """

    def __init__(
        self, client: EtcdClient, layout: Layout, identity: Identity, *, news: News | None = None
    ) -> None:
        self.heads = Heads()
        self.news = news or News()
        self._at = 0
        """Revision of etcd at which they were read."""
        self._client = client
        self._layout = layout
        self._identity = identity
        self._written: Identity | None = None
        """What the own key says."""
        self._changed = anyio.Event()
        self._lease = 0

    def tell_ready(self, is_ready: bool) -> None:  # noqa: FBT001 - all there is to tell.
        """Let the others know whether this head could take over at once."""
        if self._identity.ready is not is_ready:
            self._identity = structs.replace(self._identity, ready=is_ready)
            self._changed.set()

    async def run(self) -> None:
        """Keep the own key, and look at the others, until cancelled; then take the key away."""
        told = ""
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._watch)
                while True:
                    self._changed = anyio.Event()
                    try:
                        await self._keep()
                        await self.look()
                        told = ""
                    except (StoreUnavailableError, ConfigError) as error:
                        if error.message != told:
                            told = error.message
                            log.warning("members.unknown", text=told)
                    with anyio.move_on_after(LOOK_S):
                        await self._changed.wait()
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(ASK_S / 4):
                await self._leave()

    async def _watch(self) -> None:
        """Look as soon as somebody comes, goes or leads."""
        layout = self._layout
        # Between the two there is no key that is written often.
        first, end = layout.leader, prefix_end(layout.members)
        while True:
            try:
                await watch(self._client, first, end, self._at + 1, lambda _events: True)
                await self.look()
            except (CompactedError, StoreUnavailableError):
                await anyio.sleep(LOOK_S)

    async def look(self) -> None:
        """Read who is there.

        Raises:
            StoreUnavailableError: Etcd does not answer.
        """
        known = messages()
        layout = self._layout
        everybody = known["RequestOp"](
            request_range=known["RangeRequest"](
                key=layout.members, range_end=prefix_end(layout.members)
            )
        )
        answer = await self._client.call(
            "KV", "Txn", transaction((), (get(layout.leader), everybody)), within_s=ASK_S
        )
        if answer.header.revision < self._at:
            # Another look has overtaken this one.
            return
        leader, members = (one.response_range.kvs for one in answer.responses)
        before, self._at = self.heads, answer.header.revision
        self.heads = Heads(
            leader=decode_identity(leader[0].value) if leader else None,
            term=leader[0].create_revision if leader else 0,
            members=tuple(decode_identity(one.value) for one in members),
        )
        if self.heads != before:
            self.news.tell()

    async def join(self) -> None:
        """Make the own key.

        Raises:
            ConfigError: Another head has that name.
            StoreUnavailableError: Etcd does not answer.
        """
        known = messages()
        grant = known["LeaseGrantRequest"](TTL=MEMBER_TTL_S)
        granted = await self._client.call("Lease", "LeaseGrant", grant, within_s=ASK_S)
        identity = self._identity
        key = self._layout.member(identity.member)
        own = put(key, encode_identity(identity), lease=granted.ID)
        request = transaction((created_at(key, 0),), (own,), (get(key),))
        answer = await self._client.call("KV", "Txn", request, within_s=ASK_S)
        if not answer.succeeded:
            (there,) = answer.responses[0].response_range.kvs
            other = decode_identity(there.value)
            if other.home != identity.home:
                raise ConfigError(
                    f"another head of this cluster is called {other.member!r} "
                    f"({', '.join(other.addresses) or 'without an address'})",
                    hint="give this one another `member`; one that is gone is forgotten in 15 s",
                )
            # Ourselves, before a restart.
            await self._client.call("KV", "Txn", transaction((), (own,)), within_s=ASK_S)
        self._lease, self._written = granted.ID, identity

    async def _keep(self) -> None:
        """Renew the lease; make a new one, and the key, where there is none."""
        if not self._lease or await self._client.keep_alive(self._lease, within_s=ASK_S) <= 0:
            await self.join()
        elif self._written is not (identity := self._identity):
            key = self._layout.member(identity.member)
            own = put(key, encode_identity(identity), lease=self._lease)
            await self._client.call("KV", "Txn", transaction((), (own,)), within_s=ASK_S)
            self._written = identity

    async def _leave(self) -> None:
        if not self._lease:
            return
        request = messages()["LeaseRevokeRequest"](ID=self._lease)
        try:
            await self._client.call("Lease", "LeaseRevoke", request, within_s=ASK_S / 4)
        except PrimusdError:
            # It expires by itself.
            return
