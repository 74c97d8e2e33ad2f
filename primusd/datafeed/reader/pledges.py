"""What a trainer says of its positions: marks and asks, until the daemon has heard them. Pure."""

from primusd.datafeed.protocol import FeedAsk, FeedOrders, Held, Mark

MARKS_MAX = 8
ASKS_MAX = 16


class Pledges:
    """Marks and asks of one stream at one reader, and what the daemon last said of them.

    Attributes:
        sealed: Newest step that was sealed, and its savepoint; -1 none.
        unsealed: Newest step that was not, and why; -1 none.
        marked: The last steps that were sealed, and their savepoints.
        answers: Error ("" done) by ask.
    """

    def __init__(self) -> None:
        self._marks: dict[int, Mark] = {}
        self._asks: dict[int, FeedAsk] = {}
        self.sealed: tuple[int, str] = (-1, "")
        self.unsealed: tuple[int, str] = (-1, "")
        self.marked: dict[int, str] = {}
        self.answers: dict[int, str] = {}

    def mark(self, step: int, positions: tuple[Held, ...]) -> None:
        """Keep where the trainer was at a step, unless it is known what became of it."""
        if step <= self._heard_to or step in self._marks:
            return
        self._marks[step] = Mark(step, positions)
        if len(self._marks) > MARKS_MAX:
            del self._marks[min(self._marks)]

    def ask(self, ask: FeedAsk) -> bool:
        """Keep what the trainer asks for; return whether there is room for it."""
        if len(self._asks) >= ASKS_MAX:
            return False
        if ask.id not in self.answers:
            self._asks[ask.id] = ask
        return True

    def obey(self, orders: FeedOrders) -> None:
        """Take in what the daemon says of them; it forgets what is not repeated."""
        self.sealed, self.unsealed = orders.sealed, orders.unsealed
        self.marked = dict((*orders.marked, orders.sealed))
        self._marks = {step: one for step, one in self._marks.items() if step > self._heard_to}
        for number, error in orders.answers:
            if self._asks.pop(number, None) is not None:
                self.answers[number] = error
        while len(self.answers) > ASKS_MAX:
            del self.answers[next(iter(self.answers))]

    @property
    def _heard_to(self) -> int:
        return max(self.sealed[0], self.unsealed[0])

    def word_on(self, step: int) -> tuple[str, str] | None:
        """Return a step's savepoint ("" there is none) and else why; None: it may still get one."""
        if step > self._heard_to:
            return None
        if step in self.marked:
            return self.marked[step], ""
        if step == self.unsealed[0]:
            return "", self.unsealed[1]
        return "", f"step {self._heard_to} was marked later, and its time is over"

    @property
    def marks(self) -> tuple[Mark, ...]:
        """Those that are to be said."""
        return tuple(self._marks[step] for step in sorted(self._marks))

    @property
    def asks(self) -> tuple[FeedAsk, ...]:
        """Those that are to be said."""
        return tuple(self._asks.values())

    def forget(self) -> None:
        """Forget all of it: the trainer ended."""
        self._marks.clear()
        self._asks.clear()
