"""The real ledger in place of the small grantor: real readers and trainers, no daemon."""

from bench.grantor import Grantor
from primusd.datafeed.drawing import described
from primusd.datafeed.ledger import machine as ledger
from primusd.datafeed.ledger.events import BeatReceived, ReaderEnded, ReaderOpened
from primusd.datafeed.protocol import FeedOrders, FeedReport, Held, Unit
from primusd.executor.protocol import FeedPlan
from primusd.job.ids import AttemptId
from primusd.job.spec import StreamSpec
from tests.datafeed.ledger_driver import Driver, attempt_id


class LedgerGrantor(Grantor):
    """A stream of some units; readers are named by `worker-0`, their attempts are counted."""

    def __init__(self, spec: StreamSpec, units: list[Unit], workers: int = 1) -> None:
        super().__init__("clicks", units)
        self.driver = Driver(spec)
        self.driver.list_all(units)
        self._attempts: dict[str, AttemptId] = {}
        self._last: dict[str, list[Held]] = {}
        for index in range(workers):
            self.open(f"worker-{index}")

    def plan(self, delivery: str = "socket", framing: str = "arrow") -> FeedPlan:
        settings = described(self.driver.now.spec)
        return FeedPlan("clicks", delivery, framing, settings, 0)

    def open(self, name: str) -> None:
        before = self._attempts.get(name)
        number = 1 if before is None else before.attempt + 1
        self._attempts[name] = attempt_id(int(name.rpartition("-")[2]), number)
        self._last[name] = []
        self.driver.propose(ReaderOpened(self._attempts[name], "a"))

    @property
    def is_done(self) -> bool:
        return self.driver.now.phase == "Done"

    def exchange(self, reader: str, report: FeedReport) -> FeedOrders:
        self.driver.wait(10)
        attempt = self._attempts[reader]
        self.driver.propose(BeatReceived(attempt, "a", report))
        return ledger.feed_orders(self.driver.now, attempt, "a")

    def give_back(self, reader: str, held: Held) -> None:
        self._last[reader].append(held)

    def lose(self, reader: str) -> None:
        positions = tuple(self._last[reader])
        self.driver.propose(
            ReaderEnded(self._attempts[reader], positions, has_completed=False, was_own_fault=False)
        )
