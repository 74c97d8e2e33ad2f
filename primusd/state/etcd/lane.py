"""Fenced writes: each compares the leader key and the lane, and rewrites the lane.

The leader key alone would not do. A try that timed out may be carried out later, by a member that
hung meanwhile, and undo what was written since by the same leader; the lane makes it fail. A number
is used for one write only, so a lane that carries it says that this very write has landed.
"""

from collections.abc import Sequence
from typing import Any

import structlog

from primusd.errors import DeposedError, StoreFullError, StoreUnavailableError
from primusd.state.etcd.client import EtcdClient
from primusd.state.etcd.layout import Layout
from primusd.state.etcd.leadership import Leadership
from primusd.state.etcd.messages import messages
from primusd.state.etcd.requests import Operation, changed_at, created_at, get, put, transaction

log = structlog.get_logger()


class Lane:
    """The one row in which the writes of a cluster stand."""

    def __init__(self, client: EtcdClient, layout: Layout, leadership: Leadership) -> None:
        self._client = client
        self._layout = layout
        self._leadership = leadership
        self._revision = -1
        """At which the lane was last written, as far as known; -1: it has to be read."""
        self._sequence = 0
        self._last_created = 0

    def was_read(self, revision: int, value: bytes) -> None:
        """Go on behind what stands in etcd.

        Args:
            revision: At which the lane was written; 0 never.
            value: Of it.
        """
        self._revision = revision
        term, _, sequence = value.partition(b".")
        if term == b"%d" % self._leadership.created:
            self._sequence = max(self._sequence, int(sequence))

    def forget(self) -> None:
        """Write nothing until the lane was read again."""
        self._revision = -1

    async def write(self, operations: Sequence[Operation]) -> None:
        """Carry out all of it or nothing, as the leader.

        Raises:
            DeposedError: This head does not lead any more; nothing was written.
            StoreFullError: Etcd has no room; nothing was written.
            StoreUnavailableError: It is not known whether it was written: the lane has to be read.
        """
        left_s = self._leadership.check()
        if self._revision < 0:
            raise StoreUnavailableError("the journal has to be loaded again")
        created = self._leadership.created
        if created != self._last_created:
            self._last_created, self._sequence = created, 0
        self._sequence += 1
        value = b"%d.%d" % (created, self._sequence)
        layout = self._layout
        request = transaction(
            self._fences(created),
            (put(layout.lane, value), *operations),
            (get(layout.leader), get(layout.lane)),
        )
        before, self._revision = self._revision, -1
        try:
            answer = await self._client.call("KV", "Txn", request, within_s=left_s)
        except StoreFullError:
            if await self._has_landed(value):
                return
            raise
        if answer.succeeded:
            self._revision = answer.header.revision
            return
        leader, lane = (one.response_range.kvs for one in answer.responses)
        if lane and lane[0].value == value:
            # An earlier try of this very write had landed.
            self._revision = lane[0].mod_revision
            return
        if not leader or leader[0].create_revision != created:
            self._leadership.end()
            raise DeposedError("another daemon leads: what this one wrote last was not taken")
        found = lane[0].value.decode(errors="replace") if lane else ""
        log.error("lane.moved", found=found, at_revision=before)
        raise StoreUnavailableError(
            f"somebody wrote beside us: the lane in etcd says {found!r}; the state is read again"
        )

    async def _has_landed(self, value: bytes) -> bool:
        """Return whether a write was carried out that etcd had no room for: the last one is.

        The write by which its file grows over the quota is applied, and answered with NOSPACE.
        """
        request = messages()["RangeRequest"](key=self._layout.lane)
        answer = await self._client.call("KV", "Range", request, within_s=self._leadership.check())
        if not answer.kvs or answer.kvs[0].value != value:
            return False
        self._revision = answer.kvs[0].mod_revision
        return True

    def _fences(self, created: int) -> tuple[Any, ...]:
        """Return what has to hold for a write: we lead, and nobody wrote since, not even we."""
        layout = self._layout
        return created_at(layout.leader, created), changed_at(layout.lane, self._revision)
