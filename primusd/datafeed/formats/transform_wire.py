"""What goes between a reader and a process that runs a transform of the user's."""

from collections.abc import Mapping

import msgspec
from msgspec import Struct


class Apply(Struct, frozen=True):
    """Transform the rows of the Arrow IPC stream that follows."""

    function: str
    """`module:function`."""
    folder: str
    """The module is looked for here first."""
    parameters: Mapping[str, str]
    stream: str
    location: str
    epoch: int
    may_drop: bool


class Applied(Struct, frozen=True, tag=True):
    """What it gave; an Arrow IPC stream follows."""

    kept: bytes | None = None
    """One bit for each row that was given, the first in the highest bit; None: all were kept."""


class Failed(Struct, frozen=True, tag=True):
    """The function failed, or gave what it must not."""

    text: str


Answer = Applied | Failed
encode = msgspec.msgpack.Encoder().encode
decode_apply = msgspec.msgpack.Decoder(Apply).decode
decode_answer = msgspec.msgpack.Decoder(Answer).decode
