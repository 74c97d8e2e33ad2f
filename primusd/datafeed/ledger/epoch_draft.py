"""An epoch in the making: its units, cursors and counters."""

from primusd.datafeed.ledger.model import EpochState
from primusd.datafeed.ledger.shards import ShardsDraft


class EpochDraft:
    """An epoch in the making."""

    def __init__(self, epoch: EpochState) -> None:
        self.before = epoch
        self.number = epoch.number
        self.units = ShardsDraft(epoch.unit_shards)
        self.next_unit = epoch.next_unit
        self.reopened = epoch.reopened
        self.open_count = epoch.open_count
        self.consumed = epoch.consumed
        self.skipped = epoch.skipped
        self.leased = epoch.leased
        self.unsized = epoch.unsized
        self.unsized_units = epoch.unsized_units
        self.turn = epoch.turn
        self.cursors = list(epoch.cursors)
        self.left_out = epoch.left_out

    def result(self) -> EpochState:
        """Return the epoch with the changes."""
        return EpochState(
            self.number,
            self.units.result(),
            self.next_unit,
            self.reopened,
            self.open_count,
            self.consumed,
            self.skipped,
            self.leased,
            self.unsized,
            self.unsized_units,
            self.turn,
            tuple(self.cursors),
            self.left_out,
        )

    def cursor(self, track: int) -> int:
        """Return the rank up to which units of a track were handed out whole."""
        if not track:
            return self.next_unit
        return self.cursors[track - 1] if track <= len(self.cursors) else 0

    def set_cursor(self, track: int, rank: int) -> None:
        """Move a track's cursor."""
        if not track:
            self.next_unit = rank
            return
        self.cursors += [0] * (track - len(self.cursors))
        self.cursors[track - 1] = rank
