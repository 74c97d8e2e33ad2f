"""Lines as an Arrow column: bytes in, one value a line out, no Python object per line."""

import numpy as np
import pyarrow as pa

from primusd.datafeed.formats.base import RowBlock

NEWLINE = 10
RETURN = 13


def line_block(data: bytes, first: int, lo: int, hi: int) -> RowBlock:
    """Return a block with one column, `line`: the bytes of each line without its end.

    Args:
        data: Whole lines; the last one may lack its end.
        first: The position of the first byte.
        lo: Where the block begins.
        hi: Where it ends.
    """
    codes = np.frombuffer(data, np.uint8)
    is_end = codes == NEWLINE
    line_ends = np.flatnonzero(is_end) + 1
    if len(codes) and not is_end[-1]:
        line_ends = np.append(line_ends, len(codes))
    is_left_out = is_end.copy()
    is_left_out[:-1] |= (codes[:-1] == RETURN) & is_end[1:]
    kept = ~is_left_out
    kept_before = np.concatenate(([0], np.cumsum(kept)))
    offsets = np.concatenate(([0], kept_before[line_ends])).astype(np.int32)
    lines = pa.BinaryArray.from_buffers(
        pa.binary(),
        len(line_ends),
        [None, pa.py_buffer(offsets.data), pa.py_buffer(codes[kept].data)],
    )
    batch = pa.RecordBatch.from_arrays([lines], names=["line"])
    return RowBlock(batch, lo, hi, ends=first + line_ends, first=first)
