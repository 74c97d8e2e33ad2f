"""A batch as the body of an answer."""

import pyarrow as pa

from primusd.datafeed.formats.base import RowBlock
from primusd.datafeed.formats.encoding import is_of_values, json_text, pieces_of

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
    if form == "ndjson":
        return json_text(_as_text(batch))
    rows = RowBlock(batch, 0, batch.num_rows)
    return b"".join(piece.data for piece in pieces_of([rows], form))


def _as_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return records as texts, since plain bytes are no JSON."""
    if not is_of_values(batch.schema):
        return batch
    text = batch.column(0).cast(pa.string(), safe=False)
    return pa.RecordBatch.from_arrays([text], names=batch.schema.names)
