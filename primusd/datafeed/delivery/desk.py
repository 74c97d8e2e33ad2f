"""What the parts of one executor's feed share: the lock, the streams, the trainer's words."""

import threading
from collections.abc import Callable

from msgspec import Struct

from primusd.datafeed.formats.settings import HERE, Place
from primusd.datafeed.reader.reader import StreamReader
from primusd.executor.protocol import Checkpoint, FeedPlan, Progress
from primusd.job.ids import AttemptId


class FeedLock(threading.Condition):
    """A condition that also calls the event loop when something is worth a report."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        super().__init__()
        self._on_change = on_change

    def notify_all(self) -> None:
        """Wake every thread that waits, and look whether the loop should be."""
        super().notify_all()
        self._on_change()


class Stopping(Struct, frozen=True):
    """A stop that is being carried out."""

    reason: str
    grace_ms: int


class Nearing(Struct, frozen=True):
    """A limit that the trainer is warned of."""

    limit: str
    ends_at: float
    """On the feed's clock."""


class Desk:
    """One feed's shared state; touch what is below `changed` with it held only.

    Attributes:
        changed: The one lock of the feed; notify it after each change.
        readers: By stream, in the order of the plans.
        is_closed: Every thread is to end.
    """

    def __init__(
        self,
        plans: tuple[FeedPlan, ...],
        attempt: AttemptId,
        clock: Callable[[], float],
        place: Place = HERE,
    ) -> None:
        self.attempt = attempt
        self.clock = clock
        self.changed = FeedLock(self._look)
        self.readers = {
            plan.stream: StreamReader(plan, self.changed, clock, place) for plan in plans
        }
        self.on_urgent: Callable[[], None] = lambda: None
        self.is_closed = False
        self.generation = 0
        self.stopping: Stopping | None = None
        self.near: tuple[Nearing, ...] = ()
        self.is_ready = False
        self.progress: Progress | None = None
        self.checkpoint: Checkpoint | None = None
        self.phase = ""
        self.stack_signals: dict[int, int] = {}
        self.is_urgent = False

    def _look(self) -> None:
        if self.is_urgent or any(one.state.is_urgent for one in self.readers.values()):
            self.on_urgent()

    def find(self, name: str) -> StreamReader | None:
        """Return the stream of a name as its trainer says it; "" its only one.

        A pass of its own is planned as `clicks@evaluator`, and the trainer says `clicks`.
        """
        if not name and len(self.readers) == 1:
            return next(iter(self.readers.values()))
        for stream, reader in self.readers.items():
            if name and name in {stream, spoken(stream)}:
                return reader
        return None


def spoken(stream: str) -> str:
    """Return the name that a stream has in its job file."""
    return stream.partition("@")[0]
