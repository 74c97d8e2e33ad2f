"""What a reader has in hand for trainers that step together, and what of it others could have."""

from collections.abc import Iterator
from typing import Any

from primusd.datafeed.formats.base import RowBlock
from primusd.datafeed.ledger.model import OPEN_END
from primusd.datafeed.protocol import Steps
from primusd.datafeed.reader.holding import Holding
from primusd.datafeed.reader.state import ReaderState
from primusd.datafeed.reader.steps import StepCount
from primusd.datafeed.reader.turns import Turns


class Offers:
    """Rows that were read and not handed over, looked at as batches; use it with the lock held."""

    def __init__(self, steps: StepCount, state: ReaderState, turns: Turns[Any]) -> None:
        self._steps = steps
        self._state = state
        self._turns = turns
        self._is_full = False

    def told(self) -> Steps | None:
        """Return what a report says; None before the trainer opened the stream."""
        steps = self._steps
        if not steps.batch_rows:
            return None
        rows, is_dry = self._rows(), self._is_dry()
        offer = self._offer(rows, is_dry=is_dry)
        is_full = self._is_full and not is_dry
        return steps.steps(rows, is_dry=is_dry, is_full=is_full, seen=self._state.seen, offer=offer)

    def look(self) -> None:
        """Make a report urgent where others may wait for what it says."""
        is_dry = self._is_dry()
        is_full = self._is_full and not is_dry
        if self._steps.is_news(self._rows(), is_dry=is_dry, is_full=is_full):
            self._state.is_urgent = True

    def note_room(self, *, has_room: bool) -> None:
        """Note whether reading waits until the trainer takes more."""
        self._is_full = not has_room
        self.look()

    def least_cut(self, holding: Holding, wanted: int) -> int:
        """Return where a lease may end, at or above `wanted`: the limit needs the rows before."""
        return self._cut(holding, wanted, self._steps.spare(self._rows()))

    def _is_dry(self) -> bool:
        return not self._state.unread()

    def _rows(self) -> int:
        """Return the rows in hand."""
        return sum(rows for _, _, rows in self._blocks())

    def _blocks(self, only: int = 0) -> Iterator[tuple[RowBlock, Holding, int]]:
        """Yield blocks, their leases, and how many rows count of each, as leases end now."""
        for waiting in self._turns.waiting():
            holding = self._state.holding(waiting.token)
            if holding is None or (only and waiting.token != only):
                continue
            block = waiting.block
            if isinstance(block, RowBlock) and block.lo < holding.hi:
                yield block, holding, block.rows_before(holding.hi)

    def _cut(self, holding: Holding, wanted: int, spare: int) -> int:
        """Return the lowest place from `wanted` on behind which `spare` rows lie at most."""
        cut = max(wanted, min(holding.read, holding.hi))
        blocks = sorted(self._blocks(holding.lease.token), key=lambda one: -one[0].lo)
        for block, _, rows in blocks:
            if cut <= wanted:
                break
            given = rows - block.rows_before(max(wanted, block.lo)) if wanted > block.lo else rows
            if given > spare:
                return max(wanted, block.position_after(rows - spare))
            spare -= given
            cut = max(wanted, block.lo)
        return cut

    def _offer(self, rows: int, *, is_dry: bool) -> tuple[int, int, int]:
        """Return the token, place and length of the half of a lease that others could have."""
        spare = self._steps.spare(rows)
        if is_dry and spare < 2 * self._steps.batch_rows:
            return 0, 0, 0
        # One batch stays: who gives all up would be the next that has none.
        spare -= self._steps.batch_rows if is_dry else 0
        best = (0, 0, 0)
        for holding in self._state.held():
            if holding.hi == OPEN_END or holding.is_stuck:
                continue
            lowest = self._cut(holding, holding.delivered, spare)
            positions = holding.hi - lowest
            if positions > best[2]:
                best = (holding.lease.token, holding.hi - (positions + 1) // 2, positions)
        return best
