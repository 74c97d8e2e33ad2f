"""A year of hourly folders, listed with 5 ms a call: what the first grant waits for, and what stays
of all the files once they were read.
"""

import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from unittest.mock import patch

from bench.figures import Figure
from primusd.datafeed.sources.listing import Listing
from primusd.datafeed.storage.base import Entry, Handle, StorageError
from primusd.job.spec import Source, StreamSpec, TimeRange

CALL_S = 0.005
FOLDERS = 365 * 24
FILES = 100
AHEAD_UNITS = 100_000
GOAL_FIRST_S = 1.0
GOAL_BYTES = 16 << 20
GOAL_READ_BYTES = 32 << 20
CLIENTS = "primusd.datafeed.storage.schemes._clients"


class Year:
    """A year of hourly folders with 100 files each."""

    reads_by_name = True

    def entries(self, folder: str, is_wanted: Callable[[str], bool]) -> list[Entry]:
        time.sleep(CALL_S)
        names = [f"{number:03}.txt" for number in range(FILES)]
        return [
            Entry(f"{folder}/{one}", byte_count=100, pin="1") for one in names if is_wanted(one)
        ]

    def find(self, location: str) -> Entry | None:
        time.sleep(CALL_S)
        return None if "*" in location else Entry(location, is_folder=True)

    def open(self, location: str) -> Handle:
        raise StorageError(f"{location} is not read", kind="data")


def run(*, ahead_units: int = AHEAD_UNITS, read_units: int = FOLDERS * FILES) -> list[Figure]:
    """Measure what the first grant waits for, what a long look ahead holds, and what stays."""
    place = "slow://year/{{YYYY}}/{{MM}}/{{DD}}/{{HH}}/*.txt"
    source = Source(place, span=TimeRange("2026-01-01", "2026-12-31", "UTC"), missing="wait")
    spec = StreamSpec("clicks", (source,), format="text")
    with patch.dict(CLIENTS, {("slow", "year", ()): Year()}):
        began = time.perf_counter()
        found = Listing(spec, clock_ms=lambda: int(time.time() * 1000))
        count = len(found.piece(0).units)
        first_s = time.perf_counter() - began
        assert count
        tracemalloc.start()
        while count < ahead_units:
            count += len(found.piece(count).units)
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    eager_s = FOLDERS * CALL_S * 2
    return [
        Figure(
            "first files of a year by the hour",
            first_s,
            "s",
            f"< {GOAL_FIRST_S:g} s",
            first_s < GOAL_FIRST_S,
            f"{FOLDERS:,} folders of {FILES} files, {CALL_S * 1000:.0f} ms a call: "
            f"{eager_s:.0f} s of calls in all",
        ),
        Figure(
            f"memory to list {ahead_units:,} of its files",
            peak_bytes / (1 << 20),
            "MiB",
            f"≤ {GOAL_BYTES >> 20} MiB",
            peak_bytes <= GOAL_BYTES,
            "",
        ),
        _read(read_units),
    ]


def _read(count: int) -> Figure:
    """Return what the ledger keeps of so many files that were read."""
    command = [sys.executable, "-m", "bench.year_ledger", str(count)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    grown, as_listed, read = map(float, said.split())
    return Figure(
        f"memory of {read:,.0f} of its files that were read",
        grown / (1 << 20),
        "MiB",
        f"≤ {GOAL_READ_BYTES >> 20} MiB",
        grown <= GOAL_READ_BYTES,
        f"as they were listed: {read * as_listed / (1 << 20):,.0f} MiB",
    )
