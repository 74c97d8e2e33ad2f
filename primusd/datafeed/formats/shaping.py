"""A unit whose rows have the columns of its stream and meet its conditions."""

from collections.abc import Iterator
from functools import partial

from primusd.datafeed.formats.base import Direct, Measured, PipeBlock, ReadError, RowBlock, RowFile
from primusd.datafeed.formats.encoding import piped
from primusd.datafeed.formats.filtering import Filter
from primusd.datafeed.formats.schemas import SchemaKeeper
from primusd.datafeed.formats.settings import Settings
from primusd.datafeed.protocol import Unit


class Shaped:
    """An opened unit as its stream asks for it."""

    def __init__(
        self, inner: RowFile, unit: Unit, settings: Settings, keeper: SchemaKeeper
    ) -> None:
        self._inner = inner
        self._unit = unit
        self._keeper = keeper
        self._filter = None
        if settings.filter:
            self._filter = Filter(settings.filter, partial(keeper.typed, unit.location))
        self._is_reshaped = settings.is_reshaped
        self._block_bytes_max = settings.block_bytes
        self._direct = inner if isinstance(inner, Direct) else None

    @property
    def end(self) -> int:
        """The position after its last record."""
        return self._inner.end

    @property
    def row_count(self) -> int:
        """Its rows; -1 unknown."""
        return self._inner.row_count

    @property
    def cuts(self) -> tuple[int, ...]:
        """Positions where a range is best cut; known later where it has to be read for that."""
        return self._inner.cuts

    def measure(self) -> None:
        """Find the end out, where all has to be read for that."""
        if isinstance(self._inner, Measured):
            self._inner.measure()

    def rows(self, lo: int, hi: int, *, block_bytes: int) -> Iterator[RowBlock]:
        """Yield rows, as `UnitFile.rows`."""
        try:
            yield from self._shaped(lo, hi, block_bytes)
        except UnicodeDecodeError as error:
            raise no_name(self._unit, error) from error

    def _shaped(self, lo: int, hi: int, block_bytes: int) -> Iterator[RowBlock]:
        for block in self._inner.rows(lo, hi, block_bytes=min(block_bytes, self._block_bytes_max)):
            if not block.row_count:
                yield block
                continue
            if self._filter is not None:
                block = self._filter.apply(block)  # noqa: PLW2901 the same rows, fewer of them
            yield self._keeper.shaped(block, self._unit.location)

    def pieces(self, lo: int, hi: int, *, framing: str) -> Iterator[PipeBlock]:
        """Yield bytes for a pipe: as they stand in the file where they can, else encoded."""
        direct = None if self._is_reshaped else self._direct
        if direct is not None and framing in direct.framings:
            yield from direct.pieces(lo, hi, framing=framing)
            return
        what = f"rows of {self._unit.location}"
        yield from piped(lambda most: self.rows(lo, hi, block_bytes=most), framing, what)


def no_name(unit: Unit, error: UnicodeDecodeError) -> ReadError:
    """Return the fault of a unit with a name that cannot be read: pyarrow looks at it late."""
    return ReadError(f"{unit.location} has a column whose name is no UTF-8: {error}", kind="data")
