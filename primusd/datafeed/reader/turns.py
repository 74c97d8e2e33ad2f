"""Blocks that were read ahead, and whose turn it is: one after the other, or mixed. Pure.

Blocks lie in queues, oldest first. Without mixing there is one queue. With sources that are mixed
each has one, and the one that is furthest behind its weight is next (stride scheduling). In lanes
each gives as many rows as the others, in turn. Shuffled units that have fewer blocks than are to be
mixed are drawn from at random, a queue for each lease.

Source: Waldspurger and Weihl, "Stride Scheduling: Deterministic Proportional-Share Resource
Management", MIT/LCS/TM-528, 1995.
"""

from collections import deque
from collections.abc import Collection, Iterator
from typing import Generic, Protocol, TypeVar

from msgspec import Struct

from primusd.datafeed.drawing import Drawing
from primusd.datafeed.keyed import mixed
from primusd.datafeed.protocol import Lease

PATIENCE_S = 1.0
"""A source that has nothing for so long is passed over."""
STRIDE = 1 << 32
DRAW_ROWS_MIN = 4


class Sized(Protocol):
    """A block."""

    @property
    def row_count(self) -> int:
        """The number of rows."""
        ...

    @property
    def byte_count(self) -> int:
        """What it takes of memory."""
        ...


B = TypeVar("B", bound=Sized)


class Waiting(Struct, Generic[B]):
    """A block of a lease."""

    token: int
    epoch: int
    queue: int
    block: B
    byte_count: int


class Turns(Generic[B]):
    """All blocks of a stream that were read and not handed over.

    Attributes:
        batch_rows: Rows that a trainer takes at once; 0 not known, or a pipe.
        leases_mixed: Leases to have blocks of before shuffled rows are drawn.
        lane_count: Lanes of this reader, those at their end too.
        ends_batch: A round of the lanes was short: what the trainer has must do for a batch.
        is_patient: A source has nothing, and is waited for.
    """

    def __init__(self, drawing: Drawing) -> None:
        self._mixing = drawing.mixing
        self._weights = drawing.weights
        self._by_lease = drawing.shuffle is not None and drawing.mixing == "inOrder"
        self._seed = drawing.shuffle.seed if drawing.shuffle else 0
        self._draws = 0
        self._queues: dict[int, deque[Waiting[B]]] = {}
        self._passes: dict[int, int] = {}
        self._waits_since: float | None = None
        self._round: deque[tuple[int, int]] = deque()
        self._is_short = False
        self._epoch = -1
        self.batch_rows = 0
        self.leases_mixed = 1
        self.lane_count = 0
        self.ends_batch = False
        self.byte_count = 0

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    @property
    def is_patient(self) -> bool:
        """Whether a source that has nothing is waited for."""
        return self._waits_since is not None

    def queue_of(self, lease: Lease) -> int:
        """Return the queue of a lease."""
        if self._by_lease:
            return lease.token
        return lease.track if self._mixing != "inOrder" else 0

    def waiting_rows(self, queue: int) -> int:
        """Return how many rows a queue has."""
        return sum(one.block.row_count for one in self._queues.get(queue, ()))

    def waiting(self) -> Iterator[Waiting[B]]:
        """Yield all blocks, those of a queue in their order."""
        for queue in self._queues.values():
            yield from queue

    def has(self, queue: int) -> bool:
        """Return whether a queue has a block."""
        return bool(self._queues.get(queue))

    def add(self, lease: Lease, block: B) -> None:
        """Put a block behind the others of its queue."""
        queue = self.queue_of(lease)
        waiting = Waiting(lease.token, lease.epoch, queue, block, block.byte_count)
        self._queues.setdefault(queue, deque()).append(waiting)
        self.byte_count += waiting.byte_count

    def put_back(self, taken: Waiting[B], block: B) -> None:
        """Put what is left of a block in front of its queue, as if it had not been taken."""
        self.put_in_front(taken, block)
        self._count(taken.queue, -block.row_count)

    def put_in_front(self, taken: Waiting[B], block: B) -> None:
        """Put what its turn does not cover of a block in front of its queue."""
        waiting = Waiting(taken.token, taken.epoch, taken.queue, block, block.byte_count)
        self._queues.setdefault(taken.queue, deque()).appendleft(waiting)
        self.byte_count += waiting.byte_count

    def clear(self) -> None:
        """Forget all of it: nobody takes it."""
        self._queues.clear()
        self._round.clear()
        self.byte_count = 0
        self.ends_batch = False
        self._is_short = False

    def head(self, expected: Collection[int], now: float) -> Waiting[B] | None:
        """Return the block whose turn it is; None: none, or it has to be waited for.

        Args:
            expected: Queues to which more will come soon.
            now: Seconds.
        """
        if not self._queues or self.ends_batch:
            return None
        # A batch is of one epoch: the older one first.
        epoch = min(blocks[0].epoch for blocks in self._queues.values())
        if epoch != self._epoch:
            self._epoch = epoch
            self._round.clear()
        ready = [queue for queue, blocks in self._queues.items() if blocks[0].epoch == epoch]
        queue = self._next_queue(ready, expected, now)
        return None if queue is None else self._queues[queue][0]

    def take(self, waiting: Waiting[B], row_count: int) -> None:
        """Take a block off the head of its queue, of which so many rows are handed over."""
        queue = self._queues[waiting.queue]
        assert queue[0] is waiting
        queue.popleft()
        if not queue:
            del self._queues[waiting.queue]
        self.byte_count -= waiting.byte_count
        self._count(waiting.queue, row_count)

    def rows_max(self, queue: int) -> int:
        """Return how many rows a queue gives before it is another's turn; 0 any number."""
        match self._mixing:
            case "lanes":
                return self._round[0][1] if self._round else 0
            case "weighted" | "roundRobin" if self.batch_rows:
                return max(1, self.batch_rows * self._weights[queue] // sum(self._weights))
            case "inOrder" if self._by_lease and self.batch_rows and len(self._queues) > 1:
                return max(DRAW_ROWS_MIN, self.batch_rows // len(self._queues))
            case _:
                return 0

    def _next_queue(self, ready: list[int], expected: Collection[int], now: float) -> int | None:
        match self._mixing:
            case "inOrder":
                return self._next_lease(ready, expected, now) if self._by_lease else ready[0]
            case "lanes":
                return self._next_lane(ready, expected)
            case "priority":
                order = {one: (-self._weights[one], one) for one in (*ready, *expected)}
            case _:
                self._join({*ready, *expected})
                order = {one: (self._passes[one], one) for one in (*ready, *expected)}
        first = min(order, key=order.__getitem__)
        if first in ready:
            self._waits_since = None
            return first
        if self._is_waited_for(now):
            return None
        chosen = min(ready, key=order.__getitem__)
        if self._mixing != "priority":
            # Passed over, it does not catch up later.
            self._passes[first] = self._passes[chosen]
        return chosen

    def _next_lease(self, ready: list[int], expected: Collection[int], now: float) -> int | None:
        is_short = len(ready) < self.leases_mixed and not set(expected) <= set(ready)
        if is_short and self._is_waited_for(now):
            return None
        if not is_short:
            self._waits_since = None
        self._draws += 1
        return sorted(ready)[mixed(self._seed, 0, self._draws) % len(ready)]

    def _is_waited_for(self, now: float) -> bool:
        """Return whether what is missing may still come soon enough."""
        if self._waits_since is None:
            self._waits_since = now
        return now - self._waits_since < PATIENCE_S

    def _join(self, candidates: Collection[int]) -> None:
        """Let queues that were not there before begin where the others are."""
        stay = [self._passes[one] for one in candidates if one in self._passes]
        least = min(stay, default=0)
        self._passes = {one: self._passes.get(one, least) for one in candidates}

    def _next_lane(self, ready: list[int], expected: Collection[int]) -> int | None:
        while True:
            if not self._round:
                lanes = sorted({*ready, *expected})
                share = max(1, self.batch_rows // max(1, self.lane_count, len(lanes)))
                self._round.extend((lane, share) for lane in lanes)
                self._is_short = len(lanes) < self.lane_count
            lane, _ = self._round[0]
            if lane in ready:
                return lane
            if lane in expected:
                return None
            # It came to its end within its turn.
            self._round.popleft()
            self._is_short = True
            self._end_round()
            if self.ends_batch:
                return None

    def _count(self, queue: int, rows: int) -> None:
        if self._mixing == "lanes":
            self._count_lane(queue, rows)
        elif self._mixing != "inOrder":
            self._passes[queue] = self._passes.get(queue, 0) + rows * STRIDE // self._weights[queue]

    def _count_lane(self, lane: int, rows: int) -> None:
        if rows < 0 and not (self._round and self._round[0][0] == lane):
            self._round.appendleft((lane, -rows))
            self.ends_batch = False
            return
        if self._round and self._round[0][0] == lane:
            left = self._round[0][1] - rows
            self._round[0] = (lane, left)
            if left <= 0:
                self._round.popleft()
                self._end_round()

    def _end_round(self) -> None:
        if not self._round and self._is_short:
            self.ends_batch = True
