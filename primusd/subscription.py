"""What the engine publishes, and bounded queues of it for those who follow."""

from collections import deque

import anyio
from msgspec import Struct

from primusd.core import World
from primusd.errors import PrimusdError
from primusd.records import Entry

PUBLISHED_WAITING_MAX = 1_024
"""A follower that is further behind than this is cut off: it must list again."""


class Published(Struct, frozen=True):
    """An entry that is durable, and what it changed."""

    entry: Entry
    before: World
    after: World
    touched: tuple[str, ...]
    """Machines whose value changed."""


class CutOffError(PrimusdError):
    """The follower was too slow, or the world was loaded anew: list again."""

    code = "ResourceVersionTooOld"
    status = 410


class Subscription:
    """A bounded queue of published changes."""

    def __init__(self) -> None:
        self._queue: deque[Published] = deque()
        self._arrived = anyio.Event()
        self._reason = ""

    def push(self, published: Published) -> bool:
        """Add a change; False when the follower is cut off and gets no more."""
        if len(self._queue) >= PUBLISHED_WAITING_MAX:
            self.cut("the reader is too slow")
        if self._reason:
            return False
        self._queue.append(published)
        self._arrived.set()
        return True

    def cut(self, reason: str) -> None:
        """End it: the follower hears the reason in place of further changes."""
        self._reason = self._reason or reason
        self._queue.clear()
        self._arrived.set()

    async def next(self) -> Published:
        """Return the next change, in the order of the journal.

        Raises:
            CutOffError: No more will come.
        """
        await self._arrived.wait()
        if self._reason:
            raise CutOffError(f"the subscription ended: {self._reason}")
        published = self._queue.popleft()
        if not self._queue:
            self._arrived = anyio.Event()
        return published
