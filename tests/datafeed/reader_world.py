"""Two readers with their trainers, and everything that may happen to them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from hypothesis import strategies as st

from bench.grantor import Grantor
from primusd.datafeed.protocol import FeedOrders, FeedReport, Held
from primusd.datafeed.reader.state import IDLE_S, ReaderState

TTL_S = 30.0
BYTES_A_ROW = 3


class Giver(Protocol):
    """Who grants: a counter of the tests, or the ledger."""

    cuts: tuple[int, ...]
    """What opening a unit tells; empty: its size is known from its listing."""

    @property
    def is_done(self) -> bool: ...

    def exchange(self, reader: str, report: FeedReport, *, at_s: float) -> FeedOrders: ...

    def end(self, reader: str, final: tuple[Held, ...]) -> None: ...

    def crash(self, reader: str) -> None: ...

    def expire(self, reader: str) -> None: ...

    def ask_trim(self, reader: str, at: int) -> None: ...

    def holds(self, reader: str, token: int) -> bool: ...


class Counting:
    """The small grantor."""

    cuts: tuple[int, ...] = ()

    def __init__(self, grantor: Grantor) -> None:
        self.grantor = grantor
        self.ask_trim = grantor.ask_trim
        self.holds = grantor.holds
        self.crash = grantor.lose
        self.expire = grantor.lose

    @property
    def is_done(self) -> bool:
        return self.grantor.is_done

    def exchange(self, reader: str, report: FeedReport, *, at_s: float) -> FeedOrders:
        del at_s
        return self.grantor.exchange(reader, report)

    def end(self, reader: str, final: tuple[Held, ...]) -> None:
        for held in final:
            self.grantor.give_back(reader, held)
        self.grantor.lose(reader)


def opened() -> ReaderState:
    state = ReaderState("clicks", memory_bytes=1 << 20)
    state.is_open = True
    return state


@dataclass
class Life:
    """A reader with its trainer."""

    name: str
    is_pipe: bool
    state: ReaderState = field(default_factory=opened)
    buffer: list[tuple[int, int, int]] = field(default_factory=list)
    handed: list[tuple[int, int]] = field(default_factory=list)
    """Token and position of each row, in order."""
    taken: int = 0
    """Bytes in a pipe, else rows."""

    @property
    def unit_size(self) -> int:
        return BYTES_A_ROW if self.is_pipe else 1

    def used(self) -> list[tuple[int, int]]:
        return self.handed[: self.taken // self.unit_size]


@dataclass
class World:
    """Two readers of one file, and what happens to them."""

    giver: Giver
    lives: list[Life]
    clock: float = 0.0
    names: int = 2
    used: list[tuple[int, int]] = field(default_factory=list)
    """Epoch and position of rows that trainers which are gone had used."""
    epochs: dict[int, int] = field(default_factory=dict)
    has_fault: bool = False

    def read(self, life: Life, count: int) -> None:
        holding = life.state.next_to_read()
        if holding is not None:
            life.state.opened(holding.lease.unit, cuts=self.giver.cuts, row_count=-1)
            lo, hi = holding.read, min(holding.read + count, holding.hi)
            life.buffer.append((holding.lease.token, lo, hi))
            self.epochs[holding.lease.token] = holding.lease.epoch
            life.state.was_read(holding.lease.token, hi)

    def deliver(self, life: Life) -> None:
        if not life.buffer:
            return
        token, lo, hi = life.buffer[0]
        may = life.state.may_deliver(token, self.clock)
        if may is False:
            return
        life.buffer.pop(0)
        holding = life.state.holding(token)
        if holding is None or lo >= holding.hi:
            return
        hi = min(hi, holding.hi)
        size = life.unit_size
        life.handed += [(token, position) for position in range(lo, hi)]
        life.state.deliver(
            token,
            lo=lo,
            hi=hi,
            size=(hi - lo) * size,
            row_count=hi - lo,
            locate=lambda n: lo + n // size,
            now=self.clock,
        )

    def take(self, life: Life, count: int) -> None:
        life.taken = min(life.taken + count, len(life.handed) * life.unit_size)
        life.state.take(life.taken, now=self.clock)

    def beat(self, life: Life, *, is_answered: bool = True) -> None:
        sent_at = self.clock
        report = life.state.report(buffered_bytes=0, now=self.clock)
        used = set(life.used())
        for held in (*report.held, *report.returned):
            told = {(held.token, position) for position in range(held.lo, held.position)}
            if self.giver.holds(life.name, held.token):
                assert told <= used, "told before it was taken"
        answer = self.giver.exchange(life.name, report, at_s=self.clock)
        self.clock += 0.01
        if is_answered:
            life.state.obey(answer, sent_at=sent_at, ttl_s=TTL_S)

    def replace(self, life: Life) -> None:
        self.used += [(self.epochs[token], position) for token, position in life.used()]
        self.names += 1
        self.lives[self.lives.index(life)] = Life(f"r{self.names}", life.is_pipe)

    def crash(self, life: Life) -> None:
        self.has_fault = True
        self.replace(life)
        self.giver.crash(life.name)

    def end(self, life: Life) -> None:
        """The trainer ends; its final positions arrive with the exit record."""
        final = life.state.give_back_all()
        if life.is_pipe and life.taken % BYTES_A_ROW:
            self.has_fault = True
        self.replace(life)
        self.giver.end(life.name, final)

    def expire(self, life: Life) -> None:
        self.has_fault = True
        self.giver.expire(life.name)

    def trim(self, life: Life, at: int) -> None:
        self.giver.ask_trim(life.name, at)

    def idle(self, life: Life) -> None:
        self.clock += IDLE_S + 1
        life.state.note_idle(self.clock)

    def wait(self, seconds: int) -> None:
        self.clock += seconds

    def step(self, what: str, which: int, count: int) -> None:
        life = self.lives[which % 2]
        doings: dict[str, Callable[[], None]] = {
            "read": lambda: self.read(life, 1 + count),
            "deliver": lambda: self.deliver(life),
            "take": lambda: self.take(life, count),
            "beat": lambda: self.beat(life),
            "lost answer": lambda: self.beat(life, is_answered=False),
            "crash": lambda: self.crash(life),
            "end": lambda: self.end(life),
            "expire": lambda: self.expire(life),
            "trim": lambda: self.trim(life, count),
            "time": lambda: self.wait(count),
            "idle": lambda: self.idle(life),
        }
        doings[what]()

    def finish(self) -> None:
        for _ in range(400):
            for life in self.lives:
                self.beat(life)
                self.read(life, 100)
                self.deliver(life)
                self.take(life, 100)
            if self.giver.is_done:
                return
        raise AssertionError(f"not done: {self.giver}")

    def all_used(self) -> list[tuple[int, int]]:
        rows = list(self.used)
        for life in self.lives:
            rows += [(self.epochs[token], position) for token, position in life.used()]
        return rows


STEPS = ("read", "deliver", "take", "beat", "lost answer", "trim", "end", "idle", "time")
FAULTS = ("crash", "expire")


def programs(*more: str) -> st.SearchStrategy[list[tuple[str, int, int]]]:
    usual = ("read", "deliver", "take", "beat")
    """Return what may happen, step after step: what, to whom, how much."""
    step = st.sampled_from((*usual, *usual, *STEPS, *more))
    return st.lists(st.tuples(step, st.integers(0, 1), st.integers(0, 20)), max_size=120)
