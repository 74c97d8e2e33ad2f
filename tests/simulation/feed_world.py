"""A world of a ledger and readers: messages lost, doubled, late; deaths of any kind.

Everything real but the wire, the clock and the trainer: the ledger with its journal on one side,
`ReaderState` on the other, as the executor drives it.
"""

import heapq
import random
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterator

from primusd.datafeed.ledger import events as ev
from primusd.datafeed.ledger import machine as ledger
from primusd.datafeed.ledger.model import Range, reader_of
from primusd.datafeed.ledger.tracks import is_passed, tracks_of
from primusd.datafeed.protocol import FeedOrders, FeedReport, Held, Unit
from primusd.datafeed.reader.state import ReaderState
from primusd.job.ids import AttemptId
from tests.datafeed.ledger_driver import START_MS, Driver, attempt_id, stream_spec

TTL_S = 30.0
BEAT_S = 1.0
BATCH_ROWS = 8
IN_FLIGHT_MAX = 3
"""Batches that a trainer's socket holds."""
FASTEST_S = 0.1
WINDOW_ROWS = int(1.25 * 10 * BATCH_ROWS / FASTEST_S)
"""What the fastest trainer takes in the window of 10 s: the most that may come twice per loss.

A reader's estimate of its own rate may be a quarter too high at first.
"""
IN_FLIGHT_ROWS = (IN_FLIGHT_MAX + 1) * BATCH_ROWS
"""Beside it, what it had in its buffers when it lost its leases and lived on."""
END_S = 8_000.0
RESCAN_MS = 20_000
SHUFFLE: dict[str, object] = {"seed": 7}
SOURCES: list[dict[str, object]] = [{"files": "/a", "weight": 3}, {"files": "/b"}]
SHAPES: tuple[dict[str, object], ...] = (
    {},
    {},
    {"split": {"byte_count": 900}},
    {"shuffle": SHUFFLE},
    {"sources": SOURCES, "mixing": "weighted"},
    {"sources": SOURCES, "mixing": "priority", "shuffle": SHUFFLE},
    {"order": "unit"},
    {"order": "strict", "lanes": 3, "shuffle": SHUFFLE},
)
Rows = Counter[tuple[int, int, int]]
"""How often rows were read: epoch, unit, where the row begins."""


class File:
    """A unit with the places where its records begin."""

    def __init__(self, unit: Unit, starts: list[int], size: int) -> None:
        self.unit = unit
        self.starts = starts
        self.size = size
        self.is_text = unit.options["format"] == "text"

    def slice(self, unit: Unit) -> "File":
        """Return the part of it that a unit of strict order is."""
        if "slice" not in unit.options:
            return self
        number, count = map(int, unit.options["slice"].split("/"))
        lo, hi = self.size * number // count, self.size * (number + 1) // count
        return File(unit, [one - lo for one in self.starts if lo <= one < hi], hi - lo)

    def after(self, position: int, count: int, hi: int) -> tuple[int, int]:
        """Return how many records to take from a position, and where the next begins."""
        first = bisect_left(self.starts, position)
        last = bisect_left(self.starts, hi)
        taken = min(count, last - first)
        behind = first + taken
        return taken, self.starts[behind] if behind < last else hi

    def locate(self, position: int, hi: int) -> Callable[[int], int]:
        first = bisect_left(self.starts, position)

        def locate(count: int) -> int:
            place = first + count
            return self.starts[place] if place < len(self.starts) else hi

        return locate


class Executor:
    """An attempt: a reader, and a trainer that takes a batch now and then."""

    def __init__(self, world: "World", attempt: AttemptId) -> None:
        self.world = world
        self.attempt = attempt
        self.state = ReaderState("clicks", memory_bytes=1 << 20)
        self.state.is_open = True
        self.queue: deque[tuple[int, int, int, int]] = deque()  # epoch, unit, lo, rows
        self.taken = 0
        self.written = 0
        self.is_alive = True
        self.is_frozen_until = 0.0
        takes_every_s = world.random.choice((FASTEST_S, 0.5, 2.0))
        self.takes_every_s = world.paces.get(attempt.index, takes_every_s)
        self.takes_next = world.now
        self.reports_next = world.now
        self.seq = 0
        self.sent_at: dict[int, float] = {}
        self.obeyed = 0
        self.cut_off_until = 0.0

    def tick(self) -> None:
        now = self.world.now
        if not self.is_alive or now < self.is_frozen_until:
            return
        self._deliver()
        if now >= self.takes_next and self.queue:
            self.takes_next = now + self.takes_every_s
            self._take()
            self._deliver()
        self.state.note_waiting(is_waiting=not self.queue, now=now)
        self.state.note_want(0)
        if self.state.is_urgent or now >= self.reports_next:
            self.reports_next = now + BEAT_S
            self.seq += 1
            self.sent_at[self.seq] = now
            report = self.state.report(buffered_bytes=0, now=now)
            seq = self.seq
            self.world.send(self, lambda: self.world.hear(self, seq, report))

    def _deliver(self) -> None:
        while len(self.queue) < IN_FLIGHT_MAX:
            holding = self.state.next_to_read()
            if holding is None:
                return
            lease = holding.lease
            file = self.world.files[lease.unit]
            if not file.is_text:
                self.state.opened(lease.unit, cuts=(file.size,), row_count=file.size)
            if not self.state.may_deliver(lease.token, self.world.now):
                return
            if holding.is_read:
                continue
            rows, behind = file.after(holding.read, BATCH_ROWS, holding.hi)
            lo = holding.read
            self.state.was_read(lease.token, behind)
            self.state.deliver(
                lease.token,
                lo=lo,
                hi=behind,
                size=rows,
                row_count=rows,
                locate=file.locate(lo, behind),
                now=self.world.now,
            )
            if rows:
                self.queue.append((lease.epoch, lease.unit, lo, rows))
                self.written += rows
                if self.world.is_original:
                    # Its rule: what was written to the pipe is done.
                    self.state.take(self.written, now=self.world.now)

    def _take(self) -> None:
        epoch, unit, lo, rows = self.queue.popleft()
        self.world.took_at[self.attempt.index] = self.world.now
        file = self.world.files[unit]
        first = bisect_left(file.starts, lo)
        for start in file.starts[first : first + rows]:
            self.world.read[epoch, unit, start] += 1
        self.taken += rows
        if not self.world.is_original:
            self.state.take(self.taken, now=self.world.now)

    def obey(self, revision: int, report: int, orders: FeedOrders) -> None:
        if not self.is_alive or revision <= self.obeyed:
            return
        self.obeyed = revision
        sent_at = self.sent_at.get(report, 0.0)
        self.state.obey(orders, sent_at=sent_at, ttl_s=TTL_S)


class World:
    """The wire, the daemon, the clock."""

    def __init__(
        self,
        seed: int,
        *,
        worst: bool,
        is_original: bool = False,
        has_restores: bool = True,
        records: int = 0,
    ) -> None:
        """Make the world of a seed.

        Args:
            seed: Of all that is drawn.
            worst: Messages are lost, doubled and late.
            is_original: Done is what was written to a pipe.
            has_restores: Positions go back to a savepoint now and then.
            records: Of one text file, read once, in place of what is drawn; 0 as drawn.
        """
        self.random = random.Random(seed)
        self.worst = worst
        self.is_original = is_original
        self.has_restores = has_restores
        self.now = 1_000.0
        self.epochs = self.random.choice((1, 2))
        self.shape = self.random.choice(SHAPES)
        if records:
            self.epochs, self.shape = 1, {}
        # Drawn apart, so that the other worlds stay what they were.
        has_late = random.Random(f"late {seed}").random() < 0.25
        has_late = has_late and not records and self.shape.get("order") != "strict"
        said = _rescanned(self.shape) if has_late else self.shape
        self.driver = Driver(stream_spec(epochs=self.epochs, **said), checks=False)
        self.is_text = "split" in self.shape or self.random.random() < 0.5
        files = [self._file(number) for number in range(self.random.randint(1, 4))]
        if records:
            files = [_lines(0, records, self.random)]
        self.read: Rows = Counter()
        self.executors: dict[int, Executor] = {}
        self.attempts: Counter[int] = Counter()
        self.wire: list[tuple[float, int, Callable[[], None]]] = []
        self.sent = 0
        self.counted: dict[AttemptId, int] = {}
        self.heard_at: dict[AttemptId, float] = {}
        self.pushed: dict[AttemptId, FeedOrders] = {}
        self.is_up = True
        self.is_down_until = 0.0
        self.losses = 0
        self.restores = 0
        self.paces: dict[int, float] = {}
        self.took_at: dict[int, float] = {}
        self.late = files[1:] if has_late else []
        self.came_late = 0
        files = files[: len(files) - len(self.late)]
        self.driver.list_all([file.unit for file in files], is_complete=not self.late)
        by_name = {file.unit.location: file for file in files}
        units = [entry.unit for entry in self.driver.now.units]
        self.files = [by_name[unit.location].slice(unit) for unit in units]

    def _file(self, number: int) -> File:
        count = self.random.randint(0, 1_500)
        options = {"format": "text" if self.is_text else "parquet", "source": str(number % 2)}
        if not self.is_text:
            unit = Unit("file", f"/f{number}", 10 * count, "1", options)
            return File(unit, list(range(count)), count)
        return _lines(number, count, self.random)

    # The wire.

    def send(self, executor: Executor, arrive: Callable[[], None]) -> None:
        """Carry a message, or lose it, or double it, or let it overtake others."""
        if self.now < executor.cut_off_until:
            return
        lost, doubled = (0.2, 0.1) if self.worst else (0.02, 0.0)
        copies = 0 if self.random.random() < lost else 2 if self.random.random() < doubled else 1
        for _ in range(copies):
            delay_s = self.random.uniform(0.01, 3.0 if self.worst else 0.1)
            self.sent += 1
            heapq.heappush(self.wire, (self.now + delay_s, self.sent, arrive))

    # The daemon.

    def propose(self, event: ev.StreamEvent) -> None:
        self.driver.at_ms = max(self.driver.at_ms, self._journal_ms())
        self.driver.propose(event)
        self._push_changes()

    def hear(self, executor: Executor, seq: int, report: FeedReport) -> None:
        if not self.is_up:
            return
        attempt = executor.attempt
        if reader_of(self.driver.now, attempt) is None:
            return
        self.heard_at[attempt] = self.now
        if seq > self.counted.get(attempt, 0):
            self.counted[attempt] = seq
            self.propose(ev.BeatReceived(attempt, "a", report))
        self._answer(executor)

    def _push_changes(self) -> None:
        for executor in self.executors.values():
            if reader_of(self.driver.now, executor.attempt) is not None:
                orders = ledger.feed_orders(self.driver.now, executor.attempt, "a")
                if orders != self.pushed.get(executor.attempt):
                    self._answer(executor)

    def _answer(self, executor: Executor) -> None:
        attempt = executor.attempt
        orders = ledger.feed_orders(self.driver.now, attempt, "a")
        self.pushed[attempt] = orders
        self.sent += 1
        revision, report = self.sent, self.counted.get(attempt, 0)
        self.send(executor, lambda: executor.obey(revision, report, orders))

    def _liveness(self) -> None:
        for executor in list(self.executors.values()):
            attempt = executor.attempt
            silent_s = self.now - self.heard_at.get(attempt, self.now)
            reader = reader_of(self.driver.now, attempt)
            if reader is None or silent_s < TTL_S:
                continue
            if reader.leases:
                self.losses += 1
                self.propose(ev.LeaseExpired(attempt, ()))
            if not executor.is_alive:
                self._ended(executor, ())

    def _ended(self, executor: Executor, positions: tuple[Held, ...]) -> None:
        event = ev.ReaderEnded(
            executor.attempt, positions, has_completed=False, was_own_fault=False
        )
        self.propose(event)
        del self.executors[executor.attempt.index]

    def _look(self) -> None:
        """Let a file come late into a folder that was listed, whenever a look at it is due."""
        known = len(self.driver.now.units)
        if not self.driver.now.scanning.due_ms:
            return
        file = self.late.pop(0)
        self.files.append(file)
        self.came_late += 1
        is_complete = not self.late
        scan = ev.Scan(has_ended=True, is_at_end=not is_complete)
        event = ev.UnitsListed((file.unit,), known, is_complete, scan=scan)
        self.propose(event)
        if self.worst:
            self.propose(event)

    # What goes wrong.

    def trouble(self) -> None:
        """Let something happen to somebody."""
        executor = self.random.choice(list(self.executors.values()) or [None])
        kinds = [
            self._kill_daemon,
            self._cut_off,
            self._freeze,
            self._kill_trainer,
            self._kill_all,
            self._save,
            self._restore,
        ]
        if executor is not None and executor.is_alive:
            self.random.choice(kinds)(executor)

    def _kill_daemon(self, _executor: Executor) -> None:
        self.is_up = False
        self.is_down_until = self.now + self.random.choice((0.5, 5.0, 60.0))

    def _cut_off(self, executor: Executor) -> None:
        executor.cut_off_until = self.now + self.random.choice((5.0, 25.0, 90.0))

    def _freeze(self, executor: Executor) -> None:
        executor.is_frozen_until = self.now + self.random.choice((5.0, 25.0, 90.0))

    def _kill_trainer(self, executor: Executor) -> None:
        if self.is_up:
            self.losses += 1
            executor.is_alive = False
            self._ended(executor, executor.state.give_back_all())

    def _kill_all(self, executor: Executor) -> None:
        executor.is_alive = False
        self.losses += 1
        if self.is_up and self.random.random() < 0.5:
            self._ended(executor, ())  # The node saw it.

    def _save(self, _executor: Executor) -> None:
        if self.is_up:
            name = f"s{len(self.driver.now.savepoints)}"
            self.driver.propose(ev.SavepointRequested(name))

    def _restore(self, _executor: Executor) -> None:
        """Go back to a savepoint: what was read since counts as never read."""
        savepoints = self.driver.now.savepoints
        if not self.is_up or not savepoints or not self.has_restores:
            return
        found = self.random.choice(savepoints)
        self.restores += 1
        # Each trainer still uses what it has in hand.
        self.losses += len(self.executors)
        self.propose(ev.RestoreRequested(found.name))
        self.read = Counter(self._done())

    def _done(self) -> Iterator[tuple[int, int, int]]:
        """Yield the rows that the ledger has as done."""
        stream = self.driver.now
        tracks = tracks_of(stream)
        open_epochs = {epoch.number: epoch for epoch in stream.epochs}
        for number in range(stream.epochs_begun):
            epoch = open_epochs.get(number)
            for unit, file in enumerate(self.files):
                state = None if epoch is None else epoch.units.get(unit)
                is_whole = epoch is None or (state is None and is_passed(tracks, epoch, unit))
                done = state.done if state else (Range(0, file.size),) if is_whole else ()
                yield from (
                    (number, unit, one)
                    for one in file.starts
                    if any(part.lo <= one < part.hi for part in done)
                )

    def _start_missing(self, count: int) -> None:
        for index in range(count):
            if index not in self.executors:
                self.attempts[index] += 1
                executor = Executor(self, attempt_id(index, self.attempts[index]))
                self.executors[index] = executor
                self.heard_at[executor.attempt] = self.now
                self.propose(ev.ReaderOpened(executor.attempt, "a"))

    # Time.

    def run(self, readers: int, troubles: int) -> None:
        """Run until the stream is done."""
        trouble_at = self.now + self.random.uniform(0, 20)
        while self.driver.now.phase == "Serving":
            assert self.now < END_S, "never finished"
            self.now = max(self.now + 0.001, self._next_at(trouble_at if troubles else END_S))
            if not self.is_up and self.now >= self.is_down_until:
                self._restart()
            if self.is_up:
                self._start_missing(readers)
                self._liveness()
                self._timer()
                self._look()
            while self.wire and self.wire[0][0] <= self.now:
                heapq.heappop(self.wire)[2]()
            for executor in list(self.executors.values()):
                executor.tick()
            if troubles and self.now >= trouble_at:
                troubles -= 1
                trouble_at = self.now + self.random.uniform(0, 20)
                self.trouble()

    def _next_at(self, trouble_at: float) -> float:
        """Return when something happens next."""
        # Whoever is missing begins within a second.
        found = [trouble_at, self.now + 1, self.wire[0][0] if self.wire else END_S]
        if self.is_up:
            due_ms = ledger.deadline_ms(self.driver.now)
            found.append(self.now + max(0, due_ms - self._journal_ms()) / 1000 if due_ms else END_S)
            found += [at + TTL_S for at in self.heard_at.values() if at + TTL_S > self.now]
        else:
            found.append(self.is_down_until)
        for executor in self.executors.values():
            if executor.is_alive:
                first = executor.reports_next
                first = min(first, executor.takes_next) if executor.queue else first
                found.append(max(first, executor.is_frozen_until))
        return min(found)

    def _restart(self) -> None:
        self.is_up = True
        self.driver.stream = self.driver.replay()
        self.heard_at = dict.fromkeys(self.heard_at, self.now)

    def _journal_ms(self) -> int:
        return START_MS + int(self.now * 1000)

    def _timer(self) -> None:
        at_ms = self._journal_ms()
        if at_ms > self.driver.at_ms:
            revision = self.driver.revision
            self.driver.wait(at_ms - self.driver.at_ms)
            if self.driver.revision != revision:
                self._push_changes()

    def rows(self) -> set[tuple[int, int, int]]:
        return {
            (epoch, unit, start)
            for epoch in range(self.epochs)
            for unit, file in enumerate(self.files)
            for start in file.starts
        }


def _rescanned(shape: dict[str, object]) -> dict[str, object]:
    """Return a shape whose sources are looked at again."""
    sources = shape.get("sources", [{"files": "/data"}])
    assert isinstance(sources, list)
    return shape | {"sources": [{**one, "rescan_ms": RESCAN_MS} for one in sources]}


def _lines(number: int, count: int, chosen: random.Random) -> File:
    """Return a text of so many lines."""
    starts = [0]
    for _ in range(count):
        starts.append(starts[-1] + chosen.randint(1, 30))
    size = starts.pop()
    options = {"format": "text", "source": str(number % 2)}
    return File(Unit("file", f"/f{number}", size, "1", options), starts, size)
