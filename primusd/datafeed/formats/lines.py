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
    line_ends = np.flatnonzero(codes == NEWLINE) + 1
    end_bytes = np.ones(len(line_ends), np.int64)
    if b"\r" in data:
        # An empty first line has nothing before its end; what index -1 finds there is no matter.
        starts = np.concatenate(([0], line_ends[:-1]))
        end_bytes += (codes[line_ends - 2] == RETURN) & (line_ends - 2 >= starts)
    if len(codes) and codes[-1] != NEWLINE:
        line_ends = np.append(line_ends, len(codes))
        end_bytes = np.append(end_bytes, 0)
    lengths = np.diff(line_ends, prepend=0) - end_bytes
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    values = data.replace(b"\r\n", b"").replace(b"\n", b"")
    lines = pa.BinaryArray.from_buffers(
        pa.binary(),
        len(line_ends),
        [None, pa.py_buffer(offsets.data), pa.py_buffer(values)],
    )
    batch = pa.RecordBatch.from_arrays([lines], names=["line"])
    return RowBlock(batch, lo, hi, ends=first + line_ends, first=first)
