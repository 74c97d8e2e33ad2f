"""Where the rows of a shuffled unit lie: positions of its own, mapped to those of the file. Pure.

A shuffled unit has as many positions as the file, and each means one place in the permuted order.
The file is cut into blocks, the blocks are permuted, and each `blocks` of them in turn make a
group, whose rows are mixed with each other. A group has the positions from `lo` to `hi`, as many
as its blocks have in the file. So a range of positions, a cut and a savepoint mean what they mean
elsewhere, and nothing has to be kept but the position.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

from msgspec import Struct

from primusd.datafeed.keyed import Permutation

BYTES_A_ROW = 128
"""Of text: what `blockRows` means in bytes."""
GROUP_BYTES_MAX = 32 << 20
"""Of the file; the rows of a group are in memory together."""


class Group(Struct, frozen=True):
    """Some blocks whose rows are mixed."""

    number: int
    lo: int
    hi: int
    parts: tuple[tuple[int, int], ...]
    """Its blocks, as ranges of the file."""


class Groups:
    """All groups of a unit, in their order."""

    def __init__(self, ends: Sequence[int], *, blocks: int, key: int) -> None:
        """Make them.

        Args:
            ends: Where each block of the file ends, in order.
            blocks: How many make a group.
            key: Of the permutation.
        """
        order = Permutation(len(ends), key)
        parts = []
        for place in range(len(ends)):
            number = order.at(place)
            parts.append((ends[number - 1] if number else 0, ends[number]))
        self._groups = [parts[first : first + blocks] for first in range(0, len(parts), blocks)]
        sizes = (sum(hi - lo for lo, hi in group) for group in self._groups)
        self.ends = tuple(accumulate(sizes))

    def within(self, lo: int, hi: int) -> Iterator[Group]:
        """Yield the groups that have a position in the range."""
        number = bisect_right(self.ends, lo)
        while number < len(self.ends) and (start := self.ends[number - 1] if number else 0) < hi:
            yield Group(number, start, self.ends[number], tuple(self._groups[number]))
            number += 1


def block_ends(
    end: int, cuts: Sequence[int], *, block_rows: int, byte_count: int, has_bytes: bool
) -> list[int]:
    """Return where the blocks of a file end: its cheap cuts, those too far apart cut evenly.

    Args:
        end: Of the file.
        cuts: Where it is cut cheaply; empty: anywhere.
        block_rows: Most rows of a block.
        byte_count: Of the file: a block has `GROUP_BYTES_MAX` of them at most.
        has_bytes: Positions are bytes.
    """
    wanted = block_rows * BYTES_A_ROW if has_bytes else block_rows
    most = GROUP_BYTES_MAX * end // max(1, byte_count) if byte_count else wanted
    size = max(1, min(wanted, most))
    ends: list[int] = []
    start = 0
    for cut in cuts or (end,):
        count = -(-(cut - start) // size)
        ends += [start + (cut - start) * number // count for number in range(1, count + 1)]
        start = max(start, cut)
    return ends


def group_blocks(end: int, ends: Sequence[int], *, blocks: int, byte_count: int) -> int:
    """Return how many blocks make a group: as asked, as far as memory allows."""
    if not ends or not byte_count:
        return blocks
    block_bytes = max(1, byte_count * (end // len(ends)) // max(1, end))
    return max(1, min(blocks, GROUP_BYTES_MAX // block_bytes))
