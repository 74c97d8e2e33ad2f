"""Some rows of a block: their places, and how many were left out before each. Pure."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from primusd.datafeed.formats.base import RowBlock


@dataclass(frozen=True, slots=True)
class LeftOut:
    """How many rows begin below a position of those that were left out."""

    begins: np.ndarray
    before: Callable[[int], int] | None = None
    """Of those that were left out of the block before."""

    def __call__(self, position: int) -> int:
        """Return their number."""
        count = int(self.begins.searchsorted(position))
        return count + (self.before(position) if self.before is not None else 0)


def begins_of(block: RowBlock) -> np.ndarray:
    """Return where each row of a block begins; it has one at least."""
    if block.ends is None:
        return np.arange(block.lo, block.lo + block.row_count, dtype=np.int64)
    return np.concatenate(((block.first,), block.ends[:-1]))


def kept_rows(block: RowBlock, mask: np.ndarray, rows: pa.RecordBatch) -> RowBlock:
    """Return a block of the rows that are kept; it still carries all its positions.

    Args:
        block: It has one row at least.
        mask: Which of its rows are kept.
        rows: These.
    """
    begins = begins_of(block)
    kept = begins[mask]
    # Each row ends where the next one that is kept begins, the last one with the block.
    ends = np.append(kept[1:], block.hi) if len(kept) else kept
    return replace(
        block,
        batch=rows,
        ends=ends,
        first=int(kept[0]) if len(kept) else block.lo,
        left_out=LeftOut(begins[~mask], block.left_out),
    )
