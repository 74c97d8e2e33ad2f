"""The files that jobs read: what a listing finds, and where records begin."""

from primusd.datafeed.protocol import Unit
from primusd.datafeed.sources.files import ListingError
from primusd.job.spec import StreamSpec
from tests.simulation.carrying import Positions

RECORD_BYTES = 10
"""Of text; of what must be opened a position is a row."""


class Files:
    """A file system with the folders that scripts name: `/<count>x<size><kind>`.

    Attributes:
        positions: That streams left behind.
    """

    def __init__(self) -> None:
        self.positions = Positions()

    @property
    def is_gone(self) -> bool:
        """Whether nothing can be listed, read or written now."""
        return self.positions.is_gone

    @is_gone.setter
    def is_gone(self, is_gone: bool) -> None:
        self.positions.is_gone = is_gone

    def list(self, spec: StreamSpec) -> tuple[Unit, ...]:
        """Return the units of a stream's sources.

        Raises:
            ListingError: The folder cannot be listed.
        """
        if self.is_gone:
            raise ListingError("the folder does not answer", permanent=False)
        found: list[Unit] = []
        for source in spec.sources:
            found += _units(source.files)
        return tuple(found)


def _units(folder: str) -> list[Unit]:
    count, size, kind = folder.strip("/").split("-")
    if kind == "missing":
        raise ListingError("there is no such folder", permanent=True)
    options = {"format": "text" if kind == "text" else "parquet"}
    return [
        Unit("file", f"/{folder}/{number}", int(size), "1", options) for number in range(int(count))
    ]


def is_text(unit: Unit) -> bool:
    """Return whether a unit's positions are bytes."""
    return unit.options["format"] == "text"


def rows_between(unit: Unit, lo: int, hi: int) -> int:
    """Return how many records begin in a range."""
    if not is_text(unit):
        return hi - lo
    return -(-hi // RECORD_BYTES) + (-lo // RECORD_BYTES)


def is_poison(unit: Unit, lo: int, hi: int) -> bool:
    """Return whether a range kills the trainer that reads it: one record in a folder of poison."""
    return "poison" in unit.location and lo <= unit.byte_count // 2 < hi


def listing_ms(spec: StreamSpec) -> int:
    """Return how long a listing takes."""
    return 15_000 if any("slow" in one.files for one in spec.sources) else 5


def bad_range(unit: Unit, lo: int, hi: int) -> tuple[str, int, int] | None:
    """Return the kind and place of what cannot be read within a range, None when all can be.

    Of a folder of kind `bad` the third tenth of every unit is damaged; of kind `flaky` the storage
    does not answer for the last tenth.
    """
    tenth = max(1, unit.byte_count // 10)
    for kind, name, first, last in (
        ("data", "bad", 3 * tenth, 4 * tenth),
        ("transient", "flaky", 9 * tenth, unit.byte_count),
    ):
        if name in unit.location and lo < last and hi > first:
            return kind, max(lo, first), min(hi, last)
    return None
