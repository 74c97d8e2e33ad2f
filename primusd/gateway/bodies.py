"""A batch as the body of an answer."""

from collections.abc import Iterator

import pyarrow as pa

from primusd.datafeed.formats.base import RowBlock
from primusd.datafeed.formats.encoding import pieces_of

NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
TEXT = "application/octet-stream"
KINDS = {"ndjson": NDJSON, "arrow": ARROW, "lines": TEXT, "lines0": TEXT, "len32": TEXT}
"""Content types by the name of a form."""


def body_of(batch: pa.RecordBatch, form: str) -> bytes:
    """Return the rows in a form: one JSON object a line, an Arrow IPC stream, or framed records."""
    if form == "arrow":
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return sink.getvalue().to_pybytes()
    return b"".join(_records(batch, form))


def _records(batch: pa.RecordBatch, form: str) -> Iterator[bytes]:
    if form == "ndjson":
        # A column of bytes alone would come as it is, which is no JSON.
        names = batch.schema.names
        if len(names) == 1 and pa.types.is_binary(batch.schema.field(0).type):
            text = batch.column(0).cast(pa.string(), safe=False)
            batch = pa.RecordBatch.from_arrays([text], names=names)
    framing = "lines" if form == "ndjson" else form
    for piece in pieces_of([RowBlock(batch, 0, batch.num_rows)], framing):
        yield piece.data
