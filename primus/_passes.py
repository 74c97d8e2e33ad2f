"""A feed cut at its epochs, for loops that begin anew with each."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from primus.feed import Feed

if TYPE_CHECKING:  # numpy is loaded when the first stream is opened.
    from primus.batches import AnyBatch


class Passes:
    """Gives the batches of one epoch after the other.

    The first batch of the next epoch is held until it is asked for; what came before it is used by
    then, so that nothing is said to be used too early.

    Args:
        feed: Which nobody else reads.
    """

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self._next: AnyBatch | None = None

    def peek(self) -> "AnyBatch | None":
        """Return the next batch without taking it, None at the end of the stream."""
        if self._next is None:
            self._next = next(self.feed, None)
        return self._next

    def one(self) -> "Iterator[AnyBatch]":
        """Yield the batches up to the end of the epoch that is next; none at the stream's end.

        Left before its end, the next call goes on where it was.
        """
        first = self.peek()
        if first is None:
            return
        epoch = first.epoch
        while (batch := self.peek()) is not None and batch.epoch == epoch:
            self._next = None
            yield batch
