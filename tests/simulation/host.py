"""A host with its node process: forks executors, keeps their exit records, reports what is so."""

import random
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from primusd.executor.protocol import SPEAKS, Exit
from primusd.job.ids import AttemptId
from primusd.node.protocol import NodeAttempt, NodeHello, NodeOrders, NodeReport
from tests.simulation.executor import Executor
from tests.simulation.head import CLUSTER
from tests.simulation.schedule import Schedule
from tests.simulation.trainer import Act
from tests.simulation.wire import Line, Wire

FORK_MS = 3
STARTUP_MS = 9
"""From the fork to the executor's first word: its node has told of it by then."""
REPORT_EVERY_MS = 10_000
DIAL_EVERY_MS = 500
UNANSWERED_MS = 30_000
GIB = 1 << 30


class Town(Protocol):
    """What hosts need of the world around them."""

    def dial_node(self, host: "Host") -> Line | None:
        """Return a line to whoever leads, None when nobody answers."""
        ...

    def dial_executor(self, host: "Host", executor: Executor) -> Line | None:
        """Return a line to whoever leads, None when nobody answers."""
        ...

    def act_of(self, attempt: AttemptId) -> Act:
        """Return what an attempt's run will do."""
        ...

    def trainer_started(self, host: "Host", executor: Executor) -> None:
        """Hear that a trainer process exists."""
        ...

    def exited(self, attempt: AttemptId, exit_: Exit) -> None:
        """Hear of an exit record."""
        ...

    def ends_by_force(self, executor: Executor) -> None:
        """Hear that a head has an attempt ended by force."""
        ...


class Size(Struct, frozen=True):
    """What a host has."""

    cpu_milli: int = 8_000
    memory_bytes: int = 16 * GIB
    gpus: int = 2


class Host:
    """One machine.

    Attributes:
        is_up: It has power.
        directories: Every attempt that has a directory here and was not released.
    """

    def __init__(self, name: str, size: Size, town: Town, schedule: Schedule, wire: Wire) -> None:
        self.name = name
        self.size = size
        self.boot = 1
        self.is_up = True
        self.fork_fails = False
        self.directories: dict[AttemptId, Executor] = {}
        self._words: dict[AttemptId, NodeAttempt] = {}
        """Of each directory: what is said of it, made anew when it changes."""
        self.errors: dict[AttemptId, str] = {}
        self._ever: set[AttemptId] = set()
        self._starting: set[AttemptId] = set()
        self._town = town
        self._schedule = schedule
        self._wire = wire
        self._line: Line | None = None
        self._seen = (0, 0)
        self._done = (0, 0)
        self._seq = self._answered = 0
        self._sent_ms = 0
        self._has_news = False
        self._random = random.Random(name)

    @property
    def boot_id(self) -> str:
        """Another one with each boot."""
        return f"{self.name}-{self.boot}"

    @property
    def live(self) -> list[Executor]:
        """Executors that live here."""
        return [one for one in self.directories.values() if one.is_alive]

    def _later(self, delay_ms: int, call: Callable[..., None], *args: object) -> None:
        at_ms = self._schedule.now_ms + delay_ms
        self._schedule.put(at_ms, self._in_boot, (self.boot, call, args))

    def _in_boot(self, boot: int, call: Callable[..., None], args: tuple[object, ...]) -> None:
        if self.is_up and self.boot == boot:
            call(*args)

    # Power.

    def lose_power(self) -> None:
        """Go off, and everything on it with it."""
        if self.is_up:
            self.is_up = False
            for executor in self.live:
                executor.vanish()
                self._note(executor)
                self._later(0, lambda: None)
            if self._line is not None:
                self._line.end()
            self._line = None

    def boot_up(self) -> None:
        """Come back, with the directories that it had."""
        if not self.is_up:
            self.is_up = True
            self.boot += 1
            self._starting.clear()
            self.start()

    def start(self) -> None:
        """Run the node process."""
        self._line = None
        self._later(1, self._dial)

    # The connection.

    def _dial(self) -> None:
        if self._line is not None:
            return
        line = self._town.dial_node(self)
        if line is None:
            self._later(DIAL_EVERY_MS + self._random.randrange(DIAL_EVERY_MS), self._dial)
            return
        self._line = line
        self._seq = self._answered = 0
        self._has_news = True
        line.on_break(lambda: self._hung_up(line))
        self._later(UNANSWERED_MS, self._look_for_welcome, line)

    def _hung_up(self, line: Line) -> None:
        if self._line is line:
            self._line = None
            line.end()
            self._later(DIAL_EVERY_MS, self._dial)

    def hello(self) -> NodeHello:
        """Return its first message."""
        return NodeHello(
            SPEAKS,
            CLUSTER,
            self.name,
            self.boot_id,
            "0",
            self.size.cpu_milli,
            self.size.memory_bytes,
            tuple((f"gpu{number}", "model", GIB) for number in range(self.size.gpus)),
            (20_000, 20_199),
            {"zone": "a" if self.name == "n1" else "b"},
        )

    def welcomed(self) -> None:
        """Begin to report."""
        self._report()

    def _news(self) -> None:
        self._has_news = True
        if self._answered >= self._seq:
            self._report()

    def _report(self) -> None:
        line = self._line
        if line is None:
            return
        self._has_news = False
        self._seq += 1
        self._sent_ms = self._schedule.now_ms
        report = NodeReport(self._seq, *self._done, self._listed())
        line.send(0, self._hear_at_head, line, report)
        self._later(UNANSWERED_MS, self._look_for_answer, line, self._seq)

    def _look_for_welcome(self, line: Line) -> None:
        if self._line is line and self._seq == 0:
            self._hung_up(line)

    def _look_for_answer(self, line: Line, seq: int) -> None:
        if self._line is line and self._answered < seq:
            self._hung_up(line)

    @staticmethod
    def _hear_at_head(line: Line, report: NodeReport) -> None:
        if line.at_head is not None:
            line.at_head.take(report)

    def _listed(self) -> tuple[NodeAttempt, ...]:
        failed = [
            NodeAttempt(one, alive=False, exit=None, error=text)
            for one, text in self.errors.items()
        ]
        return (*self._words.values(), *failed)

    def _note(self, one: Executor) -> None:
        """Make anew what is said of a directory."""
        if one.attempt in self.directories:
            boot_id = "" if one.is_alive else one.boot_id
            self._words[one.attempt] = NodeAttempt(
                one.attempt, one.is_alive, one.exit, boot_id=boot_id
            )

    # Orders.

    def hear(self, line: Line, orders: NodeOrders) -> None:
        """Take orders that came over a line; those of an older term or revision are dropped."""
        if not self.is_up or (orders.term, orders.revision) < self._seen:
            return
        if self._line is line:
            self._answered = max(self._answered, orders.report)
        self._seen = (orders.term, orders.revision)
        for start in orders.run:
            self._fork(start.attempt)
        has_ended = False
        for attempt in orders.kill:
            executor = self.directories.get(attempt)
            if executor is not None:
                self._town.ends_by_force(executor)
                executor.kill()
        for attempt in orders.release:
            has_ended |= self._release(attempt)
        is_news = bool(orders.kill or orders.release) and self._done != self._seen
        self._done = self._seen
        if is_news or has_ended or self._has_news:
            self._news()
        elif self._line is line and self._answered >= self._seq:
            wait_ms = max(1, self._sent_ms + REPORT_EVERY_MS - self._schedule.now_ms)
            self._later(wait_ms, self._report_again, line, self._seq)

    def _report_again(self, line: Line, seq: int) -> None:
        if self._line is line and self._seq == seq:
            self._report()

    def _fork(self, attempt: AttemptId) -> None:
        if attempt not in self._ever and attempt not in self._starting:
            self._starting.add(attempt)
            self._later(FORK_MS, self._forked, attempt)

    def _forked(self, attempt: AttemptId) -> None:
        self._starting.discard(attempt)
        self._ever.add(attempt)
        if self.fork_fails:
            self.errors[attempt] = "no room for a process"
        else:
            act = self._town.act_of(attempt)
            executor = Executor(attempt, act, self, self._schedule, self._wire)
            self.directories[attempt] = executor
            self._note(executor)
            self._later(STARTUP_MS, executor.act)
        self._news()

    def _release(self, attempt: AttemptId) -> bool:
        executor = self.directories.get(attempt)
        if executor is None:
            return self.errors.pop(attempt, None) is not None
        self._town.ends_by_force(executor)
        if not executor.kill():
            return False
        del self.directories[attempt], self._words[attempt]
        return True

    # What its executors say.

    def dial(self, executor: Executor) -> Line | None:
        """Return a line to whoever leads."""
        return self._town.dial_executor(self, executor)

    def trainer_started(self, executor: Executor) -> None:
        """Hear that a trainer process exists."""
        self._town.trainer_started(self, executor)

    def exited(self, executor: Executor, exit_: Exit) -> None:
        """Hear of an exit record."""
        self._note(executor)
        self._town.exited(executor.attempt, exit_)

    def executor_ended(self, executor: Executor) -> None:
        """Hear that an executor is gone: the lock is free."""
        self._note(executor)
        if self.is_up:
            self._news()
