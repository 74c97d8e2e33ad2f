"""One read of all that a cluster has in etcd, in pages and at one revision."""

import grpc.aio
from msgspec import Struct

from primusd.errors import StoreUnavailableError
from primusd.state.etcd.client import EtcdClient
from primusd.state.etcd.messages import messages
from primusd.state.etcd.requests import prefix_end

PAGE_KEYS = 5_000
"""Etcd counts all that is left for each page, so small ones cost much."""
READ_S = 30.0
PAGE_S = 10.0
ATTEMPTS = 3


class Row(Struct, frozen=True):
    """A key's value, and when it was written."""

    value: bytes
    created: int
    changed: int
    lease: int


class Read(Struct, frozen=True):
    """What was found."""

    revision: int
    """Of etcd."""
    rows: dict[bytes, Row]


async def read_all(client: EtcdClient, prefix: bytes, *, page_keys: int = PAGE_KEYS) -> Read:
    """Return all rows below a prefix, as of one revision.

    Raises:
        StoreUnavailableError: Etcd does not answer, or refuses.
    """
    for attempt in range(ATTEMPTS):
        try:
            return await _read(client, prefix, page_keys)
        except StoreUnavailableError as error:
            # Somebody compacted between two pages; or a page is larger than a message may be.
            page_keys = max(1, page_keys // 8)
            cause = error.__cause__
            is_known = isinstance(cause, grpc.aio.AioRpcError) and cause.code() in {
                grpc.StatusCode.OUT_OF_RANGE,
                grpc.StatusCode.RESOURCE_EXHAUSTED,
            }
            if not is_known or attempt == ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable: the last attempt returns or raises")


async def _read(client: EtcdClient, prefix: bytes, page_keys: int) -> Read:
    key, end, revision = prefix, prefix_end(prefix), 0
    rows: dict[bytes, Row] = {}
    while True:
        request = messages()["RangeRequest"](
            key=key, range_end=end, limit=page_keys, revision=revision
        )
        answer = await client.call("KV", "Range", request, within_s=READ_S, try_s=PAGE_S)
        revision = revision or answer.header.revision
        for one in answer.kvs:
            rows[one.key] = Row(one.value, one.create_revision, one.mod_revision, one.lease)
        if not answer.more:
            return Read(revision, rows)
        key = answer.kvs[-1].key + b"\0"
