"""What the ledger keeps of a year of files that were read: run as a process of its own, by year.py.

    python -m bench.year_ledger FILES

prints the growth of its memory, and the bytes of a file that is kept as it was listed.
"""

import gc
import random
import sys
from collections.abc import Iterator

import psutil

from primusd.datafeed.ledger import machine as ledger
from primusd.datafeed.ledger.events import (
    BeatReceived,
    ReaderOpened,
    StreamDeclared,
    StreamEvent,
    UnitsListed,
)
from primusd.datafeed.ledger.listed import UnitEntry, alike
from primusd.datafeed.ledger.model import Stream, reader_of
from primusd.datafeed.protocol import FeedReport, Held, Unit
from primusd.job.ids import AttemptId
from primusd.job.machine import At, Ignore
from primusd.job.spec import Source, StreamSpec

JOB = "0000000000000001"
READER = AttemptId(JOB, "worker", 0, 1)
FILES_AN_HOUR = 100
PIECE = 1_000
AHEAD = 2_000
LEASES = 60
AS_LISTED = 20_000
WARM = 10_000


def main(count: int) -> None:
    """Let one reader read so many files; print what stays of them."""
    before = _resident()
    listed = alike(units(0, AS_LISTED), None)
    kept = tuple(UnitEntry(unit, unit.byte_count) for unit in listed)
    as_listed = (_resident() - before) / len(kept)
    del kept
    reading = Reading()
    reading.read(min(WARM, count // 2))
    before, first = _resident(), len(reading.stream.units)
    reading.read(count)
    grown = _resident() - before
    print(grown, as_listed, len(reading.stream.units) - first)


def units(first: int, count: int) -> Iterator[Unit]:
    """Yield files as a cluster has them: long paths, some bytes, a time in nanoseconds each."""
    drawn = random.Random(first)
    for number in range(first, first + count):
        hour = number // FILES_AN_HOUR
        day = f"2026/{hour // 720 + 1:02}/{hour // 24 % 30 + 1:02}/{hour % 24:02}"
        place = f"hdfs://nn1:8020/logs/clicks/{day}/part-{number % FILES_AN_HOUR:05}-3f2a9c.txt"
        pin = 1_767_225_600_000_000_000 + hour * 3_600_000_000_000 + drawn.randrange(10**12)
        size = drawn.randrange(10**7, 2 * 10**8)
        yield Unit("file", place, size, str(pin), {"format": "text"})


class Reading:
    """A stream whose one reader reads what is listed, driven as the engine drives it."""

    def __init__(self) -> None:
        spec = StreamSpec("clicks", (Source("/data"),), format="text")
        made = ledger.apply(None, StreamDeclared(JOB, "clicks", spec, ("worker",)), At(0, 1, 0, ""))
        assert isinstance(made, Stream)
        self.stream = made
        self.now = 1
        self.step(ReaderOpened(READER, "a"))

    def step(self, event: StreamEvent) -> None:
        """Apply an event, and what follows from it."""
        self.now += 1
        decided: StreamEvent | None = event
        while decided is not None:
            after = ledger.apply(self.stream, decided, At(self.now, self.now, 0, ""))
            assert not isinstance(after, Ignore)
            self.stream = after
            decided = ledger.settle(self.stream, self.now)

    def read(self, end: int) -> None:
        """List files up to a number, and read all but those that a listing is ahead."""
        while (known := len(self.stream.units)) < end:
            self.step(UnitsListed(tuple(units(known, PIECE)), known, is_complete=False))
            while self.stream.epochs[0].next_unit < known + PIECE - AHEAD:
                self._beat()

    def _beat(self) -> None:
        reader = reader_of(self.stream, READER)
        assert reader is not None
        held = tuple(
            Held("clicks", one.epoch, one.unit, one.lo, one.token, one.hi, one.hi)
            for one in reader.leases
        )
        self.step(BeatReceived(READER, "a", FeedReport("clicks", held, LEASES)))


def _resident() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


if __name__ == "__main__":
    main(int(sys.argv[1]))
