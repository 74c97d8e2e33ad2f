"""What goes between a reader and the process in which a class of the user's reads a file."""

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from primusd.datafeed.protocol import Unit

BATCH_BYTES = 1 << 20
BATCH_RECORDS = 8_192


class Request(Struct, frozen=True):
    """Read a file from a record on."""

    unit: Unit
    compression: str
    name: str
    """`module:Class`."""
    parameters: Mapping[str, str]
    folder: str
    """The module is looked for here first."""
    first: int
    """The number of the first record that is wanted."""


class Batch(Struct, frozen=True, tag=True):
    """Some records; an Arrow IPC stream follows."""

    record_count: int


class Done(Struct, frozen=True, tag=True):
    """All records were given."""

    record_count: int
    """In the whole file."""


class Failed(Struct, frozen=True, tag=True):
    """The class failed."""

    text: str
    record: int
    """How many it had given."""
    kind: str = "data"
    head: bytes = b""


Answer = Batch | Done | Failed
encode = msgspec.msgpack.Encoder().encode
decode_request = msgspec.msgpack.Decoder(Request).decode
decode_answer = msgspec.msgpack.Decoder(Answer).decode
