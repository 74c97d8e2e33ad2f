"""What a storage must do: open a pinned file and read any bytes of it, from several threads."""

import errno
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from primusd.errors import PrimusdError

if TYPE_CHECKING:  # Loaded after the fork only: it starts threads.
    import pyarrow as pa

HEAD_BYTES = 64
TRANSIENT_ERRNOS = frozenset(
    {errno.EIO, errno.EAGAIN, errno.ETIMEDOUT, errno.ESTALE, errno.ENOTCONN, errno.EHOSTDOWN}
    | {errno.EHOSTUNREACH, errno.ECONNRESET, errno.ENFILE, errno.EMFILE, errno.ENOMEM}
)


class ReadError(PrimusdError):
    """A range that cannot be read.

    Attributes:
        kind: `transient`, `data`, `changed` or `vanished`, as in `BadRange`.
        lo: Where the bad positions begin; -1 the whole range that was asked for.
        hi: Where they end; -1 as above.
        head: The first bytes of the unit.
    """

    code = "Unreadable"

    def __init__(
        self, message: str, *, kind: str, lo: int = -1, hi: int = -1, head: bytes = b""
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.lo = lo
        self.hi = hi
        self.head = head


class OpenFile(Protocol):
    """An opened file that lives as long as somebody holds this object.

    Pieces in a pipe look record boundaries up in their file long after its range was read, so no
    single place knows when the last one is done.
    """

    @property
    def fd(self) -> int:
        """Its descriptor, to splice from; -1 when it is not a local file."""
        ...

    @property
    def size(self) -> int:
        """Its bytes as listed."""
        ...

    def pread(self, offset: int, count: int) -> bytes:
        """Return so many bytes; fewer only at the end of the file.

        Raises:
            ReadError: They cannot be read, or the file is no longer the one that was listed.
        """
        ...

    def prefetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Say which bytes, as (offset, count), are read next: the far ones come at once."""
        ...

    def arrow(self) -> "pa.NativeFile":
        """Return a further view of it for pyarrow's decoders, with a place of its own."""
        ...

    def check(self) -> None:
        """Check that it is still as it was listed, where that is cheap to know.

        Raises:
            ReadError: Its size or its time of change is another.
        """
        ...
