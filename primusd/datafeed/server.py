"""The feed of one executor: what it reads for its trainer, and the socket the trainer talks to.

How the executor uses it (everything on its event loop's thread; nothing here blocks):

    server = FeedServer(order.feeds, directory=attempt_directory, attempt=attempt)
    await tasks.start(server.run)            # binds trainer.sock (0600), serves until cancelled
    environment |= server.environment()      # PRIMUS_SOCKET, PRIMUS_STREAMS, PRIMUS_FEED

    server.trainer_starting(generation=start.generation)
    fd = server.stdin_for_trainer()          # None: give it /dev/null; else the child's fd 0; the
                                             # caller closes its own copy after the fork
    server.trainer_started(pid)

    await server.changed()                   # returns when a report should go at once
    sent_at = server.clock()                 # when this report goes
    report = Report(feeds=server.reports(), progress=server.progress, …)
    server.orders(orders.feeds, sent_at=…, ttl_ms=orders.ttl_ms)

    server.stopping("preempted", grace_ms=30_000)   # tells the SDK; stdin stays open
    exit = Exit(positions=server.trainer_ended(code=0, signal=None), …)

`sent_at` of `orders` is what `server.clock()` said when the report that `Orders.report` names was
sent; -1.0 when it names none of this process. Leases are valid until `sent_at` + 90 % of the ttl;
what a report said once (`bad`, `mapped`) is repeated until an answer covers it.
"""

import time
from collections.abc import Callable
from pathlib import Path

from anyio import TASK_STATUS_IGNORED
from anyio.abc import TaskStatus

from primusd.datafeed.protocol import FeedOrders, FeedReport, Held
from primusd.executor.protocol import Checkpoint, FeedPlan, Progress
from primusd.job.ids import AttemptId


def boot_clock() -> float:
    """Return seconds since boot; unlike the monotonic clock it counts a suspended host's sleep."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class FeedServer:
    """Reads the streams of one trainer and hands it their rows.

    Attributes:
        clock: Seconds since the host's boot, time asleep counted in.
        ready: The trainer said `ready`.
        progress: What it last said of its progress; None before.
        checkpoint: Its newest whole checkpoint; None before.
        phase: The phase it says it is in, as `evaluation`; "" none.
    """

    clock: Callable[[], float]
    ready: bool
    progress: Progress | None
    checkpoint: Checkpoint | None
    phase: str

    def __init__(
        self,
        plans: tuple[FeedPlan, ...],
        *,
        directory: Path,
        attempt: AttemptId,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """Return the variables that the trainer finds its feed by."""
        raise NotImplementedError

    async def run(self, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """Serve the trainer's socket and read until cancelled."""
        raise NotImplementedError

    def trainer_starting(self, *, generation: int) -> None:
        """Note that the trainer is about to be started, as part of this generation."""
        raise NotImplementedError

    def stdin_for_trainer(self) -> int | None:
        """Return the read end of the pipe that feeds the trainer; None when its feed is no pipe."""
        raise NotImplementedError

    def trainer_started(self, pid: int) -> None:
        """Note the trainer's process; from now on a pipe is filled."""
        raise NotImplementedError

    def orders(self, feeds: tuple[FeedOrders, ...], *, sent_at: float, ttl_ms: int) -> None:
        """Take new orders; the caller has dropped those older than the last."""
        raise NotImplementedError

    def reports(self) -> tuple[FeedReport, ...]:
        """Return all that is so with each stream now."""
        raise NotImplementedError

    async def changed(self) -> None:
        """Return once something happened that is worth a report at once, since the last reports."""
        raise NotImplementedError

    def stopping(self, reason: str, grace_ms: int) -> None:
        """Tell the trainer that it is being stopped, hand out nothing new, leave stdin open."""
        raise NotImplementedError

    def trainer_ended(self, code: int | None, signal: int | None) -> tuple[Held, ...]:
        """Return the final positions of all leases, and give all of them back."""
        raise NotImplementedError
