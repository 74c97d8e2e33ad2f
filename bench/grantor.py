"""A grantor small enough to trust: hands out ranges of files, counts what was taken. No daemon."""

from collections import deque
from dataclasses import dataclass, field

import anyio

from primusd.datafeed.delivery.server import FeedServer
from primusd.datafeed.protocol import FeedOrders, FeedReport, Held, Lease, Unit

OPEN_END = 1 << 62
TTL_MS = 30_000


@dataclass
class Open:
    """A lease that is out."""

    reader: str
    epoch: int
    unit: int
    lo: int
    hi: int
    position: int
    trim: int = -1


@dataclass
class Grantor:
    """One stream's ledger: ranges wait, are out, or are done."""

    stream: str
    units: list[Unit]
    granule: int = 0
    """Positions a lease; 0 whole units."""
    epochs: int = 1
    window_rows: int = 0
    is_paused: bool = False
    out: dict[int, Open] = field(default_factory=dict)
    done: list[tuple[int, int, int, int]] = field(default_factory=list)
    """Epoch, unit, lo, hi of what was taken."""
    bad: list[tuple[int, int, int, str]] = field(default_factory=list)
    reports: dict[str, FeedReport] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self._token = 0
        self._waiting: deque[tuple[int, int, int, int]] = deque()
        for epoch in range(self.epochs):
            for number, unit in enumerate(self.units):
                is_text = unit.options.get("format") == "text"
                if is_text:
                    self.sizes[number] = unit.byte_count
                self._wait(epoch, number, 0, unit.byte_count if is_text else OPEN_END)

    def _wait(self, epoch: int, unit: int, lo: int, hi: int) -> None:
        if self.granule and hi != OPEN_END:
            while hi - lo > self.granule:
                self._waiting.append((epoch, unit, lo, lo + self.granule))
                lo += self.granule
        if lo < hi:
            self._waiting.append((epoch, unit, lo, hi))

    @property
    def is_done(self) -> bool:
        """Whether all was taken."""
        return not self._waiting and not self.out

    def exchange(self, reader: str, report: FeedReport) -> FeedOrders:
        """Count a report and return the orders that answer it."""
        self.reports[reader] = report
        for found in report.mapped:
            self._learn(found.unit, found.rows)
        for bad in report.bad:
            entry = (bad.held.unit, bad.lo, bad.hi, bad.kind)
            if entry not in self.bad:
                self.bad.append(entry)
        for held in report.held:
            self._count(reader, held)
        for held in report.returned:
            self.give_back(reader, held)
        fresh = self._grant(reader, report)
        return self._orders(reader, fresh)

    def _learn(self, unit: int, rows: int) -> None:
        if unit in self.sizes:
            return
        self.sizes[unit] = rows
        waiting, self._waiting = self._waiting, deque()
        for epoch, number, lo, hi in waiting:
            self._wait(epoch, number, lo, min(hi, rows) if number == unit else hi)
        for lease in self.out.values():
            if lease.unit == unit:
                lease.hi = min(lease.hi, rows)

    def _count(self, reader: str, held: Held) -> None:
        lease = self.out.get(held.token)
        if lease is None or lease.reader != reader:
            return
        if held.hi < lease.hi:
            assert held.hi >= held.position
            self._wait(lease.epoch, lease.unit, held.hi, lease.hi)
            lease.hi, lease.trim = held.hi, -1
        assert held.position >= lease.position, "a position fell"
        lease.position = held.position
        if lease.position >= lease.hi:
            self.done.append((lease.epoch, lease.unit, lease.lo, lease.hi))
            del self.out[held.token]

    def give_back(self, reader: str, held: Held) -> None:
        """Count a lease that is returned."""
        self._count(reader, held)
        lease = self.out.get(held.token)
        if lease is not None and lease.reader == reader:
            self._release(held.token)

    def _release(self, token: int) -> None:
        lease = self.out.pop(token)
        if lease.position > lease.lo:
            self.done.append((lease.epoch, lease.unit, lease.lo, lease.position))
        self._waiting.appendleft((lease.epoch, lease.unit, lease.position, lease.hi))

    def lose(self, reader: str) -> None:
        """Take back all that a reader holds: it is gone."""
        for token in [token for token, lease in self.out.items() if lease.reader == reader]:
            self._release(token)

    def ask_trim(self, reader: str, at: int) -> None:
        """Ask for an earlier end of the reader's oldest lease."""
        for lease in self.out.values():
            if lease.reader == reader:
                lease.trim = lease.lo + at % max(1, lease.hi - lease.lo)
                return

    def holds(self, reader: str, token: int) -> bool:
        """Return whether a lease is a reader's now."""
        return token in self.out and self.out[token].reader == reader

    def _grant(self, reader: str, report: FeedReport) -> set[int]:
        told = {held.token for held in report.held}
        unheard = sum(1 for t, one in self.out.items() if one.reader == reader and t not in told)
        fresh: set[int] = set()
        for _ in range(max(0, report.want - unheard)):
            if not self._waiting or self.is_paused:
                break
            epoch, unit, lo, hi = self._waiting.popleft()
            if hi == OPEN_END and unit in self.sizes:
                hi = self.sizes[unit]
            self._token += 1
            self.out[self._token] = Open(reader, epoch, unit, lo, hi, lo)
            fresh.add(self._token)
        return fresh

    def _orders(self, reader: str, fresh: set[int]) -> FeedOrders:
        mine = {token: lease for token, lease in self.out.items() if lease.reader == reader}
        leases = tuple(
            Lease(
                lease.epoch,
                lease.unit,
                lease.lo,
                lease.hi,
                token,
                lease.position,
                lease.trim,
                self.units[lease.unit] if lease.position == lease.lo else None,
            )
            for token, lease in mine.items()
        )
        if self.is_done:
            state = "end"
        elif self.is_paused:
            state = "paused"
        else:
            state = "serve" if fresh or self._waiting else "wait"
        return FeedOrders(self.stream, leases, state, self.window_rows)


async def drive(
    server: FeedServer, grantor: Grantor, *, reader: str = "r1", beat_s: float = 0.05
) -> None:
    """Carry reports and orders between a feed and a grantor until cancelled."""
    while True:
        with anyio.move_on_after(beat_s):
            await server.changed()
        beat(server, grantor, reader=reader)


def beat(server: FeedServer, grantor: Grantor, *, reader: str = "r1") -> None:
    """Carry one report and its answer."""
    reports = server.reports()
    sent_at = server.clock()
    orders = tuple(
        grantor.exchange(reader, report) for report in reports if report.stream == grantor.stream
    )
    server.orders(orders, sent_at=sent_at, ttl_ms=TTL_MS)
