"""Values as they lie in etcd: in parts of at most 256 KiB, the first of which tells the rest."""

from collections.abc import Iterable, Iterator, Mapping

import msgspec
from msgspec import Struct

from primusd.errors import StoreUnavailableError
from primusd.state.etcd.layout import part, split

VALUE_BYTES_MAX = 256 << 10
PART_BYTES_MAX = VALUE_BYTES_MAX - 64
"""Room for what stands around the body in the first part."""


class Stored(Struct, frozen=True, array_like=True):
    """The first part of a value."""

    parts: int
    """How many there are."""
    covers: int
    """Revision that a snapshot covers; 0 of an entry."""
    body: bytes


encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Stored).decode


def cut(key: bytes, covers: int, body: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield key and content of each part of a value, the first one first."""
    pieces = [
        body[first : first + PART_BYTES_MAX]
        for first in range(0, max(1, len(body)), PART_BYTES_MAX)
    ]
    yield key, encode(Stored(len(pieces), covers, pieces[0]))
    for number, piece in enumerate(pieces[1:], start=1):
        yield part(key, number), piece


def part_count(byte_count: int) -> int:
    """Return in how many parts a body is cut."""
    return max(1, -(-byte_count // PART_BYTES_MAX))


def first_part(key: bytes, value: bytes) -> Stored:
    """Return what the first part of a value says.

    Raises:
        StoreUnavailableError: It cannot be read.
    """
    try:
        return _decode(value)
    except msgspec.MsgspecError as error:
        raise _damaged(key, error) from error


def joined(found: Mapping[bytes, bytes], prefix: bytes) -> Iterator[tuple[bytes, int, int, bytes]]:
    """Yield what values there are: key without the prefix, covers, parts, body, in key order.

    Args:
        found: Keys and contents.
        prefix: Of the keys that are wanted.

    Raises:
        StoreUnavailableError: A part is missing, or cannot be read.
    """
    for key in sorted(_names(found, prefix)):
        try:
            first = _decode(found[key])
            rest = [found[part(key, number)] for number in range(1, first.parts)]
        except (msgspec.MsgspecError, KeyError) as error:
            raise _damaged(key, error) from error
        yield key[len(prefix) :], first.covers, first.parts, b"".join((first.body, *rest))


def _names(found: Iterable[bytes], prefix: bytes) -> set[bytes]:
    return {split(key)[0] for key in found if key.startswith(prefix)}


def _damaged(key: bytes, error: Exception) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"{key.decode(errors='replace')} in etcd is damaged: {error}",
        hint="restore the store from a copy",
    )
