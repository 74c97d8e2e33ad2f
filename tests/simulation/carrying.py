"""Positions that streams start at and leave behind: the daemon's own, in folders without files."""

from collections.abc import Iterator

from primusd import carriage
from primusd.carriage import Found
from primusd.core import World
from primusd.datafeed.ledger.carrying import carried_units, whole_epochs
from primusd.datafeed.ledger.events import CarryingFailed, PositionsCarried, PositionsKept
from primusd.datafeed.ledger.model import Stream
from primusd.datafeed.ledger.portable import Portable, as_carried
from primusd.errors import PrimusdError

CARRY_MS = 5
UNREACHABLE = "the folder does not answer"


class Positions:
    """Folders with the positions that streams left in them.

    Attributes:
        is_gone: Nothing can be read or written now.
    """

    def __init__(self) -> None:
        self.is_gone = False
        self._kept: dict[str, Portable] = {}

    def carried(self, world: World, stream: Stream) -> Iterator[PositionsCarried | CarryingFailed]:
        """Yield what a stream that is to start somewhere is told."""
        try:
            found = self._find(world, stream)
        except PrimusdError as error:
            yield CarryingFailed(str(error), is_permanent=True)
            return
        if isinstance(found, Found):
            yield from carriage._carried(found, len(stream.carried))
        elif stream.waiting_for != (found.text,):
            yield found

    def _find(self, world: World, stream: Stream) -> Found | CarryingFailed:
        if stream.spec.restore is not None:
            other, savepoint = carriage.named_savepoint(world, stream, stream.spec.restore)
            units = carried_units(other, savepoint)
            return Found(units, whole_epochs(savepoint), savepoint.name)
        if holder := carriage._holder(world, stream):
            return CarryingFailed(f"{holder} holds them", is_permanent=False, is_waiting=True)
        if self.is_gone:
            return CarryingFailed(UNREACHABLE, is_permanent=False)
        kept = self._kept.get(stream.spec.staging)
        if kept is None:
            return Found()
        return Found(as_carried(kept.units), kept.whole_epochs, stream.spec.staging)

    def keep(self, world: World, stream: Stream) -> PositionsKept:
        """Keep the last positions of a closed stream."""
        if self.is_gone:
            return PositionsKept(UNREACHABLE)
        self._kept[stream.spec.staging] = carriage.exported(stream, world)
        return PositionsKept()
