"""Rows as bytes, one after the other: what layouts `lines` and `raw` hand over."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from primus import wire

if TYPE_CHECKING:
    from primus.batches import Span


class ByteRows:
    """The rows of a frame, or some of them, and where each ends."""

    __slots__ = ("ends", "text")

    def __init__(self, text: Any, ends: Any) -> None:
        self.text = text
        self.ends = ends

    def slice(self, first: int, count: int | None = None) -> "ByteRows":
        """Return some of the rows; all from one on by default."""
        ends = self.ends[first:] if count is None else self.ends[first : first + count]
        begin = int(self.ends[first - 1]) if first else 0
        last = int(ends[-1]) if len(ends) else begin
        return ByteRows(self.text[begin:last], ends - begin)


class BytesBatch(Sequence[bytes]):
    r"""Rows as bytes; a sequence of them, each without its line end.

    Attributes:
        data: All of them, one after the other: as layout `lines` each with `\n` behind it.
        rows: As of Batch, like all that follow.
        epoch: As of Batch.
        receipt: As of Batch.
        spans: As of Batch.
        is_pad: As of Batch.
    """

    __slots__ = ("_ends", "_gap", "data", "epoch", "is_pad", "receipt", "rows", "spans")

    rows: int
    epoch: int
    receipt: int
    spans: "tuple[Span, ...]"
    is_pad: bool

    def __init__(self, rows: ByteRows, *, gap: int) -> None:
        self.data: memoryview | bytes = rows.text
        self._ends = rows.ends
        self._gap = gap

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, place: int) -> bytes: ...
    @overload
    def __getitem__(self, place: slice) -> list[bytes]: ...

    def __getitem__(self, place: int | slice) -> bytes | list[bytes]:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(len(self)))]
        at = place + len(self) if place < 0 else place
        if not 0 <= at < len(self):
            raise IndexError(place)
        begin = int(self._ends[at - 1]) if at else 0
        return bytes(self.data[begin : int(self._ends[at]) - self._gap])

    def __iter__(self) -> Iterator[bytes]:
        begin = 0
        for end in self._ends.tolist():
            yield bytes(self.data[begin : end - self._gap])
            begin = end


def decoded(payload: memoryview, row_count: int) -> ByteRows:
    """Return the rows of a payload of kind `BYTE_ROWS`, views of it."""
    ends = np.frombuffer(payload, np.int64, row_count)
    begin = ends.nbytes + wire.padding(ends.nbytes)
    return ByteRows(payload[begin:], ends)


def joined(pieces: Sequence[ByteRows]) -> ByteRows:
    """Return the rows of several pieces as one."""
    if len(pieces) == 1:
        return pieces[0]
    begins = np.cumsum([0, *(len(one.text) for one in pieces[:-1])])
    ends = np.concatenate([one.ends + begin for one, begin in zip(pieces, begins, strict=True)])
    return ByteRows(b"".join(one.text for one in pieces), ends)
