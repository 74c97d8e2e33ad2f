"""How the bytes of a stream's files become rows, as its job file says it."""

from collections.abc import Mapping

from msgspec import Struct

MEMORY_BYTES = 128 << 20
"""What a reader of a stream may take, where its job file says nothing."""


class Decoding(Struct, frozen=True):
    """How the bytes of files become rows."""

    options: Mapping[str, str] = {}
    """Of the format, as `jobfile/decoding.py` reads them."""
    types: Mapping[str, str] = {}
    """Arrow types by column, in place of those that files have."""
    filter: tuple[str, ...] = ()
    """Conditions that all have to hold (`job/conditions.py`)."""
    on_schema: str = "fail"
    """`fail`, `null` or `skip`: files whose columns are others."""
    on_empty: str = "skip"
    """`skip` or `fail`: files without a row."""
    memory_bytes: int = MEMORY_BYTES
    """What one reader may take."""
