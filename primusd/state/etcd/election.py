"""Who leads: whose key is bound to a lease that lives. The term is the key's creation revision."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

import anyio
import grpc.aio
import structlog

from primusd.errors import DeposedError, PrimusdError, StoreUnavailableError
from primusd.state.election import Identity
from primusd.state.etcd.client import EtcdClient
from primusd.state.etcd.layout import Layout
from primusd.state.etcd.leadership import (
    Leadership,
    decode_identity,
    encode_identity,
)
from primusd.state.etcd.messages import messages
from primusd.state.etcd.requests import created_at, put, transaction
from primusd.state.etcd.watching import CompactedError, Event, watch

log = structlog.get_logger()

MARGIN_S_MIN = 0.5
MARGIN_PART = 0.1
"""Of the TTL: so much earlier than the lease can expire we stop, for clocks run unevenly."""
RENEW_PART = 1 / 3
RENEW_AGAIN_S = 0.05
TRY_S_MIN = 0.3
GUARD_S = 0.1
REVOKE_S = 0.8
AGAIN_S = 0.5
ASIDE_S = 2.0
LOOK_AGAIN_S = 5.0
"""How long a watch of the leader is believed: should it be silent for another reason, we look."""


class EtcdElection:
    """This head's part in the election."""

    def __init__(
        self,
        client: EtcdClient,
        layout: Layout,
        leadership: Leadership,
        *,
        identity: Callable[[], Identity],
        ttl_ms: int,
    ) -> None:
        """Take part with the next `campaign`.

        Args:
            client: Connections.
            layout: Of the cluster.
            leadership: Set here, asked by the journal.
            identity: What the leader key says of this head.
            ttl_ms: Of the lease.
        """
        self._client = client
        self._layout = layout
        self._leadership = leadership
        self._identity = identity
        self._ttl_s = ttl_ms / 1000
        self._told = ""
        self._resigns = anyio.Event()

    async def campaign(self, *, last_term: int, wall_ms: int) -> int:
        """Wait until this head leads; return the creation revision of its key.

        Args:
            last_term: Not looked at: revisions of etcd only grow.
            wall_ms: Likewise.
        """
        if self._resigns.is_set():
            await self._stand_aside()
        while True:
            try:
                await self._revoke(self._ttl_s)
                if await self._try():
                    self._told = ""
                    return self._leadership.created
            except CompactedError:
                continue
            except StoreUnavailableError as error:
                if error.message != self._told:
                    self._told = error.message
                    log.warning("election.failed", text=error.message)
                await anyio.sleep(AGAIN_S)

    async def resign(self) -> None:
        """Let another lead: the scope is cancelled, and its end revokes the lease."""
        self._resigns.set()

    def held(self) -> AbstractAsyncContextManager[None]:
        """Return a scope that is cancelled when leadership is lost; its end gives leadership up.

        Raises:
            DeposedError: Out of the scope, in a group: this head leads no more.
        """
        return self._held()

    @asynccontextmanager
    async def _held(self) -> AsyncIterator[None]:
        self._resigns = anyio.Event()
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._renew)
                group.start_soon(self._guard)
                group.start_soon(self._hear_resignation)
                yield
                group.cancel_scope.cancel()
        finally:
            self._leadership.end()
            with anyio.CancelScope(shield=True):
                with suppress(PrimusdError):
                    await self._revoke(REVOKE_S)

    async def _stand_aside(self) -> None:
        """Let whoever waits have its turn: return once another one leads, or nobody took it."""

        def is_set(events: Sequence[Event]) -> bool:
            return any(one.type == 0 for one in events)

        leader = self._layout.leader
        request = messages()["RangeRequest"](key=leader)
        # Where etcd is away nobody else leads either.
        with anyio.move_on_after(ASIDE_S), suppress(StoreUnavailableError, CompactedError):
            found = await self._client.call("KV", "Range", request, within_s=ASIDE_S)
            if not found.kvs or found.kvs[0].lease == self._leadership.lease:
                await watch(self._client, leader, b"", found.header.revision + 1, is_set)

    async def _try(self) -> bool:
        """Try once, and return whether we lead; else only once whoever leads is gone."""
        client, layout, lead = self._client, self._layout, self._leadership
        asked_s, try_s = lead.clock_s(), max(TRY_S_MIN, self._ttl_s / 4)
        grant = messages()["LeaseGrantRequest"](TTL=round(self._ttl_s))
        granted = await client.call(
            "Lease", "LeaseGrant", grant, within_s=self._ttl_s / 2, try_s=try_s
        )
        lead.lease = granted.ID
        value = encode_identity(self._identity())
        request = transaction(
            (created_at(layout.leader, 0),), (put(layout.leader, value, lease=granted.ID),)
        )
        with suppress(StoreUnavailableError):
            # Not known whether it was carried out: what stands there says it.
            await client.call("KV", "Txn", request, within_s=self._ttl_s / 2, try_s=try_s)
        found = await client.call(
            "KV",
            "Range",
            messages()["RangeRequest"](key=layout.leader),
            within_s=self._ttl_s,
            try_s=try_s,
        )
        if found.kvs and found.kvs[0].lease == granted.ID:
            lead.created = found.kvs[0].create_revision
            lead.deadline_s = asked_s + granted.TTL - self._margin_s
            if lead.left_s:
                return True
            lead.end()
        await self._revoke(REVOKE_S)
        if found.kvs and not await self._is_own_past(found.kvs[0]):
            await self._wait_gone(found.header.revision + 1)
        return False

    async def _is_own_past(self, leader: Any) -> bool:
        """Revoke the lease of a leader that was this very head before it was started anew.

        Nobody else can be it: the lock of its state directory is ours.
        """
        known, own = decode_identity(leader.value), self._identity()
        if not own.home or known.home != own.home or leader.lease == self._leadership.lease:
            return False
        self._leadership.lease = leader.lease
        await self._revoke(self._ttl_s)
        return True

    async def _wait_gone(self, revision: int) -> None:
        """Return once the leader key is deleted, or it is time to look again."""

        def is_gone(events: Sequence[Event]) -> bool:
            return any(one.type == 1 for one in events)

        with anyio.move_on_after(LOOK_AGAIN_S):
            await watch(self._client, self._layout.leader, b"", revision, is_gone)

    async def _renew(self) -> None:
        """Renew the lease in time, at whichever endpoint answers."""
        while True:
            await anyio.sleep(self._ttl_s * RENEW_PART)
            while not await self._renew_once():  # noqa: ASYNC110 - etcd is asked.
                await anyio.sleep(RENEW_AGAIN_S)

    async def _renew_once(self) -> bool:
        lead = self._leadership
        asked_s = lead.clock_s()
        within_s = max(TRY_S_MIN, min(self._ttl_s * RENEW_PART, lead.check()))
        try:
            ttl_s = await self._client.keep_alive(lead.lease, within_s=within_s)
        except StoreUnavailableError:
            return False
        self._was_renewed(asked_s, ttl_s)
        return True

    def _was_renewed(self, asked_s: float, ttl_s: int) -> None:
        """Lead on for as long as the lease certainly lives: counted from when we asked."""
        if ttl_s <= 0:
            raise DeposedError("the lease of this leader has expired")
        lead = self._leadership
        lead.deadline_s = max(lead.deadline_s, asked_s + ttl_s - self._margin_s)

    async def _guard(self) -> None:
        """Raise as soon as the lease may have expired, whatever else hangs."""
        while left_s := self._leadership.check():  # noqa: ASYNC110 - a clock is asked.
            await anyio.sleep(min(left_s, GUARD_S))

    async def _hear_resignation(self) -> None:
        await self._resigns.wait()
        raise DeposedError("this daemon was told to let another lead")

    async def _revoke(self, within_s: float) -> None:
        """Give up our lease, and with it the key, where there is one."""
        lease = self._leadership.lease
        if not lease:
            return
        self._leadership.end()
        request = messages()["LeaseRevokeRequest"](ID=lease)
        try:
            await self._client.call("Lease", "LeaseRevoke", request, within_s=within_s, try_s=0.4)
        except StoreUnavailableError as error:
            cause = error.__cause__
            is_gone = (
                isinstance(cause, grpc.aio.AioRpcError)
                and cause.code() is grpc.StatusCode.NOT_FOUND
            )
            if not is_gone:
                raise
        self._leadership.lease = 0

    @property
    def _margin_s(self) -> float:
        return max(MARGIN_S_MIN, self._ttl_s * MARGIN_PART)
