"""What a majority of etcd keeps: keys with their revisions, leases, and what happened to keys.

The part of etcd that primusd uses, request by request; `contracts/test_simulated_etcd.py` compares
it with a real server.
"""

from collections.abc import Callable
from typing import Any

import grpc

from primusd.state.etcd.messages import messages

Message = Any
"""Of the protocol; protobuf makes its classes while the program runs."""


class RefusedError(Exception):
    """Etcd says no."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class EtcdState:
    """Keys and leases.

    Attributes:
        revision: Of the last change.
        compacted: Events before this revision are gone.
        is_full: The quota is used up: nothing is put.
        on_changed: Called after each change of keys.
        on_taken: Called with each transaction whose comparisons held, once it is carried out.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.revision = 1
        self.compacted = 0
        self.is_full = False
        self.on_changed: Callable[[], None] = lambda: None
        self.on_taken: Callable[[Message], None] = lambda _request: None
        self._now_ms = now_ms
        self._rows: dict[bytes, Message] = {}
        self._events: list[Message] = []
        self._leases: dict[int, tuple[int, int]] = {}
        """TTL in seconds, and when it expires."""
        self._last_lease = 1_000

    # What is asked.

    def answer(self, method: str, request: Message) -> Message:
        """Carry out a request.

        Raises:
            RefusedError: It cannot be done.
        """
        self.expire()
        answers: dict[str, Callable[[Message], Message]] = {
            "Range": self._range,
            "Txn": self._transact,
            "LeaseGrant": self._grant,
            "LeaseRevoke": self._revoke,
            "LeaseKeepAlive": self._keep_alive,
            "Compact": self._compact,
        }
        found = answers[method](request)
        found.header.revision = self.revision
        return found

    def row(self, key: bytes) -> Message | None:
        """Return a key as it is."""
        return self._rows.get(key)

    def events(self, request: Message, from_revision: int) -> list[Message]:
        """Return what happened to the keys of a watch since a revision."""
        found = []
        for one in reversed(self._events):
            if one.kv.mod_revision < from_revision:
                break
            if _is_in(one.kv.key, request.key, request.range_end):
                found.append(one)
        return found[::-1]

    def expire(self) -> None:
        """Remove what hung on leases that are over."""
        now_ms = self._now_ms()
        for lease, (_, expires_ms) in list(self._leases.items()):
            if expires_ms <= now_ms:
                self._end_lease(lease)

    def next_expiry_ms(self) -> int | None:
        """Return when a lease expires next."""
        return min((expires_ms for _, expires_ms in self._leases.values()), default=None)

    def extend_leases(self) -> None:
        """Give every lease its whole time again, as a new leader of etcd does."""
        now_ms = self._now_ms()
        self._leases = {
            lease: (ttl_s, now_ms + ttl_s * 1000) for lease, (ttl_s, _) in self._leases.items()
        }

    # Keys.

    def _range(self, request: Message) -> Message:
        if 0 < request.revision < self.compacted:
            raise RefusedError(
                grpc.StatusCode.OUT_OF_RANGE,
                "etcdserver: mvcc: required revision has been compacted",
            )
        keys = self._of(request.key, request.range_end)
        order = messages()["RangeRequest"]
        keys.sort(reverse=request.sort_order == order.DESCEND)
        limit = request.limit or len(keys)
        answer = messages()["RangeResponse"](count=len(keys), more=len(keys) > limit)
        for key in keys[:limit]:
            kept = answer.kvs.add()
            kept.CopyFrom(self._rows[key])
            if request.keys_only:
                kept.value = b""
        return answer

    def _transact(self, request: Message) -> Message:
        answer = messages()["TxnResponse"](succeeded=all(map(self._holds, request.compare)))
        at = self.revision + 1
        before = len(self._events)
        chosen = request.success if answer.succeeded else request.failure
        if self.is_full and any(one.HasField("request_put") for one in chosen):
            raise RefusedError(
                grpc.StatusCode.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded"
            )
        for one in chosen:
            what = one.WhichOneof("request")
            part = answer.responses.add()
            if what == "request_range":
                part.response_range.CopyFrom(self._range(one.request_range))
            elif what == "request_put":
                self._put(one.request_put, at)
                part.response_put.SetInParent()
            else:
                deleted = self._delete(one.request_delete_range, at)
                part.response_delete_range.deleted = deleted
        if len(self._events) > before:
            self.revision = at
            self.on_changed()
        if answer.succeeded:
            self.on_taken(request)
        return answer

    def _holds(self, compare: Message) -> bool:
        row = self._rows.get(compare.key)
        if compare.WhichOneof("target_union") == "create_revision":
            return bool((row.create_revision if row else 0) == compare.create_revision)
        return bool((row.mod_revision if row else 0) == compare.mod_revision)

    def _put(self, request: Message, at: int) -> None:
        if request.lease and request.lease not in self._leases:
            raise RefusedError(grpc.StatusCode.NOT_FOUND, "etcdserver: requested lease not found")
        old = self._rows.get(request.key)
        row = messages()["KeyValue"](
            key=request.key,
            value=request.value,
            create_revision=old.create_revision if old else at,
            mod_revision=at,
            version=old.version + 1 if old else 1,
            lease=request.lease,
        )
        self._rows[request.key] = row
        self._events.append(messages()["Event"](kv=row))

    def _delete(self, request: Message, at: int) -> int:
        keys = sorted(self._of(request.key, request.range_end))
        for key in keys:
            del self._rows[key]
            gone = messages()["KeyValue"](key=key, mod_revision=at)
            self._events.append(messages()["Event"](type=1, kv=gone))
        return len(keys)

    def _of(self, key: bytes, end: bytes) -> list[bytes]:
        if not end:
            return [key] if key in self._rows else []
        return [one for one in self._rows if _is_in(one, key, end)]

    def _compact(self, request: Message) -> Message:
        self.compacted = request.revision
        self._events = [one for one in self._events if one.kv.mod_revision >= self.compacted]
        return messages()["CompactionResponse"]()

    # Leases.

    def _grant(self, request: Message) -> Message:
        self._last_lease += 1
        self._leases[self._last_lease] = (request.TTL, self._now_ms() + request.TTL * 1000)
        return messages()["LeaseGrantResponse"](ID=self._last_lease, TTL=request.TTL)

    def _revoke(self, request: Message) -> Message:
        if request.ID not in self._leases:
            raise RefusedError(grpc.StatusCode.NOT_FOUND, "etcdserver: requested lease not found")
        self._end_lease(request.ID)
        return messages()["LeaseRevokeResponse"]()

    def _keep_alive(self, request: Message) -> Message:
        ttl_s, _ = self._leases.get(request.ID, (0, 0))
        if ttl_s:
            self._leases[request.ID] = (ttl_s, self._now_ms() + ttl_s * 1000)
        return messages()["LeaseKeepAliveResponse"](ID=request.ID, TTL=ttl_s)

    def _end_lease(self, lease: int) -> None:
        del self._leases[lease]
        keys = [key for key, row in self._rows.items() if row.lease == lease]
        if not keys:
            return
        at = self.revision + 1
        for key in keys:
            self._delete(messages()["DeleteRangeRequest"](key=key), at)
        self.revision = at
        self.on_changed()


def _is_in(key: bytes, first: bytes, end: bytes) -> bool:
    """Return whether a key is the one named, or in the range."""
    if not end:
        return key == first
    return first <= key and (end == b"\0" or key < end)
