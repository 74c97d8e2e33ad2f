"""Values of records of a topic into rows: as lines, JSON objects or messages of Protobuf."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from primusd.datafeed.formats.base import ReadError
from primusd.datafeed.formats.decoders import HeadError
from primusd.datafeed.formats.forms import form_of
from primusd.datafeed.formats.framings import Cut
from primusd.datafeed.formats.partition import COLUMNS, PartitionUnit
from primusd.datafeed.formats.settings import Settings
from primusd.datafeed.protocol import Unit
from primusd.datafeed.sources.partitions import give_back, lent

NOTHING = {"jsonl": b"{}"}
"""What a value of null is decoded as: a row of nulls, or of the message's own defaults."""


def open_partition(unit: Unit, settings: Settings) -> PartitionUnit:
    """Return a partition, opened; its cluster is asked with the first fetch.

    Raises:
        ReadError: The stream's format decodes no values.
    """
    decode = Values(settings, unit.location).decode if settings.format else None
    wanted = settings.columns or COLUMNS
    looked_at = (one.column for one in settings.filter)
    client = lent(unit, settings.block_bytes)
    return PartitionUnit(
        unit,
        client,
        columns=tuple(dict.fromkeys((*wanted, *looked_at))),
        decode=decode,
        release=partial(give_back, client),
    )


class Values:
    """Decodes values; of JSON, the first ones tell columns and types."""

    def __init__(self, settings: Settings, location: str) -> None:
        """Make a decoder.

        Raises:
            ReadError: The format is none of values.
        """
        self._name = settings.format
        self._location = location
        if self._name not in ("text", "jsonl", "protobuf"):
            raise ReadError(
                f"format {self._name} decodes no values of records ({location})", kind="data"
            )
        self._decoder = form_of(self._name, settings, location).decoder
        self._is_prepared = not self._decoder.needs_head

    def decode(self, values: Sequence[bytes | None]) -> pa.RecordBatch:
        """Return a row for each value.

        Raises:
            BadRecordError: One cannot be decoded; those before it can.
            ReadError: The first ones tell no columns.
        """
        if self._name == "text":
            return pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], names=["line"])
        nothing = NOTHING.get(self._name, b"")
        parts = [nothing if one is None else one for one in values]
        if self._name == "jsonl":
            # A line end in JSON is never part of a text, so a blank means the same.
            parts = [one.replace(b"\n", b" ") for one in parts]
        lengths = np.fromiter((len(one) for one in parts), np.int64, len(parts))
        ends = np.cumsum(lengths + 1)
        data = b"\n".join(parts) + (b"\n" if parts else b"")
        if not self._is_prepared and parts:
            self._prepare(data)
        elif not self._is_prepared:
            return pa.RecordBatch.from_arrays([], names=[])
        return self._decoder.decode(data, Cut(ends - 1 - lengths, ends - 1, ends, len(data)))

    def _prepare(self, data: bytes) -> None:
        try:
            self._decoder.prepare(data, is_whole=True)
        except HeadError as error:
            text = f"{self._location}: the first values tell no columns: {error.message}"
            raise ReadError(text, kind="data") from error
        self._is_prepared = True
