"""A queue of readers that others leave from the middle: first come, first served, in shards."""

from collections.abc import Iterator

from msgspec import Struct

from primusd.datafeed.ledger.shards import Shards, ShardsDraft, find
from primusd.job.ids import AttemptId


class Queue(Struct, frozen=True, array_like=True):
    """Readers by the number they drew."""

    members: Shards[int, AttemptId] = ()
    first: int = 0
    """No lower number is in it."""
    drawn: int = 0
    """Numbers that were given out."""
    count: int = 0

    def __iter__(self) -> Iterator[AttemptId]:
        """Yield the readers in their order."""
        for number in range(self.first, self.drawn):
            found = find(self.members, number, number)
            if found is not None:
                yield found


class QueueDraft:
    """A queue in the making."""

    __slots__ = ("_before", "_drawn", "_first", "_members", "count")

    def __init__(self, queue: Queue) -> None:
        self._before = queue
        self._members = ShardsDraft(queue.members)
        self._first = queue.first
        self._drawn = queue.drawn
        self.count = queue.count

    def join(self, attempt: AttemptId) -> int:
        """Add a reader at the end; return its number, by which it leaves."""
        number = self._drawn
        self._members.put(number, number, attempt)
        self._drawn += 1
        self.count += 1
        return number

    def leave(self, number: int) -> None:
        """Remove the reader with a number."""
        self._members.drop(number, number)
        self.count -= 1

    def head(self) -> AttemptId | None:
        """Return who is first, None when nobody waits."""
        while self._first < self._drawn:
            found = self._members.find(self._first, self._first)
            if found is not None:
                return found
            self._first += 1
        return None

    def result(self) -> Queue:
        """Return the queue with the changes; the same object when there are none."""
        if self._members.is_same and self._drawn == self._before.drawn:
            return self._before
        self.head()
        return Queue(self._members.result(), self._first, self._drawn, self.count)
