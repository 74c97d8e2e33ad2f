"""What transactions are made of, and how large one may be."""

from collections.abc import Sequence
from typing import Any

from primusd.state.etcd.messages import messages

TXN_OPERATIONS_MAX = 120
"""Etcd takes 128 (`--max-txn-ops`); a few are ours in each."""
TXN_BYTES_MAX = 1 << 20
"""Etcd takes 1.5 MiB (`--max-request-bytes`)."""

Operation = Any
"""A `RequestOp`; protobuf makes its class while the program runs."""


def put(key: bytes, value: bytes, *, lease: int = 0) -> Operation:
    """Return what writes a value."""
    known = messages()
    return known["RequestOp"](request_put=known["PutRequest"](key=key, value=value, lease=lease))


def get(key: bytes) -> Operation:
    """Return what reads a value within a transaction."""
    known = messages()
    return known["RequestOp"](request_range=known["RangeRequest"](key=key))


def delete(key: bytes, end: bytes = b"") -> Operation:
    """Return what removes a key, or all from it to before `end`."""
    known = messages()
    request = known["DeleteRangeRequest"](key=key, range_end=end)
    return known["RequestOp"](request_delete_range=request)


def created_at(key: bytes, revision: int) -> Any:
    """Return what holds while a key is the one made at a revision; 0: while there is none."""
    compare = messages()["Compare"]
    return compare(result=compare.EQUAL, target=compare.CREATE, key=key, create_revision=revision)


def changed_at(key: bytes, revision: int) -> Any:
    """Return what holds while nobody wrote a key since a revision; 0: while there is none."""
    compare = messages()["Compare"]
    return compare(result=compare.EQUAL, target=compare.MOD, key=key, mod_revision=revision)


def transaction(
    holds: Sequence[Any], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
) -> Any:
    """Return a request that does one thing or the other."""
    return messages()["TxnRequest"](compare=holds, success=then, failure=otherwise)


def prefix_end(prefix: bytes) -> bytes:
    """Return the first key behind all that begin with a prefix."""
    raw = bytearray(prefix)
    for position in reversed(range(len(raw))):
        if raw[position] < 0xFF:
            raw[position] += 1
            return bytes(raw[: position + 1])
    return b"\0"
