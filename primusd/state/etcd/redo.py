"""How a write that is too large for one transaction is all or nothing all the same.

Its operations are written to `redo/` first, piece by piece; then `redo/head`, in one transaction,
says that they count. From there on they are carried out, and whoever reads meanwhile lays them over
what stands there. A redo without a head is nothing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec import Struct

from primusd.state.etcd.layout import Layout
from primusd.state.etcd.requests import TXN_BYTES_MAX, TXN_OPERATIONS_MAX, Operation, delete, put
from primusd.state.etcd.values import VALUE_BYTES_MAX

PIECE_BYTES_MAX = VALUE_BYTES_MAX
_CHANGE_BYTES = 512
"""What a change takes beside its value, at most: its keys."""


class Change(Struct, frozen=True, array_like=True):
    """One change of a key."""

    key: bytes
    value: bytes = b""
    """b"" removes the key: no value of ours is empty."""
    end: bytes = b""
    """Of a removal: all keys from `key` to before it."""

    def operation(self) -> Operation:
        """Return it as a part of a transaction."""
        return put(self.key, self.value) if self.value else delete(self.key, self.end)

    def removes(self, key: bytes) -> bool:
        """Return whether a key is within the range that it removes."""
        return self.key <= key < self.end

    @property
    def byte_count(self) -> int:
        """How much of a transaction it takes, about."""
        return len(self.value) + _CHANGE_BYTES


encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[Change, ...]).decode


def head(layout: Layout) -> bytes:
    """Return the key that says how many pieces count."""
    return layout.redo + b"head"


def batches(changes: Sequence[Change]) -> Iterator[tuple[Change, ...]]:
    """Yield the changes in transactions that etcd takes.

    It takes none that writes a key and removes it: what is written again is so in the next one.
    """
    some: list[Change] = []
    ranges: list[Change] = []
    byte_count = 0
    for change in changes:
        is_full = byte_count + change.byte_count > TXN_BYTES_MAX
        is_full |= len(some) >= TXN_OPERATIONS_MAX
        if some and (is_full or any(one.removes(change.key) for one in ranges)):
            yield tuple(some)
            some, ranges, byte_count = [], [], 0
        some.append(change)
        if change.end:
            ranges.append(change)
        byte_count += change.byte_count
    if some:
        yield tuple(some)


def written(layout: Layout, changes: Sequence[Change]) -> tuple[Change, ...]:
    """Return what writes changes down and carries none out; the last of it makes them count."""
    data = encode(tuple(changes))
    pieces = [
        Change(layout.redo + b"%06d" % number, data[first : first + PIECE_BYTES_MAX])
        for number, first in enumerate(range(0, len(data), PIECE_BYTES_MAX))
    ]
    return (*pieces, Change(head(layout), b"%d" % len(pieces)))


def read(layout: Layout, found: Mapping[bytes, bytes]) -> tuple[Change, ...]:
    """Return the changes that count and may not all be carried out yet."""
    count = found.get(head(layout))
    if count is None:
        return ()
    pieces = (found[layout.redo + b"%06d" % number] for number in range(int(count)))
    return _decode(b"".join(pieces))


def laid_over(found: Mapping[bytes, bytes], changes: Iterable[Change]) -> dict[bytes, bytes]:
    """Return keys and contents as they are once the changes are carried out."""
    over = dict(found)
    for change in changes:
        if change.value:
            over[change.key] = change.value
        elif change.end:
            for key in [one for one in over if change.key <= one < change.end]:
                del over[key]
        else:
            over.pop(change.key, None)
    return over


def done(layout: Layout) -> Change:
    """Return what lets go of all that was written down."""
    return Change(layout.redo, b"", layout.redo + b"\xff")
