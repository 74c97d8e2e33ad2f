"""The wire between a trainer and its executor (docs/protocol.md §10). Standard library only.

A frame is a little-endian 4-byte length of all that follows, a kind byte, and the body: `J` JSON,
one object with `op`; `D` a 64-byte header and a payload.

Payloads by the header's kind: `ARROW_SCHEMA` and `ARROW_ROWS` are Arrow IPC messages, the rows
without their schema. `NUMPY_SCHEMA` is JSON, a list of columns. `NUMPY_ROWS` begins with one entry
of 16 bytes a column (flags, bytes of its data) and goes on with the columns' buffers: mask (one
byte a row, when flagged), offsets (int64, one more than rows; of kinds `text`, `bytes`, `list`),
data. Every buffer begins at a multiple of 64 in the payload. `BYTE_ROWS` is rows as bytes: an int64
for each row, where it ends in what follows, then at a multiple of 64 the rows one after the other.

A *receipt* is how many rows of the stream were handed out up to the end of a batch; giving it back
with `commit` says that all of them were used.
"""

import json
import struct
from typing import Final, NamedTuple

from primus.dialling import control_frame

VERSION: Final = 1
MAGIC: Final = b"PRMF"
CONTROL: Final = ord("J")
DATA: Final = ord("D")
CONTROL_BYTES_MAX: Final = 1 << 20
ALIGNMENT: Final = 64

ARROW_SCHEMA: Final = 1
ARROW_ROWS: Final = 2
NUMPY_SCHEMA: Final = 3
NUMPY_ROWS: Final = 4
BYTE_ROWS: Final = 5

HAS_MASK: Final = 1

PREFIX: Final = struct.Struct("<IB")
ENTRY: Final = struct.Struct("<BxxxxxxxQ")
_HEADER: Final = struct.Struct("<4sBBHIIQQQQQII")
HEADER_BYTES: Final = _HEADER.size


class Header(NamedTuple):
    """What a data frame carries, and where it comes from."""

    kind: int
    stream: int
    """The stream's place in the order's feeds."""
    row_count: int
    unit: int
    token: int
    """Of the lease."""
    lo: int
    hi: int
    """The rows are those that begin at positions lo to hi of the unit, hi excluded."""
    receipt: int
    """Rows handed out up to the end of this frame."""
    epoch: int
    byte_count: int
    """Of the payload."""


class WireError(Exception):
    """The other side does not speak this wire."""


def pack_header(header: Header) -> bytes:
    """Return the length, the kind byte and the 64 bytes of a data frame."""
    return PREFIX.pack(1 + HEADER_BYTES + header.byte_count, DATA) + _HEADER.pack(
        MAGIC,
        VERSION,
        header.kind,
        0,
        header.stream,
        header.row_count,
        header.unit,
        header.token,
        header.lo,
        header.hi,
        header.receipt,
        header.epoch,
        header.byte_count,
    )


def unpack_header(data: bytes | bytearray | memoryview) -> Header:
    """Return the header in the first 64 bytes of a data frame's body.

    Raises:
        WireError: They are none, or of a version that is not spoken here.
    """
    magic, version, kind, _, *fields = _HEADER.unpack_from(data)
    if magic != MAGIC or version != VERSION:
        raise WireError(f"a data frame begins with {magic!r}, version {version}")
    return Header(kind, *fields)


def pack_control(message: dict[str, object]) -> bytes:
    """Return the frame of a control message."""
    return control_frame(json.dumps(message, separators=(",", ":")))


def unpack_control(body: bytes | bytearray) -> dict[str, object]:
    """Return the control message of a frame's body.

    Raises:
        WireError: It is not one JSON object.
    """
    try:
        message = json.loads(body)
    except ValueError as error:
        raise WireError(f"a control message is not JSON: {error}") from error
    if not isinstance(message, dict):
        raise WireError(f"a control message is {type(message).__name__}, not an object")
    return message


def padding(byte_count: int) -> int:
    """Return how many bytes bring a buffer to the next multiple of 64."""
    return -byte_count % ALIGNMENT
